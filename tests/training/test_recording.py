"""What a run writes down of single tokens: held to the formulas, worked out again from the weights that each update began with."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from cohort.model.examples import Example
from cohort.model.packing import plan_minibatches
from cohort.observe.monitors.base import Monitors
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.rollouts import DUPLICATE, NUMBERS, WRONG_REWARDED, read_index, read_tokens
from cohort.observe.run_folder import RunFolder, find_losses
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training import stages
from cohort.training.state import TrainState
from cohort.training.trace import TokenTrace, Traced, list_numbers
from cohort.training.updates import Measured, TokenValues
from session_tools import bits, train_tiny, tree

CLIP, KL_COEF, GROUPS, GROUP_SIZE = 0.2, 0.02, 6, 4
TWICE_TWO = {
    "train.num_steps": 2,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 2,
    "optimizer.learning_rate": 1e-2,  # ratios leave the region
    "evaluation.samples": 0,
    "monitors.tokens_every": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 2 passes x 2 minibatches, and the policy's weights as they were before each update."""
    weights: list[dict[str, torch.Tensor]] = []
    original = TrainState.update

    def update(self, *args):
        weights.append({name: value.detach().clone() for name, value in self.optimizer.weights.tensors().items()})
        original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainState, "update", update)
        made = train_tiny(tmp_path_factory.mktemp("runs"), **TWICE_TWO)
    return SimpleNamespace(folder=RunFolder.open(made.folder), weights=weights)


def score_plainly(model: Any, prompt_ids: list[int], ids: list[int]) -> Any:
    """(log-probs, entropies) of a single completion from transformers' own forward pass."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1].double()
    logprobs_TV = logits_TV.log_softmax(-1)
    chosen_T = logprobs_TV[torch.arange(len(ids)), torch.tensor(ids)]
    return chosen_T.numpy(), -(logprobs_TV.exp() * logprobs_TV).sum(-1).numpy()


def load_model(folder: RunFolder, weights: dict[str, torch.Tensor]) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder.model)
    assert not model.load_state_dict(weights).missing_keys
    return model


@pytest.mark.parametrize("step", [1, 2])
def test_every_number_is_that_of_the_formula(run, step):
    kept = pq.read_table(run.folder.rollouts_file(step)).to_pylist()
    rows = read_tokens(run.folder.tokens_file(step))
    assert {row["group"] for row in rows} <= set(range(GROUPS))
    assert len(rows) == 4 * GROUP_SIZE
    plan = plan_minibatches([row["group"] for row in kept], 2, 2, 0, step)
    before = [load_model(run.folder, weights) for weights in run.weights[4 * (step - 1) : 4 * step]]
    reference = load_model(run.folder, run.weights[0])
    silenced = set()
    for row in rows:
        whole = kept[row["row"]]
        assert (row["step"], row["group"], row["sample"]) == (step, whole["group"], whole["sample"])
        assert row["token_ids"] == whole["completion_ids"]
        assert re.sub("<eos>|<unk>|<pad>", "", "".join(row["pieces"])) == whole["completion"]
        assert row["mask"] == [True] * len(row["token_ids"])
        assert (row["update"], row["updates"]) == (3 if row["row"] in plan[2] else 4, 4)
        assert row["row"] in plan[row["update"] - 1]

        group = [one["reward"] for one in kept if one["group"] == row["group"]]
        advantage = (whole["reward"] - np.mean(group)) / (np.std(group) + 1e-6)
        np.testing.assert_allclose(row["advantage"], advantage, atol=1e-5)
        assert row["weight"] == pytest.approx(
            [1 / len(plan[row["update"] - 1]) / len(row["token_ids"])] * len(row["token_ids"])
        )
        assert row["sampling_logprob"] == whole["sampling_logprobs"]

        ids = (whole["prompt_ids"], whole["completion_ids"])
        old, _ = score_plainly(before[0], *ids)
        policy, entropy = score_plainly(before[row["update"] - 1], *ids)
        ref, _ = score_plainly(reference, *ids)
        close = {"atol": 2e-5, "rtol": 2e-5}
        np.testing.assert_allclose(row["old_logprob"], old, **close)
        np.testing.assert_allclose(row["policy_logprob"], policy, **close)
        np.testing.assert_allclose(row["ref_logprob"], ref, **close)
        np.testing.assert_allclose(row["entropy"], entropy, **close)
        ratio = np.exp(policy - old)
        np.testing.assert_allclose(row["ratio"], ratio, atol=1e-4, rtol=1e-4)

        # Which side is clipped, and how hard the rest is pushed, by the recorded ratio: at the limit itself rounding decides.
        ratio = np.array(row["ratio"])
        clipped = np.where((ratio > 1 + CLIP) & (advantage > 0), 1, np.where((ratio < 1 - CLIP) & (advantage < 0), -1, 0))
        assert row["clipped"] == clipped.tolist()
        coefficient = np.where(clipped == 0, ratio * advantage, 0.0) + KL_COEF * (np.exp(ref - policy) - 1)
        np.testing.assert_allclose(row["coefficient"], coefficient, atol=5e-5, rtol=5e-5)
        silenced |= set(clipped.tolist())
    assert silenced == {-1, 0, 1}, "the run shows every region"


def test_the_index_is_the_parquet_files(run):
    index = read_index(run.folder.index_file)
    assert len(index) == 2 * GROUPS * GROUP_SIZE
    for step in (1, 2):
        kept = pq.read_table(run.folder.rollouts_file(step)).to_pylist()
        rows = index[index["step"] == step]
        assert rows["row"].tolist() == list(range(len(kept)))
        for name in ("group", "sample", "prompt_index", "reward", "length"):
            assert rows[name].tolist() == [one[name] for one in kept]
        assert rows["advantage"].tolist() == np.float32([one["advantage"] for one in kept]).tolist()
        assert rows["end"].tolist() == [int(one["end"] == "length") for one in kept]
        assert rows["success"].tolist() == [int(one["success"]) for one in kept]
        for place, one in enumerate(kept):
            earlier = [other["completion_ids"] for other in kept[:place] if other["group"] == one["group"]]
            assert bool(rows["flags"][place] & DUPLICATE) == (one["completion_ids"] in earlier)
            assert bool(rows["flags"][place] & WRONG_REWARDED) == (not one["success"] and one["reward"] > 0)


def test_what_is_recorded_changes_no_bit_of_training(run, tmp_path):
    silent = train_tiny(tmp_path, **TWICE_TWO | {"monitors.tokens_every": 0, "monitors.rollouts_every": 0}).folder
    assert not (silent / "rollouts").exists()
    for file in ("model/model.safetensors", "checkpoints/step-2/optimizer.safetensors"):
        assert bits(silent / file) == bits(run.folder.root / file)


def test_events_tell_of_stages_and_of_findings_once(run):
    events = read_rows(run.folder.events_file)
    stages = [(row["stage"], row["step"]) for row in events if row["kind"] == "stage"]
    assert stages == [("cold start", None), ("training", 0), ("finished", 2)]
    assert next(row["text"] for row in events if row["kind"] == "message").startswith("algorithm grpo")
    assert [row["done"] for row in events if row["kind"] == "progress"][-1] == 24
    names = [row["name"] for row in events if row["kind"] == "finding"]
    assert len(names) == len({*names})
    assert [row["time"] for row in events] == sorted(row["time"] for row in events)


# -- what nobody computed ----------------------------------------------------------------------------------------------


def test_a_group_that_nothing_pushes_on_has_weights_and_no_logprobs(tmp_path):
    """Without a KL term groups of equal rewards are not forwarded; they count in the denominators."""
    changes = TWICE_TWO | {
        "algorithm.kl_coef": 0.0,
        "train.num_steps": 1,
        "train.minibatches_per_step": 1,
        "train.passes_per_step": 1,
    }
    changes |= {"rewards": [{"function": "session_tools:always_right"}], "cold_start.num_steps": 0}
    folder = RunFolder.open(train_tiny(tmp_path, **changes).folder)
    rows = read_tokens(folder.tokens_file(1))
    assert len(rows) == 4 * GROUP_SIZE
    for row in rows:
        length = len(row["token_ids"])
        assert (row["update"], row["updates"]) == (1, 1)
        assert row["advantage"] == row["coefficient"] == [0.0] * length
        assert row["clipped"] == [0] * length
        assert row["weight"] == pytest.approx([1 / (GROUPS * GROUP_SIZE) / length] * length)
        assert [row[name] for name in ("policy_logprob", "old_logprob", "ref_logprob", "entropy", "ratio")] == [None] * 5


def make_example(advantages: list[float], rollout: int = 0) -> Example:
    length = len(advantages)
    vectors = (torch.ones(length, dtype=torch.bool), torch.tensor(advantages), torch.full((length,), -1.0))
    return Example(rollout, 0, (5, 6), tuple(range(length)), *vectors)


PUSHED = {"policy_logprob", "entropy", "clipped", "coefficient", "advantage", "weight"}


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        ({"name": "grpo", "kl_coef": 0.0}, PUSHED | {"sampling_logprob", "old_logprob", "ratio"}),
        ({"name": "grpo", "kl_coef": 0.1}, PUSHED | {"sampling_logprob", "old_logprob", "ratio", "ref_logprob"}),
        ({"name": "sft", "kl_coef": 0.0}, PUSHED),
        ({"name": "dpo", "kl_coef": 0.1}, PUSHED | {"ref_logprob"}),
        ({"name": "dpo", "data": "start", "kl_coef": 0.1}, PUSHED | {"sampling_logprob", "ref_logprob"}),
        ({"name": "grpo", "region": "divergence", "kl_coef": 0.0}, PUSHED | {"sampling_logprob", "ratio"}),
    ],
)
def test_columns_are_those_that_the_algorithm_has(words, columns):
    algorithm = AlgorithmConfig(**words)
    example = replace(make_example([0.5, 0.5, 0.5]), loss_mask_T=torch.tensor([True, False, True]))
    if algorithm.kl_coef:
        example = replace(example, ref_logprobs_T=torch.tensor([-1.0, -2.0, -3.0]))
    numbers = list_numbers(example, trace_of(example), algorithm)
    assert set(numbers) == columns <= set(NUMBERS)
    for values_T in numbers.values():
        assert np.isnan(values_T).tolist() == [False, True, False]
    if "ref_logprob" in columns:
        assert numbers["ref_logprob"][[0, 2]].tolist() == [-1.0, -3.0]
    if "old_logprob" in columns:  # on-policy: the policy itself
        assert numbers["old_logprob"][[0, 2]].tolist() == numbers["policy_logprob"][[0, 2]].tolist() == [-0.5, -0.25]
    assert numbers["clipped"][[0, 2]].tolist() == [1, -1]
    assert numbers["weight"][[0, 2]].tolist() == [0.125, 0.125]


def measured(place: int, values: list[float]) -> Measured:
    values_M = torch.tensor(values)
    return Measured(
        tokens=TokenValues((place,), values_M, values_M + 1, values_M + 2, values_M == -0.25, values_M == -0.5),
        coefficient_M=values_M + 3,
    )


def trace_of(example) -> TokenTrace:
    trace = TokenTrace()
    trace.note_update(1, [example], [0.125], [measured(0, [-0.5, -0.25])])
    return trace


def test_the_last_update_of_an_example_counts():
    first, second, third = (make_example([0.0, 0.0], rollout=place) for place in range(3))
    trace = TokenTrace()
    trace.note_update(1, [first, second], [0.5, 0.25], [measured(0, [1.0, 2.0]), measured(1, [3.0, 4.0])])
    trace.note_update(2, [third], [1.0], [measured(0, [5.0, 6.0])])
    trace.note_update(3, [third, first], [0.125, 0.75], [measured(1, [7.0, 8.0])])  # the third was not forwarded this time
    assert trace.newest == {0: 3, 1: 1, 2: 3}
    assert trace.weights == {0: 0.75, 1: 0.25, 2: 0.125}
    assert [one.update for one in trace.traced] == [1, 3], "nothing is held that is not the last"
    tensors, document = trace.encode()
    again = TokenTrace.decode(tensors, json.loads(json.dumps(document)))
    for one in (trace, again):
        assert one.newest == trace.newest
        assert one.weights == trace.weights
        assert one.find(0)["policy_logprob"].tolist() == [7.0, 8.0]
        assert one.find(1)["coefficient"].tolist() == [6.0, 7.0]
        assert one.find(2) is None
        assert one.find(9) is None
    assert TokenTrace.decode(*TokenTrace().encode()) == TokenTrace()


def test_rows_of_a_micro_batch_are_told_apart():
    values = {name: torch.arange(6.0) for name in ("policy_logprob",)}
    traced = Traced(1, (7, 3, 5), (1, 2, 3), values)
    assert [traced.read_row(rollout)["policy_logprob"].tolist() for rollout in (7, 3, 5)] == [[0], [1, 2], [3, 4, 5]]


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_no_training(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(stages, "append_rows", full)
    reports: list[str] = []
    parts: Any = SimpleNamespace(
        recipe=SimpleNamespace(monitors=SimpleNamespace(rollouts_every=1, tokens_every=0)),
        monitors=Monitors([], report=reports.append),
        folder=RunFolder(tmp_path),
    )
    state: Any = SimpleNamespace(batch=SimpleNamespace(rollouts=[], advantages_N=[]))
    stages.record_step(parts, state, 1)
    stages.record_step(parts, state, 2)
    assert len(reports) == 1
    assert "no space left on device" in reports[0]
    assert "Training continues" in reports[0]


def test_lost_token_files_are_reported(run, tmp_path):
    folder = RunFolder.open(shutil.copytree(run.folder.root, tmp_path / "run"))
    folder.tokens_file(1).write_bytes(b"torn")
    assert any("no intact token file for step 1" in loss for loss in find_losses(folder, folder.recipe(), 2))


def test_tree_is_what_this_file_thinks_it_is():
    words = tree()
    assert (words["train"]["prompts_per_step"], words["train"]["group_size"]) == (GROUPS, GROUP_SIZE)
    assert words["algorithm"]["kl_coef"] == KL_COEF
    assert math.isclose(AlgorithmConfig().clip_low, CLIP)
