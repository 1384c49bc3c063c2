"""Reward functions with the call signature of TRL. Importing this imports no torch.

    cohort.rewards.math_answer(completions=[r"so \\boxed{4}"], answer=["4"])   ->  [1.0]

A process reward returns a list of (position, reward) pairs instead of a number, one per step of the completion;
cohort.rewards.steps.split_steps finds the steps.

A reward function can have attributes that the runner (cohort.rewards.runner) uses:

    per_completion = True   scores each completion on its own, so the batch can be split, and scoring can start during sampling
    reads = ("answer",)     the only available arguments that it uses; the others are not sent
    extract(text, **args)   the answer that it compares, for majority votes
    unusable(**columns)     before a run: None per row, or why it can never be scored
    supervised = True       limits its own processes, or waits for the network: called in a thread of the trainer
    jailed = True           passes model text to the jail (cohort_verify.sandbox)
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from cohort.errors import RewardError

# The table of built-in rewards: every function imported here is one, under its own name, listed in this order.
# isort: off
# outcome
from cohort_verify.math.answer import math_answer as math_answer
from cohort_verify.math.answer import exact_match as exact_match
from cohort_verify.code.reward import code_tests as code_tests
from cohort_verify.instruction_following.reward import instructions as instructions

# form, length and language
from cohort_verify.format import think_format as think_format
from cohort_verify.format import think_answer_format as think_answer_format
from cohort_verify.format import regex_format as regex_format
from cohort.rewards.penalties import soft_overlong as soft_overlong
from cohort.rewards.penalties import length as length
from cohort.rewards.penalties import repetition as repetition
from cohort.rewards.language import language_consistency as language_consistency

# learned
from cohort.rewards.learned.model import reward_model as reward_model
from cohort.rewards.learned.process_model import process_reward_model as process_reward_model
from cohort.rewards.learned.judging import judge as judge
# isort: on

BUILT_IN: dict[str, Callable[..., Any]] = {name: value for name, value in vars().items() if inspect.isfunction(value)}
"""Rewards a recipe can name. Each is a module-level function, so that workers can import it."""


def built_in(name: str) -> Callable[..., Any]:
    """The built-in reward of that name, or an error with the nearest one."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    close = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    if "/" in name:
        hint = f'. For a reward model: {{"function": "reward_model", "args": {{"model": "{name}"}}}}.'
    raise RewardError(
        f'unknown reward {name!r}{hint} Built in: {", ".join(BUILT_IN)}. Write your own function as "package.module:function".'
    )


__all__ = ["BUILT_IN", "built_in", *sorted(BUILT_IN)]
