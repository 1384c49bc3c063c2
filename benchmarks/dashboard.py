"""The cost of `cohort dashboard`: pages of a very long run, of broken and huge files, and its share of a core during training.

    python benchmarks/dashboard.py                         all of it: about five minutes, 2.2 GB of disk for a while
    python benchmarks/dashboard.py --only open             10,000 steps and 1 million rollouts
    python benchmarks/dashboard.py --only huge             a metrics.jsonl of 1 GB, one without line ends, one half-written
    python benchmarks/dashboard.py --only share            CPU while the demo trains and pages are requested as by a browser

Every figure is the first request to a new server, in wall-clock seconds and, in brackets, CPU seconds of the server. The exit code is 1
if a page takes more than 2 s, or following the demo more than 2 % of a core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from cohort.observe.metrics import METRICS
from cohort.observe.rollouts import ROW, write_rollouts
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import build_recipe, dump_recipe
from cohort.types import Completion, Outcome, Prompt, Rollout

STEPS, COMPLETIONS, GROUP = 10_000, 100, 4
EVALUATED_EVERY, PROBLEMS = 50, 512


def make_long_run(root: Path, steps: int = STEPS, completions: int = COMPLETIONS) -> Path:
    """A run folder of that many steps: rows with every common metric, evaluations, events, an index of all completions and their files.

    The files of completions between the first and the last ten steps are one file under many names.
    """
    folder, rng = RunFolder(root), random.Random(0)
    folder.rollouts.mkdir(parents=True)
    folder.recipe_file.write_text(
        dump_recipe(build_recipe({"name": root.name, "train": {"num_steps": steps}})), encoding="utf-8"
    )
    folder.summary_file.write_text(
        json.dumps({"status": "interrupted", "steps": steps, "seconds": 3.0 * steps}), encoding="utf-8"
    )
    names = [metric.name for metric in METRICS if "<" not in metric.name and not metric.name.startswith(("eval/", "ranks/"))][
        :90
    ]
    with folder.metrics_file.open("w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            row = (
                {"step": step}
                | {name: rng.random() for name in names}
                | {"time/step": 3.0, "reward/mean": 1 - 1 / (1 + step / 900)}
            )
            evidence = {"best": {"row": 0, "rows": [0], "prompt": "1+9=", "completion": "1+9+0=10\n>10" * 20, "reward": 1.0}}
            file.write(json.dumps(row | {"evidence": evidence}) + "\n")
    with folder.evaluations_file.open("w", encoding="utf-8") as file:
        for step in range(0, steps + 1, EVALUATED_EVERY):
            file.write(json.dumps(make_evaluation(step, steps, rng)) + "\n")
    with folder.events_file.open("w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            file.write(
                json.dumps({"time": 1.7e9 + 3 * step, "step": step, "kind": "progress", "done": step, "total": steps}) + "\n"
            )
    write_index(folder, steps, completions)
    write_completions(folder, steps, completions, rng)
    return root


def make_evaluation(step: int, steps: int, rng: random.Random) -> dict[str, object]:
    share = 0.2 + 0.6 * step / steps
    numbers = {f"pass@{k}": {"value": share, "low": share - 0.03, "high": share + 0.03} for k in (1, 2, 4, 8)}
    verdicts = ["".join(str(int(rng.random() < share)) for _ in range(8)) for _ in range(PROBLEMS)]
    problems = {"problem": [f"{number:016x}" for number in range(PROBLEMS)], "success": verdicts, "greedy": "1" * PROBLEMS}
    label = "before" if step == 0 else "during"
    return {
        "step": step,
        "label": label,
        "sets": {"held_out": numbers | {"problems": PROBLEMS}},
        "per_problem": {"held_out": problems},
    }


def write_index(folder: RunFolder, steps: int, completions: int) -> None:
    rng = np.random.default_rng(0)
    rows = np.zeros(steps * completions, ROW)
    place = np.tile(np.arange(completions), steps)
    rows["step"], rows["row"] = np.repeat(np.arange(1, steps + 1), completions), place
    rows["group"], rows["sample"] = place // GROUP, place % GROUP
    rows["prompt_index"], rows["length"] = rng.integers(0, 5000, len(rows)), rng.integers(1, 300, len(rows))
    rows["success"] = rng.random(len(rows)) < 0.6
    rows["reward"], rows["advantage"] = rows["success"], rng.normal(size=len(rows))
    rows["end"] = rng.random(len(rows)) < 0.05
    folder.index_file.write_bytes(rows.tobytes())


def write_completions(folder: RunFolder, steps: int, completions: int, rng: random.Random) -> None:
    ends = {*range(1, 11), *range(steps - 9, steps + 1)}
    for step in sorted(ends):
        rollouts = [
            Rollout(
                Prompt(number // GROUP, f"What is {number} and {step}?", {"answer": "7"}, (1, 2, 3)), number // GROUP, number % GROUP,
                Completion((4, 5, 6), (-0.1, -0.2, -0.3), "stop", "so it is 7 " * 20), Outcome({"correct": 1.0}, 1.0, True, "7"), step,
            )
            for number in range(completions)
        ]  # fmt: skip
        write_rollouts(folder.rollouts_file(step), step, rollouts, [rng.random() for _ in rollouts])
    for step in range(11, steps - 9):
        os.link(folder.rollouts_file(10), folder.rollouts_file(step))


def make_huge_files(root: Path, size: int = 1 << 30) -> Iterator[tuple[str, Path]]:
    """(what is wrong, run folder) of runs whose metrics.jsonl is huge, each way once."""
    names = [f"loss/number_{number}" for number in range(60)]
    line = json.dumps({"step": 1, "reward/mean": 0.5} | dict.fromkeys(names, 0.123456789012)).encode() + b"\n"
    block = line * ((1 << 20) // len(line))
    for name, about, content in (
        ("lines", "1 GB of lines", block),
        ("endless", "1 GB without a line end", b"x" * (1 << 20)),
        ("zeros", "1 GB of zeros", b"\0" * (1 << 20)),
        ("broken", "1 GB of broken lines", b'{"step": 1, "a": \n' * 50_000),
    ):
        folder = root / name
        folder.mkdir(parents=True)
        with (folder / "metrics.jsonl").open("wb") as file:
            while file.tell() < size:
                file.write(content)
            file.write(b'\n{"step": 99, "reward/me')
        yield about, folder


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A server of a folder of runs: its address, and its process."""
    command = [sys.executable, "-m", "cohort", "dashboard", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://[\d.:]+", process.stdout.readline())
        assert found
        yield found[0], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def count_cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def open_page(base: str, process: psutil.Process, path: str) -> tuple[float, float, str]:
    """(seconds, CPU seconds, the page)."""
    begun, cpu = time.perf_counter(), count_cpu(process)
    with urllib.request.urlopen(base + path) as answer:
        page = answer.read().decode()
    return time.perf_counter() - begun, count_cpu(process) - cpu, page


MOST_SECONDS, MOST_SHARE = 2.0, 0.02
missed: list[str] = []


def report(what: str, seconds: float, cpu: float, page: str) -> None:
    if seconds > MOST_SECONDS:
        missed.append(what)
    lost = re.search(r"metrics\.jsonl: [^<]*", page)
    print(f"{what:44} {seconds:6.2f} s ({cpu:.2f} s)  {len(page) / 1e3:7.0f} kB  {lost[0] if lost else ''}", flush=True)


def measure_opening(scratch: Path) -> None:
    make_long_run(scratch / "long" / "run")
    for path in (
        "/",
        "/run/run",
        "/run/run/groups",
        "/run/run/groups?filter=wrong",
        "/run/run/group/5000/3",
        "/compare?run=run",
    ):
        with serve(scratch / "long") as (base, process):
            open_page(base, process, "/static/page.css")
            report(f"first {path}", *open_page(base, process, path))
            report(f"again {path}", *open_page(base, process, path))
            if path == "/run/run":
                report("  then /run/run?smooth=50&bands=yes", *open_page(base, process, f"{path}?smooth=50&bands=yes"))
                report("  then a file: /csv/run/run?item=entropy", *open_page(base, process, "/csv/run/run?item=entropy"))


def measure_huge(scratch: Path) -> None:
    for about, folder in make_huge_files(scratch / "huge"):
        with serve(folder.parent) as (base, process):
            open_page(base, process, "/static/page.css")
            report(f"/ with {about}", *open_page(base, process, "/"))
            report(f"/run with {about}", *open_page(base, process, f"/run/{folder.name}"))
        (folder / "metrics.jsonl").unlink()


def measure_share(scratch: Path, seconds: float) -> None:
    """Three pages of a training demo, each requested as by live.js."""
    (scratch / "share").mkdir()
    words = ["name=demo", f"runs_folder={scratch / 'share'}", "monitors.console=false", "cold_start.num_steps=50"]
    training = subprocess.Popen([sys.executable, "-m", "cohort", "train", *words], env={**os.environ, "OMP_NUM_THREADS": "1"})
    file = scratch / "share" / "demo" / "metrics.jsonl"
    try:
        while not file.is_file():
            time.sleep(0.5)
        with serve(scratch / "share") as (base, process):
            pages = dict.fromkeys(("/", "/run/demo", "/compare?run=demo"), (0.0, ""))
            for path in pages:
                open_page(base, process, path)
            begun, cpu, steps, made, asked = time.perf_counter(), count_cpu(process), count_steps(file), 0, 0
            while time.perf_counter() - begun < seconds and training.poll() is None:
                for path, (due, tag) in pages.items():
                    if time.perf_counter() >= due:
                        asked += 1
                        tag, wait, fresh = ask_again(base, path, tag)
                        made += fresh
                        pages[path] = (time.perf_counter() + wait, tag)
                time.sleep(0.05)
            passed = time.perf_counter() - begun
            share = (count_cpu(process) - cpu) / passed
            went = count_steps(file) - steps
        if share > MOST_SHARE:
            missed.append("its share of a core")
        print(
            f"beside the demo: {100 * share:.2f} % of a core, 3 pages, {passed:.0f} s, {went} steps, asked {asked} times, sent {made} times"
        )
    finally:
        training.terminate()
        training.wait()


def count_steps(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def ask_again(base: str, path: str, tag: str) -> tuple[str, float, bool]:
    """(tag, seconds to wait, whether there was something new)."""
    request = urllib.request.Request(f"{base}/live{path}", headers={"If-None-Match": tag})
    try:
        with urllib.request.urlopen(request) as answer:
            answer.read()
            return answer.headers["ETag"], float(answer.headers["X-Wait"]), True
    except urllib.error.HTTPError as answer:
        if answer.code != 304:
            raise
        return tag, float(answer.headers["X-Wait"]), False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("open", "huge", "share"), action="append")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the share of a core is measured")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cohort-dashboard-") as scratch:
        for name in chosen.only or ("open", "huge", "share"):
            if name == "share":
                measure_share(Path(scratch), chosen.seconds)
            else:
                {"open": measure_opening, "huge": measure_huge}[name](Path(scratch))
    print(f"missed: {', '.join(missed) or 'nothing'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
