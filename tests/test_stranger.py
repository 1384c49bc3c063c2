"""What somebody who has never seen the house must edit to add a thing to it: done for real, in a copy of the source.

| thing | new files | lines in files that exist |
|---|---|---|
| reward | 1 | 1: the table of rewards/__init__.py |
| engine | 1 | 1: ENGINES of recipe/values.py |
| monitor | 1 | 1: MONITORS |
| command | 1 | 1: COMMANDS |
| metric | 0 | 2: where it is computed, and its row in METRICS |

Each test makes the edits, asserts that there are no others (the copy is compared with the source), and then uses the thing as a
person would: a process of its own, from the command line. A row more is a test more.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cohort.observe import metrics
from pages import DOCS
from session_tools import ONE_THREAD, rows_of, write_recipe

SOURCE = Path(metrics.__file__).parents[1]
SHORT = {
    "cold_start.num_steps": 0,
    "train.num_steps": 2,
    "train.minibatches_per_step": 1,
    "train.passes_per_step": 1,
    "evaluation.samples": 0,
    "algorithm.kl_coef": 0.0,
}
"""Two steps of a tiny model, from random weights."""
WRITTEN_RECIPE_PAGE = (
    f"import sys; sys.path.append({os.fspath(DOCS / 'generators')!r}); import recipe_page; print(recipe_page.make_page())"
)
"""Prints docs/recipe.md as the copy would write it."""


class Stranger:
    """A copy of the package, the edits made in it, and processes that import it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.package = folder / "src" / "cohort"
        shutil.copytree(SOURCE, self.package)  # with its bytecode: compiling it again would take longer than most rows

    def write(self, path: str, text: str) -> None:
        """A new file."""
        assert not (self.package / path).exists(), path
        (self.package / path).write_text(text, encoding="utf-8")

    def insert(self, line: str, *, after: str) -> None:
        """A line after the only one of the package that begins with `after`, indented as it is."""
        found = [
            (file, number, there)
            for file in sorted(self.package.rglob("*.py"))
            for number, there in enumerate(file.read_text(encoding="utf-8").splitlines())
            if there.strip().startswith(after)
        ]
        assert len(found) == 1, f"{after!r} begins {len(found)} lines: {[(str(file), number) for file, number, _ in found]}"
        ((file, number, there),) = found
        lines = file.read_text(encoding="utf-8").splitlines()
        lines.insert(number + 1, there[: len(there) - len(there.lstrip())] + line)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def edits(self) -> tuple[int, int]:
        """(new files, lines that files of the package have more or otherwise), compared with the source."""
        new, changed = 0, 0
        for file in sorted(path for path in self.package.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            original = SOURCE / file.relative_to(self.package)
            if not original.exists():
                new += 1
            elif file.read_bytes() != original.read_bytes():
                before, after = (path.read_text(encoding="utf-8").splitlines() for path in (original, file))
                changed += sum(line[:2] in ("+ ", "- ") for line in difflib.ndiff(before, after))
        return new, changed

    def run(self, *words: str, code: int = 0, errors: bool = False) -> str:
        """`python WORDS` with the copy; what it printed, or what it complained of."""
        # Without native code: it would be compiled once more for every copy.
        environment = {**ONE_THREAD, "PYTHONPATH": os.fspath(self.package.parent), "COHORT_NATIVE": "0"}
        done = subprocess.run(
            [sys.executable, *words], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if errors else done.stdout

    def train(self, **overrides: object) -> Path:
        """The folder of a short run of the command line."""
        recipe = write_recipe(self.folder / "short.toml", **SHORT | overrides)
        self.run("-m", "cohort", "train", str(recipe), "name=run")
        return self.folder / "runs" / "run"


@pytest.fixture
def stranger(tmp_path):
    made = Stranger(tmp_path)
    assert made.edits() == (0, 0)
    return made


def rollouts_of(run: Path, step: int) -> list[dict]:
    return pq.read_table(run / "rollouts" / f"step-{step:06d}.parquet").to_pylist()


@pytest.mark.prove
def test_a_reward_is_one_file_and_one_line(stranger):
    stranger.write(
        "rewards/brevity.py",
        '"""Short completions."""\n\n\n'
        "def brevity(completions, **columns):\n"
        '    """1 for an empty completion, falling with every character."""\n'
        "    return [1 / (1 + len(text if isinstance(text, str) else text[-1]['content'] or '')) for text in completions]\n",
    )
    stranger.insert(
        "from cohort.rewards.brevity import brevity as brevity",
        after="from cohort.rewards.penalties import repetition as repetition",
    )
    assert stranger.edits() == (1, 1)
    run = stranger.train(rewards=[{"function": "brevity"}])
    for row in rows_of(run):
        expected = [1 / (1 + len(rollout["completion"])) for rollout in rollouts_of(run, row["step"])]
        assert row["reward/brevity/mean"] == row["reward/mean"] == pytest.approx(sum(expected) / len(expected))
    assert "did you mean 'brevity'?" in stranger.run("-c", NEAREST)
    shutil.copytree(DOCS, stranger.folder / "docs", ignore=shutil.ignore_patterns("results"))
    stranger.run("docs/generators", "rewards.md")
    listed = (stranger.folder / "docs" / "rewards.md").read_text(encoding="utf-8")
    assert "| `brevity` | 1 for an empty completion, falling with every character. |" in listed


NEAREST = """
from cohort.errors import RewardError
from cohort.rewards import built_in
try:
    built_in("brevety")
except RewardError as problem:
    print(problem)
"""


BACKWARDS = '''"""hf, asked from the last request to the first."""

from pathlib import Path

from cohort.engine.hf import HFEngine


def make_backwards(setup):
    return Backwards(setup), "engine backwards: the last request first"


class Backwards(HFEngine):
    name = "backwards"

    def generate(self, requests, sampling, noise, on_finish=None):
        with Path("asked.txt").open("a") as file:
            print(self.version, len(requests), file=file)
        return super().generate(requests[::-1], sampling, noise, on_finish)[::-1]
'''


@pytest.mark.prove
def test_an_engine_is_one_file_and_one_line(stranger):
    stranger.write("engine/backwards.py", BACKWARDS)
    stranger.insert(
        '"backwards": EngineEntry("cohort.engine.backwards:make_backwards", "the last request first"),',
        after='"hf": EngineEntry(',
    )
    assert stranger.edits() == (1, 1)
    graded = {"function": "soft_overlong", "args": {"longest": 60, "buffer": 60, "unit": "characters"}}
    small = {"train.prompts_per_step": 2, "rewards": [graded]}
    run = stranger.train(**small, **{"sampling.engine": "backwards"})
    assert (stranger.folder / "asked.txt").read_text() == "0 8\n1 8\n"  # the groups of two steps, each by the policy of then
    assert all(row["rollout/completions"] == 8 and row["loss/coefficient_abs_max"] > 0 for row in rows_of(run))
    weights = (run / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(run)
    run = stranger.train(**small, **{"sampling.engine": "hf"})
    assert (run / "model" / "model.safetensors").read_bytes() == weights  # the contract: order changes no completion
    assert (stranger.folder / "asked.txt").read_text() == "0 8\n1 8\n"
    recipe = str(stranger.folder / "short.toml")
    assert "did you mean 'backwards'?" in stranger.run(
        "-m", "cohort", "train", recipe, "sampling.engine=bakwards", code=1, errors=True
    )
    page = stranger.run("-c", WRITTEN_RECIPE_PAGE)
    assert "backwards: the last request first. " in page


def test_a_monitor_is_one_file_and_one_line(stranger):
    stranger.write(
        "observe/monitors/tally.py",
        '"""How many rewards were seen, in a file of the run folder."""\n\n'
        "from cohort.observe.monitors.base import Monitor\n\n\n"
        "class TallyMonitor(Monitor):\n"
        "    @classmethod\n"
        "    def for_run(cls, run):\n"
        "        made = cls()\n"
        "        made.file = run.folder / 'tally.txt'\n"
        "        return made\n\n"
        "    def on_metrics(self, row):\n"
        "        with self.file.open('a') as file:\n"
        "            print(row['step'], row['reward/mean'], file=file)\n",
    )
    stranger.insert('"tally": "cohort.observe.monitors.tally:TallyMonitor",', after='"wandb": "cohort.observe.monitors.')
    assert stranger.edits() == (1, 1)
    run = stranger.train(**{"monitors.also": ["tally"]})
    assert (run / "tally.txt").read_text() == "".join(f"{row['step']} {row['reward/mean']}\n" for row in rows_of(run))
    assert len(rows_of(run)) == 2


def test_a_command_is_one_file_and_one_line(stranger):
    stranger.write(
        "tools/commands/count.py",
        '"""`cohort count`: how many steps a run took."""\n\n'
        "from pathlib import Path\nfrom typing import Annotated\n\nimport typer\n\nfrom cohort.errors import RunError\n\n\n"
        "def count(run: Annotated[Path, typer.Argument(help='A run folder.')], most: int = 9) -> int:\n"
        '    """Count the steps of a run."""\n'
        "    if not run.is_dir():\n"
        "        raise RunError(f'{run} is not a run folder')\n"
        "    steps = (run / 'metrics.jsonl').read_text().count('\\n')\n"
        "    typer.echo(f'{steps} steps')\n"
        "    return 3 if steps > most else 0\n",
    )
    stranger.insert('"count": "cohort.tools.commands.count",', after='"report": "cohort.tools.commands.runs"')
    assert stranger.edits() == (1, 1)
    lines = stranger.run("-m", "cohort", "--help").splitlines()
    assert ["count", "Count", "the", "steps", "of", "a", "run."] in [line.split() for line in lines]
    (stranger.folder / "metrics.jsonl").write_text("{}\n{}\n")
    assert stranger.run("-m", "cohort", "count", ".") == "2 steps\n"
    assert stranger.run("-m", "cohort", "count", ".", "--most", "1", code=3) == "2 steps\n"
    assert stranger.run("-m", "cohort", "count", "nowhere", code=1) == ""  # the error is on stderr


@pytest.mark.prove
def test_a_metric_is_a_line_where_it_arises_and_its_row(stranger):
    stranger.insert('"rollout/length_min": min(lengths),', after='"rollout/length_max": max(lengths)')
    stranger.insert(
        'Metric("rollout/length_min", "tokens", "shortest completion of the step", "above 0", "At 1: empty completions."),',
        after='Metric("rollout/length_max"',
    )
    assert stranger.edits() == (0, 2)
    run = stranger.train()
    with pytest.raises(AssertionError, match="rollout/length_min"):
        rows_of(run)  # by the table of this source, which has no such row
    written = [line for line in (run / "metrics.jsonl").read_text().splitlines() if '"rollout/length_min"' in line]
    assert len(written) == 2
    for step in (1, 2):
        shortest = min(len(rollout["completion_ids"]) for rollout in rollouts_of(run, step))
        assert f'"rollout/length_min": {shortest},' in written[step - 1]
    shutil.copytree(DOCS / "generators", stranger.folder / "docs" / "generators")
    stranger.run("docs/generators", "metrics.md")
    assert (
        "| `rollout/length_min` | tokens | shortest completion of the step |"
        in (stranger.folder / "docs/metrics.md").read_text()
    )
