"""Turns the tests of a row, in any common format, into cases: calls, standard input, or trusted code.

    read_tests('[{"call": "add", "args": [1, 2], "expected": 3}]')
    read_tests(["assert add(1, 2) == 3", "assert abs(half(1) - 0.5) < 1e-6"])
    read_tests({"visible": [...], "hidden": [...]})

Wherever possible a test becomes a pair of a call and its expected value, because expected values never enter the jail.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cohort_verify.code.asserts import read_code
from cohort_verify.code.compare import MAX_DEPTH, Rule, find_plain_problem
from cohort_verify.code.format import strip_solution
from cohort_verify.code.suite import CallCase, StdinCase, Suite, Tests, UnusableTests

MAX_STREAM_CHARS = 4_000_000
"""Limit on one standard input or output: at four bytes a character, the jail's own limit on output."""


def read_tests(cell: Any, entry_point: str = "", prefix: str = "", packages: bool = False) -> Tests:
    """Read the tests of one row. Raises UnusableTests if they cannot score any program."""
    reader = SuiteReader(strip_solution(entry_point), prefix, packages)
    tests, in_json = unpack_json(unpack_arrays(cell))
    if isinstance(tests, Mapping) and not {"visible", "hidden"}.isdisjoint(tests):
        check_fields(tests, ("visible", "hidden"))
        visible, hidden = unpack_json(tests.get("visible"), in_json), unpack_json(tests.get("hidden"), in_json)
        seen = None if is_empty(visible[0]) else reader.read_suite(*visible)
        unseen = Suite() if seen and is_empty(hidden[0]) else drop_known(reader.read_suite(*hidden), seen or Suite())
        if not unseen.total:
            raise UnusableTests(
                "all tests are visible, so a program could pass without solving the task: give tests that the "
                'prompt does not show as "hidden", or only the list, without "visible", if all of them may count'
            )
        return Tests(unseen, seen)
    return Tests(reader.read_suite(tests, in_json))


def drop_known(hidden: Suite, visible: Suite) -> Suite:
    """Drop hidden tests that repeat a visible one, whose answer the prompt gives away."""
    calls, scripts = {write_question(case) for case in visible.calls}, {case.input.rstrip() for case in visible.scripts}
    return replace(
        hidden,
        calls=tuple(case for case in hidden.calls if write_question(case) not in calls),
        scripts=tuple(case for case in hidden.scripts if case.input.rstrip() not in scripts),
        checks=tuple(check for check in hidden.checks if check not in visible.checks),
    )


def write_question(case: CallCase) -> str:
    """Return a key for the call. As text, because 1 == True although they are different questions."""
    return repr((case.function, case.args, sorted(case.kwargs.items())))


def unpack_json(cell: Any, in_json: bool = False) -> tuple[Any, bool]:
    """Parse a cell of JSON text and keep other text (test code); returns the value and whether it went through JSON.

    in_json: the container of the cell went through JSON.
    """
    if isinstance(cell, str) and cell.lstrip().startswith(("[", "{")):
        try:
            return json.loads(cell), True
        except (ValueError, RecursionError) as problem:
            raise UnusableTests(f"the tests look like JSON but cannot be parsed ({problem})") from None
    return cell, in_json


def unpack_arrays(value: Any, depth: int = 0, seen: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """Replace numpy arrays and numbers, at any depth, by lists and numbers. Tables read from files contain them.

    Each container is visited once, and only up to the depth that a test's values may have.
    """
    seen = {} if seen is None else seen
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        listed = value.tolist()  # only an array of objects may contain arrays again
        return unpack_arrays(listed, depth + 1, seen) if isinstance(listed, list) and value.dtype.hasobject else listed
    if kind not in (list, tuple, dict) or depth > MAX_DEPTH:
        return value
    if id(value) not in seen:
        # Stored together with the container: while it is alive, no other object can have its id. Set before the content is
        # unpacked, because a container may contain itself.
        seen[id(value)] = value, value
        items: Any = [unpack_arrays(item, depth + 1, seen) for item in value]
        if kind is dict:
            items = zip(items, [unpack_arrays(item, depth + 1, seen) for item in value.values()], strict=True)
        seen[id(value)] = value, kind(items)
    return seen[id(value)][1]


def is_empty(tests: Any) -> bool:
    return tests is None or (isinstance(tests, str | list | tuple | dict) and not tests)


class SuiteReader:
    """Reads one set of tests in any format."""

    def __init__(self, entry_point: str, prefix: str, packages: bool) -> None:
        self.entry_point, self.prefix, self.packages = entry_point, prefix, packages

    def read_suite(self, tests: Any, in_json: bool = False) -> Suite:
        setup = ""
        if isinstance(tests, Mapping) and "tests" in tests:
            check_fields(tests, ("tests", "setup"))
            setup = read_text(tests, "setup")
            tests, in_json = unpack_json(tests["tests"], in_json)
        if is_empty(tests):
            raise UnusableTests("there are no tests")
        if isinstance(tests, str | Mapping):
            tests = [tests]
        if not isinstance(tests, list | tuple):
            raise UnusableTests(f"tests are a list, a dict, test code or JSON of these, not {type(tests).__name__}")
        calls: list[CallCase] = []
        scripts: list[StdinCase] = []
        texts: list[str] = []
        for item, item_in_json in (unpack_json(test, in_json) for test in tests):
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, Mapping):
                for case in self._read_test(drop_empty(item), "json" if item_in_json else "strict"):
                    calls.append(case) if isinstance(case, CallCase) else scripts.append(case)
            else:
                raise UnusableTests(f"a test is a dict or test code, not {type(item).__name__}")
        code = Suite()
        if texts:
            code = read_code("\n".join(texts), self.entry_point, self.prefix, setup, self.packages)
        elif setup.strip():
            raise UnusableTests("setup: only test code can use it, and there is none among the tests")
        suite = replace(code, calls=(*calls, *code.calls), scripts=tuple(scripts))
        for case in suite.calls:
            check_call(case)
        if not suite.total:
            raise UnusableTests("there are no tests")
        return suite

    def _read_test(self, item: Mapping[str, Any], rule: Rule) -> list[CallCase | StdinCase]:
        if isinstance(item.get("input"), list | tuple) and "inputs" not in item:
            # A table turns a list of dicts into a dict of lists.
            item = {{"input": "inputs", "output": "outputs"}.get(key, key): value for key, value in item.items()}
        if "inputs" in item or "outputs" in item:
            return self._read_table(item)
        if "input" in item or "output" in item:
            check_fields(item, ("input", "output", "tolerance"))
            if "output" not in item:
                raise UnusableTests("output: the test does not say what should be printed")
            streams = read_stream(item.get("input", ""), "input"), read_stream(item["output"], "output")
            return [StdinCase(*streams, read_tolerance(item))]
        return [self._read_call(item, rule)]

    def _read_table(self, item: Mapping[str, Any]) -> list[CallCase | StdinCase]:
        """Read APPS rows: all inputs and all outputs as lists, and fn_name if a function is called."""
        check_fields(item, ("inputs", "outputs", "fn_name", "tolerance"))
        inputs, outputs = item.get("inputs"), item.get("outputs")
        if not (isinstance(inputs, list | tuple) and isinstance(outputs, list | tuple)) or len(inputs) != len(outputs):
            raise UnusableTests("inputs and outputs: two lists of the same length are expected")
        tolerance = read_tolerance(item)
        if "fn_name" not in item:
            pairs = zip(inputs, outputs, strict=True)
            return [StdinCase(read_stream(one, "inputs"), read_stream(other, "outputs"), tolerance) for one, other in pairs]
        name = strip_solution(read_text(item, "fn_name"))
        if not all(isinstance(args, list | tuple) for args in inputs):
            raise UnusableTests("inputs: with fn_name each input is the list of the function's arguments")
        # APPS writes the result 5 as [5] in most rows and as 5 in others; its own checker accepts both.
        wrapped = bool(outputs) and all(isinstance(output, list) and len(output) == 1 for output in outputs)
        return [
            CallCase(name, tuple(args), {}, (output[0], output) if wrapped else (output,), "json", tolerance)
            for args, output in zip(inputs, outputs, strict=True)
        ]

    def _read_call(self, item: Mapping[str, Any], rule: Rule) -> CallCase:
        """Read a call. JSON has only one kind of list and writes 2.0 as 2, so `rule` is not strict for expected values from
        JSON.
        """
        check_fields(item, ("call", "args", "kwargs", "expected", "tolerance"))
        name = strip_solution(read_text(item, "call") or self.entry_point)
        args, kwargs = item.get("args", []), item.get("kwargs", {})
        if not name:
            raise UnusableTests("call: the name of the function is missing, in the test and as a column entry_point")
        if "expected" not in item:
            raise UnusableTests(f"expected: the test of {name} does not say what to expect")
        if not isinstance(args, list | tuple):
            raise UnusableTests(f"args: a list of arguments is expected, got {type(args).__name__}")
        if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
            raise UnusableTests("kwargs: a dict of arguments by name is expected")
        return CallCase(name, tuple(args), dict(kwargs), (item["expected"],), rule, read_tolerance(item))


# ---------------------------------------------------------------------------------------------------------------------
# Fields
# ---------------------------------------------------------------------------------------------------------------------


def drop_empty(item: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the fields without a value. Tables fill missing fields with None; only an expected None is meant."""
    kept = {key: value for key, value in item.items() if value is not None}
    if "expected" in item and not {"input", "output", "inputs", "outputs"} & kept.keys():
        kept["expected"] = item["expected"]
    return kept


def check_fields(item: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in item:
        if key not in known:
            raise UnusableTests(f"unknown field {key!r} in a test; the fields here are {', '.join(known)}")


def read_text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if value is not None and not isinstance(value, str):
        raise UnusableTests(f"{name}: text is expected, got {type(value).__name__}")
    return value or ""


def read_stream(value: Any, name: str) -> str:
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise UnusableTests(f"{name}: text, or a list of lines, is expected, got {type(value).__name__}")
    if len(value) > MAX_STREAM_CHARS:
        raise UnusableTests(f"{name}: more than {MAX_STREAM_CHARS} characters; a program with that much output is ended")
    return value


def read_tolerance(item: Mapping[str, Any]) -> float:
    value = item.get("tolerance", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise UnusableTests(f"tolerance: a number from 0 up is expected, got {value!r}")
    return float(value)


def check_call(case: CallCase) -> None:
    if not case.function.isidentifier():
        raise UnusableTests(f"call: {case.function!r} is not the name of a function")
    for what, value in (("args", case.args), ("kwargs", dict(case.kwargs)), ("expected", case.accepted)):
        if problem := find_plain_problem(value):
            raise UnusableTests(f"{what} of {case.function}: {problem}")
