"""Files: atomic writes, tolerant reads of JSON, and locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from cohort.base.interrupts import defer_interrupts

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*NO_SPACE, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a disk that is full or cannot be written, which say nothing about the run."""


def write_whole(path: Path, text: str) -> Path:
    """Write a file atomically, so that a reader never sees half of it; returns its path."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which then replaces the file. After an error it is removed."""
    temporary = path.with_name(f"{path.name}.tmp")
    with defer_interrupts(), name_file(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Name the file, and the free space of its disk, in errors of writing it."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in NO_SPACE:
            raise
        free = shutil.disk_usage(path.parent).free
        raise OSError(problem.errno, f"{os.strerror(problem.errno)} ({free:,} bytes free)", str(path)) from problem


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if the file is missing or contains something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def lock_file(path: Path) -> IO[str] | None:
    """Lock a file for this process until the returned stream is closed or the process ends; None if another process has the lock."""
    stream = path.open("a+")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        return None
    return stream


def is_locked(path: Path) -> bool:
    """Whether another process has locked the file with `lock_file`; read permission suffices."""
    try:
        with path.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # missing, or a file system without locks
        return False
    return False


def is_held(file: Path) -> bool:
    """Whether a process of this machine holds a lock on the file, read from /proc because trying would take the lock."""
    try:
        found = file.stat()
        held = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return re.search(rf"\bFLOCK\b.* {device} ", held) is not None
