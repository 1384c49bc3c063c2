"""Flat layouts: attention over them, hidden states from them, and their gradients, against rows one by one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch_attention import TorchKernel

from cohort.errors import InvariantError, ModelError
from cohort.model.backbone import ModuleBackbone, can_share_prompts, read_states_before
from cohort.model.examples import Example
from cohort.model.packing import pack
from cohort.model.policy import Policy
from cohort.model.scratch import build_scratch
from cohort.ops.attention import attend_causally, attention_configs, use_attention
from cohort.ops.layout import PADDING_FREE, Layout, Selection, choose_block_shapes, lay_out, take
from cohort.ops.packed_attention import (
    CAUSAL_ATTENTION,
    attend,
    attend_padded,
    attend_segments,
    use_layout,
)
from cohort.recipe.schema import ScratchConfig
from conftest import gradients, ragged_examples, relative_difference, tiny_policy

ROWS = ((4, 5), (4, 1), (4, 7), (2, 3), (2, 6), (6, 2), (1, 1))
"""(prompt, completion) lengths; consecutive equal prompt lengths are one prompt when shared."""


def sequences(seed: int = 0, shapes: tuple[tuple[int, int], ...] = ROWS) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 17, (count,), generator=generator).tolist())

    prompts = {length: ids(length) for length, _ in shapes}
    return [(prompts[prompt], ids(completion)) for prompt, completion in shapes]


def layouts() -> dict[str, Layout]:
    rows = sequences()
    equal = [(row[0], row[1]) for row in sequences(shapes=((4, 5),) * 3)]
    return {
        "rows": lay_out(rows),
        "shared": lay_out(rows, [prompt for prompt, _ in rows]),
        "equal": lay_out(equal),
        "all shared": lay_out(equal, [0] * 3),
        "one row": lay_out(rows[:1]),
    }


NAMES = list(layouts())


def row_tokens(layout: Layout, row: int) -> list[int]:
    """The flat places of a row's tokens, in its order."""
    rows = layout.rows
    shared = range(rows.shared_start_B[row], rows.shared_start_B[row] + rows.shared_length_B[row])
    own = range(rows.own_start_B[row], rows.own_start_B[row] + rows.own_length_B[row])
    return [*shared, *own]


def heads(layout: Layout, queries: int = 4, keys: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(layout.num_tokens, count, 8, generator=generator, dtype=dtype).requires_grad_()
        for count in (queries, keys, keys)
    ]


def row_by_row(
    layout: Layout, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, cap: float
) -> Tensor:
    """The reference: a separate softmax for every token of every row."""
    out: list[Tensor | None] = [None] * layout.num_tokens
    group = query.shape[1] // key.shape[1]
    for row in range(layout.num_rows):
        places = row_tokens(layout, row)
        for at, place in enumerate(places):
            seen = places[max(0, at + 1 - window) if window else 0 : at + 1]
            pieces = []
            for head in range(query.shape[1]):
                scores = key[seen, head // group] @ query[place, head] * scaling
                if cap:
                    scores = torch.tanh(scores / cap) * cap
                pieces.append(scores.softmax(0) @ value[seen, head // group])
            out[place] = torch.stack(pieces)
    return torch.stack(out)


def with_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))


# -- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (3, 0.0), (None, 2.0), (4, 2.0), (50, 0.0)])
@pytest.mark.parametrize("name", NAMES)
def test_attention_over_a_layout_is_attention_over_each_row(name, window, softcap):
    layout = layouts()[name]
    inputs = heads(layout)
    expected = with_gradients(row_by_row(layout, *inputs, 0.3, window, softcap), inputs)
    found = with_gradients(attend(layout, *inputs, 0.3, window, softcap), inputs)
    assert largest_difference(found, expected) < 1e-13
    assert all(float(part.abs().max()) > 1e-2 for part in expected)


@pytest.mark.parametrize(("queries", "keys"), [(4, 2), (3, 3), (6, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_attention_in_two_calls_is_attention_over_each_row(name, queries, keys):
    """Segments by themselves and completions over prompts, merged; backward only from the merged output and lse."""
    layout = layouts()[name]
    inputs = heads(layout, queries, keys)
    expected = with_gradients(row_by_row(layout, *inputs, 0.3, None, 0.0), inputs)
    found = with_gradients(attend_segments(layout, *inputs, 0.3, None, TorchKernel()), inputs)
    assert largest_difference(found, expected) < 1e-13


@pytest.mark.parametrize("window", [1, 3, 8])
def test_segments_with_a_window_are_rows_with_a_window(window):
    layout = layouts()["rows"]
    inputs = heads(layout)
    expected = with_gradients(row_by_row(layout, *inputs, 0.3, window, 0.0), inputs)
    found = with_gradients(attend_segments(layout, *inputs, 0.3, window, TorchKernel()), inputs)
    assert largest_difference(found, expected) < 1e-13


def test_two_calls_stay_exact_where_one_part_has_all_the_weight():
    """Scores of several hundred: a plain exp of the sums would overflow, and one share is 0."""
    layout = layouts()["shared"]
    inputs = [tensor.detach().mul(30.0 if place < 2 else 1.0).requires_grad_() for place, tensor in enumerate(heads(layout))]
    expected = with_gradients(row_by_row(layout, *inputs, 0.3, None, 0.0), inputs)
    found = with_gradients(attend_segments(layout, *inputs, 0.3, None, TorchKernel()), inputs)
    assert all(bool(part.isfinite().all()) for part in found)
    assert largest_difference(found, expected) < 1e-11


def test_two_calls_in_bfloat16_are_merged_in_float32():
    """Shares of a softmax rounded to 8 bits would not add up to 1; rounded once, outputs are within half a step of exact."""
    layout = layouts()["shared"]
    inputs = [tensor.detach().bfloat16().requires_grad_() for tensor in heads(layout)]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = with_gradients(row_by_row(layout, *exact, 0.3, None, 0.0), exact)
    out = attend_segments(layout, *inputs, 0.3, None, TorchKernel())
    assert out.dtype == torch.bfloat16
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = [out.detach(), *torch.autograd.grad((out.double() * weights).sum(), inputs)]
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours.double() - theirs).norm() / theirs.norm()) < 0.008


@pytest.mark.parametrize("name", NAMES)
def test_float32_on_a_cpu_has_the_bits_of_each_row_by_itself(name):
    """Sums in float64, rounded once: company, padding and sharing change no bit."""
    layout = layouts()[name]
    inputs = heads(layout, dtype=torch.float32)
    out = attend(layout, *inputs, 0.3)
    for row in range(layout.num_rows):
        places = row_tokens(layout, row)
        alone = attend_causally(*(tensor[places].transpose(0, 1)[None] for tensor in inputs), 0.3, None, 0.0)[0]
        assert torch.equal(out[places], alone)


def test_padding_is_bounded_and_blocks_hold_rows_of_like_lengths():
    assert choose_block_shapes([9, 8, 8, 1]) == ((4, 9),)
    # One long row before many short ones: side by side they would be 80 times 8,000 tokens.
    shapes = choose_block_shapes([8000] + [100] * 80)
    assert shapes == ((1, 8000), (80, 100))
    lengths = sorted((int(length) for length in np.random.default_rng(0).lognormal(6, 1, 300)), reverse=True)
    padded = sum(rows * width for rows, width in choose_block_shapes(lengths))
    assert sum(rows for rows, _ in choose_block_shapes(lengths)) == 300
    assert sum(lengths) < padded <= 1.3 * sum(lengths)
    assert 0.05 * sum(lengths) > PADDING_FREE


def test_attention_over_several_blocks(monkeypatch):
    monkeypatch.setattr("cohort.ops.layout.PADDING_FREE", 0)
    for name in ("rows", "shared"):
        layout = layouts()[name]
        assert len(layout.padding.shapes) >= 2
        inputs = heads(layout)
        expected = with_gradients(row_by_row(layout, *inputs, 0.3, None, 0.0), inputs)
        found = with_gradients(attend_padded(layout, *inputs, 0.3, None, 0.0), inputs)
        assert largest_difference(found, expected) < 1e-13


# -- selections --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "ignored"), [([0, 1, 2, 3], []), ([3, 0, 3, 3, 1, 0], []), ([2, 2], []), ([1, 0, 1, 3, 2], [0, 3]), ([0, 1, 1, 2, 3, 3], [])]
)  # fmt: skip
def test_the_gradient_of_a_selection(index, ignored):
    source = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    mask = np.isin(np.arange(len(index)), ignored)
    found = take(source, Selection.from_index(np.array(index), 4, mask))
    assert torch.equal(found, source[index])
    weights = torch.randn(found.shape, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((found * weights).sum(), source)
    expected = torch.zeros_like(source)
    for place, at in enumerate(index):
        if place not in ignored:
            expected[at] += weights[place]
    assert (gradient - expected).abs().max().item() < 1e-15


def test_broken_gradients_of_padding_go_nowhere():
    source = torch.ones(3, 2, requires_grad=True)
    found = take(source, Selection.from_index(np.array([0, 2, 0, 0]), 3, np.array([False, False, True, False])))
    weights = torch.tensor([1.0, 1.0, torch.nan, 1.0])[:, None]
    (gradient,) = torch.autograd.grad((found * weights).sum(), source)
    assert gradient.tolist() == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


# -- hidden states -----------------------------------------------------------------------------------------------------

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 17, "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma2": {"sliding_window": 5, "attn_logit_softcapping": 5.0},
    "Mistral": {"sliding_window": 6},
    "GPT2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
}


def make_model(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **FAMILIES[family], **changes})
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("own_attention", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_each_row_by_itself(family, own_attention, monkeypatch):
    """Flat through our attention and padded through the model's own, in several blocks; windows and soft-caps too."""
    monkeypatch.setattr("cohort.ops.layout.PADDING_FREE", 0)
    model = make_model(family)
    backbone = ModuleBackbone(model.base_model, attention_configs(model) if own_attention else [])
    for layout in (lay_out(sequences()), lay_out(sequences()[:1])):
        with torch.no_grad():
            hidden_TH = backbone(layout)
            for row in range(layout.num_rows):
                places = row_tokens(layout, row)
                alone = model.base_model(input_ids=layout.token_ids_T[places][None], use_cache=False).last_hidden_state[0]
                assert (hidden_TH[places] - alone).abs().max().item() < 2e-5 * max(1.0, alone.abs().max().item())


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Mistral", "GPT2"])
def test_hidden_states_of_shared_prompts_are_those_of_each_row_by_itself(family):
    """With a window too: where two calls cannot express it, rows are read side by side."""
    model = make_model(family)
    rows = sequences()
    layout = lay_out(rows, [prompt for prompt, _ in rows])
    assert layout.shared is not None
    with torch.no_grad():
        hidden_TH = ModuleBackbone(model.base_model, attention_configs(model))(layout)
        for row in range(layout.num_rows):
            places = row_tokens(layout, row)
            alone = model.base_model(input_ids=layout.token_ids_T[places][None], use_cache=False).last_hidden_state[0]
            assert (hidden_TH[places] - alone).abs().max().item() < 2e-5


def test_who_may_share_prompts():
    assert can_share_prompts(make_model("Llama"), ["proven"])
    assert not can_share_prompts(make_model("Llama"), [])
    assert not can_share_prompts(make_model("Mistral"), ["proven"])
    assert can_share_prompts(make_model("Mistral", sliding_window=64), ["proven"])
    assert can_share_prompts(make_model("Mistral", sliding_window=None), ["proven"])
    assert not can_share_prompts(make_model("Gemma2"), ["proven"])
    # Qwen2 names a window in its config that its layers do not use.
    assert can_share_prompts(make_model("Qwen2", sliding_window=6, use_sliding_window=False), ["proven"])
    assert not can_share_prompts(
        make_model("Qwen2", sliding_window=6, use_sliding_window=True, max_window_layers=1), ["proven"]
    )


def test_shared_prompts_are_refused_by_a_model_with_its_own_attention():
    rows = sequences()
    with pytest.raises(InvariantError, match="its own attention"):
        ModuleBackbone(make_model("Llama").base_model, [])(lay_out(rows, [prompt for prompt, _ in rows]))


def test_the_trainers_attention_refuses_anything_but_the_layout():
    model = make_model("Llama")
    layout = lay_out(sequences())
    with use_attention(attention_configs(model), CAUSAL_ATTENTION):
        with pytest.raises(InvariantError, match="one flat layout"):
            model.base_model(input_ids=layout.token_ids_T[None])
        with use_layout(layout), pytest.raises(InvariantError, match="one flat layout"):
            model.base_model(input_ids=layout.token_ids_T[None].repeat(2, 1))
        with use_layout(layout), pytest.raises(InvariantError, match="one flat layout"):
            model.base_model(input_ids=layout.token_ids_T[None, :5])


@pytest.mark.parametrize("share_prompts", [False, True])
def test_logprobs_have_the_same_bits_in_every_company(share_prompts):
    """At the demo's size in float32: by itself, in a batch, and after a shared prompt."""
    model, tokenizer = build_scratch(ScratchConfig(num_layers=2, max_positions=64), ["0123456789+=>"], seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    policy = Policy(model, tokenizer)
    examples = common_prompts(ragged_examples(policy, dtype=torch.float32))
    options = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    found = {}
    for budget in (1, 17, 10_000):
        for micro in pack(examples, micro_batch_tokens=budget, share_prompts=share_prompts, **options).micro_batches:
            with torch.no_grad():
                logprobs_M = policy.compute_logprobs(micro).logprobs_M
            assert budget < 10_000 or (micro.layout.shared is not None) == share_prompts
            for row, index in enumerate(micro.examples):
                logprobs_T = logprobs_M[micro.row_M == row]
                assert torch.equal(found.setdefault(index, logprobs_T), logprobs_T)
    assert len(found) == 8


# -- gradients ---------------------------------------------------------------------------------------------------------


def common_prompts(examples: list[Example]) -> list[Example]:
    """The prompt of a group's first example for all of the group."""
    firsts: dict[int, tuple[int, ...]] = {}
    return [replace(example, prompt_ids=firsts.setdefault(example.group, example.prompt_ids)) for example in examples]


def gradient_of(policy: Policy, backbone: Any, examples: list[Example], budget: int, share_prompts: bool) -> Tensor:
    """Through read_states_before and the head, of weighted log-probs."""
    options = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    policy.model.zero_grad(set_to_none=True)
    for micro in pack(examples, micro_batch_tokens=budget, share_prompts=share_prompts, **options).micro_batches:
        logprobs_MV = policy.split.logits(read_states_before(backbone, micro)).log_softmax(-1)
        logprobs_M = logprobs_MV.gather(1, micro.token_ids_M[:, None]).squeeze(1)
        (logprobs_M * micro.advantages_M * micro.loss_weights_M).sum().backward()
    return gradients(policy)


def slow_gradient(policy: Policy, examples: list[Example]) -> Tensor:
    """Each row by itself through the model's own forward."""
    policy.model.zero_grad(set_to_none=True)
    total = sum(example.trained_tokens for example in examples)
    for example in examples:
        token_ids = torch.tensor([example.prompt_ids + example.completion_ids])
        logprobs_TV = (
            policy.model(input_ids=token_ids, use_cache=False).logits[0, len(example.prompt_ids) - 1 : -1].log_softmax(-1)
        )
        chosen_T = logprobs_TV.gather(1, torch.tensor(example.completion_ids)[:, None]).squeeze(1)
        (chosen_T * example.advantages_T / total).sum().backward()
    return gradients(policy)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("own_attention", [True, False])
def test_the_gradient_depends_only_on_the_examples(own_attention, checkpointing, monkeypatch):
    """Budget, sharing, checkpointing and the way attention is done: 1e-12 from rows one by one."""
    monkeypatch.setattr("cohort.ops.layout.PADDING_FREE", 0)
    policy = tiny_policy()
    examples = common_prompts(ragged_examples(policy))
    expected = slow_gradient(policy, examples)
    assert expected.abs().max() > 1e-3
    backbone = ModuleBackbone(policy.split.backbone, policy.attention_configs if own_attention else [], checkpointing)
    for share_prompts in (False, True) if own_attention else (False,):
        for budget in (1, 13, 20, 37, 10_000):
            found = gradient_of(policy, backbone, examples, budget, share_prompts)
            assert relative_difference(found, expected) < 1e-12


@pytest.mark.parametrize("own_attention", [True, False])
def test_checkpointed_layers_run_twice_and_are_left_as_they_were(own_attention):
    """Each layer again in the backward, over its own micro-batch's layout, whatever was packed since; bitwise the same."""
    policy = tiny_policy()
    examples = common_prompts(ragged_examples(policy))
    configs = policy.attention_configs if own_attention else []
    options = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    micro_batches = pack(examples, micro_batch_tokens=30, share_prompts=own_attention, **options).micro_batches
    assert len(micro_batches) > 1
    calls = [0]
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
        for layer in policy.split.backbone.layers
    ]
    found, counts = [], []
    for checkpointing in (False, True):
        calls[0] = 0
        backbone = ModuleBackbone(policy.split.backbone, configs, checkpointing)
        policy.model.zero_grad(set_to_none=True)
        total = sum((read_states_before(backbone, micro) ** 2).sum() for micro in micro_batches)
        counts.append(calls[0])
        total.backward()
        counts.append(calls[0])
        found.append(gradients(policy))
    for hook in hooks:
        hook.remove()
    forwards = 2 * len(micro_batches)
    assert counts == [forwards, forwards, forwards, 2 * forwards]
    assert torch.equal(found[0], found[1])
    assert not any("forward" in vars(layer) for layer in policy.split.backbone.layers)
    with torch.no_grad():
        backbone(micro_batches[0].layout)
    assert policy.model.config._attn_implementation != CAUSAL_ATTENTION


def test_checkpointing_needs_a_list_of_layers():
    with pytest.raises(ModelError, match="activation_checkpointing: GPT2Model has no list"):
        ModuleBackbone(make_model("GPT2").base_model, [], checkpointing=True)


# -- time --------------------------------------------------------------------------------------------------------------


def many_examples(groups: int = 32, size: int = 8, prompt: int = 128, completion: int = 512) -> list[Example]:
    generator = np.random.default_rng(0)
    examples = []
    for group in range(groups):
        prompt_ids = tuple(generator.integers(0, 150_000, prompt).tolist())
        for _ in range(size):
            examples.append(
                Example(
                    rollout=len(examples),
                    group=group,
                    prompt_ids=prompt_ids,
                    completion_ids=tuple(generator.integers(0, 150_000, completion).tolist()),
                    loss_mask_T=torch.ones(completion, dtype=torch.bool),
                    advantages_T=torch.ones(completion),
                    sampling_logprobs_T=torch.zeros(completion),
                    ref_logprobs_T=torch.zeros(completion),
                )
            )
    return examples


@pytest.mark.prove
@pytest.mark.parametrize("share_prompts", [False, True])
def test_packing_costs_the_host_little(share_prompts):
    """256 examples of 640 tokens, in processor time, best of five. A step on a fast GPU takes two seconds."""
    examples = many_examples()
    options = {
        "aggregation": "token_mean",
        "max_completion_tokens": 512,
        "skip_zero_advantage": True,
        "micro_batch_tokens": 16384,
    }
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        minibatch = pack(examples, share_prompts=share_prompts, **options)
        seconds.append(time.process_time() - begin)
    tokens = sum(micro.layout.num_tokens for micro in minibatch.micro_batches)
    print(f"share_prompts {share_prompts}: {1000 * min(seconds):.1f} ms for {tokens} tokens")
    assert tokens == 256 * 512 + 128 * (32 if share_prompts else 256)
    assert min(seconds) < 0.03
