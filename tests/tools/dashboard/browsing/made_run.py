"""Run folders without training, written with the writers of real runs: small with every kind of file, or of a million completions."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohort.observe.metrics import METRICS
from cohort.observe.monitors.jsonl import make_strict
from cohort.observe.rollouts import ROW, TokenRow, append_rows, write_tokens
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import build_recipe, dump_recipe
from cohort.types import Completion, Outcome, Prompt, Rollout

START = 1_790_000_000
"""Unix seconds at which made runs begin."""


@dataclass(frozen=True)
class Words:
    """The texts of a made run, by the number of a group; hostile ones are put in here."""

    prompt: Callable[[int], str] = lambda number: "{}+{}=".format(*pick_numbers(number))
    gold: Callable[[int], str] = lambda number: str(sum(pick_numbers(number)))
    completion: Callable[[int, int], str] = lambda number, off: describe_sum(*pick_numbers(number), off)
    """Of a group, and by how much its answer is off; 0 is right."""
    extracted: Callable[[int, int], str] = lambda number, off: str(sum(pick_numbers(number)) + off)
    columns: Sequence[str] = ("source",)
    cell: Callable[[int], str] = lambda number: f"sheet {number}"
    rewards: Sequence[str] = ("math_answer", "think_format")
    metrics: Sequence[str] = ()
    """Names of metrics beside those of every run."""
    faults: Sequence[str] = ()
    messages: Sequence[str] = ("checkpoint saved",)
    pieces: Callable[[int], Sequence[str]] | None = None
    """Of a completion of a group; None: its text, cut."""
    set_name: str = "held_out"
    recipe: Mapping[str, Any] = field(default_factory=dict)


def pick_numbers(number: int) -> tuple[int, int]:
    return 11 + 7 * number % 89, 23 + 5 * number % 67


def describe_sum(left: int, right: int, off: int) -> str:
    units, tens = left % 10 + right % 10, left // 10 + right // 10
    return f"{left % 10}+{right % 10}={units}, {left // 10}+{right // 10}={tens} >{left + right + off}"


def make_run(
    root: Path,
    steps: int = 40,
    *,
    groups: int = 4,
    group_size: int = 6,
    kept_every: int = 4,
    words: Words | None = None,
    status: str = "finished",
    summary: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """A run folder with every kind of file; the completions of every `kept_every`-th step, and the tokens of a group of each."""
    words, rng, folder = words or Words(), random.Random(seed), RunFolder(root)
    root.mkdir(parents=True)
    recipe = build_recipe({"name": root.name, "train": {"num_steps": steps, "group_size": group_size}, **words.recipe})
    folder.recipe_file.write_text(dump_recipe(recipe), encoding="utf-8")
    write_lines(folder.metrics_file, [make_row(step, steps, rng, words) for step in range(1, steps + 1)])
    write_lines(folder.evaluations_file, list(make_evaluations(steps, words)))
    write_lines(folder.events_file, list(make_events(steps, words)))
    for side in ("before", "after"):
        write_lines(folder.samples / f"{side}.jsonl", [make_sample(number, side, words) for number in range(3)])
    folder.rollouts.mkdir()
    for step in range(kept_every, steps + 1, kept_every):
        rollouts, advantages_N = make_rollouts(step, groups, group_size, words, rng)
        folder.write_rollouts(step, rollouts, advantages_N)
        append_rows(folder.index_file, step, rollouts, advantages_N, [1] if step == steps else [])
        shown = range(len(rollouts) if words.pieces else group_size)
        write_tokens(
            folder.tokens_file(step), step, [make_token_row(row, rollouts[row], advantages_N[row], words, rng) for row in shown]
        )
    document = {"status": status, "steps": steps, "seconds": 2.5 * steps, **(summary or {})}
    folder.summary_file.write_text(json.dumps(document), encoding="utf-8")
    return root


def write_lines(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(make_strict(row)) + "\n" for row in rows), encoding="utf-8")


def make_row(step: int, steps: int, rng: random.Random, words: Words) -> dict[str, Any]:
    progress = step / steps
    success = 0.4 + 0.5 * (1 - math.exp(-4 * progress)) + rng.gauss(0, 0.03)
    sampled, updated = 0.5 + 0.2 * rng.random(), 0.6 + 0.1 * rng.random()
    row = {
        "step": step, "rollout/completions": 24, "rollout/length_mean": 12 + 4 * progress + rng.random(), "rollout/length_max": 20.0 + rng.random(),
        "rollout/truncated": 0.04 * (1 - progress), "rollout/distinct": 0.8 - 0.4 * progress, "reward/mean": success, "reward/success": success,
        "advantage/useful_groups": 0.75 - 0.5 * progress, "loss/policy": 1e-9, "loss/kl_per_completion": 1.8 * progress, "loss/entropy": 0.4 - 0.2 * progress,
        "optim/grad_norm": 0.5 + 0.3 * rng.random(), "optim/learning_rate": 3e-4 * (1 - progress), "time/rollout": sampled, "time/reward": 0.1,
        "time/update": updated, "time/step": sampled + updated + 0.1, "perf/tokens_per_second": 8000 + 900 * rng.random(),
    }  # fmt: skip
    row |= {f"reward/{name}/mean": success for name in words.rewards}
    return row | {name: rng.random() for name in words.metrics}


def make_evaluations(steps: int, words: Words):
    for step in sorted({0, steps // 4, steps // 2, steps}):
        value = 0.45 + 0.5 * (1 - math.exp(-4 * step / steps))
        share = {"value": value, "low": value - 0.03, "high": min(1.0, value + 0.03)}
        numbers = dict.fromkeys(("pass@1", "pass@8", "maj@8", "mean@8", "greedy"), share) | {
            "problems": 64,
            "completions": 512,
            "unscored": 0,
        }
        label = "before" if step == 0 else "after" if step == steps else "during"
        yield {"step": step, "label": label, "sets": {words.set_name: numbers}}


def make_events(steps: int, words: Words):
    yield {"time": START, "step": None, "kind": "stage", "stage": "training", "total": steps, "done": 0}
    for place, text in enumerate(words.messages):
        yield {"time": START + 1 + place, "step": 1 + place % steps, "kind": "message", "text": text}


def make_sample(number: int, side: str, words: Words) -> dict[str, Any]:
    said = [
        {"text": words.completion(number, off), "reward": float(off == 0), "success": off == 0}
        for off in ((0, 1) if side == "before" else (0, 0))
    ]
    return {"set": words.set_name, "prompt": words.prompt(number), "answer": words.gold(number), "completions": said}


def make_rollouts(
    step: int, groups: int, group_size: int, words: Words, rng: random.Random
) -> tuple[list[Rollout], list[float]]:
    """Groups of which one is all wrong, with cut completions, doubles and an unscored one among them."""
    rollouts, advantages_N = [], []
    for group in range(groups):
        columns = {"answer": words.gold(group), **dict.fromkeys(words.columns, words.cell(group))}
        prompt = Prompt(index=group, content=words.prompt(group), columns=columns, token_ids=(5, 6, 7))
        rewards_G: list[float] = []
        first = 0
        for sample in range(group_size):
            off = 1 + sample if group == 1 else rng.choice((0, 0, 0, 1, 10, 99)) if sample != 3 else first
            first = off if sample == 0 else first
            unscored, text = group == 2 and sample == 0, words.completion(group, off)
            completion = Completion(
                token_ids=tuple(map(ord, text)),
                sampling_logprobs=tuple(-rng.random() for _ in text),
                end="length" if sample == 1 else "stop",
                text=text,
            )
            right = off == 0
            reward = None if unscored else max(float(right), 0.4 if sample == 2 else 0.0)
            parts = dict.fromkeys(words.rewards, reward)
            faults = tuple(words.faults) if unscored else ()
            outcome = Outcome(parts, reward, None if unscored else right, words.extracted(group, off), faults)
            rollouts.append(Rollout(prompt, group, sample, completion, outcome, step - 1))
            rewards_G.append(reward or 0.0)
        mean = sum(rewards_G) / group_size
        spread = math.sqrt(sum((one - mean) ** 2 for one in rewards_G) / (group_size - 1))
        advantages_N += [(one - mean) / (spread + 1e-6) for one in rewards_G]
    return rollouts, advantages_N


def make_token_row(place: int, rollout: Rollout, advantage: float, words: Words, rng: random.Random) -> TokenRow:
    """What an update did to the tokens of a completion, as a run keeps it every few steps."""
    old = list(rollout.completion.sampling_logprobs)
    moved = [one + rng.gauss(0, 0.15) for one in old]
    ratios = [math.exp(new - one) for new, one in zip(moved, old, strict=True)]
    clipped = [1.0 if ratio > 1.2 and advantage > 0 else -1.0 if ratio < 0.8 and advantage < 0 else 0.0 for ratio in ratios]
    numbers = {
        "advantage": [advantage] * len(old), "sampling_logprob": old, "old_logprob": old, "policy_logprob": moved,
        "ref_logprob": [one - 0.1 * rng.random() for one in old], "entropy": [0.7 * rng.random() for _ in old], "ratio": ratios, "clipped": clipped,
        "coefficient": [0.0 if cut else advantage * ratio for cut, ratio in zip(clipped, ratios, strict=True)], "weight": [1 / len(old)] * len(old),
    }  # fmt: skip
    pieces = list(rollout.completion.text)
    if words.pieces:
        pieces = [*words.pieces(rollout.group), *pieces][: len(old)]
    return TokenRow(
        rollout.group, rollout.sample, place, 1, 1, pieces, rollout.completion.token_ids, [True] * len(old), numbers, len(old)
    )


# -- long runs ---------------------------------------------------------------------------------------------------------


def make_long_run(root: Path, steps: int = 10_000, completions: int = 100, group_size: int = 4, seed: int = 0) -> Path:
    """A run of steps · completions: rows with every common metric, evaluations of 512 problems, events, an index of all completions.

    The files of completions between the first and the last ten steps are one file under many names.
    """
    folder, rng = RunFolder(root), random.Random(seed)
    folder.rollouts.mkdir(parents=True)
    recipe = build_recipe({"name": root.name, "train": {"num_steps": steps, "group_size": group_size}})
    folder.recipe_file.write_text(dump_recipe(recipe), encoding="utf-8")
    document = {"status": "interrupted", "steps": steps, "seconds": 3.0 * steps}
    folder.summary_file.write_text(json.dumps(document), encoding="utf-8")
    write_lines(folder.metrics_file, [make_full_row(step, rng) for step in range(1, steps + 1)])
    write_lines(folder.evaluations_file, [make_full_evaluation(step, steps, rng) for step in range(0, steps + 1, 50)])
    events = [
        {"time": START + 3 * step, "step": step, "kind": "progress", "done": step, "total": steps}
        for step in range(1, steps + 1)
    ]
    write_lines(folder.events_file, events)
    write_index(folder.index_file, steps, completions, group_size, seed)
    ends = {*range(1, 11), *range(steps - 9, steps + 1)}
    for step in range(1, steps + 1):
        if step in ends:
            rollouts, advantages_N = make_rollouts(step, completions // group_size, group_size, Words(), rng)
            folder.write_rollouts(step, rollouts, advantages_N)
        else:
            os.link(folder.rollouts_file(10), folder.rollouts_file(step))
    return root


def make_full_row(step: int, rng: random.Random) -> dict[str, Any]:
    common = (one.name for one in METRICS if "<" not in one.name and not one.name.startswith(("eval/", "ranks/")))
    evidence = {"best": {"row": 0, "rows": [0], "prompt": "1+9=", "completion": "1+9+0=10\n>10" * 20, "reward": 1.0}}
    numbers = {name: rng.random() for name, _ in zip(common, range(90), strict=False)}
    return {"step": step} | numbers | {"time/step": 3.0, "reward/mean": 1 - 1 / (1 + step / 900), "evidence": evidence}


def make_full_evaluation(step: int, steps: int, rng: random.Random, problems: int = 512) -> dict[str, Any]:
    """With the verdict on every problem."""
    share = 0.2 + 0.6 * step / steps
    numbers = {f"pass@{k}": {"value": share, "low": share - 0.03, "high": share + 0.03} for k in (1, 2, 4, 8)}
    verdicts = ["".join(str(int(rng.random() < share)) for _ in range(8)) for _ in range(problems)]
    each = {"problem": [f"{number:016x}" for number in range(problems)], "success": verdicts, "greedy": "1" * problems}
    label = "before" if step == 0 else "during"
    return {
        "step": step,
        "label": label,
        "sets": {"held_out": numbers | {"problems": problems}},
        "per_problem": {"held_out": each},
    }


def write_index(file: Path, steps: int, completions: int, group_size: int, seed: int) -> None:
    import numpy as np

    rng = np.random.default_rng(seed)
    rows = np.zeros(steps * completions, ROW)
    place = np.tile(np.arange(completions), steps)
    rows["step"], rows["row"] = np.repeat(np.arange(1, steps + 1), completions), place
    rows["group"], rows["sample"] = place // group_size, place % group_size
    rows["prompt_index"], rows["length"] = rng.integers(0, 5000, len(rows)), rng.integers(1, 300, len(rows))
    rows["success"] = rng.random(len(rows)) < 0.6
    rows["reward"], rows["advantage"] = rows["success"], rng.normal(size=len(rows))
    rows["end"], rows["flags"] = rng.random(len(rows)) < 0.05, rng.random(len(rows)) < 0.1
    file.write_bytes(rows.tobytes())
