"""Where completions come from: dynamic sampling, the starting policy, demonstrations and pairs."""

from __future__ import annotations

import json
import math

import pytest
import torch

from cohort.algorithms.refill import explain_difficulty
from cohort.base.stopwatch import Stopwatch
from cohort.data.prompts import PromptStream
from cohort.engine.protocol import Capabilities
from cohort.errors import PromptError, RecipeError
from cohort.recipe.file import build_recipe
from cohort.rewards.contract import Scored
from cohort.session import start
from cohort.training.rollouts import SampledSource, begin_collection, finish_collection, merge_metrics
from cohort.types import Completion, Outcome, Prompt, Sampling
from session_tools import prove_others, rows_of, tiny, train_tiny, tree

# -- dynamic sampling --------------------------------------------------------------------------------------------------


class Scripted:
    """An engine that writes its draw number, and a scorer for which the verdicts of each draw are written down."""

    name, slots = "scripted", 0
    capabilities = Capabilities(most_slots=1, cache_itemsize=4)

    def __init__(self, verdicts: list[str]):
        self.verdicts = verdicts
        self.calls: list[tuple[int, int]] = []

    def sync(self, weights, version):
        self.synced = (weights, version)

    def generate(self, requests, sampling, noise):
        assert self.synced == ({"weight": 1}, 0), "the weights and their version are there before the first sample"
        self.calls.append((requests[0].draw, len(requests) // sampling.group_size))
        return [Completion((7, request.draw % 5, 1), (0.0,) * 3, "stop", str(request.draw)) for request in requests]

    def score(self, prompts, completions_PG, step):
        outcomes = []
        for group in completions_PG:
            for mark in self.verdicts[int(group[0].text)]:
                success = None if mark == "-" else mark == "1"
                outcomes.append(Outcome({"right": float(bool(success))}, float(bool(success)) + 0.1, success))
        rewards = [outcome.reward for outcome in outcomes]
        return Scored(outcomes, {"reward/mean": sum(rewards) / len(rewards), "reward/faults": 1.0})


def collect(verdicts: list[str], wanted: int, rounds: int) -> tuple[object, Scripted, list[str]]:
    said: list[str] = []
    scripted = Scripted(verdicts)
    recipe = build_recipe(
        {"train": {"prompts_per_step": wanted, "group_size": 2}, "algorithm": {"refill_rounds": rounds, "kl_coef": 0.0}}
    )
    prompts = [Prompt(index, str(index), {}, (1, 2)) for index in range(50)]
    stream, sampling = PromptStream(prompts, 0, shuffle=False), Sampling(2, 1.0, 3, (1,))
    source = SampledSource(recipe.seed, scripted, sampling, lambda: {"weight": 1})
    source.sync(0)
    drawn = begin_collection(recipe, 10, 0)
    while drawn.missing:
        chosen = drawn.next_prompts(stream)
        completions_PG = source.complete(chosen, 1, drawn.drawn, Stopwatch())
        drawn = drawn.add_round(chosen, completions_PG, scripted.score(chosen, completions_PG, 1), source.metrics())
    if drawn.is_short:
        said.append(explain_difficulty(drawn.counts, 1, drawn.wanted))
    return finish_collection(drawn, 0, sampled=True, keyed=True), scripted, said


def test_groups_without_both_outcomes_are_replaced_from_the_stream():
    found, scripted, said = collect(["11", "10", "00", "01", "11", "10", "10", "00"] + ["11"] * 20, wanted=3, rounds=3)
    # Round one: draws 0 to 2 hold one useful group; (1+1)/(3+2) expected, two missing: five more draws.
    assert scripted.calls == [(0, 3), (3, 5)]
    assert [rollout.completion.text for rollout in found.rollouts] == ["1", "1", "3", "3", "5", "5"]
    assert [rollout.group for rollout in found.rollouts] == [0, 0, 1, 1, 2, 2]
    assert [rollout.prompt.index for rollout in found.rollouts][::2] == [11, 13, 15]
    assert found.prompts_taken == 8
    assert found.tokens_sampled == 8 * 2 * 3
    assert found.metrics["rollout/rounds"] == 2
    assert found.metrics["rollout/groups_drawn"] == 8
    assert (found.metrics["rollout/groups_too_easy"], found.metrics["rollout/groups_too_hard"]) == (2, 2)
    assert found.metrics["rollout/groups_surplus"] == 1
    # The filter looks at success; what is reported is over everything that was drawn, weighted by groups.
    assert found.metrics["reward/mean"] == pytest.approx(0.1 + (2 + 1 + 0 + 1 + 2 + 1 + 1 + 0) / 16)
    assert found.metrics["reward/faults"] == 2.0
    assert found.verdicts[10] == (2, 2)
    assert found.verdicts[17] == (0, 2)
    assert said == []


def test_the_cap_is_kept_and_the_message_says_too_hard_or_too_easy():
    found, scripted, said = collect(["00"] * 40, wanted=2, rounds=2)
    assert len(scripted.calls) == 3
    assert found.metrics["rollout/rounds"] == 3
    assert len(found.rollouts) == 4  # the first groups, so that the step shows what was sampled
    assert "too hard" in said[0]
    _, _, said = collect(["11"] * 40, wanted=2, rounds=2)
    assert "too easy" in said[0]


@pytest.mark.parametrize(("useful", "rounds", "trains"), [(0, 1, False), (1, 1, True), (2, 1, True), (0, 0, True)])
def test_one_useful_group_is_enough_for_a_step(useful, rounds, trains):
    """Without dynamic sampling every batch is trained on."""
    verdicts = ["11", "00"] + ["10"] * useful + ["00"] * 40
    found, _, _ = collect(verdicts, wanted=3, rounds=rounds)
    assert found.useful is trains
    kept = {rollout.completion.text for rollout in found.rollouts}
    assert kept == ({str(2 + place) for place in range(useful)} or {"0", "1", "2"})


def test_without_refill_every_group_is_kept():
    found, scripted, _ = collect(["11", "00", "--"], wanted=3, rounds=0)
    assert scripted.calls == [(0, 3)]
    assert len(found.rollouts) == 6
    assert "rollout/rounds" not in found.metrics
    assert found.verdicts == {10: (2, 2), 11: (0, 2), 12: (0, 0)}


def test_means_are_weighted_and_counts_added():
    rows = [(3, {"reward/mean": 1.0, "reward/faults": 2.0, "only": 5.0}), (1, {"reward/mean": 0.0, "reward/faults": 1.0})]
    assert merge_metrics(rows) == {"reward/mean": 0.75, "reward/faults": 3.0, "only": 5.0}


# -- the starting policy -----------------------------------------------------------------------------------------------

ONE_UPDATE = {"train.minibatches_per_step": 1, "train.passes_per_step": 1, "evaluation.samples": 0, "train.num_steps": 3}


def completions(run) -> dict[int, list[str]]:
    import pyarrow.parquet as pq

    return {step: pq.read_table(run / "rollouts" / f"step-{step:06d}.parquet")["completion"].to_pylist() for step in (1, 2, 3)}


def test_rft_goes_on_sampling_from_the_policy_the_run_started_from(tmp_path):
    """With a learning rate that wrecks the policy at once, its own samples change and those of the start do not."""
    common = {**ONE_UPDATE, "algorithm.kl_coef": 0.0}
    still = train_tiny(tmp_path, "still", **common, **{"algorithm.name": "rft", "optimizer.learning_rate": 1e-9}).folder
    wrecked = train_tiny(tmp_path, "wrecked", **common, **{"algorithm.name": "rft", "optimizer.learning_rate": 1.0}).folder
    online = train_tiny(tmp_path, "online", **common, **{"algorithm.name": "online_rft", "optimizer.learning_rate": 1.0}).folder
    assert completions(wrecked) == completions(still)
    assert completions(online)[1] == completions(still)[1]
    assert completions(online)[3] != completions(still)[3]
    assert "rollout/mismatch_max" not in rows_of(wrecked)[0]  # it is not the trained policy that sampled


# -- demonstrations ----------------------------------------------------------------------------------------------------


def test_sft_is_the_cold_start_as_an_algorithm(tmp_path):
    """The same rows in the same order, the same loss, the same optimizer: the same weights to the last bit."""
    from safetensors.torch import load_file

    rate = {"optimizer.learning_rate": 1e-2, "evaluation.samples": 0}
    cold = {
        "cold_start.num_steps": 4,
        "cold_start.batch_size": 16,
        "cold_start.warmup_steps": 0,
        "cold_start.learning_rate": 1e-2,
    }
    first = train_tiny(tmp_path, "cold", **rate, **cold, **{"train.num_steps": 0}).folder
    one = {"train.minibatches_per_step": 1, "train.passes_per_step": 1, "train.prompts_per_step": 16, "train.num_steps": 4}
    sft = {"algorithm.name": "sft", "algorithm.kl_coef": 0.0, "cold_start.num_steps": 0}
    second = train_tiny(tmp_path, "sft", **rate, **one, **sft).folder
    ours, theirs = load_file(first / "model" / "model.safetensors"), load_file(second / "model" / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    row = rows_of(second)[0]
    assert row["rollout/tokens"] == 0
    assert row["loss/coefficient_mean"] == 1.0
    assert "reward/mean" not in row
    assert "advantage/useful_groups" not in row


# -- pairs -------------------------------------------------------------------------------------------------------------


def pair_rows(**changes) -> list[dict[str, object]]:
    return [
        {"prompt": f"{first}+{second}=", "answer": str(first + second), "chosen": f">{first + second}", "rejected": f">{first}"}
        | changes
        for first in range(1, 7)
        for second in range(1, 7)
    ]


def dpo_recipe(tmp_path, rows, **overrides):
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    plain = tree(**{**ONE_UPDATE, "cold_start.num_steps": 0, "algorithm.name": "dpo", "algorithm.kl_coef": 0.1, **overrides})
    plain["prompts"] = {"source": str(tmp_path / "pairs.jsonl"), "max_prompt_tokens": 8}
    plain["evaluation"]["sets"] = {}
    return build_recipe(plain | {"runs_folder": str(tmp_path), "name": "pairs"})


def test_dpo_on_pairs_starts_at_log_two_and_comes_to_prefer_the_chosen(tmp_path):
    run = start(dpo_recipe(tmp_path, pair_rows(), **{"train.num_steps": 20, "optimizer.learning_rate": 3e-3})).folder
    rows = rows_of(run)
    assert rows[0]["loss/total"] == pytest.approx(math.log(2), abs=1e-7)
    assert (rows[0]["loss/margin"], rows[0]["loss/chosen_gain"], rows[0]["loss/rejected_gain"]) == (0.0, 0.0, 0.0)
    assert "loss/kl" not in rows[0]  # pairs are no samples of the policy, so nothing here measures its KL
    assert rows[-1]["loss/preferred"] == 1.0
    assert rows[-1]["loss/margin"] > 1.0
    assert rows[-1]["loss/total"] < 0.3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chosen": None}, ["algorithm.data", "'chosen'", "row 0", '"start"', '"policy"']),
        ({"rejected": ">7", "chosen": ">7"}, ["row 0", "are equal", "remove the row"]),
        ({"chosen": 7}, ["row 0", "`chosen`", "int", "text"]),
        ({"rejected": [{"role": "user", "content": "x"}]}, ["row 0", "`rejected`", "assistant"]),
    ],
)
def test_pairs_that_cannot_be_trained_on_are_refused_by_row(tmp_path, change, words):
    rows = pair_rows(**change)
    with pytest.raises(PromptError) as problem:
        start(dpo_recipe(tmp_path, rows, **{"evaluation.held_out": 0.0}))
    assert [word for word in words if word not in str(problem.value)] == []


def test_dpo_without_pairs_says_how_to_get_some(tmp_path):
    with pytest.raises(
        PromptError, match=r"algorithm.data.*has no column 'chosen' \(it has the columns 'answer', 'demonstration'\).*rollouts"
    ):
        train_tiny(tmp_path, "none", **{"algorithm.name": "dpo", "algorithm.kl_coef": 0.1})


def test_chat_pairs_continue_the_prompt(tmp_path):
    from cohort.data.prompts import read_preference

    prompt = Prompt(3, [{"role": "user", "content": "1+1="}], {"chosen": [{"role": "assistant", "content": "2"}]}, (1,))
    assert read_preference(prompt, "chosen") == "2"


# -- step 1 ------------------------------------------------------------------------------------------------------------


PLACES = ("grpo", "grpo_process", "reinforce++", "reinforce++_baseline", "rloo", "gspo", "cispo", "ppo", "online_rft", "dpo")


@pytest.mark.parametrize("name", prove_others(PLACES, "grpo", "rloo", "ppo", "dpo"))
def test_before_the_first_update_everything_is_the_same_policy(tmp_path, name):
    """Ratio exactly 1, KL exactly 0, engine and trainer bitwise equal, for every way of placing the KL."""
    chosen = {"algorithm.name": name, "algorithm.kl_coef": 0.05, **ONE_UPDATE, "train.num_steps": 2}
    if name == "dpo":
        chosen["algorithm.data"] = "policy"
    if name == "grpo_process":
        answer = {"function": "math_answer", "args": {"pattern": r">(\d+)\s*$"}}
        chosen["rewards"] = [answer, {"function": "cohort.data.column_addition:check_steps"}]
    first, second = rows_of(train_tiny(tmp_path, "first", **chosen).folder)
    distance = "loss/margin" if name == "dpo" else "loss/kl"
    assert first[distance] == 0.0
    assert first["loss/ratio_max"] == 1.0
    assert first["rollout/mismatch_max"] == 0.0
    assert second[distance] != 0.0


def test_temperature_zero_is_still_refused_and_a_group_of_one_is_fine_where_nothing_is_compared(tmp_path):
    with pytest.raises(RecipeError, match="temperature"):
        tiny(tmp_path, "cold", **{"sampling.temperature": 0.0})
    rows = rows_of(train_tiny(tmp_path, "one", **{**ONE_UPDATE, "algorithm.name": "reinforce++", "train.group_size": 1}).folder)
    assert rows[0]["optim/grad_norm"] > 0


def test_written_completions_that_do_not_fit_the_model_are_refused_by_row(tmp_path):
    rows = pair_rows()
    rows[7]["rejected"] = ">" + "1" * 40
    with pytest.raises(PromptError, match=r"pairs, row 7: .* 46 tokens, but the model has 32 positions"):
        start(dpo_recipe(tmp_path, rows, **{"evaluation.held_out": 0.0, "evaluation.samples": 0}))
