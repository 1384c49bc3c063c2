"""From test code written in Python to cases: pairs where both sides are literals, checks for the rest.

    assert add(1, 2) == 3                     ->  call add(1, 2), expect 3; the 3 never leaves the host
    assert abs(half(1) - 0.5) < 1e-6          ->  a check: trusted code, run apart from the program
    def check(candidate): ...                 ->  each of its asserts one of the two above

Test code is trusted, but it is only read here, never run: literals are rebuilt from the syntax tree. A test text is
split assert by assert where that keeps its meaning, so that a fraction of the tests can be passed; where it might not
(a `return` among the asserts, a loop that hands a variable on), the whole function stays one check.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from cohort.rewards.code.compare import Rule
from cohort.rewards.code.format import function_name, prefix_head


class UnusableTests(ValueError):
    """The tests of a row cannot score any program; the message says why."""


@dataclass(frozen=True)
class CallCase:
    """Call a function of the program; one of the accepted values must come back."""

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    accepted: tuple[Any, ...] = ()
    rule: Rule = "strict"
    tolerance: float = 0.0


@dataclass(frozen=True)
class CheckCase:
    """Trusted code that must run to its end without an exception."""

    code: str


@dataclass(frozen=True)
class TestCode:
    """What one test text asks for."""

    __test__ = False

    calls: tuple[CallCase, ...] = ()
    checks: tuple[CheckCase, ...] = ()
    setup: str = ""
    """Runs before the checks; it never calls the program, so that a program cannot break it."""
    proxies: tuple[str, ...] = ()
    """Functions of the program that checks call, as "name" or "name=function of the program"."""
    iterated: tuple[str, ...] = ()
    """Names among the proxies that checks also call as ITERATED + name, for a list of what the call's value holds."""


def read_code(text: str, *, entry_point: str = "", prefix: str = "", setup: str = "", packages: bool = False) -> TestCode:
    """The cases of a test text. `setup` is trusted code before it, `prefix` the start of the program in the prompt.

    packages: the test code may import what is installed, not the standard library alone.
    """
    try:
        return Reader(text, function_name(entry_point), prefix, setup, packages).read()
    except RecursionError:
        raise UnusableTests("the test code is nested too deep") from None


# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LEAVES_FUNCTION = (ast.Return, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal, ast.Await)
PROGRAM_MODULE = "solution"
"""Test files that import the program call it so."""


def parsed(text: str, what: str) -> list[ast.stmt]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError) as problem:
        raise UnusableTests(f"{what} is not Python ({problem})") from None
    return [MethodsAsFunctions().visit(statement) for statement in tree.body]


class MethodsAsFunctions(ast.NodeTransformer):
    """`Solution().f(x)` is a call of f: the jail makes the object (see format.callable_name)."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        made = node.value
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "Solution" and not made.args:
            return ast.copy_location(ast.Name(node.attr, node.ctx), node)
        return node


def nodes_of(statements: Iterable[ast.AST]) -> Iterable[ast.AST]:
    for statement in statements:
        yield from ast.walk(statement)


def loaded(statements: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes_of(statements) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def bound(statements: Iterable[ast.AST]) -> set[str]:
    """Every name that is given a value anywhere in the statements, whatever its scope."""
    names: set[str] = set()
    for node in nodes_of(statements):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def run_at_once(statements: Iterable[ast.stmt]) -> list[ast.AST]:
    """The nodes that run when the statements are met: all but the bodies of functions."""
    nodes: list[ast.AST] = []
    pending: list[ast.AST] = list(statements)
    while pending:
        node = pending.pop()
        if isinstance(node, FUNCTIONS):
            pending += [*node.decorator_list, *node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]
        elif not isinstance(node, ast.Lambda):
            nodes.append(node)
            pending += ast.iter_child_nodes(node)
    return nodes


def loaded_by(nodes: Iterable[ast.AST]) -> set[str]:
    """Names among these very nodes, not below them."""
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


class Reader:
    """Reads one test text. `program` holds the names that only the program can supply."""

    def __init__(self, text: str, entry_point: str, prefix: str, setup: str, packages: bool) -> None:
        self.entry_point, self.packages = entry_point, packages
        self.calls: list[CallCase] = []
        self.checks: list[CheckCase] = []
        self.proxies: dict[str, str] = {}
        helpers = parsed(prefix_head(prefix, entry_point), "the start of program_prefix") if entry_point else []
        before = [*helpers, *parsed(setup, "the setup of the tests")]
        statements, self.aliases = without_program_imports(parsed(text, "the test text"))
        self.statements = without_main_guard(statements)
        self.everything = everything = [*before, *self.statements]
        free = loaded(everything) - bound(everything) - set(dir(builtins))
        modules = missing_modules(everything, free)
        self.program = (free - set(modules)) | set(self.aliases)
        if entry_point and entry_point not in bound(before):
            self.program.add(entry_point)
        check_setup(before, self.program)
        check_objects(everything, self.program)
        self.setup: list[ast.stmt] = [*ast.parse("\n".join(f"import {name}" for name in modules)).body, *before]
        self.prelude: list[ast.stmt] = []
        """Statements between the asserts that call the program: they run again with every later check."""
        self.functions = {one.name: one for one in self.statements if isinstance(one, ast.FunctionDef)}
        self.asserting = asserting_functions(everything)
        self._fed: dict[frozenset[str], set[str]] = {}

    def read(self) -> TestCode:
        uncalled = self._uncalled_tests()
        for body in (self.statements, *(function.body for function in self.functions.values())):
            check_copies(body, self.program)
        for statement in self.statements:
            if isinstance(statement, DEFINITIONS):
                check_class(statement)
                self.setup.append(statement)
            elif called := self._called_test(statement):
                self._split(*called)
            elif isinstance(statement, ast.Assert):
                self._assertion(statement)
            elif self._decides(statement):
                self._check([statement])
            elif loaded([statement]) & (self.program | set(self.functions) | bound(self.prelude)):
                self.prelude.append(statement)
            elif not isinstance(statement, ast.Expr):
                self.setup.append(statement)
        for function, renamed in uncalled:
            self._split(function, renamed)
        if not self.calls and not self.checks:
            raise UnusableTests("the test text asserts nothing about the program")
        if not self.checks:
            return TestCode(tuple(self.calls))
        check_imports([*self.setup, *self.statements], self.packages)
        proxies = {name: self.aliases.get(name, name) for name in sorted(self.program)} | self.proxies
        iterate = Iterate(set(proxies))
        return TestCode(
            tuple(self.calls),
            tuple(CheckCase(iterate.rewritten(check.code)) for check in self.checks),
            iterate.rewritten(written(self.setup)),
            tuple(name if name == target else f"{name}={target}" for name, target in proxies.items()),
            tuple(sorted(iterate.iterated)),
        )

    # -----------------------------------------------------------------------------------------------------------------
    # Functions that hold the asserts
    # -----------------------------------------------------------------------------------------------------------------

    def _uncalled_tests(self) -> list[tuple[ast.FunctionDef, dict[str, str]]]:
        """check(candidate) and test_*(), where the text does not call them itself; with what their arguments stand for."""
        calls = [one.value for one in self.statements if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)]
        called = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        tests = []
        for name, function in self.functions.items():
            if name in called or not (name == "check" or name.startswith("test_")):
                continue
            arguments = argument_names(function)
            if function.decorator_list or len(arguments) != (name == "check"):
                raise UnusableTests(f"the test function {name} needs decorators or arguments that only a test runner supplies")
            if arguments and not self.entry_point:
                raise UnusableTests(
                    f"the tests define {name}({arguments[0]}), but nothing says which function to pass: give the rows a "
                    f"column entry_point, or end the text with a call such as {name}(add)"
                )
            tests.append((function, {arguments[0]: self.entry_point} if arguments else {}))
        return tests

    def _called_test(self, statement: ast.stmt) -> tuple[ast.FunctionDef, dict[str, str]] | None:
        """The function of a line such as `check(add)` or `test_add()`, with what its arguments stand for."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
            return None
        function = self.functions.get(call.func.id)
        if function is None or call.func.id not in self.asserting:
            return None
        given = [argument.id for argument in call.args if isinstance(argument, ast.Name) and argument.id in self.program]
        names = argument_names(function)
        if not len(names) == len(given) == len(call.args):
            return None
        return function, {name: self.aliases.get(one, one) for name, one in zip(names, given, strict=True)}

    def _split(self, function: ast.FunctionDef, renamed: Mapping[str, str]) -> None:
        """The asserts of a function as cases of their own; `renamed` maps its arguments to functions of the program."""
        check_copies(function.body, set(renamed))
        if not self._can_split(function):
            self._check(ast.parse(f"{function.name}({', '.join(renamed)})").body, renamed)
            return
        local: list[ast.stmt] = []
        for statement in function.body:
            if isinstance(statement, ast.Assert):
                self._assertion(statement, renamed, local)
            elif self._decides(statement):
                self._check([statement], renamed, local)
            elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                local.append(statement)

    def _can_split(self, function: ast.FunctionDef) -> bool:
        """Whether every assert means the same when the asserts and loops before it have not run."""
        if any(isinstance(node, LEAVES_FUNCTION) for node in run_at_once(function.body)):
            return False
        handed_on: set[str] = set()
        decisive = 0
        for statement in function.body:
            if used(statement) & handed_on:
                return False
            if isinstance(statement, ast.Assert) or self._decides(statement):
                handed_on |= bound([statement]) | changed_in_place(statement)
                decisive += 1
        return decisive > 0

    # -----------------------------------------------------------------------------------------------------------------
    # Cases
    # -----------------------------------------------------------------------------------------------------------------

    def _decides(self, statement: ast.stmt) -> bool:
        """Whether the statement can fail a test: it holds an assert, or calls a function that does."""
        return not isinstance(statement, DEFINITIONS) and any(can_fail(node, self.asserting) for node in uncaught([statement]))

    def _assertion(
        self, statement: ast.Assert, renamed: Mapping[str, str] | None = None, local: Sequence[ast.stmt] = ()
    ) -> None:
        test = meant_test(statement.test)
        # A variable of the test may carry the name of a function of the program.
        names = {name: self.aliases.get(name, name) for name in self.program} | dict(renamed or {})
        variables = bound([*self.prelude, *local])
        case = pair_of(test, {name: target for name, target in names.items() if name not in variables})
        if case is not None:
            self.calls.append(case)
        else:
            self._check([ast.copy_location(ast.Assert(test, statement.msg), statement)], renamed, local)

    def _check(
        self, statements: Sequence[ast.stmt], renamed: Mapping[str, str] | None = None, local: Sequence[ast.stmt] = ()
    ) -> None:
        for name, target in (renamed or {}).items():
            if self.proxies.setdefault(name, target) != target:
                raise UnusableTests(f"the tests use {name} for two functions, {self.proxies[name]} and {target}")
        if not self._reaches_program(statements, renamed or {}, local):
            return  # it passes, or fails, whatever the program does: counting it would be a gift, or a tax
        if local:  # in a function, as they were: their variables must not be seen by the next check
            wrapper = ast.parse(f"def _check_{len(self.checks)}():\n    pass\n_check_{len(self.checks)}()").body
            assert isinstance(wrapper[0], ast.FunctionDef)
            wrapper[0].body = [*local, *statements]
            statements = wrapper
        self.checks.append(CheckCase(written([*self.prelude, *statements])))

    def _reaches_program(self, statements: Sequence[ast.stmt], renamed: Mapping[str, str], local: Sequence[ast.stmt]) -> bool:
        functions = self.program | set(renamed)
        if (key := frozenset(functions)) not in self._fed:
            self._fed[key] = fed_by(self.everything, functions)
        return reaches(statements, functions, fed_by(local, functions, self._fed[key]))


# ---------------------------------------------------------------------------------------------------------------------
# Values that are there to be iterated over
# ---------------------------------------------------------------------------------------------------------------------

ITERATED = "_iterated_"
TAKES_ITERABLE = ("list", "tuple", "set", "frozenset", "sorted", "sum", "min", "max")


class Iterate(ast.NodeTransformer):
    """`list(f(x))` asks for a list of what f(x) holds: a generator, a range or a deque is no plain value, its items may be.

    Only where the test itself iterates over all of it, so that nothing passes that would not in Python.
    """

    def __init__(self, proxies: set[str]) -> None:
        self.proxies = proxies
        self.names: set[str] = set()
        self.iterated: set[str] = set()

    def rewritten(self, code: str) -> str:
        if not any(f"{word}(" in code for word in TAKES_ITERABLE):
            return code
        tree = ast.parse(code)
        self.names = self.proxies - bound([tree])
        return ast.unparse(self.visit(tree))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        first = node.args[0] if node.args else None
        alone = len(node.args) == 1 or not is_call(node, ("min", "max"))
        if is_call(node, TAKES_ITERABLE) and alone and first is not None and is_call(first, self.names):
            self.iterated.add(first.func.id)
            first.func.id = ITERATED + first.func.id
        return node


# ---------------------------------------------------------------------------------------------------------------------
# What the program can change
# ---------------------------------------------------------------------------------------------------------------------

LOOKS_ONLY = ("callable", "hasattr", "id", "isinstance", "type")


def reaches(statements: Iterable[ast.AST], functions: set[str], fed: set[str]) -> bool:
    """Whether the statements can call the program, or read a value of its.

    Comparing a function or asking whether it is callable is neither: its proxy is there whatever the program defines.
    """
    nodes = list(nodes_of(statements))
    looked_at: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Compare):
            looked_at |= {id(part) for part in (node.left, *node.comparators)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LOOKS_ONLY:
            looked_at |= {id(part) for part in node.args}
    return any(
        node.id in fed or (node.id in functions and id(node) not in looked_at)
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


def fed_by(statements: Sequence[ast.stmt], functions: set[str], known: Iterable[str] = ()) -> set[str]:
    """Names of the tests that values of the program can be behind: variables, and helpers that call it.

    Rather too many than too few: all names of a statement that reaches the program are, for it may put a value into any.
    """
    helpers = {one.name for one in statements if isinstance(one, DEFINITIONS)}
    imported = bound(node for node in nodes_of(statements) if isinstance(node, ast.Import | ast.ImportFrom))
    never = helpers | imported | functions | set(dir(builtins))
    found = set(known)
    open_statements = [one for one in statements if not isinstance(one, ast.Assert | ast.Import | ast.ImportFrom)]
    while reaching := {id(one): one for one in open_statements if reaches([one], functions, found)}:
        for one in reaching.values():
            if isinstance(one, DEFINITIONS):
                found |= {one.name} | (loaded([one]) - bound([one]) - never)
            else:
                found |= (loaded([one]) | bound([one])) - never
        open_statements = [one for one in open_statements if id(one) not in reaching]
    return found


def check_copies(statements: Sequence[ast.stmt], functions: set[str]) -> None:
    """A test that calls the program for what it does to an argument would see nothing of it: the program has a copy."""
    nodes = run_at_once([one for one in statements if not isinstance(one, DEFINITIONS)])
    calls = [node for node in nodes if is_call(node, functions)]
    passed = {id(part) for call in calls for part in nodes_of([*call.args, *call.keywords])}
    asserted = {id(part) for node in nodes if isinstance(node, ast.Assert) for part in ast.walk(node)}
    names = [node for node in nodes if isinstance(node, ast.Name) and id(node) not in passed]
    for statement in nodes:
        if not isinstance(statement, ast.Expr) or not is_call(statement.value, functions):
            continue
        for argument in (*statement.value.args, *(keyword.value for keyword in statement.value.keywords)):
            if not isinstance(argument, ast.Name):
                continue
            later = [one for one in names if one.id == argument.id and position(one) > position(argument)]
            for name in sorted(later, key=position):
                if not isinstance(name.ctx, ast.Load):
                    break
                if id(name) in asserted:
                    called = statement.value.func.id
                    raise UnusableTests(
                        f"the tests look at {name.id} after {called}({name.id}): the program has a copy of its arguments, so "
                        f"test what {called} returns"
                    )


def position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def changed_in_place(statement: ast.stmt) -> set[str]:
    """Names whose objects the statement changes: `seen.append(x)`, `seen[i] = x`."""
    names: set[str] = set()
    for node in ast.walk(statement):
        changed: ast.expr | None = None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            changed = node.value.func.value
        elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            changed = node.value
        if isinstance(changed, ast.Name):
            names.add(changed.id)
    return names


# ---------------------------------------------------------------------------------------------------------------------
# Parts of a test text
# ---------------------------------------------------------------------------------------------------------------------


def written(statements: Sequence[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(list(statements), [])))


def argument_names(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.posonlyargs + function.args.args]


def without_program_imports(statements: Sequence[ast.stmt]) -> tuple[list[ast.stmt], dict[str, str]]:
    """The statements without `from solution import f`, and the names so imported with the program's name for each."""
    kept: list[ast.stmt] = []
    aliases: dict[str, str] = {}
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").rpartition(".")[2] == PROGRAM_MODULE:
            aliases |= {alias.asname or alias.name: alias.name for alias in statement.names if alias.name != "*"}
        elif isinstance(statement, ast.Import) and any(alias.name == PROGRAM_MODULE for alias in statement.names):
            raise UnusableTests(f"the tests import the program as a module; write `from {PROGRAM_MODULE} import ...` instead")
        else:
            kept.append(statement)
    return kept, aliases


def without_main_guard(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """What stands under `if __name__ == "__main__":` is part of the tests like the rest."""
    kept: list[ast.stmt] = []
    for statement in statements:
        guarded = isinstance(statement, ast.If) and "__name__" in loaded([statement.test])
        kept += statement.body if isinstance(statement, ast.If) and guarded else [statement]
    return kept


def missing_modules(statements: Sequence[ast.stmt], free: set[str]) -> list[str]:
    """Modules of the standard library that the tests use as the program's imports would have made them known.

    Any other free name with an attribute is an object that the program would have to hand over, and it cannot.
    """
    bases = {
        node.value.id
        for node in nodes_of(statements)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in free
    }
    for name in sorted(bases - sys.stdlib_module_names):
        raise UnusableTests(f"the tests use {name}.* and do not import {name}: put the import into the tests' setup")
    return sorted(bases)


def asserting_functions(statements: Iterable[ast.stmt]) -> set[str]:
    """Functions of the tests that can fail one: with an assert or raise in them, or a call of such a function."""
    functions = [node for node in nodes_of(statements) if isinstance(node, FUNCTIONS)]
    found: set[str] = set()
    while True:
        more = {one.name for one in functions if any(can_fail(node, found) for node in uncaught(one.body))}
        if more <= found:
            return found
        found |= more


def uncaught(statements: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """The nodes, less those under a `try` whose `except` would catch a failing assert too: such an assert fails no test."""
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
    names = ("AssertionError", "Exception", "BaseException")
    return any(one is None or (isinstance(one, ast.Name) and one.id in names) for one in kinds)


def can_fail(node: ast.AST, asserting: set[str]) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in asserting or name in ("raises", "assertRaises")
    return isinstance(node, ast.Assert | ast.Raise)


def used(statement: ast.stmt) -> set[str]:
    """Names whose earlier value the statement reads."""
    changed = {
        node.target.id for node in ast.walk(statement) if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return (loaded([statement]) - bound([statement])) | changed


def check_setup(statements: Sequence[ast.stmt], program: set[str]) -> None:
    """Setup that calls the program could be broken by it, and a broken setup is no fault of the program."""
    touching = {one.name for one in statements if isinstance(one, DEFINITIONS) and loaded([one]) & program}
    for name in sorted(loaded_by(run_at_once(statements)) & (program | touching)):
        raise UnusableTests(f"the setup of the tests calls {name}, which needs the program: move that line into the tests")


def check_imports(statements: Sequence[ast.stmt], packages: bool) -> None:
    """Checks run in a jail of their own, which has the standard library and, where asked for, installed packages."""
    for node in nodes_of(statements):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name and (packages or name.partition(".")[0] in sys.stdlib_module_names):
                continue
            raise UnusableTests(
                f"the tests import {name or 'a relative module'}; test code has the standard library, and what is installed "
                "with packages = true"
            )


def check_class(statement: ast.stmt) -> None:
    if isinstance(statement, ast.ClassDef) and any(
        isinstance(inner, FUNCTIONS) and inner.name.startswith("test") for inner in statement.body
    ):
        raise UnusableTests(f"the tests are methods of a class ({statement.name}); write them as functions or asserts")


def check_objects(statements: Sequence[ast.stmt], program: set[str]) -> None:
    """Only plain values pass between test and program, so a test cannot hand it objects of its own classes."""
    if "Solution" in program:
        raise UnusableTests(
            "the tests keep an object of the program's class Solution; write each call as Solution().method(...)"
        )
    for call in nodes_of(statements):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in program:
            continue
        for inner in nodes_of([*call.args, *call.keywords]):
            made = inner.func.id if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) else ""
            if made in program and made[0].isupper():
                raise UnusableTests(
                    f"the tests pass an object of the program's own class {made}; only plain values can be passed"
                )


# ---------------------------------------------------------------------------------------------------------------------
# Pairs
# ---------------------------------------------------------------------------------------------------------------------


class NotLiteral(Exception):
    """The expression is not built of constants alone."""


def meant_test(test: ast.expr) -> ast.expr:
    """`assert (f(x) == y, "message")` is always true in Python; its author meant the first half."""
    if isinstance(test, ast.Tuple) and len(test.elts) == 2 and isinstance(test.elts[1], ast.Constant | ast.JoinedStr):
        return test.elts[0]
    return test


def pair_of(test: ast.expr, names: Mapping[str, str]) -> CallCase | None:
    """The assertion as a call and its result, or None. `names` maps names in the test to functions of the program."""
    try:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return call_of(test.operand, names, (), "falsy")
        if isinstance(test, ast.Call):
            return call_of(test, names, (), "truthy")
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        left, right = test.left, test.comparators[0]
        if isinstance(test.ops[0], ast.Is) and is_singleton(right):
            return call_of(left, names, (right.value,), "strict")
        if isinstance(test.ops[0], ast.Eq):
            if is_call(right, names):
                left, right = right, left
            return call_of(left, names, (literal(right),), "value")
    except NotLiteral:
        pass
    return None


def is_singleton(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


class NamedCall(ast.Call):
    """For the type checker: a call of a plain name."""

    func: ast.Name


def is_call(node: ast.AST, names: Container[str]) -> TypeGuard[NamedCall]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def call_of(node: ast.expr, names: Mapping[str, str], accepted: tuple[Any, ...], rule: Rule) -> CallCase:
    if not is_call(node, names):
        raise NotLiteral
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise NotLiteral
        kwargs[keyword.arg] = literal(keyword.value)
    return CallCase(names[node.func.id], tuple(literal(argument) for argument in node.args), kwargs, accepted, rule)


MADE_OF_ONE: dict[str, Callable[[Any], Any]] = {
    "set": set, "frozenset": frozenset, "tuple": tuple, "list": list, "dict": dict, "float": float,
}  # fmt: skip


def literal(node: ast.expr) -> Any:
    """The value of a literal, in which set([...]), tuple(...), float("inf") and the like may stand too."""
    if isinstance(node, ast.Constant):
        if node.value is Ellipsis:
            raise NotLiteral
        return node.value
    try:
        if isinstance(node, ast.List):
            return [literal(item) for item in node.elts]
        if isinstance(node, ast.Tuple):
            return tuple(literal(item) for item in node.elts)
        if isinstance(node, ast.Set):
            return {literal(item) for item in node.elts}
        if isinstance(node, ast.Dict):
            if None in node.keys:
                raise NotLiteral
            return {literal(key): literal(item) for key, item in zip(node.keys, node.values, strict=True) if key is not None}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MADE_OF_ONE:
            if node.keywords or len(node.args) > 1:
                raise NotLiteral
            return MADE_OF_ONE[node.func.id](*map(literal, node.args))
        return ast.literal_eval(node)
    except (ValueError, TypeError):  # unhashable, set(5), a name
        raise NotLiteral from None
