"""TRL's GRPO on a recipe's rows, rewards and model: `python trl_smollm2.py JOB.json`. The other side of benchmarks/smollm2.py.

Rows, rendered messages and the outcome reward are those of the Cohort recipe; batch, length limit, temperature and learning rate
are in the job. Everything else is TRL's default (loss "dapo", no KL, group-scaled rewards, clip 0.2). Weights are float32; on a GPU
they are masters under bfloat16 autocast. The prompt ids of both sides are compared before training starts.
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
from cpu_clock import count_tree_seconds
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from cohort.base.importing import load_function
from cohort.data.rows import load_rows, render
from cohort.model.chat import ChatCodec
from cohort.ops.products import choose_products, use_products
from cohort.recipe.file import load_recipe


class Clock(TrainerCallback):
    """Records both clocks per step and saves the weights that are evaluated later."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every, self.steps, self.rewards, self.began = folder, every, [], [], (0.0, 0.0)
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = count_tree_seconds(), time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        cpu, wall = self.began
        self.steps.append({"step": state.global_step, "cpu": count_tree_seconds() - cpu, "wall": time.monotonic() - wall})
        if self.every and state.global_step % self.every == 0:
            self.trainer.save_model(str(self.folder / f"step-{state.global_step}"))
        self.write_steps()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "reward" in logs:
            self.rewards.append(logs["reward"])
            self.write_steps()

    def write_steps(self):
        document = {"version": trl.__version__, "steps": self.steps, "rewards": self.rewards}
        (self.folder / "steps.json").write_text(json.dumps(document), encoding="utf-8")


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    folder = Path(job["folder"])
    recipe = load_recipe(Path(job["recipe"]))
    on_gpu = torch.cuda.is_available()
    rows = load_rows(recipe.prompts, recipe.seed)
    messages = [render(row, recipe.prompts, "prompts") for row in rows]
    messages = [text if isinstance(text, list) else [{"role": "user", "content": text}] for text in messages]
    dataset = Dataset.from_list([{"prompt": prompt, "row": number} for number, prompt in enumerate(messages)])
    part = next((one for one in recipe.rewards if one.outcome), recipe.rewards[0])
    function = load_function(part.function if ":" in part.function else f"cohort.rewards:{part.function}")

    def reward(completions, row, **columns):  # nested columns come from the rows: Arrow would merge their keys
        named = {name: [rows[number][name] for number in row] for name in rows[0] if name != "prompt"}
        texts = [completion[0]["content"] for completion in completions]
        return function(texts, **named, **part.args)

    tokenizer = AutoTokenizer.from_pretrained(job["start"])
    trl_ids = tokenizer.apply_chat_template(messages[0], add_generation_prompt=True, tokenize=True, return_dict=False)
    assert list(ChatCodec(tokenizer).encode(messages[0])) == list(trl_ids), "the two sides encode the first prompt differently"
    completions = recipe.train.prompts_per_step * recipe.train.group_size
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        per_device_train_batch_size=job["micro_rows"],
        gradient_accumulation_steps=completions // job["micro_rows"],
        num_generations=recipe.train.group_size,
        max_completion_length=recipe.sampling.max_completion_tokens,
        temperature=recipe.sampling.temperature,
        max_steps=job["steps"],
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=recipe.optimizer.warmup_steps,
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
    peft = None
    if recipe.model.lora.rank:
        from peft import LoraConfig

        peft = LoraConfig(r=recipe.model.lora.rank, lora_alpha=recipe.model.lora.alpha, target_modules="all-linear")
    model = AutoModelForCausalLM.from_pretrained(job["start"], dtype=torch.float32)
    use_products(choose_products(model, torch.float32), model, "Cohort")  # on a CPU, the library that Cohort multiplies with
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[clock],
        peft_config=peft,
    )
    clock.trainer = trainer
    trainer.train()
    clock.write_steps()


if __name__ == "__main__":
    main(sys.argv[1])
