"""oneDNN's float32 products replace MKL's only where they are as exact and batch-independent, and only during a run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from cohort.errors import RunError
from cohort.ops import products
from cohort.ops.products import choose_products, explain_refusal, restore_products, use_products, uses_onednn

LAYERS = [nn.Linear(width, 8) for width in (64, 576)]
REFUSAL = explain_refusal(LAYERS)
needs_onednn = pytest.mark.skipif(bool(REFUSAL), reason=f"oneDNN is refused on this CPU: {REFUSAL}")
linear, mm = torch.nn.functional.linear, torch.mm


def build(hidden: int, intermediate: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=1,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        vocab_size=32,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def large():
    """A layer of 2.4 million weights."""
    return build(512, 1024)


def cut_bits(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Float32 with so many bits less in the mantissa."""
    return ((numbers.view(torch.int32) + (1 << (bits - 1))) & -(1 << bits)).view(torch.float32)


@pytest.mark.parametrize(("name", "bits", "times"), [("tf32", 13, 500), ("bfloat16", 16, 4000), ("six bits less", 6, 20)])
def test_inputs_of_fewer_bits_are_refused(monkeypatch, large, name, bits, times):
    def rounding(rows, weight):
        return linear(cut_bits(rows, bits), cut_bits(weight, bits)) if uses_onednn() else linear(rows, weight)

    monkeypatch.setattr(products.F, "linear", rounding)
    reason = explain_refusal(LAYERS)
    assert reason.startswith("its error over 64 inputs is "), name
    assert float(reason.split()[6]) > times / 2
    assert choose_products(large, torch.float32) == "mkl"
    with pytest.raises(
        RunError, match=r"the run in runs/a multiplies .* with oneDNN, and on this machine its error .*cohort export"
    ):
        use_products("onednn", large, "the run in runs/a")
    assert not uses_onednn()


@needs_onednn
def test_results_that_depend_on_the_number_of_rows_are_refused(monkeypatch):
    monkeypatch.setattr(products.torch, "mm", lambda rows, weight: mm(rows, weight) + 1e-6 * (len(rows) < 30))
    assert explain_refusal(LAYERS) == "the bits of its results over 64 inputs depend on the number of rows"


def test_a_pytorch_that_ignores_the_setting_is_refused(monkeypatch):
    def ignoring(rows, weight):
        with restore_products():
            products._library.fp32_precision = "ieee"
            return linear(rows, weight)

    monkeypatch.setattr(products.F, "linear", ignoring)
    monkeypatch.setattr(products, "ROWS", (300,))
    monkeypatch.setattr(products.torch, "mm", lambda rows, weight: ignoring(rows, weight.t()))
    assert "does not use oneDNN" in explain_refusal(LAYERS)


@needs_onednn
def test_only_float32_on_a_cpu_with_large_layers_is_considered(large):
    assert choose_products(large, torch.float32) == "onednn"
    assert choose_products(large, torch.bfloat16) == ""
    assert choose_products(build(512, 1024).to("meta"), torch.float32) == ""
    assert choose_products(build(128, 384), torch.float32) == "mkl"  # the demo


@needs_onednn
def test_the_setting_ends_with_the_run(large):
    before = torch.backends.mkldnn.matmul.fp32_precision
    with restore_products():
        use_products("onednn", large, "this")
        assert uses_onednn()
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    use_products("mkl", large, "this")
    use_products("onednn", build(512, 1024).to("meta"), "this")
    assert not uses_onednn()


@needs_onednn
@pytest.mark.parametrize("width", [64, 192, 576, 1536, 2048])
def test_rows_have_the_same_bits_in_any_batch_layout_and_number_of_threads(width):
    rows_NI, weight_OI = torch.randn(300, width), torch.randn(960, width)
    packed_IO, threads = weight_OI.t().contiguous(), torch.get_num_threads()
    with restore_products():
        products._library.fp32_precision = "bf16"
        expected = torch.nn.functional.linear(rows_NI, weight_OI)
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                for rows in (16, 17, 33, 64, 100, 299):
                    assert torch.equal(torch.mm(rows_NI[:rows], packed_IO), expected[:rows]), (count, rows)
                    assert torch.equal(torch.nn.functional.linear(rows_NI[-rows:], weight_OI), expected[-rows:]), (count, rows)
        finally:
            torch.set_num_threads(threads)
