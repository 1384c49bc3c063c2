"""The CPU decode step against the trainer's pass over whole sequences: ragged rows, every family, threads, moved rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from cohort.errors import EngineError
from cohort.ops.attention import attention_configs, use_attention
from cohort.ops.cached_attention import SLOT_ATTENTION, PrefixCache, hidden_states
from cohort.ops.fused import cpu
from cohort.ops.fused.cpu import CpuDecoder, DecodeMemory, intra_op_threads
from cohort.ops.fused.family import FusedModel, fuse
from cohort.ops.products import count_missing_rows

VOCABULARY = 29
NOT_DONE_B = torch.zeros(64, dtype=torch.int32)
DEMO: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}


def build(family: str, **changes: Any) -> Any:
    shape = DEMO | changes
    config: Any = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**shape)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**{"sliding_window": 7} | shape)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**shape)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**{"head_dim": 32} | shape)),
    }[family]
    torch.manual_seed(0)
    model = config().eval()
    with torch.no_grad():
        # Noise on everything: norms of one and biases of zero would hide where they are applied.
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.02 * torch.randn(parameter.shape))
    return model


def whole(model: Any, token_ids_BT: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Hidden states [B, T, H] of a pass over whole sequences, with the trainer's attention, and each layer's keys and values."""
    rows, length = token_ids_BT.shape
    token_ids_BT = torch.cat([token_ids_BT, token_ids_BT.new_zeros(count_missing_rows(rows, token_ids_BT.device), length)])
    cache = PrefixCache(model.config.num_hidden_layers)
    with torch.no_grad(), use_attention(attention_configs(model), SLOT_ATTENTION):
        hidden_BTH = hidden_states(model.base_model, cache, token_ids_BT, torch.arange(length).expand_as(token_ids_BT))
    keys, values = cache.all()
    return hidden_BTH[:rows], [key[:rows] for key in keys], [value[:rows] for value in values]


def prompts_and_rest(rows: int, length: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Tokens [B, T], and how many of each row are its prompt."""
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(0, VOCABULARY, (rows, length), generator=generator)
    return tokens_BT, torch.randint(1, 8, (rows,), generator=generator)


def decode(decoder: CpuDecoder, model: Any, tokens_BT: Tensor, prompt_B: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Load the prompts and decode the tokens that follow; hidden states [B, steps, H], and those of the trainer."""
    rows = torch.arange(len(prompt_B))
    expected_BTH, _, _ = whole(model, tokens_BT)
    _, keys, values = whole(model, tokens_BT[:, : int(prompt_B.max())])
    decoder.load(rows, decoder.stack(keys, values), rows)
    found, positions_B = [], prompt_B.clone()
    for _ in range(steps):
        tokens_B = tokens_BT[rows, positions_B]
        found.append(decoder.step(tokens_B, positions_B, NOT_DONE_B[: len(rows)], int(positions_B.max()) + 1).clone())
        positions_B = positions_B + 1
    at_BT = prompt_B[:, None] + torch.arange(steps)
    return torch.stack(found, 1), expected_BTH[rows[:, None], at_BT]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"hidden_size": 32, "intermediate_size": 48}),
        ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("llama", {"rope_parameters": YARN}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_ragged_rows_have_the_trainers_bits_in_every_family(family, changes):
    """Prompts of 1 to 7 tokens, 24 steps over the edges of the blocks that attention reads; exact in float32."""
    model = build(family, num_hidden_layers=2, **changes)
    tokens_BT, prompt_B = prompts_and_rest(20, 32)
    found_BTH, expected_BTH = decode(CpuDecoder(fuse(model), 20, 32), model, tokens_BT, prompt_B, steps=24)
    assert torch.equal(found_BTH, expected_BTH)


@pytest.mark.parametrize("rows", [1, 5, 16, 64])
def test_the_demos_model_has_the_trainers_bits_at_any_number_of_rows(rows):
    model = build("llama")
    tokens_BT, prompt_B = prompts_and_rest(rows, 24)
    found_BTH, expected_BTH = decode(CpuDecoder(fuse(model), rows, 24), model, tokens_BT, prompt_B, steps=16)
    assert torch.equal(found_BTH, expected_BTH)


@pytest.mark.parametrize("width", [256, 80])
def test_other_sizes_agree_within_rounding(width):
    """Whether bits are equal at other widths is up to the matrix library; log-probs agree whatever it does."""
    model = build("qwen2", hidden_size=width, intermediate_size=704)
    tokens_BT, prompt_B = prompts_and_rest(20, 24)
    found_BTH, expected_BTH = decode(CpuDecoder(fuse(model), 20, 24), model, tokens_BT, prompt_B, steps=16)
    logprobs = [model.lm_head(hidden).log_softmax(-1) for hidden in (found_BTH, expected_BTH)]
    assert (logprobs[0] - logprobs[1]).abs().max() <= 1e-5


def test_inexact_attention_differs_only_by_rounding():
    model = build("llama")
    tokens_BT, prompt_B = prompts_and_rest(20, 48)
    decoder = CpuDecoder(fuse(model), 20, 48, exact=False)
    assert decoder.cache.dtype == torch.float32
    found_BTH, expected_BTH = decode(decoder, model, tokens_BT, prompt_B, steps=40)
    logprobs = [model.lm_head(hidden).log_softmax(-1) for hidden in (found_BTH, expected_BTH)]
    difference = (logprobs[0] - logprobs[1]).abs().max()
    assert 0 < difference <= 2e-5


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads):
    """Each thread has its own rows; the number of OpenMP threads is restored."""
    model = build("llama", num_hidden_layers=2)
    tokens_BT, prompt_B = prompts_and_rest(51, 24)
    alone = CpuDecoder(fuse(model), 51, 24)
    with intra_op_threads(threads):
        together = CpuDecoder(fuse(model), 51, 24)
        together.least_rows = 16
        assert [part.stop - part.start for part in together.split_rows(51)] == ([25, 26] if threads == 2 else [17, 17, 17])
        found_BTH, expected_BTH = decode(together, model, tokens_BT, prompt_B, steps=16)
        assert torch.get_num_threads() == threads
    together.close()
    assert torch.equal(found_BTH, decode(alone, model, tokens_BT, prompt_B, steps=16)[0])
    assert torch.equal(found_BTH, expected_BTH)


def test_who_shares_what():
    """Small models split rows; large ones split rows where every thread gets many, and the operations otherwise."""
    decoder = CpuDecoder(fuse(build("llama", num_hidden_layers=1)), 512, 8)
    assert decoder.least_rows == 12_000_000 // (128 * (12 * 32 + 3 * 384))
    cases = {
        (True, 2, 121): 1,
        (True, 2, 122): 2,
        (True, 8, 200): 3,
        (False, 2, 255): 1,
        (False, 2, 256): 2,
        (False, 8, 512): 1,
    }
    for (small, threads, rows), count in cases.items():
        decoder.small, decoder.threads, decoder.least_rows = small, threads, 61 if small else 128
        parts = decoder.split_rows(rows)
        assert len(parts) == count
        assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))


def test_a_fault_in_one_thread_is_raised():
    model = build("llama", num_hidden_layers=1)
    with intra_op_threads(2):
        decoder = CpuDecoder(fuse(model), 64, 8)
        decoder.least_rows = 16
        tokens_B = torch.zeros(64, dtype=torch.int64)
        tokens_B[63] = VOCABULARY
        with pytest.raises(IndexError):
            decoder.step(tokens_B, torch.zeros(64, dtype=torch.int64), NOT_DONE_B, 1)
        assert torch.get_num_threads() == 2
        decoder.close()


def test_prompts_are_loaded_into_any_slot_and_rows_move():
    """Completions of two prompts go to slots out of order; the last row then moves into a gap and decodes on."""
    model = build("qwen3", num_hidden_layers=2)
    tokens_BT, _ = prompts_and_rest(2, 20)
    expected_BTH, keys, values = whole(model, tokens_BT)
    decoder = CpuDecoder(fuse(model), 4, 20)
    prefix_rows, lengths = torch.tensor([1, 0, 1, 0]), torch.tensor([6, 9, 6, 9])
    slots = torch.tensor([2, 0, 1, 3])
    decoder.load(slots, decoder.stack(keys, values)[:, :, :, :, :9], prefix_rows)
    owner_B, positions_B = torch.empty(4, dtype=torch.int64), torch.empty(4, dtype=torch.int64)
    owner_B[slots], positions_B[slots] = prefix_rows, lengths
    for step in range(9):
        tokens_B, longest = tokens_BT[owner_B, positions_B], int(positions_B.max()) + 1
        found_BH = decoder.step(tokens_B, positions_B, NOT_DONE_B[: len(tokens_B)], longest)
        assert torch.equal(found_BH, expected_BTH[owner_B, positions_B]), step
        positions_B = positions_B + 1
        if step == 4:
            decoder.move(torch.tensor([3]), torch.tensor([1]), int(positions_B[3]))
            owner_B[1], positions_B[1] = owner_B[3], positions_B[3]
            owner_B, positions_B = owner_B[:3], positions_B[:3]


def test_a_new_decoder_sees_weights_changed_in_place():
    """As an optimizer changes them; neither the fused tensors nor the memory handed on hold the old ones."""
    model = build("llama", num_hidden_layers=2)
    tokens_BT, prompt_B = prompts_and_rest(17, 16)
    fused, memory = fuse(model), DecodeMemory()
    before_BTH, _ = decode(CpuDecoder(fused, 17, 16, memory), model, tokens_BT, prompt_B, steps=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    after_BTH, expected_BTH = decode(CpuDecoder(fused, 17, 16, memory), model, tokens_BT, prompt_B, steps=4)
    assert torch.equal(after_BTH, expected_BTH)
    assert (after_BTH - before_BTH).abs().min(-1).values.max() > 0


def test_the_memory_is_reused_without_its_content():
    """The first decoder leaves NaN everywhere; the second, smaller one runs in the same memory with the right bits."""
    model, memory = build("llama", num_hidden_layers=2), DecodeMemory()
    CpuDecoder(fuse(model), 20, 32, memory)
    at, size = memory.held.data_ptr(), len(memory.held)
    memory.held.fill_(255)
    tokens_BT, prompt_B = prompts_and_rest(18, 24)
    decoder = CpuDecoder(fuse(model), 18, 24, memory)
    assert decoder.cache.isnan().all()
    found_BTH, expected_BTH = decode(decoder, model, tokens_BT, prompt_B, steps=16)
    assert torch.equal(found_BTH, expected_BTH)
    assert (memory.held.data_ptr(), len(memory.held)) == (at, size)


def test_the_memory_gives_back_what_is_too_much_to_keep(monkeypatch):
    memory = DecodeMemory()
    memory.take_tensors({"a": ((10, 3), torch.float32), "b": ((4,), torch.float64)})
    assert len(memory.held) == 128 + 64
    memory.trim()
    assert len(memory.held) == 192
    monkeypatch.setattr(cpu, "KEPT_BYTES", 191)
    memory.trim()
    assert len(memory.held) == 0


def test_other_dtypes_are_refused_by_name():
    fused: FusedModel = fuse(build("llama", num_hidden_layers=1))
    with pytest.raises(EngineError, match=r"float32 on a CPU, not in torch\.bfloat16"):
        CpuDecoder(replace(fused, embedding=fused.embedding.bfloat16()), 2, 8)
