"""A model whose states do not fit one process under a memory limit, and fit three processes with sharding.

    python benchmarks/shard_memory.py                100 million parameters in float32, on the CPU; a few minutes on two cores
    python benchmarks/shard_memory.py --budget 1.5   GiB that a process may use in addition to its imports

Both runs are `cohort train` of the same recipe under the same limit (RLIMIT_DATA, which counts writable memory). Training takes 24 bytes
per parameter: 4 for the weights, 8 for the moments, 4 for the gradient and 8 for its exact sum. A rank of three holds 8 of them, and
temporarily 4 more for the weights of a rollout. A single process must run out of memory; three ranks must finish, with a checkpoint of
which every rank wrote its slices.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GIB = 2**30
RECIPE = """
[model]
kernels = "modules"
[model.scratch]
hidden_size = 1024
intermediate_size = 2816
num_layers = 8
num_heads = 8
num_kv_heads = 8
max_positions = 64
[prompts]
source = "task:column_addition"
max_prompt_tokens = 8
[prompts.args]
digits = 1
[[rewards]]
function = "math_answer"
args = { pattern = ">(\\\\d+)\\\\s*$" }
[sampling]
max_completion_tokens = 8
[train]
num_steps = 2
prompts_per_step = 3
group_size = 2
micro_batch_tokens = 32
[algorithm]
zero_variance = "keep"
[cold_start]
num_steps = 2
batch_size = 6
[evaluation]
samples = 0
[checkpoints]
keep = 1
[monitors]
console = false
"""


def read_data_bytes() -> int:
    """What counts towards the limit, of this process now."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


def run_limited(budget: float, arguments: list[str]) -> None:
    """`cohort ARGUMENTS` in this process, once everything is imported and the limit set; the most it held goes into a file."""
    import torch
    import torch.distributed.fsdp
    import transformers.models.llama.modeling_llama  # noqa: F401

    import cohort.model.sharding
    import cohort.session  # noqa: F401
    from cohort.cli import app

    torch.zeros(8, requires_grad=True).sum().backward()  # starts the threads of autograd
    limit = read_data_bytes() + int(budget * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sys.argv = ["cohort", *arguments]
    try:
        app()
    finally:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        out = Path(os.environ["SHARD_MEMORY_OUT"]) / f"{os.environ.get('RANK', 'alone')}.json"
        out.write_text(json.dumps({"peak_gib": round(peak / GIB, 2), "limit_gib": round(limit / GIB, 2)}), encoding="utf-8")


def launch(ranks: int, budget: float, folder: Path) -> dict[str, Any]:
    recipe, out = folder / "recipe.toml", folder / f"out-{ranks}"
    recipe.write_text(RECIPE, encoding="utf-8")
    out.mkdir()
    name = f"ranks-{ranks}"
    words = ["--limited", str(budget), "train", str(recipe), f"runs_folder={folder / 'runs'}", f"name={name}"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks else []
    shared = ["parallel.shard=full"] if ranks else []
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SHARD_MEMORY_OUT": str(out),
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "131072",
    }
    started = time.monotonic()
    run = subprocess.run(
        [sys.executable, *torchrun, __file__, *words, *shared], env=environment, capture_output=True, text=True, check=False
    )
    said = [line for line in (run.stdout + run.stderr).splitlines() if re.search("memory|alloc", line, re.IGNORECASE)]
    summary = folder / "runs" / name / "summary.json"
    status = json.loads(summary.read_text(encoding="utf-8"))["status"] if summary.is_file() else "never began"
    checkpoints = sorted(folder.glob(f"runs/{name}/checkpoints/*/*"))
    return {
        "ranks": ranks or "one process",
        "status": status,
        "seconds": round(time.monotonic() - started),
        "of_each": [json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.iterdir())],
        "said": said[-1].strip()[:200] if status != "finished" and said else "",
        "checkpoint": [file.name for file in checkpoints if file.suffix == ".safetensors"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=1.5, help="GiB per process in addition to its imports")
    parser.add_argument("--ranks", type=int, default=3)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [launch(ranks, told.budget, Path(folder)) for ranks in (0, told.ranks)]
    for row in rows:
        print(json.dumps(row))
    return 0 if [row["status"] == "finished" for row in rows] == [False, True] else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--limited"]:
        run_limited(float(sys.argv[2]), sys.argv[3:])
    else:
        sys.exit(main())
