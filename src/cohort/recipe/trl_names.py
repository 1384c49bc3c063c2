"""TRL's names for the settings of a recipe. Error messages suggest the key here, with the value converted; nothing is accepted. No torch.

A value is converted only where the result means the same. If that depends on settings that were not given, or on the data, the message
names the key and, where the two count different things, the rule. The rules are those of TRL's GRPOConfig and GRPOTrainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

Given = Mapping[str, Any]
"""The other settings that were given, by the last part of their name: a conversion may depend on them."""

_CALLED = {
    "train.group_size": "num_generations",
    "train.prompts_per_step": "per_device_train_batch_size generation_batch_size",
    "train.micro_batch_tokens": "gradient_accumulation_steps",
    "train.activation_checkpointing": "gradient_checkpointing",
    "train.deterministic": "full_determinism",
    "train.num_steps": "max_steps num_train_epochs",
    "train.passes_per_step": "num_iterations",
    "train.minibatches_per_step": "steps_per_generation",
    "algorithm.advantage": "multi_objective_aggregation scale_rewards",
    "algorithm.region": "importance_sampling_level",
    "algorithm.aggregation": "loss_type",
    "algorithm.clip_high": "epsilon_high",
    "algorithm.dual_clip": "delta",
    "algorithm.soft_up": "sapo_temperature_pos",
    "algorithm.soft_down": "sapo_temperature_neg",
    "algorithm.kl_coef": "beta",
    "algorithm.kl_corrected": "use_bias_correction_kl",
    "algorithm.reference_every": "sync_ref_model ref_model_sync_steps",
    "algorithm.reference_decay": "ref_model_mixup_alpha",
    "algorithm.mask_truncated": "mask_truncated_completions",
    "algorithm.mismatch_weight": "vllm_importance_sampling_correction vllm_importance_sampling_mode",
    "algorithm.mismatch_cap": "vllm_importance_sampling_clip_max vllm_importance_sampling_cap",
    "optimizer.schedule": "lr_scheduler_type",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.epsilon": "adam_epsilon",
    "optimizer.state_bits": "optim",
    "sampling.servers": "use_vllm vllm_server_base_url",
    "vllm.wait_s": "vllm_server_timeout",
    "environment.source": "environment_factory",
    "environment.max_turns": "max_tool_calling_iterations",
    "sampling.max_completion_tokens": "max_completion_length",
    "prompts.source": "dataset_name train_dataset",
    "prompts.split": "dataset_train_split",
    "prompts.shuffle": "shuffle_dataset",
    "prompts.template_args": "chat_template_kwargs",
    "model.source": "model_name_or_path",
    "model.revision": "model_revision",
    "model.dtype": "bf16",
    "model.device": "use_cpu",
    "model.kernels": "use_liger_kernel",
    "model.lora.rank": "peft_config use_peft lora_r",
    "model.lora.alpha": "lora_alpha",
    "model.lora.targets": "lora_target_modules",
    "rewards": "reward_funcs",
    "rewards.N.weight": "reward_weights",
    "evaluation.sets": "eval_dataset",
    "evaluation.every_steps": "eval_steps",
    "evaluation.samples": "num_generations_eval",
    "checkpoints.every_steps": "save_steps",
    "checkpoints.keep": "save_total_limit",
    "checkpoints.best": "load_best_model_at_end",
    "runs_folder": "output_dir",
    "name": "run_name",
    "seed": "data_seed",
    "monitors.wandb_project": "project",
    "monitors.also": "report_to",
    "monitors.console": "disable_tqdm",
    "monitors.show_every": "log_completions",
}
TRL_NAMES = {name: key for key, names in _CALLED.items() for name in names.split()}
"""TRL's name -> the key here. tests/recipe/test_trl_names.py compares it with the installed TRL."""

_STEPS = "a step is one batch of rollouts, whatever its number of optimizer steps; num_steps = epochs x rows / prompts_per_step"
COUNTING = {
    "per_device_train_batch_size": "TRL counts completions on one device: prompts_per_step = per_device_train_batch_size x "
    "gradient_accumulation_steps x devices / num_generations",
    "generation_batch_size": "TRL counts completions: prompts_per_step = generation_batch_size / num_generations",
    "gradient_accumulation_steps": "micro_batch_tokens counts tokens and changes only the memory, never the gradient; a step trains on "
    "prompts_per_step x group_size completions",
    "max_steps": _STEPS,
    "max_tool_calling_iterations": "TRL counts replies, here the policy's turns are counted: max_turns = max_tool_calling_iterations + 1",
    "num_train_epochs": _STEPS,
    "steps_per_generation": "minibatches_per_step = steps_per_generation / gradient_accumulation_steps",
    "warmup_steps": "update k of a warm-up over W has rate k / W here and (k - 1) / W in transformers, whose first update changes nothing; "
    "below 1 TRL's value is a share of all updates",
    "loss_type": "bnpo is token_mean only without gradient accumulation and on one device, vespo is not built in; luspo is for "
    'importance_sampling_level="token"',
}
"""The rule for names that count something else in TRL."""

_DISTRIBUTION = (
    "training samples from the policy's full distribution, because the loss uses the log-probs of that distribution. Change "
    "sampling.temperature; evaluation has its own evaluation.{}"
)
UNCLEAR = {
    "epsilon": "set algorithm.clip_low and algorithm.clip_high to clip the ratio, optimizer.epsilon for AdamW",
    "batch_size": "set train.prompts_per_step (and train.group_size) for training, cold_start.batch_size for demonstrations",
    "kl": "set algorithm.kl_coef for the weight of the KL, monitors.kl = true to measure it where the weight is 0",
    "clip": "set algorithm.clip_low and algorithm.clip_high to clip the ratio, critic.clip for PPO's value function",
    "coef": "set teacher.coef for the weight of a teacher, algorithm.kl_coef for the KL, algorithm.entropy_coef for the entropy",
    "epochs": "set train.passes_per_step for passes over each batch, train.num_steps for the length of a run, reward_model.epochs to "
    "fit a reward model",
    "loss": "set algorithm.name, algorithm.region and algorithm.aggregation for the policy, reward_model.loss for a reward model",
    "top_p": _DISTRIBUTION.format("top_p"),
    "top_k": _DISTRIBUTION.format("top_k"),
}
"""Keys of one section that mean something else to most people: refused without their section, and in other sections."""

TRAINER_ARGUMENTS = {
    "rollout_func": "completions come from an engine (sampling.engine), token ids in and out; a function of yours cannot sample them",
    "optimizers": "AdamW is the only optimizer: [optimizer] holds its settings, such as learning_rate and schedule",
    "callbacks": "give cohort.train(monitors=[...]), objects with methods such as on_metrics(row)",
    "processing_class": "the tokenizer comes with the model; give tokenizer= with a loaded model",
    "reward_processing_classes": "a reward function of yours loads its own tokenizer; reward models are rewards named reward_model",
    "quantization_config": "set model.lora.base_dtype = 'nf4' and model.lora.rank for QLoRA",
}
"""Arguments of TRL's trainer that are no setting here."""
EXPLAINED = UNCLEAR | TRAINER_ARGUMENTS

VALUES: dict[str, dict[str, Any]] = {
    "multi_objective_aggregation": {"sum_then_normalize": "group_normalized", "normalize_then_sum": "parts_normalized"},
    "scale_rewards": {
        **dict.fromkeys(("true", "group"), "group_normalized"),
        **dict.fromkeys(("false", "none"), "group_centered"),
        "batch": "batch_std",
    },
    "importance_sampling_level": {"token": "clip", "sequence": "sequence"},
    "loss_type": {
        "grpo": "sequence_mean",
        "bnpo": "token_mean",
        "dapo": "token_mean",
        "luspo": "sequence_sum",
        "dr_grpo": "constant",
        "cispo": {"algorithm.name": "cispo"},
        "sapo": {"algorithm.name": "sapo"},
    },
    "vllm_importance_sampling_correction": {"false": "off"},
    "lr_scheduler_type": {
        **{name: name for name in ("constant", "linear", "cosine")},
        "constant_with_warmup": "constant",
        "cosine_with_min_lr": "cosine",
    },
    "bf16": {"true": "bfloat16", "false": "float32"},
    "use_cpu": {"true": "cpu"},
    "optim": {
        **dict.fromkeys(
            ("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "paged_adamw_32bit"), 32
        ),
        **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit"), 8),
    },
    "disable_tqdm": {"true": False, "false": True},
    "log_completions": {"true": 25, "false": 0},
}
"""TRL's name -> TRL's value -> the value here. Other values are not converted."""
NOT_CONVERTED = {
    "gradient_accumulation_steps",
    "num_train_epochs",
    "sync_ref_model",
    "use_vllm",
    "use_liger_kernel",
    "peft_config",
}


def convert_value(name: str, value: Any, given: Given) -> dict[str, Any]:
    """The keys here with their values, for one of TRL_NAMES; empty where the value cannot be converted."""
    if name in NOT_CONVERTED or value is None:
        return {}
    key, convert, known = TRL_NAMES[name], CONVERSIONS.get(name), VALUES.get(name)
    if not convert and not known:
        return {key: value}
    try:
        switch = bool(value) if value in (0, 1) else value  # 1 and 0 are true and false too
        found = convert(value, given) if convert else (known or {}).get(str(getattr(switch, "value", switch)).lower())
    except (TypeError, ValueError, LookupError, ZeroDivisionError, OverflowError):
        return {}
    if isinstance(found, dict) and found is not value:
        return found
    return {} if found is None else {key: found}


# -- values that are counted differently -------------------------------------------------------------------------------


def find_number(given: Given, *names: str, default: float = 1) -> float:
    """The first of these settings that was given as a number."""
    found = (given[name] for name in names if isinstance(given.get(name), int | float) and not isinstance(given[name], bool))
    return next(found, default)


def round_whole(value: float) -> int | None:
    return round(value) if value >= 1 and abs(value - round(value)) < 1e-9 else None


def count_prompts(completions: float, given: Given) -> int | None:
    return round_whole(completions / find_number(given, "num_generations", "group_size", default=8))


def count_updates(given: Given) -> float:
    """Optimizer steps of one step, from TRL's settings or ours."""
    cut = find_number(given, "steps_per_generation", default=0) / find_number(given, "gradient_accumulation_steps")
    return max(1, cut or find_number(given, "minibatches_per_step")) * find_number(given, "num_iterations", "passes_per_step")


def split_folder(value: Any, given: Given) -> dict[str, Any]:
    path = PurePath(str(value))
    return {"name": path.name} if str(path.parent) == "." else {"runs_folder": str(path.parent), "name": path.name}


def convert_trackers(value: Any, given: Given) -> dict[str, Any] | None:
    names = value if isinstance(value, list) else [value]
    if not names or not {*names} <= {"tensorboard", "wandb", "trackio"}:
        return None
    switches: dict[str, Any] = {f"monitors.{name}": True for name in names if name != "trackio"}
    return switches | ({"monitors.also": ["trackio"]} if "trackio" in names else {})


CONVERSIONS: dict[str, Callable[[Any, Given], Any]] = {
    "max_tool_calling_iterations": lambda v, g: v + 1 if isinstance(v, int) else None,
    "environment_factory": lambda v, g: v if isinstance(v, str) else None,
    "per_device_train_batch_size": lambda v, g: count_prompts(
        v * find_number(g, "steps_per_generation", "gradient_accumulation_steps"), g
    ),
    "generation_batch_size": count_prompts,
    "max_steps": lambda v, g: round_whole(v / count_updates(g)),
    "steps_per_generation": lambda v, g: round_whole(v / find_number(g, "gradient_accumulation_steps")),
    "ref_model_sync_steps": lambda v, g: v if find_number(g, "ref_model_mixup_alpha") == 1 else None,
    "ref_model_mixup_alpha": lambda v, g: (
        round(1 - v, 12) if 0 < v < 1 and find_number(g, "ref_model_sync_steps") == 1 else None
    ),
    "epsilon_high": lambda v, g: {"algorithm.ratio_cap": v} if g.get("loss_type") == "cispo" else v,
    "delta": lambda v, g: {"algorithm.region": "dual_clip", "algorithm.dual_clip": v},
    "loss_type": lambda v, g: (
        VALUES["loss_type"][v] if v != "bnpo" or find_number(g, "gradient_accumulation_steps") == 1 else None
    ),
    "use_peft": lambda v, g: int(find_number(g, "lora_r", default=16)) if v else None,
    "lora_target_modules": lambda v, g: v if isinstance(v, list) else None,
    "reward_funcs": lambda v, g: f'[{{function="{v}"}}]' if isinstance(v, str) else None,
    "reward_weights": lambda v, g: {f"rewards.{n}.weight": x for n, x in enumerate(v)} if isinstance(v, list) else None,
    "eval_dataset": lambda v, g: {"evaluation.sets.test.source": v} if isinstance(v, str) else None,
    "output_dir": split_folder,
    "report_to": convert_trackers,
}
"""TRL's name -> the value here, or several keys here with their values; None: it cannot be converted."""
