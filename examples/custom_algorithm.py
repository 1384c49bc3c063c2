"""An algorithm of your own in fifteen lines: an advantage and a trust region, named in the recipe. Half a minute on a CPU.

    python examples/custom_algorithm.py

The two functions are all that is new; around them is a run like any other (checkpoints, resume, report, evaluation). They are
named "module:function", so that a resume can import them: `algorithm.advantage=custom_algorithm:median_centered` on the command
line does the same. What else such a function may read, and what a decorator can say of it: docs/algorithms.md.

The task: count on from a digit, 3 -> 456. Nothing is downloaded. The mean reward rises from 0.07 to 0.83 (seeds 1 and 2: to 0.90)
and stays there: some prompts settle on a wrong first digit and count on correctly from it, which earns two of three.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import cohort
from cohort.algorithms.regions import Tokens, ratio

if TYPE_CHECKING:
    from torch import Tensor

LENGTH = 3


def median_centered(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """Reward minus the median of its group: one odd reward does not move the baseline. Equal rewards give exactly 0."""
    return rewards_PG - rewards_PG.quantile(0.5, dim=1, keepdim=True)


def soft_clip(tokens: Tokens, *, sharpness: float = 10.0) -> Tensor:
    """A trust region without an edge: the further a ratio is from 1, the less a token is pushed.

    -A (4 / s) sigmoid(s (rho - 1)): the plain policy gradient at rho = 1, fading on both sides to 0.42 of it at 0.8 and 1.2.
    """
    gate_M = (sharpness * (ratio(tokens.policy_logprobs_M, tokens.old_logprobs_M) - 1.0)).sigmoid()
    return -tokens.advantages_M * gate_M * 4.0 / sharpness


def counts_on(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Share of the LENGTH digits that are their predecessor plus one."""
    return [
        sum(token == str((int(before) + 1) % 10) for before, token in zip(first + text, text, strict=False) if before.isdigit())
        / LENGTH
        for first, text in zip(prompts, completions, strict=True)
    ]


def main(**settings: Any) -> cohort.RunResult:
    """Train. `settings` are recipe words that replace those below."""
    defaults: dict[str, Any] = {
        "model.scratch": {"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "num_heads": 2, "max_positions": 16},
        "model.scratch.characters": "0123456789",
        "advantage": "custom_algorithm:median_centered",
        "region": "custom_algorithm:soft_clip",
        "algorithm.args": {"sharpness": 10.0},
        "aggregation": "token_mean",
        "kl_coef": 0.0,
        "prompts_per_step": 10,
        "passes_per_step": 2,  # more than one, so that ratios leave 1 and the region has work
        "max_completion_tokens": LENGTH,
        "learning_rate": 5e-3,
        "num_steps": 60,
        "evaluation.samples": 0,
    }
    rows = [{"prompt": str(digit)} for digit in range(10)]
    run = cohort.train(
        model="scratch", prompts=rows, rewards=[{"function": counts_on, "threshold": 1.0}], **defaults | settings
    )
    if run.status != "finished":
        print(f"stopped; to go on: cohort.resume({str(run.folder)!r}, rewards=[counts_on])")
    return run


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    raise SystemExit(130 if main().status == "interrupted" else 0)
