"""The jail from its host's side: values, limits, ends, the proxy, workers. Attacks are in tests/hostile."""

from __future__ import annotations

import json
import math
import os
import platform
import select
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import cohort_verify
from cohort_verify.sandbox import (
    Call,
    JailUnavailable,
    Limits,
    NotPlain,
    boot,
    find_tier,
    run_calls,
    run_checks,
    run_script,
    tiers,
)
from cohort_verify.sandbox import values as plain
from cohort_verify.sandbox.jail import Jail
from cohort_verify.sandbox.program import read_reply
from cohort_verify.sandbox.seccomp import ARCHITECTURES, NUMBERS, build_filter
from cohort_verify.sandbox.tiers import find_installed_packages
from cohort_verify.sandbox.workers import WorkerPool, find_own_packages, shared_pool
from cohort_verify.workers import ProcessEnded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the jail is Linux's")


@pytest.fixture(params=["bubblewrap", "landlock"])
def tier(request, monkeypatch):
    monkeypatch.setenv("COHORT_JAIL", request.param)
    try:
        find_tier()
    except JailUnavailable as problem:
        pytest.skip(str(problem))
    return request.param


# -- values --------------------------------------------------------------------------------------------------------------

SOME_VALUES = [
    None, True, False, 0, -1, 2**53, -(2**53), 2**64, 10**4500, 0.0, -0.0, 1.5, 5e-324, math.inf, -math.inf, 1 + 2j, "", "é\u2028\ud800\x00",
    b"", b"\x00\xff", [], [1, [2, (3,)]], (), (1,), set(), {1, "a"}, frozenset({(1, 2)}), {}, {"a": 1, 2: "b", (1, 2): None, 1.5: [True]},
]  # fmt: skip


@pytest.mark.parametrize("value", SOME_VALUES, ids=range(len(SOME_VALUES)))
def test_a_plain_value_comes_back_with_its_types(value, tier):
    assert same(through_text(value), value)
    reply = run_calls("def same(x): return x", [Call("same", (value,))]).replies[0]
    assert reply is not None
    assert not reply.raised
    assert same(reply.value, value)


def through_text(value):
    return plain.rebuild(json.loads(boot.encode(value)))


def same(a, b):
    """Equality of value and type, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    return a == b


def test_nan_comes_back_as_nan():
    assert math.isnan(through_text(math.nan))


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("Odd(3)", 3),
        ("Word('ab')", "ab"),
        ("collections.Counter('aab')", {"a": 2, "b": 1}),
        ("collections.OrderedDict(b=1)", {"b": 1}),
        ("Point(1, 2)", (1, 2)),
        ("http.HTTPStatus.OK", 200),
    ],
)
def test_an_object_that_extends_a_built_in_arrives_as_that_built_in(returned, expected):
    program = (
        "import collections, http\nclass Odd(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "class Word(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\n"
        f"Point = collections.namedtuple('Point', 'x y')\ndef f(): return {returned}"
    )
    reply = run_calls(program, [Call("f")]).replies[0]
    assert reply is not None
    assert same(reply.value, expected)


@pytest.mark.parametrize(
    "returned", ["object()", "(i for i in [1])", "range(3)", "lambda: 1", "cycle()", "deep(150)", "[0] * 2_000_000"]
)
def test_values_that_are_not_plain_are_reported(returned):
    program = f"def cycle():\n    a = []\n    a.append(a)\n    return a\ndef deep(n):\n    a = []\n    for _ in range(n): a = [a]\n    return a\ndef f(): return {returned}"
    reply = run_calls(program, [Call("f")]).replies[0]
    assert reply is not None
    assert reply.raised == "NotPlain"


@pytest.mark.parametrize(
    "node",
    [["x"], ["i"], ["i", 5], ["f", "1.5x"], ["d", 1], ["s", ["l"]], {}, 1.5, [1], [], ["c", "0x1p0"], ["b", "zz"], ["l", {}]],
)
def test_a_malformed_value_never_becomes_one(node):
    with pytest.raises(NotPlain):
        plain.rebuild(node)
    assert read_reply(["value", node]).raised == "NotPlain"


def test_keys_made_to_collide_cannot_hold_up_the_host():
    """Multiples of 2**61 - 1 all have the hash 0: a dict of them takes quadratic time to build, a minute and more."""
    node = ["d", *(part for i in range(60_000) for part in (["i", hex(i * (2**61 - 1))], 0))]
    began = time.thread_time()
    with pytest.raises(NotPlain, match="collide"):
        plain.rebuild(node)
    assert time.thread_time() - began < 2.0


def test_arguments_that_are_not_plain_are_the_callers_mistake():
    with pytest.raises(NotPlain):
        run_calls("def f(x): return 1", [Call("f", (object(),))])


# -- runs ----------------------------------------------------------------------------------------------------------------


def test_calls_in_turn_keep_the_programs_state(tier):
    program = "seen = []\ndef push(x, *, twice=False):\n    seen.append(x * (2 if twice else 1))\n    return list(seen)"
    result = run_calls(program, [Call("push", (1,)), Call("push", (5,), {"twice": True})])
    assert result.end == "finished"
    assert [reply.value for reply in result.replies if reply] == [[1], [1, 10]]
    assert result.jail == tier


def test_methods_coroutines_and_exceptions():
    program = (
        "class Solution:\n    def __init__(self): self.base = 10\n    def add(self, x): return self.base + x\n"
        "async def later(x):\n    import asyncio\n    await asyncio.sleep(0)\n    return x\n"
        "def bad(): raise KeyError('k')\nclass Own(Exception):\n    def __str__(self): raise RuntimeError\ndef worse(): raise Own"
    )
    result = run_calls(program, [Call("Solution.add", (5,)), Call("later", (7,)), Call("bad"), Call("worse"), Call("none")])
    told = [(reply.value, reply.raised) for reply in result.replies if reply]
    assert told == [(15, ""), (7, ""), (None, "KeyError"), (None, "Own"), (None, "NameError")]


TRIES = 5
"""A host that is kept from running looks up late: on a busy machine that happens, a jail that does not keep time is late every time."""

ENDS = [
    ("raise ValueError('x')", "load"),
    ("import sys; sys.exit(0)", "load"),
    ("def", "load"),
    ("import os; os._exit(0)", "exit"),
    ("import os, signal; os.abort()", "crash"),
    ("while True: pass", "cpu"),
    ("import time; time.sleep(30)", "wall"),
    ("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pthread_sigmask(0, range(1, 65))\ntime.sleep(30)", "wall"),
    ("x = 9 ** 9 ** 9", "cpu"),
    ("x = bytearray(2 * 10 ** 9)", "memory"),
    ("import sys\nwhile True: sys.stdout.write('x' * 100_000)", "output"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "end"), ENDS, ids=[end + str(i) for i, (_, end) in enumerate(ENDS)])
def test_how_a_run_ends(program, end, tier):
    wall = 0.6 if end == "wall" else 20.0  # CPU decides: on a busy machine the wall clock must not get there first
    for attempt in range(TRIES):
        result = run_calls(program, [Call("f")], Limits(cpu_s=0.3, wall_s=wall))
        assert result.end == end, result
        assert result.replies == (None,)
        assert len(result.stdout) <= 64 * 1024
        assert len(result.stderr) <= 64 * 1024
        assert result.wall_s < wall + 10  # a program that is not ended sleeps for 30 s
        assert result.cpu_s < 0.3 + 3
        if (result.wall_s < wall + 0.5 and result.cpu_s < 0.3 + 0.25) or attempt == TRIES - 1:
            break
        time.sleep(attempt)
    assert result.wall_s < wall + 0.5
    assert result.cpu_s < 0.3 + 0.25


def test_a_script_has_its_input_output_and_status(tier):
    result = run_script("import sys\nfor line in sys.stdin: print(line.strip()[::-1])\nsys.exit(3)", "abc\ndéf\n")
    assert (result.stdout, result.status, result.end) == ("cba\nféd\n", 3, "exit")
    whole = run_script("if __name__ == '__main__': print(len(input()))", "x" * 300_000 + "\n")
    assert (whole.stdout, whole.end, whole.status) == ("300000\n", "finished", 0)
    ignored = run_script("print('no thanks')", "x" * 3_000_000)
    assert (ignored.stdout, ignored.end) == ("no thanks\n", "finished")
    failed = run_script("1 / 0", "")
    assert failed.status == 1
    assert "ZeroDivisionError" in failed.stderr


def test_the_environment_is_empty_and_the_user_another(tier, monkeypatch):
    monkeypatch.setenv("COHORT_SECRET", "s3cret")
    program = "import os\ndef f(): return [dict(os.environ), os.getuid(), os.getcwd()]"
    reply = run_calls(program, [Call("f")]).replies[0]
    assert reply is not None
    environment, user, folder = reply.value
    assert "COHORT_SECRET" not in environment
    assert set(environment) == set(tiers.make_environment("")) | ({"PWD"} & set(environment))
    assert user != 0
    assert environment["TMPDIR"] == folder
    assert not os.path.exists(folder) or folder == tiers.SCRATCH


def test_set_order_does_not_depend_on_the_run():
    program = "def f(): return ' '.join({'a', 'b', 'c', 'd', 'e', 'f'})"
    seen = {run_calls(program, [Call("f")]).replies[0] for _ in range(3)}
    assert len(seen) == 1


# -- trusted test code -----------------------------------------------------------------------------------------------------


def test_test_code_calls_the_program_through_a_proxy(tier):
    result = run_checks(
        "def half(x):\n    if x < 0: raise ValueError('negative')\n    return x / 2",
        [
            "check(candidate)",
            "assert half(3) == 1",
            "assert half(undefined) == 1",
            "try:\n    half(-1)\nexcept ValueError as e:\n    assert 'negative' in str(e)\nelse:\n    assert False",
            "assert half(lambda: 1)",
            "assert half('x') == 1",
        ],
        ["half", "candidate=half"],
        setup="import math\ndef check(candidate):\n    for i in range(20):\n        assert math.isclose(candidate(i), i / 2)",
    )
    assert [check.passed for check in result.checks] == [True, False, None, True, None, False]
    assert result.end == "finished"


def test_a_programs_own_exception_is_caught_as_the_built_in_it_extends():
    program = "class Own(ValueError): pass\ndef f(): raise Own('x')"
    result = run_checks(program, ["try:\n    f()\nexcept ValueError as e:\n    assert str(e) == 'x'"], ["f"])
    assert [check.passed for check in result.checks] == [True]


def test_a_value_that_cannot_be_passed_on_is_the_programs_failure_not_the_tests():
    """f(f(1)) with a value nested too deep to be an argument: unscored would be an escape."""
    program = "def f(x):\n    a = []\n    for _ in range(97): a = [a]\n    return a"
    result = run_checks(program, ["assert f(f(1)) == 1"], ["f"])
    assert [check.passed for check in result.checks] == [False]


def test_a_check_that_fails_on_what_an_earlier_one_left_is_the_programs_failure():
    """Variables of the tests hold values of the program: a later check that trips over them had not asked it yet."""
    checks = ["total[0] = f(3)\nassert total[0] < 100", "assert 10 / total[0] < f(1)", "assert {}[3] == f(1)"]
    for third, passed in ((0, [True, False, None]), (9, [True, True, None])):
        result = run_checks(f"def f(x): return {third} if x == 3 else 5", checks, ["f"], setup="total = [10]")
        assert [check.passed for check in result.checks] == passed
        assert [check.detail for check in result.checks][2] == "KeyError: 3"


def test_installed_packages_only_on_request():
    program = "def f():\n    import numpy\n    return int(numpy.arange(4).sum())"
    assert [reply.raised for reply in run_calls(program, [Call("f")]).replies if reply] == ["ModuleNotFoundError"]
    assert [reply.value for reply in run_calls(program, [Call("f")], packages=True).replies if reply] == [6]


def test_a_program_that_ends_under_test_fails_the_rest():
    result = run_checks(
        "import os\ndef f(x):\n    if x: os._exit(0)\n    return 1", ["assert f(0) == 1", "f(1)", "assert True"], ["f"]
    )
    assert [check.passed for check in result.checks] == [True, False, False]
    assert result.end == "exit"


def test_test_code_never_meets_the_programs_objects():
    """A value that claims to equal everything arrives as the plain value it is made of."""
    program = "class Yes(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    __hash__ = int.__hash__\ndef f(): return Yes(0)"
    result = run_checks(program, ["assert f() == 42", "assert f() != 0"], ["f"])
    assert [check.passed for check in result.checks] == [False, False]


@pytest.mark.parametrize("program", ["import time\ntime.sleep(1.05)\ndef f(): return 1", "def f():\n    while True: pass"])
def test_a_program_that_leaves_no_time_has_failed_and_is_not_unscored(program, tier):
    result = run_checks(program, ["assert f() == 1"], ["f"], limits=Limits(cpu_s=0.5, wall_s=1))
    assert result.end in ("wall", "cpu")
    assert [check.passed for check in result.checks] == [False]


def test_a_program_is_watched_while_test_code_runs(tier):
    """Threads that go on working while the test code sleeps are paid for."""
    program = (
        "import threading\ndef burn():\n    while True: pass\n"
        "def f():\n    threading.Thread(target=burn, daemon=True).start()\n    return 1"
    )
    checks = ["assert f() == 1", "import time\ntime.sleep(30)\nassert f() == 1"]
    result = run_checks(program, checks, ["f"], limits=Limits(cpu_s=0.5, wall_s=60))
    assert result.end == "cpu"
    assert result.cpu_s < 2  # and not what half a minute of a core comes to
    assert [check.passed for check in result.checks] == [True, False]


def test_a_quick_script_loses_nothing_of_what_it_printed(tier):
    """It may have ended before the host has read that the jail is closed."""
    assert {run_script("print(1 / 3)", "").stdout for _ in range(40)} == {"0.3333333333333333\n"}


def test_nothing_is_sent_into_a_jail_before_its_clock_is_known(tier, monkeypatch):
    """A program that ends at once was gone before a busy host had looked for its process, and no program was judged."""
    monkeypatch.setattr(Jail, "_check_limits", lambda self, receiving=False: None)
    known = []

    def ask(self, request, ask=Jail.request):
        known.append(self._watch.pid)
        return ask(self, request)

    monkeypatch.setattr(Jail, "request", ask)
    with Jail("script", "import sys\nsys.exit(0)\n", Limits()) as jail, pytest.raises(ProcessEnded) as ended:
        jail.wait()
    assert ended.value.kind == "exit"
    assert len(known) == 1
    assert known[0]


def test_a_reply_in_time_counts_however_late_the_host_looks(tier):
    """A host that was held up between the reply and its own look at the clock does not charge the program for it."""

    def ask_and_be_late(jail: Jail) -> None:
        jail.send(("f", (), {}))
        jail._take_turn()
        assert select.select([jail._pipes["replies"]], [], [], 60)[0]
        jail._watch.deadline = time.monotonic() - 1

    limits = Limits(wall_s=60)
    with Jail("calls", "def f(): return 1", limits) as jail:
        assert jail.receive()[0] == "loaded"
        ask_and_be_late(jail)
        assert jail.receive()[0] == "value"
        jail.charge(limits)
        ask_and_be_late(jail)
        with pytest.raises(ProcessEnded) as ended:  # a reply that nobody waits for keeps nothing alive
            jail.wait()
        assert ended.value.kind == "wall"


AT_ONCE = {
    "files": "import os\nfor _ in range(70):\n    os.mkdir('d')\n    os.chdir('d')\nimport time\ntime.sleep(9)",
    "memory": (
        "import threading, time\nfor _ in range(200):\n    try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
        "    except RuntimeError: raise MemoryError"
    ),
    "exit": "import os\nos._exit(3)",
}


@pytest.mark.parametrize("end", AT_ONCE)
def test_immediate_failures_are_the_programs_fault(end, tier, monkeypatch):
    """However late a busy host comes to read that the jail is closed: no program of a jail that did not start has begun."""
    if (tier, end) == ("bubblewrap", "files"):
        pytest.skip("a file system of its own has no limit on depth")

    def read_late(self, name, serve=Jail._serve):
        open_still = serve(self, name)
        if name == "replies":
            time.sleep(0.1)
        return open_still

    monkeypatch.setattr(Jail, "_serve", read_late)
    assert run_calls(AT_ONCE[end], [Call("f")], Limits(threads=32)).end == end


def test_contest_programs_may_end_with_exit():
    assert run_script("print(1)\nexit()", "").stdout == "1\n"
    assert run_script("print(1)\nquit(0)\nprint(2)", "").stdout == "1\n"


def test_standard_input_does_not_depend_on_who_else_was_forked():
    """It is a sealed file: nothing holds its other end open, and nothing in the jail can change it."""
    program = "import os, sys\nprint(len(sys.stdin.read()))\ntry:\n    os.write(0, b'x')\nexcept OSError as e:\n    print(type(e).__name__)"
    assert run_script(program, "ab" * 500).stdout == "1000\nOSError\n"


def test_test_code_that_does_not_load_fails_no_program():
    result = run_checks("def f(): return 1", ["assert f() == 1"], ["f"], setup="import no_such_module")
    assert [check.passed for check in result.checks] == [None]


# -- machinery -------------------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind(tier):
    before = (open_descriptors(), scratch_folders(), children())
    for program in ("def f(): return 1", "while True: pass", "import os; os._exit(1)", "raise SystemExit"):
        run_calls(program, [Call("f")], Limits(cpu_s=0.2, wall_s=20))
    run_checks("def f(): return 1", ["assert f() == 1"], ["f"])
    assert (open_descriptors(), scratch_folders(), children()) == before


def test_folders_of_killed_hosts_are_swept_and_no_others(tmp_path, monkeypatch):
    from cohort_verify.sandbox import scratch

    dead = subprocess.Popen(["true"])
    dead.wait()
    target = tmp_path / "precious"
    target.mkdir(mode=0o755)
    here = scratch.name_beginning()
    spared = [f"{here}{os.getpid()}-b", f"{here}x", f"cohort-jail-{dead.pid}-another-boot", "other"]
    for name in (f"{here}{dead.pid}-a", *spared):
        (tmp_path / name / "deep").mkdir(parents=True)
    (tmp_path / f"{here}{dead.pid}-link").symlink_to(target)
    scratch.sweep_folders.__wrapped__(str(tmp_path), 0)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*spared, "precious", f"{here}{dead.pid}-link"}
    assert target.stat().st_mode & 0o777 == 0o755


def test_folders_nested_by_the_thousand_are_removed(tmp_path):
    from cohort_verify.sandbox.scratch import remove_folder, scratch_is_over

    top = tmp_path / "cohort-jail-1-deep"
    top.mkdir()
    before, descriptor = os.getcwd(), os.open(top, os.O_RDONLY)
    try:
        for _ in range(1100):  # deeper than Python calls itself, and longer than a path may be
            os.mkdir("deep", dir_fd=descriptor)
            inner = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
    finally:
        os.close(descriptor)
    assert os.getcwd() == before
    assert scratch_is_over(str(top), os.getpid(), 10**9, 10**9)
    remove_folder(str(top))
    assert not top.exists()


def open_descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def scratch_folders():
    import tempfile

    return sorted(path.name for path in Path(tempfile.gettempdir()).glob(f"cohort-jail-*-{os.getpid()}-*"))


def children():
    """Of every thread: jails are started by one of their own."""
    return sorted(child for task in Path("/proc/self/task").glob("*/children") for child in words_of(task))


def words_of(file):
    """None, where the thread or process has ended since it was listed."""
    try:
        return file.read_text().split()
    except OSError:
        return []


def test_a_jail_dies_with_its_host(tier, tmp_path):
    """Even if the host is killed in the middle of a run."""
    program = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'is inside')\ntime.sleep(60)"  # 15: a name for the process
    script = f"from cohort_verify.sandbox import *\nrun_calls({program!r}, [Call('f')], Limits(wall_s=60))"
    host = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        jailed: list[int] = []
        while not any(name_of(pid) == "is inside" for pid in jailed):
            assert time.monotonic() < deadline, "the program never began"
            jailed = descendants(host.pid)
            time.sleep(0.05)
    finally:
        host.kill()
        host.wait()
    deadline = time.monotonic() + 20
    while any(map(runs, jailed)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in jailed if runs(pid)]


def runs(pid):
    """Not dead; a dead one stays in the table until the machine's first process takes notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def name_of(pid):
    return " ".join(words_of(Path(f"/proc/{pid}/comm")))


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in words_of(task):
            found += [int(child), *descendants(int(child))]
    return found


def test_no_jail_means_nothing_is_run(monkeypatch):
    monkeypatch.setattr(tiers.shutil, "which", lambda program: None)
    monkeypatch.setattr(tiers, "read_landlock_version", lambda: 0)
    monkeypatch.delenv("COHORT_JAIL", raising=False)
    with pytest.raises(JailUnavailable, match=r"bubblewrap is not installed.*no Landlock"):
        run_calls("def f(): return 1", [Call("f")])
    monkeypatch.setenv("COHORT_JAIL", "gaol")
    with pytest.raises(JailUnavailable, match="bubblewrap, landlock, unsafe"):
        find_tier()


def test_a_jail_that_cannot_be_closed_runs_nothing(monkeypatch):
    """One step of giving up fails: the program is never looked at."""
    find_tier()
    monkeypatch.setattr("cohort_verify.sandbox.seccomp.build_filter", lambda *_: b"\x00" * 7)
    with pytest.raises(JailUnavailable, match="nothing was run"):
        run_calls("def f(): return 1", [Call("f")])


def test_the_unsafe_switch_is_named_in_every_result(monkeypatch):
    monkeypatch.setenv("COHORT_JAIL", "unsafe")
    result = run_calls("def f(): return 1", [Call("f")])
    assert (result.jail, result.replies[0].value if result.replies[0] else None) == ("unsafe", 1)


@pytest.mark.parametrize("field", ["cpu_s", "wall_s", "memory_mb", "output_kb", "files_mb", "threads"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_limits_nothing_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})


def test_the_filter_is_well_formed_on_both_architectures():
    for machine in ARCHITECTURES:
        code = build_filter(1, True, False, machine)
        count = len(code) // 8
        assert len(code) % 8 == 0
        for at in range(count):
            kind, yes, no, _ = struct.unpack_from("HBBI", code, 8 * at)
            assert kind in (0x20, 0x15, 0x35, 0x45, 0x06)
            if kind & 7 == 5:  # every jump stays inside
                assert at + 1 + max(yes, no) < count
        assert struct.unpack_from("HBBI", code, 8 * (count - 1))[3] == 0x7FFF0000


@pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="other architecture")
def test_system_call_numbers_are_the_kernels():
    """Against the C header, where there is one."""
    header = Path(
        "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
        if platform.machine() == "x86_64"
        else "/usr/include/asm-generic/unistd.h"
    )
    if not header.exists():
        pytest.skip("no kernel headers here")
    known = {}
    for line in header.read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "#define" and words[1].startswith("__NR_") and words[2].isdigit():
            known[words[1].removeprefix("__NR_")] = int(words[2])
    column = list(ARCHITECTURES).index(platform.machine())
    ours = {name: both[column] for name, both in NUMBERS.items() if name in known}
    assert len(ours) > 80
    assert ours == {name: known[name] for name in ours}


# -- workers ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker_module(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    folder.chmod(0o755)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        if parent.name.startswith("pytest"):
            parent.chmod(0o755)
    (folder / "jailed_helper.py").write_text(
        "import os, time\n"
        "def answer(message):\n"
        "    kind, value = message\n"
        "    if kind == 'echo': return value\n"
        "    if kind == 'loop':\n        while True: pass\n"
        "    if kind == 'sleep': time.sleep(value)\n"
        "    if kind == 'memory': return len(bytearray(value))\n"
        "    if kind == 'exit': os._exit(0)\n"
        "    if kind == 'raise': raise KeyError(value)\n"
        "    if kind == 'write': open(value, 'w').write('x')\n"
        "    if kind == 'pid': return os.getpid(), os.getuid()\n"
        "    if kind == 'print': print('x' * value); return value\n"
        "    if kind == 'burn':\n"
        "        began = time.process_time()\n"
        "        while time.process_time() < began + value: pass\n"
        "        return time.process_time() - began\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    return "jailed_helper:answer"


def test_a_worker_answers_and_survives_what_it_can(worker_module, tier):
    limits = Limits(cpu_s=0.3, wall_s=60.0, memory_mb=256)
    pool = WorkerPool(worker_module, limits, size=1)
    try:
        assert pool.ask(["echo", {"a": [1, 2.5, None, "é"]}]).value == {"a": [1, 2.5, None, "é"]}
        assert (pool.ask(["raise", "k"]).problem, pool.replaced) == ("exception", 0)
        for question, problem in (("loop", "cpu"), ("sleep", "wall"), ("memory", "memory"), ("exit", "crash")):
            assert pool.ask([question, 10**9], replace(limits, wall_s=2.0) if problem == "wall" else None).problem == problem
            assert pool.ask(["echo", 1]).value == 1
        assert pool.replaced == 2 + 2 * 2  # memory and a crash are tried once more in a fresh one
    finally:
        pool.close()


def test_a_worker_cannot_touch_the_machine(worker_module, tier, tmp_path):
    target = tmp_path / "canary"
    tmp_path.chmod(0o777)
    pool = WorkerPool(worker_module, Limits(), size=1)
    try:
        assert pool.ask(["write", str(target)]).problem == "exception"
        assert not target.exists()
        assert pool.ask(["pid", 0]).value[1] != 0
    finally:
        pool.close()


def test_the_cpu_limit_is_for_each_question(worker_module):
    """A worker that has worked for long is not charged for it."""
    pool = WorkerPool(worker_module, Limits(cpu_s=0.8, wall_s=60), size=1)
    try:
        for _ in range(4):
            assert pool.ask(["burn", 0.3]).value >= 0.3
        assert pool.replaced == 0
    finally:
        pool.close()


def test_many_questions_are_answered_in_order_from_any_thread(worker_module):
    pool = shared_pool(worker_module, Limits(cpu_s=1, wall_s=60, memory_mb=300))
    assert shared_pool(worker_module, Limits(cpu_s=1, wall_s=60, memory_mb=300)) is pool
    answers = {}
    threads = [
        threading.Thread(target=lambda i=i: answers.update({i: pool.ask_many([["echo", i * 100 + j] for j in range(30)])}))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {i: [answer.value for answer in found] for i, found in answers.items()} == {
        i: [i * 100 + j for j in range(30)] for i in range(3)
    }
    pool.close()


def test_an_idle_worker_that_died_is_replaced_without_a_failure(worker_module):
    pool = WorkerPool(worker_module, Limits(), size=1)
    try:
        assert pool.ask(["echo", 1]).value == 1
        worker = pool._places[0].worker
        worker._process._popen.kill()
        deadline = time.monotonic() + 20
        while worker.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not worker.alive
        assert pool.ask(["echo", 2]).value == 2
    finally:
        pool.close()


def test_a_full_worker_is_replaced_before_it_decides(worker_module):
    """What earlier questions have written or kept must not cost a later one its score."""
    pool = WorkerPool(worker_module, Limits(memory_mb=256), size=1)
    try:
        assert pool.ask(["echo", 1]).value == 1
        assert pool.ask(["memory", 10**9]).problem == "memory"  # asked again of a fresh one, with the same end
        assert pool.replaced == 2
        for _ in range(20):
            assert pool.ask(["print", 2**20]).value == 2**20
    finally:
        pool.close()


def test_a_worker_can_be_retired_after_an_answer(worker_module):
    pool = WorkerPool(worker_module, Limits(), size=1, retire_after=lambda answer: answer.value == "stop")
    try:
        assert [pool.ask(["echo", word]).value for word in ("go", "stop", "go")] == ["go", "stop", "go"]
        assert pool.replaced == 1
    finally:
        pool.close()


def test_a_closed_pool_answers_at_once_and_leaves_nothing(worker_module):
    before = children()
    pool = shared_pool(worker_module, Limits(memory_mb=333), size=2)
    assert pool.ask(["echo", 1]).value == 1
    pool.close()
    assert pool.ask(["echo", 1]).problem == "infrastructure"
    assert children() == before
    again = shared_pool(worker_module, Limits(memory_mb=333), size=2)
    assert again is not pool
    assert again.ask(["echo", 2]).value == 2
    again.close()


def test_descriptors_survive_a_machine_that_is_out_of_them(monkeypatch):
    """Every way to fail while starting gives back what it took, and blames no program."""
    find_tier()
    before = open_descriptors()
    real, left = os.pipe, [3]

    def scarce():
        left[0] -= 1
        if left[0] < 0:
            raise OSError(24, "Too many open files")
        return real()

    monkeypatch.setattr(os, "pipe", scarce)
    assert run_calls("def f(): return 1", [Call("f")]).end == "infrastructure"
    monkeypatch.setattr(os, "pipe", real)
    monkeypatch.setattr(
        "cohort_verify.sandbox.jail.start_process", lambda *_: (_ for _ in ()).throw(BlockingIOError(11, "no processes"))
    )
    assert run_calls("def f(): return 1", [Call("f")]).end == "infrastructure"
    assert open_descriptors() == before


def test_replies_have_a_limit_together():
    program = "def f(): return 'x' * 3_000_000"
    assert run_calls(program, [Call("f")] * 8).end == "output"


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(JailUnavailable, match="no_such_module"):
        WorkerPool("no_such_module:f", Limits(), size=1).ask(1)


def test_workers_see_the_two_packages_and_the_installed_ones():
    source = Path(cohort_verify.__file__).parents[1]
    assert find_own_packages() == {name: str(source / name) for name in ("cohort", "cohort_verify")}
    assert {os.path.basename(folder) for folder in find_installed_packages()} <= {"site-packages", "dist-packages"}


def test_a_worker_idle_for_long_is_not_charged(worker_module):
    jail = Jail("worker", worker_module, Limits(wall_s=0.2), packages=find_installed_packages())
    try:
        jail.stop_charging(60)
        assert jail.receive() == ["loaded"]
        time.sleep(0.5)
        jail.charge(Limits(wall_s=60))
        assert jail.request(json.dumps(["echo", 5])) == ["value", 5]
    finally:
        jail.close()
