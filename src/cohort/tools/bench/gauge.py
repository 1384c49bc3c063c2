"""Peak memory of a piece of work in this process: of the GPU, or on Linux of the process.

On a CPU the kernel's own high-water mark of the resident set is reset before the work (`clear_refs`), after the allocator has
given back what it only kept. What was held before is subtracted, so the figure is the growth; where the mark cannot be reset
there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"


@dataclass
class Peak:
    held: int = 0
    """Bytes in use before the work."""
    growth: int | None = None
    """Most bytes in use during the work, beyond those; None: cannot be measured here."""

    def since(self, held: int) -> int | None:
        """Most bytes in use during the work, beyond `held`."""
        return None if self.growth is None else max(0, self.held + self.growth - held)


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    peak = Peak()
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        peak.held = torch.cuda.memory_allocated()
        yield peak
        torch.cuda.synchronize()
        peak.growth = torch.cuda.max_memory_allocated() - peak.held
        return
    resettable = reset_resident_peak()
    peak.held = resident("VmRSS") if resettable else 0
    yield peak
    if resettable:
        peak.growth = max(0, resident("VmHWM") - peak.held)


def largest_ever(device: str) -> int:
    """Most bytes in use since the process began, or since a mark was reset: of the GPU, or of the process."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_resident_peak() -> bool:
    try:
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR.write_text(RESET_PEAK, encoding="ascii")
    except (OSError, AttributeError):  # not Linux, not glibc, or not allowed
        return False
    return True


def resident(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
