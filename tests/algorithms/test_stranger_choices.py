"""What somebody who has never seen the house must edit for a new choice of the objective: done for real, in a copy of the source.

| thing | files of src that are edited | new files in src |
|---|---|---|
| advantage | 1: algorithms/advantages.py | 0 |
| region with two parameters | 1: algorithms/regions.py | 0 |
| either of a user's own | 0 | 0 |

Each is then used as a person would: a process of its own, from the command line. The life of a user's own function (resume,
report, evaluation, comparison) is in test_own_life.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cohort.algorithms import registry
from session_tools import ONE_THREAD, rows_of, write_recipe

SOURCE = Path(registry.__file__).parents[1]
SHORT = {
    "cold_start.num_steps": 0,
    "rewards": [{"function": "scores:digit_share"}],
    "train.num_steps": 2,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 1,
    "evaluation.samples": 0,
    "algorithm.kl_coef": 0.0,
}
REWARD = """
def digit_share(completions, **columns):
    return [sum(character.isdigit() for character in text) / (1 + len(text)) for text in completions]
"""
ADVANTAGE = '''
def ranked(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """The rank of a completion in its group, from -1/2 to 1/2."""
    return rewards_PG.argsort(1).argsort(1).double() / (rewards_PG.shape[1] - 1) - 0.5
'''
REGION = '''
def damped(tokens: Tokens, *, damp_up: float = 1.0, damp_down: float = 0.5) -> Surrogate:
    """A pull back to a ratio of 1, as strong above it as damp_up says and below as damp_down."""
    ratio_M = ratio(tokens.policy_logprobs_M, tokens.old_logprobs_M)
    pull_M = torch.where(ratio_M > 1, damp_up, damp_down) * (ratio_M - 1).square()
    return Surrogate(-ratio_M * tokens.advantages_M + pull_M, ratio_M.detach(), ratio_M < 0, ratio_M < 0)
'''
WORDS = 'Word("damp_up", 1.0, "damped: above 1.", ge=0), Word("damp_down", 0.5, "damped: below 1.", ge=0)'
BUILT_IN_ADVANTAGE = f"\n\n@advantage(){ADVANTAGE}"
BUILT_IN_REGION = f"\n\nfrom cohort.algorithms.registry import Word\n\n@region(words=[{WORDS}]){REGION}"
OWN = f"""
import torch
from torch import Tensor
from cohort.algorithms.regions import Surrogate, Tokens, ratio
{ADVANTAGE}
{REGION}
"""


class Stranger:
    """A copy of the package, the edits made in it, and processes that import it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.package = folder / "src" / "cohort"
        shutil.copytree(SOURCE, self.package)
        (folder / "scores.py").write_text(REWARD)

    def append(self, path: str, text: str) -> None:
        with (self.package / path).open("a", encoding="utf-8") as file:
            file.write(text)

    def edits(self) -> list[str]:
        """Files that are new or other than in the source."""
        files = (path for path in self.package.rglob("*") if path.is_file() and path.suffix != ".pyc")
        places = sorted(str(path.relative_to(self.package)) for path in files)
        return [
            place
            for place in places
            if not (SOURCE / place).exists() or (SOURCE / place).read_bytes() != (self.package / place).read_bytes()
        ]

    def run(self, *words: str, code: int = 0) -> str:
        environment = {**ONE_THREAD, "PYTHONPATH": os.fspath(self.package.parent), "COHORT_NATIVE": "0"}
        done = subprocess.run(
            [sys.executable, *words], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def train(self, *words: str, code: int = 0) -> str:
        recipe = write_recipe(self.folder / "short.toml", **SHORT)
        return self.run("-m", "cohort", "train", str(recipe), "name=run", *words, code=code)


@pytest.fixture
def stranger(tmp_path):
    made = Stranger(tmp_path)
    assert made.edits() == []
    return made


def check_ranks(run: Path) -> None:
    """Advantages of every group of four are the ranks of its rewards."""
    rows = pq.read_table(run / "rollouts" / "step-000001.parquet").to_pylist()
    for first in range(0, len(rows), 4):
        members = sorted(rows[first : first + 4], key=lambda row: row["advantage"])
        assert [row["advantage"] for row in members] == pytest.approx([-1 / 2, -1 / 6, 1 / 6, 1 / 2])
        assert [row["reward"] for row in members] == sorted(row["reward"] for row in members)


def test_an_advantage_is_one_function_in_one_file(stranger):
    stranger.append("algorithms/advantages.py", BUILT_IN_ADVANTAGE)
    assert stranger.edits() == ["algorithms/advantages.py"]
    stranger.train("advantage=ranked")
    check_ranks(stranger.folder / "runs" / "run")
    # What a rule and a word must know of it is known: it compares its group, and reads no std_epsilon.
    said = stranger.train("advantage=ranked", "group_size=1", code=1)
    assert "with advantage 'ranked' the group is its own baseline" in said
    assert "did you mean 'ranked'?" in stranger.train("advantage=rankd", code=1)
    report = (stranger.folder / "runs" / "run" / "report.html").read_text()
    assert "advantage ranked instead of group_normalized" in report
    said = stranger.run("-c", DESCRIBE, "ranked", "clip")
    assert "without effect here: std_epsilon (it is read by advantage" in said


DESCRIBE = """
import sys
from cohort.recipe.schema import AlgorithmConfig
from cohort.recipe.words import describe
print(describe(AlgorithmConfig(advantage=sys.argv[1], region=sys.argv[2], std_epsilon=0.1)))
"""


def test_a_region_with_two_parameters_is_one_function_in_one_file(stranger):
    stranger.append("algorithms/regions.py", BUILT_IN_REGION)
    assert stranger.edits() == ["algorithms/regions.py"]
    stranger.train("region=damped", "damp_up=3")
    run = stranger.folder / "runs" / "run"
    assert "damp_up = 3.0\ndamp_down = 0.5\n" in (run / "recipe.toml").read_text()
    assert "-&gt; damped 3/0.5 -&gt;" in (run / "report.html").read_text()
    assert all(row["loss/coefficient_abs_max"] > 0 for row in rows_of(run))
    said = stranger.train("region=damped", "damp_up=-1", code=1)
    assert "algorithm.damp_up: Input should be greater than or equal to 0" in said
    said = stranger.run("-c", "from cohort.recipe.page import markdown; print(markdown())")
    assert "| `damp_down` | number | `0.5` | ≥ 0 | damped: below 1. |" in said


def test_choices_of_a_users_own_need_no_edit_and_train_to_the_bits_of_the_built_in_ones(stranger):
    (stranger.folder / "mine.py").write_text(OWN)
    stranger.train("advantage=mine:ranked", "region=mine:damped", "algorithm.args.damp_up=3")
    assert stranger.edits() == []
    run = stranger.folder / "runs" / "run"
    check_ranks(run)
    assert json.loads((run / "algorithm.json").read_text())["region"]["args"] == {"damp_up": 3}
    own = [{name: row[name] for name in ("loss/total", "optim/grad_norm", "reward/mean")} for row in rows_of(run)]
    shutil.rmtree(run)
    stranger.append("algorithms/advantages.py", BUILT_IN_ADVANTAGE)
    stranger.append("algorithms/regions.py", BUILT_IN_REGION)
    stranger.train("advantage=ranked", "region=damped", "damp_up=3")
    assert [{name: row[name] for name in own[0]} for row in rows_of(run)] == own
