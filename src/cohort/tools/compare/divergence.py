"""How far a finished run has moved from its start: KL(policy || start), measured the same way for every algorithm.

A run's own loss/kl is an estimator on training rollouts, and exists only where a reference was loaded. Here the final
policy answers held-out prompts once each, as it was sampled in training, and both models score what it wrote:

    KL per completion = mean_i sum_t (log pi_final - log pi_start)         nats, unbiased (k1)
    KL per token      = sum_i sum_t (...) / sum_i |o_i|                    nats

Run as a process of its own: python -m cohort.tools.compare.divergence RUN TARGET.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cohort.base.files import write_whole
from cohort.base.processes import begin_process
from cohort.errors import CohortError, RunError
from cohort.evaluation.estimators import Estimate, estimate, why_no_interval
from cohort.observe.run_folder import RunFolder

if TYPE_CHECKING:
    from cohort.model.policy import Policy
    from cohort.recipe.schema import Recipe
    from cohort.training.build import Data

PROMPTS = 256
RESAMPLES = 1000


def measure_divergence(root: Path, prompts: int = PROMPTS) -> dict[str, Any]:
    """The document of OUTPUT/divergence/RUN.json. One model is in memory at a time."""
    from cohort.engine import sample_groups
    from cohort.model.examples import make_examples
    from cohort.training import build
    from cohort.training.run_weights import follow_products
    from cohort.types import NoiseKey, Outcome, Rollout

    folder = RunFolder.open(root)
    recipe = folder.recipe()
    if not folder.has_model():
        raise RunError(f"{root} has no model/ yet")
    data = build.load_data(recipe, folder.read_kept_rows(recipe))
    final = load_model(recipe, data, folder.model)
    sampling = replace(build.make_training_sampling(recipe, final), group_size=1)
    encoded = build.encode_data(recipe, data, final, sampling)
    longest = build.find_longest_sequence(recipe, encoded, sampling)
    final.hold_lengths(longest)
    name, problems = next(iter(encoded.sets.items()), ("prompts", encoded.train))
    problems = problems[:prompts]
    with follow_products(folder, final, build.compute_dtype(recipe)):
        engine, _ = build.make_engine(recipe, final)
        engine.sync(final.read_weights(), 0)
        groups = sample_groups(engine, problems, sampling, NoiseKey(recipe.seed, "evaluate", step=0))
        scored = Outcome({}, 0.0, None)  # what is left unscored would be in no example
        pairs = enumerate(zip(problems, groups, strict=True))
        examples = make_examples([Rollout(prompt, place, 0, group[0], scored, 0) for place, (prompt, group) in pairs])
        final_logprobs = final.score_examples(examples, recipe.train.micro_batch_tokens)
        engine.close()
        del engine, final
        start = load_model(recipe, data, folder.start if folder.start.is_dir() else None)
        start.hold_lengths(longest)
        start_logprobs = start.score_examples(examples, recipe.train.micro_batch_tokens)
    sums_N = [float((a.double() - b.double()).sum()) for a, b in zip(final_logprobs, start_logprobs, strict=True)]
    return make_document(sums_N, examples.trained_N.tolist(), name, recipe.seed)


def make_document(sums_N: Sequence[float], lengths_N: Sequence[int], name: str, seed: int) -> dict[str, Any]:
    return {
        "per_completion": estimate(sums_N, RESAMPLES, seed, proportion=False).to_json(),
        "per_token": estimate_ratio(sums_N, lengths_N, RESAMPLES, seed).to_json(),
        "set": name,
        "completions": len(sums_N),
        "tokens": sum(lengths_N),
    }


def estimate_ratio(tops_N: Sequence[float], bottoms_N: Sequence[int], resamples: int, seed: int) -> Estimate:
    """sum(tops) / sum(bottoms) with a bootstrap over completions, top and bottom drawn together."""
    tops, bottoms = np.asarray(tops_N, dtype=np.float64), np.asarray(bottoms_N, dtype=np.float64)
    if not bottoms.sum():
        return Estimate(None, None, None, "no completion has a token")
    ratio = float(tops.sum() / bottoms.sum())
    if reason := why_no_interval(tops.size):
        return Estimate(ratio, None, None, reason)
    drawn = np.random.default_rng(seed).integers(tops.size, size=(resamples, tops.size))
    low, high = np.quantile(tops[drawn].sum(1) / bottoms[drawn].sum(1).clip(1), [0.025, 0.975])
    return Estimate(ratio, float(low), float(high))


def load_model(recipe: Recipe, data: Data, source: Path | None) -> Policy:
    """In the dtype in which the run computed; None: where the recipe starts."""
    from cohort.model.optim import cast_parameters
    from cohort.training import build

    policy = build.load_policy(recipe, data, source)
    cast_parameters(policy.model.requires_grad_(False), build.compute_dtype(recipe))
    return policy


def main(arguments: Sequence[str]) -> int:
    root, target = (Path(argument) for argument in arguments)
    try:
        text = json.dumps(measure_divergence(root), indent=2, allow_nan=False)
    except (CohortError, ValueError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    write_whole(target, text)
    return 0


if __name__ == "__main__":
    begin_process()
    sys.exit(main(sys.argv[1:]))
