"""Files that appear whole or not at all, are read whatever state they are in, or hold a folder for one process."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import IO, Any

from cohort.base.interrupts import defer_interrupts


def write_whole(path: Path, text: str) -> Path:
    """Replace a file in one move, so that a reader never sees half of it; gives its path."""
    with defer_interrupts():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return path


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where there is none, or the file holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def lock_file(path: Path) -> IO[str] | None:
    """The file, held for this process until it is closed or the process ends, however it ends; None where another holds it."""
    stream = path.open("a+")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        return None
    return stream


def is_locked(path: Path) -> bool:
    """Whether another process holds the file by `lock_file`; it need only be readable."""
    try:
        with path.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # not there, or a file system without locks
        return False
    return False
