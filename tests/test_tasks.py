"""Built-in tasks: rows that are right, splits that cannot meet, and gym verifiers that never run model text as code."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from cohort.errors import PromptError
from cohort.tasks import load_task
from cohort.tasks.column_addition import columns, demonstrate, split_of
from cohort.tasks.gym import REFUSED_TASKS, SAFE_TASKS, extract_answer, gym_verifier, load_gym
from cohort.tasks.keyed import keyed_hash, keyed_permutation, keyed_share

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
    assert split_of(347, 586) == split_of(586, 347)
    sides = [split_of(first, second) for first in range(100, 200) for second in range(first, 200)]
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
        ("column_addition", "test", {}, "train and held_out"),
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


# --- the gym allow-list, derived again from the installed package --------------------------------------------------------

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
        path = module_file(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        dangers |= mentions(tree)
        for imported in imported_modules(module, path, tree):
            (todo.append if imported.startswith("reasoning_gym") else outside.add)(imported)
    own_verifier = dataset_class.score_answer is not ProceduralDataset.score_answer
    if own_verifier and any(imported.split(".")[0] == "sympy" for imported in outside):
        dangers.add("sympy")
    return dangers


def test_no_safe_task_can_run_text():
    assert list(SAFE_TASKS) == sorted(set(SAFE_TASKS))
    assert set(SAFE_TASKS) <= set(DATASETS)
    assert not set(SAFE_TASKS) & set(REFUSED_TASKS)
    assert {name: ways_to_run_text(name) for name in SAFE_TASKS} == {name: set() for name in SAFE_TASKS}


def test_the_scan_finds_the_known_offenders():
    for name in ("n_queens", "spiral_matrix", "binary_matrix", "string_insertion"):
        assert "eval" in ways_to_run_text(name)
    for name in ("countdown", "puzzle24", "simple_integration", "intermediate_integration"):
        assert "parse_expr" in ways_to_run_text(name)
    assert "exec" in ways_to_run_text("codeio")
    refused_for_running = {name for name, reason in REFUSED_TASKS.items() if "run text as code" in reason}
    assert all(ways_to_run_text(name) for name in refused_for_running & set(DATASETS))


JUNK = ("zqx", "", "0", "1", "-1", "True", "nan", "inf", "[]", "{}", "()", "I do not know.", "nan+nanj", "1e400")


@pytest.mark.parametrize("name", SAFE_TASKS)
def test_a_safe_task_knows_right_from_wrong_after_json(name: str):
    rows = load_gym(name, "train", 0, {"count": 5})
    columns = {"entry": [json.loads(json.dumps(row["entry"])) for row in rows], "task": [name] * len(rows)}
    golds = [row["answer"] for row in rows]
    assert gym_verifier([f"so <answer>{gold}</answer>" for gold in golds], **columns) == [1.0] * len(rows)
    for junk in JUNK:
        scores = gym_verifier([junk] * len(rows), **columns)
        assert all(0.0 <= score <= 1.0 for score in scores)
        assert min(scores) < 0.9, f"{junk!r} earns full marks everywhere"
    shifted = golds[1:] + golds[:1]
    foreign = [
        score for score, mine, other in zip(gym_verifier(shifted, **columns), golds, shifted, strict=True) if mine != other
    ]
    assert sum(score >= 0.9 for score in foreign) <= len(foreign) / 2


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


def test_gym_rows_do_not_depend_on_the_process():
    """String hashing differs from process to process; tasks that iterate over sets are not on the list."""
    script = (
        "import hashlib, json, sys; from cohort.tasks.gym import SAFE_TASKS, load_gym\n"
        "slow = {'sokoban', 'futoshiki', 'zebra_puzzles'}\n"
        "rows = {name: load_gym(name, 'train', 0, {'count': 4}) for name in SAFE_TASKS if name not in slow}\n"
        "assert 'torch' not in sys.modules\n"
        "print(json.dumps({n: hashlib.md5(json.dumps(r, sort_keys=True).encode()).hexdigest() for n, r in rows.items()}))"
    )
    jobs = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    first, second = (json.loads(job.communicate()[0]) for job in jobs)
    assert len(first) == len(SAFE_TASKS) - 3
    assert {name for name in first if first[name] != second[name]} == set()


def test_a_small_task_gives_what_it_has_and_says_so():
    with pytest.warns(UserWarning, match="only .* different held_out problems of the 400"):
        rows = load_gym("count_bits", "held_out", 0, {"count": 400, "min_n": 1, "max_n": 60})
    assert 0 < len(rows) == len({row["prompt"] for row in rows}) < 60


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("n_queens", {}, r"run text as code \(eval\); it waits for the sandboxed worker"),
        ("game_of_life_halting", {}, "any text scores 1.0"),
        ("chain_sums", {}, "did you mean 'chain_sum'"),
        ("chain_sum", {"max_term": 3}, "did you mean 'max_terms'"),
        ("chain_sum", {"size": 3}, "use count"),
        ("chain_sum", {"seed": 3}, "the recipe's seed"),
        ("chain_sum", {"count": 0}, "at least 1"),
        ("chain_sum", {"min_terms": 9, "max_terms": 3}, "refuses these arguments"),
    ],
)
def test_gym_requests_that_cannot_be_served_are_explained(name, args, message):
    with pytest.raises(PromptError, match=message):
        load_gym(name, "train", 0, args)


def test_a_refused_task_in_a_file_is_refused_by_the_reward_too():
    with pytest.raises(PromptError, match="sandboxed worker"):
        gym_verifier(["1"], entry=[{"answer": "1"}], task=["spiral_matrix"])


@pytest.mark.parametrize(
    ("completion", "pattern", "answer"),
    [
        ("<answer>1</answer> no, <answer>\n2 </answer>", r">(\d)", "2"),
        ("3+4=7\n>7\n>8", r">(\d+)", "8"),
        ("total 12", r"\d+", "12"),
        (r"\boxed{1} then \boxed{\frac{1}{2}} done", "", r"\frac{1}{2}"),
        (r"\boxed{5} then \boxed{6", "", "5"),
        (r"no match, \boxed{5}", r">(\d+)", "5"),
        ("  plain text\n", "", "plain text"),
        ("<answer>unclosed", "", "<answer>unclosed"),
        ("", "", ""),
    ],
)
def test_the_final_answer_is_found(completion: str, pattern: str, answer: str):
    assert extract_answer(completion, pattern) == answer
    assert gym_verifier.extract(completion, pattern) == answer


def test_an_endless_row_of_openings_costs_little():
    assert extract_answer("\\boxed{" * 20_000).startswith("\\boxed{")


def test_the_reward_takes_chats_json_entries_and_counts_verifier_errors():
    rows = load_gym("prime_factorization", "train", 0, {"count": 2})
    logged = {}
    scores = gym_verifier(
        [[{"role": "assistant", "content": f"<answer>{rows[0]['answer']}</answer>"}], "zqx"],
        entry=[json.dumps(row["entry"]) for row in rows],
        task=["prime_factorization"] * 2,
        gym_args=[{}, {}],
        log_extra=lambda name, values: logged.update({name: values}),
        prompts=["", ""],
    )
    assert scores == [1.0, 0.0]
    assert logged == {"verifier_error": ["", "ValueError"]}


def test_the_verifier_scores_with_the_arguments_that_asked():
    """decimal_arithmetic tolerates one unit of the last decimal place of its config."""
    entry = {"answer": "1.50", "metadata": {}}
    score = lambda places: gym_verifier(  # noqa: E731
        ["1.55"],
        entry=[entry],
        task=["decimal_arithmetic"],
        gym_args=[{"min_num_decimal_places": 1, "max_num_decimal_places": places}],
    )
    assert score(1) == [1.0]
    assert score(2) == [0.0]


def test_nothing_in_tasks_or_prompts_imports_torch():
    script = "import sys, cohort.tasks.gym, cohort.prompts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
