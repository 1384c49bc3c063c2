"""One harmless deed for each trap, done by the host itself: what the harness must see when a jail lets it happen.

Without them, a harness that looks in the wrong place would find every jail perfect.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hostile.programs import SECRET_NUMBER

if TYPE_CHECKING:
    from hostile.harness import Host, Outcome, Traps


@dataclass(frozen=True)
class Control:
    name: str
    seen_as: str
    """How an effect begins that must be reported."""
    deed: Callable[[Host, Traps, Outcome], Outcome | None]
    """Given what an uneventful run comes to; what it returns takes that place."""


KEPT: list[object] = []
"""What a deed must not lose when it returns."""


def nothing(host: Host, traps: Traps, calm: Outcome) -> None:
    """An uneventful run."""


def write_to_canary(host: Host, traps: Traps, calm: Outcome) -> None:
    (traps.canary / "new").touch()


def change_mode(host: Host, traps: Traps, calm: Outcome) -> None:
    (traps.canary / "precious").chmod(0o600)


def change_time(host: Host, traps: Traps, calm: Outcome) -> None:
    os.utime(traps.canary / "inner" / "deep", (1, 1))


def remove_precious(host: Host, traps: Traps, calm: Outcome) -> None:
    (traps.canary / "precious").unlink()


def connect(host: Host, traps: Traps, calm: Outcome) -> None:
    socket.create_connection(("127.0.0.1", traps.port)).close()


def send_datagram(host: Host, traps: Traps, calm: Outcome) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", traps.sockets["a UDP port"].getsockname())


def connect_abstract(host: Host, traps: Traps, calm: Outcome) -> None:
    with socket.socket(socket.AF_UNIX) as sender:
        sender.connect("\0" + traps.marker)


def send_abstract(host: Host, traps: Traps, calm: Outcome) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", "\0" + traps.marker + "d")


def connect_named(host: Host, traps: Traps, calm: Outcome) -> None:
    with socket.socket(socket.AF_UNIX) as sender:
        sender.connect(str(traps.doors / "door"))


def send_signal(host: Host, traps: Traps, calm: Outcome) -> None:
    os.kill(os.getpid(), signal.SIGWINCH)


def tell_secret(host: Host, traps: Traps, calm: Outcome) -> Outcome:
    return replace(calm, text=f"here: {Path(traps.secret_file).read_text()}")


def tell_variable(host: Host, traps: Traps, calm: Outcome) -> Outcome:
    return replace(calm, text=str(dict(os.environ)))


def tell_expected(host: Host, traps: Traps, calm: Outcome) -> Outcome:
    return replace(calm, text=f"it is {SECRET_NUMBER}.")


def tell_breach(host: Host, traps: Traps, calm: Outcome) -> Outcome:
    return replace(calm, text="fine\nBREACH opened a door\n")


def leave_marked_file(host: Host, traps: Traps, calm: Outcome) -> None:
    Path("/tmp", traps.marker).touch()


def leave_temporary_file(host: Host, traps: Traps, calm: Outcome) -> None:
    Path(os.environ["TMPDIR"], f"left-{traps.marker}").touch()


def leave_file_in_work(host: Host, traps: Traps, calm: Outcome) -> None:
    Path(f"left-{traps.marker}").touch()


def leave_descriptor(host: Host, traps: Traps, calm: Outcome) -> None:
    KEPT.append(open(os.devnull))  # noqa: SIM115


def leave_thread(host: Host, traps: Traps, calm: Outcome) -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def leave_child(host: Host, traps: Traps, calm: Outcome) -> None:
    KEPT.append(subprocess.Popen(["sleep", "30"]))


def leave_orphan(host: Host, traps: Traps, calm: Outcome) -> None:
    subprocess.run(["sh", "-c", "setsid sleep 30 >/dev/null 2>&1 &"], check=True)


def leave_segment(host: Host, traps: Traps, calm: Outcome) -> None:
    ctypes.CDLL(None).shmget(traps.key, ctypes.c_size_t(4096), 0o1600)


def be_late(host: Host, traps: Traps, calm: Outcome) -> None:
    time.sleep(host.bounds.wall_s + 0.7)


def wait_for(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """The sampler looks many times a second, if the machine lets it."""
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def grow(host: Host, traps: Traps, calm: Outcome) -> None:
    block = b"x" * (320 * 2**20)
    wait_for(lambda: host.sampler.host_mb > 300)
    del block


def let_child_grow(host: Host, traps: Traps, calm: Outcome) -> None:
    size = host.bounds.memory_mb + 100
    program = f"block = b'x' * {size * 2**20}; input()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    wait_for(lambda: host.sampler.seen_mb > size)
    child.communicate(b"\n")


def report_peak(host: Host, traps: Traps, calm: Outcome) -> Outcome:
    return replace(calm, peak_mb=host.bounds.memory_mb + 65.0)


def keep_output(host: Host, traps: Traps, calm: Outcome) -> Outcome:
    return replace(calm, kept=("x" * (64 * 1024 + 1), ""))


def fail(host: Host, traps: Traps, calm: Outcome) -> Outcome:
    return replace(calm, end="infrastructure")


def blame_tests(host: Host, traps: Traps, calm: Outcome) -> Outcome:
    return replace(calm, blamed_on_tests=True)


def be_slowed(host: Host, traps: Traps, calm: Outcome) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, own + 1 if own < 19 else own - 1)


def raise_error(host: Host, traps: Traps, calm: Outcome) -> None:
    raise KeyError("host")


NOTHING = Control("nothing", "", nothing)
"""No effect may be reported here."""

CONTROLS = [
    NOTHING,
    Control("write_to_canary", "the canary folder changed: new", write_to_canary),
    Control("change_mode", "the canary folder changed: precious", change_mode),
    Control("change_time", "the canary folder changed: inner/deep", change_time),
    Control("remove_precious", "the canary folder changed: precious", remove_precious),
    Control("connect", "reached a TCP port", connect),
    Control("send_datagram", "reached a UDP port", send_datagram),
    Control("connect_abstract", "reached an abstract socket", connect_abstract),
    Control("send_abstract", "reached an abstract datagram socket", send_abstract),
    Control("connect_named", "reached a named socket", connect_named),
    Control("send_signal", "the host got SIGWINCH", send_signal),
    Control("tell_secret", "a secret of the host came out", tell_secret),
    Control("tell_variable", "a secret of the host came out", tell_variable),
    Control("tell_expected", "an expected value came out", tell_expected),
    Control("tell_breach", "BREACH opened a door", tell_breach),
    Control("leave_marked_file", "left /tmp/", leave_marked_file),
    Control("leave_temporary_file", "temporary files of the host changed", leave_temporary_file),
    Control("leave_file_in_work", "working folder of the host changed", leave_file_in_work),
    Control("leave_descriptor", "descriptors of the host changed", leave_descriptor),
    Control("leave_thread", "threads of the host changed", leave_thread),
    Control("leave_child", "process ", leave_child),
    Control("leave_orphan", "process ", leave_orphan),
    Control("leave_segment", "left a System V object behind", leave_segment),
    Control("be_late", "beyond the limit on time by ", be_late),
    Control("grow", "the host grew by 3", grow),
    Control("let_child_grow", "6", let_child_grow),
    Control("report_peak", "577 MB reported", report_peak),
    Control("keep_output", "65537 characters of output kept", keep_output),
    Control("fail", "the program made itself unscored", fail),
    Control("blame_tests", "the program made itself unscored: the tests were blamed", blame_tests),
    Control("be_slowed", "priority of the host changed: ", be_slowed),
    Control("raise_error", "the host raised KeyError: 'host'", raise_error),
]
