"""Early scoring: parts that start before all completions are sampled give the same numbers as parts that wait."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import test_rewards_zoo as zoo
from test_rewards_runner import completion, prompt

from cohort.base.world import World
from cohort.engine.requests import sample_groups
from cohort.errors import EngineError, RewardError
from cohort.rewards import early_scoring
from cohort.rewards.call import RewardEntry
from cohort.rewards.contract import RewardPart, Scored, Verdicts
from cohort.rewards.runner import RewardRunner
from cohort.session import resume
from cohort.types import NoiseKey, Request, Sampling
from session_tools import differences, rows_of, train_tiny

TEXTS = [f"text {number} {'x' * (number % 5)}" for number in range(24)]


@pytest.fixture(autouse=True)
def _start_always(monkeypatch):
    monkeypatch.setattr(early_scoring, "LEAST_S", 0.0)


def without_seconds(scored: Scored) -> tuple[Any, ...]:
    return scored.outcomes, {name: value for name, value in scored.metrics.items() if not name.endswith("seconds")}


def make_prompts(count: int = len(TEXTS)):
    return [prompt(row, answer=0.1 * row) for row in range(count)]


def run_step(runner: RewardRunner, prompts, completions, order) -> Scored:
    """Score a step; with an order, completions arrive early in that order, and rows can be missing."""
    hear = runner.start_early_scoring(prompts, step=1, num_steps=10) if order is not None else None
    for row in order or ():
        assert hear is not None
        hear(row, completions[row])
    return runner.score(prompts, completions, step=1, num_steps=10)


def score_both(function, orders, max_fault_share=0.1, **part):
    """(results of scoring at the end, of early scoring, the runner) for each order."""
    prompts, completions = make_prompts(), [completion(text) for text in TEXTS]
    with RewardRunner([RewardPart("f", function, **part)], max_fault_share=max_fault_share) as runner:
        slow = run_step(runner, prompts, completions, None)
    for order in orders:
        with RewardRunner([RewardPart("f", function, **part)], max_fault_share=max_fault_share) as runner:
            yield without_seconds(slow), without_seconds(run_step(runner, prompts, completions, order)), runner


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(len(TEXTS)), len(TEXTS))


def test_scored_as_they_finish_is_scored_after_everything():
    """Entries, extras, verdicts, logged metrics and retries are the same in any order."""
    for slow, fast, runner in score_both(zoo.score_alone, [range(24), range(23, -1, -1), shuffled(1)]):
        assert fast == slow
        assert runner._bound[0].scores_early
    assert slow[1]["reward/f/verdict/long"] == 4 + 8, "of the texts with one digit, and with two"
    assert slow[1]["reward/f/letters"] == (24 + 5 * 1 + 5 * 2 + 5 * 3 + 4 * 4) / 24


@pytest.mark.parametrize("function", [zoo.raise_on_one, zoo.log_badly, zoo.log_sometimes])
def test_early_answers_that_may_differ_from_a_batch_call_are_discarded(function):
    """One bad row has the same effect as in a batch call, and the part is not scored early again."""
    for slow, fast, runner in score_both(function, [range(24), shuffled(2)]):
        assert fast == slow
        assert not runner._bound[0].scores_early
        assert runner.start_early_scoring(make_prompts(), step=2, num_steps=10) is None
        assert any("once all completions are sampled" in note for note in runner.notes)
    retried = {"raise_on_one": 12.0, "log_badly": 0.0, "log_sometimes": 0.0}
    assert slow[1]["reward/f/retried"] == retried[function.__name__]


def test_a_list_of_the_wrong_length_stops_the_run_with_the_same_message():
    said = []
    for order in (None, shuffled(3)):
        with RewardRunner([RewardPart("f", zoo.forget_one)]) as runner, pytest.raises(RewardError) as problem:
            run_step(runner, make_prompts(), [completion(text) for text in TEXTS], order)
        said.append(str(problem.value))
    assert said[0] == said[1]
    assert "failed on 12 of 24 completions (length 12)" in said[0]


def test_early_scores_of_other_completions_do_not_count():
    """One completion did not arrive, and another one changed."""
    prompts, completions = make_prompts(), [completion(text) for text in TEXTS]
    with RewardRunner([RewardPart("f", zoo.score_alone)]) as runner:
        slow = without_seconds(run_step(runner, prompts, completions, None))
        assert without_seconds(run_step(runner, prompts, completions, range(23))) == slow
        hear = runner.start_early_scoring(prompts, step=1, num_steps=10)
        for row in range(24):
            hear(row, completion("another") if row == 7 else completions[row])
        assert without_seconds(runner.score(prompts, completions, step=1, num_steps=10)) == slow
        assert without_seconds(runner.score(prompts, completions, step=1, num_steps=10)) == slow, "nothing of it is left"


# -- who is told -------------------------------------------------------------------------------------------------------


def test_only_slow_parts_per_completion_outside_this_thread_start_early(monkeypatch):
    def whole(completions, **columns):
        return [1.0] * len(completions)

    def here(completions, **columns):
        return [1.0] * len(completions)

    def supervised(completions, wall_s=10.0, **columns):
        return [1.0] * len(completions)

    async def waits(completions, **columns):
        return [1.0] * len(completions)

    for one in (here, supervised, waits):
        one.per_completion = True  # type: ignore[attr-defined]
    supervised.supervised = True  # type: ignore[attr-defined]
    functions = {"whole": whole, "here": here, "supervised": supervised, "waits": waits, "worker": zoo.score_alone}
    with RewardRunner([RewardPart(name, function) for name, function in functions.items()]) as runner:
        assert runner.start_early_scoring(make_prompts(), step=1, num_steps=10) is not None
        assert [part.bound.name for part in runner._early.parts] == ["supervised", "waits", "worker"]
        assert [part.side_by_side for part in runner._early.parts] == [1, 1, 2]
        run_step(runner, make_prompts(), [completion(text) for text in TEXTS], range(24))
        monkeypatch.setattr(early_scoring, "LEAST_S", 1e9)
        assert runner.start_early_scoring(make_prompts(), step=1, num_steps=10) is None, "a part that is done in a moment"


def test_judging_begins_while_others_are_sampled_and_is_never_two_calls_at_once():
    begun, go_on, running, calls = threading.Event(), threading.Event(), [], []

    def slow(completions, wall_s=10.0, **columns):
        assert not running
        running.append(1)
        calls.append(len(completions))
        begun.set()
        assert go_on.wait(60)
        running.pop()
        return [float(len(text)) for text in completions]

    slow.per_completion = slow.supervised = True  # type: ignore[attr-defined]
    prompts, completions, told = make_prompts(), [completion(text) for text in TEXTS], []
    with RewardRunner([RewardPart("f", slow)]) as runner:
        runner.on_sampled = lambda done, total: told.append((done, total))
        runner.on_progress = lambda part, done, total: told.append((part, done, total))
        hear = runner.start_early_scoring(prompts, step=1, num_steps=10)
        hear(5, completions[5])
        assert begun.wait(60), "it is judged although nothing else is sampled"
        for row in range(24):
            if row != 5:
                hear(row, completions[row])
        assert told == [(done, 24) for done in range(1, 25)]
        go_on.set()
        scored = runner.score(prompts, completions, step=1, num_steps=10)
    assert [outcome.reward for outcome in scored.outcomes] == [len(text) for text in TEXTS]
    assert calls == [1, 23], "what comes meanwhile is one call"
    assert told[24:] == [("f", 1, 24), ("f", 24, 24)]
    assert scored.metrics["reward/f/seconds"] > 0


def test_each_process_starts_only_its_own_completions():
    class Second(World):
        rank, size = 1, 2

    prompts = [one for one in make_prompts(6) for _ in range(4)]
    with RewardRunner([RewardPart("f", zoo.score_alone)]) as runner:
        runner.world = Second()
        hear = runner.start_early_scoring(prompts, step=1, num_steps=10)
        for row in range(24):
            hear(row, completion(TEXTS[row]))
        heard = runner._early
        assert heard.completions == {row: completion(TEXTS[12 + row]) for row in range(12)}
        (early,) = heard.find_parts(prompts[12:], [completion(text) for text in TEXTS[12:]]).values()
        verdicts = Verdicts([RewardEntry()] * 12)
        assert early.fill(verdicts)
        assert [entry.value for entry in verdicts.entries] == [len(TEXTS[12 + r]) / 7 + 0.1 * (3 + r // 4) for r in range(12)]


def test_places_are_those_of_all_groups_laid_flat():
    class Echo:
        def generate(self, requests, sampling, noise, on_finish=None):
            for request in requests[::-1]:
                on_finish(request, name(request))
            return [name(request) for request in requests]

    def name(request: Request):
        return completion(f"{request.draw}.{request.sample}")

    told: dict[int, Any] = {}
    found = sample_groups(
        Echo(), make_prompts(3), Sampling(2, 1.0, 4, (2,)), NoiseKey(0, "train", 1), 7, on_finish=told.__setitem__
    )
    assert [one for group in found for one in group] == [told[place] for place in range(6)]
    assert told[3].text == "8.1"


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refill_rounds", [0, 2])
def test_a_run_is_the_same_with_and_without_early_scoring(tmp_path, monkeypatch, refill_rounds):
    """Weights, metrics, rollouts and evaluations; with and without dynamic sampling, and resumed after an end during sampling."""
    heard: list[int] = []
    find_parts = early_scoring.EarlyScoring.find_parts

    def note(self, *given):
        found = find_parts(self, *given)
        heard.append(len(found))
        return found

    monkeypatch.setattr(early_scoring.EarlyScoring, "find_parts", note)
    words = {"algorithm.refill_rounds": refill_rounds, "algorithm.overlong_share": 0.5}
    early = train_tiny(tmp_path, "early", **words).folder
    rounds = sum(row.get("rollout/rounds", 1) for row in rows_of(early))
    assert heard == [1] * int(rounds)
    monkeypatch.setattr(early_scoring, "LEAST_S", 1e9)
    late = train_tiny(tmp_path, "late", **words).folder
    assert len(heard) == rounds
    assert differences(early, late) == []
    monkeypatch.setattr(early_scoring, "LEAST_S", 0.0)
    hear, told = early_scoring.EarlyScoring.add, []

    def end_amid(self, place, one):
        told.append(place)
        if len(told) == 60:  # the third step
            raise EngineError("the engine is gone")
        hear(self, place, one)

    monkeypatch.setattr(early_scoring.EarlyScoring, "add", end_amid)
    with pytest.raises(EngineError, match="gone"):
        train_tiny(tmp_path, "ended", **words)
    assert differences(resume(tmp_path / "ended").folder, late) == []
