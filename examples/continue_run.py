"""Go on from a run: with something harder, from the weights it ended with. Half a minute on a CPU.

    python examples/continue_run.py

There are two ways, and they are not the same:

    cohort.resume(run)            the same run goes on, exactly where it was stopped, to the end its recipe names
    cohort.train(model=run, ...)  a new run begins with the final weights (or the newest checkpoint) and settings of its own

Here the first run learns to count on by three digits, 3 -> 456, and its mean reward rises from 0.03 to 0.99. The second begins
with its model and counts on by six: it starts with 0.94 and ends with 1.00. Where a model is named, the folder of a run may
stand: `cohort train my.toml model=runs/first` does the same.
"""

from __future__ import annotations

import argparse
from typing import Any

import cohort

SETTINGS: dict[str, Any] = {
    "kl_coef": 0.0,
    "prompts_per_step": 10,
    "group_size": 32,
    "learning_rate": 3e-3,  # a model this small takes a thousand times what a real one does
    "num_steps": 60,
    "evaluation.samples": 0,
}


def counts_on(prompts: list[str], completions: list[str], length: list[int], **columns: Any) -> list[float]:
    """Share of the digits that are right, up to the first that is not."""
    scores = []
    for first, text, count in zip(prompts, completions, length, strict=True):
        right = [str((int(first) + 1 + place) % 10) for place in range(count)]
        matched = next((place for place in range(count) if text[place : place + 1] != right[place]), count)
        scores.append(matched / count)
    return scores


def train_to_count(length: int, **settings: Any) -> cohort.RunResult:
    """One run; what Ctrl-C stops is resumed once, as a person would do it later with the folder alone."""
    rows = [{"prompt": str(digit), "length": length} for digit in range(10)]
    run = cohort.train(
        prompts=rows, rewards=[{"function": counts_on, "threshold": 1.0}], max_completion_tokens=length, **SETTINGS | settings
    )
    return run if run.status == "finished" else cohort.resume(run, rewards=[counts_on])


def main(**settings: Any) -> tuple[cohort.RunResult, cohort.RunResult]:
    """Train twice. `settings` are recipe words that replace those above."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "num_heads": 2, "max_positions": 16}
    scratch = {"model": "scratch", "model.scratch": {**shape, "characters": "0123456789"}}
    first = train_to_count(3, **scratch, **settings)
    second = train_to_count(6, model=first, **settings)
    print(f"the first run is {first.folder}; the second began with its model, and ended with {second.model}")
    return first, second


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    raise SystemExit(130 if main()[1].status == "interrupted" else 0)
