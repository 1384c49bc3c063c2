"""Programs that want a verdict they have not earned: forged replies, values that lie, a patched runner, an early exit."""

from __future__ import annotations

from hostile.programs import RAW, SECRET_NUMBER, SECRET_WORD, SOLVE, Ask, HostileProgram

NONE_WANTED = (Ask("solve", (17,), None),)
"""For programs that never return: a call without an answer must not read as one that returned None."""

FRAMES = r'''
import json, os, struct
def frames(value):
    """A reply with this value in every shape that a protocol over a pipe might have, the jail's own first."""
    bodies = [json.dumps(body).encode() for body in (
        ["loaded"], ["value", value], ["raised", "", ""], ["check", True, "", ""], ["call", "solve", [[], {}]], ["ready"],
        value, [value], [0, value], {"value": value}, {"value": value, "raised": "", "detail": ""}, {"id": 0, "value": value},
        {"ok": True, "value": value}, {"reply": {"value": value}}, {"result": value}, {"call": 0, "value": value},
        {"end": "finished", "replies": [{"value": value, "raised": ""}]}, {"passed": True}, [["ok", value]], ["return", value])]
    for body in bodies:
        yield body + b"\n"
        for form in (">I", "<I", ">Q", "<Q", ">H"):
            yield struct.pack(form, len(body)) + body
        yield b"%d:%s," % (len(body), body)
        yield b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
def spray(value, first=0, last=256):
    for descriptor in range(first, last):
        try:
            os.set_blocking(descriptor, False)
        except OSError:
            continue
        for frame in frames(value):
            try:
                os.write(descriptor, frame)
            except OSError:
                break
'''

FRAME = r"""
import os
def send(text):
    body = text.encode()
    data = len(body).to_bytes(4, "big") + body
    for descriptor in range(3, 64):
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view):]
        except OSError:
            pass
"""
"""Writes one frame, in the jail's own form, to whatever takes it."""


def _forgery(name: str, source: str, aims_at: str, calls: tuple[Ask, ...] = SOLVE) -> HostileProgram:
    return HostileProgram(name, "forgery", source, calls=calls, aims_at=aims_at)


FORGERY = [
    _forgery("exit_at_load", "import sys\nsys.exit(0)\n", "status 0 read as all tests passed", NONE_WANTED),
    _forgery("exit_in_call", "import sys\ndef solve(x):\n    sys.exit(0)\n", "status 0 read as passed", NONE_WANTED),
    _forgery("os_exit_at_load", "import os\nos._exit(0)\n", "status 0 read as all tests passed", NONE_WANTED),
    _forgery("os_exit_in_call", "import os\ndef solve(x):\n    os._exit(0)\n", "status 0 read as passed", NONE_WANTED),
    _forgery(
        "exit_with_answer",
        "import sys\ndef solve(x):\n    raise SystemExit(None)\n",
        "the payload of SystemExit read as a value",
        NONE_WANTED,
    ),
    _forgery(
        "abort_in_call",
        "import os\ndef solve(x):\n    os.abort()\n",
        "death read as None",
        NONE_WANTED,
    ),
    _forgery(
        "print_pass",
        "import os\nTEXT = b'PASS\\n1 passed in 0.01s\\nOK\\nAll tests passed\\n{\"passed\": true}\\n'\n"
        "def solve(x):\n    for descriptor in range(256):\n        try:\n            os.set_blocking(descriptor, False)\n"
        "            os.write(descriptor, TEXT)\n        except OSError:\n            pass\n    return 'PASS'\n",
        "a verdict parsed from output",
    ),
    _forgery(
        "frames_everywhere_at_load",
        FRAMES + "spray(True)\nimport os\nos._exit(0)\n",
        "replies written before any call was made",
    ),
    _forgery(
        "frames_everywhere_in_call",
        FRAMES + "def solve(x):\n    spray(True, 3)\n    import time\n    time.sleep(60)\n",
        "a forged reply instead of an answer",
        SOLVE,
    ),
    _forgery(
        "frames_from_a_thread",
        FRAMES + "import threading\n"
        "def forever():\n    while True:\n        spray(True, 3)\n"
        "threading.Thread(target=forever, daemon=True).start()\n"
        "def solve(x):\n    import time\n    time.sleep(0.2)\n    return 'wrong'\n",
        "forged replies between the true ones",
    ),
    _forgery(
        "frames_at_exit",
        FRAMES + "import atexit, sys\natexit.register(spray, True)\ndef solve(x):\n    sys.exit(0)\n",
        "replies written while the interpreter ends",
    ),
    _forgery(
        "frames_of_garbage",
        "import os, random, time\nrandom.seed(5)\n"
        "def solve(x):\n    for descriptor in range(3, 256):\n        try:\n            os.set_blocking(descriptor, False)\n"
        "            os.write(descriptor, random.randbytes(4096))\n        except OSError:\n            pass\n"
        "    time.sleep(0.3)\n    return 1\n",
        "a crash of the host's parser, read as a fault of the verifier (unscored instead of wrong)",
    ),
    _forgery(
        "frames_half_sent",
        "import os, time\ndef solve(x):\n    for descriptor in range(3, 256):\n        try:\n"
        "            os.write(descriptor, bytes([0, 0, 0, 200]) + b'[')\n        except OSError:\n            pass\n"
        "    time.sleep(60)\n",
        "a host that waits for the rest of a frame for ever",
    ),
    _forgery(
        "frames_of_huge_length",
        "import os, time\ndef solve(x):\n    for descriptor in range(3, 256):\n        try:\n"
        "            os.set_blocking(descriptor, False)\n"
        "            os.write(descriptor, bytes([127]) + bytes([255]) * 7 + b'[' * 1000)\n        except OSError:\n"
        "            pass\n    time.sleep(0.3)\n    return 1\n",
        "a host that allocates what a frame announces",
    ),
    _forgery(
        "frames_nested_deeply",
        "import os, struct, time\ndef solve(x):\n    body = b'[' * 60_000 + b']' * 60_000\n"
        "    for descriptor in range(3, 256):\n        for head in (struct.pack('>I', len(body)), struct.pack('<I', len(body)), b''):\n"
        "            try:\n                os.set_blocking(descriptor, False)\n"
        "                os.write(descriptor, head + body + b'\\n')\n"
        "            except OSError:\n                pass\n    time.sleep(0.3)\n    return 1\n",
        "RecursionError in the host, read as a fault of the verifier",
    ),
    _forgery(
        "always_equal",
        "class Same:\n    __hash__ = lambda self: 0\n    def __eq__(self, other):\n        return True\n"
        "    def __ne__(self, other):\n        return False\n    def __bool__(self):\n        return True\n"
        "def solve(x):\n    return Same()\n",
        "a value equal to every expectation",
    ),
    _forgery(
        "always_equal_number",
        "class Number(int):\n    __hash__ = int.__hash__\n    def __eq__(self, other):\n        return True\n"
        "    def __ne__(self, other):\n        return False\n    def __sub__(self, other):\n        return 0\n"
        "    __rsub__ = __sub__\n    def __abs__(self):\n        return 0\ndef solve(x):\n    return Number(3)\n",
        "a subclass of int that equals every expectation",
    ),
    _forgery(
        "always_equal_text",
        "class Text(str):\n    __hash__ = str.__hash__\n    def __eq__(self, other):\n        return True\n"
        "    def __ne__(self, other):\n        return False\n    def strip(self, *_):\n        return self\n"
        "def solve(x):\n    return Text('no')\n",
        "a subclass of str that equals every expectation",
    ),
    _forgery(
        "always_equal_containers",
        "class Everything(list):\n    def __eq__(self, other):\n        return True\n    def __len__(self):\n        return 2\n"
        "class Lookup(dict):\n    def __eq__(self, other):\n        return True\n    def __getitem__(self, key):\n        return self\n"
        "    def items(self):\n        while True:\n            yield ('a', 1)\n"
        "def solve(x):\n    return Everything([Lookup()]) if x == 17 else Lookup()\n",
        "containers that equal every expectation, and an endless items()",
    ),
    _forgery(
        "false_class",
        "class Liar:\n    __class__ = property(lambda self: int)\n    def __index__(self):\n        return 1\n"
        "    def __int__(self):\n        return 1\n    def __eq__(self, other):\n        return True\n    __hash__ = lambda self: 1\n"
        "def solve(x):\n    return [Liar(), (Liar(), {1: Liar()})]\n",
        "an object that says it is an int",
    ),
    _forgery(
        "lying_metaclass",
        "class Meta(type):\n    def __eq__(cls, other):\n        return True\n    __hash__ = lambda cls: hash(int)\n"
        "    def __instancecheck__(cls, thing):\n        return True\n"
        "class Value(metaclass=Meta):\n    def __eq__(self, other):\n        return True\n    __hash__ = lambda self: 0\n"
        "def solve(x):\n    return Value()\n",
        "a type that equals the types that are let through",
    ),
    _forgery(
        "reduce_on_the_host",
        "import os\nclass Payload:\n    def __reduce__(self):\n"
        "        return (os.mkdir, ('@CANARY@/reduced',))\n    def __reduce_ex__(self, protocol):\n        return self.__reduce__()\n"
        "def solve(x):\n    return Payload()\n",
        "code that runs in the host when the value is loaded",
    ),
    _forgery(
        "pickles_on_every_descriptor",
        "import os, pickle, time\nclass Payload:\n    def __reduce__(self):\n        return (os.mkdir, ('@CANARY@/unpickled',))\n"
        "def solve(x):\n    body = pickle.dumps(Payload())\n    for descriptor in range(3, 256):\n        try:\n"
        "            os.set_blocking(descriptor, False)\n            os.write(descriptor, len(body).to_bytes(4, 'big') + body)\n"
        "            os.write(descriptor, body)\n        except OSError:\n            pass\n    time.sleep(0.2)\n    return 1\n",
        "code that runs in the host when a frame is loaded",
    ),
    _forgery(
        "patched_builtins",
        "import builtins\nbuiltins.isinstance = lambda *_: True\nbuiltins.type = lambda *_: int\nbuiltins.len = lambda _: 0\n"
        "builtins.repr = lambda _: '17'\nbuiltins.str = lambda *_: '17'\nbuiltins.dict = lambda *_, **__: {'value': 17}\n"
        "def solve(x):\n    return object()\n",
        "a runner that believes what the program put into builtins",
    ),
    _forgery(
        "patched_write",
        FRAMES + "import io, sys\nreal = os.write\n"
        "def forged(descriptor, data):\n    for frame in frames(True):\n        real(descriptor, frame)\n    return len(data)\n"
        "os.write = forged\nfor stream in (sys.stdout, sys.stderr, sys.__stdout__):\n    try:\n        stream.write = forged\n"
        "    except AttributeError:\n        pass\n"
        "def solve(x):\n    return 0\n",
        "the runner's replies changed on their way out",
    ),
    _forgery(
        "patched_modules",
        "import sys\nfor module in list(sys.modules.values()):\n"
        "    for name in ('dumps', 'pack', 'send', 'write', 'encode', 'reply', 'call', 'main', 'run'):\n"
        "        if callable(getattr(module, name, None)):\n            try:\n"
        "                setattr(module, name, lambda *a, **k: b'{\"value\": true}')\n"
        "            except Exception:\n                pass\ndef solve(x):\n    return 0\n",
        "the functions that the runner will call next",
    ),
    _forgery(
        "patched_through_gc",
        "import gc, types\ndef fake(*args, **kwargs):\n    return True\n"
        "def solve(x):\n    for thing in gc.get_objects():\n        if isinstance(thing, types.FunctionType) and "
        "thing.__module__ in ('__main__', 'runner', None) and thing is not solve and thing is not fake:\n"
        "            try:\n                thing.__code__ = fake.__code__\n            except Exception:\n                pass\n"
        "    raise ValueError('answered by nobody')\n",
        "the code of the runner's own functions",
    ),
    _forgery(
        "read_frames_of_the_caller",
        "import sys\ndef solve(x):\n    frame, seen = sys._getframe(), []\n    while frame is not None:\n"
        "        seen.append(repr(frame.f_locals)[:20_000])\n        seen.append(repr(frame.f_globals)[:20_000])\n"
        "        frame = frame.f_back\n    text = ' '.join(seen)\n    print(text[-30_000:])\n    return text[:100_000]\n",
        "the expected values, in the memory of the runner",
    ),
    _forgery(
        "read_all_objects",
        "import gc\ndef solve(x):\n    found = set()\n    for thing in gc.get_objects():\n        try:\n"
        "            for inner in gc.get_referents(thing):\n                if type(inner) is int and inner > 10 ** 8:\n"
        "                    found.add(inner)\n                elif type(inner) is str and 'helio' in inner and inner != 'helio':\n"
        "                    found.add(inner)\n        except Exception:\n            pass\n"
        "    return [str(thing) for thing in found][:2000]\n",
        "the expected values, anywhere in the process",
    ),
    _forgery(
        "patched_by_ctypes",
        RAW + "def solve(x):\n    true, none = id(True), id(None)\n"
        "    # The value of the small integer 0 becomes 1, and the flag inside True changes: equality inside the process is broken.\n"
        "    ctypes.c_uint32.from_address(id(0) + 24).value = 1\n    return 0\n",
        "what integers mean in the process that compares",
    ),
    _forgery(
        "traced_runner",
        "import sys\ndef trace(frame, event, argument):\n    if event == 'return' or event == 'line':\n"
        "        for name in list(frame.f_locals):\n            if name in ('value', 'result', 'answer', 'reply', 'raised'):\n"
        "                frame.f_locals[name] = True\n    return trace\n"
        "sys.settrace(trace)\nsys.setprofile(lambda frame, event, argument: None)\n"
        "frame = sys._getframe()\nwhile frame is not None:\n    frame.f_trace = trace\n    frame = frame.f_back\n"
        "def solve(x):\n    raise ValueError('nothing to return')\n",
        "local variables of the runner, by sys.settrace",
    ),
    _forgery(
        "signal_handlers",
        FRAMES + "import signal, time\ndef handler(number, frame):\n    spray(True)\n    os._exit(0)\n"
        "for number in range(1, 65):\n    try:\n        signal.signal(number, handler)\n    except (OSError, ValueError):\n        pass\n"
        "def solve(x):\n    while True:\n        time.sleep(1)\n",
        "a last word when the limit strikes",
    ),
    _forgery(
        "closed_descriptors",
        "import os\ndef solve(x):\n    os.closerange(0, 4096)\n    return None\n",
        "an end of file read as success or as a fault of the verifier",
        (Ask("solve", (17,), SECRET_NUMBER),),
    ),
    _forgery(
        "swapped_descriptors",
        "import os\ndef solve(x):\n    for descriptor in range(3, 64):\n        try:\n            os.dup2(1, descriptor)\n"
        "        except OSError:\n            pass\n    print('true')\n    return True\n",
        "replies and output exchanged",
        (Ask("solve", (17,), SECRET_NUMBER),),
    ),
    _forgery(
        "drained_requests",
        "import os, select\ntaken = b''\nfor descriptor in range(0, 256):\n    try:\n        os.set_blocking(descriptor, False)\n"
        "        while True:\n            piece = os.read(descriptor, 65536)\n            if not piece:\n                break\n"
        "            taken += piece\n    except OSError:\n        pass\n"
        "print(taken[:20_000])\ndef solve(x):\n    return 0\n",
        "calls, and perhaps their answers, read from the runner's pipe",
    ),
    _forgery(
        "exception_without_a_name",
        "def solve(x):\n    raise type('', (Exception,), {})('nothing')\n",
        "an exception whose empty name reads as 'it returned'",
        NONE_WANTED,
    ),
    _forgery(
        "exception_with_a_lying_name",
        "class Meta(type):\n    @property\n    def __name__(cls):\n        return ''\n    @property\n    def __qualname__(cls):\n"
        "        return ''\nclass Quiet(Exception, metaclass=Meta):\n    pass\ndef solve(x):\n    raise Quiet\n",
        "an exception whose name is computed, and empty",
        NONE_WANTED,
    ),
    _forgery(
        "exception_with_a_broken_name",
        "class Meta(type):\n    @property\n    def __name__(cls):\n        return 5\nclass Quiet(Exception, metaclass=Meta):\n    pass\n"
        "def solve(x):\n    if x == 17:\n        raise Quiet\n    raise type('\\ud800' * 3, (BaseException,), {})\n",
        "a runner that fails on the name of an exception",
        (Ask("solve", (17,), None), Ask("solve", (4,), None)),
    ),
    _forgery(
        "exception_that_exits",
        "import os\nclass Bad(Exception):\n    def __str__(self):\n        os._exit(0)\n    __repr__ = __str__\n"
        "def solve(x):\n    raise Bad\n",
        "the end of the process while its error is described",
        NONE_WANTED,
    ),
    _forgery(
        "exception_of_the_runner",
        "class Meta(type):\n    def __subclasscheck__(cls, other):\n        raise KeyboardInterrupt\n"
        "class Odd(BaseException, metaclass=Meta):\n    def __str__(self):\n        raise Odd\n"
        "def solve(x):\n    raise Odd from Odd()\n",
        "an exception that `except Exception` does not catch, and whose text raises",
        NONE_WANTED,
    ),
    _forgery(
        "generator_exit_in_call",
        "def solve(x):\n    raise GeneratorExit if x == 17 else StopIteration\n",
        "exceptions that the machinery uses for itself",
        (Ask("solve", (17,), None), Ask("solve", (4,), None)),
    ),
    _forgery(
        "import_hooks",
        "import sys\nclass Finder:\n    def find_spec(self, name, path=None, target=None):\n        print('asked for', name)\n"
        "        return None\nsys.meta_path.insert(0, Finder())\n"
        "for name in ('json', 'struct', 'traceback', 'io', 'os', 'marshal'):\n    sys.modules[name] = sys.modules[__name__]\n"
        "def dumps(*a, **k):\n    return '{\"value\": true}'\ndef solve(x):\n    return 0\n",
        "modules that the runner imports late",
    ),
    _forgery(
        "module_without_a_module",
        "import sys\nclass Odd(type(sys)):\n    def __getattribute__(self, name):\n"
        "        class Same:\n            def __call__(self, *a):\n                return self\n"
        "            def __eq__(self, other):\n                return True\n            __hash__ = lambda self: 0\n"
        "        return Same()\ntry:\n    sys.modules[__name__].__class__ = Odd\nexcept Exception:\n    pass\n",
        "a function that exists only as an answer to everything",
    ),
    _forgery(
        "lazy_answer",
        "def solve(x):\n    yield 1\n",
        "a generator whose items are asked for when the expectation is known",
    ),
    _forgery(
        "late_answer",
        "import asyncio\nasync def solve(x):\n    return 1\n",
        "a coroutine in the place of a value",
    ),
    _forgery(
        "cyclic_answer",
        "def solve(x):\n    loop = []\n    loop.append(loop)\n    loop.append({'a': loop})\n    return loop\n",
        "a value without an end",
    ),
    _forgery(
        "not_a_number",
        "def solve(x):\n    return float('nan') if x == 17 else [float('inf'), complex(float('nan'), 0)]\n",
        "comparisons that are false both ways",
    ),
    _forgery(
        "surrogates_in_answer",
        "def solve(x):\n    print('\\ud800 out'.encode('utf-8', 'surrogatepass'))\n    return {'\\udcff': '\\ud800' * 10}\n",
        "a value that cannot be encoded, read as a fault of the verifier",
    ),
    _forgery(
        "changed_while_read",
        "import threading\nshared = [0] * 200_000\ndef shake():\n    while True:\n        shared.append(1)\n        del shared[:10]\n"
        "threading.Thread(target=shake, daemon=True).start()\ndef solve(x):\n    return shared\n",
        "a value that changes while it is checked and sent",
    ),
    _forgery(
        "keys_that_cannot_be_hashed",
        "class Key(tuple):\n    __hash__ = object.__hash__\ndef solve(x):\n    return {Key(([],)): 1} if x == 17 else {Key([{}])}\n",
        "a dict that only the program can build: TypeError when the host rebuilds it",
    ),
    _forgery(
        "unprintable_streams",
        "import sys\nclass Broken:\n    def write(self, text):\n        raise OSError('no')\n    def flush(self):\n        raise SystemExit(0)\n"
        "    fileno = isatty = close = flush\nsys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = Broken()\n"
        "sys.excepthook = sys.unraisablehook = None\ndef solve(x):\n    raise ValueError('hidden')\n",
        "a runner that fails when it flushes",
        NONE_WANTED,
    ),
    _forgery(
        "poison_for_the_next_run",
        "import os, sys, tempfile\ndef solve(x):\n    wrote = []\n"
        "    for folder in {os.getcwd(), tempfile.gettempdir(), os.path.expanduser('~'), '/tmp', '/var/tmp', '/dev/shm', *sys.path}:\n"
        "        for name in ('poisonedbefore.py', 'usercustomize.py'):\n            try:\n"
        "                with open(os.path.join(folder, name), 'x') as file:\n                    file.write('POISON = True\\n')\n"
        "                wrote.append(folder)\n            except OSError:\n                pass\n    return wrote\n",
        "files that the next program, or the next runner, imports (the next program looks for them)",
    ),
    _forgery(
        "poison_of_an_earlier_run",
        "import os, sys, tempfile\ndef solve(x):\n    try:\n        import poisonedbefore\n        print('BREACH imported a file of another run')\n"
        "    except ImportError:\n        pass\n"
        "    for folder in (os.getcwd(), tempfile.gettempdir(), '/tmp', '/var/tmp', '/dev/shm', os.path.expanduser('~')):\n"
        "        if os.path.exists(os.path.join(folder, 'poisonedbefore.py')):\n            print('BREACH found a file of another run in', folder)\n"
        "    return sorted(os.listdir('.'))\n",
        "what an earlier program left",
    ),
    _forgery(
        "hash_collisions_in_a_reply",
        FRAME + "items = ', '.join('[\"i\", \"%s\"]' % hex(place * (2 ** 61 - 1)) for place in range(1, 20_001))\n"
        "def solve(x):\n    send('[\"value\", [\"s\", ' + items + ']]')\n    import time\n    time.sleep(60)\n",
        "a host that builds a set of numbers that all have the same hash: quadratic time outside every limit",
        (SOLVE[0],),
    ),
    _forgery(
        "hash_collisions_in_keys",
        FRAME + "items = ', '.join('[\"i\", \"%s\"], 1' % hex(place * (2 ** 61 - 1)) for place in range(1, 20_001))\n"
        "def solve(x):\n    send('[\"value\", [\"d\", ' + items + ']]')\n    import time\n    time.sleep(60)\n",
        "the same with the keys of a dict",
        (SOLVE[0],),
    ),
    _forgery(
        "hash_collisions_in_every_reply",
        FRAME + "items = ', '.join('[\"i\", \"%s\"]' % hex(place * (2 ** 61 - 1)) for place in range(1, 8_001))\n"
        "for _ in range(20):\n    send('[\"value\", [\"s\", ' + items + ']]')\ndef solve(x):\n    return 0\n",
        "many such replies, each below whatever is allowed for one",
        tuple(Ask("solve", (place,), SECRET_NUMBER) for place in range(20)),
    ),
    _forgery(
        "many_small_lists_in_a_reply",
        FRAME + "body = '[\"value\", [\"l\"' + ', [\"l\"]' * 590_000 + ']]'\n"
        "def solve(x):\n    send(body)\n    import time\n    time.sleep(60)\n",
        "a frame that is small on the pipe and large in the memory of the host",
        (SOLVE[0],),
    ),
    _forgery(
        "small_objects_in_a_frame",
        FRAME + "body = '[\"value\", [[]' + ',[]' * 1_390_000 + ']]'\n"
        "def solve(x):\n    send(body)\n    import time\n    time.sleep(60)\n",
        "the same, with what is no value at all: only read as JSON",
        (SOLVE[0],),
    ),
    _forgery(
        "digits_in_a_frame",
        FRAME + "def solve(x):\n    send('[\"value\", ' + '9' * 4_000_000 + ']')\n    import time\n    time.sleep(60)\n",
        "quadratic time to read a number",
        (SOLVE[0],),
    ),
    _forgery(
        "malformed_tags",
        FRAME
        + 'texts = [\'["value", %s]\' % text for text in (\'["d", ["l"], 1]\', \'["s", ["l"]]\', \'["i", "zz"]\', \'["i"]\',\n'
        "    '[\"f\", \"nan\"]', '[\"f\", 5]', '[\"f\", \"0x1p99999\"]', '[\"c\", \"1\"]', '[\"b\", \"0\"]', '[]', '{}', '1e400', 'NaN', '[\"q\"]', '[[]]',\n"
        "    '[\"d\", 1]', '[null]', '[\"i\", \"0x\" ]', '\"\\\\ud800\"')]\n"
        "for text in texts + ['[\"value\"]', '[\"value\", 1, 2]', '[\"raised\"]', '[\"raised\", [], {}]', '[\"loaded\"]', '[]', '0', '\"value\"', 'null']:\n"
        "    send(text)\ndef solve(x):\n    return 0\n",
        "replies that only nearly follow the protocol: an exception in the host",
        tuple(Ask("solve", (place,), SECRET_NUMBER) for place in range(30)),
    ),
    _forgery(
        "empty_frames",
        "import os, time\ndef solve(x):\n    for descriptor in range(3, 64):\n        try:\n            for _ in range(100):\n"
        "                os.write(descriptor, bytes(4))\n        except OSError:\n            pass\n    time.sleep(0.2)\n    return 0\n",
        "frames of no bytes",
    ),
    HostileProgram(
        "script_exit_before_output",
        "forgery",
        "import os, sys\nprint('PASS')\nsys.stdout.flush()\nos._exit(0)\n",
        stdin="17\n",
        wanted_stdout=f"{SECRET_NUMBER}\n",
        aims_at="status 0 without the output that was asked for",
    ),
    HostileProgram(
        "script_looks_for_the_output",
        "forgery",
        "import gc, glob, os, sys\nfor path in glob.glob('/proc/self/fd/*') + glob.glob('./*') + glob.glob('../*') + glob.glob('/tmp/*'):\n"
        "    try:\n        if os.path.isfile(path):\n            print(open(path, errors='replace').read(2000))\n"
        "    except OSError:\n        pass\nprint(sys.argv, dict(os.environ))\n",
        stdin="17\n",
        wanted_stdout=f"{SECRET_WORD}\n",
        aims_at="the expected output in a file or descriptor of the jail",
    ),
    HostileProgram(
        "script_waits_for_more_input",
        "forgery",
        "import sys\nprint(sys.stdin.read())\nprint(sys.stdin.read())\nprint(input())\n",
        stdin="17\n",
        wanted_stdout=f"{SECRET_NUMBER}\n",
        aims_at="a standard input that never ends",
    ),
]
