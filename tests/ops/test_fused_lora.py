"""Adapters beside fused projections: blocks against autograd, whole models against PEFT's modules, decoders against the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import interpreter

pytest.importorskip("peft", reason="adapters need peft")

import peft
from fused_models import (
    EPSILON,
    KINDS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    adapt,
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

from cohort.errors import EngineError
from cohort.model import lora
from cohort.ops.fused import functions, training
from cohort.ops.fused.family import fuse
from cohort.ops.fused.functions import Norm
from cohort.ops.fused.projection import Adapters, LowRank, Projection
from cohort.ops.fused.training import hidden_states
from conftest import count_kept_bytes, relative_difference

# -- blocks ------------------------------------------------------------------------------------------------------------


def make_projection(parts: Sequence[Tensor], downs: Sequence[Tensor], ups: Sequence[Tensor], at: Sequence[int]) -> Projection:
    """Frozen layers, those at `at` with an adapter of scale 0.7, 1.7 and so on."""
    ends = [sum(len(part) for part in parts[: place + 1]) for place in range(len(parts))]
    columns = [slice(ends[place] - len(parts[place]), ends[place]) for place in at]
    found = [LowRank(down, up, 0.7 + number) for number, (down, up) in enumerate(zip(downs, ups, strict=True))]
    adapters = Adapters(torch.cat([down.detach() for down in downs]), found, columns)
    return Projection(torch.cat(list(parts)).detach(), [part.detach() for part in parts], adapters=adapters)


def multiply_plainly(rows: Tensor, parts: Sequence[Tensor], downs: Sequence[Tensor], ups: Sequence[Tensor], at: Any) -> Tensor:
    outputs = [F.linear(rows, part.detach()) for part in parts]
    for number, (place, down, up) in enumerate(zip(at, downs, ups, strict=True)):
        outputs[place] = outputs[place] + (0.7 + number) * (rows @ down.t()) @ up.t()
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("at", [(0,), (1,), (0, 1)])
def test_norm_linear(at: tuple[int, ...]) -> None:
    parts = [random(7, WIDTH, seed=3), random(5, WIDTH, seed=4)]

    def ours(hidden: Tensor, delta: Tensor, norm: Tensor, *leaves: Tensor) -> Sequence[Tensor]:
        projection = make_projection(parts, leaves[: len(at)], leaves[len(at) :], at)
        return functions.norm_linear(hidden, delta, Norm(norm, EPSILON), projection)

    def plain(hidden: Tensor, delta: Tensor, norm: Tensor, *leaves: Tensor) -> Sequence[Tensor]:
        total = hidden + delta
        return total, multiply_plainly(rms_norm(total, norm), parts, leaves[: len(at)], leaves[len(at) :], at)

    leaves = [random(TOKENS, WIDTH, seed=0), random(TOKENS, WIDTH, seed=1), random(WIDTH, seed=2, around=1)]
    leaves += [random(2 + place, WIDTH, seed=5 + place) for place in at]
    leaves += [random(len(parts[place]), 2 + place, seed=8 + place) for place in at]
    assert_same_gradients(ours, plain, leaves)


def test_project_and_swiglu_down() -> None:
    weight, wide = [random(WIDTH, 9, seed=1)], random(TOKENS, 18, seed=0)

    def plain(gate_up: Tensor, down: Tensor, up: Tensor) -> Sequence[Tensor]:
        gate, other = gate_up.chunk(2, dim=1)
        return [multiply_plainly(gate / (1 + (-gate).exp()) * other, weight, [down], [up], [0])]

    leaves = [wide, random(3, 9, seed=2), random(WIDTH, 3, seed=3)]
    assert_same_gradients(
        lambda rows, *pair: [functions.swiglu_down(rows, make_projection(weight, pair[:1], pair[1:], [0]))], plain, leaves
    )
    leaves[0] = random(TOKENS, 9, seed=5)
    assert_same_gradients(
        lambda rows, *pair: [functions.project(rows, make_projection(weight, pair[:1], pair[1:], [0]))],
        lambda rows, *pair: [multiply_plainly(rows, weight, pair[:1], pair[1:], [0])],
        leaves,
    )


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_what_needs_no_gradient_gets_none_and_the_others_the_same(frozen: int) -> None:
    """The rows, A, B: each in turn."""
    weight, made = [random(WIDTH, 9, seed=1)], (random(TOKENS, 9, seed=5), random(3, 9, seed=2), random(WIDTH, 3, seed=3))
    wide = (random(TOKENS, 18, seed=5), *made[1:])

    def run(function: Any, inputs: Sequence[Tensor], trained: Sequence[int]) -> list[Tensor | None]:
        leaves = [leaf.clone().requires_grad_(place in trained) for place, leaf in enumerate(inputs)]
        function(leaves[0], make_projection(weight, leaves[1:2], leaves[2:], [0])).square().sum().backward()
        return [leaf.grad for leaf in leaves]

    others = [place for place in range(3) if place != frozen]
    for function, inputs in ((functions.project, made), (functions.swiglu_down, wide)):
        found, expected = run(function, inputs, others), run(function, inputs, range(3))
        assert found[frozen] is None
        assert all(relative_difference(found[place], expected[place]) <= 1e-12 for place in others)


def test_a_step_between_forward_and_backward_is_noticed() -> None:
    model = adapt(tiny_model("Llama", torch.float32))
    states = hidden_states(fuse(model), ragged_layout()[0])
    with torch.no_grad():
        model.base_model.layers[0].mlp.down_proj.lora_B["default"].weight.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


# -- whole models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("family", "kind"),
    [*(("Qwen2", kind) for kind in KINDS), *((family, "every layer") for family in ("Llama", "Qwen3", "Mistral"))],
)
def test_backbone_is_that_of_peft(
    family: str, kind: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapt(tiny_model(family, dtype), **KINDS[kind])
    fused = fuse(model)
    if dtype == torch.float64:
        widen_norms(model)
        widen_softmax(monkeypatch)
    layout, rows = ragged_layout()
    theirs = from_transformers(model, rows)
    expected = gradients_of(model, theirs)
    own = {name.removeprefix("model.") for name in lora.adapter_parameters(model)}
    assert {name for name, gradient in expected.items() if gradient is not None} == own
    plain = hidden_states(fused, layout)
    assert relative_difference(plain.detach(), theirs.detach()) <= tolerance
    found = gradients_of(model, plain)
    assert {name for name, gradient in found.items() if gradient is not None} == own
    for name in own:
        assert relative_difference(found[name], expected[name]) <= tolerance, name
    again = hidden_states(fused, layout, checkpointing=True)
    assert torch.equal(again, plain)
    checkpointed = gradients_of(model, again)
    assert all(torch.equal(checkpointed[name], found[name]) for name in own)


def test_in_bfloat16_nothing_is_lost_to_rounding_that_peft_keeps() -> None:
    """Adapters in bfloat16, as training casts them: states and gradients are no further from float64 than those of the modules."""
    model = adapt(tiny_model("Qwen2", torch.float32), r=8).bfloat16()
    exact = adapt(tiny_model("Qwen2", torch.float32), r=8).double()
    layout, rows = ragged_layout()

    def run(model: Any, states: Tensor) -> Tensor:
        model.zero_grad(set_to_none=True)
        (states * random(*states.shape, seed=6).to(states.dtype)).sum().backward()
        own = lora.adapter_parameters(model).values()
        return torch.cat([states.detach().double().flatten(), *(value.grad.double().flatten() for value in own)])

    exact.load_state_dict(model.state_dict())
    reference = run(exact, hidden_states(fuse(exact), layout))
    ours, theirs = run(model, hidden_states(fuse(model), layout)), run(model, from_transformers(model, rows))
    errors = [float((one - reference).norm() / reference.norm()) for one in (ours, theirs)]
    assert errors[0] <= 1.25 * errors[1]
    assert errors[1] < 0.1, errors


def test_adapters_count() -> None:
    """That the comparison above could fail: other adapters are other states."""
    layout, _ = ragged_layout()
    states = [hidden_states(fuse(adapt(tiny_model("Llama", torch.float32), moved=moved)), layout) for moved in (0.0, 0.1)]
    plain = hidden_states(fuse(tiny_model("Llama", torch.float32)), layout)
    assert torch.equal(states[0], plain)
    assert relative_difference(states[1].detach(), plain.detach()) > 0.1


def test_an_update_is_seen_at_once_and_a_switch_is_noticed() -> None:
    model = adapt(tiny_model("Qwen2", torch.float32))
    fused, (layout, rows) = fuse(model), ragged_layout()
    with torch.no_grad():
        for value in lora.adapter_parameters(model).values():
            value.mul_(1.2)
    assert fused.is_current()
    assert relative_difference(hidden_states(fused, layout).detach(), from_transformers(model, rows).detach()) <= 1e-5
    lora.switch_adapters(model, False)
    assert not fused.is_current()
    off = fuse(model)
    assert off.adapters == []
    assert relative_difference(hidden_states(off, layout).detach(), from_transformers(model, rows).detach()) <= 1e-5
    lora.switch_adapters(model, True)
    assert not off.is_current()
    assert fused.is_current()
    model.base_model.layers[1].mlp.up_proj.scaling["default"] *= 2
    assert not fused.is_current()
    assert relative_difference(hidden_states(fuse(model), layout).detach(), from_transformers(model, rows).detach()) <= 1e-5
    value = model.base_model.layers[0].self_attn.k_proj.lora_A["default"].weight
    now = fuse(model)
    value.data = value.data.clone()
    assert not now.is_current()
    assert fuse(model).is_current()


def test_a_copy_over_the_same_base_leaves_the_first_one_as_it_is() -> None:
    model = adapt(tiny_model("Llama", torch.float32))
    fused, (layout, _) = fuse(model), ragged_layout()
    expected = hidden_states(fused, layout).detach()
    copied = lora.copy_over_base(model)
    with torch.no_grad():
        for value in lora.adapter_parameters(copied).values():
            value.mul_(0.5)
    other = fuse(copied)
    assert fused.is_current()
    assert other.is_current()
    assert torch.equal(hidden_states(fused, layout), expected)
    assert not torch.equal(hidden_states(other, layout), expected)
    ours, theirs = ({value.untyped_storage().data_ptr() for value in one.parameters()} for one in (model, copied))
    adapters = {value.untyped_storage().data_ptr() for value in lora.adapter_parameters(copied).values()}
    assert theirs - adapters == ours & theirs
    assert not adapters & ours


def merge(model: Any) -> None:
    for layer in lora.list_lora_layers(model).values():
        layer.merge()


def add_second(model: Any) -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, model, adapter_name="second")


def activate_both(model: Any) -> None:
    add_second(model)
    model.base_model.layers[0].self_attn.q_proj.set_adapter(["default", "second"])


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (merge, {}, "the adapter of q_proj of layer 0 is merged into its weight"),
        (activate_both, {}, r"q_proj of layer 0 has several adapters switched on \(default, second\)"),
        (lambda model: None, {"use_dora": True}, "is a variant of LoRA or has a bias"),
        (lambda model: None, {"lora_dropout": 0.1}, "the adapter of q_proj of layer 0 has dropout"),
        (
            lambda model: model.bfloat16() and adapter_to(model, torch.float32),
            {},
            "is in torch.float32, what it is added to in",
        ),
    ],
)
def test_what_is_not_plain_lora_is_refused_by_name(change: Any, kind: dict[str, Any], reason: str) -> None:
    model = adapt(tiny_model("Llama", torch.float32), **kind)
    change(model)
    with pytest.raises(EngineError, match=reason):
        fuse(model)


def adapter_to(model: Any, dtype: torch.dtype) -> None:
    for value in lora.adapter_parameters(model).values():
        value.data = value.data.to(dtype)


def test_of_two_adapters_the_one_that_is_switched_on_counts() -> None:
    model = adapt(tiny_model("Llama", torch.float32))
    layout, rows = ragged_layout()
    expected = hidden_states(fuse(model), layout).detach()
    add_second(model)
    for active in ("default", "second"):
        for layer in lora.list_lora_layers(model).values():
            layer.set_adapter(active)
        found = hidden_states(fuse(model), layout).detach()
        assert torch.equal(found, expected) == (active == "default")
        assert relative_difference(from_transformers(model, rows).detach(), found) <= 1e-5


def test_memory_kept_for_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plain model keeps of each layer, and A x: as many numbers as there are ranks."""
    model = adapt(tiny_model("Llama", torch.float32), r=3)
    fused = fuse(model)
    layout = layout_of([torch.arange(16) % VOCABULARY, torch.arange(16) % VOCABULARY])
    group = fused.query_heads // fused.kv_heads
    monkeypatch.setattr(
        training, "attend", lambda layout, query, key, value, *rest: query + (key + value).repeat_interleave(group, dim=1)
    )

    def kept(backbone: Any, checkpointing: bool) -> int:
        return count_kept_bytes(model, lambda: hidden_states(backbone, layout, checkpointing=checkpointing))

    three, two = fused, replace(fused, layers=fused.layers[:1])
    per_token = 2 * (24 + 1) + fused.query_heads * fused.head_dim + 2 * 36 + 7 * 3
    assert kept(three, False) - kept(two, False) == 4 * 32 * per_token
    assert kept(three, True) - kept(two, True) == 4 * 32 * 24


# -- kernels of a GPU --------------------------------------------------------------------------------------------------


@interpreter.needs_interpreter
def test_training_kernels_with_adapters_under_the_interpreter() -> None:
    model = adapt(tiny_model("Qwen2", torch.float32))
    fused, (layout, _) = fuse(model), ragged_layout()
    results = []
    for kernels in (True, False):
        with mock.patch.object(functions, "has_kernels", return_value=kernels):
            states = hidden_states(fused, layout)
            results.append((states.detach(), gradients_of(model, states)))
    assert relative_difference(results[0][0], results[1][0]) <= 1e-5
    for name, gradient in results[1][1].items():
        if gradient is not None:
            assert relative_difference(results[0][1][name], gradient) <= 1e-5, name
