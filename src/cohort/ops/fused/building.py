"""Finds or builds the compiled code for CPUs: from the wheel, or with a C compiler at first use.

A wheel contains native/ compiled for common processor levels and head sizes. Without a matching file, as in a checkout, it is
compiled for this processor into the user's cache folder. A file from there must belong to this user and not be writable by
others; files of the wheel are trusted like the package.

setup.py loads this file by itself to compile the files of a wheel, so it imports only the standard library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")
"""No -ffast-math, so that sums keep their order. -ffp-contract=fast fuses the float64 products of attention with their sums."""
SOURCES = ("common.h", "decode.c", "train.c")
FOLDER = Path(__file__).with_name("native")
PREBUILT = FOLDER / "prebuilt"
COMPILE_SECONDS = 60

V3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = {"x86_64": {"x86-64-v4": V4, "x86-64-v3": V3}, "aarch64": {"armv8-a": {"fp", "asimd"}}}
"""Machine -> value of -march= for a wheel, best first -> processor flags that it needs."""
PREBUILT_DIMS = (16, 32, 48, 64, 80, 96, 128)
"""Head dimensions for which a wheel contains code."""


class NoNative(Exception):
    """Compiled code is not available; the message gives the reason in a few words."""


def read_source() -> bytes:
    """Return all sources joined."""
    common, *others = ((FOLDER / name).read_bytes() for name in SOURCES)
    return common + b"".join(other.replace(b'#include "common.h"', b"") for other in others)


# -- from the wheel --------------------------------------------------------------------------------------------------------


def find_level(machine: str, flags: set[str]) -> str | None:
    """Return the best level that the processor supports."""
    return next((level for level, needed in LEVELS.get(machine, {}).items() if needed <= flags), None)


def name_prebuilt(level: str, head_dim: int, content: bytes) -> str:
    """Return the file name, with a digest of content and source. A truncated or outdated file does not match its name."""
    return f"{level}-{head_dim}-{hashlib.blake2b(read_source() + content, digest_size=16).hexdigest()}.so"


def find_prebuilt(head_dim: int) -> Path | None:
    """Return the wheel's file for this processor; None if the package has no compiled files, as in a checkout."""
    if not PREBUILT.is_dir():
        return None
    level = find_level(platform.machine(), read_processor_flags())
    if level is None:
        raise NoNative("nothing is prebuilt for this processor")
    found = sorted(PREBUILT.glob(f"{level}-{head_dim}-*.so"))
    if not found:
        raise NoNative(f"nothing is prebuilt for heads of {head_dim} dimensions")
    for file in found:  # installing over another version can leave files of both
        if file.name == name_prebuilt(level, head_dim, file.read_bytes()):
            return file
    raise NoNative(f"{found[0]} is damaged; install cohort-rl again")


def compile_prebuilt(folder: Path) -> Iterator[Path]:
    """Compile the files of a wheel for this machine into an empty folder."""
    compiler = find_compiler(os.environ.get("PATH", ""))
    for level in LEVELS.get(platform.machine(), {}) if sys.platform == "linux" else ():
        for head_dim in PREBUILT_DIMS:
            made = folder / f"{level}-{head_dim}.so"
            compile_into(compiler, (f"-march={level}", "-s", *FLAGS, f"-DHEAD_DIM={head_dim}"), read_source(), made)
            made.chmod(0o755)
            yield made.rename(folder / name_prebuilt(level, head_dim, made.read_bytes()))


# -- compiled at first use -------------------------------------------------------------------------------------------------


def find_cache_folder() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # A relative path must be ignored (XDG base directory specification).
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "cohort" / "native"
    except RuntimeError:  # there is no home directory
        return None


def find_compiler(path: str) -> list[str]:
    """Return the command of a compiler: the system's, or the one from PyPI."""
    for name in COMPILERS:
        if found := shutil.which(name, path=path):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NoNative("no C compiler: install gcc, or pip install ziglang")


def build_library(head_dim: int, folder: Path | None, path: str) -> Path:
    """Return the shared library for this head size, compiled unless it is cached."""
    compiler = find_compiler(path)
    if folder is None:
        raise NoNative("no home folder")
    source = read_source()
    flags = ("-march=native", *FLAGS, f"-DHEAD_DIM={head_dim}")
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, timeout=COMPILE_SECONDS, check=True, stdin=subprocess.DEVNULL
    ).stdout
    parts = (source, " ".join(flags).encode(), " ".join(compiler).encode(), version, describe_processor().encode())
    digest = hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()
    target = folder / f"{digest}.so"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_foreign_file(folder)
    if not target.exists():
        compile_into(compiler, flags, source, target)
    refuse_foreign_file(target)
    return target


def compile_into(compiler: list[str], flags: tuple[str, ...], source: bytes, target: Path) -> None:
    """Compile under a temporary name and rename: other processes see the whole file or none, and the last one wins."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as place:
        written, made = Path(place, "native.c"), Path(place, "native.so")
        written.write_bytes(source)
        command = [*compiler, *flags, "-o", str(made), str(written), "-lm"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode or not made.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise NoNative(f"the compiler {' '.join(compiler)} failed" + (f": {said[0][:200]}" if said else ""))
        made.chmod(0o700)
        os.replace(made, target)


def refuse_foreign_file(path: Path) -> None:
    """Refuse to load a file that others could have written."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NoNative(f"{path} is a link, belongs to another user or may be written by others")


# -- the processor -----------------------------------------------------------------------------------------------------------


def read_processor() -> dict[str, str]:
    """Return the fields of the last core that matter for compiled code."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    parts = (line.partition(":") for line in lines if line.startswith(("model", "flags", "Features", "CPU ")))
    return {key.strip(): value.strip() for key, _, value in parts}


def read_processor_flags() -> set[str]:
    found = read_processor()
    return set((found.get("flags") or found.get("Features") or "").split())


def describe_processor() -> str:
    """Return everything that -march=native depends on, because several machines may share a home folder."""
    return "\n".join(
        [platform.machine(), platform.processor(), *(f"{key}: {value}" for key, value in read_processor().items())]
    )
