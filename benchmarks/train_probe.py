"""Profiles the training backbone: forward and backward of `hidden_states` on one GPU, without the head.

    python benchmarks/train_probe.py 0.5b                       32 sequences of 640 tokens, bfloat16, random weights
    python benchmarks/train_probe.py 1.5b --rows 48 --profile   also the 25 kernels that take longest
    python benchmarks/train_probe.py 7b --rows 16 --checkpointing
    python benchmarks/train_probe.py 0.5b --operations          each kernel separately, with its bandwidth
    python benchmarks/train_probe.py 0.5b --twins               plain torch instead of the kernels

MFU counts 6 FLOPs per matmul parameter of the layers and token, without attention and recomputation, relative to 989 TFLOP/s. All
sequences have the same length, and attention is torch's over [rows, heads, length, D], so that results do not depend on packing
(`--attention cudnn` or `flash`). Gradients are dropped at once, as in a trainer that adds them to float32 masters, so the memory peak is
that of weights, activations and one layer's gradients.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Qwen2Config, Qwen2ForCausalLM

from cohort.ops.fused import functions, training
from cohort.ops.fused.family import FusedModel, fuse
from cohort.ops.fused.functions import Heads, NormInputs, Rotary
from cohort.ops.fused.training import hidden_states

PEAK = 989e12
VOCABULARY = 151936
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
SHAPES: dict[str, dict[str, Any]] = {
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "7b": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
}


@dataclass(frozen=True)
class UniformLayout:
    """Sequences of one length, one after the other."""

    token_ids_T: Tensor
    positions_T: Tensor
    rows: int


def uniform_layout(rows: int, length: int) -> UniformLayout:
    token_ids_T = torch.randint(0, VOCABULARY, (rows * length,), device="cuda")
    return UniformLayout(token_ids_T, torch.arange(length, device="cuda").repeat(rows), rows)


def attend_uniform(
    layout: UniformLayout, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, scaling: float, window: int | None
) -> Tensor:
    query, key, value = (rows.unflatten(0, (layout.rows, -1)).transpose(1, 2) for rows in (query_THD, key_TKD, value_TKD))
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)


def build(shape: str, layers: int) -> Any:
    sizes = SHAPES[shape] | ({"num_hidden_layers": layers} if layers else {})
    config = Qwen2Config(vocab_size=VOCABULARY, max_position_embeddings=32768, tie_word_embeddings=True, **sizes)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return Qwen2ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default)


def layer_parameters(fused: FusedModel) -> int:
    return sum(
        layer.qkv.weight.numel() + layer.out.numel() + layer.gate_up.weight.numel() + layer.down.numel()
        for layer in fused.layers
    )


def drop_gradients(model: Any) -> None:
    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(drop)


def timed(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(fused: FusedModel, layout: Any, gradient_TH: Tensor, checkpointing: bool, repeats: int) -> dict[str, float]:
    def forward_backward() -> None:
        hidden_states(fused, layout, checkpointing=checkpointing).backward(gradient_TH)

    first = timed(forward_backward)
    for _ in range(2):
        forward_backward()
    torch.cuda.reset_peak_memory_stats()
    whole = statistics.median(timed(forward_backward) for _ in range(repeats))
    with torch.no_grad():
        forward = statistics.median(timed(lambda: hidden_states(fused, layout)) for _ in range(repeats))
    tokens = layout.token_ids_T.shape[0]
    return {
        "tokens": tokens,
        "first_s": first,
        "forward_ms": forward * 1e3,
        "forward_backward_ms": whole * 1e3,
        "tokens_per_s": tokens / whole,
        "forward_mfu": 2 * layer_parameters(fused) * tokens / forward / PEAK,
        "mfu": 6 * layer_parameters(fused) * tokens / whole / PEAK,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def print_profile(fused: FusedModel, layout: Any, gradient_TH: Tensor, checkpointing: bool) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        hidden_states(fused, layout, checkpointing=checkpointing).backward(gradient_TH)
        torch.cuda.synchronize()
    kernels = [event for event in profiler.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
    total = sum(event.self_device_time_total for event in kernels)
    print(f"{'kernel':90} {'calls':>6} {'ms':>9} {'share':>7}")
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:25]:
        share = event.self_device_time_total / total
        print(f"{event.key[:90]:90} {event.count:6} {event.self_device_time_total / 1e3:9.3f} {share:7.1%}")
    print(f"{'all kernels':90} {sum(event.count for event in kernels):6} {total / 1e3:9.3f}")


def print_operations(fused: FusedModel, tokens: int) -> None:
    """Each operation 20 times in a row on the stream: its time and bandwidth."""
    hidden, intermediate = fused.embedding.shape[1], fused.intermediate
    heads = Heads(fused.query_heads, fused.kv_heads, fused.head_dim)

    def rows(columns: int) -> Tensor:
        return torch.randn(tokens, columns, device="cuda", dtype=torch.bfloat16)

    stream, delta, d_normed, d_total, weight = rows(hidden), rows(hidden), rows(hidden), rows(hidden), fused.norm.detach()
    qkv, gate_up, d_activation = rows(heads.width), rows(2 * intermediate), rows(intermediate)
    rotary = Rotary(*fused.rotary(torch.arange(tokens, device="cuda") % 4096), heads)
    d_heads = [cut(rows(heads.width)).contiguous() for cut in (heads.queries, heads.keys, heads.values)]
    operations = functions.choose_operations(stream)
    total, _, inverse = operations.add_norm_forward(stream, delta, weight, 1e-6)
    turned = 2 * (heads.query + heads.kv) * heads.dim
    inputs = NormInputs(total, inverse, weight)
    cases: dict[str, tuple[int, Callable[[], Any]]] = {
        "add_norm_forward": (4 * hidden, lambda: operations.add_norm_forward(stream, delta, weight, 1e-6)),
        "add_norm_backward": (5 * hidden, lambda: operations.add_norm_backward(d_normed, d_total, inputs, True, True)),
        "rotary_forward": (turned, lambda: operations.rotary_forward(qkv, rotary)),
        "rotary_backward": (2 * heads.width, lambda: operations.rotary_backward(d_heads, None, rotary, True, False)),
        "swiglu_forward": (3 * intermediate, lambda: operations.swiglu_forward(gate_up)),
        "swiglu_backward": (6 * intermediate, lambda: operations.swiglu_backward(d_activation, gate_up, True)),
        "copy (for comparison)": (4 * intermediate, lambda: gate_up.clone()),
    }
    print(f"{'operation':24} {'us':>9} {'GB/s':>8}")
    for name, (values_per_token, work) in cases.items():
        work()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(20):
            work()
        end.record()
        torch.cuda.synchronize()
        seconds = start.elapsed_time(end) / 20 / 1e3
        print(f"{name:24} {seconds * 1e6:9.1f} {2 * values_per_token * tokens / seconds / 1e9:8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=640)
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the shape has")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--attention", choices=BACKENDS, default="cudnn")
    parser.add_argument("--twins", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--operations", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("train_probe.py measures a GPU, and there is none here.")

    model = build(options.shape, options.layers)
    fused = fuse(model)
    drop_gradients(model)
    layout = uniform_layout(options.rows, options.length)
    gradient_TH = torch.randn(options.rows * options.length, model.config.hidden_size, device="cuda").to(torch.bfloat16)
    training.attend = attend_uniform
    backends = [BACKENDS[options.attention], SDPBackend.FLASH_ATTENTION]
    with mock.patch.object(functions, "has_kernels", return_value=not options.twins), sdpa_kernel(backends, set_priority=True):
        figures = measure(fused, layout, gradient_TH, options.checkpointing, options.repeats)
        print(
            json.dumps(
                {"shape": options.shape, "twins": options.twins} | {name: round(value, 4) for name, value in figures.items()}
            )
        )
        if options.profile:
            print_profile(fused, layout, gradient_TH, options.checkpointing)
        if options.operations:
            print_operations(fused, options.rows * options.length)


if __name__ == "__main__":
    main()
