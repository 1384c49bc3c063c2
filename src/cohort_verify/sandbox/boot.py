"""Runs inside the jail. The host passes this text to a fresh interpreter: `python -c TEXT REQUESTS REPLIES`.

It reports that it has started and waits for the setup. Then it gives up its rights (files, user, memory, system calls) and
reports that too. Only after that does the host let it read the program. It imports nothing of this package and little of the
standard library, because every run pays for the imports.

Once the program is loaded, nothing in here is trusted. It knows the arguments of a call and never the expected value.

The host sends marshal, which is safe only in that direction; this side sends JSON with type tags (see values.py).
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import sys
from _json import encode_basestring_ascii as quoted  # the C half of json, much cheaper to import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_DEPTH = 100
MAX_NODES = 300_000
SMALL_INT = 2**53
HEADER_BYTES = 4
"""As in workers.py. This text must stand alone, so it cannot import that, and encodes values itself; values.py decodes them."""


# ---------------------------------------------------------------------------------------------------------------------
# The pipe
# ---------------------------------------------------------------------------------------------------------------------


class Pipe:
    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = os.fdopen(requests, "rb"), os.fdopen(replies, "wb")

    def read(self) -> Any:
        """Return the next request, or None at the end of the stream."""
        size = int.from_bytes(self.requests.read(HEADER_BYTES), "big")
        body = self.requests.read(size)
        return marshal.loads(body) if body and len(body) == size else None

    def write(self, text: str) -> None:
        body = text.encode("ascii")
        self.replies.write(len(body).to_bytes(HEADER_BYTES, "big") + body)
        self.replies.flush()


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


class NotPlain(Exception):
    pass


def encode(value: Any) -> str:
    return encode_value(value, 0, [MAX_NODES])


def encode_value(value: Any, depth: int, left: list[int]) -> str:
    """Return a plain value as text. A subclass is written as its built-in base: the host compares values, not objects."""
    left[0] -= 1
    if depth > MAX_DEPTH or left[0] < 0:
        raise NotPlain("the value is nested too deep or too large")
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if isinstance(value, int):
        number = int.__int__(value)
        return str(number) if -SMALL_INT < number < SMALL_INT else '["i", "' + hex(number) + '"]'
    if isinstance(value, float):
        return '["f", "' + float.hex(value) + '"]'
    if isinstance(value, complex):
        return '["c", "' + float.hex(value.real) + '", "' + float.hex(value.imag) + '"]'
    if isinstance(value, str):
        return quoted(str.__str__(value) if kind is str else str.__add__(value, ""))
    if isinstance(value, bytes):
        return '["b", "' + bytes.hex(value) + '"]'
    if isinstance(value, dict):
        parts = [part for pair in dict.items(value) for part in pair]
        return encode_items("d", parts, depth, left)
    bases: tuple[tuple[type, str], ...] = ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z"))
    for base, tag in bases:
        if isinstance(value, base):
            return encode_items(tag, base.__iter__(value), depth, left)  # type: ignore[attr-defined]
    raise NotPlain("a value of type " + kind.__name__ + " is not plain")


def encode_items(tag: str, items: Iterable[Any], depth: int, left: list[int]) -> str:
    return "[" + ", ".join(['"' + tag + '"', *(encode_value(item, depth + 1, left) for item in items)]) + "]"


def describe_error(problem: BaseException) -> str:
    """Return (class name, message, nearest built-in class) of an exception as JSON text. Its __str__ may be hostile."""
    try:
        message = str(problem)[:2000]
    except BaseException:
        message = ""
    built_in = next((kind.__name__ for kind in type(problem).__mro__ if kind.__module__ == "builtins"), "Exception")
    return ", ".join(map(quoted, (str(type(problem).__name__)[:200], message, str(built_in)[:200])))


# ---------------------------------------------------------------------------------------------------------------------
# Giving up rights
# ---------------------------------------------------------------------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SIGKILL = 9


def require(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what + ": " + os.strerror(ctypes.get_errno()))
    return result


def confine(setup: dict[str, Any]) -> None:
    """Apply all restrictions. If one fails, this raises and the host runs nothing.

    "unsafe", which the user has to request, applies only the resource limits.
    """
    os.umask(0o077)
    # Before the user changes: the new one may not be able to enter these folders.
    open_folders = hold_folders(setup) if setup["hold_folders"] else {}
    ruleset = make_ruleset(setup["landlock"]) if setup["landlock"] else None
    if setup["tmpfs"]:
        # Mounted here because bubblewrap cannot limit the number of files.
        options = setup["tmpfs"].encode()
        require(LIBC.mount(b"tmpfs", setup["scratch"].encode(), b"tmpfs", 2 | 4 | 8, options), "mount")  # nosuid, nodev, noexec
    for limit, value in setup["limits"].items():
        try:
            resource.setrlimit(getattr(resource, limit), (value, value))
        except (AttributeError, OSError, ValueError):
            if not setup["unsafe"]:
                raise
    if not setup["unsafe"]:
        drop_rights(setup, ruleset)
    os.chdir(setup["scratch"])
    sys.path += setup["path"]
    setup["modules"] = import_from_held_folders(open_folders, setup["modules"])
    if not setup["unsafe"]:
        install_filter(setup["filter"])


def drop_rights(setup: dict[str, Any], ruleset: int | None) -> None:
    if setup["user"] is not None:
        os.setgroups([])
        os.setresgid(setup["user"], setup["user"], setup["user"])
        os.setresuid(setup["user"], setup["user"], setup["user"])
    no_capabilities = ctypes.byref((ctypes.c_uint32 * 6)())
    require(LIBC.capset(ctypes.byref((ctypes.c_uint32 * 2)(0x20080522, 0)), no_capabilities), "capset")
    # Needed for paths through /proc/self, and for the host to look at the open files. The change of user has switched it off.
    require(LIBC.prctl(PR_SET_DUMPABLE, int(setup["dumpable"]), 0, 0, 0), "dumpable")
    require(LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "dying with the parent")
    if setup["parent"] is not None and os.getppid() != setup["parent"]:
        raise OSError("the parent has ended")
    require(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if ruleset is not None:
        require(LIBC.syscall(RESTRICT_SELF, ruleset, 0), "landlock")
        os.close(ruleset)


def install_filter(code: bytes) -> None:
    program = ctypes.create_string_buffer(code, len(code))

    class FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    given = FilterProgram(len(code) // 8, ctypes.cast(program, ctypes.c_void_p))
    require(LIBC.prctl(PR_SET_SECCOMP, 2, ctypes.byref(given), 0, 0), "seccomp")


CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446


def make_ruleset(rules: dict[str, Any]) -> int:
    """Return a ruleset that refuses all accesses except below the folders in `rules`."""
    handled = ctypes.create_string_buffer(rules["handled"])
    ruleset = require(LIBC.syscall(CREATE_RULESET, handled, len(rules["handled"]), 0), "landlock ruleset")
    for path, rights in rules["allowed"]:
        try:
            where = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rule = ctypes.create_string_buffer(
            rights.to_bytes(8, sys.byteorder) + where.to_bytes(4, sys.byteorder, signed=True), 12
        )
        require(LIBC.syscall(ADD_RULE, ruleset, 1, rule, 0), "landlock rule for " + path)
        os.close(where)
    return ruleset


def hold_folders(setup: dict[str, Any]) -> dict[str, int]:
    """Open the folders that modules are imported from, while that is still allowed.

    After the change of user an interpreter in a private home folder is out of reach by path, but still readable through an open
    descriptor.
    """
    folders = {}
    for folder in [*sys.path, *setup["path"], *setup["modules"].values()]:
        if os.path.isdir(folder):
            folders[folder] = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    return folders


def import_from_held_folders(open_folders: dict[str, int], modules: dict[str, str]) -> dict[str, str]:
    """Import through the descriptors where folders are out of reach. Returns the folders of the single packages."""
    moved = {folder: f"/proc/self/fd/{where}" for folder, where in open_folders.items() if not os.access(folder, os.R_OK)}
    if not moved:
        return modules
    sys.path[:] = [moved.get(folder, folder) for folder in sys.path]
    for module in list(sys.modules.values()):
        for folder, new in moved.items():
            if getattr(module, "__path__", None):
                module.__path__ = [new + at[len(folder) :] if at.startswith(folder) else at for at in module.__path__]
    return {name: moved.get(folder, folder) for name, folder in modules.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Jobs
# ---------------------------------------------------------------------------------------------------------------------


def make_module(name: str) -> Any:
    module = type(sys)(name)
    sys.modules[name] = module
    return module


def load(pipe: Pipe, job: Callable[[], Any]) -> bool:
    """Run a job that loads code, report the outcome to the host, and return whether it succeeded."""
    try:
        job()
    except BaseException as problem:
        pipe.write('["load", ' + describe_error(problem) + "]")
        return False
    pipe.write('["loaded"]')
    return True


def answer_calls(pipe: Pipe, setup: dict[str, Any]) -> None:
    """Load the program as a module, then call its functions as requested."""
    module = make_module("program")
    if not load(pipe, lambda: exec(compile(setup["program"], "program.py", "exec"), module.__dict__)):
        return
    while (request := pipe.read()) is not None:
        pipe.write(reply_to(module, *request))
        flush_output()


def reply_to(module: Any, name: str, args: Any, kwargs: Any) -> str:
    try:
        value = find_function(module, name)(*args, **kwargs)
        if hasattr(type(value), "__await__"):
            import asyncio

            value = asyncio.run(await_value(value))
    except BaseException as problem:
        return '["raised", ' + describe_error(problem) + "]"
    try:
        return '["value", ' + encode(value) + "]"
    except NotPlain as problem:
        return '["raised", ' + describe_error(problem) + "]"
    except BaseException as problem:
        return '["raised", "NotPlain", ' + quoted("the value cannot be read: " + type(problem).__name__) + ', "Exception"]'


async def await_value(value: Any) -> Any:
    return await value


def find_function(module: Any, name: str) -> Any:
    """Return the function of that name; for "Solution.solve", the method of a new Solution."""
    first, *rest = name.split(".")
    if first not in module.__dict__:
        raise NameError("the program defines no " + first)
    target = module.__dict__[first]
    for part in rest:
        target = getattr(target() if isinstance(target, type) else target, part)
    return target


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105
            stream.flush()
        except BaseException:
            pass


def run_script(pipe: Pipe, setup: dict[str, Any]) -> None:
    """Run the program as __main__. From then on it owns the process, its standard input and its exit status."""
    main = make_module("__main__")
    main.__dict__.update(__file__="program.py", __builtins__=__builtins__)
    vars(__builtins__).update(exit=sys.exit, quit=sys.exit)  # `site` would have added these, and contest programs use them
    sys.argv[:] = ["program.py"]
    pipe.requests.close()
    pipe.replies.close()
    exec(compile(setup["program"], "program.py", "exec"), main.__dict__)


def make_checks(pipe: Pipe, setup: dict[str, Any]) -> None:
    """Run trusted test code. Its `candidate` is a proxy: each call goes to the host, which passes it on to another jail."""
    calls = [0]
    namespace = make_module("tests").__dict__
    builtin = {name: kind for name, kind in vars(__builtins__).items() if isinstance(kind, type)}

    def proxy(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = encode([list(args), kwargs])  # raises NotPlain, the test's fault, before the call counts
            calls[0] += 1
            pipe.write('["call", ' + quoted(name) + ", " + arguments + "]")
            word, content, detail = pipe.read()
            if word == "value":
                return content
            kind = builtin.get(content)
            if word == "raised" and kind is not None and issubclass(kind, Exception):
                raise kind(detail)
            raise RuntimeError(str(content) + ": " + str(detail))

        return call

    def prepare() -> None:
        exec(compile(setup["program"], "tests.py", "exec"), namespace)
        namespace.update({alias: proxy(name) for alias, name in setup["proxies"].items()})

    if not load(pipe, prepare):
        return
    while (check := pipe.read()) is not None:
        calls[0] = 0
        try:
            exec(compile(check, "check.py", "exec"), namespace)
            passed, detail = "true", '"", "", ""'
        except AssertionError as problem:
            passed, detail = "false", describe_error(problem)
        except BaseException as problem:
            # Before the first call the test itself is at fault.
            passed, detail = ("false" if calls[0] else "null"), describe_error(problem)
        pipe.write('["check", ' + passed + ", " + detail + "]")


def serve_messages(pipe: Pipe, setup: dict[str, Any]) -> None:
    """Run a long-lived worker: one function of an installed module, one JSON message at a time."""
    import importlib.util
    import json

    class SinglePackages:
        """Finds packages by their own folders, because the folder above them cannot be listed."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            folder = setup["modules"].get(name)
            if folder is None:
                return None
            file = folder + "/__init__.py"
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[folder])

    sys.meta_path.insert(0, SinglePackages())
    module, _, name = setup["program"].partition(":")
    functions: list[Callable[..., Any]] = []
    if not load(pipe, lambda: functions.append(getattr(importlib.import_module(module), name))):
        return
    while (request := pipe.read()) is not None:
        try:
            reply = '["value", ' + json.dumps(functions[0](json.loads(request))) + "]"
        except BaseException as problem:
            reply = '["raised", ' + describe_error(problem) + "]"
        pipe.write(reply)
        flush_output()


def main() -> None:
    pipe = Pipe(int(sys.argv[1]), int(sys.argv[2]))
    pipe.write('["here"]')  # the host can look up this process now, because it waits here
    setup = pipe.read()
    try:
        confine(setup)
    except BaseException as problem:
        pipe.write('["refused", ' + describe_error(problem) + "]")
        os._exit(1)
    jobs = {"calls": answer_calls, "script": run_script, "checks": make_checks, "worker": serve_messages}
    pipe.write('["ready"]')
    pipe.read()  # nothing of the program has run so far, and the host knows that
    jobs[setup["job"]](pipe, setup)


if __name__ == "__main__":
    main()
