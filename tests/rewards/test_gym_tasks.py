"""Every served gym task, checked against the installed package: whether it can run text, right and wrong answers, the same rows."""

from __future__ import annotations

import ast
import functools
import json
import os
import random
import re
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from cohort.errors import PromptError
from cohort.rewards.gym import rows as gym_list
from cohort.rewards.gym.guards import GUARDS
from cohort.rewards.gym.rows import (
    FIXED_HASH_TASKS,
    JAILED_TASKS,
    REFUSED_TASKS,
    SAFE_TASKS,
    SERVED_TASKS,
    WITHOUT_ANSWER,
    create_dataset,
    find_reference_answer,
    gym_verifier,
    load_gym,
    reverse_moves,
)
from cohort_verify.sandbox import JailUnavailable
from gym_page import MADE, make_page

# --- which tasks can run text -----------------------------------------------------------------------------------------------

RUNS_TEXT = {"eval", "exec", "compile", "parse_expr", "sympify", "subprocess", "pickle", "__import__"}
ROOT = Path(reasoning_gym.__file__).parent


def module_file(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split(".")[1:])
    candidates = [path / "__init__.py", path.with_suffix(".py")]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def imported_modules(name: str, path: Path, tree: ast.AST) -> set[str]:
    """Absolute names; `from package import x` counts as package.x where that is a module, else as the package."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if base.startswith("reasoning_gym") and module_file(inner) else base)
    return found


def mentions(tree: ast.AST) -> set[str]:
    """Dangerous names used or imported anywhere in a module. `re.compile` makes a pattern and is fine."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "re"):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found |= set(node.name.split("."))
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= set(node.module.split("."))
    return found & RUNS_TEXT


@functools.cache
def scanned(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """(dangerous names in it, modules it imports)."""
    path = module_file(module)
    if path is None:
        return frozenset(), frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(mentions(tree)), frozenset(imported_modules(module, path, tree))


def ways_to_run_text(name: str) -> set[str]:
    """What the task's module, or any reasoning_gym module it imports, directly or not, could run text with."""
    dataset_class = DATASETS[name][0]
    # A verifier may be inherited: its home is scanned too, as are all the bases.
    todo = [base.__module__ for base in dataset_class.__mro__ if base.__module__.startswith("reasoning_gym")]
    seen: set[str] = set()
    outside: set[str] = set()
    dangers: set[str] = set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        found, imported = scanned(module)
        dangers |= found
        for other in imported:
            (todo.append if other.startswith("reasoning_gym") else outside.add)(other)
    own_verifier = dataset_class.score_answer is not ProceduralDataset.score_answer
    if own_verifier and any(imported.split(".")[0] == "sympy" for imported in outside):
        dangers.add("sympy")
    return dangers


def test_every_task_of_the_package_is_served_or_refused_with_a_reason():
    assert list(SAFE_TASKS) == sorted(set(SAFE_TASKS))
    assert list(JAILED_TASKS) == sorted(JAILED_TASKS)
    assert sorted([*SAFE_TASKS, *JAILED_TASKS, *REFUSED_TASKS]) == sorted(DATASETS)
    assert len(SERVED_TASKS) == 104
    assert set(REFUSED_TASKS) == {"composite", "propositional_logic"}
    assert set(SERVED_TASKS) >= FIXED_HASH_TASKS


def test_exactly_the_jailed_tasks_can_run_text():
    found = {name: ways_to_run_text(name) for name in SERVED_TASKS}
    assert {name for name, ways in found.items() if ways} == set(JAILED_TASKS)
    assert all(JAILED_TASKS[name] in found[name] for name in JAILED_TASKS)
    assert all(name in GUARDS for name in JAILED_TASKS), "a task that can run text needs a grammar of answers"
    assert set(GUARDS) <= set(SERVED_TASKS)


def test_why_propositional_logic_is_refused():
    """The premises joined by "and", which anyone can copy from the question, are a right conclusion nearly always."""
    dataset = DATASETS["propositional_logic"][0](config=DATASETS["propositional_logic"][1](size=40, seed=7))
    copied = 0
    for index in range(40):
        entry = dataset[index]
        first, *rest = entry["metadata"]["premises"]
        statement = functools.reduce(lambda left, right: f"({left} ∧ {right})", rest, first)
        copied += dataset.score_answer(statement, entry) == 1.0
    assert copied >= 36


# --- right from wrong -------------------------------------------------------------------------------------------------------

JUNK = ("zqx", "", "0", "1", "True", "None", "nan", "[]", "[NaN]", "{}", "1e400")
MORE_JUNK = (*JUNK, "-1", "inf", "()", "False", "No", "Yes", "infeasible", "I do not know.", "nan+nanj", "0.5", "a", "[[]]")
SLOW = {"knight_swap": 2, "futoshiki": 3, "zebra_puzzles": 3, "sokoban": 3}


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    plain = json.loads(json.dumps(rows))
    return {column: [row[column] for row in plain] for column in ("entry", "task", "gym_args")}


def knows_right_from_wrong(name: str, seed: int, count: int, fixed: Sequence[str]) -> None:
    """Through the jailed worker, after JSON: reference answers score 1.0, and no constant answer scores on every row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a task with few problems says so
        rows = load_gym(name, "train", seed, {"count": count})
    assert {row["entry"]["answer"] is None for row in rows} == {name in (*MADE, *WITHOUT_ANSWER)}
    answers = [row["answer"] for row in rows]
    shifted = answers[1:] + answers[:1]
    echoes = [row["prompt"] for row in rows]
    columns = columns_of(rows)
    attempts = [answers, shifted, echoes, *([junk] * len(rows) for junk in fixed)]
    if name in WITHOUT_ANSWER:
        attempts = attempts[2:]
    completions = [f"so <answer>{text}</answer>" for attempt in attempts for text in attempt]
    scores = gym_verifier(completions, **{column: values * len(attempts) for column, values in columns.items()})
    assert all(score is not None and 0.0 <= score <= 1.0 for score in scores)
    tables = [scores[start : start + len(rows)] for start in range(0, len(scores), len(rows))]
    if name not in WITHOUT_ANSWER:
        right, foreign, *tables = tables
        assert right == [1.0] * len(rows)
        others = [score for score, mine, other in zip(foreign, answers, shifted, strict=True) if mine != other]
        assert sum(score >= 0.9 for score in others) <= len(others) / 2
    for text, table in zip(["the question", *fixed], tables, strict=True):
        # A single row may have one of these for its right answer.
        assert min(table) < 0.9, f"{text!r} earns full marks everywhere"


@pytest.mark.parametrize("name", SERVED_TASKS)
def test_a_task_knows_right_from_wrong(name: str):
    knows_right_from_wrong(name, 0, SLOW.get(name, 4), JUNK)


@pytest.mark.prove
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", SERVED_TASKS)
def test_a_task_knows_right_from_wrong_on_many_rows(name: str, seed: int):
    knows_right_from_wrong(name, seed, 10 if name in SLOW else 60, MORE_JUNK)


def test_no_row_is_unusable_and_broken_rows_are():
    rows = [load_gym(name, "train", 0, {"count": 1})[0] for name in ("chain_sum", "puzzle24", "rubiks_cube", "rush_hour")]
    assert gym_verifier.unusable(**columns_of(rows)) == [None] * 4
    rows[0]["entry"] = {**rows[0]["entry"], "answer": None}
    rows[1]["entry"] = {**rows[1]["entry"], "answer": "1 + 1"}
    rows[2]["entry"] = {"question": "?"}
    rows[3]["task"] = "propositional_logic"
    none, wrong, broken, refused = gym_verifier.unusable(**columns_of(rows))
    assert none is None  # without a gold nothing can be said
    assert wrong == (
        "entry: its own answer '1 + 1' is wrong according to gym task puzzle24 (it does not use each given number once)"
    )
    assert broken == "entry: not an entry of gym task rubiks_cube (KeyError: 'metadata')"
    assert refused is not None
    assert "can be exploited" in refused


# --- answers that the package does not store --------------------------------------------------------------------------------


def test_the_way_back_of_a_cube():
    assert reverse_moves("F D' R2 B") == "B' R2' D F'"
    for size in (2, 3):
        rows = load_gym("rubiks_cube", "train", 0, {"count": 3, "cube_size": size})
        back = [reverse_moves(row["entry"]["metadata"]["scramble_moves"]) for row in rows]
        assert gym_verifier(back, **columns_of(rows)) == [1.0] * 3
        assert max(gym_verifier([text + " U" for text in back], **columns_of(rows))) < 0.9
    with pytest.raises(PromptError, match="cube_size: set 2 or 3"):
        load_gym("rubiks_cube", "train", 0, {"count": 3, "cube_size": 4})


def test_boxes_walk_to_their_targets():
    state = {"0.5_0.5": ["box_red", "target_blue"], "0.5_1.5": [], "1.5_0.5": ["box_blue"], "1.5_1.5": ["target_red"]}
    entry = {"answer": None, "metadata": {"initial_state": state}}
    made = find_reference_answer("boxnet", entry)
    assert made is not None
    assert json.loads(made) == [
        {"Agent[0.5, 0.5]": "move(box_red, square[1.5, 0.5])"},
        {"Agent[1.5, 0.5]": "move(box_red, square[1.5, 1.5])"},
        {"Agent[1.5, 1.5]": "move(box_red, target_red)"},
        {"Agent[1.5, 0.5]": "move(box_blue, square[0.5, 0.5])"},
        {"Agent[0.5, 0.5]": "move(box_blue, target_blue)"},
    ]
    assert gym_verifier([made], [entry], ["boxnet"]) == [1.0]
    half = json.dumps(json.loads(made)[:3])
    assert gym_verifier([half], [entry], ["boxnet"]) == [0.5]


def exit_moves(config: str) -> str:
    """A shortest way out, by breadth-first search over the positions of the cars; written without the package's code."""
    labels = sorted(set(config) - {"o", "x"})
    cells = [[cell for cell in range(36) if config[cell] == label] for label in labels]
    strides = [car[1] - car[0] for car in cells]
    walls = {cell for cell in range(36) if config[cell] == "x"}
    start = tuple(car[0] for car in cells)
    came: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {start: (start, "")}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if state[0] == 16:
            moves: list[str] = []
            while came[state][1]:
                state, move = came[state]
                moves.append(move)
            return " ".join(reversed(moves))
        taken = {at + step * stride for at, car, stride in zip(state, cells, strides, strict=True) for step in range(len(car))}
        for number, (at, car, stride) in enumerate(zip(state, cells, strides, strict=True)):
            for sign in (1, -1):
                edge = at + (len(car) - 1) * stride if sign > 0 else at
                new = edge + sign * stride
                inside = 0 <= new < 36 and (stride == 6 or new // 6 == edge // 6)
                if inside and new not in taken and new not in walls:
                    after = (*state[:number], at + sign * stride, *state[number + 1 :])
                    if after not in came:
                        came[after] = (state, f"{chr(ord('A') + number)}{'+' if sign > 0 else '-'}1")
                        queue.append(after)
    raise AssertionError("there is no way out")


def check_rush_hour(settings: dict[str, int]) -> None:
    rows = load_gym("rush_hour", "train", 0, settings)
    moves = [exit_moves(row["entry"]["metadata"]["board_config"]) for row in rows]
    assert gym_verifier(moves, **columns_of(rows)) == [1.0] * len(rows)
    assert max(gym_verifier(moves[1:] + moves[:1], **columns_of(rows))) < 0.9
    assert gym_verifier([text.rpartition(" ")[0] for text in moves], **columns_of(rows)) == [0.01] * len(rows)


def test_a_way_out_of_the_rush_hour_is_right():
    check_rush_hour({"count": 4, "min_moves": 4, "max_moves": 8})


@pytest.mark.prove
def test_a_way_out_of_the_rush_hour_is_right_on_many_boards():
    check_rush_hour({"count": 60})


# --- rows -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chain_sum", "leg_counting", "spell_backward", "letter_counting"])
def test_gym_splits_share_no_question_whatever_the_seed(name: str):
    train = {row["prompt"] for seed in (0, 1) for row in load_gym(name, "train", seed, {"count": 150})}
    held_out = {row["prompt"] for seed in (0, 2) for row in load_gym(name, "held_out", seed, {"count": 80})}
    assert len(train) > 200
    assert len(held_out) > 100
    assert not train & held_out


def test_gym_rows_are_plain_and_seeded():
    first, again, other = (load_gym("chain_sum", "train", seed, {"count": 20, "max_terms": 3}) for seed in (0, 0, 1))
    assert first == again != other
    assert json.loads(json.dumps(first)) == first
    assert set(first[0]) == {"prompt", "answer", "entry", "task", "gym_args"}
    assert first[0]["gym_args"] == {"max_terms": 3}
    assert all(row["entry"]["metadata"]["num_terms"] <= 3 for row in first)


def rows_by_process(count: int, left_out: set[str]) -> None:
    script = (
        "import hashlib, json, sys; from cohort.rewards.gym.rows import load_gym; from cohort.rewards.gym.rows import SERVED_TASKS\n"
        f"names = [name for name in SERVED_TASKS if name not in {left_out!r}]\n"
        f"rows = {{name: load_gym(name, 'train', 0, {{'count': {count}}}) for name in names}}\n"
        "assert 'torch' not in sys.modules\n"
        "print(json.dumps({n: hashlib.md5(json.dumps(r, sort_keys=True).encode()).hexdigest() for n, r in rows.items()}))"
    )
    jobs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    first, second = (json.loads(job.communicate()[0]) for job in jobs)
    assert set(first) == set(SERVED_TASKS) - left_out
    assert {name for name in first if first[name] != second[name]} == set()


@pytest.mark.prove
def test_gym_rows_do_not_depend_on_the_process():
    """String hashing differs from process to process, and with it the order of a set."""
    rows_by_process(1, set(SLOW))


@pytest.mark.prove
def test_many_gym_rows_do_not_depend_on_the_process():
    rows_by_process(40, set())


def test_rows_with_a_fixed_hash_are_the_same_with_and_without_a_jail(monkeypatch: pytest.MonkeyPatch):
    jailed = load_gym("isomorphic_strings", "train", 0, {"count": 1})

    def no_pool(*_: object, **__: object) -> None:
        raise JailUnavailable("there is no jail for untrusted code here")

    monkeypatch.setattr("cohort.rewards.gym.rows.shared_pool", no_pool)
    assert load_gym("isomorphic_strings", "train", 0, {"count": 1}) == jailed


def test_the_rows_of_codeio_ask_for_outputs_that_come_out_twice():
    rows = load_gym("codeio", "train", 0, {"count": 8})
    for row in rows:
        entry = row["entry"]
        assert json.loads(entry["answer"]) == entry["metadata"]["output_data"]
        assert entry["metadata"]["input_data"]
        assert "can you predict the output" in entry["question"].lower()
    with pytest.raises(PromptError, match="input_prediction_probability: leave it out"):
        load_gym("codeio", "train", 0, {"input_prediction_probability": 0.5})


def test_rows_do_not_hang_on_the_common_generator_of_random_numbers():
    """Some problems of list_functions are drawn from it, and nothing seeds it."""
    random.seed(1)
    first = load_gym("list_functions", "train", 0, {"count": 60})
    after = random.random()
    random.seed(2)
    assert load_gym("list_functions", "train", 0, {"count": 60}) == first
    random.seed(1)
    assert random.random() == after  # and it is as it was


def test_silence_is_never_right():
    """`ab` has problems where every token goes; their right answer is the empty text."""
    dataset = create_dataset("ab", {"size": 60, "seed": 5})
    assert any(dataset[index]["answer"] == "" for index in range(60))
    rows = load_gym("ab", "train", 0, {"count": 150, "length": 4})
    assert all(row["answer"] for row in rows)
    assert gym_verifier(["<answer></answer>"], [{"answer": "", "metadata": {}}], ["ab"]) == [0.0]


def test_a_small_task_gives_fewer_rows_and_warns():
    with pytest.warns(UserWarning, match="only .* different held_out problems of the 400"):
        rows = load_gym("count_bits", "held_out", 0, {"count": 400, "min_n": 1, "max_n": 60})
    assert 0 < len(rows) == len({row["prompt"] for row in rows}) < 60


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("propositional_logic", {}, "their conjunction, copied from the question, always does"),
        ("composite", {}, "name its tasks one by one"),
        ("chain_sums", {}, "unknown gym task 'chain_sums'; did you mean 'chain_sum'"),
        ("chain_sum", {"max_term": 3}, "did you mean 'max_terms'"),
        ("chain_sum", {"size": 3}, "use count"),
        ("chain_sum", {"seed": 3}, "the recipe's seed"),
        ("chain_sum", {"count": 0}, "at least 1"),
        ("chain_sum", {"min_terms": 9, "max_terms": 3}, "refuses these arguments"),
        ("puzzle24", {"min_value": 9, "max_value": 3}, "refuses these arguments"),
    ],
)
def test_gym_requests_that_cannot_be_served_are_explained(name, args, message):
    with pytest.raises(PromptError, match=message):
        load_gym(name, "train", 0, args)


def test_without_a_jail_a_task_that_can_run_text_is_refused_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch):
    def none(*_: object) -> None:
        raise JailUnavailable("no jail for untrusted code works here: bubblewrap is not installed.")

    monkeypatch.setattr(gym_list, "find_tier", none)
    with pytest.raises(PromptError, match=r"'n_queens' is not served on this machine: .*\(eval\).*bubblewrap is not installed"):
        load_gym("n_queens", "train", 0, {"count": 1})
    with pytest.raises(PromptError, match="bubblewrap is not installed"):
        gym_verifier(["1"], entry=[{"answer": "1"}], task=["spiral_matrix"])
    assert len(load_gym("chain_sum", "train", 0, {"count": 2})) == 2


# --- the page ---------------------------------------------------------------------------------------------------------------


def test_the_page_names_every_task():
    page = make_page().partition("## All tasks")[2]
    named = page.partition("Refused:")[0]
    assert sorted(set(re.findall(r"^\| `(\w+)` \|", named, re.MULTILINE)) | set(re.findall(r"`(\w+)`[,.]", named))) == sorted(
        SERVED_TASKS
    )
    assert all(f"- `{name}`: {reason}" in page for name, reason in REFUSED_TASKS.items())
