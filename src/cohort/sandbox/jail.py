"""One jailed process: started, spoken to, limited, and ended for certain.

Everything happens in the thread that asks: it waits on the pipes and looks up every few milliseconds at the process's CPU
clock, its threads and, where the scratch folder is not a file system of its own, at that folder. A jail that was ended
leaves no process, descriptor or folder behind; only processes started here are ever signalled, and only while they are
not reaped, so that their ids cannot belong to anyone else.
"""

from __future__ import annotations

import contextlib
import errno
import json
import marshal
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.base.processes import children_of
from cohort.sandbox import seccomp, tiers
from cohort.sandbox.limits import FLOOD_BYTES, MAX_FILES, MAX_FOLDERS_DEEP, MAX_FRAME_BYTES, JailUnavailable, Limits
from cohort.sandbox.scratch import make_folder, remove_folder, scratch_is_over
from cohort.sandbox.spawner import next_user, reap_orphan, return_memory, sealed_input, spawn, wait_up_to
from cohort.sandbox.tiers import Tier, find_tier
from cohort.sandbox.values import MAX_NODES

HEADER_BYTES = 4
START_LIMIT_S = 30.0
"""For starting an interpreter and closing the jail, which no program is charged for."""
TICK_S = 0.02
"""How often limits are looked at."""
WALK_S = 0.008
"""How often the files of a scratch folder are counted: a disk takes in more than a megabyte in a millisecond."""
THREADS_MARGIN = 16
LARGE_BYTES = 256 * 1024
TRANSIENT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
"""Too few processes, pages, descriptors or blocks just now: not a property of the machine."""
BOOT = (Path(__file__).parent / "boot.py").read_text(encoding="utf-8")


class Ended(Exception):
    """The process is gone. kind is one of ENDS."""

    def __init__(self, kind: str, detail: str = "", status: int | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.status = kind, detail, status


class Stream:
    """Standard output or error: the beginning is kept, all of it is counted."""

    def __init__(self, keep: int) -> None:
        self._keep, self._kept = keep, bytearray()
        self.total = 0

    def add(self, piece: bytes) -> None:
        self.total += len(piece)
        self._kept += piece[: max(0, self._keep - len(self._kept))]

    @property
    def truncated(self) -> bool:
        return self.total > len(self._kept)

    def text(self) -> str:
        return self._kept.decode("utf-8", errors="replace")


class Jail:
    """A process in a jail of its own. Used by one thread at a time; `close` at the end, whatever happened."""

    def __init__(
        self,
        job: str,
        program: str,
        limits: Limits,
        *,
        extra: Mapping[str, Any] | None = None,
        packages: Sequence[str] = (),
        stdin: bytes | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.limits, self.tier = limits, tier or find_tier()
        self.stdout, self.stderr = Stream(limits.output_kb * 1024), Stream(limits.output_kb * 1024)
        self.cpu_s = 0.0
        self.peak_mb = 0.0
        """Resident memory, as often as it was looked at: every few milliseconds, and before a kill."""
        self._first_pid = self._pid = 0
        """Of the first process in the jail, with which all the others end, and of the interpreter."""
        self._handle = -1
        """A descriptor for exactly that first process, which no later one with its id can be taken for."""
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Ended | None = None
        self._scratch = ""
        self.companion: Jail | None = None
        """Another jail whose limits are looked at while this one is listened to."""
        self.questions = 0
        self._inner: dict[str, int] = {}
        """Ends of pipes that are the jail's, until it has them."""
        self._open: dict[int, str] = {}
        self._to_write: dict[int, memoryview] = {}
        self._incoming, self._info = bytearray(), bytearray()
        self._large_replies = self._reply_bytes = 0
        self._next_look = self._next_walk = 0.0
        self._lifetime_cpu = self._begun_cpu = 0.0
        self._deadline = time.monotonic() + START_LIMIT_S
        self._cpu_limit = START_LIMIT_S
        try:
            self._start(job, program, dict(extra or {}), [path for path in packages if os.path.exists(path)], stdin)
        except OSError as problem:
            self.close()
            if problem.errno in TRANSIENT:
                raise Ended("infrastructure", f"the jail did not start: {problem}") from problem
            raise JailUnavailable(f"the jail does not start: {problem}") from problem
        except BaseException:
            self.close()
            raise

    # -----------------------------------------------------------------------------------------------------------------
    # Starting
    # -----------------------------------------------------------------------------------------------------------------

    def _start(self, job: str, program: str, extra: dict[str, Any], packages: list[str], stdin: bytes | None) -> None:
        readable, wrapped = tiers.readable_folders(packages), self.tier.own_files
        if not wrapped:
            self._scratch = make_folder()
        outer = self._make_pipes()
        if stdin is not None:
            self._inner["stdin"] = sealed_input(stdin)
        inner = self._inner
        scratch = tiers.scratch_folder(readable) if wrapped else self._scratch
        command = [tiers.interpreter(), "-s", "-S", "-P", "-B", "-c", BOOT, str(inner["requests"]), str(inner["replies"])]
        if wrapped:
            prefix = tiers.bubblewrap_command(self.tier.bubblewrap, readable)
            command = [*prefix[:1], "--info-fd", str(inner["info"]), *prefix[1:], *command]
        passed = [inner["requests"], inner["replies"], *([inner["info"]] if wrapped else [])]
        self._process = spawn(
            lambda: subprocess.Popen(
                command,
                stdin=inner.get("stdin", subprocess.DEVNULL),
                stdout=inner["stdout"],
                stderr=inner["stderr"],
                pass_fds=passed,
                env=tiers.environment(scratch),
                start_new_session=True,
                cwd="/",
            )
        )
        self._close_inner()
        if not wrapped:
            self._first_pid = self._pid = self._process.pid
            self._forget(outer["info"])
            self._take_handle()
        dropped = next_user() if os.getuid() == 0 and self.tier.name != "unsafe" else None
        if dropped is not None and not wrapped:
            os.chown(self._scratch, dropped, dropped)
        setup: dict[str, Any] = {
            "job": job,
            "program": program,
            "unsafe": self.tier.name == "unsafe",
            "path": packages,
            "scratch": scratch,
            "user": dropped,
            "tmpfs": tiers.scratch_options(self.limits) if wrapped else "",
            "limits": tiers.process_limits(
                self.limits, own_user=dropped is not None or (wrapped and tiers.counts_per_namespace())
            ),
            "parent": None if wrapped else os.getpid(),
            "hold_folders": dropped is not None and not wrapped,
            "looked_at": not wrapped,
            "landlock": tiers.landlock_rules(self.tier, readable, scratch) if self.tier.name == "landlock" else None,
            "filter": seccomp.build_filter(tiers.JAILED_PID if wrapped else self._pid, wrapped, dropped is not None)
            if self.tier.name != "unsafe"
            else b"",
            **extra,
        }
        try:
            self.hear()  # it is there, and waits: a short program could be gone before anybody looks for it
            self._used_cpu()
            if not self._pid and not self._over():
                raise JailUnavailable("the jailed process cannot be found in /proc, so its CPU time could not be limited")
            word, *said = self.ask_raw(setup)
        except Ended as ended:
            detail = self.stderr.text().strip()[-500:] or ended.detail
            raise Ended("infrastructure", f"the jail did not start ({ended.kind}): {detail}") from None
        if word != "ready":
            raise JailUnavailable(f"the jail could not be closed, and nothing was run in it: {': '.join(map(str, said))}")
        # It waits for this word: what is found from here on, however soon, is the program's doing and not a jail that failed.
        self.charge(self.limits)
        self.tell("go")

    def _make_pipes(self) -> dict[str, int]:
        """The host's ends by name. Each end is known as soon as it exists, so that none is lost if the next cannot be had."""
        outer = {}
        for name in ("requests", "replies", "stdout", "stderr", "info"):
            reading, writing = os.pipe()
            self._inner[name], outer[name] = (reading, writing) if name == "requests" else (writing, reading)
            self._open[outer[name]] = name
            os.set_blocking(outer[name], False)
        return outer

    def _close_inner(self) -> None:
        while self._inner:
            os.close(self._inner.popitem()[1])

    # -----------------------------------------------------------------------------------------------------------------
    # Speaking
    # -----------------------------------------------------------------------------------------------------------------

    def charge(self, limits: Limits) -> None:
        """From now on the process pays, within these limits."""
        self._begun_cpu = self._used_cpu()
        self._cpu_limit = limits.cpu_s
        self._deadline = time.monotonic() + limits.wall_s

    def forget_output(self) -> None:
        """Another question: what was said to the last one no longer counts."""
        self.stdout, self.stderr = Stream(self.limits.output_kb * 1024), Stream(self.limits.output_kb * 1024)
        self._reply_bytes = 0

    def free_of_charge(self, wall_s: float) -> None:
        """From now on only the wall clock counts: for work of our own, such as an import."""
        self._begun_cpu, self._cpu_limit = self._used_cpu(), float("inf")
        self._deadline = time.monotonic() + wall_s

    @property
    def ended(self) -> bool:
        return self._end is not None or self._over()

    @property
    def has_more(self) -> bool:
        """It has said something that nobody has heard yet."""
        return bool(self._incoming)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def ask_raw(self, request: Any) -> list[Any]:
        """Send one request and return the reply, a list that begins with a word. Raises Ended, with all of it cleaned up."""
        self.tell(request)
        return self.hear()

    def tell(self, request: Any) -> None:
        body = marshal.dumps(request, 4)
        channel = next((descriptor for descriptor, name in self._open.items() if name == "requests"), None)
        if channel is not None:
            self._to_write[channel] = memoryview(len(body).to_bytes(HEADER_BYTES, "big") + body)

    def hear(self) -> list[Any]:
        while True:
            if self._has_reply():
                end = HEADER_BYTES + self._reply_size()
                body = bytes(self._incoming[HEADER_BYTES:end])
                del self._incoming[:end]
                return self._read(body)
            if self._reply_size() > MAX_FRAME_BYTES:
                self._stop(Ended("output", f"a reply of {self._reply_size()} bytes"))
            if "replies" not in self._open.values():
                self.wait()
            self._turn(hearing=True)

    def _reply_size(self) -> int:
        """Of the body that comes next; 0 where that is not known yet."""
        return int.from_bytes(self._incoming[:HEADER_BYTES], "big") if len(self._incoming) >= HEADER_BYTES else 0

    def _has_reply(self) -> bool:
        size = self._reply_size()
        return len(self._incoming) >= HEADER_BYTES + size and size <= MAX_FRAME_BYTES

    def _read(self, body: bytes) -> list[Any]:
        """The program can write here what it likes: that only ever hurts its own score."""
        # Counted before it is parsed: four bytes of text can be a list of a hundred.
        if body.count(b"[") + body.count(b",") > MAX_NODES + 16:
            self._stop(Ended("output", f"a reply of more than {MAX_NODES} values"))
        self._reply_bytes += len(body)
        if self._reply_bytes > FLOOD_BYTES:
            self._stop(Ended("output", f"replies of more than {FLOOD_BYTES >> 20} MiB together"))
        self._large_replies += len(body) > LARGE_BYTES
        with contextlib.suppress(ValueError, RecursionError, MemoryError):
            reply = json.loads(body)
            if isinstance(reply, list) and reply and isinstance(reply[0], str):
                return reply
        self._stop(Ended("crash", "a reply that makes no sense"))
        raise AssertionError

    def wait(self) -> None:
        """Listen until the process ends, and raise how it did."""
        while self._open or not self._over():
            self._turn()
        self._stop(self._epitaph())

    # -----------------------------------------------------------------------------------------------------------------
    # One turn: read, write, look at the limits
    # -----------------------------------------------------------------------------------------------------------------

    def _turn(self, hearing: bool = False) -> None:
        if self._end is not None:
            raise self._end
        poll = select.poll()
        for descriptor, name in self._open.items():
            if name != "requests":
                poll.register(descriptor, select.POLLIN)
            elif descriptor in self._to_write:
                poll.register(descriptor, select.POLLOUT)
        over = self._over()  # asked first: what a dead process has written is all there by the time of the poll
        left = self._deadline - time.monotonic()
        tick = WALK_S if self._scratch else TICK_S
        events = poll.poll(0 if over else max(0.0, min(tick, left)) * 1000)
        for descriptor, _ in events:
            self._serve(descriptor)
        now = time.monotonic()
        if now >= self._next_look or now > self._deadline:  # a program that writes byte by byte must not cost a look each
            self._next_look = now + tick / 2
            self._look(hearing)
            if self.companion is not None:
                self.companion._look()
        if over and not events:
            # Nothing is left to read: whoever still holds a pipe open is not the program.
            for descriptor in list(self._open):
                self._forget(descriptor)

    def _serve(self, descriptor: int) -> None:
        name = self._open[descriptor]
        if name == "requests":
            try:
                written = os.write(descriptor, self._to_write[descriptor][: 1 << 16])
            except BlockingIOError:
                return
            except OSError:  # it does not read any more
                self._forget(descriptor)
                return
            self._to_write[descriptor] = self._to_write[descriptor][written:]
            if not self._to_write[descriptor]:
                del self._to_write[descriptor]
            return
        try:
            piece = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._forget(descriptor)
        elif name == "replies":
            self._incoming += piece
            if len(self._incoming) > HEADER_BYTES + MAX_FRAME_BYTES + len(piece):
                self._stop(Ended("output", "replies that nobody asked for"))
        elif name == "info":
            self._learn_pid(descriptor, piece)
        else:
            stream = self.stdout if name == "stdout" else self.stderr
            stream.add(piece)
            if stream.total > FLOOD_BYTES:
                self._stop(Ended("output", f"more than {FLOOD_BYTES >> 20} MiB on {name}"))

    def _learn_pid(self, descriptor: int, text: bytes) -> None:
        """Bubblewrap tells the id of the jail's first process before that can run. Nobody is listened to after that."""
        self._info += text
        with contextlib.suppress(ValueError):  # it comes in pieces
            self._first_pid = int(json.loads(self._info)["child-pid"])
            self._take_handle()
            self._forget(descriptor)

    def _take_handle(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # gone already, or a kernel older than 5.3
            self._handle = os.pidfd_open(self._first_pid)

    def _learn_interpreter(self) -> None:
        """The only child of the jail's first process."""
        self._pid = next(iter(children_of(self._first_pid)), 0)

    def _forget(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self._to_write.pop(descriptor, None)
        os.close(descriptor)

    def _look(self, hearing: bool = False) -> None:
        """Enforce the limits. `hearing`: whoever waits for a reply takes one that is here, however late a busy host came to look.

        Nobody else is spared: a reply that nobody waits for would keep its program alive for ever.
        """
        used = self._used_cpu() - self._begun_cpu
        if used > self._cpu_limit:
            self._stop(Ended("cpu", f"{self._cpu_limit:g} s of CPU time"))
        if time.monotonic() > self._deadline and not (hearing and self._has_reply()):
            self._stop(Ended("wall", f"no end within {self.limits.wall_s:g} s"))
        status = self._status()
        self.peak_mb = max(self.peak_mb, status.get("VmHWM", 0) / 1024)
        if status.get("Threads", 0) > self.limits.threads + THREADS_MARGIN:
            self._stop(Ended("memory", f"more than {self.limits.threads} threads"))
        now = time.monotonic()
        if self._scratch and now >= self._next_walk:
            self._look_at_files()
            ended = time.monotonic()
            self._next_walk = ended + max(WALK_S, 4 * (ended - now))  # thousands of files: a fifth of the time, no more

    def _look_at_files(self) -> None:
        if scratch_is_over(self._scratch, self._pid, int(self.limits.files_mb * 2**20), MAX_FILES):
            self._stop(Ended("files", f"more than {self.limits.files_mb:g} MB, {MAX_FILES} files or {MAX_FOLDERS_DEEP} levels"))

    def _used_cpu(self) -> float:
        """CPU seconds of the process so far. Its clock id is its process id in the kernel's spelling."""
        if not self._pid and self._first_pid:
            self._learn_interpreter()
        if self._pid and not self._over():
            with contextlib.suppress(OSError):
                self._lifetime_cpu = max(self._lifetime_cpu, time.clock_gettime((~self._pid << 3) | 2))
        return self._lifetime_cpu

    def _status(self) -> dict[str, int]:
        """Numbers the kernel keeps of the process; empty when it is gone.

        The peak that wait4 reports would be no good: it begins with that of the process that started it, the trainer.
        """
        try:
            with open(f"/proc/{self._pid}/status", encoding="ascii", errors="replace") as file:
                lines = [line.split() for line in file]
        except OSError:
            return {}
        return {words[0][:-1]: int(words[1]) for words in lines if words and words[0] in ("VmHWM:", "Threads:")}

    # -----------------------------------------------------------------------------------------------------------------
    # Ending
    # -----------------------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        """Whether the process has ended. It is not reaped here: until then its id is certainly its own."""
        if self._process is None or self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _epitaph(self) -> Ended:
        self._reap()
        assert self._process is not None
        status = self._process.returncode
        if self.tier.own_files and status > 128:  # bubblewrap's way to say that a signal ended it
            status = 128 - status
        if status < 0:
            with contextlib.suppress(ValueError):
                return Ended("crash", f"ended by {signal.Signals(-status).name}", status)
            return Ended("crash", f"ended by signal {-status}", status)
        return Ended("exit", f"ended by itself with status {status}", status)

    def _stop(self, end: Ended) -> None:
        self._end = end
        self.close()
        raise end

    def _reap(self) -> None:
        """Kill what is left and wait for it. Bubblewrap leaves its child to init, which may be this very process."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if not self._over():
            self._used_cpu()
            self.peak_mb = max(self.peak_mb, self._status().get("VmHWM", 0) / 1024)
            if self._handle >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            if self._handle < 0 or not wait_up_to(self._over, 0.25):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # it leads the group, and it is not reaped yet
        if self._handle >= 0:
            select.select([self._handle], [], [], 1.0)  # readable once the process is dead
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = max(0.0, max(self._lifetime_cpu, usage.ru_utime + usage.ru_stime) - self._begun_cpu)
        except ChildProcessError:
            process.returncode = -signal.SIGKILL
        if self._handle >= 0:
            reap_orphan(self._handle)
            os.close(self._handle)
            self._handle = -1

    def close(self) -> None:
        """End the process if it runs, and leave nothing behind."""
        self._close_inner()
        self._reap()
        for descriptor in list(self._open):
            self._forget(descriptor)
        if self._scratch:
            remove_folder(self._scratch)
            self._scratch = ""
        if self._end is None:
            self._end = Ended("exit", "closed")
        if self._large_replies:
            self._large_replies = 0
            return_memory()

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
