"""cases and asserts of code_tests: how each format of tests is read. The rows are written here in the formats of known datasets."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cohort_verify.code.asserts import read_code
from cohort_verify.code.cases import read_tests
from cohort_verify.code.suite import CallCase, StdinCase, UnusableTests


def scored(cell, **options):
    tests = read_tests(cell, **options)
    assert tests.visible is None
    return tests.scored


# ---------------------------------------------------------------------------------------------------------------------
# Pairs
# ---------------------------------------------------------------------------------------------------------------------


def test_calls() -> None:
    cell = [
        {"call": "add", "args": [1, 2], "expected": 3},
        {"call": "add", "kwargs": {"a": 1, "b": 2}, "expected": None},
        {"call": "half", "args": [1], "expected": 0.5, "tolerance": 1e-6},
    ]
    expected = (
        CallCase("add", (1, 2), {}, (3,)),
        CallCase("add", (), {"a": 1, "b": 2}, (None,)),
        CallCase("half", (1,), {}, (0.5,), tolerance=1e-6),
    )
    assert scored(cell).calls == expected
    from_text = tuple(replace(case, rule="json") for case in expected)
    assert scored(json.dumps(cell)).calls == from_text
    assert scored([json.dumps(item) for item in cell]).calls == from_text
    assert scored({"tests": json.dumps(cell)}).calls == from_text
    assert scored([cell[0], json.dumps(cell[1])]).calls == (expected[0], from_text[1])
    assert scored(cell[0]).calls == expected[:1]
    assert scored([{"args": [1, 2], "expected": 3}], entry_point="add").calls == expected[:1]
    assert scored(cell).total == 3


def test_standard_input() -> None:
    cell = [{"input": "1 2\n", "output": "3\n"}, {"output": "0.5", "tolerance": 1e-6}]
    assert scored(cell).scripts == (StdinCase("1 2\n", "3\n"), StdinCase("", "0.5", 1e-6))
    pairs = (StdinCase("1\n", "2\n"), StdinCase("3\n", "4\n"))
    assert scored({"inputs": ["1\n", "3\n"], "outputs": ["2\n", "4\n"]}).scripts == pairs
    assert scored({"input": ["1\n", "3\n"], "output": ["2\n", "4\n"]}).scripts == pairs
    assert scored({"inputs": [["1", "2"]], "outputs": [["3"]]}).scripts == (StdinCase("1\n2", "3"),)


def test_apps_with_a_function() -> None:
    cell = {"fn_name": "pick", "inputs": [[[1, 2], 0], [[3], 0]], "outputs": [[1], [3]]}
    assert scored(json.dumps(cell)).calls == (
        CallCase("pick", ([1, 2], 0), {}, (1, [1]), "json"),
        CallCase("pick", ([3], 0), {}, (3, [3]), "json"),
    )
    cell["outputs"] = [[1, 2], [3]]  # not all of one item: lists are meant
    assert [case.accepted for case in scored(cell).calls] == [([1, 2],), ([3],)]


def test_what_a_table_fills_in_is_not_a_field() -> None:
    row = {"call": "f", "args": [1], "expected": None, "input": None, "output": None, "kwargs": None}
    assert scored([row]).calls == (CallCase("f", (1,), {}, (None,)),)
    row = {"call": None, "args": None, "expected": None, "input": "1", "output": "2"}
    assert scored([row]).scripts == (StdinCase("1", "2"),)


def test_visible_and_hidden() -> None:
    one, other = {"call": "f", "args": [1], "expected": 1}, {"call": "f", "args": [2], "expected": 2}
    for cell, rule in (
        ({"visible": [one], "hidden": [other]}, "strict"),
        (json.dumps({"visible": [one], "hidden": [other]}), "json"),
        ({"visible": json.dumps([one]), "hidden": json.dumps([other])}, "json"),
    ):
        tests = read_tests(cell)
        assert tests.scored.calls == (CallCase("f", (2,), {}, (2,), rule),)
        assert tests.visible is not None
        assert tests.visible.calls == (CallCase("f", (1,), {}, (1,), rule),)
    assert read_tests({"hidden": [one]}).visible is None


def test_visible_tests_never_decide_by_themselves() -> None:
    one, true = {"call": "f", "args": [1], "expected": 1}, {"call": "f", "args": [True], "expected": 1}
    script = {"input": "1", "output": "2"}
    for visible, hidden in (
        ([one], []),
        ([one], None),
        ([one], [one]),
        ([one], ["assert f(1) == 1"]),  # the same question in other words
        (["assert f(1) == 1"], ["assert f(1) == 1.0"]),
        ([script], [script]),
        ([script], [{**script, "input": "1\n"}]),  # a line with or without its end
        (["assert abs(f(1) - 1) < 1e-6"], ["assert abs(f(1) - 1) < 1e-6"]),
    ):
        with pytest.raises(UnusableTests, match=r'all tests are visible.*as "hidden", or only the list'):
            read_tests({"visible": visible, "hidden": hidden})
    # what is shown and given as hidden too is counted among the shown; True is another question than 1
    tests = read_tests({"visible": [one, script], "hidden": [script, one, true, {**script, "input": "3"}]})
    assert [case.args for case in tests.scored.calls] == [(True,)]
    assert [case.input for case in tests.scored.scripts] == ["3"]
    assert tests.visible is not None
    assert tests.visible.total == 2


# ---------------------------------------------------------------------------------------------------------------------
# Asserts
# ---------------------------------------------------------------------------------------------------------------------


# (assert, what it becomes)
PAIRS = [
    ("assert f(1, 'a') == 3", CallCase("f", (1, "a"), {}, (3,), "value")),
    ("assert 3 == f(1)", CallCase("f", (1,), {}, (3,), "value")),
    ("assert f(1) == 3, 'message'", CallCase("f", (1,), {}, (3,), "value")),
    ("assert (f(1) == 3, 'message')", CallCase("f", (1,), {}, (3,), "value")),
    ("assert(f(1) == 3)", CallCase("f", (1,), {}, (3,), "value")),
    ("assert f(x=1, y=[2]) == {'a': (1, 2)}", CallCase("f", (), {"x": 1, "y": [2]}, ({"a": (1, 2)},), "value")),
    ("assert f(-1) == -2.5", CallCase("f", (-1,), {}, (-2.5,), "value")),
    ("assert f([1]) == set([1, 2])", CallCase("f", ([1],), {}, ({1, 2},), "value")),
    ("assert f(tuple([1])) == [set(), frozenset({1}), dict()]", CallCase("f", ((1,),), {}, ([set(), frozenset({1}), {}],), "value")),
    ("assert f() == float('inf')", CallCase("f", (), {}, (float("inf"),), "value")),
    ("assert f() == 1 + 2j", CallCase("f", (), {}, (1 + 2j,), "value")),
    ("assert f() == b'x'", CallCase("f", (), {}, (b"x",), "value")),
    ("assert not f(1)", CallCase("f", (1,), {}, (), "falsy")),
    ("assert f(1)", CallCase("f", (1,), {}, (), "truthy")),
    ("assert f(1) is True", CallCase("f", (1,), {}, (True,), "strict")),
    ("assert f(1) is None", CallCase("f", (1,), {}, (None,), "strict")),
    ("assert f(1) == None", CallCase("f", (1,), {}, (None,), "value")),
    ("assert Solution().f(1) == 2", CallCase("f", (1,), {}, (2,), "value")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "case"), PAIRS)
def test_asserts_that_are_pairs(text, case) -> None:
    suite = scored([text])
    assert suite.calls == (case,)
    assert not suite.checks


@pytest.mark.parametrize(
    "text",
    [
        "assert abs(f(2) - 1.5) < 1e-06",
        "assert f(1) != 3",
        "assert f(1) is 3",
        "assert f(1) is not None",
        "assert f(f(1)) == 3",
        "assert f(*[1, 2]) == 3",
        "assert f(**{'x': 1}) == 3",
        "assert f(1) == f(2)",
        "assert f(1) == 2 ** 10",
        "assert sorted((x for x in f(1))) == [1, 2]",
        "assert max(f(1), 2) == 2",
        "assert f(1) == 3 and f(2) == 4",
        "assert all((f(i) == i for i in range(3)))",
        "assert isinstance(f(1), int)",
        "assert f(lambda x: x) == 3",
        "assert not f(1) == 3",
        "assert f(1)[0] == 2",
    ],
)
def test_asserts_that_stay_code(text) -> None:
    suite = scored([text])
    assert not suite.calls
    assert list(suite.checks) == [text]
    assert suite.proxies == {"f": "f"}
    assert suite.setup == ""


def test_calls_that_a_test_iterates_over() -> None:
    suite = scored(["assert sorted(f(1), key=abs) == [1, 2]", "assert f(2) < 3", "assert max(f(1)) == sum(g(1), 2)"])
    assert list(suite.checks) == [
        "assert sorted(_iterated_f(1), key=abs) == [1, 2]",
        "assert f(2) < 3",
        "assert max(_iterated_f(1)) == sum(_iterated_g(1), 2)",
    ]
    assert suite.proxies == {"f": "f", "g": "g"}
    assert suite.iterated == ("f", "g")
    split = scored("def check(candidate):\n    assert list(candidate(1)) == [1]\n", entry_point="f")
    assert list(split.checks) == ["assert list(_iterated_candidate(1)) == [1]"]
    assert split.iterated == ("candidate",)


def test_a_mixed_list_keeps_every_test() -> None:
    suite = scored(["assert f(1) == 2", {"call": "f", "args": [2], "expected": 3}, "assert abs(f(3) - 4) < 1"])
    assert suite.calls == (CallCase("f", (2,), {}, (3,)), CallCase("f", (1,), {}, (2,), "value"))
    assert list(suite.checks) == ["assert abs(f(3) - 4) < 1"]
    assert suite.total == 3


def test_modules_that_the_program_would_have_imported() -> None:
    suite = scored(["assert math.isclose(f(1), 0.5)"])
    assert suite.setup == "import math"
    assert suite.proxies == {"f": "f"}


def test_setup_runs_before_the_checks() -> None:
    suite = scored(
        {"tests": ["assert close(f(1), 2)", "assert f(1) == 2"], "setup": "def close(a, b):\n    return abs(a - b) < 1"}
    )
    assert suite.setup == "def close(a, b):\n    return abs(a - b) < 1"
    assert list(suite.checks) == ["assert close(f(1), 2)"]
    assert len(suite.calls) == 1
    assert suite.proxies == {"f": "f"}


# Test texts with asserts that no program can change, and what is left of them: calls, and checks by a word in their code.
GIFTS = [
    (["assert 1 == 1", "assert len('ab') == 2", "assert f(1) == 1"], 1, []),
    (["import math", "assert math.pi > 3", "assert f(1) > 1"], 0, ["f(1) > 1"]),
    (["assert callable(f)", "assert f is not None", "assert f(1) > 1"], 0, ["f(1) > 1"]),
    (["size = 3", "assert size == 3", "assert f(size) == 3"], 0, ["f(size) == 3"]),
    (["y = f(1)", "assert 1 == 1", "assert y == 2"], 0, ["assert y == 2"]),
    (["seen = []", "for i in range(3):\n    seen.append(f(i))", "assert seen == [0, 1, 2]"], 0, ["assert seen == [0, 1, 2]"]),
    (["def twice(x):\n    return f(f(x))", "def one():\n    return 1", "assert one() == 1", "assert twice(2) == 8"], 0, ["twice(2)"]),
    (["def of(g):\n    return g(1)", "assert of(f) == 1", "assert of(abs) == 1"], 0, ["of(f)"]),
    (["def test_a():\n    assert 1 == 1", "def test_b():\n    x = f(1)\n    assert x == 1"], 0, ["assert x == 1"]),
    (["try:\n    f(-1)\n    bad = True\nexcept ValueError:\n    bad = False", "assert not bad"], 0, ["assert not bad"]),
    (["try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass"], 0, ["f(-1)"]),
    (["try:\n    f(-1)\n    assert False\nexcept Exception as e:\n    assert isinstance(e, ValueError)"], 0, ["f(-1)"]),
    (["def test_a():\n    if 1:\n        return\n    assert 2 == 2", "assert f(0) == 0"], 1, []),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "calls", "checks"), GIFTS)
def test_an_assert_that_cannot_reach_the_program_is_no_test(texts, calls, checks) -> None:
    suite = scored(texts)
    assert len(suite.calls) == calls
    assert len(suite.checks) == len(checks)
    assert all(word in check for word, check in zip(checks, suite.checks, strict=True))


def test_a_list_that_a_loop_fills_keeps_a_function_whole() -> None:
    text = "def check(candidate):\n    seen = []\n    for i in range(3):\n        seen.append(candidate(i))\n        assert seen[i] >= 0\n    assert len(seen) == 3\n"
    assert list(scored(text, entry_point="f").checks) == ["check(candidate)"]


def test_many_checks_are_read_in_time() -> None:
    suite = scored([f"assert abs(f({i}) - {i}) < 1" for i in range(2000)])
    assert len(suite.checks) == 2000


def test_arrays_are_lists() -> None:
    texts = np.array(["assert f(1) == 1", "assert f(2) == 3"], dtype=object)
    assert scored(texts).calls == scored(texts.tolist()).calls
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.array([1, 2]), np.int64(3)]
    cell = np.array([{"call": "f", "args": ragged, "expected": np.array([[1.5]])}], dtype=object)
    assert scored(cell).calls == (CallCase("f", ([1, 2], 3), {}, ([[1.5]],)),)
    assert [type(value) for value in scored(cell).calls[0].args[0]] == [int, int]
    assert scored({"inputs": np.array(["1", "2"]), "outputs": np.array(["3", "4"])}).scripts == (
        StdinCase("1", "3"),
        StdinCase("2", "4"),
    )
    itself: list[object] = []
    itself += [itself, itself]
    with pytest.raises(UnusableTests, match="args of f: it "):
        scored([{"call": "f", "args": [itself], "expected": 1}])
    assert scored([{"call": "f", "args": [np.float64("nan")], "expected": 1}]).calls[0].function == "f"


def test_arrays_of_arrays_of_arrays_keep_their_own_values() -> None:
    nested = np.empty(4, dtype=object)
    for number in range(4):
        nested[number] = np.empty(2, dtype=object)
        nested[number][:] = [np.array([number]), np.array([number, number])]
    cell = [{"call": "f", "args": nested, "expected": 1}]
    assert scored(cell).calls[0].args == tuple([[number], [number, number]] for number in range(4))


def test_packages_allow_imports_of_test_code() -> None:
    text = "import numpy as np\nassert np.isclose(f(1), 2)"
    suite = scored(text, packages=True)
    assert list(suite.checks) == ["assert np.isclose(f(1), 2)"]
    assert suite.setup == "import numpy as np"


@pytest.mark.parametrize(
    "text",
    [
        "x = [3, 1]\ny = f(x)\nassert y == sorted(x)",
        "x = [3, 1]\nassert f(x) == sorted(x)",
        "x = [3, 1]\ntry:\n    f(x)\n    assert False\nexcept ValueError:\n    pass\nassert f(x + [2]) == 1",
        "x = [3, 1]\nf(x)\nx = [1]\nassert f(x) == x",
    ],
)
def test_arguments_that_are_read_for_another_reason_are_fine(text) -> None:
    assert scored(text).total > 0


def test_a_check_that_cannot_fail_is_no_test() -> None:
    suite = scored(
        "def check(candidate):\n    assert True, 'this always passes'\n    assert candidate(1) == 2\n", entry_point="f"
    )
    assert suite.total == 1


# ---------------------------------------------------------------------------------------------------------------------
# Test code
# ---------------------------------------------------------------------------------------------------------------------

CHECK = """
METADATA = {"author": "x"}

def check(candidate):
    "docstring"
    assert candidate([1, 2]) == [2, 1]
    assert candidate([]) == [], "empty"
    numbers = list(range(5))
    assert candidate(numbers) == [4, 3, 2, 1, 0]
    assert abs(candidate([0.5])[0] - 0.5) < 1e-6
    for size in range(3):
        assert len(candidate([0] * size)) == size
"""


def test_check_of_a_candidate_is_split() -> None:
    suite = scored(CHECK, entry_point="flip")
    assert suite.calls == (
        CallCase("flip", ([1, 2],), {}, ([2, 1],), "value"),
        CallCase("flip", ([],), {}, ([],), "value"),
    )
    assert list(suite.checks) == [
        "def _check_0():\n    numbers = list(range(5))\n    assert candidate(numbers) == [4, 3, 2, 1, 0]\n_check_0()",
        "def _check_1():\n    numbers = list(range(5))\n    assert abs(candidate([0.5])[0] - 0.5) < 1e-06\n_check_1()",
        "def _check_2():\n    numbers = list(range(5))\n    for size in range(3):\n"
        "        assert len(candidate([0] * size)) == size\n_check_2()",
    ]
    assert suite.proxies == {"flip": "flip", "candidate": "flip"}
    assert "METADATA" in suite.setup
    # named by the text itself
    assert scored(CHECK + "\ncheck(flip)\n").calls == suite.calls
    assert scored(CHECK, entry_point="Solution().flip").calls == suite.calls


def test_code_that_would_change_its_meaning_stays_whole() -> None:
    returning = "def check(candidate):\n    if candidate(0):\n        return\n    assert candidate(1) == 1\n"
    suite = scored(returning, entry_point="f")
    assert not suite.calls
    assert list(suite.checks) == ["check(candidate)"]
    handed_on = (
        "def check(candidate):\n    seen = 0\n    for i in range(3):\n        seen += candidate(i)\n        assert seen >= 0\n"
        "    assert seen == 3\n"
    )
    assert list(scored(handed_on, entry_point="f").checks) == ["check(candidate)"]


def test_helpers_of_the_prompt_are_the_tests_own() -> None:
    """A program cannot replace what the tests measure it with."""
    prefix = "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\ndef find_zero(xs):\n    '''...'''\n"
    text = "def check(candidate):\n    assert abs(poly([1, 2], candidate([1, 2]))) < 1e-6\n"
    suite = scored(text, entry_point="find_zero", prefix=prefix)
    assert suite.proxies == {"find_zero": "find_zero", "candidate": "find_zero"}
    assert suite.setup.startswith("def poly(xs, x):")


def test_a_test_file() -> None:
    text = (
        "import math\nfrom solution import area as surface, flip\n\n"
        "def test_area():\n    assert surface(0) == 0\n    assert math.isclose(surface(1), math.pi)\n\n"
        "def test_flip():\n    assert flip([1, 2]) == [2, 1]\n"
    )
    suite = scored(text)
    assert suite.calls == (
        CallCase("area", (0,), {}, (0,), "value"),
        CallCase("flip", ([1, 2],), {}, ([2, 1],), "value"),
    )
    assert list(suite.checks) == ["assert math.isclose(surface(1), math.pi)"]
    assert suite.proxies == {"flip": "flip", "surface": "area"}
    guarded = "def test_f():\n    assert f(1) == 2\nif __name__ == '__main__':\n    test_f()\n"
    assert scored(guarded).calls == (CallCase("f", (1,), {}, (2,), "value"),)


def test_a_helper_that_asserts_is_a_check() -> None:
    text = "def same(a, b):\n    assert a == b\n\ndef check(candidate):\n    for x, y in [(1, 2), (2, 3)]:\n        same(candidate(x), y)\n"
    suite = scored(text, entry_point="f")
    assert list(suite.checks) == ["for x, y in [(1, 2), (2, 3)]:\n    same(candidate(x), y)"]


def test_lines_between_asserts_run_again_with_each_check_and_never_as_setup() -> None:
    code = read_code("base = 10\nresult = f(base)\nassert result == 11\nassert result > base\n")
    assert code.setup == "base = 10"
    assert list(code.checks) == [
        "result = f(base)\nassert result == 11",
        "result = f(base)\nassert result > base",
    ]


def test_a_variable_with_the_name_of_a_function_is_a_variable() -> None:
    code = read_code("def check(candidate):\n    f = candidate\n    assert f(1) == 2\n", entry_point="f")
    assert not code.calls
    assert len(code.checks) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Unusable
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (None, "no tests"),
        ([], "no tests"),
        ("", "no tests"),
        ("[]", "no tests"),
        ({}, "no tests"),
        ({"visible": [], "hidden": []}, "no tests"),
        ({"inputs": [], "outputs": []}, "no tests"),
        (7, "not int"),
        ([7], "not int"),
        ('[{"call": "f"', "cannot be parsed"),
        ("assert f(1) ==", "not Python"),
        ("x = 1", "assert nothing"),
        ("assert True", "assert nothing"),
        (["assert 1 == 1"], "assert nothing about the program"),
        (["import math", "assert math.pi > 3"], "assert nothing about the program"),
        ("assert callable(f)", "assert nothing about the program"),
        ("try:\n    f(-1)\n    assert False\nexcept Exception:\n    pass", "assert nothing about the program"),
        ("try:\n    f(-1)\n    assert False\nexcept (ValueError, AssertionError):\n    pass", "assert nothing"),
        ("x = [3, 1]\nf(x)\nassert x == [1, 3]", "look at x after f(x)"),
        ("def check(c):\n    x = [3, 1]\n    c(x)\n    assert x == [1, 3]\ncheck(f)", "look at x after c(x)"),
        ("def test_f():\n    x = {}\n    f(into=x)\n    assert len(x) == 1", "look at x after f(x)"),
        ([{"call": "f", "args": [1]}], "does not say what to expect"),
        ([{"args": [1], "expected": 2}], "name of the function is missing"),
        ([{"call": "f", "args": 3, "expected": 2}], "args: a list"),
        ([{"call": "f", "kwargs": [3], "expected": 2}], "kwargs: a dict"),
        ([{"call": "f g", "expected": 2}], "not the name of a function"),
        ([{"call": "f", "args": [object()], "expected": 2}], "not plain data"),
        ([{"call": "f", "expected": 2, "expect": 2}], "unknown field 'expect'"),
        ([{"input": "1"}], "what should be printed"),
        ([{"input": 1, "output": "2"}], "input: text"),
        ([{"input": "1", "output": "2", "tolerance": -1}], "tolerance"),
        ([{"input": "1", "output": "2", "tolerance": True}], "tolerance"),
        ({"inputs": ["1"], "outputs": []}, "same length"),
        ({"fn_name": "f", "inputs": ["1"], "outputs": [1]}, "list of the function's arguments"),
        ({"visible": [], "hiden": []}, "unknown field 'hiden'"),
        ({"tests": [{"input": "1", "output": "2"}], "setup": "import math"}, "setup"),
        ({"tests": ["assert f(x) == 1"], "setup": "x = f(2)"}, "setup of the tests calls f"),
        ({"tests": ["assert f(1) == 1"], "setup": "def g():\n    return f(2)\ng()"}, "setup of the tests calls g"),
        ("def check(candidate):\n    assert candidate(1) == 2", "entry_point"),
        ("def test_f(tmp_path):\n    assert f(tmp_path) == 2", "test runner"),
        ("class TestF:\n    def test_f(self):\n        assert f(1) == 2", "methods of a class"),
        ("import solution\nassert solution.f(1) == 2", "from solution import"),
        ("assert np.isclose(f(1), 2)", "do not import np"),
        ("import numpy as np\nassert np.isclose(f(1), 2)", "the tests import numpy"),
        ("def check(candidate):\n    import pytest\n    with pytest.raises(ValueError):\n        candidate(1)\ncheck(f)", "import pytest"),
        ("assert chain([Pair(1, 2)], 1) == 2", "own class Pair"),
        ("s = Solution()\nassert s.f(1) == 2", "Solution().method"),
    ],
)  # fmt: skip
def test_unusable_tests_give_the_reason(cell, why) -> None:
    with pytest.raises(UnusableTests) as problem:
        read_tests(cell)
    assert why in str(problem.value)
