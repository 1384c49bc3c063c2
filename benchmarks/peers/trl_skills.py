"""TRL's GRPO from the start of the demonstration: `python trl_skills.py JOB.json`. The other side of benchmarks/skills_trl.py.

JOB.json: the start folder, the rows as JSON lines, the reward's arguments, sizes, rates, the seed, and where things go. TRL trains as its documentation
recommends (defaults of GRPOConfig: loss "dapo", no KL, rewards scaled by the group's deviation, clip 0.2), with the sizes of the recipe; what is not a default
is in the job and said in docs/results.md. The reward is the very function of the recipe. Weights are saved every few steps and
evaluated afterwards by `cohort evaluate`, in the same way for both sides and outside of every clock.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import trl
from datasets import Dataset
from skills_clock import count_tree_seconds
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from cohort.rewards.gym.rows import gym_verifier


class Clock(TrainerCallback):
    """Begins and ends of steps by both clocks, and weights after those that are looked at."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every, self.steps, self.rewards, self.began = folder, every, [], [], (0.0, 0.0)
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = count_tree_seconds(), time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        cpu, wall = self.began
        self.steps.append({"step": state.global_step, "cpu": count_tree_seconds() - cpu, "wall": time.monotonic() - wall})
        if state.global_step % self.every == 0:
            self.trainer.save_model(str(self.folder / f"step-{state.global_step}"))
        self.write_steps()

    def write_steps(self):
        document = {"version": trl.__version__, "steps": self.steps, "rewards": self.rewards}
        (self.folder / "steps.json").write_text(json.dumps(document), encoding="utf-8")

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "reward" in logs:  # of a step that has ended: written with the next one, or at the end
            self.rewards.append(logs["reward"])


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in Path(job["rows"]).read_text(encoding="utf-8").splitlines()]

    def verifier(completions, entry, task, gym_args, **columns):
        return gym_verifier(
            completions, entry=entry, task=task, gym_args=[json.loads(one) for one in gym_args], pattern=job["pattern"]
        )

    on_gpu = torch.cuda.is_available()
    completions = job["prompts"] * job["group"]
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        per_device_train_batch_size=job["micro_rows"],
        gradient_accumulation_steps=completions // job["micro_rows"],
        num_generations=job["group"],
        max_completion_length=job["new"],
        temperature=1.0,
        max_steps=job["steps"],
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=job["warmup"],
        seed=job["seed"],
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
    )
    clock = Clock(folder, job["every"])
    tokenizer = AutoTokenizer.from_pretrained(job["start"])
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["start"], dtype=torch.bfloat16 if on_gpu else torch.float32),
        reward_funcs=verifier,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    clock.trainer = trainer
    trainer.train()
    clock.write_steps()


if __name__ == "__main__":
    main(sys.argv[1])
