"""What a class offers, and arguments against annotations."""

from __future__ import annotations

import pytest

import turns_tools
from cohort.environments.contract import BadArguments, ToolSignature, read_traits
from cohort.errors import RecipeError


def test_tools_hook_reward_and_the_columns_that_reset_reads():
    traits = read_traits(turns_tools.Increment, "environment.source")
    assert (list(traits.tools), traits.has_hook, traits.has_reward, traits.reads) == (["increment"], False, True, None)
    echo = read_traits(turns_tools.Echo, "environment.source")
    assert (dict(echo.tools), echo.has_hook, echo.returns_prompt) == ({}, True, False)
    assert read_traits(turns_tools.SlowEcho, "environment.source").asynchronous == {"step"}
    assert read_traits(turns_tools.Hostile, "environment.source").reads == ("how", "seed")


class Parent:
    def reset(self) -> None: ...

    def inherited(self, a: int) -> int:
        return a


class Child(Parent):
    def own(self, a: int) -> int:
        return a

    def _hidden(self, a):
        return a


def test_inherited_and_hidden_methods_are_no_tools():
    assert list(read_traits(Child, "x").tools) == ["own"]


class NoReset:
    def act(self, a: int) -> int:
        return a


class Untyped:
    def reset(self) -> None: ...

    def act(self, a):
        return a


class Nothing:
    def reset(self) -> None: ...


class Variable:
    def reset(self) -> None: ...

    def act(self, *a: int) -> int:
        return 1


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (NoReset, "no method reset"),
        (Untyped, "'a' has no type"),
        (Nothing, "cannot act"),
        (Variable, "cannot fill"),
        (3, "a int"),
    ],
)
def test_a_class_that_cannot_be_an_environment_is_refused_by_name(kind, fault):
    with pytest.raises(RecipeError, match=fault):
        read_traits(kind, "environment.source")


def test_arguments_are_checked_against_the_annotations():
    signature = ToolSignature(turns_tools.multiply)
    assert signature.check({"a": 2, "b": "3"}) == {"a": 2, "b": 3}
    assert signature.check([2, 3]) == {"a": 2, "b": 3}
    for wrong, fault in [
        ({"a": 2}, "'b' is missing"),
        ({"a": 2, "b": 3, "c": 4}, "unknown argument 'c'"),
        ({"a": "two", "b": 3}, "'a': Input should be a valid integer"),
        ([1, 2, 3], "3 arguments"),
        ("12", "not an object"),
    ]:
        with pytest.raises(BadArguments, match=fault):
            signature.check(wrong)
