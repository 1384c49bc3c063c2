"""Run folders made for tests through the same writers that a run uses: rollouts, row index, token record, recipe."""

import random

import numpy as np

from cohort.observe.rollouts import TokenRow, append_rows, write_rollouts, write_tokens
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import build_recipe, dump_recipe
from cohort.tools.dashboard.run_index import RunIndex
from cohort.types import UNSCORED, Completion, Outcome, Prompt, Rollout

WORDS = ["seven", "eleven", "Überfall", "so it is", "therefore", "wait", "42", "\n", "<b>bold</b>", "שלום", "a\u200bb"]


def make_rollout(rng, step, group, sample, index, prompt=None, completion=None, group_seed=None):
    """A completion with a verdict, a reward in two parts and texts that come again now and then."""
    text = completion if completion is not None else " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5)))
    ids = tuple(sum(map(ord, word)) % 90 + 3 for word in text.split(" "))
    success = rng.random() < 0.4
    style = float(rng.random() < 0.5)
    outcome = Outcome({"correct": float(success), "style": style}, success + 0.25 * style, success, text[-5:] or None)
    if rng.random() < 0.05:
        outcome = UNSCORED
    end = "length" if rng.random() < 0.1 else "stop"
    asked = Prompt(index, prompt or f"What is {index} and {step}?", {"answer": str(index)}, (1, 2, index % 50))
    done = Completion(ids, tuple(-rng.random() for _ in ids), end, text)
    return Rollout(asked, group, sample, done, outcome, step - 1)


def make_step(rng, step, groups=6, size=4, prompts=10):
    return [
        make_rollout(rng, step, group, sample, index)
        for group in range(groups)
        for index in [rng.randrange(prompts)]
        for sample in range(size)
    ]


def find_advantages(rollouts):
    """Rewards less the mean of their group; 0 without a score."""
    by_group = {}
    for one in rollouts:
        if one.outcome.reward is not None:
            by_group.setdefault(one.group, []).append(one.outcome.reward)
    means = {group: float(np.mean(rewards)) for group, rewards in by_group.items()}
    return [0.0 if one.outcome.reward is None else one.outcome.reward - means[one.group] for one in rollouts]


def make_run(root, name="one", steps=8, seed=0, indexed=True, recipe=None, rollouts=None):
    """A run folder with completions of every step; rollouts: those of a step, in place of made-up ones."""
    folder = RunFolder(root / name)
    folder.root.mkdir(parents=True)
    folder.recipe_file.write_text(dump_recipe(build_recipe({"name": name, "seed": seed, **(recipe or {})})))
    folder.metrics_file.write_text("".join(f'{{"step": {step}, "reward/mean": 0.5}}\n' for step in range(1, steps + 1)))
    rng = random.Random(seed)
    for step in range(1, steps + 1):
        made = (rollouts or {}).get(step) or make_step(rng, step)
        advantages = find_advantages(made)
        write_rollouts(folder.rollouts_file(step), step, made, advantages)
        if indexed:
            append_rows(folder.index_file, step, made, advantages, [row for row in range(len(made)) if row % 11 == step % 11])
    return folder


def make_token_row(group, sample, row, pieces, **numbers):
    """A row of the token record; log-probs that are not given follow from the ids."""
    length = len(pieces)
    logprobs = np.linspace(-0.1, -2.0, length)
    columns = {
        "advantage": np.full(length, 1.25), "sampling_logprob": logprobs, "old_logprob": logprobs, "policy_logprob": logprobs + 0.1,
        "ref_logprob": logprobs - 0.2, "entropy": np.linspace(0.0, 2.0, length), "ratio": np.exp(np.full(length, 0.1)),
        "clipped": np.zeros(length), "coefficient": np.full(length, 1.375), "weight": np.full(length, 0.01),
    }  # fmt: skip
    return TokenRow(group, sample, row, 1, 2, pieces, list(range(5, 5 + length)), [True] * length, columns | numbers, length)


def write_record(folder, step, rows):
    write_tokens(folder.tokens_file(step), step, rows)


def find_run(root, name="one"):
    return RunIndex([root]).find(name)
