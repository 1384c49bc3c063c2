"""Analyses the syntax trees of test code: which names it reads, what can fail, and what the program can change.

Nothing is run. Where a function is not exact, its docstring says on which side it errs.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeGuard

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)
LOOKS_ONLY = ("callable", "hasattr", "id", "isinstance", "type")
CATCHES_ASSERTS = ("AssertionError", "Exception", "BaseException")


class NamedCall(ast.Call):
    """A call of a plain name, for the type checker."""

    func: ast.Name


def is_call(node: ast.AST, names: Container[str]) -> TypeGuard[NamedCall]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def write_code(statements: Sequence[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(list(statements), [])))


def list_parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.posonlyargs + function.args.args]


def find_position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


# ---------------------------------------------------------------------------------------------------------------------
# Nodes
# ---------------------------------------------------------------------------------------------------------------------


def walk_all(statements: Iterable[ast.AST]) -> Iterable[ast.AST]:
    for statement in statements:
        yield from ast.walk(statement)


def walk_at_once(statements: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """Yield the nodes that run when the statements are executed: all but the bodies of functions."""
    pending = list(statements)
    while pending:
        node = pending.pop()
        if isinstance(node, FUNCTIONS):
            pending += [*node.decorator_list, *node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]
        elif not isinstance(node, ast.Lambda):
            yield node
            pending += ast.iter_child_nodes(node)


def walk_uncaught(statements: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """Yield all nodes except those under a `try` whose `except` also catches a failing assert, which fails no test."""
    pending = list(statements)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.Try) and any(catches_asserts(handler.type) for handler in node.handlers):
            pending += [*node.handlers, *node.orelse, *node.finalbody]
        else:
            pending += ast.iter_child_nodes(node)


def catches_asserts(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or (isinstance(one, ast.Name) and one.id in CATCHES_ASSERTS) for one in kinds)


# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------


def pick_loaded(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that these nodes read, not those below them."""
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def find_loaded(statements: Iterable[ast.AST]) -> set[str]:
    return pick_loaded(walk_all(statements))


def find_bound(statements: Iterable[ast.AST]) -> set[str]:
    """Return every name assigned anywhere in the statements, regardless of scope."""
    names: set[str] = set()
    for node in walk_all(statements):
        match node:
            case ast.Name(name, ast.Store() | ast.Del()) | ast.arg(name) | ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                names.add(name)
            case ast.Import(aliases) | ast.ImportFrom(names=aliases):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    return names


def find_used(statement: ast.stmt) -> set[str]:
    """Return the names whose earlier value the statement reads."""
    changed = {
        node.target.id for node in ast.walk(statement) if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return (find_loaded([statement]) - find_bound([statement])) | changed


def find_changed(statement: ast.stmt) -> set[str]:
    """Return the names of objects that the statement modifies: `seen.append(x)`, `seen[i] = x`."""
    names: set[str] = set()
    for node in ast.walk(statement):
        match node:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name)))):
                names.add(name)
            case ast.Subscript(ast.Name(name)) | ast.Attribute(ast.Name(name)) if not isinstance(node.ctx, ast.Load):
                names.add(name)
    return names


# ---------------------------------------------------------------------------------------------------------------------
# Failing tests, and values of the program
# ---------------------------------------------------------------------------------------------------------------------


def can_fail(node: ast.AST, asserting: set[str]) -> bool:
    match node:
        case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(attr=name)):
            return name in asserting or name in ("raises", "assertRaises")
    return isinstance(node, ast.Assert | ast.Raise)


def find_asserting(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the functions of the tests that can fail one: they contain an assert or raise, or call such a function."""
    functions = [node for node in walk_all(statements) if isinstance(node, FUNCTIONS)]
    found: set[str] = set()
    while True:
        more = {one.name for one in functions if any(can_fail(node, found) for node in walk_uncaught(one.body))}
        if more <= found:
            return found
        found |= more


def reaches_program(statements: Iterable[ast.AST], functions: AbstractSet[str], tainted: set[str]) -> bool:
    """Return whether the statements can call one of the program's functions, or read a tainted name, which may hold a value of
    the program.

    Comparing a function or testing whether it is callable does not count: its proxy exists whatever the program defines.
    """
    nodes = list(walk_all(statements))
    looked_at: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Compare):
            looked_at |= {id(part) for part in (node.left, *node.comparators)}
        elif is_call(node, LOOKS_ONLY):
            looked_at |= {id(part) for part in node.args}
    return bool(pick_loaded(nodes) & tainted or pick_loaded(node for node in nodes if id(node) not in looked_at) & functions)


def find_tainted(statements: Sequence[ast.stmt], functions: AbstractSet[str], known: Iterable[str] = ()) -> set[str]:
    """Return the names in the tests that may hold values of the program: variables, and helpers that call it.

    Errs on the side of too many: a statement that reaches the program taints all its names.
    """
    helpers = {one.name for one in statements if isinstance(one, DEFINITIONS)}
    imported = find_bound(node for node in walk_all(statements) if isinstance(node, IMPORTS))
    never = helpers | imported | functions | set(dir(builtins))
    found = set(known)
    open_statements = [one for one in statements if not isinstance(one, (ast.Assert, *IMPORTS))]
    while reaching := {one for one in open_statements if reaches_program([one], functions, found)}:
        for one in reaching:
            if isinstance(one, DEFINITIONS):
                found |= {one.name} | (find_loaded([one]) - find_bound([one]) - never)
            else:
                found |= (find_loaded([one]) | find_bound([one])) - never
        open_statements = [one for one in open_statements if one not in reaching]
    return found
