"""More rows of tests/test_stranger.py: what must be edited for a new choice of the objective, done for real in a copy of the source.

| thing | new files | files that are edited |
|---|---|---|
| advantage | 0 | 1: algorithms/advantages.py |
| region with two parameters | 0 | 1: algorithms/regions.py |
| either of a user's own | 0 | 0 |

The life of a user's own function (resume, report, evaluation, comparison) is in test_own_life.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from session_tools import rows_of
from test_stranger import SOURCE, WRITTEN_RECIPE_PAGE, Stranger, rollouts_of

SHARE = {"function": "session_tools:digit_share"}
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
WORDS = 'Setting("damp_up", 1.0, "damped: above 1.", ge=0), Setting("damp_down", 0.5, "damped: below 1.", ge=0)'
OWN = f"""
import torch
from torch import Tensor
from cohort.algorithms.regions import Surrogate, Tokens, ratio
{ADVANTAGE}
{REGION}
"""
ASK = """
import json, sys
from cohort.errors import RecipeError
from cohort.recipe.file import load_recipe
from cohort.recipe.describe import describe_algorithm
try:
    print(describe_algorithm(load_recipe(overrides=sys.argv[1:]).algorithm))
except RecipeError as problem:
    print(problem)
"""


@pytest.fixture
def stranger(tmp_path):
    made = Stranger(tmp_path)
    shutil.copy(Path(__file__).parents[1] / "session_tools.py", tmp_path)  # for its reward
    return made


def add_advantage(stranger: Stranger) -> None:
    with (stranger.package / "algorithms" / "advantages.py").open("a") as file:
        file.write(f"\n\n@advantage(){ADVANTAGE}")


def add_region(stranger: Stranger) -> None:
    with (stranger.package / "algorithms" / "regions.py").open("a") as file:
        file.write(f"\n\nfrom cohort.algorithms.registry import Setting\n\n\n@region(settings=[{WORDS}]){REGION}")


def edited(stranger: Stranger) -> list[str]:
    """Files that are new or other than in the source."""
    files = (path for path in stranger.package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    places = sorted(path.relative_to(stranger.package) for path in files)
    there = (str(place) for place in places if not (SOURCE / place).exists() or differs(stranger, place))
    return list(there)


def differs(stranger: Stranger, place: Path) -> bool:
    return (SOURCE / place).read_bytes() != (stranger.package / place).read_bytes()


def check_ranks(run: Path) -> None:
    """Advantages of every group of four are the ranks of its rewards."""
    rows = rollouts_of(run, 1)
    for first in range(0, len(rows), 4):
        members = sorted(rows[first : first + 4], key=lambda row: row["advantage"])
        assert [row["advantage"] for row in members] == pytest.approx([-1 / 2, -1 / 6, 1 / 6, 1 / 2])
        assert [row["reward"] for row in members] == sorted(row["reward"] for row in members)


def test_an_advantage_is_one_function_in_one_file(stranger):
    add_advantage(stranger)
    assert edited(stranger) == ["algorithms/advantages.py"]
    run = stranger.train(**{"algorithm.advantage": "ranked", "rewards": [SHARE]})
    check_ranks(run)
    assert "advantage ranked instead of group_normalized" in (run / "report.html").read_text()
    # What rules and words must know of it is known: it compares its group, and reads no std_epsilon.
    assert "with advantage 'ranked' the group is its own baseline" in stranger.run(
        "-c", ASK, "advantage=ranked", "group_size=1"
    )
    said = stranger.run("-c", ASK, "advantage=ranked", "std_epsilon=0.1")
    assert "without effect here: std_epsilon (used only by advantage" in said
    assert "did you mean 'ranked'?" in stranger.run("-c", ASK, "advantage=rankd")


@pytest.mark.prove
def test_a_region_with_two_parameters_is_one_function_in_one_file(stranger):
    add_region(stranger)
    assert edited(stranger) == ["algorithms/regions.py"]
    run = stranger.train(**{"algorithm.region": "damped", "algorithm.damp_up": 3.0, "rewards": [SHARE]})
    assert "damp_up = 3.0\ndamp_down = 0.5\n" in (run / "recipe.toml").read_text()
    assert "-&gt; damped 3/0.5 -&gt;" in (run / "report.html").read_text()
    assert all(row["loss/coefficient_abs_max"] > 0 for row in rows_of(run))
    said = stranger.run("-c", ASK, "region=damped", "damp_up=-1")
    assert "algorithm.damp_up: Input should be greater than or equal to 0" in said
    assert "without effect here: damp_up (used only by region 'damped')" in stranger.run("-c", ASK, "damp_up=2")
    page = stranger.run("-c", WRITTEN_RECIPE_PAGE)
    assert "| `damp_down` | number | `0.5` | ≥ 0 | damped: below 1. |" in page


@pytest.mark.prove
def test_choices_of_a_users_own_need_no_edit_and_train_to_the_bits_of_the_built_in_ones(stranger):
    (stranger.folder / "mine.py").write_text(OWN)
    steps = {"train.minibatches_per_step": 2, "rewards": [SHARE]}
    mine = {"algorithm.advantage": "mine:ranked", "algorithm.region": "mine:damped", "algorithm.args.damp_up": 3.0}
    run = stranger.train(**steps | mine)
    assert edited(stranger) == []
    check_ranks(run)
    assert json.loads((run / "algorithm.json").read_text())["region"]["args"] == {"damp_up": 3.0}
    weights = (run / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(run)
    add_advantage(stranger)
    add_region(stranger)
    run = stranger.train(**steps, **{"algorithm.advantage": "ranked", "algorithm.region": "damped", "algorithm.damp_up": 3.0})
    assert (run / "model" / "model.safetensors").read_bytes() == weights
