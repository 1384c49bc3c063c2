"""Programs that do nothing wrong and must all pass: what ordinary solutions use, and the jail must not refuse."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from hostile.programs import Ask, HostileProgram


@dataclass(frozen=True)
class HonestProgram:
    """A program with the values, or the output, that it must give."""

    name: str
    source: str
    calls: tuple[Ask, ...] = ()
    stdin: str = ""
    wanted_stdout: str = ""

    @property
    def way(self) -> str:
        return "calls" if self.calls else "script"

    def as_hostile(self) -> HostileProgram:
        """In the shape that the harness runs: an honest program is held to the same bounds."""
        return HostileProgram(self.name, "forgery", self.source, self.calls, self.stdin, self.wanted_stdout)


def _call(name: str, source: str, *args: Any, wanted: Any) -> HonestProgram:
    return HonestProgram(name, textwrap.dedent(source), (Ask("solve", args, wanted),))


def _script(name: str, source: str, stdin: str, wanted: str) -> HonestProgram:
    return HonestProgram(name, textwrap.dedent(source), stdin=stdin, wanted_stdout=wanted)


HONEST = [
    _call(
        "threads",
        """
        import threading
        def solve(n):
            total, lock = [0], threading.Lock()
            def work(k):
                with lock:
                    total[0] += k
            workers = [threading.Thread(target=work, args=(k,)) for k in range(n)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return total[0]
        """,
        40,
        wanted=780,
    ),
    _call(
        "thread_pool",
        """
        from concurrent.futures import ThreadPoolExecutor
        def solve(n):
            with ThreadPoolExecutor(max_workers=32) as pool:
                return sum(pool.map(lambda k: k * k, range(n)))
        """,
        100,
        wanted=328_350,
    ),
    _call(
        "asyncio",
        """
        import asyncio
        async def slow(k):
            await asyncio.sleep(0.01)
            return k
        async def main(n):
            results = await asyncio.gather(*(slow(k) for k in range(n)))
            results.append(await asyncio.to_thread(sum, results))
            async with asyncio.timeout(1):
                await asyncio.sleep(0)
            return results
        def solve(n):
            return asyncio.run(main(n))
        """,
        5,
        wanted=[0, 1, 2, 3, 4, 10],
    ),
    _call(
        "coroutine_function",
        """
        import asyncio
        async def solve(n):
            await asyncio.sleep(0)
            return n + 1
        """,
        4,
        wanted=5,
    ),
    _call(
        "deep_recursion",
        """
        import sys
        sys.setrecursionlimit(50_000)
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        def solve(n):
            return depth(n)
        """,
        20_000,
        wanted=20_000,
    ),
    _call(
        "deep_recursion_in_a_thread",
        """
        import sys, threading
        sys.setrecursionlimit(100_000)
        threading.stack_size(64 * 1024 * 1024)
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        def solve(n):
            found = []
            worker = threading.Thread(target=lambda: found.append(depth(n)))
            worker.start()
            worker.join()
            return found[0]
        """,
        20_000,
        wanted=20_000,
    ),
    _call(
        "recursion_through_c",
        """
        import sys
        from functools import lru_cache
        sys.setrecursionlimit(20_000)
        @lru_cache(maxsize=None)
        def steps(n):
            return 0 if n == 0 else 1 + steps(n - 1)
        def solve(n):
            return steps(n)
        """,
        5_000,
        wanted=5_000,
    ),
    _call(
        "two_hundred_megabytes",
        """
        def solve(n):
            block = bytearray(n)
            block[::4096] = b"x" * len(block[::4096])
            return len(block), block.count(b"x")
        """,
        200 * 2**20,
        wanted=(200 * 2**20, 51_200),
    ),
    _call(
        "memory_error_handled",
        """
        def solve(n):
            try:
                return len(bytearray(n))
            except MemoryError:
                return "too much"
        """,
        4 * 2**30,
        wanted="too much",
    ),
    _call(
        "temporary_files",
        """
        import os, tempfile
        def solve(text):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "a", "b.txt")
                os.makedirs(os.path.dirname(path))
                with open(path, "w") as file:
                    file.write(text)
                os.rename(path, path + ".new")
                with open(path + ".new") as file:
                    first = file.read()
            with tempfile.TemporaryFile("w+") as file:
                file.write(text * 2)
                file.seek(0)
                second = file.read()
            with tempfile.NamedTemporaryFile("w", delete=False) as file:
                file.write("x")
            os.unlink(file.name)
            return [first, second, os.path.exists(folder)]
        """,
        "ab",
        wanted=["ab", "abab", False],
    ),
    _call(
        "paths_and_copies",
        """
        import pathlib, shutil, tempfile
        def solve(text):
            folder = pathlib.Path(tempfile.mkdtemp())
            (folder / "one").write_text(text)
            shutil.copyfile(folder / "one", folder / "two")
            shutil.copy(folder / "one", folder / "three")
            shutil.copytree(folder, folder.with_name(folder.name + "x"))
            names = sorted(path.name for path in folder.with_name(folder.name + "x").iterdir())
            shutil.rmtree(folder)
            return [names, folder.exists()]
        """,
        "q",
        wanted=[["one", "three", "two"], False],
    ),
    _call(
        "ten_megabytes_in_a_file",
        """
        import hashlib, os
        def solve(size):
            data = bytes(range(256)) * (size // 256)
            with open("data.bin", "wb") as file:
                file.write(data)
            with open("data.bin", "rb") as file:
                again = file.read()
            os.remove("data.bin")
            return [len(again), hashlib.md5(again).hexdigest() == hashlib.md5(data).hexdigest()]
        """,
        10 * 2**20,
        wanted=[10 * 2**20, True],
    ),
    _call(
        "plain_values_of_every_type",
        """
        def solve(*given):
            return list(given)
        """,
        None,
        True,
        -(2**70),
        1.5,
        float("-inf"),
        complex(1, -2),
        "aé漢\U0001f600\ud800\x00",
        b"\x00\xff",
        [1, [2]],
        (1, (2,)),
        {1, 2},
        frozenset({"a"}),
        {"a": {1: (None,)}, (1, 2): b"", 2.5: -0.0},
        "",
        [],
        (),
        {},
        wanted=[
            None,
            True,
            -(2**70),
            1.5,
            float("-inf"),
            complex(1, -2),
            "aé漢\U0001f600\ud800\x00",
            b"\x00\xff",
            [1, [2]],
            (1, (2,)),
            {1, 2},
            frozenset({"a"}),
            {"a": {1: (None,)}, (1, 2): b"", 2.5: -0.0},
            "",
            [],
            (),
            {},
        ],
    ),
    _call(
        "generators",
        """
        def primes():
            found = []
            candidate = 2
            while True:
                if all(candidate % p for p in found):
                    found.append(candidate)
                    yield candidate
                candidate += 1
        def solve(n):
            source = primes()
            return [next(source) for _ in range(n)]
        """,
        10,
        wanted=[2, 3, 5, 7, 11, 13, 17, 19, 23, 29],
    ),
    _call(
        "dataclasses_and_enums",
        """
        from __future__ import annotations
        import dataclasses, enum, typing
        class Colour(enum.IntEnum):
            RED = 1
            BLUE = 2
        @dataclasses.dataclass(frozen=True, order=True, slots=True)
        class Point:
            x: int
            y: int = 0
            colour: Colour = Colour.BLUE
            names: list[str] = dataclasses.field(default_factory=list, compare=False)
        class Pair(typing.NamedTuple):
            left: int
            right: int
        def solve(n):
            points = sorted([Point(n, 2), Point(1), Point(1, -1)])
            return [dataclasses.asdict(points[0]), Colour.RED, Pair(1, 2), hash(Point(1)) == hash(Point(1))]
        """,
        5,
        wanted=[{"x": 1, "y": -1, "colour": 2, "names": []}, 1, (1, 2), True],
    ),
    _call(
        "decimals_and_fractions",
        """
        from decimal import Decimal, getcontext
        from fractions import Fraction
        import math, statistics, cmath
        def solve():
            getcontext().prec = 30
            return [str(Decimal(2).sqrt()), str(sum(Fraction(1, k) for k in range(1, 11))), math.comb(50, 25),
                    statistics.median([3, 1, 2]), round(abs(cmath.exp(1j)), 12), 0.1 + 0.2]
        """,
        wanted=["1.41421356237309504880168872421", "7381/2520", 126_410_606_437_752, 2, 1.0, 0.30000000000000004],
    ),
    _call(
        "large_integers",
        """
        import math
        def solve(n):
            value = math.factorial(n)
            return [value % 1_000_000_007, len(str(value)), pow(3, 10 ** 18, 10 ** 9 + 7), 2 ** 4000]
        """,
        1000,
        wanted=[641_419_708, 2568, pow(3, 10**18, 10**9 + 7), 2**4000],
    ),
    _call(
        "text_and_patterns",
        """
        import json, re, string, textwrap, unicodedata, difflib
        def solve(text):
            words = re.findall(r"(?P<w>\\w+)", text)
            record = json.loads(json.dumps({"words": words, "x": [1.5, None, True]}, indent=1))
            return [record["words"], re.sub(r"(\\w)(\\w*)", lambda m: m[2] + m[1], text), unicodedata.normalize("NFC", "e\\u0301"),
                    string.Template("$a").substitute(a=1), textwrap.fill("a b c", 3), f"{3.14159:>10.2f}|{255:#x}"]
        """,
        "one two",
        wanted=[["one", "two"], "neo wot", "é", "1", "a b\nc", "      3.14|0xff"],
    ),
    _call(
        "collections_and_algorithms",
        """
        import bisect, collections, functools, heapq, itertools, operator
        def solve(n):
            heap = []
            for value in range(n, 0, -1):
                heapq.heappush(heap, value)
            counted = collections.Counter("mississippi").most_common(2)
            @functools.cache
            def fib(k):
                return k if k < 2 else fib(k - 1) + fib(k - 2)
            return [heapq.nsmallest(3, heap), counted, fib(90), bisect.bisect([1, 3, 5], 4),
                    list(itertools.islice(itertools.accumulate(itertools.count(1)), 5)), functools.reduce(operator.mul, range(1, 6)),
                    [len(list(g)) for _, g in itertools.groupby("aabccc")], collections.OrderedDict(a=1), collections.deque([1, 2, 3], 2)[0]]
        """,
        6,
        wanted=[[1, 2, 3], [("i", 4), ("s", 4)], 2_880_067_194_370_816_120, 2, [1, 3, 6, 10, 15], 120, [2, 1, 3], {"a": 1}, 2],
    ),
    _call(
        "random_with_a_seed",
        """
        import random, secrets, uuid
        def solve(seed):
            source = random.Random(seed)
            assert len(secrets.token_hex(8)) == 16 and uuid.uuid4().version == 4
            return [source.randint(1, 100) for _ in range(3)] + source.sample(range(10), 3)
        """,
        7,
        wanted=[42, 20, 51, 0, 1, 8],
    ),
    _call(
        "dates_and_zones",
        """
        import calendar, datetime, time, zoneinfo
        def solve():
            moment = datetime.datetime(2024, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
            return [moment.astimezone(datetime.timezone.utc).isoformat(), calendar.monthrange(2024, 2)[1],
                    (datetime.date(2024, 3, 1) - datetime.date(2024, 2, 1)).days, time.strftime("%Y", time.gmtime(0)),
                    datetime.datetime.strptime("05/06/21", "%d/%m/%y").strftime("%A")]
        """,
        wanted=["2024-07-01T10:00:00+00:00", 29, 29, "1970", "Saturday"],
    ),
    _call(
        "hashes_and_compression",
        """
        import base64, binascii, bz2, gzip, hashlib, hmac, lzma, struct, zlib
        def solve(text):
            data = text.encode()
            packed = [zlib.compress(data), gzip.compress(data), bz2.compress(data), lzma.compress(data)]
            opened = [zlib.decompress(packed[0]), gzip.decompress(packed[1]), bz2.decompress(packed[2]), lzma.decompress(packed[3])]
            return [hashlib.sha256(data).hexdigest()[:16], hmac.new(b"k", data, "sha1").hexdigest()[:8], base64.b64encode(data),
                    binascii.crc32(data), struct.unpack(">H", struct.pack(">H", 513))[0], opened == [data] * 4]
        """,
        "hello",
        wanted=["2cf24dba5fb0a30e", "0b7938d1", b"aGVsbG8=", 907_060_870, 513, True],
    ),
    _call(
        "database_in_memory",
        """
        import sqlite3
        def solve(n):
            with sqlite3.connect(":memory:") as database:
                database.execute("create table t (a integer, b text)")
                database.executemany("insert into t values (?, ?)", [(k, str(k)) for k in range(n)])
                inside = database.execute("select sum(a), max(b) from t where a % 2 = 0").fetchone()
            with sqlite3.connect("file.db") as database:
                database.execute("create table u (a)")
                database.execute("insert into u values (5)")
                database.commit()
            with sqlite3.connect("file.db") as database:
                return [inside, database.execute("select a from u").fetchone()]
        """,
        11,
        wanted=[(30, "8"), (5,)],
    ),
    _call(
        "tables_and_streams",
        """
        import configparser, csv, html, io, pprint, urllib.parse, xml.etree.ElementTree as tree
        def solve(text):
            rows = list(csv.DictReader(io.StringIO(text)))
            out = io.StringIO()
            csv.writer(out).writerows([["a", "b,c"], [1, None]])
            parser = configparser.ConfigParser()
            parser.read_string("[s]\\nk = v")
            return [rows, out.getvalue(), parser["s"]["k"], html.escape("<&>"), urllib.parse.urlsplit("http://h/p?q=1").query,
                    tree.fromstring("<a><b>1</b></a>").find("b").text, io.BytesIO(b"abc").read(2)]
        """,
        "x,y\n1,2\n",
        wanted=[[{"x": "1", "y": "2"}], 'a,"b,c"\r\n1,\r\n', "v", "&lt;&amp;&gt;", "q=1", "1", b"ab"],
    ),
    _call(
        "alarm_with_a_handler",
        """
        import signal, time
        class Late(Exception):
            pass
        def handler(number, frame):
            raise Late
        def solve(seconds):
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                time.sleep(5)
            except Late:
                return "late"
            finally:
                signal.alarm(0)
            return "on time"
        """,
        0.1,
        wanted="late",
    ),
    _call(
        "signals_to_itself",
        """
        import os, signal, threading
        def solve():
            seen = []
            signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
            os.kill(os.getpid(), signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            return [int(number) for number in seen] == [int(signal.SIGUSR1)] * 3
        """,
        wanted=True,
    ),
    _call(
        "sleep_and_clocks",
        """
        import time, timeit
        def solve(seconds):
            began, used = time.monotonic(), time.process_time()
            time.sleep(seconds)
            return [time.monotonic() - began >= seconds, time.process_time() - used < 0.1, timeit.timeit("1", number=10) >= 0]
        """,
        0.2,
        wanted=[True, True, True],
    ),
    _call(
        "warnings_and_logging",
        """
        import contextvars, logging, sys, traceback, warnings
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        current = contextvars.ContextVar("current", default=1)
        def solve():
            logging.getLogger("a.b").info("said %s", "this")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                warnings.warn("old", DeprecationWarning)
            token = current.set(2)
            inside = current.get()
            current.reset(token)
            try:
                1 / 0
            except ZeroDivisionError:
                text = traceback.format_exc()
            warnings.warn("seen on standard error")
            return [str(caught[0].message), inside, current.get(), "ZeroDivisionError" in text]
        """,
        wanted=["old", 2, 1, True],
    ),
    _call(
        "weak_references_and_collection",
        """
        import copy, gc, sys, types, weakref
        class Node:
            pass
        def solve():
            gone = []
            first, second = Node(), Node()
            first.other, second.other = second, first
            weakref.finalize(first, gone.append, 1)
            del first, second
            gc.collect()
            deep = copy.deepcopy({"a": [1, {2}]})
            module = types.ModuleType("made")
            exec("x = 3", module.__dict__)
            return [gone, deep, module.x, sys.getrefcount(object()) > 0]
        """,
        wanted=[[1], {"a": [1, {2}]}, 3, True],
    ),
    _call(
        "pairs_of_sockets_and_pipes",
        """
        import os, select, selectors, socket, threading
        def solve(text):
            left, right = socket.socketpair()
            worker = threading.Thread(target=lambda: right.sendall(right.recv(100).upper()))
            worker.start()
            left.sendall(text.encode())
            ready, _, _ = select.select([left], [], [], 2)
            answer = left.recv(100)
            worker.join()
            reading, writing = os.pipe()
            os.write(writing, b"piped")
            with selectors.DefaultSelector() as selector:
                selector.register(reading, selectors.EVENT_READ)
                events = len(selector.select(1))
            return [answer, len(ready), os.read(reading, 10), events]
        """,
        "abc",
        wanted=[b"ABC", 1, b"piped", 1],
    ),
    _call(
        "queues_and_conditions",
        """
        import queue, threading
        def solve(n):
            todo, done = queue.Queue(4), queue.PriorityQueue()
            barrier, event, gate = threading.Barrier(3), threading.Event(), threading.Semaphore(2)
            def work():
                barrier.wait(2)
                while (item := todo.get()) is not None:
                    with gate:
                        done.put(-item)
                event.set()
            workers = [threading.Thread(target=work) for _ in range(3)]
            for worker in workers:
                worker.start()
            for item in [*range(n), None, None, None]:
                todo.put(item)
            for worker in workers:
                worker.join()
            timer = threading.Timer(0.01, event.set)
            timer.start()
            timer.join()
            return [-done.get() for _ in range(n)]
        """,
        8,
        wanted=[7, 6, 5, 4, 3, 2, 1, 0],
    ),
    _call(
        "classes_and_descriptors",
        """
        import abc, contextlib, functools, inspect, typing
        T = typing.TypeVar("T")
        class Base(abc.ABC):
            registry = []
            def __init_subclass__(cls, **kwargs):
                Base.registry.append(cls.__name__)
            @abc.abstractmethod
            def area(self): ...
        class Square(Base):
            def __init__(self, side):
                self.side = side
            @functools.cached_property
            def area_of(self):
                return self.side ** 2
            def area(self):
                return self.area_of
        @contextlib.contextmanager
        def opened():
            yield "inside"
        def solve(n):
            match {"kind": "square", "side": n}:
                case {"kind": "square", "side": side}:
                    area = Square(side).area()
            with opened() as where, contextlib.suppress(ZeroDivisionError):
                1 / 0
            try:
                Base()
            except TypeError as problem:
                refused = type(problem).__name__
            return [area, where, refused, Base.registry, list(inspect.signature(solve).parameters)]
        """,
        3,
        wanted=[9, "inside", "TypeError", ["Square"], ["n"]],
    ),
    HonestProgram(
        "methods_of_a_class",
        "class Solution:\n    def twoSum(self, nums, target):\n        seen = {}\n        for place, value in enumerate(nums):\n"
        "            if target - value in seen:\n                return [seen[target - value], place]\n            seen[value] = place\n",
        (
            Ask("Solution.twoSum", ([2, 7, 11, 15], 9), [0, 1]),
            Ask("Solution.twoSum", (), [1, 2], {"nums": [3, 2, 4], "target": 6}),
        ),
    ),
    HonestProgram(
        "state_between_calls",
        "count = 0\ndef solve():\n    global count\n    count += 1\n    print('call', count)\n    return count\n",
        (Ask("solve", (), 1), Ask("solve", (), 2), Ask("solve", (), 3)),
    ),
    _script(
        "input_line_by_line",
        """
        n = int(input())
        total = 0
        for _ in range(n):
            total += sum(map(int, input().split()))
        print(total)
        try:
            input()
        except EOFError:
            print("end")
        """,
        "2\n1 2 3\n4 5\n",
        "15\nend\n",
    ),
    _script(
        "input_as_bytes",
        """
        import sys
        data = sys.stdin.buffer.read().split()
        sys.stdout.buffer.write(b" ".join(sorted(data)) + b"\\n")
        """,
        "b a c\n",
        "a b c\n",
    ),
    _script(
        "input_by_descriptor",
        """
        import os
        pieces = []
        while piece := os.read(0, 7):
            pieces.append(piece)
        os.write(1, b"".join(pieces)[::-1])
        """,
        "0123456789" * 20,
        "9876543210" * 20,
    ),
    _script(
        "large_input",
        """
        import sys
        print(sum(int(line) for line in sys.stdin))
        """,
        "".join(f"{number}\n" for number in range(200_000)),
        "19999900000\n",
    ),
    _script(
        "unicode_output",
        """
        text = input()
        print(text[::-1], "é漢\\U0001f600", sep="|")
        """,
        "naïve 漢字\n",
        "字漢 evïan|é漢\U0001f600\n",
    ),
    _script(
        "sixty_kilobytes_of_output",
        """
        for line in range(960):
            print(f"{line:063d}")
        """,
        "",
        "".join(f"{line:063d}\n" for line in range(960)),
    ),
    _script(
        "guarded_main",
        """
        import sys
        def main():
            print("main ran", sys.argv[1:], file=sys.stdout)
            print("to standard error", file=sys.stderr)
            sys.exit(0)
        if __name__ == "__main__":
            main()
        """,
        "",
        "main ran []\n",
    ),
    _script(
        "output_at_exit",
        """
        import atexit, threading
        atexit.register(print, "last")
        threading.Timer(0.05, print, ("from a thread",)).start()
        print("first")
        """,
        "",
        "first\nfrom a thread\nlast\n",
    ),
    _script(
        "pickle_and_main",
        """
        import pickle
        class Point:
            def __init__(self, x):
                self.x = x
        again = pickle.loads(pickle.dumps(Point(4)))
        print(again.x, __name__, type(again).__module__)
        """,
        "",
        "4 __main__ __main__\n",
    ),
]
"""Exceptions as part of an answer are tested apart (sandbox/test_jail_honest.py): what counts there is the name, not a value."""
