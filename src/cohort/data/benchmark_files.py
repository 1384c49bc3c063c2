r"""Converts rows of well-known benchmarks into rows that the rewards understand.

    prompts.source = "train.jsonl"        # any source of rows
    prompts.shape = "gsm8k"               # the benchmark whose columns it has

| shape      | reads                                                              | adds                                           |
|------------|--------------------------------------------------------------------|------------------------------------------------|
| gsm8k      | question, answer ("... #### 72")                                   | prompt, answer ("72"), solution                |
| math       | problem, solution ("... \boxed{72}") or answer                     | prompt, answer                                 |
| humaneval  | prompt, entry_point, test, canonical_solution                      | tests, program_prefix, demonstration           |
| mbpp       | text or prompt, test_list, challenge_test_list, test_setup_code or | prompt with the first test, tests (that one    |
|            | test_imports, code                                                 | visible, the rest hidden), entry_point, demonstration |

All other columns are kept. A row without a usable reference answer is an error that names the row and column: a guessed or empty
reference answer would reward the wrong completions. Dataset text is parsed here, never executed.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest
from cohort_verify.math.find import REFERENCE_JOINT, join_boxes, merge_contents
from cohort_verify.text import find_boxes

Row = dict[str, Any]

THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ ]*")
MATH_ENDS = re.compile(r"\$|\\[)\]]|\n")


def shape_row(row: Mapping[str, Any], shape: str, place: str) -> Row:
    """The row with the columns that the prompt and the rewards need. `place` names the row in messages."""
    if shape not in SHAPES:
        raise PromptError(f"prompts.shape: no shape {shape!r}{suggest_nearest(shape, SHAPES)}; known: {', '.join(SHAPES)}")
    return {**row, **SHAPES[shape](row, place)}


# ---------------------------------------------------------------------------------------------------------------------
# Mathematics
# ---------------------------------------------------------------------------------------------------------------------


def gsm8k(row: Mapping[str, Any], place: str) -> Row:
    """The answer is the text after the last "####", without thousands separators."""
    solution = read_text(row, "answer", place)
    _, mark, rest = solution.rpartition("####")
    answer = THOUSANDS.sub("", rest.strip().partition("\n")[0].strip())
    if not mark or not answer:
        raise PromptError(f'{place}, column "answer": no final answer after "####"; it ends with {solution[-60:]!r}')
    return {"prompt": read_text(row, "question", place), "answer": answer, "solution": solution}


def math(row: Mapping[str, Any], place: str) -> Row:
    r"""The answer is the column `answer` if there is one, else the content of the last \boxed{} in the solution."""
    prompt = read_text(row, "problem", place)
    given = row.get("answer")
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {"prompt": prompt, "answer": str(given)}
    if is_given(row, "answer"):
        return {"prompt": prompt, "answer": read_text(row, "answer", place)}
    solution = read_text(row, "solution", place)
    answer = last_box(solution)
    if not answer:
        raise PromptError(
            f'{place}, column "solution": no final answer in a closed \\boxed{{}}; it ends with {solution[-60:]!r}'
        )
    return {"prompt": prompt, "answer": answer}


def last_box(solution: str) -> str:
    r"""The content of the last \boxed{...} or \fbox{...}, also of "\boxed 5"; "" if there is none or it is not closed.

    Boxes joined only by a comma or "and" are one list: \boxed{1} and \boxed{2}. Unlike in completions, an unclosed last box is not
    skipped in favour of an earlier one: in a reference answer it is a defect.
    """
    boxes = list(BOX.finditer(solution))
    if not boxes:
        return ""
    start = boxes[-1].end()
    if solution[start : start + 1] == "{":
        tail = solution[boxes[-1].start() :]  # from its own backslash: text that was escaped twice has another one before it
        content = next((tail[first:end].strip() for begin, first, end in find_boxes(tail) if not begin), "")
        joined, _ = join_boxes(solution, REFERENCE_JOINT)
        return merge_contents(joined) if content and len(joined) > 1 and joined[-1].endswith(content) else content
    line = MATH_ENDS.split(solution[start:], maxsplit=1)
    if len(line) == 2 and solution[start + len(line[0])] != "\n":
        return line[0].strip()
    return line[0].partition(" ")[0].rstrip(".,;")  # not inside a formula: one word


# ---------------------------------------------------------------------------------------------------------------------
# Code
# ---------------------------------------------------------------------------------------------------------------------


def humaneval(row: Mapping[str, Any], place: str) -> Row:
    """HumanEval: the prompt is the start of a program; `test` defines check(candidate)."""
    prompt, test, name = (read_text(row, column, place) for column in ("prompt", "test", "entry_point"))
    if not re.search(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", prompt, re.MULTILINE):
        raise PromptError(f'{place}, column "entry_point": the prompt does not define a function {name!r}')
    if "check" not in list_definitions(parse_program(test, "test", place)):
        raise PromptError(f'{place}, column "test": it does not define check(candidate)')
    shaped: Row = {"prompt": prompt, "tests": test, "entry_point": name, "program_prefix": prompt}
    if is_given(row, "canonical_solution"):
        program = prompt + read_text(row, "canonical_solution", place)
        parse_program(program, "canonical_solution", place)
        shaped["demonstration"] = fence_program(program)
    return shaped


def mbpp(row: Mapping[str, Any], place: str) -> Row:
    """MBPP: the prompt shows the first test, which names the function; the other tests are hidden and decide."""
    text = read_text(row, "text" if is_given(row, "text") else "prompt", place).strip()
    first, *rest = read_texts(row, "test_list", place) or [""]
    if is_given(row, "challenge_test_list"):
        rest += read_texts(row, "challenge_test_list", place)
    hidden = [test for test in rest if test.strip() != first.strip()]
    if not hidden:
        raise PromptError(
            f'{place}, column "test_list": at least two different tests are needed: the first is shown in the prompt, and a '
            "program that knows all tests can pass without solving the task"
        )
    imports = read_texts(row, "test_imports", place) if is_given(row, "test_imports") else []
    setup = "\n".join([*imports, read_text(row, "test_setup_code", place, optional=True)]).strip()
    parse_program(setup, "test_setup_code", place)
    code = read_text(row, "code", place, optional=True)
    shaped: Row = {
        "prompt": f"{text}\n\nYour code should pass this test:\n\n{first.strip()}\n",
        "text": text,
        "tests": {"visible": write_suite([first], setup), "hidden": write_suite(hidden, setup)},
        "entry_point": find_tested_function([first, *hidden], code, place),
    }
    return {**shaped, "demonstration": fence_program(code)} if code else shaped


def write_suite(tests: Sequence[str], setup: str) -> Any:
    return {"tests": list(tests), "setup": setup} if setup else list(tests)


def find_tested_function(tests: Sequence[str], code: str, place: str) -> str:
    """The function that all tests call: one defined in `code`, or without `code`, one that is not a Python builtin."""
    defined = list_definitions(parse_program(code, "code", place))
    shared: list[str] | None = None
    for test in tests:
        tree = parse_program(test, "test_list", place)
        if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
            raise PromptError(f'{place}, column "test_list": a test has no assert: {test[:60]!r}')
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        names = [call.id for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset))]
        shared = [name for name in (names if shared is None else shared) if name in names]
    for name in shared or []:
        if name in defined if code else not hasattr(builtins, name):
            return name
    which = "of column 'code' " if code else ""
    raise PromptError(f'{place}, column "test_list": no function {which}is called by all tests')


def list_definitions(tree: ast.Module) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {statement.name for statement in tree.body if isinstance(statement, kinds)}


def parse_program(text: str, column: str, place: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise PromptError(f"{place}, column {column!r}: not Python ({problem}); it starts with {text.strip()[:60]!r}") from None


def fence_program(program: str) -> str:
    return f"```python\n{program.rstrip()}\n```"


# ---------------------------------------------------------------------------------------------------------------------
# Cells
# ---------------------------------------------------------------------------------------------------------------------


def is_given(row: Mapping[str, Any], column: str) -> bool:
    """Whether the cell has a value: columnar files fill missing cells with null."""
    return row.get(column) not in (None, "")


def read_text(row: Mapping[str, Any], column: str, place: str, optional: bool = False) -> str:
    if optional and not is_given(row, column):
        return ""
    if column not in row:
        known = ", ".join(repr(name) for name in row) or "none"
        raise PromptError(f"{place}: no column {column!r}{suggest_nearest(column, row)}; it has {known}. Check prompts.shape")
    value = row[column]
    if not isinstance(value, str) or not value.strip():
        found = "nothing" if value is None or value == "" else f"{type(value).__name__} {str(value)[:40]!r}"
        raise PromptError(f"{place}, column {column!r}: expected text, got {found}")
    return value


def read_texts(row: Mapping[str, Any], column: str, place: str) -> list[str]:
    """A list of texts; in a CSV file it is a JSON list or a Python list."""
    if column not in row:
        read_text(row, column, place)  # raises
    value = row[column]
    if isinstance(value, str):
        value = read_list(value)
    if value is None or not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise PromptError(f"{place}, column {column!r}: expected a list of texts, got {str(row[column])[:60]!r}")
    return list(value)


def read_list(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


SHAPES: dict[str, Callable[[Mapping[str, Any], str], Row]] = {
    "gsm8k": gsm8k,
    "math": math,
    "humaneval": humaneval,
    "mbpp": mbpp,
}
