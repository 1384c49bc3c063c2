"""Flat layouts on a GPU: the flash and cuDNN ways against the padded one in float32, and runs that repeat to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch_attention import TorchKernel

from cohort.model.backbone import ModuleBackbone, read_states_before
from cohort.model.examples import Example
from cohort.model.packing import pack
from cohort.ops import packed_attention
from cohort.ops.attention import attention_configs
from cohort.ops.layout import Layout, Selection, lay_out, take
from cohort.ops.packed_attention import FlashKernel, attend, attend_padded, attend_segments

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

HEADS = [(14, 2, 64), (28, 4, 128), (12, 2, 128)]
"""(query heads, kv heads, head dim) of Qwen2.5 0.5B, 7B and 1.5B."""


def layout_of(shapes: list[tuple[int, tuple[int, ...]]], shared: bool) -> Layout:
    """(prompt length, completion lengths) of each group."""
    rows = [((1,) * prompt, (2,) * length, group) for group, (prompt, lengths) in enumerate(shapes) for length in lengths]
    keys = [group for _, _, group in rows] if shared else None
    return lay_out([(prompt, completion) for prompt, completion, _ in rows], keys).to("cuda")


RAGGED = [(37, (150, 3, 64, 1)), (130, (200, 129)), (1, (5,)), (64, (64, 300, 17, 90, 2))]
ONE_TOKEN = [(5, (1, 1)), (3, (1,))]
EQUAL = [(40, (88,) * 4)] * 3
LAYOUTS = {
    "ragged": lambda: layout_of(RAGGED, shared=False),
    "ragged, shared": lambda: layout_of(RAGGED, shared=True),
    "equal": lambda: layout_of(EQUAL, shared=False),
    "equal, shared": lambda: layout_of(EQUAL, shared=True),
    "one token, shared": lambda: layout_of(ONE_TOKEN, shared=True),
    "single row": lambda: layout_of([(20, (80,))], shared=False),
}


def heads(layout: Layout, shape: tuple[int, int, int], dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    queries, keys, dim = shape
    generator = torch.Generator("cuda").manual_seed(0)
    return [
        torch.randn(layout.num_tokens, count, dim, generator=generator, device="cuda").to(dtype).requires_grad_()
        for count in (queries, keys, keys)
    ]


def with_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    weights = torch.randn(out.shape, generator=generator, device="cuda").to(torch.bfloat16).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


def relative_errors(ours: list[Tensor], theirs: list[Tensor]) -> list[float]:
    return [
        float((one.double() - other.double()).norm() / other.double().norm()) for one, other in zip(ours, theirs, strict=True)
    ]


def in_float32(layout: Layout, inputs: list[Tensor], scaling: float, window: int | None = None) -> list[Tensor]:
    wide = [tensor.detach().float().requires_grad_() for tensor in inputs]
    assert not packed_attention.can_use_flash(wide[0], wide[2])
    return with_gradients(attend_padded(layout, *wide, scaling, window, 0.0), wide)


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """TF32 would make the reference coarser than what is compared with it."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


BF16_NOISE = 0.02
"""Relative, of whole tensors: outputs and gradients are rounded to 8 bits (0.2 % on average), probabilities too."""


@pytest.mark.parametrize("shape", HEADS, ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_bfloat16_is_the_padded_way_in_float32(name, shape, monkeypatch):
    layout = LAYOUTS[name]()
    inputs = heads(layout, shape)
    scaling = shape[2] ** -0.5
    expected = in_float32(layout, inputs, scaling)
    monkeypatch.setattr(packed_attention, "attend_padded", lambda *_: pytest.fail("the slow way was taken"))
    found = with_gradients(attend(layout, *inputs, scaling), inputs)
    errors = relative_errors(found, expected)
    print(f"{name} {shape}: out, query, key, value differ by {', '.join(f'{error:.4f}' for error in errors)}")
    assert max(errors) < BF16_NOISE
    # Every token by itself, too: one row read wrongly would drown in the norm of all.
    for ours, theirs in zip(found, expected, strict=True):
        limit = 0.05 * theirs.float().norm(dim=(1, 2)) + 0.1 * theirs.float().norm(dim=(1, 2)).mean()
        assert bool(((ours.float() - theirs.float()).norm(dim=(1, 2)) <= limit).all())


@pytest.mark.parametrize("shape", HEADS[:2], ids=str)
@pytest.mark.parametrize("name", ["equal", "single row", "ragged"])
def test_flash_segments_without_cudnn(name, shape):
    """Rows of one length go to cuDNN by themselves; the varlen kernel must serve them as well."""
    layout = LAYOUTS[name]()
    inputs = heads(layout, shape)
    found = with_gradients(attend_segments(layout, *inputs, 0.1, None, FlashKernel()), inputs)
    assert max(relative_errors(found, in_float32(layout, inputs, 0.1))) < BF16_NOISE


@pytest.mark.parametrize(
    "window", [2, 16, 100, 1000]
)  # with 1 the gradients of queries and keys are 0, and errors relative to 0
def test_windows(window):
    layout = LAYOUTS["ragged"]()
    inputs = heads(layout, HEADS[0])
    found = with_gradients(attend(layout, *inputs, 0.1, window), inputs)
    assert max(relative_errors(found, in_float32(layout, inputs, 0.1, window))) < BF16_NOISE


def test_a_window_over_shared_prompts_is_read_side_by_side():
    layout = LAYOUTS["ragged, shared"]()
    inputs = heads(layout, HEADS[0])
    found = with_gradients(attend(layout, *inputs, 0.1, 50), inputs)
    assert max(relative_errors(found, in_float32(layout, inputs, 0.1, 50))) < 2 * BF16_NOISE


@pytest.mark.parametrize("name", ["ragged", "ragged, shared", "one token, shared"])
def test_both_kernels_return_the_same_lse(name):
    """Layout, base and scale of flash attention's lse: the merge rests on all three."""
    layout = LAYOUTS[name]()
    query, key, value = heads(layout, HEADS[0])
    starts, longest = layout.segment_starts, layout.longest_segment
    spans = packed_attention.Spans(starts, starts, longest, longest, 0.1, causal=True)
    out, lse = FlashKernel().forward(packed_attention.Inputs(query, key, value), spans)
    slow_out, slow_lse = TorchKernel().forward(packed_attention.Inputs(query.float(), key.float(), value.float()), spans)
    assert lse.shape == slow_lse.shape == (14, layout.num_tokens)
    assert lse.dtype == torch.float32
    assert (lse - slow_lse).abs().max().item() < 1e-3
    assert relative_errors([out], [slow_out])[0] < BF16_NOISE


@pytest.mark.parametrize("name", ["ragged", "ragged, shared", "equal"])
def test_runs_repeat_to_the_bit_in_deterministic_mode(name):
    layout = LAYOUTS[name]()
    inputs = heads(layout, HEADS[1])
    torch.use_deterministic_algorithms(True)  # only warning, flash attention keeps its unordered backward
    try:
        first, *others = [with_gradients(attend(layout, *inputs, 0.1), inputs) for _ in range(4)]
    finally:
        torch.use_deterministic_algorithms(False)
    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_the_gradient_of_a_selection_repeats_to_the_bit():
    generator = np.random.default_rng(0)
    index = generator.integers(0, 500, 20_000)
    selection = Selection.from_index(index, 500).to("cuda")
    source = torch.randn(500, 64, device="cuda", requires_grad=True)
    weights = torch.randn(20_000, 64, device="cuda")
    found = [torch.autograd.grad((take(source, selection) * weights).sum(), source)[0] for _ in range(4)]
    assert all(torch.equal(found[0], other) for other in found[1:])
    expected = torch.zeros(500, 64, dtype=torch.float64).index_add(0, torch.from_numpy(index), weights.double().cpu())
    assert relative_errors([found[0].cpu()], [expected])[0] < 1e-6


# -- a whole model -----------------------------------------------------------------------------------------------------


def small_model(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=500, max_position_embeddings=1024, initializer_range=0.05, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval().to("cuda", dtype)


def examples(equal: bool = False) -> list[Example]:
    generator = np.random.default_rng(0)
    made = []
    for group in range(3):
        prompt_ids = tuple(generator.integers(0, 500, 60 if equal else 30 + 40 * group).tolist())
        for _ in range(4):
            length = 100 if equal else int(generator.integers(1, 200))
            made.append(
                Example(
                    rollout=len(made),
                    group=group,
                    prompt_ids=prompt_ids,
                    completion_ids=tuple(generator.integers(0, 500, length).tolist()),
                    loss_mask_T=torch.ones(length, dtype=torch.bool),
                    advantages_T=torch.from_numpy(generator.normal(size=length).astype(np.float32)),
                    sampling_logprobs_T=torch.zeros(length),
                )
            )
    return made


def logprobs_and_gradient(
    model: Any, chosen: list[Example], budget: int, share_prompts: bool, checkpointing: bool = False
) -> tuple[list[Tensor], Tensor]:
    backbone = ModuleBackbone(model.base_model, attention_configs(model), checkpointing)
    model.zero_grad(set_to_none=True)
    options = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    found: list[Tensor] = [torch.empty(0)] * len(chosen)
    for micro in pack(chosen, micro_batch_tokens=budget, share_prompts=share_prompts, **options).micro_batches:
        assert budget < 10_000 or (micro.layout.shared is not None) == share_prompts
        micro = micro.to("cuda")
        logprobs_MV = model.lm_head(read_states_before(backbone, micro)).float().log_softmax(-1)
        logprobs_M = logprobs_MV.gather(1, micro.token_ids_M[:, None]).squeeze(1)
        (logprobs_M * micro.advantages_M * micro.loss_weights_M).sum().backward()
        for row, index in enumerate(micro.examples):
            found[index] = logprobs_M.detach()[micro.row_M == row]
    gradient = torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])
    return found, gradient


@pytest.mark.parametrize("equal", [False, True])
def test_float32_on_a_gpu_is_the_same_for_every_packing(equal):
    model = small_model(torch.float32)
    chosen = examples(equal)
    logprobs, gradient = logprobs_and_gradient(model, chosen, 10_000, share_prompts=False)
    for budget, share_prompts, checkpointing in ((700, True, False), (10_000, True, True), (300, False, True)):
        others, other = logprobs_and_gradient(model, chosen, budget, share_prompts, checkpointing)
        assert max(float((a - b).abs().max()) for a, b in zip(logprobs, others, strict=True)) < 1e-4
        assert relative_errors([other], [gradient])[0] < 1e-4


@pytest.mark.parametrize("equal", [False, True])
def test_bfloat16_log_probs_and_gradients_are_near_those_of_float32(equal):
    """Segments, cuDNN's rectangle and shared prompts, each as near as bfloat16 allows."""
    chosen = examples(equal)
    rounded = small_model(torch.bfloat16)
    model = small_model(torch.float32)
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), rounded.parameters(), strict=True):
            mine.copy_(theirs)
    logprobs, gradient = logprobs_and_gradient(model, chosen, 10_000, share_prompts=False)
    for share_prompts in (False, True):
        for checkpointing in (False, True):
            others, other = logprobs_and_gradient(rounded, chosen, 10_000, share_prompts, checkpointing)
            difference = torch.cat([(a - b).abs() for a, b in zip(logprobs, others, strict=True)]).mean().item()
            cosine = float(torch.nn.functional.cosine_similarity(other, gradient, dim=0))
            print(f"equal {equal} share {share_prompts}: mean |log-prob difference| {difference:.1e}, cosine {cosine:.5f}")
            assert difference < 2e-2
            assert cosine > 0.999
            assert relative_errors([other], [gradient])[0] < 0.05


def test_packing_and_moving_leave_nothing_behind():
    """Layouts moved to the device give the hidden states of the ones made there."""
    model = small_model(torch.float32)
    chosen = [replace(example, prompt_ids=example.prompt_ids[:5]) for example in examples()]
    options = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    (micro,) = pack(chosen, micro_batch_tokens=10_000, **options).micro_batches
    on_gpu = read_states_before(ModuleBackbone(model.base_model, attention_configs(model)), micro.to("cuda"))
    on_cpu = read_states_before(ModuleBackbone(model.cpu().base_model, attention_configs(model)), micro)
    assert (on_gpu.cpu() - on_cpu).abs().max().item() < 1e-3


def test_a_layout_reaches_the_gpu_without_waiting_for_queued_work():
    layout = lay_out([((1, 2, 3), (4, 5)), ((1, 2, 3), (6,)), ((7,), (8, 9))], keys=[0, 0, 1])
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        moved = layout.to("cuda")
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert moved.token_ids_T.tolist() == layout.token_ids_T.tolist()
    assert moved.positions_T.tolist() == layout.positions_T.tolist()
