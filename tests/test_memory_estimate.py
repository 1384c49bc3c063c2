"""Memory by formula: against real models, against numbers worked out by hand, and the advice where it does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from cohort import memory_estimate
from cohort.adam8 import Moments
from cohort.memory_estimate import GIB, ModelNumbers, RunNumbers, activation_bytes, estimate, kv_bytes_per_slot, words

QWEN_05B = ModelNumbers(24, 896, 14, 2, 64, 4864, 151936, tied=True, attention_bias=True)
QWEN_15B = ModelNumbers(28, 1536, 12, 2, 128, 8960, 151936, tied=True, attention_bias=True)
QWEN_7B = ModelNumbers(28, 3584, 28, 4, 128, 18944, 152064, attention_bias=True)


def test_parameters_of_published_models():
    """Qwen2.5 0.5B, 1.5B and 7B as their checkpoints have them."""
    assert QWEN_05B.parameters == 494_032_768
    assert QWEN_15B.parameters == 1_543_714_304
    assert QWEN_7B.parameters == 7_615_616_512


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen2", True), ("qwen3", False)])
def test_parameters_of_small_models(family, tied):
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[family]
    config = config_class(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        vocab_size=101,
        tie_word_embeddings=tied,
    )
    model = model_class(config)
    numbers = ModelNumbers(3, 48, 4, 2, 12, 80, 101, tied, attention_bias=family == "qwen2", head_norms=family == "qwen3")
    assert numbers.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_adapters_by_hand():
    """Rank 2, width 8, 2 query heads and 1 kv head of 4, intermediate 10: 2 x (16 + 12 + 12 + 16 + 18 + 18 + 18) per layer."""
    assert ModelNumbers(3, 8, 2, 1, 4, 10, 50).adapter_parameters(2) == 3 * 2 * 110


def test_bytes_per_parameter():
    """18 bytes for full training in bfloat16, 12.03 with 8-bit moments, 16 in float32; 2 and a share of 18 with adapters."""
    count = QWEN_05B.parameters

    def weights(run: RunNumbers) -> float:
        needed = estimate(QWEN_05B, run)
        return sum(needed.held.values()) + needed.training["gradients"]

    assert weights(RunNumbers()) == 18 * count
    assert weights(RunNumbers(state_bits=8)) == 12.03125 * count
    assert weights(RunNumbers(element=4)) == 16 * count
    adapter = QWEN_05B.adapter_parameters(16)
    assert weights(RunNumbers(lora_rank=16)) == 2 * count + 18 * adapter
    assert weights(RunNumbers(lora_rank=16, adapter_parameters=1000)) == 2 * count + 18_000
    assert weights(RunNumbers(reference=True)) == 20 * count
    assert weights(RunNumbers(lora_rank=16, reference=True)) == 2 * count + 18 * adapter
    assert weights(RunNumbers(critic=True)) == 36 * count
    assert Moments.zeros(torch.empty(1 << 16)).num_bytes == memory_estimate.MOMENT_BYTES[8] * (1 << 16)


def test_activations_and_cache_by_hand():
    """Qwen2.5 0.5B, one token: 24 layers x (2 bytes x (2 x 896 + 2 x 896 + 2 x 128 + 2 x 4864) + 4 bytes x 16) = 652,800."""
    assert activation_bytes(QWEN_05B, 1, 2, False) == 24 * (2 * (1792 + 1792 + 256 + 9728) + 64) == 652_800
    assert activation_bytes(QWEN_05B, 10, 2, True) == 10 * (24 * 2 * 896 + 27_136 + 64)
    assert kv_bytes_per_slot(QWEN_05B, 640, 2) == 2 * 2 * 24 * 2 * 64 * 640 == 7_864_320
    needed = estimate(QWEN_05B, RunNumbers(slots=3, longest=640, cache_element=4))
    assert needed.sampling == {"keys and values": 2 * 3 * 7_864_320.0}
    assert needed.training["loss head"] == 2 * 64 * 2**20


def test_training_and_sampling_take_turns():
    needed = estimate(QWEN_05B, RunNumbers())
    held = sum(needed.held.values())
    assert needed.peak == held + sum(needed.training.values()) > held + needed.sampling["keys and values"]
    crowded = estimate(QWEN_05B, RunNumbers(slots=100_000))
    assert crowded.peak == held + crowded.sampling["keys and values"]


def fits(model: ModelNumbers, run: RunNumbers, free: float) -> bool:
    return estimate(model, run).peak <= free


@pytest.mark.parametrize(
    ("model", "run", "gib", "expected"),
    [
        (QWEN_05B, RunNumbers(), 140, "it fits."),
        (QWEN_05B, RunNumbers(micro_batch_tokens=1 << 18), 100, "Set train.micro_batch_tokens = "),
        (QWEN_05B, RunNumbers(micro_batch_tokens=1024, slots=4000, longest=2000), 24, "Set sampling.slots = "),
        (
            QWEN_15B,
            RunNumbers(micro_batch_tokens=16384, longest=16384, slots=16),
            40,
            "Set train.activation_checkpointing = true.",
        ),
        (QWEN_7B, RunNumbers(micro_batch_tokens=8192), 120, "Set optimizer.state_bits = 8."),
        (QWEN_7B, RunNumbers(micro_batch_tokens=8192, state_bits=8), 80, "Set model.lora.rank = 16."),
        (QWEN_7B, RunNumbers(), 10, "no setting makes it fit"),
    ],
)
def test_words_name_the_first_setting_to_change(model, run, gib, expected):
    needed = estimate(model, run)
    said = words(needed, gib * GIB)
    assert expected in said
    assert f"{needed.peak / GIB:.1f} GiB at the peak" in said
    advised = memory_estimate.made_to_fit(needed, gib * GIB)
    if "no setting" in expected:
        assert advised is None
    else:
        assert advised is not None
        assert fits(model, advised, gib * GIB)
        assert fits(model, run, gib * GIB) == (advised == run) == ("it fits." in said)


def test_advised_sizes_are_as_large_as_fit():
    run, free = RunNumbers(micro_batch_tokens=1 << 18, slots=20_000), 60 * GIB
    advised = memory_estimate.made_to_fit(estimate(QWEN_05B, run), free)
    assert advised is not None
    assert set(dict(memory_estimate.differences(run, advised))) == {"train.micro_batch_tokens", "sampling.slots"}
    assert not fits(QWEN_05B, replace(advised, micro_batch_tokens=advised.micro_batch_tokens + 256), free)
    assert not fits(QWEN_05B, replace(advised, slots=advised.slots + 1), free)
    assert advised.micro_batch_tokens % 256 == 0


def test_the_table_of_the_documentation():
    """Every figure of docs/memory.md is what the function gives."""
    text = (Path(__file__).parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")
    for line in memory_estimate.table({"0.5B": QWEN_05B, "1.5B": QWEN_15B, "7B": QWEN_7B}):
        assert line in text, line
