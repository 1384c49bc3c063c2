"""The local engine over adapters: own code against PEFT's modules, after updates and switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("peft", reason="adapters need peft")

from test_engines import TRAIN, make_model, make_prompts, sampling, text_of

from cohort.engine import sample_groups
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.model import lora
from cohort.model.backbone import ModuleBackbone
from cohort.ops.attention import attention_configs
from cohort.ops.fused.training import FusedBackbone
from cohort.ops.layout import Layout
from cohort.recipe.schema import LoraConfig

WANTED = sampling(group_size=4)


def move(model: Any, spread: float = 0.1, seed: int = 0) -> None:
    """An update in place, as by an optimizer."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in lora.adapter_parameters(model).values():
            value.add_(spread * torch.randn(value.shape, generator=generator))


def make_adapted(family: str = "Llama", **settings: Any) -> Any:
    model = make_model(family)
    lora.start_adapter(model, LoraConfig(**{"rank": 4, **settings}), 0)
    move(model)
    return model


def compare_with_modules(model: Any, engine: Any) -> list[Any]:
    """Assert that the engine samples the same as the modules; returns it."""
    prompts = make_prompts(6)
    slow = LocalEngine(EngineSetup(model, text_of, kernels="modules"))
    found, expected = (sample_groups(one, prompts, WANTED, TRAIN) for one in (engine, slow))
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.token_ids == other.token_ids
            assert np.allclose(one.sampling_logprobs, other.sampling_logprobs, atol=1e-5)
    return found


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("settings", [{}, {"targets": ["q_proj"]}, {"rank": 48}, {"rank": 1, "alpha": 0.3}])
def test_own_code_samples_the_same_as_pefts_modules(family: str, settings: dict[str, Any]) -> None:
    model = make_adapted(family, **settings)
    engine = LocalEngine(EngineSetup(model, text_of, kernels="fused"))
    assert engine.fused is not None
    assert engine.fused.adapters
    compare_with_modules(model, engine)


def test_without_a_compiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_NATIVE", "0")
    model = make_adapted("Qwen2")
    engine = LocalEngine(EngineSetup(model, text_of, kernels="fused"))
    assert "attention in PyTorch (COHORT_NATIVE=0)" in engine.describe()
    compare_with_modules(model, engine)


def test_updates_switches_and_scales_are_seen_by_the_next_call() -> None:
    model = make_adapted()
    engine = LocalEngine(EngineSetup(model, text_of, kernels="fused"))
    seen = [compare_with_modules(model, engine)]
    move(model, seed=1)
    seen.append(compare_with_modules(model, engine))
    lora.switch_adapters(model, False)
    seen.append(compare_with_modules(model, engine))
    lora.switch_adapters(model, True)
    assert compare_with_modules(model, engine) == seen[1]
    for layer in lora.list_lora_layers(model).values():
        layer.scaling["default"] *= 1.5
    seen.append(compare_with_modules(model, engine))
    assert all(one != other for place, one in enumerate(seen) for other in seen[:place])


def set_other_base(model: Any) -> None:
    """As `load_state_dict(..., assign=True)` does: other parameters, not other values of the same."""
    other = {name: 1.2 * value for name, value in model.state_dict().items() if ".lora_" not in name}
    model.load_state_dict(other, strict=False, assign=True)


def turn_adapters(model: Any) -> None:
    """B in column order, as from a decomposition."""
    for layer in lora.list_lora_layers(model).values():
        weight = layer.lora_B["default"].weight
        weight.data = weight.detach().flip(0).t().contiguous().t()


def take_adapter_off(model: Any) -> None:
    mlp = model.base_model.layers[0].mlp
    mlp.up_proj = mlp.up_proj.base_layer


def set_other_norms(model: Any) -> None:
    for norm in (model.base_model.norm, model.base_model.layers[0].input_layernorm):
        norm.weight = torch.nn.Parameter(norm.weight.detach() * torch.linspace(0.5, 2, len(norm.weight)), requires_grad=False)


@pytest.mark.parametrize("change", [set_other_base, turn_adapters, take_adapter_off, set_other_norms])
@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_other_parameters_and_layers_are_seen_by_the_next_call(family: str, change: Callable[[Any], None]) -> None:
    """For sampling and for training: neither may continue with parameters that the model no longer has."""
    model = make_adapted(family)
    engine = LocalEngine(EngineSetup(model, text_of, kernels="fused"))
    modules, own = ModuleBackbone(model.base_model, attention_configs(model)), FusedBackbone(model)
    layout = Layout.from_rows([[1, 2, 3, 4, 5], [3, 1]])
    seen = compare_with_modules(model, engine)
    with torch.no_grad():
        before = own(layout)
        change(model)
        assert torch.allclose(own(layout), modules(layout), atol=1e-4)
        assert not torch.allclose(own(layout), before, atol=1e-2)
    assert compare_with_modules(model, engine) != seen
