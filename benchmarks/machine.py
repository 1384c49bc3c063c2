"""Describes the machine and package versions for results; `python benchmarks/machine.py` prints them as JSON.

It runs in its own process, because the process that starts measurements must not hold a GPU context.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "triton", "trl", "vllm", "peft")
CPU_INFO = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, Any]:
    """Processor, GPU, memory, and package versions."""
    import psutil
    import torch

    on_gpu = torch.cuda.is_available()
    return {
        "cpu": read_cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if on_gpu else "",
        "gpu_memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if on_gpu else 0.0,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"python": platform.python_version()}
        | {name: find_version(name) for name in PACKAGES if find_version(name)},
    }


def ask_machine() -> dict[str, Any]:
    """The result of `describe_machine` in another process."""
    command = [sys.executable, __file__]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def find_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_cpu_name() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    print(json.dumps(describe_machine()))
