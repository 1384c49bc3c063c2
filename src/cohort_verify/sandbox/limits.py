"""Limits of a jailed run, and the ways in which it can end."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields


class JailUnavailable(RuntimeError):
    """Untrusted code cannot be run safely on this machine; the message names what is missing."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run of a program, or of one message to a worker."""

    cpu_s: float = 2.0
    """CPU seconds. The main limit, so that verdicts do not depend on the load of the machine."""
    wall_s: float = 10.0
    """Wall-clock seconds, for programs that sleep or wait."""
    memory_mb: int = 512
    """Address space of the process. Files in the scratch folder are not included."""
    output_kb: int = 64
    """Output kept per stream. The rest is read and dropped."""
    files_mb: int = 64
    """Total size of the scratch folder, and of each file."""
    threads: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value, whole = getattr(self, field.name), isinstance(field.default, int)
            # Compared without conversion: an integer may be larger than any float.
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
            if not is_number or (whole and value != int(value)):
                kind = "whole number" if whole else "number"
                raise ValueError(f"limits: {field.name} must be a {kind} above 0, got {value!r}")
            if whole:
                object.__setattr__(self, field.name, int(value))


MAX_FILES = 4096
"""Limit on files and folders in the scratch folder."""
MAX_FOLDERS_DEEP = 64
FLOOD_BYTES = 16 * 2**20
"""Output after which a program is ended."""
MAX_FRAME_BYTES = 4 * 2**20
"""Limit on the encoded size of a returned value. Decoded, it can be twenty times as large."""

ENDS = ("finished", "load", "exit", "cpu", "wall", "memory", "output", "files", "crash", "infrastructure")
"""Ends of a run: all calls were answered; the program raised while loading; it exited; it hit a limit; a signal ended it; or
the jail itself failed, which says nothing about the program."""
