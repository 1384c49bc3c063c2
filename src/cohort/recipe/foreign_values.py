"""What becomes of a value under a word of another tool: the same, another number, or a rule.

A value is written in our words only where it means the same here. Where the other tool counts something else, the number is
converted; where that depends on words that are not given, or on the data, the rule is said instead. The rules are those of TRL's
GRPOConfig and GRPOTrainer, verl's and OpenRLHF's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from cohort.recipe.foreign import CLIP, OTHER_WORDS

Words = Mapping[str, Any]
"""The other words that were given, by their last name: what a conversion may depend on."""
Ours = dict[str, Any] | None
"""Our words with their values; None where the value cannot be told."""

LOSSES = {
    "grpo": {"algorithm.aggregation": "sequence_mean"},
    "bnpo": {"algorithm.aggregation": "token_mean"},
    "dapo": {"algorithm.aggregation": "token_mean"},
    "dr_grpo": {"algorithm.aggregation": "constant"},
    "cispo": {"algorithm.name": "cispo"},
    "sapo": {"algorithm.name": "sapo"},
    "token-mean": {"algorithm.aggregation": "token_mean"},
    "seq-mean-token-mean": {"algorithm.aggregation": "sequence_mean"},
    "seq-mean-token-sum": {"algorithm.aggregation": "sequence_sum"},
    "seq-mean-token-sum-norm": {"algorithm.aggregation": "constant"},
}
SCALES = {
    True: "group_normalized",
    "group": "group_normalized",
    False: "group_centered",
    "none": "group_centered",
    "batch": "batch_std",
}
ESTIMATORS = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
ALGORITHMS = {
    "grpo": "grpo", "group_norm": "grpo", "dr_grpo": "dr_grpo", "gae": "ppo", "rloo": "rloo", "reinforce": "reinforce++",
    "reinforce_plus_plus": "reinforce++", "reinforce_plus_plus_baseline": "reinforce++_baseline", "reinforce_baseline": "reinforce++_baseline",
}  # fmt: skip
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
}
DTYPES = {"bfloat16": "bfloat16", "float32": "float32", "auto": "auto", "bf16": "bfloat16", "fp32": "float32"}
TRACKERS = ("tensorboard", "wandb")


def number(words: Words, *names: str, default: float = 1) -> float:
    """The first of these words that was given as a number."""
    found = (words[name] for name in names if isinstance(words.get(name), int | float) and not isinstance(words[name], bool))
    return next(found, default)


def whole(value: float) -> int | None:
    return round(value) if value >= 1 and abs(value - round(value)) < 1e-9 else None


def given(path: str, value: Any) -> Ours:
    return None if value is None else {path: value}


def prompts_of(completions: float, words: Words) -> Ours:
    return given("train.prompts_per_step", whole(completions / number(words, "num_generations", "group_size", default=8)))


def accumulated(words: Words) -> float:
    return number(words, "steps_per_generation", "gradient_accumulation_steps")


def optimizer_steps(words: Words) -> float:
    """Of one step: minibatches and passes, in TRL's words or in ours."""
    cut = number(words, "steps_per_generation", default=0) / number(words, "gradient_accumulation_steps")
    return max(1, cut or number(words, "minibatches_per_step")) * number(words, "num_iterations", "passes_per_step")


def warmup_of(ratio: float, words: Words) -> Ours:
    steps = number(words, "max_steps", default=0) or number(words, "num_steps", default=0) * optimizer_steps(words)
    return given("optimizer.warmup_steps", math.ceil(steps * ratio) if steps else None)


def folder_of(value: Any) -> Ours:
    path = PurePath(str(value))
    return {"name": path.name} if str(path.parent) == "." else {"runs_folder": str(path.parent), "name": path.name}


def trackers_of(value: Any) -> Ours:
    names = value if isinstance(value, list) else [value]
    return {f"monitors.{name}": True for name in names} if names and all(name in TRACKERS for name in names) else None


def clips_of(value: Any) -> Ours:
    low, high = value if isinstance(value, list) and len(value) == 2 else (value, value)
    return {"algorithm.clip_low": low, "algorithm.clip_high": high}


PER_STEP = "here a step is one batch of rollouts, whatever number of optimizer steps it is cut into"
COUNTS = "it counts completions on one device"
Convert = Callable[[Any, Words], Ours]
CONVERTED: dict[str, tuple[Convert, str]] = {
    "per_device_train_batch_size": (
        lambda v, w: prompts_of(v * accumulated(w), w),
        f"{COUNTS}: prompts_per_step = per_device_train_batch_size x gradient_accumulation_steps x devices / num_generations",
    ),
    "generation_batch_size": (prompts_of, "it counts completions: prompts_per_step = generation_batch_size / num_generations"),
    "train_batch_size": (
        lambda v, w: None if "rollout_batch_size" in w else given("train.prompts_per_step", v),
        "verl's counts prompts; OpenRLHF's counts the completions of one optimizer step, and rollout_batch_size its prompts",
    ),
    "gradient_accumulation_steps": (
        lambda v, w: None,
        "it changes memory alone, never the gradient; the size of a step is prompts_per_step x group_size completions",
    ),
    "ppo_micro_batch_size": (lambda v, w: None, "it counts tokens and changes memory alone"),
    "ppo_micro_batch_size_per_gpu": (lambda v, w: None, "it counts tokens and changes memory alone"),
    "micro_train_batch_size": (lambda v, w: None, "it counts tokens and changes memory alone"),
    "max_steps": (lambda v, w: given("train.num_steps", whole(v / optimizer_steps(w))), PER_STEP),
    "num_epochs": (lambda v, w: None, "num_steps = epochs x rows / prompts_per_step"),
    "num_train_epochs": (lambda v, w: None, "num_steps = epochs x rows / prompts_per_step"),
    "total_epochs": (lambda v, w: None, "num_steps = epochs x rows / prompts_per_step"),
    "num_episodes": (lambda v, w: None, "num_steps = episodes x rows / prompts_per_step"),
    "steps_per_generation": (
        lambda v, w: given("train.minibatches_per_step", whole(v / number(w, "gradient_accumulation_steps"))),
        "minibatches_per_step = steps_per_generation / gradient_accumulation_steps",
    ),
    "ppo_mini_batch_size": (
        lambda v, w: given(
            "train.minibatches_per_step", whole(number(w, "train_batch_size", "prompts_per_step", default=0) / v)
        ),
        "it counts the prompts of one optimizer step: minibatches_per_step = train_batch_size / ppo_mini_batch_size",
    ),
    "kl_loss_type": (lambda v, w: given("algorithm.kl_estimator", ESTIMATORS.get(v)), "k1, k2 or k3"),
    "sync_ref_model": (
        lambda v, w: None,
        "reference_every copies the policy, reference_decay averages it; 0 keeps it as it is",
    ),
    "ref_model_sync_steps": (
        lambda v, w: given("algorithm.reference_every", v if number(w, "ref_model_mixup_alpha") == 1 else None),
        "reference_every makes the reference the policy, as ref_model_mixup_alpha = 1 does; to average them use reference_decay",
    ),
    "ref_model_mixup_alpha": (
        lambda v, w: given(
            "algorithm.reference_decay", round(1 - v, 12) if 0 < v < 1 and number(w, "ref_model_sync_steps") == 1 else None
        ),
        "the decay is 1 - ref_model_mixup_alpha, and acts at every step (ref_model_sync_steps = 1); 1 is reference_every",
    ),
    **{name: (lambda v, w: clips_of(v), "") for name, ours in OTHER_WORDS.items() if ours == CLIP},
    "delta": (lambda v, w: {"algorithm.region": "dual_clip", "algorithm.dual_clip": v}, ""),
    "clip_ratio_c": (lambda v, w: {"algorithm.region": "dual_clip", "algorithm.dual_clip": v}, ""),
    "epsilon_high": (
        lambda v, w: {"algorithm.ratio_cap": v} if w.get("loss_type") == "cispo" else {"algorithm.clip_high": v},
        "",
    ),
    "importance_sampling_level": (
        lambda v, w: {"algorithm.region": {"token": "clip", "sequence": "sequence"}[v]} if v in ("token", "sequence") else None,
        "algorithm=gspo is GSPO as a whole",
    ),
    "loss_type": (lambda v, w: LOSSES.get(v), "and algorithm.name for a whole algorithm"),
    "loss_agg_mode": (lambda v, w: LOSSES.get(v), ""),
    "multi_objective_aggregation": (
        lambda v, w: given(
            "algorithm.advantage", {"sum_then_normalize": "group_normalized", "normalize_then_sum": "parts_normalized"}.get(v)
        ),
        "algorithm=gdpo is GDPO as a whole",
    ),
    "scale_rewards": (lambda v, w: given("algorithm.advantage", SCALES.get(v)), ""),
    "normalize_std": (lambda v, w: given("algorithm.advantage", SCALES.get(v)), ""),
    "norm_adv_by_std_in_grpo": (lambda v, w: given("algorithm.advantage", SCALES.get(v)), ""),
    "adv_estimator": (lambda v, w: given("algorithm.name", ALGORITHMS.get(v)), "`cohort algorithms` lists them"),
    "advantage_estimator": (lambda v, w: given("algorithm.name", ALGORITHMS.get(v)), "`cohort algorithms` lists them"),
    "lr_scheduler_type": (
        lambda v, w: given("optimizer.schedule", SCHEDULES.get(v)),
        "constant, linear or cosine, after warmup_steps",
    ),
    "lr_scheduler": (
        lambda v, w: given("optimizer.schedule", SCHEDULES.get(v)),
        "constant, linear or cosine, after warmup_steps",
    ),
    **{
        name: (warmup_of, f"warmup_steps = {name} x optimizer steps")
        for name in ("warmup_ratio", "lr_warmup_ratio", "lr_warmup_steps_ratio")
    },
    "optim": (
        lambda v, w: {"optimizer.state_bits": 8} if "8bit" in str(v) else None,
        "it is AdamW on float32 master weights, its moments in 32 or 8 bits",
    ),
    "stop_strings": (lambda v, w: given("sampling.stop", v if isinstance(v, list) else [v]), "single tokens"),
    "max_prompt_length": (lambda v, w: {"prompts.max_prompt_tokens": v}, "longer prompts are left out and counted, never cut"),
    "use_vllm": (lambda v, w: None, "it samples in the trainer, with the policy's own weights"),
    "label_key": (lambda v, w: {"rewards.0.columns.answer": v}, ""),
    **{
        name: (
            lambda v, w: {"evaluation.sets.test.source": v} if isinstance(v, str) else None,
            "sets by name; from Python evaluate_on=rows",
        )
        for name in ("eval_dataset", "val_dataset", "val_files")
    },
    "torch_dtype": (lambda v, w: given("model.dtype", DTYPES.get(str(v).removeprefix("torch."))), "bfloat16 or float32"),
    "bf16": (lambda v, w: {"model.dtype": "bfloat16" if v else "float32"}, "auto is bfloat16 on CUDA already"),
    "use_cpu": (lambda v, w: {"model.device": "cpu"} if v else None, ""),
    "no_cuda": (lambda v, w: {"model.device": "cpu"} if v else None, ""),
    "use_liger_kernel": (lambda v, w: None, "own kernels are used where they are proven to give the same numbers"),
    "peft_config": (lambda v, w: None, "with model.lora.alpha and model.lora.targets: model.lora.rank=16 trains adapters"),
    "use_peft": (lambda v, w: {"model.lora.rank": int(number(w, "lora_r", "lora_rank", default=16))} if v else None, ""),
    "lora_target_modules": (
        lambda v, w: {"model.lora.targets": v} if isinstance(v, list) else None,
        "empty is every linear layer",
    ),
    "target_modules": (lambda v, w: {"model.lora.targets": v} if isinstance(v, list) else None, "empty is every linear layer"),
    "reward_funcs": (lambda v, w: {"rewards": f'[{{function="{v}"}}]'} if isinstance(v, str) else None, "a list of tables"),
    "reward_functions": (lambda v, w: {"rewards": f'[{{function="{v}"}}]'} if isinstance(v, str) else None, "a list of tables"),
    "reward_weights": (lambda v, w: {f"rewards.{n}.weight": x for n, x in enumerate(v)} if isinstance(v, list) else None, ""),
    **{
        name: (lambda v, w: folder_of(v), "a run is the folder runs_folder/name")
        for name in ("output_dir", "save_path", "default_local_dir")
    },
    "use_wandb": (lambda v, w: {"monitors.wandb": True} if v else None, ""),
    "use_tensorboard": (lambda v, w: {"monitors.tensorboard": True} if v else None, ""),
    "report_to": (
        lambda v, w: trackers_of(v),
        "monitors.wandb and monitors.tensorboard switch theirs on; metrics.jsonl is always written",
    ),
    "logger": (
        lambda v, w: trackers_of(v),
        "monitors.wandb and monitors.tensorboard switch theirs on; metrics.jsonl is always written",
    ),
    "disable_tqdm": (lambda v, w: {"monitors.console": not v} if isinstance(v, bool) else None, ""),
    "log_completions": (
        lambda v, w: {"monitors.show_every": 25 if v else 0},
        "all of them are in rollouts/; read them with `cohort look RUN`",
    ),
}
"""Word -> (our words for its value, what to know of it). A word that is not here has the same value under our name."""


def in_our_words(word: str, value: Any, words: Words) -> tuple[Ours, str]:
    """(our words with their values, a remark) for a word of OTHER_WORDS. A value that no conversion can read has none."""
    convert, remark = CONVERTED.get(word, (lambda v, w: {OTHER_WORDS[word]: v}, ""))
    try:
        return convert(value, words), remark
    except (TypeError, ValueError, LookupError, ZeroDivisionError, OverflowError):
        return None, remark
