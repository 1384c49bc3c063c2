"""The learned reward: its scores are the model's own, its gradient has no micro-batches, its measures are exact."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.errors import CheckpointError, Interrupted, InvariantError, ModelError, RewardError, RunError
from cohort.model.optim import Optimizer
from cohort.model.policy import Policy
from cohort.recipe.sections import RewardModelConfig
from cohort.rewards.contract import Scored
from cohort.training.reward_data import Labelled, Replay, is_held_back, label, list_groups, list_pairs
from cohort.training.reward_model import (
    LearnedScorer,
    RewardModel,
    compute_auc,
    compute_fit_losses,
    fill,
    list_fit_units,
    measure_ranking,
)
from cohort.types import Completion, Outcome, Prompt, Rollout
from conftest import gradients, make_norms_float64, relative_difference, tiny_policy

EOS = 1


def settings(**changes: Any) -> RewardModelConfig:
    return RewardModelConfig(**{"iterations": 1, "learning_rate": 3e-3, "batch_size": 16, **changes})


def make(dtype: torch.dtype = torch.float32, seed: int = 0, policy: Policy | None = None, **changes: Any) -> RewardModel:
    reward_model = RewardModel.from_policy(policy or tiny_policy(dtype=dtype), settings(**changes), dtype, seed)
    if dtype is torch.float64:
        make_norms_float64(reward_model.model)
    return reward_model


def ragged(count: int = 12, seed: int = 0) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    generator = torch.Generator().manual_seed(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 17, (length,), generator=generator).tolist())

    return [(ids(2 + row % 3), (*ids(row % 5), EOS)) for row in range(count)]


def labelled(groups: int = 12, size: int = 4, iteration: int = 1, seed: int = 0) -> list[Labelled]:
    """Ragged completions; right are those that end with a large digit: a rule that a fit can find."""
    generator = torch.Generator().manual_seed(seed)
    data = []
    for group in range(groups):
        prompt_ids = tuple(torch.randint(5, 15, (2 + group % 2,), generator=generator).tolist())
        for member in range(size):
            *rest, last = torch.randint(5, 15, (1 + member % 3,), generator=generator).tolist()
            data.append(Labelled(group, prompt_ids, (*rest, last, EOS), group, right=last > 9, iteration=iteration))
    return data


# ---------------------------------------------------------------------------------------------------------------------
# Building and scoring
# ---------------------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_models_own_forward_on_single_rows():
    reward_model, rows = make(), ragged()
    scores = reward_model.score(rows, micro_batch_tokens=24)
    with torch.no_grad():
        own = [float(reward_model.model(input_ids=torch.tensor([prompt + rest])).logits) for prompt, rest in rows]
    assert max(abs(ours - theirs) for ours, theirs in zip(scores, own, strict=True)) < 1e-6
    assert len({round(score, 4) for score in scores}) == len(rows)  # they differ, so a mix-up of rows would show


def test_scores_do_not_depend_on_the_batch():
    reward_model, rows = make(), ragged()
    together = reward_model.score(rows, micro_batch_tokens=10_000)
    for budget in (1, 20):
        assert reward_model.score(rows, budget) == together
    assert reward_model.score(rows[::-1], 30) == together[::-1]


def test_a_score_is_read_at_the_end_token_also_where_the_end_is_the_padding():
    policy = tiny_policy(dtype=torch.float32)
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    policy.model.config.pad_token_id = EOS
    reward_model = make(policy=policy)
    same_but_padding = make()
    rows = ragged()
    assert reward_model.score(rows, 40) == same_but_padding.score(rows, 40)
    # What is saved pools by a token that ends no completion, so that others read the same scores from it.
    assert reward_model.model.config.pad_token_id == policy.tokenizer.unk_token_id == reward_model.tokenizer.pad_token_id
    assert policy.tokenizer.pad_token_id == policy.model.config.pad_token_id == EOS


def test_the_backbone_is_the_policys_and_the_seed_alone_decides_the_head():
    policy = tiny_policy(dtype=torch.float32)
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (make(policy=policy, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), undisturbed)
    backbone = policy.model.base_model.state_dict()
    assert backbone.keys() == first.model.base_model.state_dict().keys()
    assert all(torch.equal(value, first.model.base_model.state_dict()[name]) for name, value in backbone.items())
    assert torch.equal(first.model.score.weight, again.model.score.weight)
    assert not torch.equal(first.model.score.weight, other.model.score.weight)
    assert max(map(abs, first.score(ragged(), 100))) < 1.0
    before = policy.model.model.embed_tokens.weight.clone()
    with torch.no_grad():
        first.model.model.embed_tokens.weight.add_(1.0)
    assert torch.equal(policy.model.model.embed_tokens.weight, before)


def test_in_bfloat16_the_masters_keep_the_float32_weights(plain_bfloat16):
    policy = tiny_policy(dtype=torch.float32)
    exact = make(policy=policy)
    rounded = RewardModel.from_policy(policy, settings(), torch.bfloat16, 0)
    assert rounded.model.dtype == torch.bfloat16
    assert all(torch.equal(value, exact.weights.tensors()[name]) for name, value in rounded.weights.tensors().items())
    scores = zip(rounded.score(ragged(), 100), exact.score(ragged(), 100), strict=True)
    assert 0 < max(abs(ours - theirs) for ours, theirs in scores) < 0.1


def test_an_architecture_without_a_classifier_is_refused_by_name():
    policy = tiny_policy(dtype=torch.float32)
    from transformers import VitsConfig

    class Odd:
        config, base_model, device, dtype = VitsConfig(), policy.model.base_model, policy.model.device, torch.float32

    stranger = copy.copy(policy)
    stranger.model = Odd()
    with pytest.raises(ModelError, match=r"no sequence-classification class for Odd \(model type 'vits'\)"):
        RewardModel.from_policy(stranger, settings(), torch.float32, 0)


def test_weights_that_do_not_fit_are_refused():
    policy = tiny_policy(dtype=torch.float32)
    policy.model.model.layers[0].self_attn.q_proj.bias = torch.nn.Parameter(torch.zeros(16))
    with pytest.raises(ModelError, match=r"LlamaForCausalLM do not fit LlamaForSequenceClassification.*q_proj.bias"):
        RewardModel.from_policy(policy, settings(), torch.float32, 0)


def test_a_model_that_looks_ahead_is_refused():
    from transformers import BertConfig, BertForSequenceClassification

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 17}
    model = BertForSequenceClassification(BertConfig(**shape, num_labels=1))
    with pytest.raises(ModelError, match="BertForSequenceClassification: not a backbone with a linear scalar head `score`"):
        RewardModel(model, None, settings(), torch.float32)
    reward_model = make()
    for layer in reward_model.model.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(
        ModelError, match="LlamaForSequenceClassification: the values of its head at the last token are not its"
    ):
        RewardModel(reward_model.model, None, settings(), torch.float32)


# ---------------------------------------------------------------------------------------------------------------------
# Fitting
# ---------------------------------------------------------------------------------------------------------------------


def test_losses_by_hand():
    items = [Labelled(0, (5,), (6,), group, right, 1) for group, right in [(0, True), (0, False), (1, False), (0, True)]]
    values = torch.tensor([2.0, 0.5, 9.0, -1.0], dtype=torch.float64)
    pairs = compute_fit_losses(values, items, "pairwise")
    assert pairs.tolist() == pytest.approx([math.log1p(math.exp(-1.5)), math.log1p(math.exp(1.5))], abs=1e-12)
    single = [
        -math.log(1 / (1 + math.exp(-value if item.right else value)))
        for value, item in zip([2.0, 0.5, 9.0, -1.0], items, strict=True)
    ]
    assert compute_fit_losses(values, items, "pointwise").tolist() == pytest.approx(single, abs=1e-12)


@pytest.mark.parametrize("loss", ["pairwise", "pointwise"])
def test_the_micro_batch_size_does_not_change_the_gradient(loss):
    reward_model, data = make(torch.float64, loss=loss), labelled(size=5)
    whole = reward_model.accumulate(data, 100_000)
    reference = gradients(reward_model)
    # A slow twin: all completions one by one, and the loss written out over them.
    values = [reward_model.values([(item.prompt_ids, item.completion_ids)])[0] for item in data]
    if loss == "pairwise":
        terms = [
            -torch.nn.functional.logsigmoid(values[a] - values[b])
            for a, b in itertools.permutations(range(len(data)), 2)
            if data[a].group == data[b].group and data[a].right and not data[b].right
        ]
    else:
        terms = [-torch.nn.functional.logsigmoid(v if item.right else -v) for v, item in zip(values, data, strict=True)]
    slow = torch.stack(terms).mean()
    slow.backward()
    assert whole == pytest.approx(float(slow.detach()), abs=1e-12)
    assert relative_difference(reference, gradients(reward_model)) < 1e-12
    for budget in (1, 40):
        assert reward_model.accumulate(data, budget) == pytest.approx(whole, abs=1e-12)
        assert relative_difference(gradients(reward_model), reference) < 1e-12


def test_activation_checkpointing_is_that_of_the_policy():
    """Every layer once more in the backward, and the same gradient."""
    data, found, counts = labelled(groups=4), [], []
    for checkpointing in (False, True):
        policy = tiny_policy()
        policy.prepare("modules", checkpointing)
        reward_model, calls = make(policy=policy), [0]
        for layer in reward_model.model.base_model.layers:
            layer.mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.__setitem__(0, calls[0] + 1))
        reward_model.accumulate(data, 100_000)
        found.append(gradients(reward_model))
        counts.append(calls[0])
    assert counts[1] == 2 * counts[0]
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("bits", [32, 8])
def test_the_moments_of_a_fit_have_the_bits_of_the_recipe(monkeypatch, bits):
    """8-bit moments exist for models that do not fit otherwise, and the reward model is as large as the policy."""
    kinds = set()
    original = Optimizer.clip_and_step
    monkeypatch.setattr("cohort.model.optim.SMALLEST", 256)
    monkeypatch.setattr(
        Optimizer, "clip_and_step", lambda self: kinds.update(type(part).__name__ for part in self.moments) or original(self)
    )
    policy, data = tiny_policy(), labelled()
    reward_model = RewardModel.from_policy(policy, settings(), torch.float32, 0, state_bits=bits)
    reward_model.fit(data, iteration=1, seed=0, micro_batch_tokens=10_000)
    assert kinds == ({"Adam32", "Adam8"} if bits == 8 else {"Adam32"})


def test_micro_batches_are_really_cut(monkeypatch):
    reward_model, data, sizes = make(loss="pairwise"), labelled(size=4), []
    values = reward_model.values
    monkeypatch.setattr(reward_model, "values", lambda rows: sizes.append(len(rows)) or values(rows))
    reward_model.accumulate(data, 1)
    assert sizes == [4] * 12
    reward_model.settings = settings(loss="pointwise")
    sizes.clear()
    reward_model.accumulate(data, 1)
    assert sizes == [1] * 48


@pytest.mark.parametrize("loss", ["pairwise", "pointwise"])
def test_a_fit_learns_a_rule_that_holds_for_prompts_it_has_not_seen(loss):
    data = labelled(groups=80)
    reward_model = make(
        policy=tiny_policy(dtype=torch.float32, spread=1.0), loss=loss, held_back=0.3, epochs=6, learning_rate=2e-2
    )
    metrics = reward_model.fit(data, iteration=1, seed=0, micro_batch_tokens=4096)
    assert metrics["reward_model/accuracy"] > 0.9 > 0.6 > metrics["reward_model/accuracy_before"]
    assert metrics["reward_model/auc"] > 0.9
    assert metrics["reward_model/loss"] < 0.3
    back = [item for item in data if is_held_back(item, 0.3, 0)]
    scores = reward_model.score([(item.prompt_ids, item.completion_ids) for item in back], 4096)
    pairs = list_pairs([item.right for item in back], list_groups(back))
    assert metrics["reward_model/held_back_pairs"] == len(pairs) > 20
    assert metrics["reward_model/accuracy"] == sum(scores[a] > scores[b] for a, b in pairs) / len(pairs)


def test_prompts_held_back_never_train():
    data = labelled(groups=60)
    back = {item.prompt_ids for item in data if is_held_back(item, 0.3, 0)}
    assert 0 < len(back) < len({item.prompt_ids for item in data})
    flipped = [replace(item, right=not item.right) if item.prompt_ids in back else item for item in data]
    first, second = make(held_back=0.3), make(held_back=0.3)
    straight = first.fit(data, iteration=1, seed=0, micro_batch_tokens=4096)
    turned = second.fit(flipped, iteration=1, seed=0, micro_batch_tokens=4096)
    assert all(torch.equal(value, second.weights.tensors()[name]) for name, value in first.weights.tensors().items())
    assert turned["reward_model/accuracy"] == pytest.approx(1 - straight["reward_model/accuracy"])
    assert turned["reward_model/auc"] == pytest.approx(1 - straight["reward_model/auc"])
    # Whatever the iteration: what was held back once is not trained on when it is replayed.
    assert all(is_held_back(replace(item, iteration=7, group=99), 0.3, 0) for item in data if item.prompt_ids in back)
    assert {is_held_back(item, 0.3, seed) for item in data[:1] for seed in range(20)} == {True, False}


def test_a_fit_counts_what_it_trained_on_and_is_the_same_when_repeated():
    data = [*labelled(groups=20, iteration=2), *labelled(groups=6, iteration=1, seed=1)]
    first, second, other = make(), make(), make()
    metrics = first.fit(data, iteration=2, seed=0, micro_batch_tokens=4096)
    assert second.fit(data, iteration=2, seed=0, micro_batch_tokens=4096) == metrics
    assert all(torch.equal(value, second.weights.tensors()[name]) for name, value in first.weights.tensors().items())
    other.fit(data, iteration=3, seed=0, micro_batch_tokens=4096)
    assert not torch.equal(other.model.score.weight, first.model.score.weight)  # another order of the batches
    train = [item for item in data if not is_held_back(item, 0.1, 0)]
    mixed = [[train[place] for place in group] for group in list_groups(train)]
    mixed = [group for group in mixed if 0 < sum(item.right for item in group) < len(group)]
    assert metrics["reward_model/completions"] == sum(map(len, mixed))
    assert metrics["reward_model/pairs"] == sum(
        sum(item.right for item in group) * sum(not item.right for item in group) for group in mixed
    )
    assert metrics["reward_model/replayed"] == 24


def test_groups_of_two_iterations_are_never_compared():
    items = [Labelled(0, (5,), (6,), 0, right, iteration) for right, iteration in [(True, 1), (False, 2)]]
    assert list_pairs([True, False], list_groups(items)) == []


def test_an_interrupted_fit_leaves_the_weights_of_before(monkeypatch):
    reward_model, data = make(), labelled()
    before = {name: value.clone() for name, value in reward_model.weights.tensors().items()}

    accumulate = reward_model.accumulate

    def stop_later(*arguments: Any) -> float:
        if torch.equal(reward_model.model.score.weight, before["score.weight"]):
            return accumulate(*arguments)
        raise Interrupted("SIGTERM")

    monkeypatch.setattr(reward_model, "accumulate", stop_later)
    with pytest.raises(Interrupted):
        reward_model.fit(data, iteration=1, seed=0, micro_batch_tokens=4096)
    assert all(torch.equal(value, before[name]) for name, value in reward_model.weights.tensors().items())
    assert all(parameter.grad is None for parameter in reward_model.model.parameters())


def test_a_fit_that_diverges_stops_and_names_the_setting():
    reward_model = make()
    with torch.no_grad():
        reward_model.model.score.weight.fill_(math.inf)
    with pytest.raises(InvariantError, match=r"reward_model.learning_rate"):
        reward_model.fit(labelled(), iteration=1, seed=0, micro_batch_tokens=4096)


def test_labels_that_teach_nothing_are_refused_with_their_counts():
    right = [replace(item, right=True) for item in labelled(groups=3)]
    wrong = [replace(item, right=False, group=item.group + 3) for item in labelled(groups=2)]
    with pytest.raises(RunError, match=r"5 groups: 3 all right, 2 all wrong.*reward_model.prompts"):
        list_fit_units([*right, *wrong], "pairwise")
    assert len(list_fit_units([*right, *wrong], "pointwise")) == 20
    with pytest.raises(RunError, match=r"same label \(12 right, 0 wrong\)"):
        list_fit_units(right, "pointwise")


def test_batches_hold_whole_units_up_to_their_size():
    units = [[0, 1, 2], [3, 4], [5], [6, 7, 8, 9, 10], [11]]
    assert fill(units, [1, 0, 3, 4, 2], 5) == [[3, 4, 0, 1, 2], [6, 7, 8, 9, 10], [11, 5]]
    assert fill(units, [3, 4], 2) == [[6, 7, 8, 9, 10], [11]]


def test_measures_by_hand():
    scores, rights = [0.3, 0.3, 0.9, -1.0, 0.3], [True, False, True, False, False]
    # Pairs of the two right ones (0.3, 0.9) with the three wrong ones (0.3, -1.0, 0.3): 0.5 + 1 + 0.5, then 3.
    assert compute_auc(scores, rights) == pytest.approx(5 / 6)
    assert measure_ranking(scores, [(0, 1), (0, 3), (2, 4)]) == pytest.approx(2.5 / 3)
    assert compute_auc(scores, [True] * 5) is None
    generator = torch.Generator().manual_seed(0)
    many = torch.randint(0, 20, (200,), generator=generator).double().tolist()
    labels = (torch.rand(200, generator=generator) < 0.3).tolist()
    slow = [
        float(a > b) + 0.5 * (a == b)
        for a, x in zip(many, labels, strict=True)
        for b, y in zip(many, labels, strict=True)
        if x and not y
    ]
    assert compute_auc(many, labels) == pytest.approx(sum(slow) / len(slow), abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Saving
# ---------------------------------------------------------------------------------------------------------------------


def test_its_weights_survive_a_checkpoint_and_the_next_fit_goes_on_alike(tmp_path):
    data = labelled()
    first, second = make(), make(seed=9)
    first.fit(data, iteration=1, seed=0, micro_batch_tokens=4096)
    save_file(first.weights.tensors(), tmp_path / "weights.safetensors")
    second.weights.load(load_file(tmp_path / "weights.safetensors"))
    assert second.score(ragged(), 64) == first.score(ragged(), 64)
    metrics, again = (each.fit(data, iteration=2, seed=0, micro_batch_tokens=4096) for each in (first, second))
    assert metrics == again
    assert all(torch.equal(value, second.weights.tensors()[name]) for name, value in first.weights.tensors().items())


def test_a_saved_model_gives_others_the_same_scores(tmp_path: Path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    policy = tiny_policy(dtype=torch.float32)
    reward_model = make(policy=policy)
    reward_model.fit(labelled(), iteration=1, seed=0, micro_batch_tokens=4096)
    reward_model.save(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    rows = ragged()
    scores = reward_model.score(rows, 64)
    padded = tokenizer.pad(
        {"input_ids": [[*prompt, *rest] for prompt, rest in rows]}, padding_side="right", return_tensors="pt"
    )
    with torch.no_grad():
        assert torch.allclose(model(**padded).logits[:, 0], torch.tensor(scores), atol=1e-6, rtol=0)
    again = RewardModel.from_pretrained(str(tmp_path), policy, settings(), torch.float32)
    assert again.score(rows, 64) == pytest.approx(scores, abs=1e-6)
    assert again.weights.tensors().keys() == reward_model.weights.tensors().keys()


def test_what_is_no_reward_model_of_this_policy_is_refused(tmp_path: Path):
    from transformers import AutoModelForSequenceClassification

    policy = tiny_policy(dtype=torch.float32)
    for written in (AutoModelForSequenceClassification.from_config(policy.model.config), policy.tokenizer):
        written.save_pretrained(tmp_path / "two")
    with pytest.raises(ModelError, match=r"has 2 labels; a reward model has exactly one"):
        RewardModel.from_pretrained(str(tmp_path / "two"), policy, settings(), torch.float32)
    policy.save(tmp_path / "headless")
    with pytest.raises(ModelError, match=r"lack score.weight, which would be initialised randomly"):
        RewardModel.from_pretrained(str(tmp_path / "headless"), policy, settings(), torch.float32)
    with pytest.raises(ModelError, match=r"reward_model\.source: .*nothing: there is no such folder"):
        RewardModel.from_pretrained(str(tmp_path / "nothing"), policy, settings(), torch.float32)
    reward_model = make(policy=policy)
    reward_model.tokenizer.add_tokens(["~"])
    reward_model.save(tmp_path / "foreign")
    with pytest.raises(ModelError, match="a different vocabulary than the policy"):
        RewardModel.from_pretrained(str(tmp_path / "foreign"), policy, settings(), torch.float32)


# ---------------------------------------------------------------------------------------------------------------------
# Labelled data and replay
# ---------------------------------------------------------------------------------------------------------------------


def rollout(group: int, success: bool | None) -> Rollout:
    prompt = Prompt(40 + group, "1+1=", {}, (5, 6, group))
    return Rollout(prompt, group, 0, Completion((7, EOS), (0.0, 0.0), "stop", "7"), Outcome({}, 1.0, success), 3)


def test_rollouts_with_a_verdict_are_labelled():
    assert label([rollout(0, True), rollout(1, None), rollout(2, False)], 4) == [
        Labelled(40, (5, 6, 0), (7, EOS), 0, True, 4),
        Labelled(42, (5, 6, 2), (7, EOS), 2, False, 4),
    ]


def test_replay_adds_whole_older_groups_up_to_the_share():
    replay = Replay()
    first, second, third = (labelled(groups=10, size=4, iteration=number, seed=number) for number in (1, 2, 3))
    assert replay.mix(first, 0.1, seed=0, iteration=1) == first  # nothing is older yet
    mixed = replay.mix(second, 0.1, seed=0, iteration=2)
    assert mixed[:40] == second
    assert mixed[40:] == [item for item in first if item.group == mixed[40].group]  # 4 wanted: one group of four, whole
    # 0.11 x 40 rounds to 4, 0.12 x 40 to 5: rounded up to whole groups.
    third_mixes = {share: replay.mix(third, share, seed=0, iteration=3)[40:] for share in (0.0, 0.11, 0.12, 1.0)}
    assert [len(items) for items in third_mixes.values()] == [0, 4, 8, 40]
    assert {item.iteration for item in third_mixes[1.0]} == {1, 2}
    older = {
        key: [item for item in [*first, *second] if item.group_key == key] for key in {i.group_key for i in third_mixes[1.0]}
    }
    assert all([i for i in third_mixes[1.0] if i.group_key == key] == members for key, members in older.items())


def test_the_choice_is_keyed_and_a_repeated_iteration_comes_out_the_same():
    older, fresh = labelled(groups=30, iteration=1), labelled(groups=30, iteration=2, seed=2)
    replay = Replay()
    replay.mix(older, 0.1, seed=0, iteration=1)
    first = replay.mix(fresh, 0.1, seed=0, iteration=2)
    assert replay.mix(fresh, 0.1, seed=0, iteration=2) == first
    assert replay.mix(fresh, 0.1, seed=1, iteration=2) != first
    assert len(replay.items) == len(older) + len(fresh)
    with pytest.raises(InvariantError, match="120 of 120 completions to mix were not labelled in iteration 3"):
        replay.mix(fresh, 0.1, seed=0, iteration=3)


def test_replay_survives_a_checkpoint(tmp_path):
    replay, restored, empty = Replay(), Replay(), Replay()
    replay.mix(labelled(iteration=1), 0.1, seed=0, iteration=1)
    replay.mix(labelled(iteration=2, seed=2), 0.5, seed=0, iteration=2)
    tensors, document = replay.state()
    save_file(tensors, tmp_path / "replay.safetensors")
    restored.load_state(load_file(tmp_path / "replay.safetensors"), document)
    assert restored.items == replay.items
    save_file(empty.state()[0], tmp_path / "empty.safetensors")
    restored.load_state(load_file(tmp_path / "empty.safetensors"), empty.state()[1])
    assert restored.items == []
    with pytest.raises(CheckpointError, match=r"\[96\] completions, but 5 were saved"):
        restored.load_state(tensors, {"completions": 5})
    with pytest.raises(CheckpointError, match="token ids where its lengths add up to"):
        restored.load_state({**tensors, "prompt_ids": tensors["prompt_ids"][1:]}, document)


# ---------------------------------------------------------------------------------------------------------------------
# The reward of training
# ---------------------------------------------------------------------------------------------------------------------


class FixedVerifier:
    def __init__(self, outcomes: list[Outcome]):
        self.outcomes = outcomes

    def score(self, prompts: Any, completions: Any, *, step: int, num_steps: int) -> Scored:
        assert (step, num_steps) == (3, 60)
        metrics = {"reward/mean": 9.0, "reward/std": 9.0, "reward/success": 0.5, "reward/unscored": 1.0, "reward/faults": 1.0}
        return Scored(self.outcomes, {**metrics, "reward/math_answer/mean": 0.5})


def learned(successes: list[bool | None], **fields: Any) -> tuple[LearnedScorer, list[Prompt], list[Completion]]:
    rows = ragged(len(successes))
    outcomes = [
        Outcome({"math_answer": 1.0}, None if success is None else 1.0, success, answer=str(place), steps=((1, 1.0),), **fields)
        for place, success in enumerate(successes)
    ]
    prompts = [Prompt(place, "?", {}, prompt_ids) for place, (prompt_ids, _) in enumerate(rows)]
    completions = [Completion(ids, (0.0,) * len(ids), "stop", "") for _, ids in rows]
    return LearnedScorer(FixedVerifier(outcomes), make(), micro_batch_tokens=64), prompts, completions


def test_the_reward_is_the_models_and_the_verdict_stays_the_verifiers():
    successes = [True, False, None, True, False, False]
    scorer, prompts, completions = learned(successes, faults=("math_answer:timeout",), extras={"seen": 1})
    scored = scorer.score(prompts, completions, step=3, num_steps=60)
    values = scorer.reward_model.score([(p.token_ids, c.token_ids) for p, c in zip(prompts, completions, strict=True)], 64)
    assert scored.outcomes == [
        Outcome({"math_answer": 1.0, "reward_model": value}, value, success, str(place), ("math_answer:timeout",), {"seen": 1})
        for place, (value, success) in enumerate(zip(values, successes, strict=True))
    ]
    mean = sum(values) / 6
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / 6)
    wins = [values[a] > values[b] for a in (0, 3) for b in (1, 4, 5)]
    expected = {"reward/mean": mean, "reward/std": std, "reward/reward_model/mean": mean, "reward/reward_model/std": std}
    expected |= {"reward/verifier_agreement": sum(wins) / 6, "reward/success": 0.5, "reward/math_answer/mean": 0.5}
    assert scored.metrics == pytest.approx({**expected, "reward/unscored": 0.0, "reward/faults": 1.0}, abs=1e-12)


def test_agreement_needs_both_verdicts_and_a_name_is_taken_once():
    scorer, prompts, completions = learned([True, True, None])
    assert "reward/verifier_agreement" not in scorer.score(prompts, completions, step=3, num_steps=60).metrics
    scorer.verifier.outcomes[0] = Outcome({"reward_model": 1.0}, 1.0, True)
    with pytest.raises(RewardError, match="a part is named 'reward_model'"):
        scorer.score(prompts, completions, step=3, num_steps=60)


def test_a_score_that_is_not_finite_is_a_fault(monkeypatch):
    scorer, prompts, completions = learned([True, False, True, False])
    monkeypatch.setattr(scorer.reward_model, "score", lambda rows, budget: [0.5, math.nan, 1.5, 1.0])
    with pytest.raises(RewardError, match="not finite for 1 of 4 completions of step 3"):
        scorer.score(prompts, completions, step=3, num_steps=60)
    scored = replace(scorer, max_fault_share=0.25).score(prompts, completions, step=3, num_steps=60)
    assert scored.outcomes[1].reward is None
    assert scored.outcomes[1].parts == {"math_answer": 1.0, "reward_model": None}
    assert scored.outcomes[1].faults == ("reward_model:nan",)
    assert scored.metrics["reward/mean"] == 1.0
    assert (scored.metrics["reward/unscored"], scored.metrics["reward/faults"]) == (1.0, 2.0)
    assert scored.metrics["reward/verifier_agreement"] == 0.5  # 0.5 and 1.5 against 1.0


def test_a_pointwise_score_is_paid_as_the_probability_of_being_right():
    """Pointwise rewards are bounded; scores that are not finite stay faults. Pairwise scores are the rewards."""
    pointwise, pairwise = make(loss="pointwise"), make(loss="pairwise")
    assert pointwise.rewards([0.0, math.log(3.0), -math.log(3.0)]) == pytest.approx([0.5, 0.75, 0.25], abs=1e-15)
    assert pointwise.rewards([40.0])[0] - pointwise.rewards([30.0])[0] < 1e-12
    assert [math.isfinite(reward) for reward in pointwise.rewards([math.inf, -math.inf, math.nan])] == [False] * 3
    assert pairwise.rewards([-3.5, 40.0]) == [-3.5, 40.0]
