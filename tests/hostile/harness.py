"""Runs hostile and honest programs in the jail, and checks from outside what they did to the host.

    reports = run_elsewhere(["tcp", "fork"], tier="landlock", user="nobody")

The programs run under a separate process, the host: `python -m hostile.harness`, as root or as nobody, with its own temporary
folder, home and working folder, and as the reaper of orphans below it. It sets traps around each run (a canary folder,
listeners, secrets, a signal handler) and checks them afterwards. If the host itself dies or hangs, the process that started it
reports that and continues with the next program. Needs the standard library and cohort_verify.sandbox.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import importlib
import importlib.util
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import stat
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hostile.programs import SECRET_NUMBER, SECRET_WORD, HostileProgram

if TYPE_CHECKING:
    from hostile.controls import Control

TIERS = ("bubblewrap", "landlock")
USERS = ("root", "nobody")
NOBODY = 65534

OVERRUN_S = 0.5
"""Wall-clock time beyond the limit for starting the jail, closing it and cleaning up."""
TRIES = 3
"""A run whose only fault is being late is repeated. On a busy machine a run can be late once; a jail that does not keep time is
always late."""
USUAL_RUNS = 5
"""It is not late at all if the overrun is below this many times the shortest run at that moment: then the machine is busy."""
SURVIVAL_S = 0.5
DYING_S = 20.0
"""For processes that are dead but not yet gone."""
MEMORY_SLACK_MB = 64
HOST_SLACK_MB = 256
"""Memory that the host itself may need to read a program's output."""
SILENCE_S = 60.0
"""A host that is silent for so long has hung."""
SAMPLE_S = 0.02
PF_EXITING = 4
"""A kernel flag in /proc/PID/stat."""

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src"

WRITABLE_PLACES = (
    "/", "/usr", "/usr/bin", "/usr/lib", "/usr/local/bin", "/etc", "/bin", "/lib", "/var", "/opt", "/root", "/home", "/mnt",
    "/srv", "/boot", "/tmp", "/var/tmp", "/dev/shm", "/run", "/run/lock", "/dev", "/dev/mqueue", "/etc/cron.d",
    "/var/spool/cron/crontabs", "/etc/systemd/system", "/etc/profile.d", "/etc/init.d", "/sys/fs/cgroup",
)  # fmt: skip
"""Places where programs try to leave a file named after the run's marker."""


@dataclass(frozen=True)
class Bounds:
    """The limits of a run, with the names of cohort_verify.sandbox.Limits."""

    cpu_s: float = 1.0
    wall_s: float = 2.0
    memory_mb: int = 512
    output_kb: int = 64
    files_mb: int = 64
    threads: int = 64


USUAL = Bounds()
SHORT = Bounds(cpu_s=0.5, wall_s=1.0)


@dataclass(frozen=True)
class Report:
    """The outcome of one run of one program."""

    name: str
    category: str
    way: str
    """"calls", "checks", "script", "packages" or "worker"."""
    end: str
    detail: str = ""
    rewarded: bool = False
    """At least one expected value came back."""
    solved: bool = False
    """All expected values came back."""
    effects: tuple[str, ...] = ()
    """Everything on the host that is not as it should be. Empty if the jail held."""
    wall_s: float = 0.0
    overrun_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    """As reported by the jail."""
    seen_mb: float = 0.0
    """As seen from outside: memory of all processes below the host, without file pages."""
    host_mb: float = 0.0
    """The largest growth of the host's own memory."""
    survivors: int = 0


@dataclass
class Outcome:
    """A result of cohort_verify.sandbox, in one form for all ways of running a program."""

    end: str
    detail: str
    text: str
    """All output from the jail."""
    kept: tuple[str, str]
    right: tuple[bool, ...]
    """Whether each expected value came back."""
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    blamed_on_tests: bool = False


# ---------------------------------------------------------------------------------------------------------------------
# The programs
# ---------------------------------------------------------------------------------------------------------------------


def all_hostile() -> dict[str, HostileProgram]:
    """Return every hostile program by name."""
    programs: dict[str, HostileProgram] = {}
    for name in ("hostile.programs_a", "hostile.programs_b"):
        if importlib.util.find_spec(name) is None:
            continue
        module = importlib.import_module(name)
        for program in [*module.HOSTILE, *getattr(module, "NOT_PYTHON", ())]:
            if program.name in programs:
                raise ValueError(f"two hostile programs are called {program.name!r}; rename the one in {name}")
            programs[program.name] = program
    return programs


def ways(program: HostileProgram) -> tuple[str, ...]:
    """Return the ways to run a program. Forgeries also run against trusted test code, whose verdict they want to forge."""
    if program.ways:
        return program.ways
    if not program.calls:
        return ("script",)
    return ("calls", "checks") if program.category == "forgery" else ("calls",)


# ---------------------------------------------------------------------------------------------------------------------
# Traps
# ---------------------------------------------------------------------------------------------------------------------


class Traps:
    """Traps for one run: set before it, checked after it, removed at the end."""

    def __init__(self, base: Path, bounds: Bounds) -> None:
        self.marker = "".join(secrets.choice(string.ascii_lowercase) for _ in range(12))
        self.secret = "canary-secret-" + secrets.token_hex(12)
        self.key = 0x5C000000 + secrets.randbelow(2**20) * 64
        self.folder = base / self.marker
        self.canary, self.home, self.doors = self.folder / "canary", self.folder / "home", self.folder / "doors"
        for folder in (self.folder, self.canary, self.canary / "inner", self.home, self.home / ".ssh", self.doors):
            folder.mkdir()
            folder.chmod(0o777)
        (self.canary / "precious").write_text("precious\n")
        (self.canary / "precious").chmod(0o666)
        (self.canary / "inner" / "deep").write_text("deep\n")
        self.secret_file = self.folder / "answers.jsonl"
        for path in (self.secret_file, *(self.home / name for name in (".gitconfig", ".netrc", ".ssh/id_rsa"))):
            path.write_text(f"# {self.secret}\n")
            path.chmod(0o644)
        self.variable = "COHORT_TEST_" + self.marker.upper()
        os.environ[self.variable] = self.secret
        self.secret_descriptor = os.open(self.secret_file, os.O_RDONLY)
        os.set_inheritable(self.secret_descriptor, True)
        self._listen()
        self.queue = -1
        self._put_message()
        self.words = {
            "CANARY": str(self.canary),
            "SECRET_FILE": str(self.secret_file),
            "HOME": str(self.home),
            "SECRET_NAME": self.variable,
            "SECRET_FD": str(self.secret_descriptor),
            "TRAINER": os.getcwd(),
            "PROJECT": str(TESTS.parent),
            "PORT": str(self.port),
            "UDP_PORT": str(self.sockets["a UDP port"].getsockname()[1]),
            "ABSTRACT": self.marker,
            "ABSTRACT_DATAGRAM": self.marker + "d",
            "UNIX_PATH": str(self.doors / "door"),
            "HOST_PID": str(os.getpid()),
            "MARKER": self.marker,
            "KEY": str(self.key),
            "QUEUE": str(self.queue),
            "MEMORY_MB": str(bounds.memory_mb),
            "FILES_MB": str(bounds.files_mb),
        }
        self.before = picture(self.canary)

    def _listen(self) -> None:
        self.sockets: dict[str, socket.socket] = {}
        first = socket.create_server(("127.0.0.1", 0))
        self.port = first.getsockname()[1]
        self.sockets["a TCP port"] = first
        with contextlib.suppress(OSError):  # no IPv6, or the port is taken there
            self.sockets["a TCP port of version six"] = socket.create_server(("::1", self.port), family=socket.AF_INET6)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 0))
        self.sockets["a UDP port"] = datagrams
        for name, kind, address in (
            ("an abstract socket", socket.SOCK_STREAM, "\0" + self.marker),
            ("an abstract datagram socket", socket.SOCK_DGRAM, "\0" + self.marker + "d"),
            ("a named socket", socket.SOCK_STREAM, str(self.doors / "door")),
        ):
            door = socket.socket(socket.AF_UNIX, kind)
            door.bind(address)
            if kind == socket.SOCK_STREAM:
                door.listen()
            self.sockets[name] = door
        (self.doors / "door").chmod(0o777)
        for door in self.sockets.values():
            door.setblocking(False)

    def _put_message(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.queue = libc.msgget(0, 0o1666)
        if self.queue >= 0:
            text = self.secret.encode()
            block = ctypes.create_string_buffer((1).to_bytes(8, sys.byteorder) + text)
            libc.msgsnd(self.queue, block, ctypes.c_size_t(len(text)), 0o4000)

    def fill_in(self, source: str) -> str:
        return re.sub(r"@([A-Z_]+)@", lambda word: self.words.get(word.group(1), word.group(0)), source)

    def effects(self, outcome: Outcome) -> Iterator[str]:
        """Yield what has changed since the traps were set."""
        after = picture(self.canary)
        for path in sorted({*self.before, *after}):
            if self.before.get(path) != after.get(path):
                yield f"the canary folder changed: {path or '.'}"
        for name, door in self.sockets.items():
            if heard_on(door):
                yield f"reached {name} of the host"
        for line in outcome.text.splitlines():
            if line.startswith("BREACH"):
                yield line.strip()[:200]
        if self.secret in outcome.text:
            yield "a secret of the host came out"
        if str(SECRET_NUMBER) in outcome.text or SECRET_WORD in outcome.text:
            yield "an expected value came out"
        yield from self._left_behind()

    def _left_behind(self) -> Iterator[str]:
        places = {
            *WRITABLE_PLACES,
            sys.prefix,
            sys.base_prefix,
            os.path.dirname(sys.executable),
            os.getcwd(),
            str(self.home),
            *sys.path,
        }
        places |= {os.path.dirname(os.path.realpath(sys.executable)), os.path.dirname(os.__file__), os.environ["TMPDIR"]}
        for place in sorted(places):
            for path in (Path(place, self.marker), Path(place, "__pycache__", self.marker)):
                if os.path.lexists(path):
                    yield f"left {path} behind"
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for kind, column, control in (("shm", 0, "shmctl"), ("msg", 0, "msgctl"), ("sem", 0, "semctl")):
            for line in Path("/proc/sysvipc", kind).read_text().splitlines()[1:]:
                words = line.split()
                if self.key <= int(words[column]) < self.key + 64:
                    yield f"left a System V object behind ({kind})"
                    getattr(ctypes.CDLL(None), control)(int(words[1]), 0, None)
        if ctypes.CDLL(None).mq_unlink(f"/{self.marker}".encode()) == 0:
            yield "left a message queue behind"

    def close(self) -> None:
        os.environ.pop(self.variable, None)
        os.close(self.secret_descriptor)
        for door in self.sockets.values():
            door.close()
        if self.queue >= 0:
            ctypes.CDLL(None).msgctl(self.queue, 0, None)
        for folder in (self.canary, self.canary / "inner"):
            with contextlib.suppress(OSError):
                folder.chmod(0o777)
        shutil.rmtree(self.folder)


def picture(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return everything that can change in a folder, except access times."""
    seen: dict[str, tuple[Any, ...]] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        content: Any = None
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()[:1000]
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        attributes: list[str] = []
        with contextlib.suppress(OSError):
            attributes = os.listxattr(path, follow_symlinks=False)
        name = str(path.relative_to(folder)) if path != folder else ""
        seen[name] = (
            status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns, status.st_nlink, content, attributes,
        )  # fmt: skip
    return seen


def heard_on(door: socket.socket) -> bool:
    """Return whether someone connected or sent something."""
    try:
        if door.type == socket.SOCK_DGRAM:
            door.recv(100)
        else:
            door.accept()[0].close()
    except BlockingIOError:
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Processes
# ---------------------------------------------------------------------------------------------------------------------


def descendants(process: int) -> list[int]:
    """Return all processes below this one."""
    found: list[int] = []
    todo = [process]
    while todo:
        parent = todo.pop()
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{task}/children") as file:
                children = [int(word) for word in file.read().split()]
                found += children
                todo += children
    return found


def state_of(process: int) -> str:
    """Return the letter of the process's state, or ""."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def is_dying(process: int) -> bool:
    """Return whether the process is dead, exiting, or killed but not scheduled yet."""
    try:
        words = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        rows = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text(errors="replace").splitlines())
    except (OSError, ValueError):
        return True
    pending = int(rows["SigPnd"], 16) | int(rows["ShdPnd"], 16)
    return words[0] in "ZX" or bool(int(words[6]) & PF_EXITING) or bool(pending >> (signal.SIGKILL - 1) & 1)


def reap() -> None:
    """Reap all dead children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def memory_of(process: int) -> float:
    """Return the MB of anonymous and shared pages. File pages, such as the interpreter's, are shared by everyone."""
    try:
        with open(f"/proc/{process}/status") as file:
            rows = dict(line.split(":", 1) for line in file)
    except (OSError, ValueError):
        return 0.0
    return sum(float(rows[name].split()[0]) for name in ("RssAnon", "RssShmem") if name in rows) / 1024


def named(marker: str) -> list[int]:
    """Return processes anywhere with the marker in their name, arguments or environment, except the host."""
    found = []
    own = {os.getpid()}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in own:
            for part in ("comm", "cmdline", "environ"):
                with contextlib.suppress(OSError):
                    if marker.encode() in Path(f"/proc/{entry}/{part}").read_bytes():
                        found.append(int(entry))
                        break
    return found


class Sampler(threading.Thread):
    """Samples the memory of all processes below the host many times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="sampler")
        self.pause = threading.Lock()
        """Held while descriptors are counted, because reading /proc opens one."""
        self.seen_mb = self.host_mb = self._host_start = 0.0
        self.start()

    def begin(self) -> None:
        self._host_start = memory_of(os.getpid())
        self.seen_mb = self.host_mb = 0.0

    def run(self) -> None:
        while True:
            with self.pause:
                self.seen_mb = max(self.seen_mb, sum(memory_of(process) for process in descendants(os.getpid())))
                self.host_mb = max(self.host_mb, memory_of(os.getpid()) - self._host_start)
            time.sleep(SAMPLE_S)


# ---------------------------------------------------------------------------------------------------------------------
# The host
# ---------------------------------------------------------------------------------------------------------------------


class Host:
    """Runs programs in the jail and watches its surroundings. One per process."""

    def __init__(self, base: Path, bounds: Bounds) -> None:
        from cohort_verify import sandbox

        self.sandbox, self.base, self.bounds = sandbox, base, bounds
        self.limits = sandbox.Limits(**asdict(bounds))
        self.signals: list[str] = []
        for number in (signal.SIGWINCH, signal.SIGURG):
            signal.signal(number, lambda number, _: self.signals.append(signal.Signals(number).name))
        # Orphans come here instead of going to init, so that none is missed.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        self.sampler = Sampler()
        # The first run starts what the sandbox keeps. After it, everything must stay the same.
        self.usual_s()
        self.steady = self.picture()

    def usual_s(self) -> float:
        """Return the seconds that the shortest run takes at the moment."""
        began = time.monotonic()
        execute(self.sandbox, self.limits, HostileProgram("warm", "hang", "", wanted_stdout="1\n"), "script", "print(1)\n")
        return time.monotonic() - began

    def run_control(self, control: Control) -> Report:
        """Run a deed of the host itself in place of a jailed program."""
        calm = Outcome("finished", "", "", ("", ""), (False,))
        self.execute = lambda *_: control.deed(self, self.traps, calm) or calm  # type: ignore[method-assign]
        return self.run_once(HostileProgram(control.name, "escape", ""), "control")

    def picture(self) -> dict[str, Any]:
        """Return the state of the host and its surroundings that must not change."""
        with self.sampler.pause:
            descriptors = open_descriptors()
        return {
            "descriptors": descriptors,
            "threads": threading.active_count(),
            "temporary files": sorted(os.listdir(os.environ["TMPDIR"])),
            "working folder": sorted(os.listdir(".")),
            "priority": os.getpriority(os.PRIO_PROCESS, 0),
            "processors": sorted(os.sched_getaffinity(0)),
            "policy": os.sched_getscheduler(0),
            "memory score": Path("/proc/self/oom_score_adj").read_text().strip(),
            "control groups": Path("/proc/self/cgroup").read_text(),
            "jail folders": sorted(name for name in os.listdir("/dev/shm") if "cohort" in name),
        }

    def run(self, program: HostileProgram, way: str) -> Report:
        for _ in range(TRIES):
            report = self.run_once(program, way)
            if not (report.effects and report.overrun_s > OVERRUN_S and len(report.effects) == 1):
                return report
            if report.overrun_s < USUAL_RUNS * self.usual_s():
                return dataclasses.replace(report, effects=())
        return report

    def run_once(self, program: HostileProgram, way: str) -> Report:
        traps = self.traps = Traps(self.base, self.bounds)
        self.signals.clear()
        effects: list[str] = []
        self.sampler.begin()
        began = time.monotonic()
        try:
            outcome = self.execute(program, way, traps.fill_in(program.source))
        except BaseException as problem:
            outcome = Outcome("raised", f"{type(problem).__name__}: {problem}"[:300], "", ("", ""), ())
            effects.append(f"the host raised {outcome.detail}")
        wall = time.monotonic() - began
        try:
            survivors = self.survivors(traps.marker)
            effects += [f"process {process} was left ({name})" for process, name in survivors.items()]
            effects += traps.effects(outcome)
        finally:
            traps.close()
        effects += self.changes()
        effects += [f"the host got {name}" for name in self.signals]
        overrun = wall - self.bounds.wall_s
        effects += self.excesses(outcome, overrun, jails=2 if way == "checks" else 1)
        return Report(
            name=program.name,
            category=program.category,
            way=way,
            end=outcome.end,
            detail=outcome.detail[:200],
            rewarded=any(outcome.right),
            solved=bool(outcome.right) and all(outcome.right),
            effects=tuple(dict.fromkeys(effects)),
            wall_s=round(wall, 3),
            overrun_s=round(max(0.0, overrun), 3),
            cpu_s=round(outcome.cpu_s, 3),
            peak_mb=round(outcome.peak_mb, 1),
            seen_mb=round(self.sampler.seen_mb, 1),
            host_mb=round(self.sampler.host_mb, 1),
            survivors=len(survivors),
        )

    def execute(self, program: HostileProgram, way: str, source: str) -> Outcome:
        return execute(self.sandbox, self.limits, program, way, source)

    def survivors(self, marker: str) -> dict[int, str]:
        """Return processes that are still alive after half a second and not about to die, and kill them.

        Dead orphans are reaped, as init would do. benchmarks/jail.py soak tests whether the sandbox reaps its own children.
        """
        began = time.monotonic()
        while True:
            reap()
            left = {process: f"a child of the host, state {state_of(process)}" for process in descendants(os.getpid())}
            seconds = time.monotonic() - began
            if not left or seconds > (DYING_S if all(map(is_dying, left)) else SURVIVAL_S):
                break
            time.sleep(0.01)
        left.update(dict.fromkeys(named(marker), "carries the marker"))
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        deadline = time.monotonic() + 2.0
        while left and descendants(os.getpid()) and time.monotonic() < deadline:
            time.sleep(0.01)
            reap()
        return left

    def changes(self) -> Iterator[str]:
        now = self.picture()
        for what, before in self.steady.items():
            if now[what] != before:
                yield f"{what} of the host changed: {str(before)[-150:]} -> {str(now[what])[-150:]}"
        self.steady = now

    def excesses(self, outcome: Outcome, overrun: float, jails: int) -> Iterator[str]:
        if outcome.end == "infrastructure":
            yield f"the program made itself unscored: {outcome.detail[:100]}"
        if outcome.blamed_on_tests:
            yield "the program made itself unscored: the tests were blamed"
        if overrun > OVERRUN_S:
            yield f"beyond the limit on time by {overrun:.2f} s"
        allowed = self.bounds.memory_mb + MEMORY_SLACK_MB * jails
        for what, amount in (("reported", outcome.peak_mb), ("seen", self.sampler.seen_mb)):
            if amount > allowed:
                yield f"{amount:.0f} MB {what}, {allowed} allowed"
        if self.sampler.host_mb > HOST_SLACK_MB:
            yield f"the host grew by {self.sampler.host_mb:.0f} MB"
        for stream, kept in zip(("output", "errors"), outcome.kept, strict=True):
            if (
                len(kept.encode("utf-8", errors="surrogatepass")) > 3 * self.bounds.output_kb * 1024
                or len(kept) > self.bounds.output_kb * 1024
            ):
                yield f"{len(kept)} characters of {stream} kept"


def execute(sandbox: Any, limits: Any, program: HostileProgram, way: str, source: str) -> Outcome:
    """Run a program in the jail and compare the result with the rewarded values."""
    if way == "script":
        result = sandbox.run_script(source, program.stdin, limits)
        right = result.end in ("finished", "exit") and result.stdout == program.wanted_stdout != ""
        return outcome_of(result, (right,))
    if way == "checks":
        # As strict as the comparison of calls below: True is not 1.
        checks = [
            f"got = {ask.function}(*{ask.args!r}, **{dict(ask.kwargs)!r})\n"
            f"assert type(got) is type({ask.wanted!r}) and got == {ask.wanted!r}"
            for ask in program.calls
        ]
        result = sandbox.run_checks(source, checks, sorted({ask.function for ask in program.calls}), limits=limits)
        outcome = outcome_of(result, tuple(check.passed is True for check in result.checks))
        return dataclasses.replace(outcome, blamed_on_tests=any(check.passed is None for check in result.checks))
    if way == "worker":
        return take_over_worker(sandbox, limits, source)
    calls = [sandbox.Call(ask.function, ask.args, ask.kwargs) for ask in program.calls]
    result = sandbox.run_calls(source, calls, limits, packages=way == "packages")
    right = tuple(
        reply is not None and not reply.raised and type(reply.value) is type(ask.wanted) and reply.value == ask.wanted
        for reply, ask in zip(result.replies, program.calls, strict=True)
    )
    return outcome_of(result, right, "\n".join(shortened(reply) for reply in result.replies))


def take_over_worker(sandbox: Any, limits: Any, source: str) -> Outcome:
    """Run the program inside a jailed worker, as if a verifier had evaluated the text. Its output comes back as an error
    message.
    """
    printed = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as printed:\n    solve(17)\n"
    code = f"{source}\n{printed}raise RuntimeError(printed.getvalue())"
    with contextlib.closing(sandbox.WorkerPool("builtins:exec", limits, size=1)) as pool:
        answer = pool.ask(f"exec({code!r}, {{'__name__': 'program'}})")
    ended = answer.problem if answer.problem != "exception" else "finished"
    return Outcome(ended, "", answer.detail, ("", ""), (False,))


def outcome_of(result: Any, right: tuple[bool, ...], replies: str = "") -> Outcome:
    return Outcome(
        end=result.end,
        detail=result.detail,
        text="\n".join((result.stdout, result.stderr, result.detail, replies)),
        kept=(result.stdout, result.stderr),
        right=right,
        cpu_s=result.cpu_s,
        peak_mb=result.peak_mb,
    )


def open_descriptors() -> list[str]:
    """Return the open descriptors of this process and their targets."""
    found = []
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        with contextlib.suppress(OSError):
            found.append(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def shortened(reply: Any) -> str:
    """Return the text of a reply, with the whole value if it can be written."""
    if reply is None:
        return ""
    try:
        return f"{reply.raised} {reply.detail} {str(reply.value)[:200_000]}"
    except (ValueError, RecursionError):  # an integer with too many digits to print
        return f"{reply.raised} {reply.detail}"


# ---------------------------------------------------------------------------------------------------------------------
# Another user, another process
# ---------------------------------------------------------------------------------------------------------------------


def why_not(tier: str, user: str) -> str:
    """Return why this combination cannot be tested here, or ""."""
    if sys.platform != "linux":
        return "the jail needs Linux"
    if user == "root" and os.getuid() != 0:
        return "not started as root"
    if user == "nobody" and os.getuid() == 0 and not os.access("/usr/bin/python3", os.X_OK):
        return "no /usr/bin/python3 that nobody could start"
    with stage() as folder:
        script = "import sys; from cohort_verify.sandbox import find_tier; find_tier(sys.argv[1])"
        ended = subprocess.run(
            [interpreter_for(user), "-c", script, tier], env=environment_for(folder, tier), cwd=folder / "work", capture_output=True,
            text=True, **identity(user),
        )  # fmt: skip
    return "" if ended.returncode == 0 else ended.stderr.strip().splitlines()[-1]


def interpreter_for(user: str) -> str:
    """Return an interpreter that the user can start; nobody may not be able to enter the virtual environment."""
    return "/usr/bin/python3" if user == "nobody" and os.getuid() == 0 else sys.executable


def identity(user: str) -> dict[str, Any]:
    if user == "nobody" and os.getuid() == 0:
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    return {}


PROJECT_FILES = ("pyproject.toml", "answers.jsonl", "recipes/own.toml", "tests/test_answers.py", "runs/first/rollouts.jsonl")
"""Files of a project outside the import packages, each with a reference answer."""


@contextlib.contextmanager
def stage(layout: str = "checkout") -> Iterator[Path]:
    """Create a project that everyone can read, with these programs, and folders for the host to work in.

    The import packages are in its src folder (layout "checkout") or in the .venv that a wheel was installed into ("wheel").
    With "exposed" the project's files are also copied next to the installed packages, where programs may read them.
    """
    folder = Path(tempfile.mkdtemp(prefix="cohort-hostile-"))
    try:
        ignored = shutil.ignore_patterns("__pycache__")
        packages = folder / (f".venv/lib/python3.{sys.version_info.minor}/site-packages" if layout != "checkout" else "src")
        shutil.copytree(SOURCE / "cohort_verify", packages / "cohort_verify", ignore=ignored)
        (packages / "cohort" / "recipe").mkdir(parents=True)
        (packages / "cohort" / "__init__.py").write_text('"""Stands for the other import package."""\n')
        shutil.copytree(TESTS / "hostile", folder / "tests" / "hostile", ignore=ignored)
        for file in (
            place / name for place in (folder, *([packages] if layout == "exposed" else ())) for name in PROJECT_FILES
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'answer = "{SECRET_WORD}"\n')
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for part in ("work", "traps", "temporary", "home"):
            (folder / part).mkdir()
            (folder / part).chmod(0o777)
        (folder / "work" / "rows.jsonl").write_text(f'{{"answer": "{SECRET_WORD}"}}\n')
        (folder / "work" / "rows.jsonl").chmod(0o644)
        yield folder
    finally:
        # Not shutil.rmtree, which cannot remove arbitrarily deep folders.
        subprocess.run(["rm", "-rf", "--", str(folder)], check=True)


def environment_for(folder: Path, tier: str) -> dict[str, str]:
    packages = next(folder.glob(".venv/lib/*/site-packages"), folder / "src")
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "PYTHONPATH": f"{packages}:{folder / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COHORT_JAIL": tier,
        "TMPDIR": str(folder / "temporary"),
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
    }


def run_elsewhere(
    names: Sequence[str], *, tier: str, user: str, bounds: Bounds = USUAL, kind: str = "hostile", layout: str = "checkout"
) -> list[Report]:
    """Return reports on these programs, in order, from hosts of that user and tier; for `layout` see `stage`."""
    reports: list[Report] = []
    todo = list(names)
    while todo:
        with stage(layout) as folder:
            done, problem = one_host(todo, folder, tier, user, bounds, kind)
        reports += done
        finished = list(dict.fromkeys(report.name for report in done))
        if not problem:
            break
        # The program after the last finished one was running, unless that one has ways left.
        last = done[-1] if done else None
        culprit = todo[0] if last is None else _next_after(todo, last, kind)
        reports.append(Report(culprit, _category(culprit, kind), "calls", "host", problem, effects=(problem,)))
        todo = [name for name in todo if name not in finished and name != culprit]
    return reports


def _next_after(todo: Sequence[str], last: Report, kind: str) -> str:
    if kind == "hostile" and ways(all_hostile()[last.name])[-1] != last.way:
        return last.name
    place = list(todo).index(last.name) + 1
    return todo[place] if place < len(todo) else last.name


def _category(name: str, kind: str) -> str:
    return all_hostile()[name].category if kind == "hostile" else kind


def one_host(names: Sequence[str], folder: Path, tier: str, user: str, bounds: Bounds, kind: str) -> tuple[list[Report], str]:
    """Return the reports, and what happened to the host if it did not finish."""
    command = [interpreter_for(user), "-m", "hostile.harness", "--kind", kind, "--base", str(folder / "traps")]
    command += ["--bounds", json.dumps(asdict(bounds))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment_for(folder, tier),
        cwd=folder / "work", start_new_session=True, text=True, **identity(user),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(list(names)))
    process.stdin.close()
    reports: list[Report] = []
    problem = "the host ended before its time"
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()[-2000:]), daemon=True)  # type: ignore[union-attr]
    reader.start()
    while True:
        if not select.select([process.stdout], [], [], SILENCE_S)[0]:
            problem = f"the host was silent for {SILENCE_S:g} s"
            break
        line = process.stdout.readline()
        if not line.startswith("{"):
            break
        row = json.loads(line)
        if row.get("done"):
            problem = ""
            break
        reports.append(Report(**{**row, "effects": tuple(row["effects"])}))
    if problem:
        process.kill()
    status = process.wait()
    reader.join(5)
    process.stdout.close()
    if problem:
        problem = f"{problem} (status {status}): {' '.join(errors).strip()[-600:]}"
    return reports, problem


def reports_on(host: Host, names: Sequence[str], kind: str) -> Iterator[Report]:
    if kind == "control":
        from hostile.controls import CONTROLS

        controls = {control.name: control for control in CONTROLS}
        yield from (host.run_control(controls[name]) for name in names)
    elif kind == "honest":
        from hostile.honest import HONEST

        honest = {program.name: program for program in HONEST}
        yield from (host.run(honest[name].as_hostile(), honest[name].way) for name in names)
    else:
        programs = all_hostile()
        yield from (host.run(programs[name], way) for name in names for way in ways(programs[name]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("hostile", "honest", "control"), required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--bounds", type=json.loads, required=True)
    chosen = parser.parse_args()
    names = json.loads(sys.stdin.read())
    host = Host(chosen.base, Bounds(**chosen.bounds))
    for report in reports_on(host, names, chosen.kind):
        print(json.dumps(asdict(report)), flush=True)
    print(json.dumps({"done": True}), flush=True)


if __name__ == "__main__":
    main()
