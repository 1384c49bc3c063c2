"""An assert that is a call and the value it should give, read from the syntax tree; any other is no pair."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from typing import Any

from cohort_verify.code.compare import Rule
from cohort_verify.code.suite import CallCase
from cohort_verify.code.syntax import is_call


def find_meant_test(test: ast.expr) -> ast.expr:
    """`assert (f(x) == y, "message")` is always true in Python; its author meant the first half."""
    match test:
        case ast.Tuple([meant, ast.Constant() | ast.JoinedStr()]):
            return meant
    return test


def read_pair(test: ast.expr, names: Mapping[str, str]) -> CallCase | None:
    """The assertion as a call and its result, or None. `names` maps names in the test to functions of the program."""
    try:
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                return read_call(operand, names, (), "falsy")
            case ast.Call():
                return read_call(test, names, (), "truthy")
            case ast.Compare(left, [ast.Is()], [ast.Constant(None | True | False as value)]):
                return read_call(left, names, (value,), "strict")
            case ast.Compare(left, [ast.Eq()], [right]):
                call, expected = (right, left) if is_call(right, names) else (left, right)
                return read_call(call, names, (read_literal(expected),), "value")
    except (ValueError, TypeError):  # a name, unhashable, set(5)
        pass
    return None


def read_call(node: ast.expr, names: Mapping[str, str], accepted: tuple[Any, ...], rule: Rule) -> CallCase | None:
    if not is_call(node, names) or any(keyword.arg is None for keyword in node.keywords):
        return None
    kwargs = {str(keyword.arg): read_literal(keyword.value) for keyword in node.keywords}
    return CallCase(names[node.func.id], tuple(map(read_literal, node.args)), kwargs, accepted, rule)


MADE_OF_ONE: dict[str, Callable[[Any], Any]] = {
    "set": set, "frozenset": frozenset, "tuple": tuple, "list": list, "dict": dict, "float": float,
}  # fmt: skip


def read_literal(node: ast.expr | None) -> Any:
    """The value of a literal, in which set([...]), tuple(...), float("inf") and the like may stand too; else ValueError."""
    match node:
        case ast.List(items):
            return [read_literal(item) for item in items]
        case ast.Tuple(items):
            return tuple(read_literal(item) for item in items)
        case ast.Set(items):
            return {read_literal(item) for item in items}
        case ast.Dict(keys, values):
            return {read_literal(key): read_literal(item) for key, item in zip(keys, values, strict=True)}
        case ast.Call(ast.Name(name), args, []) if name in MADE_OF_ONE and len(args) < 2:
            return MADE_OF_ONE[name](*map(read_literal, args))
        case None | ast.Constant(builtins.Ellipsis):
            raise ValueError("no literal of a test")
    return ast.literal_eval(node)
