"""The task `skills`: solvers that the tasks' own verifiers agree with, levels that hold what they say, splits that cannot meet."""

from __future__ import annotations

import json

import pytest

from cohort.data.skills import LEVELS, draw_level, find_split, skills
from cohort.data.solvers import POSED, SOLVERS, solve_ab, solve_binary_alternation
from cohort.data.tasks import load_task
from cohort.errors import PromptError
from cohort.recipe.built_in import find_recipe
from cohort.rewards.gym.worker import cached_verifier

TRAINED = [
    "chain_sum",
    "gcd",
    "prime_factorization",
    "count_bits",
    "count_primes",
    "spell_backward",
    "palindrome_generation",
    "ab",
]


def read_answer(demonstration: str) -> str:
    return demonstration.rpartition(">")[2]


@pytest.mark.parametrize("name", SOLVERS)
def test_every_demonstration_is_right_by_the_tasks_own_verifier_on_every_level(name):
    judged = 0
    for level in range(1, 6):
        rows = draw_level(name, level, "train", seed=7, count=80)
        verifier = cached_verifier(name, json.dumps(LEVELS[name][level - 1], sort_keys=True))
        for row in rows:
            assert verifier(read_answer(row["demonstration"]), row["entry"]) == 1.0, (row["prompt"], row["demonstration"])
            # It does not pay for anything. spell_backward's sums letters up to 1.0000000000000002, which the reward calls no score.
            assert verifier(read_answer(row["demonstration"]) + "7", row["entry"]) != 1.0
        judged += len(rows)
    assert judged == 400


def test_the_steps_are_the_written_ones():
    def first(name: str, **metadata: object) -> str:
        solution = SOLVERS[name]({"metadata": metadata, "question": ""})
        return f"{solution.prompt} {solution.demonstration}"

    assert first("chain_sum", expression="4 - 1 - 7") == "sum 4-1-7= 3 -4>-4"
    assert first("gcd", numbers=[18, 48]) == "gcd 18,48= 18 48 18 12 6 0>6"
    assert first("prime_factorization", number=84) == "factor 84= 2*42 2*21 3*7>2 × 2 × 3 × 7"
    assert first("prime_factorization", number=13) == "factor 13= >13"
    assert first("count_bits", number=5) == "bits 5= 5:1 2:0 1:1>2"
    assert first("count_primes", start=12, end=29) == "primes 12,29= 13 17 19 23 29>5"
    assert first("count_primes", start=8, end=10) == "primes 8,10= >0"
    assert first("spell_backward", word="sun") == "back sun= >nus"
    assert first("palindrome_generation", letters=list("couou")) == "mirror couou= oo uu c>oucuo"
    assert first("fraction_simplification", numerator=12, denominator=18) == "frac 12/18= 12 18 12 6 0>2/3"


def test_programs_of_ab_are_rewritten_from_the_left():
    solution = solve_ab({"question": "... program:\n\nB# #A A# #B\n\nReturn the final state"})
    assert solution.demonstration == "bcad cbad cbda ca>#A A#"


def test_a_string_that_cannot_alternate_has_minus_one():
    assert solve_binary_alternation({"metadata": {"string": "0001"}}).demonstration.endswith(">-1")
    assert solve_binary_alternation({"metadata": {"string": "0110"}}).demonstration == "2,2 2,2>1"


def test_splits_are_disjoint_over_levels_and_seeds_and_hold_a_fifth():
    for name in ("gcd", "ab", "spell_backward"):
        train = {row["prompt"] for seed in (0, 1) for level in (1, 2) for row in draw_level(name, level, "train", seed, 100)}
        held_out = {row["prompt"] for level in (1, 2) for row in draw_level(name, level, "held_out", 5, 100)}
        assert not train & held_out
        assert all(find_split(name, prompt) == "held_out" for prompt in held_out)
    sides = [find_split("gcd", f"gcd {first},{second}=") for first in range(1, 60) for second in range(1, 60)]
    assert sides.count("held_out") / len(sides) == pytest.approx(0.2, abs=0.02)


def test_rows_are_those_of_the_seed_and_every_task_and_level_has_its_share():
    rows = load_task("skills", "train", 3, {"levels": [1, 2], "count": 60})
    assert rows == load_task("skills", "train", 3, {"levels": [1, 2], "count": 60})
    assert rows != load_task("skills", "train", 4, {"levels": [1, 2], "count": 60})
    shares = {(name, level): 0 for name in SOLVERS for level in (1, 2)}
    for row in rows:
        shares[row["task"], row["level"]] += 1
    assert set(shares.values()) == {60}  # also where there are fewer problems: repeated
    assert len({row["prompt"] for row in rows if row["task"] == "prime_factorization" and row["level"] == 1}) <= 60


def test_held_out_problems_are_never_repeated():
    rows = skills("held_out", 0, ["prime_factorization"], [1], 500)
    assert 30 <= len(rows) == len({row["prompt"] for row in rows}) < 60


def test_tasks_that_nobody_is_taught_have_no_demonstration():
    for name in POSED:
        rows = skills("held_out", 0, name, [1], 20)
        assert all("demonstration" not in row and row["answer"] for row in rows)
    assert not set(POSED) & set(SOLVERS)


@pytest.mark.parametrize(("recipe", "levels", "harder"), [("skills_small", [1, 2, 3], 4), ("skills", [1, 2, 3, 4], 5)])
def test_the_recipes_hold_out_what_they_say(recipe, levels, harder):
    chosen = find_recipe(recipe, [])
    assert chosen.prompts.args["tasks"] == TRAINED
    assert chosen.prompts.args["levels"] == levels
    taught = chosen.cold_start.source.args
    assert max(taught["levels"]) < max(levels) < harder
    sets = chosen.evaluation.sets
    assert {name for name in sets if name.endswith(f"_{harder}")} == {f"{task}_{harder}" for task in TRAINED}
    assert {config.args["tasks"][0] for name, config in sets.items() if name != "held_out"} == set(LEVELS)
    for name, config in sets.items():
        if name != "held_out":
            assert name == f"{config.args['tasks'][0]}_{config.args['levels'][0]}"
    letters = set(chosen.model.scratch.characters)
    for row in skills("held_out", 1, list(LEVELS), [max(levels)], 40):
        assert set(row["prompt"]) | set(row.get("demonstration", "")) <= letters
        assert len(row["prompt"]) <= chosen.prompts.max_prompt_tokens


@pytest.mark.parametrize(
    ("split", "args", "message"),
    [
        ("test", {}, "train and held_out"),
        ("train", {"tasks": ["gdc"]}, "did you mean 'gcd'"),
        ("train", {"levels": [6]}, "levels are 1 to 5"),
        ("train", {"count": 0}, "at least 1"),
        ("train", {"level": 1}, "did you mean 'levels'"),
    ],
)
def test_wrong_requests_are_explained(split, args, message):
    with pytest.raises(PromptError, match=message):
        load_task("skills", split, 0, args)
