"""8-bit moments: codes by hand, unbiased keyed rounding, bounded steps, and training that follows 32 bits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from cohort.errors import CheckpointError
from cohort.model.optim import Adam32, MasterWeights, Optimizer
from cohort.model.scratch import build_scratch
from cohort.ops import adam8
from cohort.ops.adam8 import (
    BLOCK,
    Adam8,
    Moments,
    decode_first,
    decode_second,
    draw_uniforms,
    encode_first,
    encode_second,
    make_rounding_key,
    make_rule,
    update_pieces,
)
from cohort.recipe.schema import OptimizerConfig, ScratchConfig

BETA1, BETA2 = 0.9, 0.999


def block(*values: float) -> Tensor:
    return torch.tensor([[*values, *([0.0] * (BLOCK - len(values)))]])


def count_bytes(moments: Moments) -> int:
    return sum(tensor.nbytes for tensor in moments.tensors().values())


def everywhere(value: float) -> Tensor:
    return torch.full((1, BLOCK), value)


def make(model: nn.Module, bits: int, dtype: torch.dtype = torch.float32, total: int = 100, **settings) -> Optimizer:
    config = OptimizerConfig(**({"learning_rate": 1e-2, "max_grad_norm": 0.0, "state_bits": bits} | settings))
    return Optimizer(MasterWeights(model, dtype), config, total)


# -- codes -------------------------------------------------------------------------------------------------------------


def test_first_moment_by_hand():
    """Scale 8. 2 is a quarter: root 1/2, code 63.5 of 127; it becomes 64 with probability (0.25 x 127^2 - 63^2) / 127 = 0.498."""
    values = block(8.0, -2.0, 2.0, 0.0)
    for uniform, expected in ((0.49, 64), (0.499, 63)):
        codes, scales = encode_first(values, everywhere(uniform))
        assert codes.dtype == torch.int8
        assert codes[0, :4].tolist() == [127, -expected, expected, 0]
        assert scales.tolist() == [8.0]
        decoded = decode_first(codes, scales)[0, :4].tolist()
        assert decoded == pytest.approx([8.0, -8 * (expected / 127) ** 2, 8 * (expected / 127) ** 2, 0.0], rel=1e-6)


def test_second_moment_by_hand():
    """Scale 16. 1 is a sixteenth: fourth root 1/2, code 127.5 of 255, drawn by (1/16 - (127/255)^4) / ((128/255)^4 - (127/255)^4)."""
    chance = (1 / 16 - (127 / 255) ** 4) / ((128 / 255) ** 4 - (127 / 255) ** 4)
    assert chance == pytest.approx(0.4971, abs=1e-4)
    for uniform, expected in ((chance - 1e-3, 128), (chance + 1e-3, 127)):
        codes, scales = encode_second(block(16.0, 1.0, 0.0), everywhere(uniform))
        assert codes.dtype == torch.uint8
        assert codes[0, :3].tolist() == [255, expected, 0]
        assert decode_second(codes, scales)[0, :2].tolist() == pytest.approx([16.0, 16 * (expected / 255) ** 4], rel=1e-6)


def test_a_positive_second_moment_is_never_zero():
    """Down to the smallest float32 beside a largest of 1: code 1, whatever is drawn. A block of zeros stays zero."""
    tiny = block(1.0, 1e-9, 1e-12, 1e-30, 1e-45)
    for uniform in (0.0, 0.999):
        codes, _ = encode_second(tiny, everywhere(uniform))
        assert (codes[0, :5] >= 1).all()
        assert (codes[0, 5:] == 0).all()
    codes, scales = encode_second(block(0.0), everywhere(0.0))
    assert not codes.any()
    assert scales.tolist() == [0.0]


@pytest.mark.parametrize(("encode", "decode"), [(encode_first, decode_first), (encode_second, decode_second)])
def test_codes_come_back_as_they_are(encode, decode):
    """Coding what was decoded changes nothing, for all codes: a tensor without gradients does not wander."""
    codes = torch.arange(256).view(1, -1).to(torch.uint8)
    if encode is encode_first:
        codes = torch.arange(-128, 128).clamp(min=-127).view(1, -1).to(torch.int8)
    values = decode(codes, torch.tensor([0.37]))
    again, scales = encode(values, everywhere(0.5))
    assert torch.equal(again, codes)
    assert scales.tolist() == pytest.approx([0.37], rel=1e-6)


@pytest.mark.parametrize(("encode", "decode"), [(encode_first, decode_first), (encode_second, decode_second)])
def test_rounding_keeps_the_expectation(encode, decode):
    """The mean over 1,500 keyed draws is the value, to five standard errors, at every size."""
    values = torch.logspace(0, -4, BLOCK).view(1, -1)
    total, squares = torch.zeros(1, BLOCK, dtype=torch.float64), torch.zeros(1, BLOCK, dtype=torch.float64)
    draws = 1500
    which = 0 if encode is encode_first else 1
    for number in range(draws):
        uniform = draw_uniforms(make_rounding_key("w", number), 0, BLOCK, values.device)[which].view(1, -1)
        error = (decode(*encode(values, uniform)) - values).double()
        total += error
        squares += error * error
    # A value that is a code never moves; a value that is drawn once in thousands has a poor estimate of its deviation.
    spread = (squares / draws).sqrt() + values * 1e-3
    assert (total.abs() / draws <= 5 * spread / math.sqrt(draws)).all()


def test_uniforms_are_uniform_keyed_and_independent_of_the_start():
    first, second = draw_uniforms(make_rounding_key("w", 3), 0, 1 << 16, torch.device("cpu"))
    for values in (first, second):
        assert values.min() >= 0.0
        assert values.max() < 1.0
        counts = torch.histc(values, 64, 0.0, 1.0)
        assert float(((counts - 1024) ** 2 / 1024).sum()) < 63 + 5 * math.sqrt(126)  # chi-square, 63 degrees of freedom
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / 256
    assert abs(float(torch.corrcoef(torch.stack([first[1:], first[:-1]]))[0, 1])) < 5 / 256
    later, _ = draw_uniforms(make_rounding_key("w", 3), 1000, 50, torch.device("cpu"))
    assert torch.equal(later, first[1000:1050])
    for other in (("w", 4), ("v", 3)):
        assert (draw_uniforms(make_rounding_key(*other), 0, 1000, torch.device("cpu"))[0] != first[:1000]).float().mean() > 0.99


# -- the step cannot explode -------------------------------------------------------------------------------------------


def test_the_bound_is_the_largest_ratio_of_exact_moments():
    """Gradients in proportion to a_k / b_k reach it exactly; random ones stay below. By hand: sqrt(10) at the first step."""
    assert make_rule(1, 1.0, 0.0, BETA1, BETA2, 1e-8).bound == pytest.approx(0.1 / math.sqrt(0.001), rel=1e-4)
    for beta1, beta2 in ((0.9, 0.999), (0.9, 0.81), (0.9, 0.5), (0.0, 0.9)):
        for steps in (1, 2, 30):
            bound = make_rule(steps, 1.0, 0.0, beta1, beta2, 1e-8).bound
            a = [(1 - beta1) * beta1**k for k in range(steps)]
            b = [(1 - beta2) * beta2**k for k in range(steps)]
            worst = [left / right for left, right in zip(a, b, strict=True)]
            first = sum(left * gradient for left, gradient in zip(a, worst, strict=True))
            second = sum(right * gradient**2 for right, gradient in zip(b, worst, strict=True))
            assert first / math.sqrt(second) == pytest.approx(bound, rel=2e-5)
    assert make_rule(10**6, 1.0, 0.0, 0.9, 0.5, 1e-8).bound == 3e38  # no bound, and no overflow


def test_no_step_is_larger_than_the_largest_of_adamw():
    """One huge gradient per block, then tiny ones: second moments far below a code's resolution, first moments drawn up."""
    generator = torch.Generator().manual_seed(0)
    master, largest = torch.zeros(8 * BLOCK), 0.0
    moments = Moments.zeros(master)
    for step in range(1, 200):
        gradient = torch.randn(master.shape, generator=generator) * 10.0 ** (
            -12 * torch.rand(master.shape, generator=generator)
        )
        if step > 40:
            gradient *= 1e-6
        if step % 10 == 0:
            gradient = torch.zeros_like(master)
        before = master.clone()
        rule = make_rule(step, 1.0, 0.0, BETA1, BETA2, 1e-12)
        update_pieces(master, gradient, moments, rule, make_rounding_key("w", step))
        limit = rule.bound * rule.correction2_root / rule.correction1
        largest = max(largest, float((master - before).abs().max()) / limit)
    assert 0.3 < largest < 1.0 + 1e-4  # without the floor and the cut it is 10^3 and more
    assert torch.isfinite(master).all()


def test_elements_without_gradients_stay_where_they_are():
    """Rows of an embedding that no token reads: not a bit moves."""
    master = torch.randn(32, BLOCK, generator=torch.Generator().manual_seed(1))
    start = master.clone()
    moments = Moments.zeros(master)
    for step in range(1, 20):
        gradient = torch.zeros_like(master)
        gradient[3] = torch.randn(BLOCK, generator=torch.Generator().manual_seed(step))
        update_pieces(master, gradient, moments, make_rule(step, 1e-2, 0.0, BETA1, BETA2, 1e-8), make_rounding_key("w", step))
    still = torch.arange(32) != 3
    assert torch.equal(master[still], start[still])
    assert not torch.equal(master[3], start[3])


# -- against 32 bits ---------------------------------------------------------------------------------------------------


def exact_and_coded(steps: int, gradient_at, beta2: float = BETA2) -> tuple[list[float], Tensor]:
    """Relative error of every update, ||u8 - u32|| / ||u32||, and the second moments as a ratio, after the last."""
    size = gradient_at(1).numel()
    first, second = torch.zeros(size), torch.zeros(size)
    moments, errors = Moments.zeros(first), []
    for step in range(1, steps + 1):
        gradient = gradient_at(step)
        first = BETA1 * first + (1 - BETA1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        exact = first / (1 - BETA1**step) / ((second / (1 - beta2**step)).sqrt() + 1e-8)
        master = torch.zeros(size)
        update_pieces(master, gradient, moments, make_rule(step, 1.0, 0.0, BETA1, beta2, 1e-8), make_rounding_key("w", step))
        errors.append(float((master + exact).norm() / exact.norm()))
    decoded = decode_second(moments.second_codes.view(-1, BLOCK), moments.second_scales).view(-1)
    return errors, decoded / second


def random_gradients(scatter: float, size: int = 8 * BLOCK):
    scale = torch.exp(scatter * torch.randn(size, generator=torch.Generator().manual_seed(99)))
    return lambda step: scale * torch.randn(size, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize(("scatter", "limit"), [(0.0, 0.06), (1.0, 0.15)])
def test_relative_error_of_the_update(scatter, limit):
    """Random gradients of one size: below 6 % at any step; sizes that differ 400-fold within a block: below 15 %.

    The first update is exact, since only what is kept from one step to the next is coded.
    """
    errors, ratio = exact_and_coded(600, random_gradients(scatter))
    assert errors[0] < 1e-6
    assert max(errors) < limit
    assert abs(float(ratio.mean()) - 1.0) < 0.02  # noise, not bias


def test_a_second_moment_follows_a_gradient_that_falls(monkeypatch):
    """Every second element's gradient falls tenfold, its second moment a hundredfold: drawn rounding follows without bias.

    Rounded to the nearest code it stays 3.4 times too large (beta2 0.995; at 0.999 it is 27 times): steps too small for good.
    """

    def gradient_at(step: int) -> Tensor:
        gradient = random_gradients(0.0)(step)
        gradient[::2] *= 1.0 if step <= 200 else 0.1
        return gradient

    _, ratio = exact_and_coded(1100, gradient_at, beta2=0.995)
    assert abs(float(ratio[::2].mean()) - 1.0) < 0.1
    assert abs(float(ratio[1::2].mean()) - 1.0) < 0.02
    monkeypatch.setattr(adam8, "draw_uniforms", lambda key, start, size, device: (torch.full((size,), 0.5),) * 2)
    _, nearest = exact_and_coded(1100, gradient_at, beta2=0.995)
    assert float(nearest[::2].mean()) > 2.5


def test_least_squares_reaches_the_same_loss():
    """A linear layer fitted to noisy data in 400 steps with a decaying rate: both end within 1e-6 of the least squares."""
    inputs = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    truth = torch.randn(64, 80, generator=torch.Generator().manual_seed(1))
    targets = inputs @ truth + 0.1 * torch.randn(512, 80, generator=torch.Generator().manual_seed(2))
    best = float((targets - inputs @ torch.linalg.lstsq(inputs, targets).solution).pow(2).mean())
    losses = {}
    for bits in (32, 8):
        torch.manual_seed(0)
        model = nn.Linear(64, 80, bias=False)
        optimizer = make(model, bits, learning_rate=1e-1, schedule="cosine", total=400)
        assert any(isinstance(part, Adam8) for part in optimizer.moments) == (bits == 8)
        for _ in range(400):
            loss = (model(inputs) - targets).pow(2).mean()
            loss.backward()
            optimizer.clip_and_step()
        losses[bits] = float((model(inputs) - targets).detach().pow(2).mean()) - best
    assert losses[32] < 1e-6
    assert losses[8] < 1e-6  # the start is at 65


def lm_losses(bits: int, steps: int = 80) -> list[float]:
    """A small Llama learns sequences in which each digit is the sum of the two before it, modulo 10."""
    scratch = ScratchConfig(
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        max_positions=32,
        characters="0123456789",
    )
    model, _ = build_scratch(scratch, (), 0)
    optimizer = make(model, bits, learning_rate=3e-3, warmup_steps=5, max_grad_norm=1.0, beta2=0.99, total=steps)
    losses = []
    for step in range(steps):
        digits = torch.randint(10, (32, 12), generator=torch.Generator().manual_seed(step))
        for place in range(2, 12):
            digits[:, place] = (digits[:, place - 1] + digits[:, place - 2]) % 10
        token_ids = 3 + digits
        logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), token_ids[:, 1:].flatten())
        loss.backward()
        optimizer.clip_and_step()
        losses.append(float(loss.detach()))
    return losses


def test_a_small_language_model_learns_alike():
    """80 steps from 3 nats to 0.3: the two losses are never further apart than 0.03 nats, and 0.003 on average."""
    exact, coded = lm_losses(32), lm_losses(8)
    apart = [abs(left - right) for left, right in zip(exact, coded, strict=True)]
    assert exact[0] == coded[0] > 2.5
    assert exact[-1] < 0.4
    assert max(apart) < 0.03
    assert sum(apart) / len(apart) < 0.003


# -- inside the optimizer ----------------------------------------------------------------------------------------------


def layers() -> nn.Module:
    """Two matrices above 4096 elements, one of them no multiple of a block; the rest small."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(67, 70), nn.Tanh(), nn.Linear(70, 60), nn.Tanh(), nn.Linear(60, 3))


def set_gradients(optimizer: Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for master in optimizer.weights.masters.values():
        master.grad = torch.randn(master.shape, generator=generator)


def test_small_tensors_keep_float32_moments_and_memory_is_a_quarter():
    optimizer = make(layers(), 8)
    set_gradients(optimizer, 0)
    optimizer.clip_and_step()
    small, large = optimizer.moments
    assert isinstance(small, Adam32)
    assert isinstance(large, Adam8)
    assert set(large.masters) == {"0.weight", "2.weight"}
    moments = large.moments["0.weight"]
    size, blocks = 67 * 70, -(-67 * 70 // BLOCK)
    assert count_bytes(moments) == 2 * size + 8 * blocks
    assert count_bytes(Moments.zeros(torch.empty(1 << 20))) / (1 << 20) == 2.03125  # against 8 in float32
    tensors, _ = optimizer.state()
    assert tensors["0.weight|first_codes"].dtype == torch.int8
    assert tensors["0.weight|second_codes"].dtype == torch.uint8
    assert tensors["0.weight|second_scales"].shape == (blocks,)
    assert tensors["0.bias|exp_avg"].dtype == torch.float32


def test_pieces_and_ragged_ends_change_nothing(monkeypatch):
    """One piece, many pieces, and each block by itself give the same bits."""
    size = 5 * BLOCK + 37
    results = []
    for length in (1 << 16, 2 * BLOCK, BLOCK):
        monkeypatch.setattr(adam8, "PIECES", {"cpu": length})
        master = torch.linspace(-1, 1, size)
        moments = Moments.zeros(master)
        for step in range(1, 5):
            gradient = torch.randn(size, generator=torch.Generator().manual_seed(step))
            update_pieces(
                master, gradient, moments, make_rule(step, 1e-2, 0.1, BETA1, BETA2, 1e-8), make_rounding_key("w", step)
            )
        results.append([master, *moments.tensors().values()])
    for other in results[1:]:
        assert all(torch.equal(left, right) for left, right in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_round_trip_continues_bitwise(dtype):
    settings = {"schedule": "linear", "warmup_steps": 3, "weight_decay": 0.01, "max_grad_norm": 1.0, "total": 20}
    optimizer = make(layers(), 8, dtype, **settings)

    def advance(target: Optimizer, first: int) -> None:
        for update in range(first, first + 5):
            set_gradients(target, update)
            target.clip_and_step()

    advance(optimizer, 0)
    weights = {name: value.clone() for name, value in optimizer.weights.tensors().items()}
    moments, counters = optimizer.state()
    moments = {name: value.clone() for name, value in moments.items()}
    advance(optimizer, 5)
    resumed = make(layers(), 8, dtype, **settings)
    resumed.weights.load(weights)
    resumed.load_state(moments, counters)
    advance(resumed, 5)
    assert resumed.updates == optimizer.updates == 10
    for left, right in ((resumed.weights.tensors(), optimizer.weights.tensors()), (resumed.state()[0], optimizer.state()[0])):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_moments_of_other_bits_are_refused():
    for saved, loaded in ((8, 32), (32, 8)):
        optimizer = make(layers(), saved)
        set_gradients(optimizer, 0)
        optimizer.clip_and_step()
        with pytest.raises(CheckpointError, match=r"optimizer\.state_bits"):
            make(layers(), loaded).load_state(*optimizer.state())
    other = make(nn.Linear(80, 80), 8)
    with pytest.raises(CheckpointError, match="not a trained parameter"):
        other.load_state(*optimizer.state())
    tensors = {f"weight|{kind}": value for kind, value in Moments.zeros(torch.empty(5000)).tensors().items()}
    with pytest.raises(CheckpointError, match="belongs to another model"):
        other.load_state(tensors | {"weight|step": torch.tensor([1])}, {"updates": 1, "skipped_in_a_row": 0})


def test_a_non_finite_gradient_changes_nothing():
    optimizer = make(layers(), 8, max_grad_norm=1.0)
    set_gradients(optimizer, 0)
    optimizer.clip_and_step()
    weights = {name: value.clone() for name, value in optimizer.weights.tensors().items()}
    moments = {name: value.clone() for name, value in optimizer.state()[0].items()}
    set_gradients(optimizer, 1)
    optimizer.weights.masters["0.weight"].grad[0, 0] = float("inf")
    report = optimizer.clip_and_step()
    assert (report.skipped, report.clipped, optimizer.updates, optimizer.skipped_in_a_row) == (True, False, 2, 1)
    assert all(torch.equal(value, weights[name]) for name, value in optimizer.weights.tensors().items())
    assert all(torch.equal(value, moments[name]) for name, value in optimizer.state()[0].items())


def test_the_first_update_is_that_of_32_bits_with_clipping_decay_and_schedule():
    """No moment has been coded yet: the weights agree to float32 rounding, and the reports are the same."""
    settings = {"max_grad_norm": 0.5, "weight_decay": 0.1, "warmup_steps": 4, "schedule": "cosine"}
    exact, coded = make(layers(), 32, **settings), make(layers(), 8, **settings)
    for optimizer in (exact, coded):
        set_gradients(optimizer, 7)
    left, right = exact.clip_and_step(), coded.clip_and_step()
    assert left == right
    assert left.clipped
    assert left.learning_rate == pytest.approx(2.5e-3)
    for name, master in exact.weights.tensors().items():
        assert torch.allclose(coded.weights.tensors()[name], master, rtol=1e-6, atol=1e-8)
