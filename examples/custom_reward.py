"""Rewards of your own: two functions, weights, and numbers of your choice in the metrics. About a minute on a CPU.

    python examples/custom_reward.py

The task is the built-in one, written addition, here with two digits:

    46+87=  ->  6+7+0=13 / 4+8+1=13 / >133

A small model built on the spot imitates some demonstrations and stops while it is still mediocre. Then GRPO goes on with
the two rewards below: `correct` decides what counts as a success, `true_steps` adds a little for every line that is true.

A reward function takes lists and gives one float (or None: no opinion) per completion. It is called with the columns of the
rows by name; this file needs `answer`. The shape is TRL's, so a function written for TRL works here as it is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

import cohort
from cohort.recipe.file import BUILT_IN_FOLDER, DEMO

STEP = re.compile(r"(\d)\+(\d)\+(\d)=(\d+)")


def correct(
    completions: list[str], answer: list[str], log_verdict: Callable[..., None] | None = None, **columns: Any
) -> list[float]:
    """1.0 where the line after `>` is the right sum. The first reward of the list decides success."""
    found = [final_answer(text) for text in completions]
    # A score of 0 does not say why; these are counted as reward/correct/verdict/<word>. Called by hand, there is no log.
    if log_verdict is not None:
        for row, (one, gold) in enumerate(zip(found, answer, strict=True)):
            log_verdict(row, "no_answer" if one is None else "right" if one == gold else "wrong")
    return [float(one == gold) for one, gold in zip(found, answer, strict=True)]


def final_answer(text: str) -> str | None:
    return text.rpartition(">")[2].strip() if ">" in text else None


# What the reward compares. With it, evaluation can also hold a majority vote (maj@k); without it, maj@k is empty.
correct.extract = final_answer  # type: ignore[attr-defined]


def true_steps(completions: list[str], log_metric: Callable[[str, float], None], **columns: Any) -> list[float | None]:
    """Share of the written steps that are true. None, which is no opinion and not 0, where no step was written at all."""
    scores: list[float | None] = []
    for text in completions:
        steps = [[int(number) for number in step.groups()] for step in STEP.finditer(text)]
        scores.append(sum(a + b + carry == total for a, b, carry, total in steps) / len(steps) if steps else None)
    # Lands in metrics.jsonl as reward/true_steps/silent.
    log_metric("silent", sum(score is None for score in scores) / len(scores))
    return scores


def main(**settings: Any) -> cohort.RunResult:
    """Train with the two rewards. `settings` are recipe words that replace those below."""
    defaults: dict[str, Any] = {
        "model.scratch.hidden_size": 96,
        "model.scratch.intermediate_size": 256,
        "model.scratch.num_layers": 3,
        "prompts.args": {"digits": 2},
        "evaluation.sets": {"held_out": {"source": "task:column_addition", "split": "held_out", "args": {"digits": 2}}},
        "evaluation.max_problems": 128,
        "evaluation.every_steps": 0,
        "cold_start.until_success": 0.35,
        "cold_start.check_prompts": 64,
        "max_completion_tokens": 28,
        "prompts_per_step": 32,
        "num_steps": 60,
        "learning_rate": 3e-4,
        "kl_coef": 0.0,
    }
    run = cohort.train(
        recipe=BUILT_IN_FOLDER / DEMO / "recipe.toml",
        rewards=[correct, {"function": true_steps, "weight": 0.2}],
        **(defaults | settings),
    )
    if run.status != "finished":  # Ctrl-C saves the run, and what is measured at its end is not there yet
        print(f"stopped; to go on: cohort.resume({str(run.folder)!r}, rewards=[correct, true_steps])")
        return run
    before, after = run.summary["eval"]["before"]["pass@1"], run.summary["eval"]["after"]["pass@1"]
    print(f"held-out pass@1 {before['value']:.0%} -> {after['value']:.0%}; the trained model is in {run.model}")
    return run


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    raise SystemExit(130 if main().status == "interrupted" else 0)
