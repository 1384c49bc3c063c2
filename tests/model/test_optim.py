"""AdamW on float32 masters: schedule, parity with torch, bfloat16 parameters, non-finite gradients, exact continuation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from cohort.errors import InvariantError
from cohort.model.optim import MasterWeights, Optimizer, cast_parameters, find_learning_rate
from cohort.recipe.schema import OptimizerConfig
from conftest import tiny_policy


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make(model: nn.Module, dtype: torch.dtype = torch.float32, total: int = 100, **settings) -> Optimizer:
    return Optimizer(
        MasterWeights(model, dtype), OptimizerConfig(**({"learning_rate": 1e-2, "max_grad_norm": 0.0} | settings)), total
    )


def set_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float32)


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_schedule_values():
    warm = OptimizerConfig(learning_rate=1.0, warmup_steps=4)
    assert [find_learning_rate(update, 10, warm) for update in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = OptimizerConfig(learning_rate=2.0, schedule="linear", final_share=0.1)
    assert [find_learning_rate(update, 4, linear) for update in range(6)] == pytest.approx([2.0, 1.55, 1.1, 0.65, 0.2, 0.2])
    cosine = OptimizerConfig(learning_rate=2.0, schedule="cosine", warmup_steps=2)
    expected = [1.0, 2.0, 2.0, 1 + math.cos(math.pi / 4), 1.0, 1 - math.cos(math.pi / 4), 0.0, 0.0]
    assert [find_learning_rate(update, 6, cosine) for update in range(8)] == pytest.approx(expected, abs=1e-15)
    # A schedule that is all warm-up does not divide by zero.
    assert find_learning_rate(0, 0, OptimizerConfig(learning_rate=1.0, schedule="linear")) == 1.0


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_parity_with_torch_adamw(weight_decay):
    """Thirty steps against plain torch.optim.AdamW with the same groups: matrices decay, vectors do not."""
    ours, theirs = small_model(), small_model()
    optimizer = make(ours, weight_decay=weight_decay, schedule="cosine", total=30)
    groups = [
        {"params": [parameter for parameter in theirs.parameters() if parameter.dim() >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in theirs.parameters() if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, foreach=False)
    for update in range(30):
        set_gradients(ours, update)
        set_gradients(theirs, update)
        for group in plain.param_groups:
            group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * update / 30))
        plain.step()
        report = optimizer.clip_and_step()
        assert report.learning_rate == pytest.approx(plain.param_groups[0]["lr"], rel=1e-14)
    for left, right in zip(weights_of(ours), weights_of(theirs), strict=True):
        assert (left - right).abs().max().item() < 1e-6


def test_clipping():
    """Norm 10 clipped to 2: the step equals the step of the gradient divided by 5; the reported norm is the one before."""
    clipped, scaled = small_model(), small_model()
    for model, scale in ((clipped, 1.0), (scaled, 0.2)):
        set_gradients(model, 3)
        norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad *= 10.0 * scale / norm
    first, second = make(clipped, max_grad_norm=2.0, epsilon=1.0), make(scaled, epsilon=1.0)
    report = first.clip_and_step()
    plain = second.clip_and_step()
    assert report.clipped
    assert report.grad_norm == pytest.approx(10.0, rel=1e-6)
    assert (plain.clipped, plain.grad_norm) == (False, pytest.approx(2.0, rel=1e-6))
    for left, right in zip(weights_of(clipped), weights_of(scaled), strict=True):
        assert (left - right).abs().max().item() < 1e-7
    set_gradients(clipped, 4, scale=1e-3)
    assert not first.clip_and_step().clipped


def test_bfloat16_with_masters_moves_at_1e_6_where_pure_bfloat16_does_not():
    """Two hundred steps of 1e-6 in one direction: 2e-4 in the masters, visible in bfloat16; pure bfloat16 has not moved a bit."""
    model = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.02)
    pure = copy.deepcopy(model).to(torch.bfloat16)
    start = pure.weight.detach().clone()
    plain = torch.optim.AdamW(pure.parameters(), lr=1e-6, weight_decay=0.0)
    optimizer = make(model, torch.bfloat16, learning_rate=1e-6)
    assert model.weight.dtype == torch.bfloat16
    for _ in range(200):
        pure.weight.grad = torch.ones_like(pure.weight)
        plain.step()
        (model.weight * 1.0).sum().backward()  # through the hook, as in training
        assert model.weight.grad is None
        optimizer.clip_and_step()
    assert torch.equal(pure.weight, start)
    master = optimizer.weights.tensors()["weight"]
    assert master.dtype == torch.float32
    assert (master - (0.02 - 200e-6)).abs().max().item() < 1e-6
    assert torch.equal(model.weight, master.to(torch.bfloat16))
    assert not torch.equal(model.weight, start)


def test_gradients_of_micro_batches_are_added_in_float32():
    """4096 micro-batches with a gradient of 1: a bfloat16 sum sticks at 256, the masters count to 4096."""
    model = nn.Linear(2, 2, bias=False)
    weights = MasterWeights(model, torch.bfloat16)
    for _ in range(4096):
        (model.weight * 1.0).sum().backward()
    assert torch.equal(weights.masters["weight"].grad, torch.full((2, 2), 4096.0))
    naive = torch.zeros(2, 2, dtype=torch.bfloat16)
    for _ in range(4096):
        naive += 1
    assert naive.max() == 256

    # Unequal gradients: exactly the float32 sum of the bfloat16 pieces.
    weights.drop_gradients()
    pieces = torch.randn(20, 2, 2, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = torch.zeros(2, 2)
    for piece in pieces:
        (model.weight * piece).sum().backward()
        expected = expected + piece.float()
    assert torch.equal(weights.masters["weight"].grad, expected)


def test_casting_leaves_rotary_frequencies_in_float32():
    """The exported model is loaded with float32 frequencies; one trained with rounded ones would be another function."""
    policy = tiny_policy(dtype=torch.float32)
    before = {name: buffer.clone() for name, buffer in policy.model.named_buffers()}
    assert any("inv_freq" in name for name in before)
    MasterWeights(policy.model, torch.bfloat16)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16}
    for name, buffer in policy.model.named_buffers():
        assert buffer.dtype == torch.float32
        assert torch.equal(buffer, before[name])
    cast_parameters(policy.model, torch.float32)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_gradient_changes_nothing_and_is_counted(bad):
    model = small_model()
    optimizer = make(model, max_grad_norm=1.0)
    set_gradients(model, 0)
    optimizer.clip_and_step()
    weights = weights_of(model)
    moments = {key: value.clone() for key, value in optimizer.state()[0].items()}
    set_gradients(model, 1)
    model[0].weight.grad[0, 0] = bad
    report = optimizer.clip_and_step()
    assert (report.skipped, report.clipped, optimizer.updates, optimizer.skipped_in_a_row) == (True, False, 2, 1)
    assert all(torch.equal(left, right) for left, right in zip(weights_of(model), weights, strict=True))
    assert all(torch.equal(value, moments[key]) for key, value in optimizer.state()[0].items())
    assert all(parameter.grad is None for parameter in model.parameters())
    set_gradients(model, 2)
    assert not optimizer.clip_and_step().skipped
    assert optimizer.skipped_in_a_row == 0


def test_three_non_finite_gradients_in_a_row_stop_the_run():
    model = small_model()
    optimizer = make(model)
    weights = weights_of(model)
    for attempt in range(3):
        set_gradients(model, attempt)
        model[2].bias.grad[0] = float("nan")
        assert optimizer.clip_and_step().skipped
        if attempt < 2:
            optimizer.check_finite()
        else:
            with pytest.raises(InvariantError, match="3 updates in a row had a non-finite gradient"):
                optimizer.check_finite()
    assert all(torch.equal(left, right) for left, right in zip(weights_of(model), weights, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_round_trip_continues_bitwise(dtype):
    """Five steps, save, five more; a fresh optimizer that loads the state takes the same five, bit for bit."""
    settings = {"schedule": "linear", "warmup_steps": 3, "weight_decay": 0.01, "max_grad_norm": 1.0, "total": 20}
    model = small_model()
    optimizer = make(model, dtype, **settings)

    def advance(target: Optimizer, first: int) -> None:
        for update in range(first, first + 5):
            generator = torch.Generator().manual_seed(update)
            for master in target.weights.masters.values():
                master.grad = torch.randn(master.shape, generator=generator)
            target.clip_and_step()

    advance(optimizer, 0)
    weights = {name: value.clone() for name, value in optimizer.weights.tensors().items()}
    moments, counters = optimizer.state()
    moments = {name: value.clone() for name, value in moments.items()}
    advance(optimizer, 5)

    other = small_model(seed=1)
    resumed = make(other, dtype, **settings)
    resumed.weights.load(weights)
    resumed.load_state(moments, counters)
    advance(resumed, 5)
    assert resumed.updates == optimizer.updates == 10
    for left, right in ((resumed.weights.tensors(), optimizer.weights.tensors()), (resumed.state()[0], optimizer.state()[0])):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert all(torch.equal(left, right) for left, right in zip(weights_of(other), weights_of(model), strict=True))


def test_masters_take_over_the_loaded_weights():
    """The float32 tensor that was loaded becomes the master, without a copy; the parameter gets a rounded one of its own."""
    model = small_model()
    loaded = {name: (parameter.data_ptr(), parameter.detach().clone()) for name, parameter in model.named_parameters()}
    weights = MasterWeights(model, torch.bfloat16)
    for name, master in weights.masters.items():
        assert master.data_ptr() == loaded[name][0]
        assert torch.equal(master, loaded[name][1])
        assert torch.equal(weights.parameters[name], loaded[name][1].to(torch.bfloat16))
    master = weights.masters["0.weight"]
    master.add_(1.0)
    assert torch.equal(weights.parameters["0.weight"], loaded["0.weight"][1].to(torch.bfloat16))
    weights.copy_back()
    assert torch.equal(weights.parameters["0.weight"], master.to(torch.bfloat16))


def test_change_since_sees_the_largest_change_of_any_tensor():
    model = small_model()
    weights = MasterWeights(model, torch.float32)
    probe = weights.probe()
    assert weights.measure_change(probe) == 0.0
    with torch.no_grad():
        model[0].bias[3] += 0.25
        model[2].weight[1, 1] -= 0.5
    assert weights.measure_change(probe) == pytest.approx(0.5, abs=1e-6)


def test_an_update_reads_one_number_back(monkeypatch):
    """On a GPU each of these waits for the device."""
    model = small_model()
    optimizer = make(model, max_grad_norm=1e-3)
    set_gradients(model, 0)
    optimizer.clip_and_step()
    reads = []
    for name in ("__float__", "__bool__", "item", "tolist", "__int__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor,
            name,
            lambda tensor, *args, original=original, name=name: (reads.append(name), original(tensor, *args))[1],
        )
    set_gradients(model, 1)
    reads.clear()
    assert optimizer.clip_and_step().clipped
    assert reads == ["__float__"]


def test_without_a_gradient_the_sharded_norm_is_zero():
    """A minibatch without any gradient has none on any rank, and no rank computes a share of its norm."""
    from cohort.model.sharding import ShardedWeights

    assert float(ShardedWeights.measure_norm(object.__new__(ShardedWeights), [])) == 0.0
