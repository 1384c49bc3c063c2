"""A trl.GRPOConfig or peft.LoraConfig object as settings of a recipe: `cohort.train(args=..., peft_config=...)`. Imports neither.

A config holds a value for every option, so defaults and values that were set cannot be told apart. Options that act on the training are
therefore all translated, with TRL's defaults; the others only where they differ from the default. An option without a counterpart is
listed if it does not act on the training, and refused by name if it does.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cohort.errors import RecipeError
from cohort.recipe.file import resolve_undotted
from cohort.recipe.trl_names import UNCLEAR, VALUES, convert_value

PAGES = {"args": "docs/from-trl.md lists what to use instead", "peft_config": "docs/lora.md lists what adapters can be"}
SAME = ("learning_rate", "weight_decay", "max_grad_norm", "seed", "trust_remote_code", "temperature", "entropy_coef")
"""Options of GRPOConfig that act on the training and have the same name and meaning here."""
OPTIONS = (
    "beta adam_beta1 adam_beta2 adam_epsilon optim gradient_checkpointing max_completion_length shuffle_dataset num_iterations loss_type "
    "mask_truncated_completions full_determinism num_generations chat_template_kwargs",
    "disable_tqdm log_completions max_tool_calling_iterations project save_total_limit num_generations_eval report_to output_dir",
    "per_device_train_batch_size generation_batch_size gradient_accumulation_steps steps_per_generation max_steps num_train_epochs "
    "lr_scheduler_type lr_scheduler_kwargs warmup_steps epsilon epsilon_high delta importance_sampling_level scale_rewards "
    "multi_objective_aggregation bf16 fp16 use_cpu use_bias_correction_kl sync_ref_model ref_model_sync_steps ref_model_mixup_alpha "
    "reward_weights eval_strategy eval_steps save_steps save_strategy model_init_kwargs use_vllm vllm_mode vllm_server_base_url "
    "vllm_server_host vllm_server_port vllm_server_timeout vllm_importance_sampling_correction vllm_importance_sampling_mode "
    "vllm_importance_sampling_clip_max sapo_temperature_pos sapo_temperature_neg",
)
TRANSLATED, WHERE_CHANGED, JOINT = (names.split() for names in OPTIONS)
"""Options that act on the training and are converted one by one; options that do not act on it and have a key here; options that are
converted together."""
NO_EFFECT = re.compile(
    r"(log|hub|dataloader|ddp|torch_compile|torch_empty|trackio|vllm|vespo|eval|save|do|include|use_transformers|transformers)_.*"
    r"|logging_.*|.*_for_(metrics|generation)|push_to_hub|run_name|data_seed|debug|local_rank|accelerator_config|skip_memory_metrics"
    r"|prediction_loss_only|batch_eval_metrics|per_device_eval_batch_size|load_best_model_at_end|metric_for_best_model|greater_is_better"
    r"|torch_compile|average_tokens_across_devices|remove_unused_columns|label_names|disable_dropout|cast_lm_head_to_fp32|cache_implementation|use_cache"
    r"|use_liger_kernel|liger_kernel_config|gradient_checkpointing_kwargs|pad_to_multiple_of|length_column_name|num_completions_to_print"
    r"|(bf16|fp16)_full_eval|tf32|enable_jit_checkpoint|ignore_data_skip|restore_callback_states_from_checkpoint"
)
"""Options that do not act on what is trained here. Those of vLLM's process belong to `cohort serve`; those of VESPO act with its loss."""
ACTS = ("vllm_importance_sampling_clip_min", "vllm_structured_outputs_regex", "vllm_importance_sampling_cap")
"""Exceptions: these do act."""
INSTEAD = {
    "importance_sampling_level": "sequence is a separate region: it cannot be combined with delta, cispo or sapo",
    "loss_type": "bnpo with gradient accumulation divides by the tokens of each micro-batch, so its gradient depends on the memory; use "
    "dapo. vespo is not built in",
    "optim": "AdamW is the only optimizer, in 32 or 8 bits",
    "steps_per_generation": "an optimizer step would span batches of rollouts; make it a multiple of gradient_accumulation_steps",
    "max_steps": "it counts optimizer steps; make it a multiple of steps_per_generation / gradient_accumulation_steps x num_iterations",
    "num_train_epochs": "the number of rows is not known; set max_steps, or num_steps= here",
    "fp16": "model.dtype is bfloat16 or float32",
    "vllm_mode": "vLLM runs as a server (`cohort serve`); leave use_vllm out, or set vllm_mode='server' and its address",
    "eval_strategy": "use 'steps', or evaluation={'every_steps': ...} here",
    "sync_ref_model": "with ref_model_mixup_alpha=1 the reference is replaced, with ref_model_sync_steps=1 it is a moving average; both at once "
    "is not built in",
    "reward_weights": "it needs one weight for each reward",
    "resume_from_checkpoint": "use cohort.resume(run)",
    "target_modules": "name the modules in a list, or 'all-linear' for every linear layer except the head",
    "lora_dropout": "no dropout: the policy that samples is the policy that is scored",
    "deepspeed": "parallel.shard='full' shards the model",
    "fsdp": "parallel.shard='full' shards the model",
    **{name: UNCLEAR[name] for name in ("top_p", "top_k")},
}
"""What to do about an option that is refused."""


def translate_config(args: Any, rows: int | None, rewards: int, num_steps: Any = None) -> tuple[dict[str, Any], list[str]]:
    """(settings by path, options listed as having no effect). rows: of the training data; None: unknown. rewards: their number. num_steps:
    the steps that a keyword sets instead."""
    given, changed = read_config(args, "args", "GRPOConfig", "use_cpu", "bf16", "fp16")
    if isinstance(num_steps, int):
        given["max_steps"] = (
            num_steps * given["num_iterations"] * max(1, given["steps_per_generation"] // given["gradient_accumulation_steps"])
        )
    settings: dict[str, Any] = {resolve_undotted(name): given[name] for name in SAME}
    settings |= {"algorithm.std_ddof": 1, "algorithm.std_epsilon": 1e-4}
    refused: list[str] = []
    unused: list[str] = []
    for name in [*TRANSLATED, *(name for name in WHERE_CHANGED if name in changed)]:
        converted = convert_value(name, given[name], given)
        settings |= converted
        if not converted and (given[name] is not None or name in changed):
            (unused if name == "report_to" else refused).append(name)
    for convert in (count_steps, convert_schedule, convert_loss, convert_reference, convert_vllm, convert_others):
        converted, problems = convert(given, rows, rewards)
        settings |= converted
        refused += problems
    known = {*SAME, *TRANSLATED, *WHERE_CHANGED, *JOINT}
    others = [name for name in changed if name not in known]
    refused += [name for name in others if name in ACTS or not NO_EFFECT.fullmatch(name)]
    refuse_options("args", refused, given)
    preset = {"algorithm": settings.pop("algorithm.name")} if "algorithm.name" in settings else {}
    return preset | settings, [*unused, *(name for name in others if name not in refused)]


def translate_lora(config: Any) -> dict[str, Any]:
    given, changed = read_config(config, "peft_config", "LoraConfig")
    known = {
        "r",
        "lora_alpha",
        "target_modules",
        "task_type",
        "inference_mode",
        "base_model_name_or_path",
        "revision",
        "peft_version",
    }
    targets = given["target_modules"]
    refused = [name for name in changed if name not in known]
    if targets is None or (isinstance(targets, str) and targets != "all-linear"):  # PEFT's choice, or a regular expression
        refused.append("target_modules")
    refuse_options("peft_config", refused, given)
    named = [] if isinstance(targets, str) else sorted(targets)
    return {"model.lora.rank": given["r"], "model.lora.alpha": float(given["lora_alpha"]), "model.lora.targets": named}


def read_config(config: Any, place: str, kind: str, *shared: str) -> tuple[dict[str, Any], list[str]]:
    """(all options, the names of all that differ from the default). shared: options that the default object needs as well."""
    if isinstance(config, type) or kind not in [base.__name__ for base in type(config).__mro__]:
        library = {"GRPOConfig": "trl", "LoraConfig": "peft"}[kind]
        raise RecipeError(f"{place}: give a {library}.{kind} object; got {type(config).__name__}.")
    given = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    kind_of_config: Any = type(config)
    try:
        default = kind_of_config(**{name: given[name] for name in shared})
    except (TypeError, ValueError) as problem:
        raise RecipeError(f"{place}: {type(config).__name__}() cannot be created for a comparison ({problem}).") from problem
    return given, [name for name, value in given.items() if repr(value) != repr(getattr(default, name, None))]


def refuse_options(place: str, names: Sequence[str], given: Mapping[str, Any]) -> None:
    if names:
        values = {name: getattr(given[name], "value", given[name]) for name in names}
        lines = [
            f"{place}.{name}={values[name]!r}: {INSTEAD.get(name, f'it has no counterpart here; {PAGES[place]}')}"
            for name in names
        ]
        raise RecipeError("\n".join(dict.fromkeys(lines)))


# -- options that are converted together -------------------------------------------------------------------------------

Converted = tuple[dict[str, Any], list[str]]
"""(settings, options to refuse)."""


def count_steps(g: Mapping[str, Any], rows: int | None, rewards: int) -> Converted:
    """Prompts, minibatches and steps. GRPOConfig has filled in generation_batch_size, over all processes, and steps_per_generation."""
    prompts = g["generation_batch_size"] // g["num_generations"]
    minibatches, rest = divmod(g["steps_per_generation"], g["gradient_accumulation_steps"])
    settings = {"train.prompts_per_step": prompts, "train.minibatches_per_step": max(1, minibatches)}
    if rest:
        return settings, ["steps_per_generation"]
    updates = minibatches * g["num_iterations"]
    if g["max_steps"] > 0:
        return settings | {"train.num_steps": g["max_steps"] // updates}, ["max_steps"] * (g["max_steps"] % updates > 0)
    if rows is None:
        return settings, ["num_train_epochs"]
    return settings | {"train.num_steps": math.ceil(g["num_train_epochs"] * max(1, rows // prompts))}, []


def convert_schedule(g: Mapping[str, Any], rows: int | None, rewards: int) -> Converted:
    name = str(getattr(g["lr_scheduler_type"], "value", g["lr_scheduler_type"]))
    more, warmup = dict(g["lr_scheduler_kwargs"] or {}), g["warmup_steps"]
    schedule = VALUES["lr_scheduler_type"].get(name)
    if schedule is None:
        return {}, ["lr_scheduler_type"]
    if name == "constant":  # transformers ignores the warm-up then
        warmup = 0
    elif warmup < 1:  # a share of all optimizer steps
        counted, _ = count_steps(g, rows, rewards)
        updates = counted["train.minibatches_per_step"] * g["num_iterations"] * counted.get("train.num_steps", 0)
        warmup = math.ceil(warmup * updates)
    share = {"optimizer.final_share": more.pop("min_lr_rate", 0.0)} if name == "cosine_with_min_lr" else {}
    if "min_lr" in more and share:
        share = {"optimizer.final_share": more.pop("min_lr") / g["learning_rate"]}
    return {"optimizer.schedule": schedule, "optimizer.warmup_steps": int(warmup)} | share, ["lr_scheduler_kwargs"] * bool(more)


def convert_loss(g: Mapping[str, Any], rows: int | None, rewards: int) -> Converted:
    """Clip, advantage and the presets of cispo and sapo."""
    loss, high = g["loss_type"], g["epsilon"] if g["epsilon_high"] is None else g["epsilon_high"]
    normalized = "multi_objective_aggregation" if g["multi_objective_aggregation"] != "sum_then_normalize" else "scale_rewards"
    settings = convert_value(normalized, g[normalized], g)
    level = "importance_sampling_level"
    refused = [level] * (g[level] == "sequence" and (loss in ("cispo", "sapo") or g["delta"] is not None))
    if loss == "cispo":
        settings |= {"algorithm.ratio_cap": high}
    elif loss == "sapo":
        settings |= {"algorithm.soft_up": g["sapo_temperature_pos"], "algorithm.soft_down": g["sapo_temperature_neg"]}
    else:
        settings |= convert_value(level, g[level], g) | {"algorithm.clip_low": g["epsilon"], "algorithm.clip_high": high}
        settings |= convert_value("delta", g["delta"], g)
    if g["beta"]:
        settings |= {"algorithm.kl_corrected": g["use_bias_correction_kl"]}
    several = g["per_device_train_batch_size"] * g["steps_per_generation"] != g["generation_batch_size"]
    return settings, refused + ["loss_type"] * (loss == "bnpo" and several)


def convert_reference(g: Mapping[str, Any], rows: int | None, rewards: int) -> Converted:
    if not g["sync_ref_model"]:
        return {}, []
    counted, _ = count_steps(g, rows, rewards)
    every, rest = divmod(g["ref_model_sync_steps"], counted["train.minibatches_per_step"] * g["num_iterations"])
    alpha = g["ref_model_mixup_alpha"]
    if not rest and alpha == 1:
        return {"algorithm.reference_every": every}, []
    return ({"algorithm.reference_decay": round(1 - alpha, 12)}, []) if not rest and every == 1 else ({}, ["sync_ref_model"])


def convert_vllm(g: Mapping[str, Any], rows: int | None, rewards: int) -> Converted:
    if not g["use_vllm"]:
        return {}, []
    if g["vllm_mode"] != "server":
        return {}, ["vllm_mode"]
    address = g["vllm_server_base_url"] or f"http://{g['vllm_server_host']}:{g['vllm_server_port']}"
    mode = g["vllm_importance_sampling_mode"] if g["vllm_importance_sampling_correction"] else "off"
    settings = {
        "sampling.servers": [address],
        "vllm.wait_s": float(g["vllm_server_timeout"]),
        "algorithm.mismatch_weight": mode,
    }
    cap = g["vllm_importance_sampling_clip_max"]
    return settings | ({"algorithm.mismatch_cap": cap} if cap else {}), []


def convert_others(g: Mapping[str, Any], rows: int | None, rewards: int) -> Converted:
    """Weights of the rewards, precision, loading, evaluation and saving."""
    counted, _ = count_steps(g, rows, rewards)
    updates = counted["train.minibatches_per_step"] * g["num_iterations"]
    settings: dict[str, Any] = {} if g["bf16"] else {"model.dtype": "float32"}  # bf16 is the default: model.dtype = "auto"
    settings |= {"model.device": "cpu"} if g["use_cpu"] else {}
    weights = g["reward_weights"] or []
    settings |= {f"rewards.{number}.weight": weight for number, weight in enumerate(weights[:rewards])}
    refused = ["fp16"] * bool(g["fp16"]) + ["reward_weights"] * (bool(weights) and len(weights) != rewards)
    loading = dict(g["model_init_kwargs"] or {})
    for name, key in {"dtype": "model.dtype", "torch_dtype": "model.dtype", "revision": "model.revision"}.items():
        settings |= {key: loading.pop(name)} if name in loading else {}
    refused += ["model_init_kwargs"] * bool(loading)
    strategies = {name: str(getattr(g[name], "value", g[name])) for name in ("eval_strategy", "save_strategy")}
    if strategies["eval_strategy"] == "steps":
        settings["evaluation.every_steps"] = max(1, int(g["eval_steps"] or 1) // updates)
    refused += ["eval_strategy"] * (strategies["eval_strategy"] not in ("no", "steps"))
    if strategies["save_strategy"] == "steps" and g["save_steps"] not in (500, 500.0):
        settings["checkpoints.every_steps"] = max(1, int(g["save_steps"]) // updates)
    return settings, refused
