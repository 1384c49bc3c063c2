"""A frozen 4-bit base under adapters: sampling, scoring, training, resuming and merging use the same rounded base."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import interpreter

pytest.importorskip("bitsandbytes", reason="a base in 4 bits needs bitsandbytes")
pytest.importorskip("peft", reason="adapters need peft")

from cohort.engine import build_engine, sample_groups
from cohort.engine.decoders import prove_decoder, prove_local
from cohort.engine.protocol import EngineSetup
from cohort.engine.sampling import find_mismatch_limit
from cohort.errors import EngineError, ModelError
from cohort.model import four_bit, lora
from cohort.model.backbone import ModuleBackbone
from cohort.model.examples import make_examples
from cohort.model.frozen import digest_base
from cohort.model.loading import load_adapted, load_model
from cohort.model.optim import MasterWeights, Optimizer
from cohort.model.policy import Policy
from cohort.ops.fused import functions
from cohort.ops.fused.cpu import CpuDecoder
from cohort.ops.fused.family import fuse
from cohort.ops.fused.kernels_decode import FusedDecoder
from cohort.ops.layout import lay_out
from cohort.recipe.schema import LoraConfig, ModelConfig, OptimizerConfig
from cohort.types import NoiseKey, Outcome, Prompt, Rollout, Sampling
from conftest import relative_difference
from model_zoo import write_model

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
WIDE = {"hidden_size": 128, "intermediate_size": 192}
"""Blocks of 64 weights must hold more than one row's worth, as in a real model."""


def settings(folder: Path, device: str, **more: Any) -> ModelConfig:
    return ModelConfig(source=str(folder), device=device, lora=LoraConfig(rank=4, base_dtype="nf4", **more))


def policy_of(folder: Path, device: str) -> Policy:
    config = settings(folder, device)
    model, tokenizer = load_model(config, 0)
    policy = Policy(model, tokenizer, 1.0, lora.start_adapter(model, config.lora, 0, str(folder)))
    MasterWeights(policy.model, torch.bfloat16 if device == "cuda" else torch.float32)
    return policy


@pytest.mark.parametrize("device", DEVICES)
def test_engine_trainer_reference_and_export_use_the_same_rounded_base(tmp_path: Path, device: str) -> None:
    folder = write_model(tmp_path / "base", **WIDE)
    policy = policy_of(folder, device)
    full, _ = load_model(ModelConfig(source=str(folder), device=device), 0)
    layers = four_bit.find_four_bit_layers(policy.model)
    assert len(layers) == 7 * full.config.num_hidden_layers
    assert policy.num_parameters == sum(value.numel() for value in full.parameters()) + sum(
        value.numel() for value in policy.list_own_parameters().values()
    )
    # It is rounded, by as much as 4 bits round a normal distribution: 9 % of its spread, and never by more than half a gap.
    plain = full.model.layers[0].mlp.up_proj.weight.detach().float()
    rounded = four_bit.restore_weight(policy.model.model.layers[0].mlp.up_proj.base_layer).float()
    assert 0.05 < float((rounded - plain).std() / plain.std()) < 0.15

    # Adapters that do something, on the policy alone: the reference is the base without.
    reference = policy.make_frozen_copy()
    generator = torch.Generator().manual_seed(1)
    for name, value in lora.adapter_parameters(policy.model).items():
        if ".lora_B." in name:
            value.data.copy_(0.05 * torch.randn(value.shape, generator=generator))
    codes = {id(layer.weight) for layer in layers.values()}
    assert {id(layer.weight) for layer in four_bit.find_four_bit_layers(reference.model).values()} == codes, "no second base"

    engine, sentence = build_engine("auto", EngineSetup(policy.model, policy.codec.decode))
    assert "engine hf" not in sentence
    prompts = [Prompt(number, "x", {}, tuple(range(5 + number, 12 + number))) for number in range(3)]
    groups = sample_groups(engine, prompts, Sampling(4, 1.0, 12, ()), NoiseKey(0, "train", 1))
    rollouts = [
        Rollout(prompt, number, sample, completion, Outcome({}, 1.0, True), 0)
        for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
        for sample, completion in enumerate(group)
    ]
    examples = make_examples(rollouts)
    scored = policy.score_examples(examples, 4096)
    largest = max(
        float((ours - example.sampling_logprobs_T).abs().max()) for ours, example in zip(scored, examples, strict=True)
    )
    assert largest <= find_mismatch_limit(policy.model)
    apart = [(ours - base).abs().max() for ours, base in zip(scored, reference.score_examples(examples, 4096), strict=True)]
    assert float(max(apart)) > 1e-3

    # Merged, it is a plain model in full precision that computes the same, and no trace of 4 bits is left in its folder.
    policy.save(tmp_path / "merged", merge=True)
    merged, _ = load_model(ModelConfig(source=str(tmp_path / "merged"), device=device), 0)
    assert not four_bit.find_four_bit_layers(merged)
    ids = torch.arange(9, device=device)[None]
    with torch.no_grad():
        ours, theirs = (model(input_ids=ids).logits.float().log_softmax(-1) for model in (policy.model, merged))
    assert float((ours - theirs).abs().max()) < (1e-4 if device == "cpu" else 0.05)
    # The adapter alone, over the same base read anew in 4 bits.
    policy.save(tmp_path / "adapter")
    again, _, _ = load_adapted(tmp_path / "adapter", settings(folder, device))
    MasterWeights(again, policy.model.dtype)
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, policy.model(input_ids=ids).logits)


def test_an_update_changes_only_the_adapter_with_the_gradient_of_the_rounded_weights(tmp_path: Path) -> None:
    policy = policy_of(write_model(tmp_path / "base", **WIDE), "cpu")
    plain = lora.make_plain_model(policy.model, merge=True)
    before = {name: value.clone() for name, value in policy.model.named_parameters()}
    weights = MasterWeights(policy.model, torch.float32)
    optimizer = Optimizer(weights, OptimizerConfig(learning_rate=1e-3), 1)
    ids = torch.arange(3, 15)[None]
    loss = torch.nn.functional.cross_entropy(policy.model(input_ids=ids).logits[0, :-1], ids[0, 1:])
    loss.backward()
    # dL/dB of a layer is (dL/dW) A^T scaled, where W are the rounded weights of a plain model.
    layer = policy.model.model.layers[1].mlp.down_proj
    twin = plain.model.layers[1].mlp.down_proj.weight.requires_grad_(True)
    theirs = torch.nn.functional.cross_entropy(plain(input_ids=ids).logits[0, :-1], ids[0, 1:])
    theirs.backward()
    wanted = twin.grad @ layer.lora_A["default"].weight.T * layer.scaling["default"]
    assert torch.allclose(loss, theirs, atol=1e-5)
    assert torch.allclose(layer.lora_B["default"].weight.grad, wanted, atol=1e-6)
    optimizer.clip_and_step()
    moved = {name for name, value in policy.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved
    assert all(".lora_B." in name for name in moved)  # A has no gradient while B is zero


def test_products_are_plain_for_any_number_of_rows_with_and_without_gradients(tmp_path: Path) -> None:
    """bitsandbytes uses another kernel for few rows, and on some CPUs rounds its scales when gradients are off."""
    layer = next(iter(four_bit.find_four_bit_layers(policy_of(write_model(tmp_path / "base", **WIDE), "cpu").model).values()))
    weight = four_bit.restore_weight(layer).clone()
    for rows in (1, 5, 300):
        inputs = torch.randn(rows, layer.in_features, generator=torch.Generator().manual_seed(rows), requires_grad=True)
        plain = torch.nn.functional.linear(inputs, weight, layer.bias)
        with torch.no_grad():
            assert torch.equal(layer(inputs), plain)
        product = layer(inputs)
        assert torch.equal(product, plain)
        ours, theirs = (torch.autograd.grad(out.square().sum(), inputs)[0] for out in (product, plain))
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert torch.equal(four_bit.restore_weight(layer), weight), "no call has changed it"


def move_adapters(policy: Policy) -> None:
    generator = torch.Generator().manual_seed(1)
    for value in lora.adapter_parameters(policy.model).values():
        value.data.add_(0.05 * torch.randn(value.shape, generator=generator))


def test_own_code_trains_a_4_bit_base_as_the_modules_do_and_keeps_no_weight(tmp_path: Path) -> None:
    policy = policy_of(write_model(tmp_path / "base", **WIDE), "cpu")
    move_adapters(policy)
    if policy.prepare("auto") != "training with own compiled code":
        pytest.skip("nothing is compiled")
    layout = lay_out([((3, 4, 5), tuple(range(6, 6 + length))) for length in (2, 9, 20)], keys=(0, 0, 0))
    own = lora.adapter_parameters(policy.model)
    wide = {layer.weight.quant_state.shape for layer in four_bit.find_four_bit_layers(policy.model).values()}
    results, kept = [], []
    for backbone in (ModuleBackbone(policy.split.backbone, policy.attention_configs), policy.backbone):
        policy.model.zero_grad(set_to_none=True)
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: kept.append(tensor.shape) or tensor, lambda tensor: tensor
        ):
            states = backbone(layout)
        (states * torch.randn(states.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
        results.append((states.detach(), {name: value.grad for name, value in own.items()}))
    assert not wide & set(kept)
    (expected_states, expected), (states, found) = results
    assert relative_difference(states, expected_states) <= 1e-5
    for name, gradient in expected.items():
        assert relative_difference(found[name], gradient) <= 1e-5, name


@interpreter.needs_interpreter
def test_the_gpus_step_under_the_interpreter_and_the_cpus_refusal(tmp_path: Path) -> None:
    policy = policy_of(write_model(tmp_path / "base", **WIDE), "cpu")
    move_adapters(policy)
    local, fused = prove_local(policy.model), fuse(policy.model)
    with mock.patch.object(functions, "has_kernels", return_value=True):
        prove_decoder(policy.model, local, lambda slots, length: FusedDecoder(fused, slots, length))
    with pytest.raises(EngineError, match="which a 4-bit base is meant to avoid"):
        CpuDecoder(fused, 2, 8)
    _, sentence = build_engine("local", EngineSetup(policy.model, policy.codec.decode))
    assert "the modules of transformers (the CPU decoder needs weights in float32" in sentence


def test_a_base_with_other_scales_has_another_digest(tmp_path: Path) -> None:
    base = policy_of(write_model(tmp_path / "base", **WIDE), "cpu").model
    twice = policy_of(write_model(tmp_path / "twice", scale_of_layers=2.0, **WIDE), "cpu").model
    layer, other = (next(iter(four_bit.find_four_bit_layers(model).values())) for model in (base, twice))
    assert torch.equal(layer.weight, other.weight), "the codes are the same"
    assert digest_base(base) != digest_base(twice)


def test_unsupported_4_bit_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "base")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"model\.lora\.base_dtype: .*needs the package bitsandbytes.*pip install"):
        load_model(settings(folder, "cpu"), 0)
