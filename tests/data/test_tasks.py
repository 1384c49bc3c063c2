"""Built-in tasks: rows that are right, and splits that cannot meet."""

from __future__ import annotations

import pytest

from cohort.base.keyed import keyed_hash, keyed_permutation, keyed_share
from cohort.data.column_addition import columns, demonstrate, find_split
from cohort.data.rows import load_rows
from cohort.data.tasks import load_task
from cohort.errors import PromptError
from cohort.recipe.schema import PromptsConfig

# --- keyed randomness ------------------------------------------------------------------------------------------------


def test_keyed_values_never_change():
    """Pinned: another value would move every split and every order of every recorded run."""
    assert keyed_hash("a", 1) == 9331952569449725121
    assert keyed_permutation(6, "order", 3) == [3, 0, 1, 2, 4, 5]
    assert keyed_hash("a", "b") != keyed_hash("ab")
    shares = [keyed_share("x", index) for index in range(4000)]
    assert 0 <= min(shares) < max(shares) < 1
    assert sum(shares) / len(shares) == pytest.approx(0.5, abs=0.02)


# --- column addition -------------------------------------------------------------------------------------------------


def test_the_demonstration_is_the_written_addition():
    assert demonstrate(123, 989) == "3+9+0=12\n2+8+1=11\n1+9+1=11\n>1112"
    assert demonstrate(100, 200) == "0+0+0=0\n0+0+0=0\n1+2+0=3\n>300"
    assert demonstrate(5, 5) == "5+5+0=10\n>10"


def test_every_row_adds_up_and_no_row_is_repeated():
    rows = load_task("column_addition", "train", 0, {})
    assert len(rows) == len({row["prompt"] for row in rows}) == 8000
    for row in rows:
        first, second = map(int, row["prompt"].rstrip("=").split("+"))
        assert 100 <= first <= 999
        assert 100 <= second <= 999
        *steps, final = row["demonstration"].split("\n")
        assert final == f">{row['answer']}" == f">{first + second}"
        digits = [int(step.split("=")[1]) for step in steps]
        assert sum((value % 10) * 10**place for place, value in enumerate(digits)) + (digits[-1] // 10) * 1000 == first + second


def test_splits_depend_on_the_unordered_pair_alone():
    train = load_task("column_addition", "train", 0, {"count": 3000}) + load_task(
        "column_addition", "train", 1, {"kind": "carry"}
    )
    held_out = load_task("column_addition", "held_out", 5, {"count": 3000})
    pairs = {name: {frozenset(row["prompt"][:-1].split("+")) for row in rows} for name, rows in (("t", train), ("h", held_out))}
    assert not pairs["t"] & pairs["h"]
    assert find_split(347, 586) == find_split(586, 347)
    sides = [find_split(first, second) for first in range(100, 200) for second in range(first, 200)]
    assert sides.count("held_out") / len(sides) == pytest.approx(0.1, abs=0.015)


def test_the_seed_draws_the_rows():
    draw = lambda seed: [row["prompt"] for row in load_task("column_addition", "held_out", seed, {"count": 50})]  # noqa: E731
    assert draw(3) == draw(3)
    assert len(set(draw(3)) & set(draw(4))) < 5


@pytest.mark.parametrize(("kind", "carries"), [("carry", {True}), ("no_carry", {False})])
def test_kinds_hold_in_every_column(kind: str, carries: set[bool]):
    rows = load_task("column_addition", "held_out", 0, {"count": 300, "kind": kind})
    assert len({row["prompt"] for row in rows}) == 300
    for row in rows:
        first, second = map(int, row["prompt"][:-1].split("+"))
        assert {sum(column) >= 10 for column in columns(first, second)} == carries


def test_other_lengths_and_small_domains():
    long = load_task("column_addition", "held_out", 0, {"count": 20, "digits": 12})
    assert all(len(row["prompt"]) == 26 and row["demonstration"].count("\n") == 12 for row in long)
    train, held_out = (load_task("column_addition", split, 0, {"digits": 1}) for split in ("train", "held_out"))
    assert len(train) + len(held_out) == 81  # Every ordered pair of 1..9, once.
    with pytest.raises(PromptError, match=rf"at most {len(held_out)}"):
        load_task("column_addition", "held_out", 0, {"digits": 1, "count": 80})


@pytest.mark.parametrize(
    ("name", "split", "args", "message"),
    [
        ("column_adition", "train", {}, "did you mean 'column_addition'"),
        ("column_addition", "test", {}, "known: train, held_out"),
        ("column_addition", "train", {"digit": 2}, "did you mean 'digits'"),
        ("column_addition", "train", {"seed": 2}, "takes no 'seed'"),
        ("column_addition", "train", {"kind": "carries"}, "did you mean 'carry'"),
        ("column_addition", "train", {"digits": 0}, "from 1 to 18"),
        ("column_addition", "train", {"count": -1}, "number of rows"),
    ],
)
def test_wrong_requests_are_explained(name, split, args, message):
    with pytest.raises(PromptError, match=message):
        load_task(name, split, 0, args)


@pytest.mark.parametrize("source", ["task:column_addition", "gym:gcd"])
def test_a_refusal_names_the_section_that_asked(source):
    """A set of evaluation.sets is no place to look for prompts.split."""
    for fields in ({"split": "test"}, {"split": "held_out", "args": {"count": -1}}):
        with pytest.raises(PromptError, match=r"^evaluation\.sets\.hard\.(split|args\.count): ") as raised:
            load_rows(PromptsConfig(source=source, **fields), 0, section="evaluation.sets.hard")
        assert "prompts." not in str(raised.value)
