"""The optimizer on CUDA: the 8-bit kernel against its reference implementation, one wait per update, and the memory held between steps."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from cohort.model.optim import MasterWeights, Optimizer
from cohort.ops.adam8 import BLOCK, Adam8, Moments, make_rounding_key, make_rule, update_pieces
from cohort.recipe.schema import OptimizerConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def model(width: int = 1024, layers: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).cuda()


def make(module: nn.Module, bits: int, **settings) -> Optimizer:
    config = OptimizerConfig(**({"learning_rate": 1e-3, "state_bits": bits} | settings))
    return Optimizer(MasterWeights(module, torch.bfloat16), config, 100)


def backward(module: nn.Module, seed: int) -> None:
    inputs = torch.randn(8, module[0].in_features, generator=torch.Generator().manual_seed(seed)).to("cuda", torch.bfloat16)
    module(inputs).square().mean().backward()


@pytest.mark.parametrize("size", [BLOCK * 4096, 5 * BLOCK + 37, 255, 1_000_003])
def test_the_kernel_follows_its_reference(size):
    """Ten updates: the compiled kernel fuses multiply-adds, which moves a code across a drawn threshold once in thousands."""
    start = torch.linspace(-1.0, 1.0, size, device="cuda")
    fused, twin = start.clone(), start.clone()
    of_fused, of_twin = Moments.zeros(fused), Moments.zeros(twin)
    from cohort.ops.fused.kernels_adam8 import update_fused

    for step in range(1, 11):
        gradient = torch.randn(size, generator=torch.Generator().manual_seed(step)).cuda()
        gradient[: BLOCK // 2] = 0.0
        rule, key = make_rule(step, 1e-2, 0.1, 0.9, 0.999, 1e-8), make_rounding_key("w", step)
        update_fused(fused, gradient, of_fused, rule, key)
        update_pieces(twin, gradient, of_twin, rule, key)
        for left, right in ((of_fused.first_codes, of_twin.first_codes), (of_fused.second_codes, of_twin.second_codes)):
            assert (left != right).float().mean() < 2e-3
        torch.testing.assert_close(of_fused.second_scales, of_twin.second_scales, rtol=0.02, atol=0.0)
        assert ((fused - twin).abs() > 1e-6).float().mean() < 2e-3
        assert (fused - twin).abs().mean() < 1e-2 * 1e-4  # of one step


def test_the_kernel_is_reproducible():
    results = []
    for _ in range(2):
        optimizer = make(module := model(), 8)
        assert isinstance(optimizer.moments[-1], Adam8)
        for step in range(3):
            backward(module, step)
            optimizer.clip_and_step()
        results.append({**optimizer.weights.tensors(), **optimizer.state()[0]})
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


@pytest.mark.parametrize("bits", [32, 8])
def test_an_update_waits_for_the_device_once(bits):
    """Clipped or not; the first update of each kind also makes state and compiles."""
    optimizer = make(module := model(), bits, max_grad_norm=1e-3)
    for step in range(2):
        backward(module, step)
        optimizer.clip_and_step()
    backward(module, 3)
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            report = optimizer.clip_and_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert report.clipped
    waits = [str(one.message) for one in caught if "called a synchronizing" in str(one.message)]
    assert len(waits) == 1, waits


@pytest.mark.parametrize(("bits", "expected"), [(32, 14.0), (8, 8.03125)])
def test_memory_between_and_within_steps(bits, expected):
    """Between steps: parameters 2, masters 4, moments 8 or 2.03 bytes per parameter; the gradients' 4 are gone."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    optimizer = make(module := model(width=2048), bits)
    count = sum(parameter.numel() for parameter in module.parameters())
    for step in range(2):
        backward(module, step)
        optimizer.clip_and_step()
    held = (torch.cuda.memory_allocated() - before) / count
    assert held == pytest.approx(expected, rel=0.01)
    backward(module, 2)
    assert (torch.cuda.memory_allocated() - before) / count == pytest.approx(expected + 4.0, rel=0.01)
    torch.cuda.reset_peak_memory_stats()
    optimizer.clip_and_step()
    peak = (torch.cuda.max_memory_allocated() - before) / count
    assert peak == pytest.approx(expected + 4.0, abs=0.6)  # beside them, what the update of one tensor needs


def test_masters_are_the_loaded_weights_without_a_copy():
    """From 4 bytes per parameter to 6, never 10: the float32 weights become the masters."""
    module = model(width=2048)
    count = sum(parameter.numel() for parameter in module.parameters())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    weights = MasterWeights(module, torch.bfloat16)
    assert (torch.cuda.max_memory_allocated() - before) / count == pytest.approx(2.0, rel=0.01)
    assert weights.masters["0.weight"].dtype == torch.float32
