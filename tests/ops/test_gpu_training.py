"""The training kernels, compiled, against their references on the same GPU, at the shapes of real models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from fused_models import KINDS, adapt, plain_attention, ragged_layout, tiny_model  # noqa: F401 -- the fixture too
from torch import Tensor

from cohort.model import lora
from cohort.ops.fused import functions
from cohort.ops.fused.family import Projection, fuse
from cohort.ops.fused.functions import Heads, Norm, NormInputs, Rotary, TorchOperations
from cohort.ops.fused.training import hidden_states

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.bfloat16]
EPSILON = 1e-6
TOKENS = 1003
SHAPES = {
    "0.5b": (896, 4864, Heads(14, 2, 64)),
    "1.5b": (1536, 8960, Heads(12, 2, 128)),
    "7b": (3584, 18944, Heads(28, 4, 128)),
}


def random(*shape: int, seed: int, dtype: torch.dtype, around: float = 0.0, spread: float = 1.0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(shape, generator=generator, device="cuda") * spread + around).to(dtype)


def kernels() -> Any:
    from cohort.ops.fused import kernels_train

    return kernels_train


def assert_close(kernel: Tensor | None, expected: Tensor | None, dtype: torch.dtype) -> None:
    """Element by element: float32 sums in another order, and in bfloat16 two roundings, each a unit in the last place apart."""
    if kernel is None or expected is None:
        assert kernel is expected
        return
    assert kernel.dtype == expected.dtype
    relative = 1e-5 if dtype == torch.float32 else 2**-6
    absolute = (1e-5 if dtype == torch.float32 else 2**-8) * float(expected.float().square().mean().sqrt())
    torch.testing.assert_close(kernel.float(), expected.float(), rtol=relative, atol=absolute)


def compare(name: str, arguments: Callable[[], tuple[Any, ...]], dtype: torch.dtype) -> None:
    """Arguments are made twice, because kernels may use the memory of some again; the kernel runs twice, for the same bits."""
    found, again = getattr(kernels(), name)(*arguments()), getattr(kernels(), name)(*arguments())
    expected = getattr(TorchOperations, name)(*arguments())
    if isinstance(expected, Tensor):
        found, again, expected = (found,), (again,), (expected,)
    for ours, repeated, theirs in zip(found, again, expected, strict=True):
        assert_close(ours, theirs, dtype)
        assert ours is repeated or torch.equal(ours, repeated)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_norm(shape: str, dtype: torch.dtype) -> None:
    width = SHAPES[shape][0]
    hidden, delta, d_normed, d_total = (random(TOKENS, width, seed=seed, dtype=dtype) for seed in range(4))
    weight = random(width, seed=4, dtype=dtype, around=1.0, spread=0.3)
    compare("add_norm_forward", lambda: (hidden, delta, weight, EPSILON), dtype)
    compare("add_norm_forward", lambda: (hidden, None, weight, EPSILON), dtype)
    total, _, inverse = TorchOperations.add_norm_forward(hidden, delta, weight, EPSILON)
    inputs = NormInputs(total, inverse, weight)
    compare("add_norm_backward", lambda: (d_normed, d_total, inputs, True, True), dtype)
    compare("add_norm_backward", lambda: (d_normed, None, inputs, False, False), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_norm", [False, True])
def test_rotary(shape: str, dtype: torch.dtype, has_norm: bool) -> None:
    heads = SHAPES[shape][2]
    frequencies = 1e6 ** (-torch.arange(heads.dim // 2, device="cuda") / (heads.dim // 2))
    angle = torch.arange(TOKENS, device="cuda")[:, None] * 30 * frequencies
    norms = tuple(random(heads.dim, seed=seed, dtype=dtype, around=1.0, spread=0.3) if has_norm else None for seed in (0, 1))
    qkv = random(TOKENS, heads.width, seed=2, dtype=dtype)
    rotary = Rotary(angle.cos(), angle.sin(), heads, *norms, EPSILON)
    compare("rotary_forward", lambda: (qkv.clone(), rotary), dtype)
    d_query = random(TOKENS, heads.query, heads.dim, seed=3, dtype=dtype)
    d_key, d_value = (random(TOKENS, heads.kv, heads.dim, seed=seed, dtype=dtype) for seed in (4, 5))
    arguments = ((d_query, d_key, d_value), qkv if has_norm else None, rotary, True, has_norm)
    compare("rotary_backward", lambda: arguments, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_swiglu(shape: str, dtype: torch.dtype) -> None:
    intermediate = SHAPES[shape][1]
    gate_up = random(TOKENS, 2 * intermediate, seed=0, dtype=dtype, spread=3.0)
    gradient = random(TOKENS, intermediate, seed=1, dtype=dtype)
    compare("swiglu_forward", lambda: (gate_up,), dtype)
    compare("swiglu_backward", lambda: (gradient.clone(), gate_up, True), dtype)
    compare("swiglu_backward", lambda: (gradient.clone(), gate_up, False), dtype)


@pytest.mark.parametrize("has_norm", [False, True])
def test_attention_inputs_function(has_norm: bool) -> None:
    """Memory that is used again must not be what autograd still needs: the functions on kernels against those in torch."""
    width, _, heads = SHAPES["0.5b"]
    angle = torch.arange(TOKENS, device="cuda")[:, None] * 0.7 ** torch.arange(heads.dim // 2, device="cuda")
    rows = [heads.query * heads.dim, heads.kv * heads.dim, heads.kv * heads.dim]

    def run(forced: bool) -> list[Tensor]:
        make = lambda *shape, seed, around=0.0: random(*shape, seed=seed, dtype=torch.float32, around=around)  # noqa: E731
        weight, bias = make(heads.width, width, seed=0) * width**-0.5, make(heads.width, seed=1)
        leaves = [make(TOKENS, width, seed=2), make(TOKENS, width, seed=3), make(width, seed=4, around=1.0)]
        leaves += [part.clone() for part in (*weight.split(rows), *bias.split(rows))]
        leaves += [make(heads.dim, seed=seed, around=1.0) for seed in (5, 6)] if has_norm else []
        for leaf in leaves:
            leaf.requires_grad_()
        hidden, delta, norm = leaves[:3]
        with mock.patch.object(functions, "has_kernels", return_value=forced):
            results = functions.norm_linear(
                hidden,
                delta,
                Norm(norm, EPSILON),
                Projection(weight, leaves[3:6], bias, leaves[6:9]),
                Rotary(angle.cos(), angle.sin(), heads, *(leaves[9:] or (None, None)), EPSILON),
            )
            sum((result * make(*result.shape, seed=7)).sum() for result in results).backward()
        return [*(result.detach() for result in results), *(leaf.grad for leaf in leaves)]

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert float((ours - theirs).abs().max()) <= 1e-4 * float(theirs.abs().max())


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_backbone(family: str, checkpointing: bool) -> None:
    """float32 on the GPU with kernels against float64 on the CPU in torch: states and the gradients of all parameters."""
    slow, fast = tiny_model(family, torch.float32).double(), tiny_model(family, torch.float32).cuda()
    layout, _ = ragged_layout()
    expected_states = hidden_states(fuse(slow), layout)
    states = hidden_states(fuse(fast), layout.to("cuda"), checkpointing=checkpointing)
    assert float((states.cpu() - expected_states).abs().max()) <= 1e-4 * float(expected_states.abs().max())
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(6))
    (expected_states * weights).sum().backward()
    (states * weights.cuda()).sum().backward()
    for (name, parameter), slow_parameter in zip(fast.base_model.named_parameters(), slow.base_model.parameters(), strict=True):
        difference = float((parameter.grad.cpu() - slow_parameter.grad).abs().max())
        assert difference <= 1e-4 * float(slow_parameter.grad.abs().max()), name


@pytest.mark.parametrize("kind", ["every layer", "queries alone", "ranks of their own"])
def test_backbone_with_adapters(kind: str) -> None:
    slow, fast = (adapt(tiny_model("Qwen2", torch.float32), **KINDS[kind]) for _ in range(2))
    slow, fast = slow.double(), fast.cuda()
    layout, _ = ragged_layout()
    expected_states, states = hidden_states(fuse(slow), layout), hidden_states(fuse(fast), layout.to("cuda"))
    assert float((states.cpu() - expected_states).abs().max()) <= 1e-4 * float(expected_states.abs().max())
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(6))
    (expected_states * weights).sum().backward()
    (states * weights.cuda()).sum().backward()
    theirs = lora.adapter_parameters(slow)
    for name, parameter in lora.adapter_parameters(fast).items():
        difference = float((parameter.grad.cpu() - theirs[name].grad).abs().max())
        assert difference <= 1e-4 * float(theirs[name].grad.abs().max()), name


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_backbone_in_bfloat16(family: str) -> None:
    """Kernels and torch round at the same places: neither is further from float32, or from the other, than rounding explains."""
    exact, model = tiny_model(family, torch.float32).cuda(), tiny_model(family, torch.bfloat16).cuda()
    exact.load_state_dict(model.state_dict())
    layout = ragged_layout()[0].to("cuda")

    def run(model: Any, forced: bool) -> Tensor:
        with mock.patch.object(functions, "has_kernels", return_value=forced):
            states = hidden_states(fuse(model), layout)
            gradients = gradients_of_cuda(model, states)
        return torch.cat([states.detach().float().flatten(), *(gradient.float().flatten() for gradient in gradients)])

    reference, in_torch, ours = run(exact, False), run(model, False), run(model, True)
    error = float((in_torch - reference).norm() / reference.norm())
    assert error < 0.1
    assert float((ours - reference).norm() / reference.norm()) <= 2 * error
    assert float((ours - in_torch).norm() / reference.norm()) <= 2 * error


def gradients_of_cuda(model: Any, states: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(6)).to(states)
    (states * weights).sum().backward()
    return [parameter.grad for parameter in model.base_model.parameters()]
