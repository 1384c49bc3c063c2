"""Files shaped like GSM8K, MATH, HumanEval and MBPP: golds taken from them exactly, defects named by place and column.

The sample files in tests/data were written for these tests and hold no row of those benchmarks.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cohort.data.benchmark_files import SHAPES, last_box, shape_row
from cohort.data.prompts import split_held_out
from cohort.data.rows import load_rows
from cohort.errors import PromptError, RecipeError
from cohort.recipe.file import load_recipe
from cohort.recipe.schema import PromptsConfig
from cohort.rewards import math_answer

DATA = Path(__file__).parents[1] / "data"
PAGE = (Path(__file__).parents[2] / "docs" / "task-files.md").read_text(encoding="utf-8")


def sample(shape: str) -> Path:
    return DATA / f"{shape}_sample.jsonl"


def load(shape: str, source: Any = "", **fields: Any) -> list[dict[str, Any]]:
    config = PromptsConfig.model_validate({"source": str(source or sample(shape)), "shape": shape, **fields})
    return load_rows(config, 0)


def raw(shape: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in sample(shape).read_text(encoding="utf-8").splitlines()]


# -- the shapes --------------------------------------------------------------------------------------------------------


def test_gsm8k():
    rows = load("gsm8k")
    assert [row["answer"] for row in rows] == ["210", "144", "8400", "-8", "18.5", "1095000", "36", "0"]
    assert [row["prompt"] for row in rows] == [row["question"] for row in raw("gsm8k")]
    assert [row["solution"] for row in rows] == [row["answer"] for row in raw("gsm8k")]
    assert math_answer([row["solution"] for row in rows], answer=[row["answer"] for row in rows]) == [1.0] * 8
    assert math_answer([row["solution"] for row in rows[1:]], answer=[row["answer"] for row in rows[:-1]]) == [0.0] * 7


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("so 5\n#### 5", "5"),
        ("####5", "5"),
        ("#### 1,234,567.5", "1234567.5"),
        ("#### (1,2)", "(1,2)"),
        ("#### 12,34", "12,34"),
        ("#### 4\nor\n#### 5\n", "5"),
        ("#### $18 \nThat is all.", "$18"),
        ("#### -3", "-3"),
    ],
)
def test_what_follows_the_hashes(answer, gold):
    assert shape_row({"question": "q", "answer": answer}, "gsm8k", "row 0")["answer"] == gold


def test_math():
    rows = load("math")
    assert [row["answer"] for row in rows] == [
        "5",
        r"\frac{1}{4}",
        r"(-\sqrt{2}, \sqrt{2})",
        "5",
        r"\{2, 3\}",
        r"2\sqrt{3}",
        "2ab + b^{2}",
        r"2^{30} \text{ is larger}",
    ]
    assert rows[3]["level"] == "Level 2"
    assert rows[3]["type"] == "Geometry"
    assert rows[3]["prompt"] == rows[3]["problem"]
    right = [rf"so \boxed{{{row['answer']}}}" for row in rows]
    assert math_answer(right, answer=[row["answer"] for row in rows]) == [1.0] * 8


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{ \frac{1}{\sqrt{2}} }", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{4} or rather \boxed{5}", "5"),
        (r"\boxed{\boxed{4}}", "4"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\\boxed{8}", "8"),  # escaped once too often
        (r"\boxed{\{1\} \cup \}2\{}", r"\{1\} \cup \}2\{"),
        (r"is $\boxed 5$.", "5"),
        (r"is $\boxed 10\text{ cm}$.", r"10\text{ cm}"),
        (r"is \(\boxed \frac12\) as", r"\frac12"),
        ("is \\boxed 5.\nDone", "5"),
        ("is \\boxed 5 as said", "5"),
        ("\\boxed\\frac{1}{2}$", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2}", "1; 2"),
        # nothing that could be taken
        (r"\boxed{4} and \boxed{5", ""),
        (r"\boxed{}", ""),
        (r"\boxedfoo{5}", ""),
        ("5", ""),
        (r"\boxed", ""),
    ],
)
def test_the_last_box(solution, gold):
    assert last_box(solution) == gold


def test_an_answer_of_its_own_goes_before_the_box():
    """MATH-500 and AIME have an `answer` column beside, or in place of, the solution."""
    box = {"problem": "p", "solution": r"\boxed{5}"}
    assert shape_row({**box, "answer": "6"}, "math", "row 0")["answer"] == "6"
    assert shape_row({**box, "answer": None}, "math", "row 0")["answer"] == "5"
    assert shape_row({**box, "answer": ""}, "math", "row 0")["answer"] == "5"
    assert shape_row({"problem": "p", "answer": 204}, "math", "row 0")["answer"] == "204"


def test_humaneval():
    rows = load("humaneval")
    for row, source in zip(rows, raw("humaneval"), strict=True):
        assert row["prompt"] == row["program_prefix"] == source["prompt"]
        assert row["tests"] == source["test"]
        assert row["entry_point"] == source["entry_point"]
        assert row["task_id"] == source["task_id"]
        assert row["demonstration"].startswith("```python\n")
        assert row["demonstration"].endswith("\n```")
    assert rows[2]["demonstration"] == (
        '```python\n\n\ndef harmonic(terms: int) -> float:\n    """ Sum of 1/1 + 1/2 + ... + 1/terms.\n    >>> harmonic(2)\n    1.5\n    """\n'
        "    return sum(1 / term for term in range(1, terms + 1))\n```"
    )


def test_mbpp():
    rows = load("mbpp")
    assert rows[0]["prompt"] == (
        "Write a function that adds up every second number of a list, beginning with the first.\n\n"
        "Your code should pass this test:\n\nassert add_every_second([1, 2, 3]) == 4\n"
    )
    assert rows[0]["tests"] == {
        "visible": ["assert add_every_second([1, 2, 3]) == 4"],
        "hidden": [
            "assert add_every_second([]) == 0",
            "assert add_every_second([5, 100]) == 5",
            "assert add_every_second([1, 1, 1, 1, 1]) == 3",
        ],
    }
    assert rows[2]["tests"]["hidden"] == {
        "tests": ["assert math.isclose(distance(1, 1), math.sqrt(2))", "assert distance(0, 0) == 0.0"],
        "setup": "import math",
    }
    assert rows[4]["tests"]["visible"]["setup"] == "from collections import Counter"
    names = ["add_every_second", "common_letters", "distance", "is_square", "frequencies", "to_minutes", "flatten"]
    assert [row["entry_point"] for row in rows] == names
    assert rows[5]["demonstration"] == "```python\ndef to_minutes(hours, minutes):\n    return 60 * hours + minutes\n```"
    for row in rows:  # what is hidden is nowhere in the prompt
        hidden = row["tests"]["hidden"]
        assert not any(test in row["prompt"] for test in (hidden["tests"] if isinstance(hidden, dict) else hidden))


def test_the_function_is_found_without_a_solution():
    row = {"text": "t", "test_list": ["assert sorted(f([2, 1])) == [1, 2]", "assert len(f([])) == 0"]}
    shaped = shape_row(row, "mbpp", "row 0")
    assert shaped["entry_point"] == "f"
    assert "demonstration" not in shaped


@pytest.mark.parametrize("shape", ["humaneval", "mbpp"])
def test_the_solutions_of_the_samples_pass_their_tests(shape):
    """Our own files, so they may run here; a benchmark's run in the jail."""
    for row in load(shape):
        names: dict[str, Any] = {}
        exec(row["demonstration"].removeprefix("```python\n").removesuffix("```"), names)
        if shape == "humaneval":
            exec(row["tests"], names)
            names["check"](names[row["entry_point"]])
            continue
        for suite in row["tests"].values():
            tests = suite if isinstance(suite, list) else [suite["setup"], *suite["tests"]]
            for test in tests:
                exec(test, names)


# -- sources -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_every_format_gives_the_same_rows(shape, tmp_path):
    """Columnar files fill what a row does not have with nothing, and CSV writes lists as text."""
    from datasets import Dataset, DatasetDict

    rows = raw(shape)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    full = [{column: row.get(column) for column in columns} for row in rows]
    Dataset.from_list(full).to_parquet(tmp_path / "rows.parquet")
    DatasetDict({"train": Dataset.from_list(full)}).save_to_disk(tmp_path / "saved")
    for name, write in (("json.csv", json.dumps), ("python.csv", repr)):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for row in full:
                writer.writerow(
                    [write(cell) if isinstance(cell, list) else "" if cell is None else cell for cell in row.values()]
                )
    added = ("prompt", "answer", "solution", "tests", "entry_point", "program_prefix", "demonstration")
    expected = [{column: row[column] for column in added if column in row} for row in load(shape)]
    if shape == "math":  # a column of the file, not one that the shape adds
        expected = [{**row, "solution": source["solution"]} for row, source in zip(expected, rows, strict=True)]
    for name in ("rows.parquet", "saved", "json.csv", "python.csv"):
        found = load(shape, tmp_path / name)
        assert [{column: row[column] for column in added if column in row} for row in found] == expected, name


def test_a_hub_dataset(monkeypatch):
    import datasets

    asked: list[Any] = []

    def load_dataset(*names: str, **arguments: Any) -> Any:
        asked.append((*names, arguments))
        return datasets.Dataset.from_list(raw("gsm8k"))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = load("gsm8k", "openai/gsm8k", split="test", args={"name": "main"})
    assert asked == [("openai/gsm8k", {"split": "test", "name": "main"})]
    assert [row["answer"] for row in rows][:3] == ["210", "144", "8400"]


def test_rows_from_python_a_limit_and_a_template():
    config = PromptsConfig.model_validate({"shape": "gsm8k", "limit": 2, "template": "{question}\nLet us think."})
    rows = load_rows(config, 0, raw("gsm8k"))
    assert [row["answer"] for row in rows] == ["210", "144"]
    train, held_out = split_held_out(load("mbpp"), 0.3, 0)
    assert len(train) + len(held_out) == 7
    assert "shape" not in train[0]


def test_without_a_shape_nothing_changes():
    config = PromptsConfig.model_validate({"source": str(sample("gsm8k")), "prompt_column": "question"})
    assert load_rows(config, 0) == raw("gsm8k")


def test_an_unknown_shape():
    with pytest.raises(RecipeError, match="shape"):
        load_recipe(values={"prompts.shape": "gsm9k"})
    with pytest.raises(PromptError, match=r"prompts\.shape: no shape 'gsm9k'; did you mean 'gsm8k'\?"):
        shape_row({}, "gsm9k", "row 0")


# -- defects -----------------------------------------------------------------------------------------------------------

CHECK = "def check(candidate):\n    assert candidate(1) == 1\n"
HUMAN = {"prompt": "def f(x):\n", "entry_point": "f", "test": CHECK}
MBPP = {"text": "t", "code": "def f(x):\n    return x", "test_list": ["assert f(1) == 1", "assert f(2) == 2"]}


@pytest.mark.parametrize(
    ("shape", "row", "message"),
    [
        ("gsm8k", {"question": "q", "answer": "5"}, 'column "answer": no final answer after "####"; it ends with \'5\''),
        ("gsm8k", {"question": "q", "answer": "so ####  \n"}, 'column "answer": no final answer after "####"'),
        ("gsm8k", {"question": "q", "answer": ""}, "column 'answer': expected text, got nothing"),
        ("gsm8k", {"question": "q", "answer": None}, "column 'answer': expected text, got nothing"),
        ("gsm8k", {"question": "q", "answer": 5}, "column 'answer': expected text, got int '5'"),
        ("gsm8k", {"question": " ", "answer": "#### 5"}, "column 'question': expected text, got str ' '"),
        ("gsm8k", {"Question": "q", "answer": "#### 5"}, "no column 'question'; did you mean 'Question'?; it has 'Question', 'answer'"),
        ("math", {"problem": "p", "solution": "it is 5"}, 'column "solution": no final answer in a'),
        ("math", {"problem": "p", "solution": r"\boxed{5"}, "in a closed"),
        ("math", {"problem": "p"}, "no column 'solution'"),
        ("math", {"problem": "p", "answer": True}, "column 'answer': expected text, got bool"),
        ("humaneval", {**HUMAN, "entry_point": "g"}, "column \"entry_point\": the prompt does not define a function 'g'"),
        ("humaneval", {**HUMAN, "test": "assert f(1) == 1"}, 'column "test": it does not define check'),
        ("humaneval", {**HUMAN, "test": "def check(candidate:"}, "column 'test': not Python"),
        ("humaneval", {**HUMAN, "canonical_solution": "return x\n"}, "column 'canonical_solution': not Python"),
        ("mbpp", {**MBPP, "test_list": ["assert f(1) == 1"]}, 'column "test_list": at least two different tests are needed'),
        ("mbpp", {**MBPP, "test_list": ["assert f(1) == 1"] * 2}, 'column "test_list": at least two different tests are needed'),
        ("mbpp", {**MBPP, "test_list": []}, 'column "test_list": at least two different tests are needed'),
        ("mbpp", {**MBPP, "test_list": "f(1)"}, "column 'test_list': expected a list of texts, got 'f(1)'"),
        ("mbpp", {**MBPP, "test_list": [1, 2]}, "column 'test_list': expected a list of texts"),
        ("mbpp", {**MBPP, "test_list": ["assert f(1) == 1", "f(2)"]}, 'column "test_list": a test has no assert: \'f(2)\''),
        ("mbpp", {**MBPP, "test_list": ["assert f(1) == 1", "assert g(2)"]}, "no function of column 'code' is called by all"),
        ("mbpp", {**MBPP, "test_list": ["assert f(1) == 1", "assert f(2"]}, "column 'test_list': not Python"),
        ("mbpp", {**MBPP, "code": "def f(:"}, "column 'code': not Python"),
        ("mbpp", {**MBPP, "test_setup_code": "import"}, "column 'test_setup_code': not Python"),
        ("mbpp", {"text": "t"}, "no column 'test_list'"),
    ],
)  # fmt: skip
def test_defects_name_the_place_and_the_column(shape, row, message, tmp_path):
    good = raw(shape)[0]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(good) + "\n\n" + json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(PromptError, match=re.escape(message)) as problem:
        load(shape, path)
    assert str(problem.value).startswith(f"{path}, line 3")


def test_deep_nesting_is_a_defect_and_no_crash():
    row = {**MBPP, "test_list": ["assert f(" + "(" * 5000 + ")" * 5000 + ") == 1", "assert f(2) == 2"]}
    with pytest.raises(PromptError, match="column 'test_list': not Python"):
        shape_row(row, "mbpp", "row 0")


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_recipes_on_the_page_load_and_the_examples_hold(monkeypatch, tmp_path):
    from cohort.rewards import BUILT_IN

    monkeypatch.chdir(Path(__file__).parents[2])
    recipes = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(recipes) == 4
    for text, shape in zip(recipes, SHAPES, strict=True):
        (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
        recipe = load_recipe(tmp_path / "recipe.toml")
        assert recipe.prompts.shape == shape
        assert load_rows(recipe.prompts, 0)
        assert all(part.function in BUILT_IN for part in recipe.rewards)
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for statement in ast.parse(block).body:
        code = ast.get_source_segment(block, statement)
        assert code is not None
        assert statement.end_lineno is not None
        if isinstance(statement, ast.Expr):
            comment = block.splitlines()[statement.end_lineno - 1].partition("    # ")[2]
            assert eval(code, names) == ast.literal_eval(comment), code
        else:
            exec(code, names)
