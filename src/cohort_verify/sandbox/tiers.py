"""Finds out which jail this machine offers, and writes the command that starts it.

Tier "bubblewrap": separate namespaces (files, processes, network, IPC) that contain only the interpreter, the libraries it
needs and an empty scratch folder of limited size. Tier "landlock", for machines that refuse namespaces: the same process limits
and system-call filter, with Landlock rules instead of mounts; the host measures the scratch folder. Both change to an unused
user if the trainer is root. If neither works, nothing is run, unless COHORT_JAIL=unsafe is set, which every result then
records.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from cohort_verify.sandbox import seccomp
from cohort_verify.sandbox.limits import JailUnavailable, Limits
from cohort_verify.workers import ProcessEnded

VARIABLE = "COHORT_JAIL"
TIERS = ("bubblewrap", "landlock", "unsafe")
LIBRARY_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/lib", "/lib64")
DATA_FILES = ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SCRATCH = "/tmp"
"""The scratch folder in a bubblewrap jail, unless a readable folder is below it."""
OTHER_SCRATCH = "/scratch"

JAILED_PID = 2
"""Process id of the program in a bubblewrap jail, as it sees itself."""

FIRST_USER = 1_200_000_000
"""User ids for jails started by root. No account uses them. Each concurrent jail has its own, so that limits per user are
limits per jail and jails cannot touch each other."""
USERS_PER_TRAINER = 200

LANDLOCK_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file-system rights by Landlock version."""
READ_RIGHTS = (1 << 2) | (1 << 3)
DEVICE_RIGHTS = (1 << 1) | (1 << 2)
EXECUTE, MAKE_CHAR, MAKE_SOCKET, MAKE_BLOCK = 1 << 0, 1 << 6, 1 << 9, 1 << 11


@dataclass(frozen=True)
class Tier:
    name: str
    bubblewrap: str = ""
    """Path of bwrap."""
    landlock_version: int = 0

    @property
    def own_files(self) -> bool:
        return self.name == "bubblewrap"


def read_landlock_version() -> int:
    """Return Landlock's version; 0 if the kernel has none or it is switched off."""
    version = ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1) if sys.platform == "linux" else 0
    return max(int(version), 0)


_known: dict[Tier, str] = {}
"""Tier -> why it does not work, or ""."""


def find_problem(tier: Tier) -> str:
    """Return why a jail cannot be used, or "". Runs an empty program in the real jail. Temporary failures are not cached."""
    from cohort_verify.sandbox.jail import Jail

    if tier not in _known:
        try:
            with Jail("script", "", Limits(cpu_s=10, wall_s=30), tier=tier):
                _known[tier] = ""
        except JailUnavailable as problem:
            _known[tier] = f"{tier.name} is refused here ({problem})"
        except ProcessEnded as ended:
            if ended.kind != "infrastructure" or "(exit)" in ended.detail:
                _known[tier] = f"{tier.name} is refused here ({ended.detail})"
            return f"{tier.name} does not start ({ended.detail})"
    return _known[tier]


def find_tier(name: str = "") -> Tier:
    """Return the strongest jail of this machine, or the one of that name. Raises JailUnavailable with what is missing."""
    name = name or os.environ.get(VARIABLE, "")
    if name and name not in TIERS:
        raise JailUnavailable(f"{VARIABLE}: {name!r} is not a jail; use {', '.join(TIERS)}, or unset for the strongest.")
    if name == "unsafe":
        return Tier("unsafe")
    if sys.platform != "linux" or platform.machine() not in seccomp.ARCHITECTURES:
        raise JailUnavailable(
            f"untrusted code runs only on Linux on {' or '.join(seccomp.ARCHITECTURES)}: the kernel has to filter its system calls."
        )
    program, version = shutil.which("bwrap"), read_landlock_version()
    offers: dict[str, Tier | str] = {
        "bubblewrap": Tier("bubblewrap", bubblewrap=program)
        if program
        else "bubblewrap is not installed (Debian and Ubuntu: apt install bubblewrap)",
        "landlock": Tier("landlock", landlock_version=version)
        if version
        else "the kernel has no Landlock, or it is switched off (Linux 5.13 or newer, lsm=...,landlock)",
    }
    missing = []
    for offer in [offers[name]] if name else offers.values():
        problem = offer if isinstance(offer, str) else find_problem(offer)
        if isinstance(offer, Tier) and not problem:
            return offer
        missing.append(problem)
    raise JailUnavailable(f"no jail for untrusted code works here: {'; '.join(missing)}.")


def list_readable_folders(packages: Sequence[str]) -> list[str]:
    """Return the paths that a jailed interpreter may read: the interpreter, system libraries, and the given packages."""
    prefix = os.path.realpath(sys.base_prefix)
    own = [os.path.join(prefix, "lib"), os.path.join(prefix, "lib64")] if prefix != "/usr" else []
    wanted = [find_interpreter(), *own, *LIBRARY_FOLDERS, *DATA_FILES, *packages]
    return [path for path in dict.fromkeys(wanted) if os.path.exists(path)]


def find_installed_packages() -> list[str]:
    """Return the folders of installed packages, never a folder of the host's own source."""
    found = (os.path.abspath(path) for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
    return [path for path in dict.fromkeys(found) if os.path.isdir(path)]


@functools.cache
def find_interpreter() -> str:
    """Return the interpreter behind a virtual environment, which has its own standard library."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def write_bubblewrap_command(program: str, readable: Sequence[str]) -> list[str]:
    command = [program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    # Bubblewrap's own first process stays in the jail. It keeps the trainer's user, so it can die with the trainer, and the
    # kernel then ends every process in the jail. That does not work for a program that has changed to another user.
    command += ["--die-with-parent", "--new-session", "--hostname", "jail", "--cap-drop", "ALL"]
    command += ["--cap-add", "CAP_SYS_ADMIN"]  # only for mounting the scratch folder; boot.py drops it
    if os.getuid() == 0:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    bound = [path for path in dict.fromkeys((*LIBRARY_FOLDERS, *readable)) if os.path.exists(path)]
    # Made here with mode 0755: bubblewrap would make them inaccessible to the jail's user.
    for folder in sorted({str(parent) for path in bound for parent in PurePath(path).parents} - {"/"}):
        command += ["--perms", "0755", "--dir", folder] if folder not in LIBRARY_FOLDERS else []
    for path in bound:
        if os.path.islink(path) and path in LIBRARY_FOLDERS:
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind", path, path]
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    return [*command, "--dir", place_scratch(readable), "--chdir", "/", "--remount-ro", "/"]


def place_scratch(readable: Sequence[str]) -> str:
    """Return where to mount the scratch folder; the mount hides everything below it."""
    return OTHER_SCRATCH if any(path.startswith(f"{SCRATCH}/") for path in readable) else SCRATCH


def make_environment(scratch: str) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # the order of sets must not affect a verdict
        "PYTHONUTF8": "1",
        # A single heap: otherwise every thread reserves 64 MiB of the limited address space.
        "MALLOC_ARENA_MAX": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def list_process_limits(limits: Limits, own_user: bool) -> dict[str, int]:
    """Return the resource limits. With `own_user` threads are limited for this jail only. Otherwise the limit would count all
    processes of the user, so the host checks the number of threads instead.
    """
    limited = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 128,
        "RLIMIT_FSIZE": int(limits.files_mb * 2**20),
        "RLIMIT_STACK": 64 * 2**20,
        "RLIMIT_MEMLOCK": 64 * 2**10,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": 256,
        "RLIMIT_AS": int(limits.memory_mb * 2**20),
    }
    return {**limited, "RLIMIT_NPROC": limits.threads} if own_user else limited


def counts_per_namespace() -> bool:
    """Return whether the kernel counts a user's processes per user namespace (since 5.14)."""
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in os.uname().release.split(".")[:2])
    return (major, minor) >= (5, 14)


def list_landlock_rules(tier: Tier, readable: Sequence[str], scratch: str) -> dict[str, object]:
    version = tier.landlock_version
    everything = (1 << LANDLOCK_RIGHTS[min(version, max(LANDLOCK_RIGHTS))]) - 1
    handled = struct.pack("Q", everything)
    if version >= 4:  # network: refuses bind and connect
        handled += struct.pack("Q", 3)
    if version >= 6:  # confines abstract sockets and signals
        handled += struct.pack("Q", 3)
    own = everything & ~(EXECUTE | MAKE_CHAR | MAKE_SOCKET | MAKE_BLOCK)
    allowed: list[tuple[str, int]] = [(path, READ_RIGHTS if os.path.isdir(path) else 1 << 2) for path in readable]
    allowed += [(device, DEVICE_RIGHTS) for device in DEVICES]
    return {"handled": handled, "allowed": [*allowed, (scratch, own)]}
