"""The training backbone of the Llama and Qwen families, on the CPU: its blocks against autograd, the whole against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_models import (
    EPSILON,
    TOKENS,
    VOCABULARY,
    WIDTH,
    assert_same_gradients,
    from_transformers,
    gradients_of,
    layout_of,
    plain_attention,  # noqa: F401 -- the fixture
    ragged_layout,
    random,
    rms_norm,
    tiny_model,
    widen_norms,
    widen_softmax,
)
from torch import Tensor

from cohort.ops.fused import functions, training
from cohort.ops.fused.family import FusedModel, Projection, fuse
from cohort.ops.fused.functions import Heads, Norm, Rotary
from cohort.ops.fused.training import hidden_states
from conftest import count_kept_bytes, relative_difference

HEADS = Heads(4, 2, 6)


def angles() -> tuple[Tensor, Tensor]:
    angle = torch.arange(TOKENS)[:, None] * 0.1 ** torch.arange(HEADS.dim // 2)
    return angle.cos(), angle.sin()


def turn(rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """As transformers writes it: x cos + rotate_half(x) sin."""
    first, second = rows.chunk(2, dim=-1)
    return (
        rows * torch.cat([cosine, cosine], -1)[:, None] + torch.cat([-second, first], -1) * torch.cat([sine, sine], -1)[:, None]
    )


@pytest.mark.parametrize("with_delta", [True, False])
def test_add_norm(with_delta: bool) -> None:
    def ours(hidden: Tensor, delta: Tensor | None, weight: Tensor) -> Sequence[Tensor]:
        return functions.add_norm(hidden, delta, Norm(weight, EPSILON))

    def plain(hidden: Tensor, delta: Tensor | None, weight: Tensor) -> Sequence[Tensor]:
        total = hidden if delta is None else hidden + delta
        return total, rms_norm(total, weight)

    delta = random(TOKENS, WIDTH, seed=1) if with_delta else None
    assert_same_gradients(ours, plain, [random(TOKENS, WIDTH, seed=0), delta, random(WIDTH, seed=2, around=1)])


@pytest.mark.parametrize("with_bias", [True, False])
def test_norm_linear(with_bias: bool) -> None:
    def ours(hidden: Tensor, delta: Tensor, norm: Tensor, *parts: Tensor) -> Sequence[Tensor]:
        whole = [torch.cat([part.detach() for part in parts[at : at + 2]]) for at in range(0, len(parts), 2)]
        bias = whole[1] if with_bias else None
        return functions.norm_linear(hidden, delta, Norm(norm, EPSILON), Projection(whole[0], parts[:2], bias, parts[2:]))

    def plain(hidden: Tensor, delta: Tensor, norm: Tensor, *parts: Tensor) -> Sequence[Tensor]:
        total = hidden + delta
        normed = rms_norm(total, norm)
        biases = parts[2:] or (None, None)
        return total, torch.cat([F.linear(normed, part, bias) for part, bias in zip(parts[:2], biases, strict=True)], 1)

    leaves = [random(TOKENS, WIDTH, seed=0), random(TOKENS, WIDTH, seed=1), random(WIDTH, seed=2, around=1)]
    leaves += [random(7, WIDTH, seed=3), random(5, WIDTH, seed=4)]
    assert_same_gradients(ours, plain, leaves + ([random(7, seed=5), random(5, seed=6)] if with_bias else []))


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("with_norm", [True, False])
def test_attention_inputs(with_bias: bool, with_norm: bool) -> None:
    rows = [HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim, HEADS.kv * HEADS.dim]
    cosine, sine = angles()

    def ours(hidden: Tensor, delta: Tensor, norm: Tensor, first: Tensor, second: Tensor, *parts: Tensor) -> Sequence[Tensor]:
        whole = [torch.cat([part.detach() for part in parts[at : at + 3]]) for at in range(0, len(parts), 3)]
        projection = Projection(whole[0], parts[:3], whole[1] if with_bias else None, parts[3:])
        return functions.norm_linear(
            hidden, delta, Norm(norm, EPSILON), projection, Rotary(cosine, sine, HEADS, first, second, EPSILON)
        )

    def plain(hidden: Tensor, delta: Tensor, norm: Tensor, first: Tensor, second: Tensor, *parts: Tensor) -> Sequence[Tensor]:
        normed = rms_norm(hidden + delta, norm)
        biases = parts[3:] or (None,) * 3
        query, key, value = (
            F.linear(normed, part, bias).unflatten(1, (-1, HEADS.dim)) for part, bias in zip(parts[:3], biases, strict=True)
        )
        if with_norm:
            query, key = rms_norm(query, first), rms_norm(key, second)
        return hidden + delta, turn(query, cosine, sine), turn(key, cosine, sine), value

    head_norms = [random(HEADS.dim, seed=seed, around=1) if with_norm else None for seed in (3, 4)]
    leaves = [random(TOKENS, WIDTH, seed=0), random(TOKENS, WIDTH, seed=1), random(WIDTH, seed=2, around=1), *head_norms]
    leaves += [random(count, WIDTH, seed=5 + count) for count in rows]
    assert_same_gradients(ours, plain, leaves + ([random(count, seed=90 + count) for count in rows] if with_bias else []))


def swiglu_down(gate_up: Tensor, down: Tensor) -> Tensor:
    return functions.swiglu_down(gate_up, Projection(down.detach(), [down]))


def test_swiglu_down() -> None:
    def plain(gate_up: Tensor, down: Tensor) -> Sequence[Tensor]:
        gate, up = gate_up.chunk(2, dim=1)
        return [(gate / (1 + (-gate).exp()) * up) @ down.t()]

    leaves = [random(TOKENS, 18, seed=0), random(WIDTH, 9, seed=1)]
    assert_same_gradients(lambda *arguments: [swiglu_down(*arguments)], plain, leaves)


def test_only_parameters_that_need_a_gradient_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part of a fused weight frozen, then all parts, then all but the parts: what is left is as before, and nothing more."""
    calls: list[tuple[bool, bool]] = []
    backward = functions.TorchOperations.add_norm_backward

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[-2:])
        return backward(*arguments)

    monkeypatch.setattr(functions.TorchOperations, "add_norm_backward", staticmethod(counted))
    whole = random(12, WIDTH, seed=3)

    def gradients(frozen: Sequence[int]) -> list[Tensor | None]:
        leaves = [random(TOKENS, WIDTH, seed=0), random(WIDTH, seed=2, around=1), whole[:7].clone(), whole[7:].clone()]
        for place, leaf in enumerate(leaves):
            leaf.requires_grad_(place not in frozen)
        hidden, norm, *parts = leaves
        total, projected = functions.norm_linear(hidden, None, Norm(norm, EPSILON), Projection(whole, parts))
        ((total**2).sum() + (projected**2).sum()).backward()
        return [leaf.grad for leaf in leaves]

    everything = gradients([])
    for frozen, expected_call in (([2], [(True, True)]), ([2, 3], [(False, True)]), ([1], [(True, False)]), ([0, 1], [])):
        calls.clear()
        for place, (gradient, full) in enumerate(zip(gradients(frozen), everything, strict=True)):
            if place in frozen:
                assert gradient is None
            else:
                assert relative_difference(gradient, full) <= 1e-12
        assert calls == expected_call

    gate_up, down = random(TOKENS, 18, seed=0), random(WIDTH, 9, seed=1)
    both = [gate_up.clone().requires_grad_(), down.clone().requires_grad_()]
    swiglu_down(*both).pow(2).sum().backward()
    for kept in (0, 1):
        leaves = [gate_up.clone(), down.clone()]
        leaves[kept].requires_grad_()
        swiglu_down(*leaves).pow(2).sum().backward()
        assert leaves[1 - kept].grad is None
        assert relative_difference(leaves[kept].grad, both[kept].grad) <= 1e-12


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["float32", "float64"])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral"])
def test_backbone_is_that_of_transformers(
    family: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family, dtype)
    fused = fuse(model)
    assert fused.layers[0].window == (4 if family == "Mistral" else None)
    assert (fused.layers[0].qkv.bias is not None) == (family == "Qwen2")
    assert (fused.layers[0].query_norm is not None) == (family == "Qwen3")
    if dtype == torch.float64:
        widen_norms(model)
        widen_softmax(monkeypatch)
    layout, rows = ragged_layout()
    theirs = from_transformers(model, rows)
    expected = gradients_of(model, theirs)
    for checkpointing in (False, True):
        ours = hidden_states(fused, layout, checkpointing=checkpointing)
        assert relative_difference(ours.detach(), theirs.detach()) <= tolerance
        found = gradients_of(model, ours)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert relative_difference(found[name], gradient) <= tolerance, name


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_checkpointing_changes_no_bit(family: str) -> None:
    model = tiny_model(family, torch.float32)
    fused, (layout, _) = fuse(model), ragged_layout()
    plain, again = hidden_states(fused, layout), hidden_states(fused, layout, checkpointing=True)
    assert torch.equal(plain, again)
    expected, found = gradients_of(model, plain), gradients_of(model, again)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_frozen_parameters_get_no_gradient_and_the_others_the_same() -> None:
    model = tiny_model("Qwen2", torch.float64)
    fused, (layout, _) = fuse(model), ragged_layout()
    expected = gradients_of(model, hidden_states(fused, layout))
    trained = (
        "layers.1.self_attn.k_proj.weight",
        "layers.0.mlp.down_proj.weight",
        "layers.1.self_attn.v_proj.bias",
        "norm.weight",
    )
    for name, parameter in model.base_model.named_parameters():
        parameter.requires_grad_(name in trained)
    found = gradients_of(model, hidden_states(fused, layout))
    for name, gradient in found.items():
        if name in trained:
            assert relative_difference(gradient, expected[name]) <= 1e-12
        else:
            assert gradient is None


def test_an_update_of_the_parameters_is_an_update_of_the_backbone() -> None:
    model = tiny_model("Llama", torch.float32)
    fused, (layout, rows) = fuse(model), ragged_layout()
    before = hidden_states(fused, layout).detach()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    after = hidden_states(fused, layout).detach()
    assert relative_difference(after, before) > 0.01
    assert relative_difference(after, from_transformers(model, rows).detach()) <= 1e-5


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_kept_keys_and_values_are_the_cache_of_transformers(family: str) -> None:
    model = tiny_model(family, torch.float32)
    fused, (layout, rows) = fuse(model), ragged_layout()
    kept: list[tuple[Tensor, Tensor]] = []
    assert torch.equal(hidden_states(fused, layout, kept=kept), hidden_states(fused, layout))
    caches = [model.base_model(input_ids=row[None], use_cache=True).past_key_values for row in rows]
    for number in range(len(fused.layers)):
        for ours, name in zip(kept[number], ("keys", "values"), strict=True):
            theirs = torch.cat([getattr(cache.layers[number], name)[0].transpose(0, 1) for cache in caches])
            assert relative_difference(ours, theirs.detach()) <= 1e-5


def test_memory_kept_for_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each layer: two residual streams and one number per row of each, queries, keys and values, attention's output, gate
    and up; with checkpointing a single stream. Counted in autograd's saved tensors, without parameters and without attention."""
    model = tiny_model("Llama", torch.float32)
    fused = fuse(model)
    layout = layout_of([torch.arange(16) % VOCABULARY, torch.arange(16) % VOCABULARY])
    group = fused.query_heads // fused.kv_heads

    def attend(layout: Any, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, *arguments: Any) -> Tensor:
        """Something that needs none of its inputs for its backward."""
        return query_THD + (key_TKD + value_TKD).repeat_interleave(group, dim=1)

    monkeypatch.setattr(training, "attend", attend)

    def kept(backbone: FusedModel, checkpointing: bool) -> int:
        return count_kept_bytes(model, lambda: hidden_states(backbone, layout, checkpointing=checkpointing))

    one_layer = replace(fused, layers=fused.layers[:1])
    tokens, hidden, gate_up = 32, 24, 2 * 36
    attended = fused.query_heads * fused.head_dim
    per_token = 2 * (hidden + 1) + attended + gate_up
    assert kept(fused, False) - kept(one_layer, False) == 4 * tokens * per_token
    assert kept(fused, True) - kept(one_layer, True) == 4 * tokens * hidden
