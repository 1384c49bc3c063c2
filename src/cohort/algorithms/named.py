"""The names that [algorithm] accepts: the aggregations, the table of all built-in choices, and the presets. No torch.

An aggregation is given the trained tokens of each completion and returns the weight of one token of each, over the whole optimizer
batch. The weights are fixed before any backward, so the size of a micro-batch cannot change the gradient. A length of 0 is a completion
whose tokens are all masked: it is in neither the numerator nor the denominator.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from cohort.algorithms import advantages, regions
from cohort.algorithms.registry import Choice, Kind, Setting, aggregation, assume_choice, find_choice

# -- aggregations ------------------------------------------------------------------------------------------------------


@aggregation()
def sequence_mean(lengths_N: Sequence[int]) -> list[float]:
    """GRPO: 1 / (N |o_i|). Every completion has the same weight, so long wrong answers are penalised less per token."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / (count * length) if length else 0.0 for length in lengths_N]


@aggregation()
def token_mean(lengths_N: Sequence[int]) -> list[float]:
    """DAPO: 1 / sum |o_i|. Every token has the same weight."""
    total = sum(lengths_N)
    return [1.0 / total if length else 0.0 for length in lengths_N]


@aggregation()
def constant(lengths_N: Sequence[int], max_completion_tokens: int) -> list[float]:
    """Dr. GRPO: 1 / (N max_completion_tokens). The weight does not depend on the length, so no length is favoured."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / (count * max_completion_tokens) if length else 0.0 for length in lengths_N]


@aggregation()
def sequence_sum(lengths_N: Sequence[int]) -> list[float]:
    """RLOO, REINFORCE: 1 / N. The log-prob of a completion is the sum over its tokens, so long completions have larger gradients."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / count if length else 0.0 for length in lengths_N]


@aggregation()
def prompt_mean(lengths_N: Sequence[int], groups_N: Sequence[int]) -> list[float]:
    """DAPO as in the paper: the token mean within each group, then the mean over groups. For DPO a group is a pair."""
    tokens: Counter[int] = Counter()
    for length, group in zip(lengths_N, groups_N, strict=True):
        tokens[group] += length
    groups = sum(total > 0 for total in tokens.values())
    return [1.0 / (groups * tokens[group]) if length else 0.0 for length, group in zip(lengths_N, groups_N, strict=True)]


# -- where a name is looked up ------------------------------------------------------------------------------------------

FIELDS: dict[Kind, str] = {"advantage": "advantage", "region": "region", "aggregation": "aggregation", "kl": "kl_estimator"}
"""The key of [algorithm] with the name of a choice."""
Own = Mapping[Kind, Choice]
"""A user's functions by kind, once recipe/user_functions.py has resolved them."""
OWN_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""package.module:function"""
OWN_KINDS: tuple[Kind, ...] = ("advantage", "region", "aggregation")
"""Choices that can be a user's function."""


def collect_choices() -> dict[Kind, dict[str, Choice]]:
    """The decorated functions of this file, advantages.py and regions.py by kind and name."""
    values = [value for module in (vars(advantages), vars(regions), globals()) for value in module.values() if callable(value)]
    found = [choice for value in values if (choice := find_choice(value))]
    return {kind: {choice.name: choice for choice in found if choice.kind == kind} for kind in get_args(Kind)}


NAMED = collect_choices()


def list_declared_settings() -> list[Setting]:
    """The keys that choices add to [algorithm], each once."""
    settings = (setting for choices in NAMED.values() for choice in choices.values() for setting in choice.settings)
    return list({setting.name: setting for setting in settings}.values())


def list_parameters() -> set[str]:
    """The keys of [algorithm] that are parameters of a built-in choice."""
    return {name for choices in NAMED.values() for choice in choices.values() for name in choice.parameters}


def list_own(settings: Mapping[str, Any]) -> dict[Kind, str]:
    """Kind -> the user's function that [algorithm] names for it."""
    return {kind: settings[FIELDS[kind]] for kind in OWN_KINDS if settings[FIELDS[kind]] not in NAMED[kind]}


def is_setting(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a parameter is a key of [algorithm]; any other parameter is one of [algorithm.args]."""
    return name in settings and name != "args"


def find_named(kind: Kind, name: str, own: Own | None = None) -> Choice:
    """The choice with this name: built in, or a user's function, resolved or not yet."""
    if name in NAMED[kind]:
        return NAMED[kind][name]
    resolved = (own or {}).get(kind)
    return resolved if resolved is not None and resolved.name == name else assume_choice(kind, name)


def list_names_where(kind: Kind, holds: Callable[[Choice], bool]) -> str:
    """ "'gae' and 'global_normalized'": the names of the built-in choices for which `holds` is true."""
    names = [repr(name) for name, choice in NAMED[kind].items() if holds(choice)]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


@dataclass(frozen=True)
class Chosen:
    """The choices of an [algorithm] section with their traits, and all of its settings."""

    settings: Mapping[str, Any]
    advantage: Choice
    region: Choice
    aggregation: Choice
    kl: Choice
    taught: bool = False
    """Whether a teacher adds a credit of either sign to every token."""

    @classmethod
    def of(cls, settings: Mapping[str, Any], own: Own | None = None, *, taught: bool = False) -> Chosen:
        return cls(settings, **{kind: find_named(kind, settings[field], own) for kind, field in FIELDS.items()}, taught=taught)

    @property
    def all(self) -> tuple[Choice, ...]:
        return self.advantage, self.region, self.aggregation, self.kl

    @property
    def known(self) -> bool:
        """False while a user's function is not resolved; no rule applies then."""
        return all(choice.known for choice in self.all)

    @property
    def data(self) -> str:
        return str(self.settings["data"])


# -- presets -----------------------------------------------------------------------------------------------------------


def make_preset(advantage: str, region: str, aggregation: str, *, kl_coef: float = 0.0, **others: Any) -> dict[str, Any]:
    """The choices of a named algorithm. By default there is no KL, and a clip is PPO's: 0.2 on both sides."""
    clip = {"clip_low": 0.2, "clip_high": 0.2} if region == "clip" else {}
    return {"advantage": advantage, "region": region, **clip, "kl_coef": kl_coef, "aggregation": aggregation, **others}


PRESETS: dict[str, dict[str, Any]] = {
    # DeepSeekMath, arXiv 2402.03300, eq. 3 and section 4.2.
    "grpo": make_preset("group_normalized", "clip", "sequence_mean", kl_coef=0.04),
    # DeepSeekMath section 4.1.3: the same with a reward per step; a token is credited with its own step and all later ones.
    "grpo_process": make_preset("process", "clip", "sequence_mean", kl_coef=0.04),
    # "Understanding R1-Zero-like training", arXiv 2503.20783: no length bias, no difficulty bias.
    "dr_grpo": make_preset("group_centered", "clip", "constant"),
    # DAPO, arXiv 2503.14476: clip-higher, token-level loss, dynamic sampling, soft overlong penalty (4096 of 20480 tokens).
    "dapo": make_preset("group_normalized", "clip", "token_mean", clip_high=0.28, refill_rounds=3, overlong_share=0.2),
    # REINFORCE++, arXiv 2501.03262: no group baseline at all; KL as a cost per token.
    "reinforce++": make_preset(
        "global_normalized", "clip", "token_mean", kl_coef=0.01, kl_estimator="k1", kl_in="token_reward"
    ),
    # The same paper's variant for reasoning: group mean as baseline, then whitened over the batch.
    "reinforce++_baseline": make_preset("batch_whitened", "clip", "token_mean", kl_coef=0.01, kl_estimator="k2"),
    # RLOO, arXiv 2402.14740: REINFORCE with the mean of the others as baseline; the completion is one action.
    "rloo": make_preset("leave_one_out", "none", "sequence_sum", kl_coef=0.01, kl_estimator="k1", kl_in="completion_reward"),
    # GSPO, arXiv 2507.18071: one ratio per completion, the geometric mean of its tokens'.
    "gspo": make_preset("group_normalized", "sequence", "sequence_mean", clip_low=3e-4, clip_high=4e-4),
    # CISPO, MiniMax-M1, arXiv 2506.13585: the weight is capped and no token is dropped.
    "cispo": make_preset("group_normalized", "cispo", "token_mean", ratio_cap=5.0),
    # SAPO, arXiv 2511.20347: no clip; the push fades as the ratio leaves 1, a little sooner where it pushes down.
    "sapo": make_preset("group_normalized", "soft", "sequence_mean", soft_up=1.0, soft_down=1.05),
    # DPPO, arXiv 2602.04879: the probability of a token is held, not its ratio; measured from the engine that sampled.
    "dppo": make_preset("group_centered", "divergence", "constant", divergence_limit=0.15),
    # MaxRL, arXiv 2602.02710: success against the group's mean success, so that hard prompts weigh most.
    "maxrl": make_preset("relative_to_mean", "clip", "token_mean"),
    # GDPO, arXiv 2601.05242: every reward part is normalised by itself before they are added.
    "gdpo": make_preset("parts_normalized", "clip", "sequence_mean"),
    # Lite PPO, "Tricks or Traps", arXiv 2508.08221: group mean, std of the batch, token-level loss; no critic.
    "lite_ppo": make_preset("batch_std", "clip", "token_mean"),
    # PPO, arXiv 1707.06347, as used for language models: a critic per token, KL as a cost per token.
    "ppo": make_preset(
        "gae", "clip", "token_mean", gamma=1.0, gae_lambda=0.95, kl_coef=0.01, kl_estimator="k1", kl_in="token_reward"
    ),
    # Rejection sampling fine-tuning on completions of the policy as it is now (DeepSeekMath section 5).
    "online_rft": make_preset("binary", "none", "token_mean"),
    # The same on completions of the policy the run started from.
    "rft": make_preset("binary", "none", "token_mean", data="start"),
    # On-policy distillation, arXiv 2306.13649 with the reverse KL of each sampled token as its reward: needs [teacher].
    "opd": make_preset("none", "none", "token_mean"),
    "sft": make_preset("uniform", "none", "token_mean", data="demonstrations"),
    # DPO, arXiv 2305.18290: kl_coef is its beta; data = "start" or "policy" builds pairs from rollouts.
    "dpo": make_preset("best_and_worst", "dpo", "prompt_mean", data="pairs", kl_coef=0.1),
}
