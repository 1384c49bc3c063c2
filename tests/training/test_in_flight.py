"""Swapping weights during generation: age of tokens, dropped groups, number of groups in flight, and resuming."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cohort.engine.local import LocalEngine
from cohort.engine.protocol import Capabilities, EngineSetup
from cohort.errors import EngineError, Interrupted, RecipeError, RewardError, RunError
from cohort.session import resume
from cohort.training import build
from cohort.training.in_flight import InFlight
from cohort.training.rollouts import RewardScorer
from cohort.training.state import Batch, TrainState
from cohort.types import Completion, Request
from session_tools import rows_of, tiny, train_tiny

PROMPTS, GROUP = 4, 2
SETTINGS: dict[str, Any] = {
    "ahead.in_flight": True,
    "evaluation.samples": 0,
    "cold_start.num_steps": 0,
    "algorithm.overlong_share": 0.9,
    "sampling.max_completion_tokens": 8,
    "train.prompts_per_step": PROMPTS,
    "train.group_size": GROUP,
    "train.minibatches_per_step": 1,
    "train.passes_per_step": 1,
    "train.num_steps": 6,
}


class Swapping:
    """An engine that samples a token at a time for a group, with whatever weights it has then, and says which."""

    name, slots, last, code = "swapping", 0, {}, "modules"
    made: Swapping

    def __init__(self, setup: EngineSetup) -> None:
        self.engine = LocalEngine(replace(setup, model=copy.deepcopy(setup.model)))
        self.version, self.lock, self.before_token = -1, threading.Lock(), lambda place, length: None
        self.written: dict[tuple[float, ...], tuple[tuple[int, int], ...]] = {}
        """By the log-probs of a completion, which no other has: its spans."""
        self.by_place: dict[int, list[tuple[float, ...]]] = {}
        """Log-probs of the completions of each group."""
        Swapping.made = self

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.engine.capabilities, shares_weights=False, swaps_in_flight=True, keyed_noise=False)

    def choose_slots(self, longest: int) -> int:
        return 0

    def close(self) -> None:
        pass

    @torch.no_grad()
    def sync(self, weights: Any, version: int) -> None:
        with self.lock:
            for name, mine in self.engine.model.named_parameters():
                mine.copy_(weights[name])
            self.version = version

    def generate(self, requests: Any, sampling: Any, noise: Any, on_finish: Any = None) -> list[Completion]:
        place = (noise.step - 1) * PROMPTS + requests[0].draw
        done: list[Completion | None] = [None] * len(requests)
        spans: list[list[int]] = [[] for _ in requests]
        for length in range(1, sampling.max_completion_tokens + 1):
            self.before_token(place, length)
            with self.lock:
                open_ = [number for number, one in enumerate(done) if one is None or one.end != "stop"]
                asked = [Request(requests[n].prompt, requests[n].draw, requests[n].sample, done[n]) for n in open_]
                shorter = replace(sampling, max_completion_tokens=length)
                for number, one in zip(open_, self.engine.generate(asked, shorter, noise), strict=True):
                    done[number] = one
                    spans[number].append(self.version)
        made = []
        for one, versions in zip(done, spans, strict=True):
            assert one is not None
            runs: list[tuple[int, int]] = []
            for version in versions:
                runs[-1:] = [(version, runs[-1][1] + 1)] if runs and runs[-1][0] == version else [*runs[-1:], (version, 1)]
            made.append(replace(one, versions=tuple(runs)))
            self.written[one.sampling_logprobs] = tuple(runs)
            self.by_place.setdefault(place, []).append(one.sampling_logprobs)
        return made


@pytest.fixture
def swapping(monkeypatch) -> Callable[[Callable[[int, int], None]], None]:
    """Let runs sample with such an engine; the function is called before every token of a group, with its place."""
    hooks: list[Callable[[int, int], None]] = []

    def build_swapping(name: str, setup: EngineSetup) -> tuple[Any, str]:
        engine = Swapping(setup)
        if hooks:
            engine.before_token = hooks[-1]
        return engine, "engine swapping"

    monkeypatch.setattr(build, "build_engine", build_swapping)
    return hooks.append


@pytest.fixture
def batches(monkeypatch) -> list[Batch]:
    """What every step is trained on."""
    seen: list[Batch] = []
    begin = TrainState.begin_batch

    def note(self: TrainState, batch: Batch) -> None:
        seen.append(batch)
        begin(self, batch)

    monkeypatch.setattr(TrainState, "begin_batch", note)
    return seen


class Steps:
    """Lets other threads wait until a step has been finished."""

    def __init__(self, monkeypatch: Any) -> None:
        self.finished, self.changed = 0, threading.Condition()
        finish = TrainState.finish_step

        def note(state: TrainState) -> None:
            finish(state)
            with self.changed:
                self.finished = state.step
                self.changed.notify_all()

        monkeypatch.setattr(TrainState, "finish_step", note)

    def wait_for(self, step: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.finished >= step, 60), f"step {step} was never finished"


def find_ages(batch: Batch, step: int) -> set[int]:
    """Steps are updates here."""
    return {step - 1 - version for rollout in batch.rollouts for version, _ in rollout.versions}


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_no_token_is_older_than_the_bound_and_spans_are_those_of_the_engine(tmp_path, swapping, batches, bound):
    assert train_tiny(tmp_path, **SETTINGS, **{"ahead.max_staleness": bound}).status == "finished"
    assert len(batches) == 6
    for step, batch in enumerate(batches, start=1):
        assert len(batch.rollouts) == PROMPTS * GROUP
        assert max(find_ages(batch, step)) <= bound
        for rollout in batch.rollouts:
            assert rollout.versions == Swapping.made.written[rollout.completion.sampling_logprobs]
            assert sum(count for _, count in rollout.versions) == len(rollout.completion.token_ids)
    assert all(row["ahead/staleness_steps"] <= bound for row in rows_of(tmp_path / "run"))
    dropped = sum(row["ahead/dropped_groups"] for row in rows_of(tmp_path / "run"))
    assert sum(batch.prompts_taken for batch in batches) == 6 * PROMPTS + dropped


def test_weights_are_swapped_under_a_completion_and_its_tokens_are_told_apart(tmp_path, swapping, batches):
    """All groups but those of step 1 write three tokens, which step 1 waits for, and go on when the engine has other weights."""
    arrived, all_there = set(), threading.Event()

    def hold(place: int, length: int) -> None:
        if PROMPTS <= place < 3 * PROMPTS and length == 4:
            arrived.add(place)
            if len(arrived) == 2 * PROMPTS:
                all_there.set()
            for _ in range(6000):
                if Swapping.made.version >= 1:
                    return
                threading.Event().wait(0.01)
        elif place < PROMPTS and length == 8:
            assert all_there.wait(60)

    swapping(hold)
    train_tiny(tmp_path, **SETTINGS, **{"ahead.max_staleness": 2})
    found = {one.completion.sampling_logprobs: one for batch in batches for one in batch.rollouts}
    written = [logprobs for place in range(PROMPTS, 3 * PROMPTS) for logprobs in Swapping.made.by_place[place]]
    long = [found[logprobs].versions for logprobs in written if len(logprobs) > 3 and logprobs in found]
    assert len(long) >= 2
    assert all(versions[0] == (0, 3) and len(versions) > 1 for versions in long)
    assert all(max(find_ages(batch, step)) <= 2 for step, batch in enumerate(batches, start=1))


def test_a_group_that_becomes_too_old_is_dropped_and_counted(tmp_path, monkeypatch, swapping, batches):
    """Group 1 writes its last token only after step 3, and the others go on without it."""
    steps = Steps(monkeypatch)
    swapping(lambda place, length: steps.wait_for(3) if (place, length) == (1, 8) else None)
    run = train_tiny(tmp_path, **SETTINGS, **{"ahead.max_staleness": 2}).folder
    rows = rows_of(run)
    dropped = sum(row["ahead/dropped_groups"] for row in rows)
    assert dropped >= 1
    trained = {rollout.completion.sampling_logprobs for batch in batches for rollout in batch.rollouts}
    assert trained.isdisjoint(Swapping.made.by_place[1])
    assert all(max(find_ages(batch, step)) <= 2 for step, batch in enumerate(batches, start=1))
    assert all(len(batch.rollouts) == PROMPTS * GROUP for batch in batches)
    assert sum(batch.prompts_taken for batch in batches) == 6 * PROMPTS + dropped


def test_groups_on_their_way_are_limited(tmp_path, monkeypatch, swapping):
    most, ask = [], InFlight._request_more

    def note(self: InFlight, until: int) -> None:
        ask(self, until)
        most.append(self.held.count)

    monkeypatch.setattr(InFlight, "_request_more", note)
    train_tiny(tmp_path, **SETTINGS, **{"ahead.max_staleness": 1})
    assert set(most) == {8, 4}
    assert most[:5] == [8] * 5
    assert most[-1] == 4, "the last step asks for no more than it needs"


def test_an_interrupted_run_keeps_what_is_sampled_and_asks_for_the_rest_again(tmp_path, monkeypatch, swapping, batches):
    steps = Steps(monkeypatch)
    asked: list[int] = []

    def hold(place: int, length: int) -> None:
        if length == 1:
            asked.append(place)
        if place == 7 and not stopped.is_set():  # never comes in this life
            stopped.wait(60)
            raise EngineError("the process has ended")

    stopped = threading.Event()
    swapping(hold)
    update, held = TrainState.update, []

    def interrupt(self: TrainState, *args: Any) -> None:
        update(self, *args)
        if self.step == 0:
            component = self.components["in_flight"]
            with component.changed:
                component.changed.wait_for(lambda: component.held.requested == [7], 60)
            held.extend(group.place for group in (*component.held.sampled, *component.held.scoring, *component.held.scored))
            raise Interrupted("SIGTERM")

    with monkeypatch.context() as patched:
        patched.setattr(TrainState, "update", interrupt)
        assert train_tiny(tmp_path, **SETTINGS, **{"ahead.max_staleness": 1}).status == "interrupted"
    stopped.set()
    assert len(held) == 3
    before, asked[:] = set(asked), []
    assert before == set(range(8))
    assert resume(tmp_path / "run").status == "finished"
    assert 7 in asked
    assert not set(held) & set(asked), "what was sampled is not asked for again"
    assert [row["step"] for row in rows_of(tmp_path / "run")] == list(range(1, 7))
    assert steps.finished == 6


def test_problems_and_limits_have_words_and_a_resume_goes_on(tmp_path, monkeypatch, swapping):
    score = RewardScorer.score

    def fail(self: RewardScorer, *args: Any) -> Any:
        raise RewardError("the verifier is on holiday")

    with monkeypatch.context() as broken:
        broken.setattr(RewardScorer, "score", fail)
        with pytest.raises(RewardError, match="the verifier is on holiday"):
            train_tiny(tmp_path, **SETTINGS)
    assert RewardScorer.score is score
    assert resume(tmp_path / "run").status == "finished"
    never = threading.Event()

    def hang(place: int, length: int) -> None:
        never.wait(20)
        raise EngineError("nobody waits any more")

    swapping(hang)
    with pytest.raises(
        RunError, match=r"ahead.limit_s: step 1 has 0 of its 4 groups after 0.2 s: 12 are being sampled and 0 scored"
    ):
        train_tiny(tmp_path, "slow", **SETTINGS, **{"ahead.limit_s": 0.2})
    never.set()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ahead.lag": 1}, "ahead.in_flight: it replaces the fixed lag"),
        (
            {"ahead.in_flight": False, "ahead.max_staleness": 3},
            "ahead.max_staleness: only ahead.in_flight = true uses it",
        ),
        ({"algorithm.refill_rounds": 1}, r"ahead.in_flight: dynamic sampling \(algorithm.refill_rounds\)"),
        ({"reward_model.iterations": 2, "algorithm.overlong_share": 0.0}, "ahead.in_flight: a reward model that is fitted"),
    ],
)
def test_recipes_that_cannot_be_sampled_in_flight_are_refused(tmp_path, changed, words):
    with pytest.raises(RecipeError, match=words):
        tiny(tmp_path, **{**SETTINGS, **changed})


def test_an_engine_that_cannot_swap_is_refused_by_name(tmp_path):
    with pytest.raises(EngineError, match=r'ahead.in_flight: engine "local" cannot swap weights'):
        train_tiny(tmp_path, **SETTINGS)


def test_a_run_that_is_killed_between_steps_trains_on_no_group_twice(tmp_path, monkeypatch, swapping, batches):
    """Resume from the checkpoint after step 2: the groups of step 2 are not trained on again."""
    finish = TrainState.finish_step

    def end(self: TrainState) -> None:
        finish(self)
        if self.step == 2:
            raise Interrupted("SIGTERM")

    swapping(lambda place, length: None)
    with monkeypatch.context() as patched:
        patched.setattr(TrainState, "finish_step", end)
        assert train_tiny(tmp_path, **SETTINGS, **{"ahead.max_staleness": 4}).status == "interrupted"
    assert resume(tmp_path / "run").status == "finished"
    trained = [rollout.completion.sampling_logprobs for batch in batches for rollout in batch.rollouts]
    assert len(trained) == 6 * PROMPTS * GROUP
    assert len(set(trained)) == len(trained)


def test_a_group_that_waits_to_be_scored_is_scored_when_a_step_takes_the_others(tmp_path, monkeypatch, swapping):
    """After drops a step can leave fewer scored groups than the next needs. In the last step no other comes that would begin the scoring."""
    begin = InFlight.begin

    def leave_one(self: InFlight, step: int, until: int) -> None:
        if step == until:
            with self.changed:
                assert self.changed.wait_for(lambda: len(self.held.scored) == PROMPTS, 60)
                self.held.sampled = [replace(self.held.scored.pop(), chunk=None)]
        begin(self, step, until)

    monkeypatch.setattr(InFlight, "begin", leave_one)
    swapping(lambda place, length: None)
    assert train_tiny(tmp_path, **SETTINGS, **{"ahead.max_staleness": 4, "ahead.limit_s": 20.0}).status == "finished"
