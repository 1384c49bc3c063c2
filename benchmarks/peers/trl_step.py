"""TRL's GRPO step on a workload: `python trl_step.py JOB.json`. Self-contained: it needs torch, transformers, datasets and trl.

JOB.json (written by speed.py): the model folder (config and tokenizer), the rows, planned lengths, sizes, and where the
result goes. TRL is used as its documentation shows, on the same rows, with the same reward and the same lengths:

- weights are random and made on the device, in bfloat16 on a GPU (TRL then trains pure bfloat16, in its favour) and float32
  on a CPU; no reference (beta 0), one optimizer step per batch of rollouts, no checkpoints, no gradient checkpointing;
- fixed lengths: `min_new_tokens` equals the maximum, so the end token is never sampled. Ragged lengths: a logits processor makes
  the end token certain as the last planned token of a row and impossible before; it touches one column of the logits;
- with "lora" (rank, alpha, targets) only adapters are trained, through `peft_config`; that needs peft;
- rollouts by transformers' generate, or with "vllm": true by vLLM in the same process (fixed lengths only).

A step is timed from its beginning to the beginning of the next one, rollouts, rewards, update and logging included.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import trl
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

HASHES = 2**32
CERTAIN = 1e4


def varied(completions, signal, **columns):
    """The reward of the workload: it differs between completions, and is constant in rows without signal."""
    return [
        zlib.crc32(str(completion).encode()) / HASHES if has_signal else 0.5
        for completion, has_signal in zip(completions, signal, strict=True)
    ]


class Clock(TrainerCallback):
    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu, self.times = on_gpu, []

    def note(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        self.times.append(time.time())

    def on_step_begin(self, *args, **kwargs):
        self.note()

    def on_train_end(self, *args, **kwargs):
        self.note()


class PlannedEnd(LogitsProcessor):
    def __init__(self, limits_B: torch.Tensor, prompt_tokens: int, end_id: int) -> None:
        self.limits_B, self.prompt_tokens, self.end_id = limits_B, prompt_tokens, end_id

    def __call__(self, input_ids, scores):
        due_B = input_ids.shape[1] - self.prompt_tokens + 1 >= self.limits_B
        scores[:, self.end_id] = torch.where(due_B, CERTAIN, float("-inf")).to(scores.dtype)
        return scores


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    on_gpu = job["device"].startswith("cuda")
    rows = [json.loads(line) for line in Path(job["rows_file"]).read_text(encoding="utf-8").splitlines()]
    completions = job["prompts"] * job["group"]
    micro_rows = min(job["micro_rows"], completions)
    if completions % micro_rows:
        raise SystemExit(f"TRL needs equal micro-batches: {completions} completions, {micro_rows} rows in each")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(job["model"])
    ragged = job["lengths"] == "ragged"
    if job["vllm"]:
        ends = {"ignore_eos": True}
    else:
        ends = {} if ragged else {"min_new_tokens": job["new"]}
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        per_device_train_batch_size=micro_rows,
        gradient_accumulation_steps=completions // micro_rows,
        num_generations=job["group"],
        max_completion_length=job["new"],
        temperature=1.0,
        max_steps=job["steps"],
        learning_rate=job["learning_rate"],
        beta=0.0,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        generation_kwargs=ends,
        use_vllm=job["vllm"],
        **(
            {
                "vllm_mode": "colocate",
                "vllm_gpu_memory_utilization": 0.3,
                "vllm_max_model_length": job["prompt_tokens"] + job["new"] + 16,
            }
            if job["vllm"]
            else {}
        ),
    )
    clock = Clock(on_gpu)
    trainer = GRPOTrainer(
        model=make_model(job, on_gpu),
        reward_funcs=varied,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[clock],
        peft_config=make_adapters(job["lora"]) if job["lora"] else None,
    )
    if ragged and not job["vllm"]:
        end_at_plan(trainer, job, tokenizer.eos_token_id)
    rollout_seconds, lengths = watch_rollouts(trainer)
    trainer.train()
    check_lengths(lengths, job)
    seconds = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "seconds": seconds[1:],
        "first_seconds": seconds[0],
        "first_step_after": clock.times[1] - job["requested"],
        "stages": {"rollout": rollout_seconds[1:]},
        "tokens": job["tokens"],
        "peak_bytes": peak,
        "version": trl.__version__,
    }
    Path(job["result_file"]).write_text(json.dumps(result), encoding="utf-8")


def make_model(job: dict, on_gpu: bool):
    """A model with random weights; vLLM reads its own from files, so they are written for it."""
    torch.manual_seed(0)
    with torch.device(job["device"]):
        dtype = torch.bfloat16 if on_gpu else torch.float32
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(job["model"]), dtype=dtype)
    if job["vllm"]:
        model.save_pretrained(job["model"])
    model.config._name_or_path = job["model"]
    return model


def make_adapters(lora: dict):
    """PEFT's words for what the workload says; no targets are all linear layers but the output projection."""
    from peft import LoraConfig

    targets = lora["targets"] or "all-linear"
    return LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules=targets, task_type="CAUSAL_LM")


def end_at_plan(trainer: GRPOTrainer, job: dict, end_id: int) -> None:
    generate = trainer.model.generate
    limits_N = torch.tensor([length for lengths in job["plan"] for length in lengths], device=job["device"])

    def planned(**inputs):
        prompt_tokens = inputs["input_ids"].shape[1]
        assert len(inputs["input_ids"]) == len(limits_N), "rollouts of a step come in one call"
        return generate(**inputs, logits_processor=LogitsProcessorList([PlannedEnd(limits_N, prompt_tokens, end_id)]))

    trainer.model.generate = planned


def watch_rollouts(trainer: GRPOTrainer) -> tuple[list[float], list[list[int]]]:
    """Seconds of each generation, and the lengths that came out of it."""
    seconds, lengths = [], []
    original = trainer._generate_single_turn

    def timed(*args, **kwargs):
        started = time.time()
        output = original(*args, **kwargs)
        seconds.append(time.time() - started)
        lengths.append([len(ids) for ids in output[0]])
        return output

    trainer._generate_single_turn = timed
    return seconds, lengths


def check_lengths(lengths: list[list[int]], job: dict) -> None:
    planned = [length for group in job["plan"] for length in group]
    for found in lengths:
        if found != planned:
            raise SystemExit(f"TRL sampled {sum(found)} tokens where {sum(planned)} were planned")


if __name__ == "__main__":
    main(sys.argv[1])
