"""Rollouts older than the policy: `old` log-probs, which tokens are compared, and saving batches that cannot be collected again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cohort.engine.protocol import Capabilities
from cohort.errors import Interrupted, InvariantError
from cohort.model.critic import NoCritic
from cohort.model.packing import pack
from cohort.recipe.file import load_recipe
from cohort.session import resume
from cohort.training import build, checkpoint
from cohort.training.experience import Models
from cohort.training.objective import token_loss
from cohort.training.rollouts import Collected
from cohort.training.state import Batch, TrainState, decode_batch, encode_batch
from cohort.training.updates import UpdateMeter, check_same_policy
from cohort.types import NoiseKey, Rollout
from conftest import collect_batch, rollout, tiny_policy
from session_tools import rows_of, train_tiny

NOW = 5
POLICY = tiny_policy(spread=1.0)  # its log-probs stay within what a ratio is limited to


def rollouts(*versions: tuple[tuple[int, int], ...]) -> list[Rollout]:
    """Two groups of two completions of 4 tokens, with arbitrary log-probs; spans of versions by completion."""
    made = []
    for number, spans in enumerate(versions):
        one = rollout(number // 2, number % 2, float(number % 2), token_ids=(3 + number, 4, 5, 6))
        logprobs = tuple(-0.25 * (place + 1) for place in range(4))
        made.append(
            replace(one, completion=replace(one.completion, sampling_logprobs=logprobs, versions=spans), policy_version=NOW)
        )
    return made


FRESH = rollouts((), (), (), ())
STALE = rollouts((), ((3, 1), (4, 3)), ((4, 2), (5, 2)), ((5, 4),))


def batch_of(given: list[Rollout], *overrides: str) -> tuple[Batch, Any]:
    recipe = load_recipe(overrides=["group_size=2", "kl_coef=0", *overrides])
    collected = Collected(given, {}, prompts_taken=2, tokens_sampled=16, policy_version=NOW)
    return collect_batch(collected, Models(POLICY, None, NoCritic()), recipe, 1, 0.0), recipe


def scored(batch: Batch) -> list[torch.Tensor]:
    return POLICY.score_examples(list(batch.examples), 10_000)


def test_old_is_the_policy_that_sampled_and_takes_no_forward(monkeypatch):
    monkeypatch.setattr(type(POLICY), "score_examples", lambda *args, **options: pytest.fail("a forward was spent"))
    batch, _ = batch_of(STALE, "minibatches_per_step=2")
    for example in batch.examples:
        assert torch.equal(example.old_logprobs_T, torch.tensor([-0.25, -0.5, -0.75, -1.0]))
    assert [example.fresh_T.tolist() for example in batch.examples] == [
        [True] * 4,
        [False] * 4,
        [False, False, True, True],
        [True] * 4,
    ]


def test_the_clip_acts_on_that_ratio():
    batch, recipe = batch_of(STALE)
    minibatch = pack(
        batch.examples, aggregation="token_mean", max_completion_tokens=4, micro_batch_tokens=1000, skip_zero_advantage=True
    )
    (micro,) = minibatch.micro_batches
    scores = POLICY.compute_logprobs(micro)
    loss = token_loss(scores, micro, recipe.algorithm, 0.0)
    assert torch.equal(
        loss.surrogate.ratio_M, (scores.logprobs_M - micro.sampling_logprobs_M).exp().to(loss.surrogate.ratio_M.dtype)
    )
    assert (loss.surrogate.ratio_M - 1).abs().max() > 0.2


@pytest.mark.parametrize("kind", ["token_truncate", "sequence_mask"])
def test_with_a_mismatch_weight_old_is_scored_anew_and_the_weight_carries_staleness(kind):
    batch, _ = batch_of(STALE, f"mismatch_weight={kind}", "minibatches_per_step=2")
    for example, now_T in zip(batch.examples, scored(batch), strict=True):
        assert torch.equal(example.old_logprobs_T, now_T)
    once, recipe = batch_of(STALE, f"mismatch_weight={kind}")
    assert all(example.old_logprobs_T is None for example in once.examples), "one update: old is the policy itself"
    (micro,) = pack(
        once.examples, aggregation="token_mean", max_completion_tokens=4, micro_batch_tokens=1000, skip_zero_advantage=True
    ).micro_batches
    loss = token_loss(POLICY.compute_logprobs(micro), micro, recipe.algorithm, 0.0)
    assert (loss.surrogate.ratio_M == 1).all()
    assert (loss.mismatch_weights_M != 1).any()


def test_fresh_rollouts_are_scored_as_ever():
    batch, _ = batch_of(FRESH)
    assert all(example.fresh_T is None and example.old_logprobs_T is None for example in batch.examples)
    batch, _ = batch_of(FRESH, "minibatches_per_step=2")
    for example, now_T in zip(batch.examples, scored(batch), strict=True):
        assert torch.equal(example.old_logprobs_T, now_T)
    named, _ = batch_of(rollouts(((NOW, 4),), (), ((NOW, 1), (NOW, 3)), ()), "minibatches_per_step=2")
    assert all(example.fresh_T is None for example in named.examples)


def test_versions_must_cover_the_completion():
    with pytest.raises(InvariantError, match="versions of 3 tokens on a completion of 4"):
        batch_of(rollouts((), ((4, 3),), (), ()))


def meter_of(given: list[Rollout]) -> UpdateMeter:
    batch, recipe = batch_of(given)
    meter = UpdateMeter(recipe.algorithm)
    for micro in pack(
        batch.examples, aggregation="token_mean", max_completion_tokens=4, micro_batch_tokens=8, skip_zero_advantage=False
    ).micro_batches:
        scores = POLICY.compute_logprobs(micro)
        meter.add(scores, micro, token_loss(scores, micro, recipe.algorithm, 0.0))
    return meter


def test_engine_and_trainer_are_compared_on_fresh_tokens_alone():
    """Fresh tokens are given the policy's own log-probs, stale ones keep theirs, which are far off."""
    batch, _ = batch_of(STALE)
    given = []
    for one, fresh_T, now_T in zip(STALE, (example.fresh_T for example in batch.examples), scored(batch), strict=True):
        mixed_T = torch.where(fresh_T, now_T.float(), torch.tensor(one.completion.sampling_logprobs))
        given.append(replace(one, completion=replace(one.completion, sampling_logprobs=tuple(mixed_T.tolist()))))
    meter = meter_of(given)
    assert sum(len(part) for part in meter.mismatch) == 10
    check_same_policy(meter, 1e-5, None)
    with pytest.raises(InvariantError, match="engine and trainer disagree"):
        check_same_policy(
            meter_of([replace(one, completion=replace(one.completion, versions=())) for one in given]), 1e-5, None
        )


def test_a_batch_that_is_stale_throughout_has_nothing_to_compare():
    assert meter_of(rollouts(*[((4, 4),)] * 4)).mismatch == []


def test_versions_and_freshness_survive_a_checkpoint():
    batch, _ = batch_of(STALE)
    tensors, document = encode_batch(replace(batch, keyed=False))
    prompts = {one.prompt.index: one.prompt for one in STALE}
    found = decode_batch(tensors, document, prompts.__getitem__)
    assert [one.completion.versions for one in found.rollouts] == [one.completion.versions for one in STALE]
    assert all(torch.equal(a.fresh_T, b.fresh_T) for a, b in zip(found.examples, batch.examples, strict=True))
    assert not found.keyed


# -- rollouts that cannot be sampled again ------------------------------------------------------------------------------


class Unkeyed:
    """An engine whose noise is consumed: no two calls give the same."""

    calls = 0

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.engine.capabilities, keyed_noise=False)

    def generate(self, requests: Any, sampling: Any, noise: Any) -> Any:
        Unkeyed.calls += 1
        return self.engine.generate(requests, sampling, NoiseKey(noise.seed, noise.stream, 1000 + Unkeyed.calls))


@pytest.mark.parametrize("keyed", [False, True])
def test_a_batch_whose_rollouts_are_not_keyed_is_saved_before_its_first_update(tmp_path, monkeypatch, keyed):
    made, collected, trained = build.build_engine, [], []
    begin, remaining = TrainState.begin_batch, TrainState.remaining_minibatches

    def build_unkeyed(*args: Any, **options: Any) -> Any:
        engine, sentence = made(*args, **options)
        return (engine if keyed else Unkeyed(engine)), sentence

    def stop_after_collection(self: TrainState, batch: Batch) -> None:
        begin(self, batch)
        collected.append(batch)
        if len(collected) == 2:
            raise Interrupted("SIGTERM")

    def note(self: TrainState) -> Any:
        trained.append(self.batch)
        return remaining(self)

    monkeypatch.setattr(build, "build_engine", build_unkeyed)
    monkeypatch.setattr(TrainState, "begin_batch", stop_after_collection)
    monkeypatch.setattr(TrainState, "remaining_minibatches", note)
    settings = {"train.num_steps": 2, "evaluation.samples": 0, "cold_start.num_steps": 0}
    assert train_tiny(tmp_path, **settings).status == "interrupted"
    found = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert found.folder.name == ("step-1" if keyed else "step-1-batch")
    assert ("batch" in found.snapshot.document) is not keyed
    assert resume(tmp_path / "run").status == "finished"
    assert len(collected) == (3 if keyed else 2), "what was saved is not collected again"
    assert trained[-1].rollouts == collected[1].rollouts
    assert trained[-1].advantages_N == collected[1].advantages_N
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [1, 2]
