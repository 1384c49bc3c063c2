"""Sampling ahead: which policy samples a batch, that training continues meanwhile, and that no batch is lost."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from cohort.base.stopwatch import Stopwatch
from cohort.base.world import World
from cohort.engine.local import LocalEngine, SnapshotEngine
from cohort.engine.protocol import Capabilities, EngineSetup
from cohort.engine.requests import make_requests
from cohort.errors import EngineError, Interrupted, RecipeError, RewardError, RunError
from cohort.model import lora
from cohort.model.policy import Policy
from cohort.recipe.schema import LoraConfig
from cohort.session import resume
from cohort.training import ahead, checkpoint
from cohort.training.ahead import Ahead
from cohort.training.build import refuse_ahead
from cohort.training.rollouts import RewardScorer
from cohort.training.state import TrainState
from cohort.types import NoiseKey, Prompt, Sampling
from conftest import tiny_policy
from session_tools import Trap, differences, fork_server, rows_of, tiny, train_tiny, write_recipe

QUICK = {"evaluation.samples": 0, "cold_start.num_steps": 0, "algorithm.overlong_share": 0.9, "train.group_size": 3}
"""No cold start: rewards differ by the length of completions, so there is something to learn."""
SMALL = QUICK | {"train.minibatches_per_step": 1, "train.passes_per_step": 1}
"""One update a step, so that versions are steps."""


def staleness(run: Any) -> list[float]:
    rows = rows_of(run)
    assert [row["ahead/staleness_mean"] for row in rows] == [row["ahead/staleness_max"] for row in rows]
    return [row["ahead/staleness_max"] for row in rows]


def read_batches(run: Any) -> list[dict[str, Any]]:
    found = checkpoint.latest(run / "checkpoints")
    return found.snapshot.document["components"]["ahead"]["batches"]


# -- who sampled what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lag", "expected"), [(1, [0, 1, 1, 1, 1]), (2, [0, 1, 2, 2, 2]), (9, [0, 1, 2, 3, 4])])
def test_a_batch_is_of_the_weights_that_the_step_before_by_the_lag_began_with(tmp_path, lag, expected):
    run = train_tiny(tmp_path, **SMALL, **{"ahead.lag": lag}).folder
    assert staleness(run) == expected
    rows = rows_of(run)
    assert rows[0]["rollout/mismatch_max"] <= 1e-5, "the first step is of the policy itself, and is compared with it"
    assert all("rollout/mismatch_max" not in row for row in rows[1:])
    assert [row["ahead/batches"] for row in rows] == [min(lag, 5 - step) for step in range(1, 6)]


def test_two_runs_are_equal_and_another_lag_is_another_run(tmp_path):
    runs = [train_tiny(tmp_path, name, **QUICK, **{"ahead.lag": lag}).folder for name, lag in (("a", 1), ("b", 1), ("c", 2))]
    assert differences(runs[1], runs[0]) == []
    assert "model/model.safetensors" in differences(runs[2], runs[0])


def test_the_lag_is_that_of_sampling_with_older_weights(tmp_path, monkeypatch):
    """The copy samples what an engine with shared weights would sample with the weights of the step before."""
    seen: dict[int, list[Any]] = {}
    take = Ahead._take

    def note(self: Ahead, step: int) -> Any:
        drawn, metrics = take(self, step)
        seen[step] = [(rollout.prompt.index, rollout.completion) for group in drawn.groups for rollout in group]
        return drawn, metrics

    monkeypatch.setattr(Ahead, "_take", note)
    train_tiny(tmp_path, "one", **SMALL, **{"ahead.lag": 1, "train.num_steps": 3})
    first = dict(seen)
    # With two steps of lag the second batch is of the weights of the start too, the third not of those that have had an update.
    train_tiny(tmp_path, "two", **SMALL, **{"ahead.lag": 2, "train.num_steps": 3})
    assert seen[2] == first[2]
    assert [index for index, _ in seen[3]] == [index for index, _ in first[3]]
    assert seen[3] != first[3]


# -- side by side --------------------------------------------------------------------------------------------------------


def test_training_goes_on_while_later_batches_are_scored(tmp_path, monkeypatch):
    """The scores of step 3 wait for the update of step 2, so without overlap the run would hang."""
    updated, score = threading.Event(), RewardScorer.score
    update = TrainState.update

    def wait_for_update(self: RewardScorer, prompts: Any, completions: Any, step: int, watch: Stopwatch) -> Any:
        if step == 3:
            assert updated.wait(60), "step 2 was not trained while step 3 was scored"
        return score(self, prompts, completions, step, watch)

    def note(self: TrainState, *args: Any) -> None:
        update(self, *args)
        if self.step == 1:
            updated.set()

    monkeypatch.setattr(RewardScorer, "score", wait_for_update)
    monkeypatch.setattr(TrainState, "update", note)
    assert train_tiny(tmp_path, **SMALL, **{"ahead.lag": 2}).status == "finished"


def test_nothing_is_sampled_while_the_weights_of_the_copy_change(tmp_path, monkeypatch):
    sampling, sync, generate = threading.Lock(), SnapshotEngine.sync, SnapshotEngine.generate

    def guarded_generate(self: SnapshotEngine, *args: Any) -> Any:
        with sampling:
            return generate(self, *args)

    def guarded_sync(self: SnapshotEngine, *args: Any) -> None:
        assert not sampling.locked()
        sync(self, *args)

    monkeypatch.setattr(SnapshotEngine, "generate", guarded_generate)
    monkeypatch.setattr(SnapshotEngine, "sync", guarded_sync)
    changed = {"ahead.lag": 3, "algorithm.refill_rounds": 2, "algorithm.prompt_choice": "informative", "evaluation.samples": 0}
    runs = [train_tiny(tmp_path, name, **changed).folder for name in ("a", "b")]
    assert differences(runs[1], runs[0]) == []
    assert any(row["rollout/rounds"] > 1 for row in rows_of(runs[0]))


# -- what goes wrong -----------------------------------------------------------------------------------------------------


def test_a_problem_in_the_background_ends_the_run_with_its_words_and_a_resume_loses_nothing(tmp_path, monkeypatch):
    settings = QUICK | {"ahead.lag": 2}
    whole = train_tiny(tmp_path, "whole", **settings).folder
    score = RewardScorer.score

    def fail(self: RewardScorer, prompts: Any, completions: Any, step: int, watch: Stopwatch) -> Any:
        if step == 4:
            raise RewardError("the verifier is on holiday")
        return score(self, prompts, completions, step, watch)

    with monkeypatch.context() as broken:
        broken.setattr(RewardScorer, "score", fail)
        with pytest.raises(RewardError, match="the verifier is on holiday"):
            train_tiny(tmp_path, "run", **settings)
    held = {batch["step"]: batch for batch in read_batches(tmp_path / "run")}
    assert held[4]["scored"] == 0
    assert len(held[4]["rollouts"]) > 0, "what was sampled is there to be scored again"
    assert resume(tmp_path / "run").status == "finished"
    assert differences(tmp_path / "run", whole) == []


def test_sampling_that_fails_ends_the_run_and_a_resume_samples_anew(tmp_path, monkeypatch):
    generate = SnapshotEngine.generate

    def fail(self: SnapshotEngine, requests: Any, sampling: Any, noise: NoiseKey, on_finish: Any = None) -> Any:
        if noise.step == 3:
            raise EngineError("the server is gone")
        return generate(self, requests, sampling, noise, on_finish)

    with monkeypatch.context() as broken:
        broken.setattr(SnapshotEngine, "generate", fail)
        with pytest.raises(EngineError, match="the server is gone"):
            train_tiny(tmp_path, **SMALL, **{"ahead.lag": 1})
    assert resume(tmp_path / "run").status == "finished"
    assert staleness(tmp_path / "run")[2] == 0, "what could not be sampled ahead is sampled by the policy as it is"
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("refills", [0, 2])
def test_no_thread_outlives_its_run_however_it_ends(tmp_path, monkeypatch, refills):
    """Each would keep the policy in memory. With refills the sampler still needs the scorer after the run has ended."""
    before, finish = set(threading.enumerate()), TrainState.finish_step

    def interrupt(self: TrainState) -> None:
        finish(self)
        raise Interrupted("SIGTERM")

    with monkeypatch.context() as patched:
        patched.setattr(TrainState, "finish_step", interrupt)
        run = train_tiny(tmp_path, **SMALL, **{"ahead.lag": 2, "algorithm.refill_rounds": refills})
    assert run.status == "interrupted"
    assert len(read_batches(run.folder)) == 2
    for thread in set(threading.enumerate()) - before:
        if thread.name in ("sampler", "scorer"):
            thread.join(20)
            assert not thread.is_alive(), thread.name


def test_waiting_has_a_limit_with_words(tmp_path, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(RewardScorer, "score", lambda *_: never.wait(20))
    with pytest.raises(RunError, match=r"ahead.limit_s: scoring for step 1, in the background, has not finished within 0.2 s"):
        train_tiny(tmp_path, **SMALL, **{"ahead.lag": 1, "ahead.limit_s": 0.2})
    never.set()


@pytest.mark.parametrize("moment", ["before the first update", "between updates", "after a step"])
def test_an_interrupted_run_saves_what_is_ahead_and_goes_on_equally(tmp_path, monkeypatch, moment):
    settings = QUICK | {"ahead.lag": 2, "checkpoints.every_steps": 0}
    whole = train_tiny(tmp_path, "whole", **settings).folder
    name = {"before the first update": "begin_batch", "between updates": "update", "after a step": "finish_step"}[moment]
    original, calls = getattr(TrainState, name), []

    def interrupt(self: TrainState, *args: Any) -> Any:
        result = original(self, *args)
        calls.append(name)
        if self.phase == "train" and len(calls) == (8 if name == "update" else 2):
            raise Interrupted("SIGTERM")
        return result

    with monkeypatch.context() as patched:
        patched.setattr(TrainState, name, interrupt)
        assert train_tiny(tmp_path, "run", **settings).status == "interrupted"
    expected = {"before the first update": [2, 3, 4], "between updates": [3, 4], "after a step": [3, 4]}[moment]
    assert [batch["step"] for batch in read_batches(tmp_path / "run")] == expected
    assert resume(tmp_path / "run").status == "finished"
    assert differences(tmp_path / "run", whole) == []


def test_a_save_waits_for_what_is_sampled_and_not_for_its_rewards(tmp_path, monkeypatch):
    """A reward that is under way when a signal comes ends only after the save; the resumed run asks for it again."""
    settings = QUICK | {"ahead.lag": 1, "checkpoints.every_steps": 0}
    whole = train_tiny(tmp_path, "whole", **settings).folder
    saved, in_time = threading.Event(), []
    score, finish, make_snapshot = RewardScorer.score, TrainState.finish_step, TrainState.make_snapshot

    def hold(self: RewardScorer, prompts: Any, completions_PG: Any, step: int, watch: Any) -> Any:
        if step == 3:
            in_time.append(saved.wait(20))
        return score(self, prompts, completions_PG, step, watch)

    def interrupt(self: TrainState) -> None:
        finish(self)
        if self.step == 2:
            raise Interrupted("SIGTERM")

    def note(self: TrainState) -> Any:
        snapshot = make_snapshot(self)
        if self.step == 2:
            saved.set()
        return snapshot

    with monkeypatch.context() as patched:
        patched.setattr(RewardScorer, "score", hold)
        patched.setattr(TrainState, "finish_step", interrupt)
        patched.setattr(TrainState, "make_snapshot", note)
        assert train_tiny(tmp_path, "run", **settings).status == "interrupted"
    [batch] = read_batches(tmp_path / "run")
    assert (batch["step"], batch["scored"], len(batch["sizes"])) == (3, 0, 6)
    assert resume(tmp_path / "run").status == "finished"
    assert in_time == [True]
    assert differences(tmp_path / "run", whole) == []


def test_what_was_waited_for_in_vain_is_not_waited_for_again(tmp_path, monkeypatch):
    never, waited = threading.Event(), []

    def hang(*_: Any, **__: Any) -> Any:
        never.wait(20)
        raise EngineError("nobody waits any more")

    def note(futures: Any, limit_s: float) -> Any:
        waited.append(limit_s)
        return wait(futures, limit_s)

    wait = ahead.wait
    monkeypatch.setattr(ahead, "wait", note)
    monkeypatch.setattr(SnapshotEngine, "generate", hang)
    with pytest.raises(RunError, match=r"ahead.limit_s: sampling for step 1"):
        train_tiny(tmp_path, **SMALL, **{"ahead.lag": 1, "ahead.limit_s": 0.2})
    never.set()
    assert sum(waited) == pytest.approx(0.2)


def change_lag(run: Any, before: int, after: int) -> None:
    file = run / "recipe.toml"
    text = file.read_text(encoding="utf-8")
    assert f"lag = {before}\n" in text
    file.write_text(text.replace(f"lag = {before}\n", f"lag = {after}\n"), encoding="utf-8")


@pytest.mark.parametrize(
    ("before", "after", "expected"), [(2, 0, [0, 1, 2, 2, 0]), (0, 2, [None, None, 0, 1, 2]), (3, 1, [0, 1, 2, 3, 3])]
)
def test_a_lag_that_is_changed_trains_on_what_is_there_first(tmp_path, monkeypatch, before, after, expected):
    finish, steps = TrainState.finish_step, []

    def interrupt(self: TrainState) -> None:
        finish(self)
        steps.append(self.step)
        if self.step == 2:
            raise Interrupted("SIGTERM")

    with monkeypatch.context() as patched:
        patched.setattr(TrainState, "finish_step", interrupt)
        train_tiny(tmp_path, **SMALL, **{"ahead.lag": before})
    change_lag(tmp_path / "run", before, after)
    assert resume(tmp_path / "run").status == "finished"
    assert [row.get("ahead/staleness_max") for row in rows_of(tmp_path / "run")] == expected


MOMENTS = {
    "inside a rollout ahead, then between minibatches": [
        Trap("cohort.engine.scheduler:choose_tokens", 60),
        Trap("cohort.model.optim:Optimizer.clip_and_step", 9),
    ],
    "while scoring ahead, then inside a save": [
        Trap("cohort.training.rollouts:score_groups", 4),
        Trap("cohort.training.checkpoint:write_tensors", 6),
    ],
}


@pytest.mark.prove
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_ends_with_the_same_bits(killing, moment):
    server, recipe, folder, whole = killing
    run = folder / moment.replace(" ", "-").replace(",", "")
    command: list[Any] = ["train", recipe, f"name={run.name}", f"runs_folder={folder}"]
    for trap in MOMENTS[moment]:
        child = server.run(*command, traps=[trap])
        assert child.wait() == -9, child.output
        command = ["resume", run]
    child = server.run("resume", run)
    assert child.wait() == 0, child.output
    assert differences(run, whole) == []


@pytest.fixture(scope="module")
def killing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kill")
    recipe = write_recipe(folder / "tiny.toml", **{"ahead.lag": 2, "algorithm.refill_rounds": 1})
    with fork_server(folder) as server:
        child = server.run("train", recipe, "name=whole", f"runs_folder={folder}")
        assert child.wait() == 0, child.output
        yield server, recipe, folder, folder / "whole"


# -- the copy ------------------------------------------------------------------------------------------------------------

SAMPLING = Sampling(group_size=3, temperature=1.0, max_completion_tokens=6, stop_ids=(1,))


def sample(engine: Any) -> list[Any]:
    return engine.generate(make_requests([Prompt(0, "text", {}, (5, 6, 7))], 3), SAMPLING, NoiseKey(0, "train", 1))


def make_engine(policy: Policy) -> LocalEngine:
    return LocalEngine(EngineSetup(policy.model, policy.codec.decode))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_copy_has_the_weights_of_the_last_sync(dtype):
    policy = tiny_policy(dtype=dtype, spread=1.0)
    own, copy = make_engine(policy), policy.make_frozen_copy()
    snapshot = SnapshotEngine(copy, make_engine(copy))
    assert not snapshot.capabilities.shares_weights
    snapshot.sync(policy.read_weights(), 0)
    before = sample(own)
    assert sample(snapshot) == before
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
    after = sample(own)
    assert after != before
    assert sample(snapshot) == before
    snapshot.sync(policy.read_weights(), 1)
    assert sample(snapshot) == after


def test_the_copy_of_an_adapter_shares_the_base_and_notices_when_it_begins_to_act():
    policy = tiny_policy(dtype=torch.float32, spread=1.0)
    policy = Policy(policy.model, policy.tokenizer, 1.0, lora.start_adapter(policy.model, LoraConfig(rank=2), 0))
    own, copy = make_engine(policy), policy.make_frozen_copy()
    snapshot = SnapshotEngine(copy, make_engine(copy))
    assert own.fused is not None
    assert own.fused.adapters, "own code serves adapters, and a copy lays out no second base"
    shared = {value.data_ptr() for value in policy.model.parameters()} & {value.data_ptr() for value in copy.model.parameters()}
    assert len(shared) == len(list(policy.model.parameters())) - len(policy.list_own_parameters())
    snapshot.sync(policy.read_weights(), 0)
    before = sample(own)
    assert sample(snapshot) == before
    with torch.no_grad():
        for name, value in policy.list_own_parameters().items():
            if ".lora_B." in name:
                value.add_(1.0)
    after = sample(own)
    assert after != before
    assert sample(snapshot) == before
    snapshot.sync(policy.read_weights(), 1)
    assert sample(snapshot) == after


# -- refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"algorithm.data": "start", "algorithm.name": "rft"}, "ahead.lag: algorithm.data"),
        ({"reward_model.iterations": 2, "reward_model.prompts": 8}, "ahead.lag: a reward model that is fitted between steps"),
    ],
)
def test_recipes_that_cannot_sample_ahead_are_refused(tmp_path, changed, words):
    with pytest.raises(RecipeError, match=words):
        tiny(tmp_path, **{"ahead.lag": 1, **changed})


def test_several_ranks_sample_ahead_from_servers_alone(tmp_path):
    class Several(World):
        size = 2

    class Servers:
        name = "servers"
        capabilities = Capabilities(1, 1, shares_weights=False)

    recipe, engine = tiny(tmp_path, **{"ahead.lag": 1}), make_engine(tiny_policy())
    with pytest.raises(EngineError, match=r'ahead.lag: with several ranks.*engine "local"'):
        refuse_ahead(recipe, engine, Several().is_alone)
    refuse_ahead(recipe, engine, World().is_alone)
    refuse_ahead(recipe, Servers(), Several().is_alone)
