"""What a jailed program may use, and how its run can end."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields


class JailUnavailable(RuntimeError):
    """There is no way to run untrusted code safely on this machine; the message names what is missing."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run of a program, or of one request to a worker."""

    cpu_s: float = 2.0
    """CPU seconds: the limit that decides, so that a verdict does not depend on how busy the machine is."""
    wall_s: float = 10.0
    """Seconds by the wall clock: the backstop, for what sleeps or waits."""
    memory_mb: int = 512
    """Address space of the process; files of the scratch folder come on top of it."""
    output_kb: int = 64
    """Kept of standard output and of standard error, each. The rest is read and thrown away."""
    files_mb: int = 64
    """All files of the scratch folder together, and each of them."""
    threads: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value, whole = getattr(self, field.name), isinstance(field.default, int)
            # Compared and not converted: an integer may be larger than any float.
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
            if not is_number or (whole and value != int(value)):
                kind = "whole number" if whole else "number"
                raise ValueError(f"limits: {field.name} must be a {kind} above 0, got {value!r}")
            if whole:
                object.__setattr__(self, field.name, int(value))


MAX_FILES = 4096
"""Files and folders in the scratch folder."""
MAX_FOLDERS_DEEP = 64
FLOOD_BYTES = 16 * 2**20
"""Output after which a program is ended instead of being listened to."""
MAX_FRAME_BYTES = 4 * 2**20
"""The largest value a program can return, as it is written on the pipe. Rebuilt, it is up to twenty times that size."""

ENDS = ("finished", "load", "exit", "cpu", "wall", "memory", "output", "files", "crash", "infrastructure")
"""How a run ended: all was answered; the program raised while it was loaded; it ended by itself; it ran into a limit;
a signal ended it; or the jail itself failed, which says nothing about the program."""
