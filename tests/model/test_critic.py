"""PPO's critic: its loss by hand, its alignment against a reference implementation, invariances, exact continuation, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.algorithms.advantages import gae
from cohort.errors import CheckpointError, InvariantError
from cohort.model.critic import Critic, NoCritic, explained_variance, find_clipped, value_loss
from cohort.model.examples import Example
from cohort.model.packing import Minibatch, pack
from cohort.model.policy import Policy
from cohort.ops.attention import CAUSAL_ATTENTION
from cohort.recipe.schema import CriticConfig, OptimizerConfig
from cohort.training import checkpoint
from conftest import gradients, relative_difference, tiny_policy

SHAPES = ((3, 5), (3, 2), (4, 7), (2, 1), (4, 6), (5, 3))


def make_critic(policy: Policy, *, clip: float = 0.2, head: float = 0.0, dtype=torch.float64, total=100, **optimizer) -> Critic:
    """A critic with learning rate 1e-2; `head` > 0 gives its head random weights of that size, so that values differ."""
    config = CriticConfig(learning_rate=1e-2, clip=clip)
    critic = Critic(policy, config, OptimizerConfig(**({"max_grad_norm": 0.0} | optimizer)), dtype, total)
    if head:
        random = torch.randn(critic.model.head.weight.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        weights = critic.optimizer.weights
        weights.load(weights.tensors() | {"head.weight": head * random})
    return critic


def make_examples(seed: int = 0, dtype=torch.float64, shapes=SHAPES) -> list[Example]:
    generator = torch.Generator().manual_seed(seed)

    def noise(length: int) -> torch.Tensor:
        return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 17, (length,), generator=generator).tolist())

    return [
        Example(
            rollout=place,
            group=place // 2,
            prompt_ids=ids(prompt),
            completion_ids=ids(length),
            loss_mask_T=torch.ones(length, dtype=torch.bool),
            advantages_T=noise(length),
            sampling_logprobs_T=torch.zeros(length, dtype=dtype),
            old_values_T=noise(length),
            returns_T=noise(length),
        )
        for place, (prompt, length) in enumerate(shapes)
    ]


def packed(examples: list[Example], micro_batch_tokens: int = 10_000, aggregation: str = "token_mean") -> Minibatch:
    return pack(
        examples,
        aggregation=aggregation,
        max_completion_tokens=8,
        micro_batch_tokens=micro_batch_tokens,
        skip_zero_advantage=False,
    )


def train(critic: Critic, examples: list[Example], micro_batch_tokens: int = 10_000) -> dict[str, float]:
    for micro in packed(examples, micro_batch_tokens).micro_batches:
        critic.backward(micro)
    return critic.step()


def slow_values(critic: Critic, example: Example) -> torch.Tensor:
    """Every prefix separately through the backbone with transformers' attention; its last state times the head."""
    values = []
    with torch.no_grad():
        for at in range(len(example.completion_ids)):
            prefix = torch.tensor([example.prompt_ids + example.completion_ids[:at]])
            hidden = critic.model.backbone(input_ids=prefix, use_cache=False).last_hidden_state[0, -1]
            values.append(hidden @ critic.model.head.weight[0])
    return torch.stack(values)


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_value_loss_by_hand():
    # All with R = 1, V_old = 0.4, clip 0.2, so values are allowed from 0.2 to 0.6.
    values_M = torch.tensor([0.5, 0.9, -0.3, 2.0, 0.6], dtype=torch.float64, requires_grad=True)
    old_values_M, returns_M = torch.full((5,), 0.4, dtype=torch.float64), torch.ones(5).double()
    loss_M = value_loss(values_M, old_values_M, returns_M, 0.2)
    # inside; moved too far towards R: (0.6 - 1)^2 / 2; too far away: own error; beyond R: own error is larger; at the edge
    assert loss_M.tolist() == pytest.approx([0.125, 0.08, 0.845, 0.5, 0.08], abs=1e-15)
    loss_M.sum().backward()
    assert values_M.grad.tolist() == pytest.approx([-0.5, 0.0, -1.3, 1.0, -0.4], abs=1e-15)
    assert find_clipped(values_M, old_values_M, returns_M, 0.2).tolist() == [False, True, False, False, False]


def test_value_loss_without_clip():
    values_M = torch.tensor([0.5, 0.9, -0.3], dtype=torch.float64, requires_grad=True)
    loss_M = value_loss(values_M, torch.full((3,), 0.4, dtype=torch.float64), torch.ones(3).double(), 0.0)
    assert loss_M.tolist() == pytest.approx([0.125, 0.005, 0.845], abs=1e-15)
    assert not find_clipped(values_M, torch.full((3,), 0.4, dtype=torch.float64), torch.ones(3).double(), 0.0).any()


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_value_loss_gradient_against_finite_differences(clip):
    generator = torch.Generator().manual_seed(3)
    values_M, old_values_M, returns_M = torch.randn(3, 200, generator=generator, dtype=torch.float64)
    # At a kink a finite difference means nothing.
    distances = [(values_M - old_values_M).abs() - 0.2, (values_M - returns_M).abs() - (old_values_M - returns_M).abs()]
    for side in (-0.2, 0.2):
        distances.append((values_M - returns_M).abs() - (old_values_M + side - returns_M).abs())
    smooth_M = torch.stack([distance.abs() for distance in distances]).min(0).values > 1e-3
    assert smooth_M.sum() > 150
    values_M = values_M[smooth_M].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda values: value_loss(values, old_values_M[smooth_M], returns_M[smooth_M], clip), (values_M,), atol=1e-8
    )


def test_explained_variance_by_hand():
    returns_M = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert explained_variance(returns_M, returns_M) == 1.0
    assert explained_variance(torch.full((4,), 0.3), returns_M) == pytest.approx(0.0)
    # Errors -0.5, 0, 0.5, 0: variance 0.125 beside a variance of 0.25.
    assert explained_variance(torch.tensor([0.5, 0.0, 0.5, 1.0]), returns_M) == pytest.approx(0.5)
    assert explained_variance(1.0 - returns_M, returns_M) == pytest.approx(-3.0)
    # 0.1 has no exact float32: a variance from sums of squares would leave a residue here.
    assert explained_variance(torch.randn(1000), torch.full((1000,), 0.1)) is None


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_before_the_first_update_are_exactly_zero():
    """So GAE with gamma and lambda 1 is the plain return: the sum of a token's own and all later rewards."""
    critic, examples = make_critic(tiny_policy()), make_examples()
    generator = torch.Generator().manual_seed(5)
    for example, values_T in zip(examples, critic.values(examples, 30), strict=True):
        length = len(example.completion_ids)
        assert values_T.tolist() == [0.0] * length
        rewards = torch.randint(-4, 5, (length,), generator=generator).tolist()
        advantages_T = gae(torch.tensor(rewards).double(), values_T, 1.0, 1.0)
        assert advantages_T.tolist() == [float(sum(rewards[at:])) for at in range(length)]


def test_values_equal_the_reference_and_use_only_earlier_tokens():
    critic, examples = make_critic(tiny_policy(), head=1.0), make_examples()
    for micro_batch_tokens in (1, 25, 10_000):
        values = critic.values(examples, micro_batch_tokens)
        for example, values_T in zip(examples, values, strict=True):
            assert values_T.dtype == torch.float64
            assert (values_T - slow_values(critic, example)).abs().max() < 1e-12
    ids = examples[2].completion_ids
    changed = replace(examples[2], completion_ids=(*ids[:3], (ids[3] - 2) % 14 + 3, *ids[4:]))
    before, after = critic.values([examples[2], changed], 10_000)
    assert torch.equal(before[:4], after[:4])
    assert (before[4] - after[4]).abs() > 0.1


def test_masked_tokens_have_no_value_and_no_gradient():
    critic, examples = make_critic(tiny_policy(), head=1.0), make_examples()
    mask_T = torch.tensor([True, False, True, True, False, True, True])
    masked = replace(examples[2], loss_mask_T=mask_T)
    full, values_T = critic.values(examples, 10_000)[2], critic.values([masked], 10_000)[0]
    assert torch.equal(values_T, torch.where(mask_T, full, 0.0))
    nothing = replace(examples[2], loss_mask_T=torch.zeros(7, dtype=torch.bool))
    assert critic.values([nothing], 10_000)[0].tolist() == [0.0] * 7
    # Whatever stands in the vectors where the mask is False, the loss does not see it.
    noisy = replace(masked, returns_T=torch.where(mask_T, masked.returns_T, 1e6))
    grads = []
    for example in (masked, noisy):
        critic.backward(packed([example]).micro_batches[0])
        grads.append(gradients(critic))
    assert grads[0].abs().max() > 0
    assert torch.equal(grads[0], grads[1])


def test_a_value_has_the_same_bits_alone_and_in_a_batch():
    critic, examples = make_critic(tiny_policy(dtype=torch.float32), head=1.0, dtype=torch.float32), make_examples()
    together = critic.values(examples, 10_000)
    for example, values_T in zip(examples, together, strict=True):
        assert values_T.dtype == torch.float32
        assert torch.equal(critic.values([example], 10_000)[0], values_T)


def test_runs_on_the_policys_attention_through_its_own_configs():
    policy = tiny_policy()
    critic = make_critic(policy)
    assert policy.attention_configs
    assert critic.attention_configs == [critic.model.backbone.config]
    assert critic.attention_configs[0] is not policy.attention_configs[0]
    seen = []
    module = critic.model.backbone.layers[1].self_attn
    module.register_forward_pre_hook(lambda *_: seen.append(module.config._attn_implementation))
    before = policy.model.config._attn_implementation
    critic.values(make_examples(), 10_000)
    assert seen == [CAUSAL_ATTENTION]
    assert module.config._attn_implementation == policy.model.config._attn_implementation == before
    # A policy that keeps the attention of transformers has a critic that does too.
    policy.attention_configs = []
    assert make_critic(policy).attention_configs == []


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.0, 0.2])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_gradient_does_not_depend_on_micro_batches(clip, aggregation):
    critic, examples = make_critic(tiny_policy(), head=0.3, clip=clip), make_examples()
    by_size = {}
    for micro_batch_tokens in (1, 23, 10_000):
        micro_batches = packed(examples, micro_batch_tokens, aggregation).micro_batches
        for micro in micro_batches:
            critic.backward(micro)
        by_size[len(micro_batches)] = gradients(critic)
    assert sorted(by_size) == [1, 3, 6]
    assert relative_difference(by_size[3], by_size[1]) < 1e-12
    assert relative_difference(by_size[6], by_size[1]) < 1e-12


def test_gradient_equals_finite_differences():
    """The whole path, from a weight of the backbone or the head to the weighted loss, in float64."""
    critic, examples = make_critic(tiny_policy(), head=0.3), make_examples()
    micro = packed(examples).micro_batches[0]

    def loss() -> float:
        values_M = torch.cat([critic.values(examples, 10_000)[index] for index in micro.examples])
        return float((value_loss(values_M, micro.old_values_M, micro.returns_M, 0.2) * micro.loss_weights_M).sum())

    critic.backward(micro)
    assert float(critic._measured[0][1]) == pytest.approx(loss(), rel=1e-13)
    for name, at in (("head.weight", (0, 5)), ("backbone.layers.0.mlp.up_proj.weight", (3, 2)), ("backbone.norm.weight", (4,))):
        parameter = dict(critic.model.named_parameters())[name]
        with torch.no_grad():
            start = float(parameter[at])
            parameter[at] = start + 1e-6
            above = loss()
            parameter[at] = start - 1e-6
            below = loss()
            parameter[at] = start
        assert float(parameter.grad[at]) == pytest.approx((above - below) / 2e-6, rel=1e-6), name


def test_training_does_not_change_the_policy():
    policy = tiny_policy()
    before = [parameter.detach().clone() for parameter in policy.model.parameters()]
    critic = make_critic(policy, head=1.0)
    start = [parameter.detach().clone() for parameter in critic.model.parameters()]
    train(critic, make_examples())
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    assert all(torch.equal(*pair) for pair in zip(before, policy.model.parameters(), strict=True))
    # While of the critic everything moves but the embeddings of tokens that did not occur.
    assert all((was != now).any() for was, now in zip(start, critic.model.parameters(), strict=True))


# -- updates -----------------------------------------------------------------------------------------------------------


def test_own_learning_rate_on_the_shared_schedule():
    critic = make_critic(tiny_policy(), learning_rate=1e-6, warmup_steps=4)
    train(critic, make_examples())
    # AdamW's first update moves every weight that has a gradient by the learning rate: 1e-2 / 4.
    assert critic.model.head.weight.abs().flatten().tolist() == pytest.approx([2.5e-3] * 16, rel=1e-4)


def test_metrics_by_hand():
    critic = make_critic(tiny_policy())
    example = replace(
        make_examples()[0],
        old_values_T=torch.tensor([0.0, 0.5, -0.5, 0.0, 0.0]).double(),
        returns_T=torch.tensor([1.0, -1.0, 1.0, 2.0, 0.0]).double(),
    )
    row = train(critic, [example], micro_batch_tokens=1)
    # V is 0. Where V_old is 0.5 and -0.5 the value is outside the clip, both times on the side of its return: the bounds
    # 0.3 and -0.3 count, (0.3 + 1)^2 and (-0.3 - 1)^2.
    assert row["critic/loss"] == pytest.approx((1 + 1.69 + 1.69 + 4 + 0) / 2 / 5)
    assert row["critic/clipped_share"] == pytest.approx(0.4)
    assert row["critic/value_mean"] == 0.0
    assert row["critic/explained_variance"] == 0.0
    assert row["critic/skipped"] == 0.0
    assert row["critic/grad_norm"] > 0
    equal = replace(example, returns_T=torch.ones(5).double())
    assert "critic/explained_variance" not in train(critic, [equal])
    # Nothing is left over for a minibatch in which everything was masked, and its update is none.
    weights = critic.model.head.weight.detach().clone()
    assert critic.step() == {"critic/loss": 0.0, "critic/grad_norm": 0.0, "critic/skipped": 0.0}
    assert torch.equal(weights, critic.model.head.weight)


def test_non_finite_returns_change_nothing_and_stop_the_run_after_three():
    critic = make_critic(tiny_policy())
    broken = replace(make_examples()[0], returns_T=torch.full((5,), torch.inf).double())
    start = [parameter.detach().clone() for parameter in critic.model.parameters()]
    for _ in range(3):
        critic.check_finite()
        assert train(critic, [broken])["critic/skipped"] == 1.0
    assert all(torch.equal(*pair) for pair in zip(start, critic.model.parameters(), strict=True))
    with pytest.raises(InvariantError, match=r"critic\.learning_rate"):
        critic.check_finite()


def test_examples_without_returns_are_refused():
    example = replace(make_examples()[0], returns_T=None)
    with pytest.raises(InvariantError, match="returns_T"):
        make_critic(tiny_policy()).backward(packed([example]).micro_batches[0])


# -- exact continuation ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain_bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resuming_from_a_checkpoint_is_bit_equal(dtype, tmp_path):
    def fresh() -> Critic:
        settings = {"schedule": "cosine", "warmup_steps": 2, "max_grad_norm": 1.0}
        return make_critic(tiny_policy(dtype=torch.float32), dtype=dtype, total=6, **settings)

    def go_on(critic: Critic, steps: range) -> list[dict[str, float]]:
        return [train(critic, make_examples(step, torch.float32), 30) for step in steps]

    whole = fresh()
    expected = go_on(whole, range(6))
    first = fresh()
    rows = go_on(first, range(3))
    tensors, document = first.state()
    folder = checkpoint.save(tmp_path, "step-3", checkpoint.Snapshot({"critic": tensors}, {"critic": document}))
    second, snapshot = fresh(), checkpoint.load(folder)
    second.load_state(snapshot.tensors["critic"], snapshot.document["critic"])
    assert rows + go_on(second, range(3, 6)) == expected
    assert second.model.head.weight.dtype == dtype
    for (tensors, document), (other, other_document) in [(whole.state(), second.state())]:
        assert document == other_document == {"updates": 6, "skipped_in_a_row": 0}
        assert tensors.keys() == other.keys()
        assert all(torch.equal(tensors[name], other[name]) for name in tensors)
    assert all(torch.equal(*pair) for pair in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_state_of_another_model_is_refused():
    critic = make_critic(tiny_policy())
    tensors, document = critic.state()
    del tensors["weights/head.weight"]
    with pytest.raises(CheckpointError, match="critic"):
        critic.load_state(tensors, document)


# -- learning ----------------------------------------------------------------------------------------------------------


def test_learns_what_the_prompt_says_about_the_return():
    """Rows whose prompt begins with a high character get high returns: the value should show it before token 1."""
    critic = make_critic(tiny_policy(dtype=torch.float32, spread=1.0), dtype=torch.float32, max_grad_norm=1.0)

    def rows(seed: int) -> list[Example]:
        labelled = []
        for example in make_examples(seed, torch.float32, shapes=((3, 4),) * 32):
            length = len(example.completion_ids)
            good = float(example.prompt_ids[0] >= 10)
            labelled.append(replace(example, returns_T=torch.full((length,), good)))
        values = critic.values(labelled, 10_000)
        return [replace(example, old_values_T=values_T) for example, values_T in zip(labelled, values, strict=True)]

    history = [train(critic, rows(seed))["critic/explained_variance"] for seed in range(60)]
    assert history[0] == 0.0
    assert sum(history[-5:]) / 5 > 0.9


def test_no_critic_does_nothing():
    critic = NoCritic()
    critic.backward(packed(make_examples()).micro_batches[0])
    critic.check_finite()
    assert critic.step() == {}
    with pytest.raises(InvariantError, match="gae"):
        critic.values(make_examples(), 10_000)
