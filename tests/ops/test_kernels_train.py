"""The training kernels under Triton's interpreter, on the CPU, against plain torch."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
import triton.language as tl
from torch import Tensor

import interpreter  # noqa: F401 -- repairs it
from cohort.ops.fused import functions, kernels_train
from cohort.ops.fused.family import Projection
from cohort.ops.fused.functions import Heads, Norm, NormInputs, Rotary, TorchOperations

INTERPRETED = type(tl.sum).__name__ == "InterpretedFunction"
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="run by the last test, in a process of its own")

DTYPES = [torch.float32, torch.bfloat16]
# Odd on purpose: no width is a power of two or a multiple of a block, and programs get different numbers of rows.
TOKENS, WIDTH, EPSILON = 21, 72, 1e-5


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32, around: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) + around).to(dtype)


def assert_close(kernel: Tensor | None, expected: Tensor | None, dtype: torch.dtype) -> None:
    if kernel is None or expected is None:
        assert kernel is expected
        return
    assert kernel.dtype == expected.dtype
    assert kernel.shape == expected.shape
    # The interpreter cuts bfloat16 off instead of rounding it: up to a unit in the last place, 2^-7, for each of the (at most
    # four) roundings on the way. Compiled kernels round; ops/test_gpu_training.py holds them to less.
    tolerance = 1e-5 if dtype == torch.float32 else 4 * 2**-7
    scale = float(expected.float().abs().mean()) if expected.numel() else 0.0
    torch.testing.assert_close(kernel.float(), expected.float(), rtol=tolerance, atol=tolerance * scale)


def angles(tokens: int, dim: int) -> tuple[Tensor, Tensor]:
    angle = torch.arange(tokens)[:, None] * 0.1 ** torch.arange(dim // 2)
    return angle.cos(), angle.sin()


@needs_interpreter
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_delta", [True, False])
def test_add_norm_forward(dtype: torch.dtype, with_delta: bool) -> None:
    hidden, weight = random(TOKENS, WIDTH, seed=0, dtype=dtype), random(WIDTH, seed=1, dtype=dtype, around=1.0)
    delta = random(TOKENS, WIDTH, seed=2, dtype=dtype) if with_delta else None
    kernel = kernels_train.add_norm_forward(hidden, delta, weight, EPSILON)
    expected = TorchOperations.add_norm_forward(hidden, delta, weight, EPSILON)
    for ours, theirs in zip(kernel, expected, strict=True):
        assert_close(ours, theirs, dtype)
    if dtype == torch.float32:
        assert torch.equal(kernel[0], expected[0])


@needs_interpreter
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("residual", "want_normed", "want_weight"), [(True, True, True), (False, False, True), (True, False, False)]
)
def test_add_norm_backward(dtype: torch.dtype, residual: bool, want_normed: bool, want_weight: bool) -> None:
    hidden, weight = random(TOKENS, WIDTH, seed=0, dtype=dtype), random(WIDTH, seed=1, dtype=dtype, around=1.0)
    total, normed, inverse = TorchOperations.add_norm_forward(hidden, None, weight, EPSILON)
    d_normed = random(TOKENS, WIDTH, seed=2, dtype=dtype)
    d_total = random(TOKENS, WIDTH, seed=3, dtype=dtype) if residual else None
    arguments = (d_normed, d_total, NormInputs(total, inverse, weight), want_normed, want_weight)
    kernel, expected = kernels_train.add_norm_backward(*arguments), TorchOperations.add_norm_backward(*arguments)
    for ours, theirs in zip(kernel, expected, strict=True):
        assert_close(ours, theirs, dtype)
    if want_normed:
        assert_close(kernel[1], normed, dtype)


@needs_interpreter
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [Heads(6, 2, 12), Heads(3, 1, 16), Heads(20, 4, 8)], ids=str)
@pytest.mark.parametrize("has_norm", [False, True])
def test_rotary(dtype: torch.dtype, heads: Heads, has_norm: bool) -> None:
    tokens = 37
    qkv = random(tokens, heads.width, seed=0, dtype=dtype)
    norms = tuple(random(heads.dim, seed=seed, dtype=dtype, around=1.0) if has_norm else None for seed in (1, 2))
    rotary = Rotary(*angles(tokens, heads.dim), heads, *norms, EPSILON)
    kept = qkv.clone()
    expected = TorchOperations.rotary_forward(qkv, rotary)
    kernel = kernels_train.rotary_forward(qkv, rotary)
    for ours, theirs in zip(kernel, expected, strict=True):
        assert_close(ours, theirs, dtype)
    assert torch.equal(qkv, kept) == has_norm, "without norms the projections themselves are turned; with norms they are kept"

    # Gradients as attention may give them: rows and heads with strides of their own.
    d_query = random(tokens, heads.query, 2 * heads.dim, seed=3, dtype=dtype)[:, :, : heads.dim]
    d_key, d_value = (random(heads.kv, tokens, heads.dim, seed=seed, dtype=dtype).transpose(0, 1) for seed in (4, 5))
    arguments = ((d_query, d_key, d_value), kept if has_norm else None, rotary, True, has_norm)
    for ours, theirs in zip(
        kernels_train.rotary_backward(*arguments), TorchOperations.rotary_backward(*arguments), strict=True
    ):
        assert_close(ours, theirs, dtype)


@needs_interpreter
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [40, 1100])
def test_swiglu(dtype: torch.dtype, columns: int) -> None:
    gate_up, gradient = random(7, 2 * columns, seed=0, dtype=dtype), random(7, columns, seed=1, dtype=dtype)
    gate_up[0, :4] = torch.tensor([100.0, -100.0, 0.0, -20.0])
    assert_close(kernels_train.swiglu_forward(gate_up), TorchOperations.swiglu_forward(gate_up), dtype)
    for want_activation in (False, True):
        kernel = kernels_train.swiglu_backward(gradient.clone(), gate_up, want_activation)
        for ours, theirs in zip(kernel, TorchOperations.swiglu_backward(gradient, gate_up, want_activation), strict=True):
            assert_close(ours, theirs, dtype)


@needs_interpreter
def test_no_tokens() -> None:
    weight = torch.ones(WIDTH)
    total, normed, inverse = kernels_train.add_norm_forward(torch.ones(0, WIDTH), None, weight, EPSILON)
    assert total.shape == normed.shape == (0, WIDTH)
    _, _, d_weight = kernels_train.add_norm_backward(normed, None, NormInputs(total, inverse, weight), True, True)
    assert torch.equal(d_weight, torch.zeros(WIDTH))
    assert kernels_train.swiglu_forward(torch.ones(0, 8)).shape == (0, 4)


@needs_interpreter
@pytest.mark.parametrize("has_norm", [False, True])
def test_blocks_of_a_layer_give_the_gradients_of_the_reference(has_norm: bool) -> None:
    """The autograd functions on kernels against the same functions in torch: the wiring, and memory that is used again."""
    heads = Heads(5, 2, 8)  # 72 columns
    cosine, sine = angles(TOKENS, heads.dim)

    def run(kernels: bool) -> list[Tensor]:
        hidden = random(TOKENS, WIDTH, seed=0).requires_grad_()
        delta = random(TOKENS, WIDTH, seed=1).requires_grad_()
        norms = [random(WIDTH, seed=seed, around=1.0).requires_grad_() for seed in (2, 3)]
        head_norms = [random(heads.dim, seed=seed, around=1.0).requires_grad_() for seed in (4, 5)] if has_norm else []
        qkv, bias, gate_up = random(heads.width, WIDTH, seed=6), random(heads.width, seed=7), random(80, WIDTH, seed=8)
        rows = [heads.query * heads.dim, heads.kv * heads.dim, heads.kv * heads.dim]
        parts, biases = ([part.detach().requires_grad_() for part in whole.split(rows)] for whole in (qkv, bias))
        gate_up_parts = [part.detach().requires_grad_() for part in gate_up.split(40)]
        down = random(WIDTH, 40, seed=9).requires_grad_()
        with mock.patch.object(functions, "has_kernels", return_value=kernels):
            total, query, key, value = functions.norm_linear(
                hidden,
                delta,
                Norm(norms[0], EPSILON),
                Projection(qkv, parts, bias, biases),
                Rotary(cosine, sine, heads, *(head_norms or (None, None)), EPSILON),
            )
            mixed = torch.cat([query, key * 2, value * 3], dim=1).flatten(1).tanh()
            total, projected = functions.norm_linear(total, mixed, Norm(norms[1], EPSILON), Projection(gate_up, gate_up_parts))
            total, normed = functions.add_norm(
                total, functions.swiglu_down(projected, Projection(down.detach(), [down])), Norm(norms[0], EPSILON)
            )
            (normed * random(TOKENS, WIDTH, seed=10)).sum().backward()
        leaves = [hidden, delta, *norms, *head_norms, *parts, *biases, *gate_up_parts, down]
        return [normed.detach(), *(leaf.grad for leaf in leaves)]

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


@pytest.mark.skipif(INTERPRETED, reason="the tests above ran")
@pytest.mark.skipif(torch.cuda.is_available(), reason="ops/test_gpu_training.py compares the compiled kernels here")
def test_in_a_process_with_the_interpreter() -> None:
    """Triton decides when it is imported; where something else imported it first, these tests need a separate process."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "29 passed, 1 skipped" in done.stdout, done.stdout
