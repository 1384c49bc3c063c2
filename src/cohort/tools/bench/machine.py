"""The machine and the versions, as they stand in a result: `python -m cohort.tools.bench.machine` prints them as JSON.

Asked for in a process of its own: whoever runs the stages must not hold a context on the GPU.
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
    import psutil
    import torch

    on_gpu = torch.cuda.is_available()
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if on_gpu else "",
        "gpu_memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if on_gpu else 0.0,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES if version(name)},
    }


def ask_machine() -> dict[str, Any]:
    command = [sys.executable, "-m", "cohort.tools.bench.machine"]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def cpu_name() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def revision() -> str:
    """The commit of the checkout that runs, with a + where it was changed; "" outside of one."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():
        return ""
    try:
        found = subprocess.run(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run(["git", "-C", str(root), "status", "--porcelain", "-uno"], capture_output=True, text=True)
    except OSError:
        return ""
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "") if found.returncode == 0 else ""


if __name__ == "__main__":
    print(json.dumps(describe_machine()))
