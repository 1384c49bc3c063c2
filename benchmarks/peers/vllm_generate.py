"""vLLM's rollouts of a workload: `python vllm_generate.py JOB.json`. Self-contained: it needs vllm and nothing of ours.

It can run in its own environment (`benchmarks/speed.py --vllm-python PATH`). Weights are vLLM's dummies, prompts are token ids,
prefix caching is on (the prompt of a group is computed once), every completion ends at its planned length (`max_tokens` of its
own, end token ignored), and nothing is decoded to text. Measured twice: with the log-probability of each sampled token, as a
trainer needs it, and without.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# In the same process: what a trainer that shares the device would use, and faster for short runs.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm
from vllm import LLM, SamplingParams


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    on_gpu = job["device"].startswith("cuda")
    started = time.time()
    engine = LLM(
        model=job["model"],
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16" if on_gpu else "float32",
        max_model_len=job["prompt_tokens"] + job["new"] + 16,
        max_num_seqs=max(256, job["prompts"] * job["group"]),
        enable_prefix_caching=True,
        disable_log_stats=True,
        # Of the device's memory; on a CPU, despite its name, of the machine's, which others use too.
        gpu_memory_utilization=0.8 if on_gpu else 0.3,
    )
    start_seconds = time.time() - started
    prompts = [{"prompt_token_ids": ids} for ids in job["prompt_ids"] for _ in range(job["group"])]
    limits = [length for lengths in job["plan"] for length in lengths]
    result = {}
    for name, logprobs in (("vllm", None), ("vllm_logprobs", 0)):
        sampling = [
            SamplingParams(temperature=1.0, max_tokens=limit, ignore_eos=True, detokenize=False, logprobs=logprobs)
            for limit in limits
        ]
        seconds = []
        for _ in range(job["repeats"] + 1):
            started = time.time()
            outputs = engine.generate(prompts, sampling, use_tqdm=False)
            seconds.append(time.time() - started)
            found = [len(output.outputs[0].token_ids) for output in outputs]
            if found != limits:
                raise SystemExit(f"vLLM sampled {sum(found)} tokens where {sum(limits)} were planned")
        result[name] = {
            "seconds": seconds[1:],
            "first_seconds": seconds[0],
            "tokens": sum(limits),
            "start_seconds": start_seconds,
            "version": vllm.__version__,
        }
    Path(job["result_file"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
