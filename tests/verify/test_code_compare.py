"""The comparison of code_tests: which returned values and outputs count as equal, on tables written by hand."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort_verify.code.compare import MAX_DEPTH, find_plain_problem, holds, same_output, same_value

NAN = float("nan")

# (returned, expected, strict, value, json)
TABLE = [
    (3, 3, 1, 1, 1),
    (3, 4, 0, 0, 0),
    (240.0, 240, 0, 1, 1),
    (240, 240.0, 0, 1, 1),
    (3 + 0j, 3, 0, 1, 1),
    (2**53 + 1, float(2**53), 0, 0, 0),
    # a bool is never a number
    (True, 1, 0, 0, 0),
    (1, True, 0, 0, 0),
    (0.0, False, 0, 0, 0),
    (True, True, 1, 1, 1),
    ([1], [True], 0, 0, 0),
    ({1}, {True}, 0, 0, 0),
    ({1: "a"}, {True: "a"}, 0, 0, 0),
    ((0,), (False,), 0, 0, 0),
    ({(1, 2)}, {(True, 2)}, 0, 0, 0),
    # nan equals nan, wherever it is
    (NAN, float("nan"), 1, 1, 1),
    ([NAN], [float("nan")], 1, 1, 1),
    ({NAN}, {float("nan")}, 1, 1, 1),
    ({NAN: 1}, {float("nan"): 1}, 1, 1, 1),
    (NAN, 0.0, 0, 0, 0),
    (complex(NAN, 1), complex(NAN, 1), 1, 1, 1),
    (float("inf"), float("inf"), 1, 1, 1),
    (float("inf"), float("-inf"), 0, 0, 0),
    (-0.0, 0.0, 1, 1, 1),
    # kinds
    ("a", b"a", 0, 0, 0),
    ("1", 1, 0, 0, 0),
    (None, False, 0, 0, 0),
    (None, None, 1, 1, 1),
    ([1, 2], (1, 2), 0, 0, 1),
    ((1, 2), [1, 2], 0, 0, 1),
    ([(1, [2])], [[1, (2,)]], 0, 0, 1),
    ({1, 2}, frozenset({1, 2}), 0, 1, 1),
    ({1, 2}, [1, 2], 0, 0, 0),
    ([], (), 0, 0, 1),
    ([], {}, 0, 0, 0),
    (set(), {}, 0, 0, 0),
    # structures
    ([1, 2], [2, 1], 0, 0, 0),
    ([1, 2], [1, 2, 3], 0, 0, 0),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, 1, 1, 1),
    ({"a": 1}, {"a": 1.0}, 0, 1, 1),
    ({1: "a"}, {1.0: "a"}, 0, 1, 1),
    ({"a": 1}, {"b": 1}, 0, 0, 0),
    ({"a": 1}, {"a": 1, "b": 2}, 0, 0, 0),
    ({1, 2.0}, {1.0, 2}, 0, 1, 1),
    ({frozenset({1, 2})}, {frozenset({2, 1})}, 1, 1, 1),
    ({(1, "a"): [1, {2}]}, {(1, "a"): [1, {2}]}, 1, 1, 1),
    ({(1, "a"): [1, {2}]}, {(1, "a"): [1, {3}]}, 0, 0, 0),
]


@pytest.mark.parametrize(("returned", "expected", "strict", "value", "json"), TABLE)
def test_verdicts_of_the_three_rules(returned, expected, strict, value, json) -> None:
    assert [same_value(returned, expected, rule) for rule in ("strict", "value", "json")] == [strict, value, json]


def test_truthiness_is_tested_for_plain_values_only() -> None:
    class Sly:
        def __bool__(self) -> bool:
            raise AssertionError("it was asked")

    assert [holds("truthy", value) for value in (1, "a", [0], True, NAN)] == [True] * 5
    assert [holds("falsy", value) for value in (0, "", [], None, False, set())] == [True] * 6
    assert [holds("falsy", value) for value in (1, [0])] == [False, False]
    assert not holds("truthy", Sly())
    assert not holds("falsy", Sly())


def test_foreign_types_equal_nothing_and_their_eq_is_never_called() -> None:
    class Agrees:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("it was asked")

        def __hash__(self) -> int:
            raise AssertionError("it was asked")

    class AgreesInt(int):
        __eq__ = Agrees.__eq__
        __hash__ = Agrees.__hash__

    for rule in ("strict", "value", "json"):
        assert not same_value(Agrees(), 3, rule)
        assert not same_value(3, Agrees(), rule)
        assert not same_value(AgreesInt(3), 3, rule)
        assert not same_value([AgreesInt(3)], [3], rule)
        assert not same_value(Agrees(), Agrees(), rule)


def test_tolerance_is_for_floats_that_are_finite() -> None:
    assert same_value([0.3334], [0.3333], tolerance=1e-3)
    assert not same_value([0.3354], [0.3333], tolerance=1e-3)
    assert same_value(1000.5, 1000.0, tolerance=1e-3)
    assert not same_value(1, 2, "value", tolerance=5)  # whole numbers stay exact
    assert not same_value(0.0, float("inf"), tolerance=1e-3)
    assert not same_value(float("inf"), 5.0, tolerance=1e-3)
    assert not same_value(True, 1.0, "value", tolerance=1)
    assert not same_value(10**400, 1.0, "value", tolerance=1)


def test_depth_and_size_cost_what_the_expected_value_costs() -> None:
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    started = time.process_time()
    assert not same_value(deep, [[1]])
    assert same_value(deep, deep)  # no recursion anywhere
    assert not same_value(list(range(1_000_000)), [1, 2])
    key: tuple = ()
    for _ in range(200):
        key = (key,)
    assert not same_value({key}, {key})  # refused rather than hashed without end; the tests of a row may not hold it
    assert "nested deeper" in find_plain_problem({key})
    assert time.process_time() - started < 2


def test_what_a_test_may_hold() -> None:
    assert find_plain_problem([1, (2.0, {"a": {3}}), None, b"", frozenset({(1, 2)})]) == ""
    assert "of type object" in find_plain_problem([object()])
    assert "of type range" in find_plain_problem({"a": range(3)})
    cyclic: list = []
    cyclic.append(cyclic)
    assert "contains itself" in find_plain_problem(cyclic)
    shared: list = [0]
    for _ in range(60):
        shared = [shared, shared]  # 2**60 values in 60 lists
    assert "more than" in find_plain_problem(shared)
    deep: list = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert find_plain_problem(deep) == ""
    assert "nested deeper" in find_plain_problem([[deep]])


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=2), inner, max_size=3)
        | st.frozensets(st.integers() | st.text(max_size=2), max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(PLAIN, PLAIN)
def test_rules_nest_and_agree_with_python(left, right) -> None:
    assert same_value(left, left, "strict")
    if same_value(left, right, "strict"):
        assert same_value(left, right, "value")
    if same_value(left, right, "value"):
        assert same_value(left, right, "json")
    if same_value(left, right, "value") and "nan" not in repr(left):
        assert left == right
    for rule in ("strict", "value", "json"):
        assert same_value(left, right, rule) == same_value(right, left, rule)


# (printed, expected, equal)
OUTPUTS = [
    ("5\n", "5", 1),
    ("5", "5\n\n", 1),
    ("5  \n6\t\n", "5\n6", 1),
    ("5\r\n6\r\n", "5\n6\n", 1),
    ("5\n\n6", "5\n6", 0),
    (" 5", "5", 0),
    ("5 6", "5  6", 0),
    ("5.0", "5", 0),
    ("Yes", "YES", 0),
    ("", "", 1),
    ("\n\n", "", 1),
    ("5", "", 0),
    ("a\u2028b", "a\nb", 0),
    ("PASS\n5", "5", 0),
]


@pytest.mark.parametrize(("printed", "expected", "equal"), OUTPUTS)
def test_outputs(printed, expected, equal) -> None:
    assert same_output(printed, expected) == bool(equal)


def test_numbers_in_an_output_may_differ_only_where_the_test_says_so() -> None:
    assert not same_output("0.3333333", "0.3333334")
    assert same_output("x = 0.3333333 1e3", "x = 0.3333334  1000", tolerance=1e-6)
    assert not same_output("x = 0.3333", "x = 0.3334", tolerance=1e-6)
    assert not same_output("nan", "0.5", tolerance=1.0)
    assert not same_output("inf", "0.5", tolerance=1.0)
    assert not same_output("1e400", "5", tolerance=1.0)
    assert not same_output("1_0", "10", tolerance=1.0)
    assert not same_output("0.5\n0.5", "0.5", tolerance=1.0)
    assert not same_output("9" * 100_000, "5", tolerance=1.0)
