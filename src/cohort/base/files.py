"""Files: atomic writes, tolerant reads of JSON, and locks."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import IO, Any

from cohort.base.interrupts import defer_interrupts


def write_whole(path: Path, text: str) -> Path:
    """Write a file atomically, so that a reader never sees half of it; returns its path."""
    with defer_interrupts():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return path


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
