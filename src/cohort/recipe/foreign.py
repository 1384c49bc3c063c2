"""What is said of the words of other tools: our word, with the value converted, or what there is instead. The words: foreign.toml.

A value is written in our words only where it means the same here. Where the other tool counts something else, the number is
converted; where that depends on words that are not given, or on the data, the rule is said instead. The rules are those of TRL's
GRPOConfig and GRPOTrainer, verl's and OpenRLHF's.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path, PurePath
from typing import Any

Words = Mapping[str, Any]
"""The other words that were given, by their last name: what a conversion may depend on."""


@cache
def read_tables() -> dict[str, Any]:
    """The tables of foreign.toml."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def list_translated() -> dict[str, str]:
    """What others call it -> our word."""
    return {word: ours for ours, words in read_tables()["called"].items() for word in words}


def explain_unclear(word: str) -> str:
    """What to write for a word that one section has but that means something else to most people; "" for any other word."""
    return str(read_tables()["unclear"].get(word, "")).replace("{cut}", read_tables()["cut"])


def explain_missing(word: str) -> str:
    """What there is in place of a word that other tools have and this one does not; "" where nothing is known of it."""
    word, tables = word.lower().replace("-", "_"), read_tables()
    found = (instead for pattern, instead in tables["missing"].items() if re.fullmatch(pattern, word))
    return next(found, "").replace("{cut}", tables["cut"])


def is_foreign(word: str) -> bool:
    """Whether something is known of a word that is not ours."""
    return word in list_translated() or bool(explain_unclear(word) or explain_missing(word))


def find_remark(word: str) -> str:
    """What to know of a word that has another name here."""
    remarks = read_tables()["remarks"]
    return remarks.get(word) or remarks.get(list_translated()[word], "")


def convert_value(word: str, value: Any, beside: Words) -> dict[str, Any]:
    """Our words with their values, for a word that has another name here; none where the value cannot be told."""
    ours, tables = list_translated()[word], read_tables()
    if word in tables["untold"] or value is None:
        return {}
    convert = CONVERSIONS.get(word) or CONVERSIONS.get(ours)
    known = tables["values"].get(word) or tables["values"].get(ours)
    if not convert and not known:
        return {ours: value}
    try:
        switch = bool(value) if value in (0, 1) else value  # 1 and 0 are how others write true and false
        found = convert(value, beside) if convert else known.get(str(switch).lower().removeprefix("torch."))
    except (TypeError, ValueError, LookupError, ZeroDivisionError, OverflowError):
        return {}
    if isinstance(found, dict) and found is not value:
        return found
    return {} if found is None else {ours: found}


# -- values that are counted otherwise ---------------------------------------------------------------------------------


def find_number(words: Words, *names: str, default: float = 1) -> float:
    """The first of these words that was given as a number."""
    found = (words[name] for name in names if isinstance(words.get(name), int | float) and not isinstance(words[name], bool))
    return next(found, default)


def round_whole(value: float) -> int | None:
    return round(value) if value >= 1 and abs(value - round(value)) < 1e-9 else None


def count_prompts(completions: float, words: Words) -> int | None:
    return round_whole(completions / find_number(words, "num_generations", "group_size", default=8))


def count_updates(words: Words) -> float:
    """Optimizer steps of one step: minibatches and passes, in TRL's words or in ours."""
    cut = find_number(words, "steps_per_generation", default=0) / find_number(words, "gradient_accumulation_steps")
    return max(1, cut or find_number(words, "minibatches_per_step")) * find_number(words, "num_iterations", "passes_per_step")


def count_warmup(ratio: float, words: Words) -> int | None:
    steps = find_number(words, "max_steps", default=0) or find_number(words, "num_steps", default=0) * count_updates(words)
    return math.ceil(steps * ratio) if steps else None


def split_clip(value: Any, words: Words) -> dict[str, Any]:
    low, high = value if isinstance(value, list) and len(value) == 2 else (value, value)
    return {"algorithm.clip_low": low, "algorithm.clip_high": high}


def split_folder(value: Any, words: Words) -> dict[str, Any]:
    path = PurePath(str(value))
    return {"name": path.name} if str(path.parent) == "." else {"runs_folder": str(path.parent), "name": path.name}


def name_trackers(value: Any, words: Words) -> dict[str, Any] | None:
    names = value if isinstance(value, list) else [value]
    known = names and all(name in ("tensorboard", "wandb") for name in names)
    return {f"monitors.{name}": True for name in names} if known else None


CONVERSIONS: dict[str, Callable[[Any, Words], Any]] = {
    "per_device_train_batch_size": lambda v, w: count_prompts(
        v * find_number(w, "steps_per_generation", "gradient_accumulation_steps"), w
    ),
    "generation_batch_size": count_prompts,
    "train_batch_size": lambda v, w: None if "rollout_batch_size" in w else v,
    "max_steps": lambda v, w: round_whole(v / count_updates(w)),
    "steps_per_generation": lambda v, w: round_whole(v / find_number(w, "gradient_accumulation_steps")),
    "ppo_mini_batch_size": lambda v, w: round_whole(find_number(w, "train_batch_size", "prompts_per_step", default=0) / v),
    "ref_model_sync_steps": lambda v, w: v if find_number(w, "ref_model_mixup_alpha") == 1 else None,
    "ref_model_mixup_alpha": lambda v, w: (
        round(1 - v, 12) if 0 < v < 1 and find_number(w, "ref_model_sync_steps") == 1 else None
    ),
    "algorithm.clip_low and algorithm.clip_high": split_clip,
    "epsilon_high": lambda v, w: {"algorithm.ratio_cap": v} if w.get("loss_type") == "cispo" else v,
    "algorithm.dual_clip": lambda v, w: {"algorithm.region": "dual_clip", "algorithm.dual_clip": v},
    "lr_warmup_steps": lambda v, w: v,
    "optimizer.warmup_steps": count_warmup,
    "optimizer.state_bits": lambda v, w: 8 if "8bit" in str(v) else None,
    "sampling.stop": lambda v, w: v if isinstance(v, list) else [v],
    "use_peft": lambda v, w: int(find_number(w, "lora_r", "lora_rank", default=16)) if v else None,
    "model.lora.targets": lambda v, w: v if isinstance(v, list) else None,
    "rewards": lambda v, w: f'[{{function="{v}"}}]' if isinstance(v, str) else None,
    "rewards.N.weight": lambda v, w: {f"rewards.{n}.weight": x for n, x in enumerate(v)} if isinstance(v, list) else None,
    "rewards.N.columns": lambda v, w: {"rewards.0.columns.answer": v},
    "evaluation.sets": lambda v, w: {"evaluation.sets.test.source": v} if isinstance(v, str) else None,
    "runs_folder": split_folder,
    "monitors.wandb": lambda v, w: True if v else None,  # others take the key of an account, or a folder
    "monitors.tensorboard": lambda v, w: True if v else None,
    "monitors.also": name_trackers,
}
"""Their word, or ours for all of theirs -> the value as ours has it, or our words with their values; None: it cannot be told."""
