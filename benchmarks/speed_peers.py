"""Runs stages and peers, each in its own process, and explains why a peer is missing.

Scripts of peers (benchmarks/peers) import nothing of Cohort, so they run in any environment that has the peer. transformers' generate
has no script: on a GPU it alternates with our engine in the rollout stage (speed_child.py). On a CPU it gets its own process, because
`import cohort` makes OpenMP threads sleep while they wait, which would halve its speed on a quiet machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from speed_job import LEARNING_RATE, BenchJob
from speed_result import BenchError

import cohort
from cohort.errors import RecipeError

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "peers"
PEERS = {"hf_generate": "rollout", "vllm": "rollout", "trl": "step", "trl_vllm": "step"}
"""Peer -> the stage it is measured in."""
NAMES = {
    "cohort": "Cohort",
    "hf_generate": "HF generate",
    "vllm": "vLLM",
    "vllm_logprobs": "vLLM, with log-probs",
    "trl": "TRL, HF rollouts",
    "trl_vllm": "TRL, vLLM rollouts",
}
TAIL = 1500


def choose_peers(text: str) -> list[str]:
    """The peers of `auto` (all), `none`, or comma-separated names."""
    if text == "none":
        return []
    names = list(PEERS) if text == "auto" else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise RecipeError(f"--peers: {unknown[0]!r} is not a peer; use auto, none, or some of {', '.join(PEERS)}.")
    return names


def explain_absence(peer: str, job: BenchJob, vllm_python: str) -> str:
    """Why a peer cannot be measured here; "" if it can."""
    if peer == "hf_generate":
        return ""
    if peer == "vllm":
        return "" if vllm_python or is_installed("vllm") else "vllm is not installed (--vllm-python names another environment)"
    for package in ("trl", "datasets"):
        if not is_installed(package):
            return f"{package} is not installed"
    lora = job.make_recipe().model.lora
    if lora.adapter or lora.base_dtype != "auto":
        word = "model.lora.adapter" if lora.adapter else "model.lora.base_dtype"
        return f"the TRL script does not support {word}, so the work would differ"
    if lora.rank and not is_installed("peft"):
        return "peft is not installed"
    if job.workload.completions % min(job.micro_rows, job.workload.completions):
        return (
            f"TRL needs {job.workload.completions} completions to be a multiple of the {job.micro_rows} rows of a micro-batch"
        )
    if peer == "trl":
        return ""
    if not is_installed("vllm"):
        return "vllm is not installed in the environment of trl"
    if not job.device.startswith("cuda"):
        return "TRL with vLLM needs a GPU"
    return "TRL cannot plan the lengths of vLLM completions" if job.workload.lengths == "ragged" else ""


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def run_stage(job: BenchJob) -> dict[str, dict[str, Any]]:
    """Measure a stage of ours; returns engine -> figures."""
    shutil.rmtree(Path(job.folder) / "runs", ignore_errors=True)  # of the previous round
    apart = job.hf_generate and not job.device.startswith("cuda")
    job = replace(job, requested=time.time(), hf_generate=job.hf_generate and not apart)
    run_process([sys.executable, str(HERE / "speed_child.py"), str(job.write())], f"stage {job.stage}")
    result: dict[str, dict[str, Any]] = json.loads(job.result_file.read_text(encoding="utf-8"))
    if apart:
        # Import torch before cohort: how its threads wait is fixed at its import.
        alone = replace(job, stage="hf_generate")
        begin = (
            f"import sys, torch; sys.path.insert(0, {str(HERE)!r}); from speed_child import main; sys.exit(main(sys.argv[1]))"
        )
        run_process([sys.executable, "-c", begin, str(alone.write())], NAMES["hf_generate"], as_user=True)
        result |= json.loads(alone.result_file.read_text(encoding="utf-8"))
    return result


def run_peer(peer: str, job: BenchJob, vllm_python: str) -> dict[str, dict[str, Any]]:
    """Run a peer's script; returns name -> figures. Raises BenchError with the reason if it fails."""
    work, lora = job.workload, job.make_recipe().model.lora
    document: dict[str, Any] = {
        "model": str(job.model),
        "rows_file": str(job.rows_file),
        "result_file": str(Path(job.folder) / f"{peer}.json"),
        "device": job.device,
        "prompts": work.prompts,
        "group": work.group,
        "prompt_tokens": work.prompt_tokens,
        "prompt_ids": work.draw_prompt_ids(work.prompts, job.shape.dimensions.vocabulary) if peer == "vllm" else [],
        "new": work.new,
        "lengths": work.lengths,
        "plan": work.plan,
        "tokens": work.tokens,
        "micro_rows": job.micro_rows,
        "repeats": job.repeats,
        "steps": job.steps,
        "learning_rate": LEARNING_RATE,
        "vllm": peer == "trl_vllm",
        "lora": {"rank": lora.rank, "alpha": lora.alpha or 2.0 * lora.rank, "targets": lora.targets} if lora.rank else None,
        "requested": time.time(),
    }
    path = Path(job.folder) / f"{peer}-job.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    python, script = (vllm_python or sys.executable, "vllm_generate.py") if peer == "vllm" else (sys.executable, "trl_step.py")
    run_process([python, str(SCRIPTS / script), str(path)], NAMES[peer], as_user=True)
    result = json.loads(Path(document["result_file"]).read_text(encoding="utf-8"))
    return result if peer == "vllm" else {peer: result}


def run_process(command: list[str], what: str, *, as_user: bool = False) -> None:
    """Run a process. as_user: without the variables that `import cohort` set, which would slow a peer down."""
    environment = dict(os.environ)
    if as_user and not cohort._wait_policy_given:
        environment.pop("OMP_WAIT_POLICY", None)
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if ended.returncode:
        said = (ended.stderr.strip() or ended.stdout.strip())[-TAIL:]
        raise BenchError(f"{what} ended with exit code {ended.returncode}:\n{said}")
