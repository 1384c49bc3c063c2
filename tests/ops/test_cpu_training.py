"""Compiled training on a CPU: its operations against their references, attention against autograd in float64, whole models against
the modules of transformers, and runs on it."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fused_cpu import build
from torch import Tensor

from cohort import session
from cohort.errors import EngineError
from cohort.model.backbone import ModuleBackbone
from cohort.model.policy import Policy
from cohort.ops import cached_attention
from cohort.ops.attention import attention_configs, use_attention
from cohort.ops.fused import building, cpu_training, native
from cohort.ops.fused.cpu import intra_op_threads
from cohort.ops.fused.cpu_training import NativeOperations
from cohort.ops.fused.family import fuse
from cohort.ops.fused.functions import Heads, NormInputs, Rotary, TorchOperations
from cohort.ops.fused.training import FusedBackbone, prefill
from cohort.ops.layout import Layout, lay_out
from cohort.ops.packed_attention import attend
from conftest import relative_difference, tiny_policy
from session_tools import FAST, bits, rows_of, stop_at, train_tiny, without_timing

EPSILON = 1e-5
CLOSE = 1e-6
"""Of the largest number: a few roundings of float32."""
SHAPES = [(8, 2), (16, 1), (16, 2), (64, 7), (128, 3)]
"""(head_dim, group)"""
ROWS = [1, 31, 32, 33, 100]
WIDTHS = [8, 20, 33, 100, 256]

Made = tuple[Tensor | None, ...]


def load(head_dim: int = 16, group: int = 2, width: int = 64) -> NativeOperations:
    try:
        return NativeOperations(native.load_library(head_dim, group, width))
    except native.NoNative as problem:
        pytest.skip(f"nothing is compiled: {problem}")


@pytest.fixture(autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test needs compiled code, but those that are about its absence; and threads, however few rows it has."""
    if "without" not in request.node.name:
        load()
    monkeypatch.setattr(cpu_training, "ELEMENTS_PER_THREAD", 1)


def test_few_rows_wake_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_training, "ELEMENTS_PER_THREAD", 1000)
    operations = load()
    with intra_op_threads(2):
        for rows, woken in ((120, False), (121, False), (250, True)):  # 8 + 8 columns
            operations.swiglu_backward(noise(rows, 8), noise(rows, 16), False)
            assert (operations.pool is not None) == woken, rows


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 7 * len(shape) + sum(shape)))


def apart(tensor: Tensor) -> Tensor:
    """The same numbers, with others between its rows and between its columns."""
    wide = tensor.new_full((*tensor.shape[:-2], tensor.shape[-2] + 3, 2 * tensor.shape[-1]), torch.nan)
    wide[..., : tensor.shape[-2], ::2] = tensor
    return wide[..., : tensor.shape[-2], ::2]


def in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) else value


def assert_close(found: Made, expected: Made, tolerance: float = CLOSE) -> None:
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert (left is None) == (right is None)
        if left is not None and right is not None:
            assert left.dtype == torch.float32
            assert left.shape == right.shape
            assert relative_difference(left.double(), right.double()) <= tolerance


def assert_same(found: Made, expected: Made) -> None:
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert (left is None) == (right is None)
        assert left is None or torch.equal(left, right)


# -- operations ---------------------------------------------------------------------------------------------------------------


def test_the_constants_of_both_languages_are_the_same() -> None:
    folder = resources.files("cohort.ops.fused").joinpath("native")
    text = "".join(folder.joinpath(name).read_text() for name in ("common.h", "train.c"))
    defined = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)\b", text, re.MULTILINE)}
    assert (defined["CHUNK"], defined["BLOCK"]) == (cpu_training.CHUNK, cpu_training.BLOCK)
    assert defined["LANES"] == native.LANES


def test_structures_are_read_from_the_sources() -> None:
    integer, number, pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
    assert native.read_structures()["rotary"]._fields_ == [
        *((name, integer) for name in ("next", "rows", "query_heads", "kv_heads")),
        *((name, pointer) for name in ("qkv", "cosines", "sines", "query", "key", "d_query", "d_key", "d_value", "d_qkv")),
    ]
    attention = native.read_structures()["attention"]
    assert dict(attention._fields_)["scaling"] is number
    assert [attention.dtypes[name] for name in ("own_start", "out", "lse")] == [torch.int64, torch.float32, torch.float64]
    assert native.read_structures()["stack"]._fields_[-3:] == [
        (name, pointer) for name in ("product", "exponential", "threads")
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("with_delta", [True, False])
def test_norms_forward_have_the_bits_of_the_reference(rows: int, width: int, with_delta: bool) -> None:
    operations = load(width=width)
    hidden, delta, weight = 3 * noise(rows, width), noise(rows, width, seed=1) if with_delta else None, noise(width)
    expected = TorchOperations.add_norm_forward(hidden, delta, weight, EPSILON)
    assert_same(operations.add_norm_forward(hidden, delta, weight, EPSILON), expected)
    delta = None if delta is None else apart(delta)
    assert_same(operations.add_norm_forward(apart(hidden), delta, weight, EPSILON), expected)
    unknown = NativeOperations(replace(operations.native, sum_lanes=0))
    assert_same(unknown.add_norm_forward(hidden, delta, weight, EPSILON), expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("with_total", [True, False])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_of_norms_are_those_of_the_reference(
    rows: int, width: int, with_total: bool, wanted: tuple[bool, bool]
) -> None:
    operations = load(width=width)
    total, weight = 3 * noise(rows, width), noise(width)
    inverse = torch.rsqrt(total.pow(2).mean(-1) + EPSILON)
    d_normed, d_total = noise(rows, width, seed=1), noise(rows, width, seed=2) if with_total else None
    given, inputs = [d_normed, d_total], NormInputs(total, inverse, weight)
    found = operations.add_norm_backward(*given, inputs, *wanted)
    expected = TorchOperations.add_norm_backward(*map(in_float64, given), NormInputs(*map(in_float64, inputs)), *wanted)
    assert_close(found, expected)
    strided = [None if part is None else apart(part) for part in given]
    assert_same(operations.add_norm_backward(*strided, inputs, *wanted), found)


def turns(rows: int, dim: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(rows)[:, None] * 0.1 ** torch.arange(dim // 2)
    return angles.cos(), angles.sin()


@pytest.mark.parametrize(("dim", "group"), SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_rotations_have_the_bits_of_the_reference_and_their_gradients_its_numbers(rows: int, dim: int, group: int) -> None:
    operations, heads = load(dim, group), Heads(2 * group, 2, dim)
    qkv, angles = noise(rows, heads.width), turns(rows, dim)
    rotary = Rotary(*angles, heads)
    query, key, value = operations.rotary_forward(qkv, rotary)
    assert value.data_ptr() == heads.values(qkv).data_ptr(), "values are a view"
    assert_same((query, key, value), TorchOperations.rotary_forward(qkv, rotary))
    assert_same(operations.rotary_forward(apart(qkv), Rotary(*map(apart, angles), heads)), (query, key, value))

    gradients = [noise(*part.shape, seed=1) for part in (query, key, value)]
    for want_bias in (True, False):
        found = operations.rotary_backward(gradients, None, rotary, want_bias, False)
        exact = [in_float64(gradient) for gradient in gradients]
        expected = TorchOperations.rotary_backward(exact, None, Rotary(*map(in_float64, angles), heads), want_bias, False)
        assert_close(found, expected)
        strided = [apart(gradient) for gradient in gradients]
        assert_same(operations.rotary_backward(strided, None, rotary, want_bias, False), found)


def test_norms_of_heads_use_torch() -> None:
    operations, heads = load(16, 2), Heads(4, 2, 16)
    qkv, rotary = noise(33, heads.width), Rotary(*turns(33, 16), heads, noise(16), noise(16, seed=1), EPSILON)
    outputs = operations.rotary_forward(qkv, rotary)
    assert_same(outputs, TorchOperations.rotary_forward(qkv, rotary))
    gradients = [noise(*part.shape, seed=2) for part in outputs]
    found = operations.rotary_backward(gradients, qkv, rotary, True, True)
    assert_same(found, TorchOperations.rotary_backward(gradients, qkv, rotary, True, True))
    assert found[2] is not None
    assert found[3] is not None


@pytest.mark.parametrize("width", [3, 16, 20, 33, 64, 100])
@pytest.mark.parametrize("rows", ROWS)
def test_swiglu_has_the_bits_of_silu_and_gradients_the_numbers_of_the_reference(rows: int, width: int) -> None:
    """Bits of silu as the modules take it, of whole tensors: of a strided row that is not full, PyTorch's has others."""
    operations = load()
    gate_up, d_activation = 4 * noise(rows, 2 * width), noise(rows, width)
    gate, up = gate_up.chunk(2, dim=1)
    assert torch.equal(operations.swiglu_forward(gate_up), F.silu(gate.contiguous()) * up)
    if width % 32 == 0:
        assert torch.equal(operations.swiglu_forward(gate_up), TorchOperations.swiglu_forward(gate_up))
    for wanted in (True, False):
        found = operations.swiglu_backward(d_activation, gate_up, wanted)
        assert_close(found, TorchOperations.swiglu_backward(d_activation.double(), gate_up.double(), wanted))
        assert_same(operations.swiglu_backward(apart(d_activation), apart(gate_up), wanted), found)


def test_swiglu_of_extreme_gates() -> None:
    """exp(-gate) leaves the range of float32 on both sides; a huge gate must not bring a rounded-up sigmoid back."""
    sizes = [0.0, 1e-30, 80.0, 86.9, 87.1, 88.5, 89.0, 104.0, 200.0, 1e10, 1e30, 3e38]
    gate = torch.tensor([sign * size for size in sizes for sign in (1, -1)])
    gate_up, ones = torch.stack([gate, torch.ones_like(gate)], 1), torch.ones(len(gate), 1)
    found, activation = load().swiglu_backward(ones, gate_up, True)
    expected, expected_activation = TorchOperations.swiglu_backward(ones.double(), gate_up.double(), True)
    assert activation is not None
    assert expected_activation is not None
    assert torch.allclose(found.double(), expected, rtol=1e-6, atol=1e-35)
    assert torch.allclose(activation.double(), expected_activation, rtol=1e-6, atol=1e-35)
    infinite = torch.tensor([[torch.inf, 1.0]])
    found, activation = load().swiglu_backward(torch.ones(1, 1), infinite, True)
    assert found[0, 1] == torch.inf
    assert activation is not None
    assert activation.item() == torch.inf


def test_a_tensor_of_another_dtype_is_refused_before_it_is_read() -> None:
    hidden = noise(2, 64)
    with pytest.raises(EngineError, match=r"compiled code reads weight in torch\.float32, not in torch\.bfloat16"):
        load().add_norm_forward(hidden, None, torch.ones(64, dtype=torch.bfloat16), EPSILON)
    policy = tiny_policy(dtype=torch.float32)
    policy.model.base_model.norm.to(torch.float16)
    assert "compiled code reads weight in torch.float32" in policy.prepare("auto")
    assert isinstance(policy.backbone, ModuleBackbone)


# -- attention ----------------------------------------------------------------------------------------------------------------


def sequences(*groups: tuple[int, Sequence[int]]) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Rows and keys of groups (length of the prompt, lengths of the completions)."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(0, 29, (count,), generator=generator).tolist()

    rows, keys = [], []
    for number, (prompt_length, lengths) in enumerate(groups):
        prompt = ids(prompt_length)
        rows += [(prompt, ids(length)) for length in lengths]
        keys += [number] * len(lengths)
    return rows, keys


def shared(*groups: tuple[int, Sequence[int]]) -> Layout:
    rows, keys = sequences(*groups)
    layout = lay_out(rows, keys)
    assert layout.shared is not None
    return layout


def unshared(*lengths: int) -> Layout:
    return Layout.from_rows([completion for _, completion in sequences((0, lengths))[0]])


LAYOUTS = {
    "ragged": unshared(5, 1, 17, 33, 16, 8, 40),
    "equal": unshared(16, 16, 16),
    "one token": unshared(1),
    "a multiple of 64": unshared(64, 3),
    "prompts": shared((5, (3, 9, 1)), (1, (20, 1)), (33, (7, 16, 2, 1)), (16, (16,)), (4, (1, 1))),
    "long prompt": shared((50, (1, 40, 2))),
    "prompts of one token": shared((1, (1, 1)), (1, (1,)), (1, (30, 1))),
}


def test_clusters_by_hand() -> None:
    """Two rows after a prompt of 3, one after a prompt of 1, three after a prompt of 2."""
    clusters = shared((3, (4, 1)), (1, (2,)), (2, (1, 1, 5))).clusters
    assert clusters.prompt_start_C.tolist() == [0, 3, 4]
    assert clusters.prompt_length_C.tolist() == [3, 1, 2]
    assert clusters.first_row_C.tolist() == [0, 2, 3, 6]
    alone = unshared(4, 1, 2).clusters
    assert alone.prompt_length_C.tolist() == [0, 0, 0]
    assert alone.first_row_C.tolist() == [0, 1, 2, 3]


def row_by_row(layout: Layout, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attention written out over each row's tokens; a prompt's own outputs are those of its first row."""
    rows, group, outs = layout.rows, query.shape[1] // key.shape[1], {}
    for row in range(layout.num_rows):
        parts = [(rows.shared_start_B[row], rows.shared_length_B[row]), (rows.own_start_B[row], rows.own_length_B[row])]
        tokens = [int(start) + place for start, length in parts for place in range(int(length))]
        keys, values = (part[tokens].repeat_interleave(group, dim=1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[tokens], keys) * scaling
        later = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
        out = torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), values)
        for place, token in enumerate(tokens):
            outs.setdefault(token, out[place])
    return torch.stack([outs[token] for token in range(layout.num_tokens)])


@dataclass(frozen=True)
class Attended:
    out: Tensor
    gradients: tuple[Tensor, ...]


def attended(function: Callable[..., Tensor], layout: Layout, parts: Sequence[Tensor], *rest: Any) -> Attended:
    leaves = [part.detach().requires_grad_() for part in parts]
    out = function(layout, *leaves, *rest)
    weights = noise(*out.shape, seed=5).to(out.dtype)
    return Attended(out.detach(), torch.autograd.grad((out * weights).sum(), leaves))


def made_up(layout: Layout, dim: int, group: int, kv_heads: int = 2) -> list[Tensor]:
    shapes = [(layout.num_tokens, heads, dim) for heads in (group * kv_heads, kv_heads, kv_heads)]
    return [2 * noise(*shape, seed=at) for at, shape in enumerate(shapes)]


def check_attention(operations: NativeOperations, layout: Layout, dim: int, group: int, kv_heads: int = 2) -> Attended:
    parts, scaling = made_up(layout, dim, group, kv_heads), dim**-0.5
    operations.find_scratch(layout, dim).fill_(torch.nan)  # what no one wrote must not be read
    found = attended(operations.attend, layout, parts, scaling)
    assert torch.equal(found.out, attend(layout, *parts, scaling))
    expected = attended(row_by_row, layout, [part.double() for part in parts], scaling)
    for ours, theirs in zip(found.gradients, expected.gradients, strict=True):
        assert relative_difference(ours.double(), theirs) <= CLOSE
    return found


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("dim", "group"), SHAPES)
def test_attention_has_the_bits_of_packed_attention_and_the_gradients_of_float64(name: str, dim: int, group: int) -> None:
    check_attention(load(dim, group), LAYOUTS[name], dim, group, kv_heads=1 if group == 7 else 2)


def test_attention_reads_strided_queries_keys_and_values() -> None:
    """Values are a view of all projections; queries and keys may be, too. Heads that lie apart are copied."""
    operations, layout, heads = load(16, 2), LAYOUTS["prompts"], Heads(4, 2, 16)
    qkv = noise(layout.num_tokens, heads.width)
    views = [heads.queries(qkv), heads.keys(qkv), heads.values(qkv)]
    assert not any(view.is_contiguous() for view in views)
    expected = attended(operations.attend, layout, [view.contiguous() for view in views], 0.25)
    for parts in (
        views,
        [apart(view) for view in views],
        [view.transpose(0, 1).contiguous().transpose(0, 1) for view in views],
    ):
        found = attended(operations.attend, layout, parts, 0.25)
        assert torch.equal(found.out, expected.out)
        assert_same(found.gradients, expected.gradients)


def test_scores_far_apart_and_far_from_0() -> None:
    """Weights that vanish, and scores of the padding (0) that lie far above all real ones."""
    operations, layout = load(16, 2), LAYOUTS["prompts"]
    query, key, value = made_up(layout, 16, 2)
    for parts in ((100 * query, 10 * key, value), (query.abs() * 100, -key.abs() * 10, value)):
        found, expected = (
            attended(operations.attend, layout, parts, 0.25),
            attended(row_by_row, layout, [part.double() for part in parts], 0.25),
        )
        assert torch.equal(found.out, expected.out.float())
        for ours, theirs in zip(found.gradients, expected.gradients, strict=True):
            assert relative_difference(ours.double(), theirs) <= CLOSE


@pytest.mark.parametrize("name", ["ragged", "prompts"])
def test_equal_weights_round_as_in_decoding(name: str) -> None:
    """Queries of zeros, as padding has: means of floats, of which many lie half-way between two."""
    operations, layout = load(16, 2), LAYOUTS[name]
    query, key, value = made_up(layout, 16, 2)
    query.zero_()
    value = 1 + torch.randint(0, 1000, value.shape, generator=torch.Generator().manual_seed(0)) * 2.0**-23
    found = operations.attend(layout, query, key, value, 0.25)
    assert torch.equal(found, attend(layout, query, key, value, 0.25))
    wide, rows, ties = value.double(), layout.rows, 0
    for row in range(layout.num_rows):
        prompt = wide[rows.shared_start_B[row] : rows.shared_start_B[row] + rows.shared_length_B[row]]
        own = slice(rows.own_start_B[row], rows.own_start_B[row] + rows.own_length_B[row])
        numbers = torch.arange(1, 1 + len(prompt) + int(rows.own_length_B[row]))[:, None, None]
        means = (torch.cat([prompt, wide[own]]).cumsum(0) / numbers)[len(prompt) :]
        assert torch.equal(found[own], means.float().repeat_interleave(2, dim=1))
        neighbours = means.float() + (means - means.float()) * 2
        ties += int(((neighbours.float() == neighbours) & (means.float() != means)).sum())
    assert ties > 100


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_and_infinity_stay_in_their_cluster(bad: float, place: int) -> None:
    """The first row of a cluster in the middle: its tokens and its prompt's may suffer, and its cluster's, and no others."""
    operations, layout = load(16, 2), LAYOUTS["prompts"]
    parts = made_up(layout, 16, 2)
    clean = attended(operations.attend, layout, parts, 0.25)
    rows, cluster = layout.rows, 2
    first, end = layout.clusters.first_row_C[cluster : cluster + 2]
    prompt = layout.clusters.prompt_start_C[cluster]
    touched = torch.zeros(layout.num_tokens, dtype=torch.bool)
    touched[prompt : prompt + layout.clusters.prompt_length_C[cluster]] = True
    for row in range(first, end):
        touched[rows.own_start_B[row] : rows.own_start_B[row] + rows.own_length_B[row]] = True
    own = int(rows.own_start_B[first])
    parts[place][own + 3] = bad
    found = attended(operations.attend, layout, parts, 0.25)
    assert not found.out[own + 3].isfinite().all() or bad == -torch.inf
    for ours, theirs in zip((found.out, *found.gradients), (clean.out, *clean.gradients), strict=True):
        assert torch.equal(ours[~touched], theirs[~touched])
    for row in range(first + 1, end):  # forward, the other completions of the same prompt are not touched either
        span = slice(rows.own_start_B[row], rows.own_start_B[row] + rows.own_length_B[row])
        assert torch.equal(found.out[span], clean.out[span])


def test_nan_in_one_row_stays_there_in_every_other_operation() -> None:
    operations, heads = load(16, 2), Heads(4, 2, 16)
    others = torch.arange(40) != 7

    def spoiled(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        copy[7] = torch.nan
        return copy

    hidden, weight, inverse = noise(40, 64), noise(64), noise(40).abs()
    inputs, rotary = NormInputs(hidden, inverse, weight), Rotary(*turns(40, 16), heads)
    qkv, gate_up = noise(40, heads.width), noise(40, 66)
    d_parts = [noise(40, count, 16) for count in (4, 2, 2)]
    pairs = [
        [operations.add_norm_forward(given, None, weight, EPSILON) for given in (hidden, spoiled(hidden))],
        [operations.add_norm_backward(given, None, inputs, True, False) for given in (hidden, spoiled(hidden))],
        [operations.rotary_forward(given, rotary) for given in (qkv, spoiled(qkv))],
        [operations.rotary_backward(given, None, rotary, False, False) for given in (d_parts, list(map(spoiled, d_parts)))],
        [operations.swiglu_backward(noise(40, 33), given, True) for given in (gate_up, spoiled(gate_up))],
    ]
    for clean, found in pairs:
        for ours, theirs in zip(found, clean, strict=True):
            if ours is not None:
                assert torch.equal(ours[others], theirs[others])


def test_windows_and_long_rows_take_the_other_path_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    operations, layout = load(16, 2), LAYOUTS["prompts"]
    parts, calls = made_up(layout, 16, 2), []
    monkeypatch.setattr(cpu_training, "attend", lambda *args: calls.append(args[-1]) or attend(*args))
    expected = attended(operations.attend, layout, parts, 0.25)
    assert_same(attended(operations.attend, layout, parts, 0.25, layout.longest_row).gradients, expected.gradients)
    assert calls == [], "a window as long as the longest row is none"
    window = attended(operations.attend, layout, parts, 0.25, 7)
    other = attended(attend, layout, parts, 0.25, 7)
    assert calls == [7]
    assert not torch.equal(window.out, expected.out)
    assert_same((window.out, *window.gradients), (other.out, *other.gradients))
    for limit, taken in ((layout.longest_row, [7]), (layout.longest_row - 1, [7, None])):
        monkeypatch.setattr(cpu_training, "LONGEST_ROW", limit)
        found = attended(operations.attend, layout, parts, 0.25)
        assert calls == taken
        assert torch.equal(found.out, expected.out)
        assert_close(found.gradients, expected.gradients)


# -- threads ------------------------------------------------------------------------------------------------------------------


def test_operations_have_the_same_bits_on_any_number_of_threads() -> None:
    operations, layout, heads, results = load(16, 2), LAYOUTS["prompts"], Heads(4, 2, 16), []
    parts, rotary = made_up(layout, 16, 2), Rotary(*turns(500, 16), heads)
    inputs = NormInputs(noise(500, 64, seed=2), noise(500), noise(64))
    for threads in (1, 2, 3, 3, 1):
        with intra_op_threads(threads):
            found = attended(operations.attend, layout, parts, 0.25)
            results.append(
                [
                    *(found.out, *found.gradients),
                    *operations.add_norm_forward(noise(500, 64), noise(500, 64, seed=1), noise(64), EPSILON),
                    *operations.add_norm_backward(noise(500, 64), noise(500, 64, seed=1), inputs, True, True),
                    *operations.rotary_forward(noise(500, heads.width), rotary),
                    *operations.rotary_backward([noise(500, count, 16) for count in (4, 2, 2)], None, rotary, True, False)[:2],
                    *operations.swiglu_backward(noise(500, 33), noise(500, 66), True),
                ]
            )
    for other in results[1:]:
        assert_same(tuple(other), tuple(results[0]))


def test_threads_do_not_pile_up() -> None:
    def count() -> int:
        return sum(thread.name.startswith("train") for thread in threading.enumerate())

    def at_most(threads: int) -> bool:
        """Threads of an unreferenced pool end shortly afterwards."""
        deadline = time.monotonic() + 10
        while count() > threads and time.monotonic() < deadline:
            time.sleep(0.01)
        return count() <= threads

    gc.collect()  # those of other tests
    before, operations = count(), load(16, 2)
    for threads in (2, 3, 4, 2):
        with intra_op_threads(threads):
            operations.swiglu_backward(noise(500, 8), noise(500, 16), False)
    assert at_most(before + 3)
    del operations
    assert at_most(before)


def test_a_wide_residual_stream_fits_on_the_stack_of_a_thread() -> None:
    """Its rows of scratch memory lie there."""
    width = 2**16
    operations = load(width=64)  # sums of this width need no order of PyTorch's here
    hidden, weight, rows = noise(65, width), noise(width), 65
    with intra_op_threads(3):
        _, normed, inverse = operations.add_norm_forward(hidden, None, weight, EPSILON)
        found = operations.add_norm_backward(hidden, None, NormInputs(hidden, inverse, weight), True, True)
    assert relative_difference(normed, TorchOperations.add_norm_forward(hidden, None, weight, EPSILON)[1]) <= CLOSE
    expected = TorchOperations.add_norm_backward(
        hidden.double(), None, NormInputs(*map(in_float64, (hidden, inverse, weight))), True, True
    )
    assert found[0].shape == (rows, width)
    assert_close(found, expected, 1e-5)


def test_an_interrupt_takes_nothing_away_from_threads_at_work() -> None:
    """A signal raises in the main thread while another still writes: what it writes to lives on, and its desk is its own."""
    operations, layout = load(16, 2), LAYOUTS["prompts"]
    started, go_on, seen = threading.Event(), threading.Event(), []

    def function(reference: Any, desk: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert started.wait(10)
            raise KeyboardInterrupt
        started.set()
        assert go_on.wait(10)
        seen.append((alive() is not None, memory_alive() is not None))

    given = torch.zeros(4)
    alive = weakref.ref(given)
    with intra_op_threads(2):
        memory = operations.find_scratch(layout, 16)
        memory_alive, place = weakref.ref(memory), memory.data_ptr()
        with pytest.raises(KeyboardInterrupt):
            operations.run_tasks(function, native.fill_structure("swiglu", activation=given), 2, memory)
        del given, memory
        gc.collect()
        assert operations.find_scratch(layout, 16).data_ptr() != place
        go_on.set()
        assert operations.pool is not None
        operations.pool.shutdown()
    assert seen == [(True, True)]


# -- models -------------------------------------------------------------------------------------------------------------------

FAMILIES = [
    ("llama", {}),
    ("llama", {"hidden_size": 56, "intermediate_size": 72, "head_dim": 16}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 7}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 16}),
]
"""All with heads of 16 in groups of 2."""


def small(family: str, **changes: Any) -> Any:
    return build(family, **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2} | changes)


def gradients_of(model: Any, backbone: Any, layout: Layout) -> tuple[Tensor, dict[str, Tensor | None]]:
    model.zero_grad(set_to_none=True)
    states = backbone(layout)
    (states * noise(*states.shape)).sum().backward()
    return states.detach(), {name: parameter.grad for name, parameter in model.base_model.named_parameters()}


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
@pytest.mark.parametrize("name", ["ragged", "one token", "prompts"])
def test_a_model_has_the_states_of_its_modules_and_their_gradients(family: str, changes: dict[str, Any], name: str) -> None:
    model, layout = small(family, **changes), LAYOUTS[name]
    expected_states, expected = gradients_of(model, ModuleBackbone(model.base_model, attention_configs(model)), layout)
    backbone = FusedBackbone(model)
    assert isinstance(backbone.using, NativeOperations)
    states, found = gradients_of(model, backbone, layout)
    assert torch.equal(states, expected_states)
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        ours = found[parameter]
        assert ours is not None
        assert gradient is not None
        # With one token no query or key matters: their gradients are roundings of 0.
        largest = max(float(gradient.abs().max()), 1e-3)
        assert float((ours - gradient).abs().max()) <= 1e-5 * largest, parameter
    again_states, again = gradients_of(model, FusedBackbone(model, checkpointing=True), layout)
    assert torch.equal(again_states, states)
    assert_same(tuple(again.values()), tuple(found.values()))


def test_the_demos_model_trains_with_the_bits_of_its_modules_forward() -> None:
    model = build("llama")
    states, _ = gradients_of(model, FusedBackbone(model), LAYOUTS["prompts"])
    expected, _ = gradients_of(model, ModuleBackbone(model.base_model, attention_configs(model)), LAYOUTS["prompts"])
    assert torch.equal(states, expected)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_frozen_parameters_get_no_gradient_and_the_others_the_same(family: str) -> None:
    model = small(family, **{"head_dim": 16} if family == "qwen3" else {})
    backbone, layout = FusedBackbone(model), LAYOUTS["prompts"]
    _, expected = gradients_of(model, backbone, layout)
    trained = [
        "layers.1.self_attn.k_proj.weight",
        "layers.0.mlp.down_proj.weight",
        "layers.0.mlp.up_proj.weight",
        "norm.weight",
    ]
    trained += ["layers.1.self_attn.v_proj.bias"] if family == "qwen2" else ["layers.0.self_attn.q_norm.weight"]
    for name, parameter in model.base_model.named_parameters():
        parameter.requires_grad_(name in trained)
    _, found = gradients_of(model, backbone, layout)
    assert {name for name, gradient in found.items() if gradient is not None} == set(trained)
    for name in trained:
        assert relative_difference(found[name], expected[name]) <= CLOSE


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_gradients_of_a_model_have_the_same_bits_on_any_number_of_threads(family: str) -> None:
    model, results = small(family), []
    backbone = FusedBackbone(model)
    for threads in (1, 1, 2, 3):
        with intra_op_threads(threads):
            states, gradients = gradients_of(model, backbone, LAYOUTS["prompts"])
        results.append((states, *gradients.values()))
    for other in results[1:]:
        assert_same(other, results[0])


# -- choosing -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["auto", "fused"])
def test_a_policy_on_a_cpu_trains_with_compiled_code(kernels: str) -> None:
    policy = tiny_policy(dtype=torch.float32)
    assert policy.prepare(kernels) == "training with own compiled code"
    assert isinstance(policy.backbone, FusedBackbone)
    assert not policy.backbone.checkpointing
    policy.prepare(kernels, checkpointing=True)
    assert policy.backbone.checkpointing
    assert isinstance(policy.make_frozen_copy().backbone, FusedBackbone)
    assert policy.prepare("modules") == "training with the modules of transformers"
    assert isinstance(policy.backbone, ModuleBackbone)


@pytest.mark.parametrize("kernels", ["auto", "fused"])
@pytest.mark.parametrize(
    ("dtype", "switch", "reason"),
    [
        (torch.float32, "0", "nothing is compiled: COHORT_NATIVE=0"),
        (torch.float64, "1", "on a CPU they compute in float32, not in torch.float64"),
    ],
    ids=["switched off", "float64"],
)
def test_policies_without_compiled_code_train_with_modules(
    kernels: str, dtype: torch.dtype, switch: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.SWITCH, switch)
    policy = tiny_policy(dtype=dtype)
    assert policy.prepare(kernels) == f"training with the modules of transformers ({reason})"
    assert isinstance(policy.backbone, ModuleBackbone)


class Broken:
    """A library of which one function gives one number that is wrong."""

    def __init__(self, library: Any, name: str, kind: str, output: str):
        self.library, self.name, function = library, name, getattr(library, name)

        def wrong(address: int, *memory: int) -> None:
            function(address, *memory)
            ctypes.c_float.from_address(getattr(native.read_structures()[kind].from_address(address), output)).value += 0.01

        self.wrong = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(function.argtypes))(wrong)

    def __getattr__(self, name: str) -> Any:
        return self.wrong if name == self.name else getattr(self.library, name)


@pytest.mark.parametrize(
    ("name", "kind", "output"),
    [
        ("add_norm_forward", "norm", "total"),
        ("add_norm_forward", "norm", "normed"),
        ("add_norm_forward", "norm", "inverse"),
        ("add_norm_backward", "norm", "d_input"),
        ("add_norm_backward", "norm", "d_weight"),
        ("add_norm_backward", "norm", "normed"),
        ("rotary_forward", "rotary", "query"),
        ("rotary_forward", "rotary", "key"),
        ("rotary_backward", "rotary", "d_qkv"),
        ("swiglu_backward", "swiglu", "d_gate_up"),
        ("swiglu_backward", "swiglu", "activation"),
        ("attention_forward", "attention", "out"),
        ("attention_backward", "attention", "d_query"),
        ("attention_backward", "attention", "d_key"),
        ("attention_backward", "attention", "d_value"),
    ],
)
def test_a_library_that_gives_another_number_is_not_used(name: str, kind: str, output: str) -> None:
    operations, heads = load(16, 2), Heads(4, 2, 16)
    operations.compare(heads, 64)
    broken = NativeOperations(replace(operations.native, library=Broken(operations.native.library, name, kind, output)))
    said = "attention" if "attention" in name else name
    with pytest.raises(native.NoNative, match=f"its {said} has other numbers than PyTorch's"):
        broken.compare(heads, 64)


@pytest.mark.parametrize(
    ("march", "dim", "group"), [("x86-64", 8, 2), pytest.param("x86-64-v3", 256, 1, marks=pytest.mark.prove)]
)
def test_smaller_registers_change_no_bit_of_the_forward(march: str, dim: int, group: int, tmp_path, monkeypatch) -> None:
    """Without AVX-512, and without fused products: vectors are split, sums may round otherwise, results are the same."""
    if platform.machine() != "x86_64":
        pytest.skip("not an x86 processor")
    monkeypatch.setattr(building, "FLAGS", (*building.FLAGS, f"-march={march}"))  # the last one counts
    monkeypatch.setattr(building, "PREBUILT", tmp_path / "none")
    found = native.find_library(dim, group, 40, tmp_path, os.environ["PATH"])
    assert isinstance(found, native.Native), found
    operations = NativeOperations(found)
    operations.compare(Heads(2 * group, 2, dim), 40)
    for name in ("ragged", "prompts"):
        check_attention(operations, LAYOUTS[name], dim, group)
    hidden, weight = noise(33, 40), noise(40)
    expected = TorchOperations.add_norm_forward(hidden, None, weight, EPSILON)
    assert_same(operations.add_norm_forward(hidden, None, weight, EPSILON), expected)


# -- runs ---------------------------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = FAST | {
    # PyTorch computes what is left of full vectors with another exponential; a width of 48 would leave some.
    "model.scratch.intermediate_size": 64,
    "train.num_steps": 3,
    "train.minibatches_per_step": 2,
    "rewards": [{"function": "session_tools:digit_share"}],
}


def test_engine_and_trainer_agree_to_the_bit_in_a_run(tmp_path, monkeypatch) -> None:
    calls = []
    backward = NativeOperations.swiglu_backward
    monkeypatch.setattr(NativeOperations, "swiglu_backward", lambda *args: calls.append(1) or backward(*args))
    rows = rows_of(train_tiny(tmp_path, **RUN).folder)
    assert calls, "this was not compiled training"
    assert [row["rollout/mismatch_max"] for row in rows] == [0.0] * 3
    assert all(row["optim/grad_norm"] > 0 for row in rows)
    modules = rows_of(train_tiny(tmp_path, "modules", **RUN | {"model.kernels": "modules"}).folder)
    assert modules[0]["optim/grad_norm"] == pytest.approx(rows[0]["optim/grad_norm"], rel=1e-5)
    assert modules[0]["loss/policy"] == pytest.approx(rows[0]["loss/policy"], rel=1e-5, abs=1e-7)


def test_a_stopped_run_ends_with_the_same_bits(tmp_path, monkeypatch) -> None:
    whole = train_tiny(tmp_path, "whole", **RUN).folder
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        assert train_tiny(tmp_path, "stopped", **RUN).status == "interrupted"
    backbones = []
    prepare = Policy.prepare
    monkeypatch.setattr(Policy, "prepare", lambda self, *args, **named: backbones.append(prepare(self, *args, **named)))
    run = tmp_path / "stopped"
    assert session.resume(run).status == "finished"
    assert set(backbones) == {"training with own compiled code"}
    assert without_timing(rows_of(run)) == without_timing(rows_of(whole))
    for file in (
        "model/model.safetensors",
        *(path.relative_to(whole) for path in whole.glob("checkpoints/step-3/*.safetensors")),
    ):
        assert bits(run / file) == bits(whole / file)


@pytest.mark.parametrize("intermediate", [64, 48])
def test_a_prompt_has_the_same_bits_in_any_company(intermediate: int) -> None:
    """And those of the modules' prefill; an odd number of rows of 48 would leave some over after full vectors."""
    model = small("llama", intermediate_size=intermediate)
    fused, operations = fuse(model), load()
    prompts = [[5, 6, 7], [3], [9, 8, 7, 6, 5, 4, 3], [1, 2]]
    with torch.no_grad(), use_attention(attention_configs(model), cached_attention.SLOT_ATTENTION):
        cached, expected_PH = cached_attention.prefill(model.base_model, 2, prompts, torch.device("cpu"))
    for chosen in ([0, 1, 2, 3], [2], [3, 1], [0, 1, 3]):
        (keys, values), found_PH = prefill(fused, [prompts[place] for place in chosen], operations)
        assert torch.equal(found_PH, expected_PH[chosen])
        for number, (key, value) in enumerate(zip(*cached.all(), strict=True)):
            for row, place in enumerate(chosen):
                length = len(prompts[place])
                assert torch.equal(keys[number, row, :, :length], key[place, :, :length])
                assert torch.equal(values[number, row, :, :length], value[place, :, :length])
