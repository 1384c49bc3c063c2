"""Turns test code into cases: pairs of a call and its result where both are literals, checks for the rest.

    assert add(1, 2) == 3                     ->  call add(1, 2), expect 3; the 3 never leaves the host
    assert abs(half(1) - 0.5) < 1e-6          ->  a check: trusted code, run apart from the program
    def check(candidate): ...                 ->  each of its asserts one of the two above

Test code is trusted, but it is only read here, not run: literals are rebuilt from the syntax tree. It is split into single
asserts so that a program can pass a fraction of them. Where splitting could change the meaning (a `return` among the asserts, a
loop that sets a variable used later), the whole function is one check.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from cohort_verify.code import syntax
from cohort_verify.code.compare import Rule
from cohort_verify.code.format import find_prefix_head
from cohort_verify.code.suite import CallCase, Suite, UnusableTests
from cohort_verify.code.syntax import DEFINITIONS, FUNCTIONS, find_bound, find_loaded, is_call, walk_all


def find_meant_test(test: ast.expr) -> ast.expr:
    """Return f(x) == y of `assert (f(x) == y, "message")`, which Python always accepts."""
    match test:
        case ast.Tuple([meant, ast.Constant() | ast.JoinedStr()]):
            return meant
    return test


def read_pair(test: ast.expr, names: Mapping[str, str]) -> CallCase | None:
    """Return the assertion as a call and its result, or None. `names` maps names in the test to functions of the program."""
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
    """Return the value of a literal, which may contain set([...]), tuple(...), float("inf") and the like; raises ValueError
    otherwise.
    """
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


# ---------------------------------------------------------------------------------------------------------------------
# Reading a test text
# ---------------------------------------------------------------------------------------------------------------------

LEAVES_FUNCTION = (ast.Return, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal, ast.Await)
PROGRAM_MODULE = "solution"
"""The name under which test files import the program."""
NO_NAMES: Mapping[str, str] = {}


def read_code(text: str, entry_point: str = "", prefix: str = "", setup: str = "", packages: bool = False) -> Suite:
    """Read the cases of a test text. `setup` is trusted code before it, `prefix` the start of the program in the prompt.

    packages: the test code may import installed packages, not only the standard library.
    """
    try:
        return CodeReader(text, entry_point, prefix, setup, packages).read()
    except RecursionError:
        raise UnusableTests("the test code is nested too deep") from None


def parse_statements(text: str, what: str) -> list[ast.stmt]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError) as problem:
        raise UnusableTests(f"{what} is not Python ({problem})") from None
    return [MethodsAsFunctions().visit(statement) for statement in tree.body]


class MethodsAsFunctions(ast.NodeTransformer):
    """Rewrites `Solution().f(x)` as a call of f. The jail creates the object (see format.find_callable_name)."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if is_call(node.value, ("Solution",)) and not node.value.args:
            return ast.copy_location(ast.Name(node.attr, node.ctx), node)
        return node


class CodeReader:
    """Reads one test text. `program` holds the names that only the program can define."""

    def __init__(self, text: str, entry_point: str, prefix: str, setup: str, packages: bool) -> None:
        self.entry_point, self.packages = entry_point, packages
        self.calls: list[CallCase] = []
        self.checks: list[str] = []
        self.proxies: dict[str, str] = {}
        helpers = parse_statements(find_prefix_head(prefix, entry_point), "the start of program_prefix") if entry_point else []
        before = [*helpers, *parse_statements(setup, "the setup of the tests")]
        statements, self.aliases = split_program_imports(parse_statements(text, "the test text"))
        self.statements = open_main_guard(statements)
        self.everything = everything = [*before, *self.statements]
        free = find_loaded(everything) - find_bound(everything) - set(dir(builtins))
        modules = find_missing_modules(everything, free)
        self.program = (free - set(modules)) | set(self.aliases)
        if entry_point and entry_point not in find_bound(before):
            self.program.add(entry_point)
        self.targets = {name: self.aliases.get(name, name) for name in sorted(self.program)}
        """Name in the tests -> name in the program."""
        check_setup(before, self.program)
        check_objects(everything, self.program)
        self.setup: list[ast.stmt] = [*ast.parse("\n".join(f"import {name}" for name in modules)).body, *before]
        self.prelude: list[ast.stmt] = []
        """Statements between the asserts that call the program. They run again before every later check."""
        self.functions = {one.name: one for one in self.statements if isinstance(one, ast.FunctionDef)}
        self.asserting = syntax.find_asserting(everything)
        self._tainted: dict[frozenset[str], set[str]] = {}

    def read(self) -> Suite:
        uncalled = self._find_uncalled_tests()
        for body in (self.statements, *(function.body for function in self.functions.values())):
            check_copies(body, self.program)
        for statement in self.statements:
            if isinstance(statement, DEFINITIONS):
                check_class(statement)
                self.setup.append(statement)
            elif called := self._read_test_call(statement):
                self._split_function(*called)
            elif self._decides(statement):
                self._read_statement(statement)
            elif find_loaded([statement]) & (self.program | set(self.functions) | find_bound(self.prelude)):
                self.prelude.append(statement)
            elif not isinstance(statement, ast.Expr):
                self.setup.append(statement)
        for function, renamed in uncalled:
            self._split_function(function, renamed)
        if not self.calls and not self.checks:
            raise UnusableTests("the tests assert nothing about the program")
        if not self.checks:
            return Suite(tuple(self.calls))
        check_imports([*self.setup, *self.statements], self.packages)
        proxies = self.targets | self.proxies
        iterate = Iterate(set(proxies))
        return Suite(
            calls=tuple(self.calls),
            checks=tuple(map(iterate.rewrite_code, self.checks)),
            setup=iterate.rewrite_code(syntax.write_code(self.setup)),
            proxies=proxies,
            iterated=tuple(sorted(iterate.iterated)),
        )

    # -----------------------------------------------------------------------------------------------------------------
    # Functions that hold the asserts
    # -----------------------------------------------------------------------------------------------------------------

    def _find_uncalled_tests(self) -> list[tuple[ast.FunctionDef, dict[str, str]]]:
        """Return check(candidate) and test_*() if the text does not call them itself, with the values of their arguments."""
        called = {
            one.value.func.id for one in self.statements if isinstance(one, ast.Expr) and is_call(one.value, self.functions)
        }
        tests = []
        for name, function in self.functions.items():
            if name in called or not (name == "check" or name.startswith("test_")):
                continue
            arguments = syntax.list_parameters(function)
            if function.decorator_list or len(arguments) != (name == "check"):
                raise UnusableTests(f"the test function {name} needs decorators or arguments that only a test runner supplies")
            if arguments and not self.entry_point:
                raise UnusableTests(
                    f"the tests define {name}({arguments[0]}), but nothing says which function to pass: give the rows a "
                    f"column entry_point, or end the text with a call such as {name}(add)"
                )
            tests.append((function, dict.fromkeys(arguments, self.entry_point)))
        return tests

    def _read_test_call(self, statement: ast.stmt) -> tuple[ast.FunctionDef, dict[str, str]] | None:
        """Return the function of a line such as `check(add)` or `test_add()`, with the values of its arguments."""
        match statement:
            case ast.Expr(ast.Call(ast.Name(name), args, [])) if name in self.functions and name in self.asserting:
                parameters = syntax.list_parameters(self.functions[name])
                given = [self.targets[one.id] for one in args if isinstance(one, ast.Name) and one.id in self.program]
                if len(parameters) == len(given) == len(args):
                    return self.functions[name], dict(zip(parameters, given, strict=True))
        return None

    def _split_function(self, function: ast.FunctionDef, renamed: Mapping[str, str]) -> None:
        """Turn the asserts of a function into separate cases; `renamed` maps its arguments to functions of the program."""
        check_copies(function.body, set(renamed))
        if not self._can_split(function):
            self._add_check(ast.parse(f"{function.name}({', '.join(renamed)})").body, renamed)
            return
        local: list[ast.stmt] = []
        for statement in function.body:
            if self._decides(statement):
                self._read_statement(statement, renamed, local)
            elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                local.append(statement)

    def _can_split(self, function: ast.FunctionDef) -> bool:
        """Return whether every assert means the same without the asserts and loops before it."""
        if any(isinstance(node, LEAVES_FUNCTION) for node in syntax.walk_at_once(function.body)):
            return False
        handed_on: set[str] = set()
        for statement in function.body:
            if syntax.find_used(statement) & handed_on:
                return False
            if self._decides(statement):
                handed_on |= find_bound([statement]) | syntax.find_changed(statement)
        return any(map(self._decides, function.body))

    # -----------------------------------------------------------------------------------------------------------------
    # Cases
    # -----------------------------------------------------------------------------------------------------------------

    def _decides(self, statement: ast.stmt) -> bool:
        """Return whether the statement can fail a test: it contains an assert, or calls a function that does."""
        nodes = syntax.walk_uncaught([statement])
        return not isinstance(statement, DEFINITIONS) and any(syntax.can_fail(node, self.asserting) for node in nodes)

    def _read_statement(
        self, statement: ast.stmt, renamed: Mapping[str, str] = NO_NAMES, local: Sequence[ast.stmt] = ()
    ) -> None:
        """Read a statement that can fail: as a pair if it is a suitable assert, else as a check."""
        if isinstance(statement, ast.Assert):
            test = find_meant_test(statement.test)
            statement = ast.copy_location(ast.Assert(test, statement.msg), statement)
            # A variable of the test may have the name of one of the program's functions.
            variables = find_bound([*self.prelude, *local])
            names = {name: target for name, target in {**self.targets, **renamed}.items() if name not in variables}
            if case := read_pair(test, names):
                self.calls.append(case)
                return
        self._add_check([statement], renamed, local)

    def _add_check(self, statements: Sequence[ast.stmt], renamed: Mapping[str, str], local: Sequence[ast.stmt] = ()) -> None:
        for name, target in renamed.items():
            if self.proxies.setdefault(name, target) != target:
                raise UnusableTests(f"the tests use {name} for two functions, {self.proxies[name]} and {target}")
        functions = frozenset(self.program.union(renamed))
        if functions not in self._tainted:
            self._tainted[functions] = syntax.find_tainted(self.everything, functions)
        if not syntax.reaches_program(statements, functions, syntax.find_tainted(local, functions, self._tainted[functions])):
            return  # its outcome does not depend on the program, so it must not count
        if local:  # keep them in a function, so that the next check does not see their variables
            wrapper = ast.parse(f"def _check_{len(self.checks)}():\n    pass\n_check_{len(self.checks)}()").body
            assert isinstance(wrapper[0], ast.FunctionDef)
            wrapper[0].body = [*local, *statements]
            statements = wrapper
        self.checks.append(syntax.write_code([*self.prelude, *statements]))


# ---------------------------------------------------------------------------------------------------------------------
# Values to iterate over
# ---------------------------------------------------------------------------------------------------------------------

ITERATED = "_iterated_"
TAKES_ITERABLE = ("list", "tuple", "set", "frozenset", "sorted", "sum", "min", "max")


class Iterate(ast.NodeTransformer):
    """Rewrites `list(f(x))` to ask the jail for a list of the items: a generator, range or deque is not plain, but its items
    may be.

    Only where the test iterates over all items, so that no program passes that would fail in Python.
    """

    def __init__(self, proxies: set[str]) -> None:
        self.proxies = proxies
        self.names: set[str] = set()
        self.iterated: set[str] = set()

    def rewrite_code(self, code: str) -> str:
        if not any(f"{word}(" in code for word in TAKES_ITERABLE):
            return code
        tree = ast.parse(code)
        self.names = self.proxies - find_bound([tree])
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
# Parts of a test text
# ---------------------------------------------------------------------------------------------------------------------


def split_program_imports(statements: Sequence[ast.stmt]) -> tuple[list[ast.stmt], dict[str, str]]:
    """Remove `from solution import f`; returns the statements and the imported names with the program's name for each."""
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


def open_main_guard(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Move the statements under `if __name__ == "__main__":` to the top level."""
    kept: list[ast.stmt] = []
    for statement in statements:
        guarded = isinstance(statement, ast.If) and "__name__" in find_loaded([statement.test])
        kept += statement.body if isinstance(statement, ast.If) and guarded else [statement]
    return kept


def find_missing_modules(statements: Sequence[ast.stmt], free: set[str]) -> list[str]:
    """Return the standard library modules that the tests use without importing them, relying on the program's imports.

    Any other unbound name with an attribute is an object that the program cannot pass through the pipe.
    """
    bases = syntax.pick_loaded(node.value for node in walk_all(statements) if isinstance(node, ast.Attribute)) & free
    for name in sorted(bases - sys.stdlib_module_names):
        raise UnusableTests(f"the tests use {name}.* and do not import {name}: put the import into the tests' setup")
    return sorted(bases)


# ---------------------------------------------------------------------------------------------------------------------
# Unsupported tests
# ---------------------------------------------------------------------------------------------------------------------


def check_copies(statements: Sequence[ast.stmt], functions: set[str]) -> None:
    """Refuse tests that look at how a call changes its argument: the program gets a copy."""
    nodes = list(syntax.walk_at_once(one for one in statements if not isinstance(one, DEFINITIONS)))
    passed = {id(part) for call in nodes if is_call(call, functions) for part in walk_all([*call.args, *call.keywords])}
    asserted = {id(part) for node in nodes if isinstance(node, ast.Assert) for part in ast.walk(node)}
    names = sorted((one for one in nodes if isinstance(one, ast.Name) and id(one) not in passed), key=syntax.find_position)
    for call in [node.value for node in nodes if isinstance(node, ast.Expr)]:
        if not is_call(call, functions):
            continue
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        for argument in (one for one in given if isinstance(one, ast.Name)):
            later = [
                one for one in names if one.id == argument.id and syntax.find_position(one) > syntax.find_position(argument)
            ]
            if any(id(one) in asserted for one in takewhile(lambda one: isinstance(one.ctx, ast.Load), later)):
                called, name = call.func.id, argument.id
                raise UnusableTests(
                    f"the tests look at {name} after {called}({name}): the program has a copy of its arguments, so "
                    f"test what {called} returns"
                )


def check_setup(statements: Sequence[ast.stmt], program: set[str]) -> None:
    """Refuse setup code that calls the program: the program could break it, and would not be blamed."""
    touching = {one.name for one in statements if isinstance(one, DEFINITIONS) and find_loaded([one]) & program}
    for name in sorted(syntax.pick_loaded(syntax.walk_at_once(statements)) & (program | touching)):
        raise UnusableTests(f"the setup of the tests calls {name}, which needs the program: move that line into the tests")


def check_imports(statements: Sequence[ast.stmt], packages: bool) -> None:
    """Refuse imports that the checks' jail does not have: it has the standard library, and installed packages if enabled."""
    for node in walk_all(statements):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if not name or not (packages or name.partition(".")[0] in sys.stdlib_module_names):
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
    """Refuse tests that pass objects of their own classes: only plain values reach the program."""
    if "Solution" in program:
        raise UnusableTests(
            "the tests keep an object of the program's class Solution; write each call as Solution().method(...)"
        )
    classes = {name for name in program if name[0].isupper()}
    for call in walk_all(statements):
        if is_call(call, program):
            for inner in walk_all([*call.args, *call.keywords]):
                if is_call(inner, classes):
                    raise UnusableTests(
                        f"the tests pass an object of the program's own class {inner.func.id}; only plain values can be passed"
                    )
