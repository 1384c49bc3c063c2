"""Adapters in compiled training and in every decoder: bits where the trainer has them, the numbers of PEFT's modules everywhere."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import interpreter

pytest.importorskip("peft", reason="adapters need peft")

from fused_models import KINDS, adapt
from test_fused_cpu import build, decode, prompts_and_rest

from cohort.engine.decoders import prove_decoder, prove_local
from cohort.errors import EngineError
from cohort.model import lora
from cohort.model.backbone import ModuleBackbone
from cohort.ops.attention import attention_configs
from cohort.ops.fused import cpu_native, functions, native, training
from cohort.ops.fused.cpu import CpuDecoder
from cohort.ops.fused.cpu_native import NativeDecoder
from cohort.ops.fused.family import fuse
from cohort.ops.fused.kernels_decode import FusedDecoder
from cohort.ops.fused.projection import Adapters, fill_zero_adapters
from cohort.ops.fused.training import FusedBackbone
from cohort.ops.layout import lay_out
from conftest import relative_difference


def compiled_backbone(model: Any, **options: Any) -> FusedBackbone:
    try:
        return FusedBackbone(model, **options)
    except EngineError as problem:
        pytest.skip(str(problem))


LAYOUTS = {
    "ragged": lay_out([((), tuple(range(length))) for length in (5, 1, 21)]),
    "one token": lay_out([((), (3,))]),
    "prompts": lay_out([((1, 2, 3, 4, 5), tuple(range(length))) for length in (2, 9, 20)], keys=(0, 0, 0)),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("family", "kind"), [("llama", {"r": 16}), ("qwen2", {"r": 16}), ("qwen3", {"r": 16}), ("llama", {"r": 3})]
)
def test_compiled_training_is_that_of_peft(family: str, kind: dict[str, Any], name: str) -> None:
    """Forward bits too, from rank 12 on: the products of narrower A have other bits laid together than apart."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2} | (
        {"head_dim": 16} if family == "qwen3" else {}
    )
    model, layout = adapt(build(family, **sizes), moved=0.05, **kind), LAYOUTS[name]
    names = lora.adapter_parameters(model)

    def run(backbone: Any) -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad(set_to_none=True)
        states = backbone(layout)
        (states * torch.randn(states.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
        return states.detach(), {name: value.grad for name, value in names.items()}

    expected_states, expected = run(ModuleBackbone(model.base_model, attention_configs(model)))
    states, found = run(compiled_backbone(model))
    assert relative_difference(states, expected_states) <= 1e-5
    assert kind["r"] < 12 or torch.equal(states, expected_states)
    for parameter, gradient in expected.items():
        largest = max(float(gradient.abs().max()), 1e-3)
        assert float((found[parameter] - gradient).abs().max()) <= 1e-5 * largest, parameter
    again_states, again = run(compiled_backbone(model, checkpointing=True))
    assert torch.equal(again_states, states)
    assert all(torch.equal(again[name], found[name]) for name in names)


def make_native(fused: Any, slots: int, length: int) -> NativeDecoder:
    try:
        library = native.load_library(fused.head_dim, fused.query_heads // fused.kv_heads, fused.embedding.shape[1])
    except native.NoNative as problem:
        pytest.skip(f"nothing is compiled: {problem}")
    return NativeDecoder(fused, slots, length, library)


@pytest.mark.parametrize("make", [CpuDecoder, make_native], ids=["torch", "compiled"])
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", {"r": 16}),
        ("qwen2", {"r": 16}),
        ("qwen3", {"r": 16}),
        ("mistral", {"r": 16}),
        ("llama", {"r": 16, "target_modules": ["k_proj", "down_proj"]}),
    ],
)
def test_decoding_has_the_bits_of_pefts_modules(family: str, kind: dict[str, Any], make: Any) -> None:
    """The demo's width: ragged prompts, and steps after them."""
    model = adapt(build(family, num_hidden_layers=2), moved=0.05, **kind)
    tokens_BT, prompt_B = prompts_and_rest(20, 32)
    found_BTH, expected_BTH = decode(make(fuse(model), 20, 32), model, tokens_BT, prompt_B, steps=24)
    assert torch.equal(found_BTH, expected_BTH)


@pytest.mark.parametrize("kind", KINDS)
def test_decoders_have_the_same_bits_and_the_numbers_of_peft(kind: str) -> None:
    model = adapt(build("llama", num_hidden_layers=2), moved=0.05, **KINDS[kind])
    tokens_BT, prompt_B = prompts_and_rest(20, 32)
    compiled = make_native(fuse(model), 20, 32)
    found_BTH, expected_BTH = decode(compiled, model, tokens_BT, prompt_B, steps=24)
    plain_BTH, _ = decode(CpuDecoder(fuse(model), 20, 32), model, tokens_BT, prompt_B, steps=24)
    assert torch.equal(found_BTH, plain_BTH)
    logprobs = [model.lm_head(hidden).log_softmax(-1) for hidden in (found_BTH, expected_BTH)]
    assert (logprobs[0] - logprobs[1]).abs().max() <= 1e-5


def test_whole_steps_are_compared_with_adapters_that_do_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """B starts at zero, where any mistake would go unnoticed: it is made up for the comparison, and zero again after it."""
    model = adapt(build("llama", num_hidden_layers=2), moved=0.0, r=16)
    monkeypatch.setattr(cpu_native, "_whole_steps", {})
    if not make_native(fuse(model), 20, 16).whole_steps:
        pytest.skip("PyTorch shows no products here")
    fill = cpu_native.fill_adapters

    def fill_wrongly(adapters: Adapters) -> Any:
        structure = fill(adapters)
        structure.filled[0].scale *= 1.001
        return structure

    monkeypatch.setattr(cpu_native, "_whole_steps", {})
    monkeypatch.setattr(cpu_native, "fill_adapters", fill_wrongly)
    assert not make_native(fuse(model), 20, 16).whole_steps
    assert not any(value.any() for name, value in lora.adapter_parameters(model).items() if ".lora_B." in name)


def test_whole_steps_are_compared_for_each_choice_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter beside a query has other products than one beside a key, which gives fewer numbers."""
    monkeypatch.setattr(cpu_native, "_whole_steps", compared := {})
    for count, target in enumerate(("q_proj", "k_proj", "o_proj"), 1):
        decoder = make_native(fuse(adapt(build("llama", num_hidden_layers=1), target_modules=[target])), 20, 16)
        if decoder.native.borrowed is None:
            pytest.skip("PyTorch shows no products here")
        assert len(compared) == count


def test_a_backbone_is_proven_with_adapters_that_do_something(monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapt(build("llama", num_hidden_layers=2), moved=0.0)
    backbone, modules = compiled_backbone(model), ModuleBackbone(model.base_model, attention_configs(model))
    backbone.prove(modules)
    add_to = Adapters.add_to
    monkeypatch.setattr(Adapters, "add_to", lambda self, projected, rows: add_to(self, projected, 1.1 * rows))
    with pytest.raises(EngineError, match="differ from its modules"):
        backbone.prove(modules)
    assert not any(value.any() for name, value in lora.adapter_parameters(model).items() if ".lora_B." in name)


def test_made_up_adapters_are_zero_again_whatever_happens() -> None:
    model = adapt(build("llama", num_hidden_layers=2), moved=0.0)
    kept = model.base_model.layers[0].mlp.up_proj.lora_B["default"].weight
    with torch.no_grad():
        kept.fill_(0.5)
    seen = []

    def fail() -> None:
        with fill_zero_adapters(fuse(model).adapters):
            seen.append((kept == 0.5).all() and all(value.any() for value in lora.adapter_parameters(model).values()))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [True]
    ups = {name: value for name, value in lora.adapter_parameters(model).items() if ".lora_B." in name}
    assert [name for name, value in ups.items() if value.any()] == ["model.layers.0.mlp.up_proj.lora_B.default.weight"]


@interpreter.needs_interpreter
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_the_gpus_step_is_pefts_model_under_the_interpreter(family: str) -> None:
    """Prefill, load, steps; after an update in place the same decoder gives the new model, as a captured graph would."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    sizes |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2}
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**sizes)).eval()
    adapt(model, r=3, rank_pattern={"v_proj": 2})
    fused, made = fuse(model), []

    def make(slots: int, length: int) -> FusedDecoder:
        made.append(FusedDecoder(fused, slots, length))
        return made[-1]

    with mock.patch.object(functions, "has_kernels", return_value=True):
        prove_decoder(model, prove_local(model), make)
        with torch.no_grad():
            for value in lora.adapter_parameters(model).values():
                value.mul_(1.5)
        prove_decoder(model, prove_local(model), lambda slots, length: made[0])
    broken = model.base_model.layers[1].mlp.gate_proj
    broken.lora_B["default"].weight = nn.Parameter(-broken.lora_B["default"].weight.detach())
    with pytest.raises(EngineError, match="differ from its plain forward"):
        prove_decoder(model, prove_local(model), lambda slots, length: made[0])
    assert not fused.is_current()


def test_a_proof_in_bfloat16_finds_an_adapter_that_is_missing_in_one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "load_operations", lambda fused: None)  # plain torch, which also computes in bfloat16
    model = adapt(build("llama", num_hidden_layers=8, hidden_size=128), moved=0.0, r=16).to(torch.bfloat16)
    backbone, modules = FusedBackbone(model), ModuleBackbone(model.base_model, attention_configs(model))
    backbone.prove(modules)
    missing, add_to = backbone.fused.layers[4].gate_up.adapters, Adapters.add_to

    def add_others(self: Adapters, projected_TP: Tensor, rows_TI: Tensor) -> Tensor:
        return add_to(self, torch.empty_like(projected_TP) if self is missing else projected_TP, rows_TI)

    monkeypatch.setattr(Adapters, "add_to", add_others)
    with pytest.raises(EngineError, match="of their size"):
        backbone.prove(modules)
