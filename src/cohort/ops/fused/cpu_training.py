"""Compiled operations between the matrix products of training on a CPU (native/train.c).

The reference implementations are `TorchOperations` in functions.py and, for attention, ops/packed_attention.py. With the
modules of transformers half of a small model's training step is spent outside its products: thirty operations per layer that
read and write all activations, and attention that copies them to float64 and back. Here a block of a layer is one pass, and
attention widens data in the first caches. The forward has the bits of decoding. SiLU remains PyTorch's, whose exponential
cannot be reproduced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cohort.ops.fused.cpu import apply_silu
from cohort.ops.fused.functions import Heads, NormInputs, Rotary, TorchOperations
from cohort.ops.fused.native import LANES, Native, NoNative, fill_structure
from cohort.ops.layout import Layout, lay_out
from cohort.ops.packed_attention import attend

CHUNK = 32
BLOCK = 16
"""As in train.c."""
LONGEST_ROW = 4096
"""Longer rows use PyTorch: the widened keys and values of a head would not fit the caches."""
ELEMENTS_PER_THREAD = 400_000
"""With fewer, the rows are done before another thread has started."""
ALIASED = 64
"""Rows of a multiple of this many numbers would share cache sets."""
TOLERANCE = 1e-5
"""Accepted difference from the reference implementations, relative to the largest number: the same sums in another order."""


class NativeOperations:
    """The operations of functions.py for one head shape in float32, and attention."""

    def __init__(self, native: Native):
        self.native = native
        self.pool: ThreadPoolExecutor | None = None
        self.memory = torch.empty(0, 0, dtype=torch.float64)

    def run_rows(self, function: Callable[..., None], job: Any, rows: Tensor) -> None:
        """Run a job whose tasks are chunks of these rows, in as many threads as have enough of them."""
        self.run_tasks(function, job, min(count_chunks(len(rows)), rows.numel() // ELEMENTS_PER_THREAD))

    def run_clusters(self, function: Callable[..., None], job: Any, layout: Layout, dim: int) -> None:
        """Run an attention job over heads of `dim`. Its tasks are clusters of rows with one key head each."""
        self.run_tasks(function, job, job.clusters * job.kv_heads, self.find_scratch(layout, dim))

    def run_tasks(self, function: Callable[..., None], job: Any, tasks: int, memory: Tensor | None = None) -> None:
        """Run the tasks in all threads, but not more threads than tasks; row i of `memory` belongs to thread i.

        A signal may raise here at any time (base/interrupts.py) while other threads are still working. They keep the job and
        its tensors alive, and their scratch memory is not reused.
        """
        threads = max(1, min(torch.get_num_threads(), tasks))
        job.memory = memory
        reference = ctypes.byref(job)
        calls = [(reference,) if memory is None else (reference, memory[thread].data_ptr()) for thread in range(threads)]
        try:
            others = [self.start_workers(threads).submit(function, *arguments) for arguments in calls[1:]]
            function(*calls[0])
            for other in others:
                other.result()
        except BaseException:
            self.memory = self.memory.new_empty(0, 0)
            raise

    def start_workers(self, threads: int) -> ThreadPoolExecutor:
        if self.pool is None or self.pool._max_workers < threads - 1:
            self.pool = ThreadPoolExecutor(threads - 1, "train")
        return self.pool

    def compare(self, heads: Heads, width: int) -> None:
        """Compare every operation with its reference implementation on random rows. Raises NoNative if one differs.

        Hidden states are also compared before every run (training.py), but a wrong gradient would go unnoticed.
        """
        generator = torch.Generator().manual_seed(0)

        def noise(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float32)

        layout = lay_out([((0,) * 5, (0,) * length) for length in (1, BLOCK + 4, CHUNK)], keys=(0, 0, 1))
        rows = layout.num_tokens
        rotary = Rotary(noise(rows, heads.dim // 2), noise(rows, heads.dim // 2), heads)
        queries, keys, values = d_heads = [noise(rows, count, heads.dim) for count in (heads.query, heads.kv, heads.kv)]
        inputs = NormInputs(noise(rows, width), noise(rows), noise(width))
        arguments: dict[str, tuple[Any, ...]] = {
            "add_norm_forward": (noise(rows, width), noise(rows, width), noise(width), 1e-5),
            "add_norm_backward": (noise(rows, width), noise(rows, width), inputs, True, True),
            "rotary_forward": (noise(rows, heads.width), rotary),
            "rotary_backward": (d_heads, None, rotary, True, False),
            "swiglu_forward": (noise(rows, 2 * width),),
            "swiglu_backward": (noise(rows, width), noise(rows, 2 * width), True),
        }
        results = {
            name: (getattr(self, name)(*given), getattr(TorchOperations, name)(*given)) for name, given in arguments.items()
        }
        weights, scaling = noise(rows, heads.query, heads.dim), heads.dim**-0.5

        def attention(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
            leaves = [part.clone().requires_grad_() for part in (queries, keys, values)]
            with torch.enable_grad():
                out = function(layout, *leaves, scaling)
                return (out.detach(), *torch.autograd.grad((out * weights).sum(), leaves))

        results["attention"] = attention(self.attend), attention(attend)
        for name, given in results.items():
            for found, expected in zip(*((part,) if isinstance(part, Tensor) else part for part in given), strict=True):
                if found is not None and not (found - expected).abs().max() <= TOLERANCE * expected.abs().max():
                    raise NoNative(f"its {name} has other numbers than PyTorch's")

    # -- operations, as in functions.TorchOperations -----------------------------------------------------------------------

    def add_norm_forward(
        self, hidden_TH: Tensor, delta_TH: Tensor | None, weight_H: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not self.native.sum_lanes:
            return TorchOperations.add_norm_forward(hidden_TH, delta_TH, weight_H, epsilon)
        hidden_TH = hidden_TH.contiguous()
        delta_TH = None if delta_TH is None else delta_TH.contiguous()
        total_TH = hidden_TH if delta_TH is None else torch.empty_like(hidden_TH)
        normed_TH, (rows, width) = torch.empty_like(hidden_TH), hidden_TH.shape
        inverse_T = hidden_TH.new_empty(rows)
        job = fill_structure(
            "norm", rows=rows, width=width, sum_lanes=self.native.sum_lanes, epsilon=epsilon, hidden=hidden_TH, delta=delta_TH,
            weight=weight_H, total=total_TH, normed=normed_TH, inverse=inverse_T,
        )  # fmt: skip
        self.run_rows(self.native.library.add_norm_forward, job, total_TH)
        return total_TH, normed_TH, inverse_T

    def add_norm_backward(
        self, d_normed_TH: Tensor, d_total_TH: Tensor | None, inputs: NormInputs, want_normed: bool, want_weight: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        (total_TH, inverse_T, weight_H), (rows, width) = inputs, inputs.total_TH.shape
        d_normed_TH = d_normed_TH.contiguous()
        d_total_TH = None if d_total_TH is None else d_total_TH.contiguous()
        d_input_TH, normed_TH = torch.empty_like(total_TH), torch.empty_like(total_TH) if want_normed else None
        shares_NH = total_TH.new_empty(count_chunks(rows), width) if want_weight else None
        job = fill_structure(
            "norm", rows=rows, width=width, weight=weight_H, total=total_TH, normed=normed_TH, inverse=inverse_T,
            d_normed=d_normed_TH, d_total=d_total_TH, d_input=d_input_TH, d_weight=shares_NH,
        )  # fmt: skip
        self.run_rows(self.native.library.add_norm_backward, job, total_TH)
        d_weight_H = None if shares_NH is None else shares_NH.sum(0, dtype=torch.float64).to(weight_H.dtype)
        return d_input_TH, normed_TH, d_weight_H

    def rotary_forward(self, qkv_TP: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        if rotary.query_norm is not None:
            return TorchOperations.rotary_forward(qkv_TP, rotary)
        heads, qkv_TP = rotary.heads, qkv_TP.contiguous()
        query_THD, key_TKD = (qkv_TP.new_empty(len(qkv_TP), count, heads.dim) for count in (heads.query, heads.kv))
        job = self.fill_rotary(rotary, rows=len(qkv_TP), qkv=qkv_TP, query=query_THD, key=key_TKD)
        self.run_rows(self.native.library.rotary_forward, job, qkv_TP)
        return query_THD, key_TKD, heads.values(qkv_TP)

    def rotary_backward(
        self, d_heads: Sequence[Tensor], qkv_TP: Tensor | None, rotary: Rotary, want_bias: bool, want_norm: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        if rotary.query_norm is not None:
            return TorchOperations.rotary_backward(d_heads, qkv_TP, rotary, want_bias, want_norm)
        d_query_THD, d_key_TKD, d_value_TKD = (part.contiguous() for part in d_heads)
        rows = len(d_query_THD)
        d_qkv_TP = d_query_THD.new_empty(rows, rotary.heads.width)
        job = self.fill_rotary(rotary, rows=rows, d_query=d_query_THD, d_key=d_key_TKD, d_value=d_value_TKD, d_qkv=d_qkv_TP)
        self.run_rows(self.native.library.rotary_backward, job, d_qkv_TP)
        return d_qkv_TP, d_qkv_TP.sum(0) if want_bias else None, None, None

    @staticmethod
    def fill_rotary(rotary: Rotary, **others: Any) -> Any:
        angles, heads = {"cosines": rotary.cosine.contiguous(), "sines": rotary.sine.contiguous()}, rotary.heads
        return fill_structure("rotary", query_heads=heads.query, kv_heads=heads.kv, **angles, **others)

    @staticmethod
    def swiglu_forward(gate_up_TJ: Tensor) -> Tensor:
        gate_TI, up_TI = gate_up_TJ.chunk(2, dim=1)
        activated_TI = gate_TI.new_empty(gate_TI.shape)
        apply_silu(gate_TI, activated_TI)
        return activated_TI.mul_(up_TI)

    def swiglu_backward(
        self, d_activation_TI: Tensor, gate_up_TJ: Tensor, want_activation: bool
    ) -> tuple[Tensor, Tensor | None]:
        d_activation_TI, gate_up_TJ = d_activation_TI.contiguous(), gate_up_TJ.contiguous()
        rows, width = d_activation_TI.shape
        d_gate_up_TJ = torch.empty_like(gate_up_TJ)
        activation_TI = torch.empty_like(d_activation_TI) if want_activation else None
        job = fill_structure(
            "swiglu", rows=rows, width=width, d_activation=d_activation_TI, gate_up=gate_up_TJ, d_gate_up=d_gate_up_TJ,
            activation=activation_TI,
        )  # fmt: skip
        self.run_rows(self.native.library.swiglu_backward, job, gate_up_TJ)
        return d_gate_up_TJ, activation_TI

    # -- attention -----------------------------------------------------------------------------------------------------------

    def attend(
        self, layout: Layout, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, scaling: float, window: int | None = None
    ) -> Tensor:
        """Compute packed_attention.attend."""
        if layout.longest_row > LONGEST_ROW or (window is not None and window < layout.longest_row):
            return attend(layout, query_THD, key_TKD, value_TKD, scaling, window)
        out: Tensor = _Attention.apply(query_THD, key_TKD, value_TKD, self, layout, scaling)
        return out

    def fill_attention(
        self, layout: Layout, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, scaling: float, **others: Any
    ) -> Any:
        clusters, rows = layout.clusters, layout.rows
        return fill_structure(
            "attention", clusters=len(clusters.prompt_start_C), query_heads=query_THD.shape[1], kv_heads=key_TKD.shape[1],
            stride=find_stride(layout), prompt_start=clusters.prompt_start_C, prompt_length=clusters.prompt_length_C,
            first_row=clusters.first_row_C, own_start=rows.own_start_B, own_length=rows.own_length_B, query=query_THD,
            key=key_TKD, value=value_TKD, query_stride=query_THD.stride(0), key_stride=key_TKD.stride(0),
            value_stride=value_TKD.stride(0), scaling=scaling, **others,
        )  # fmt: skip

    def find_scratch(self, layout: Layout, dim: int) -> Tensor:
        """Return scratch memory for each thread, kept for the next call."""
        size = find_stride(layout) * (6 * dim + 2 * BLOCK) + 3 * BLOCK * dim
        threads = torch.get_num_threads()
        if self.memory.shape[0] < threads or self.memory.shape[1] < size:
            self.memory = torch.empty(threads, size, dtype=torch.float64)
        return self.memory


class _Attention(Function):
    @staticmethod
    def forward(
        ctx: Any, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, operations: NativeOperations, layout: Layout,
        scaling: float,
    ) -> Tensor:  # fmt: skip
        query_THD, key_TKD, value_TKD = (join_heads(part) for part in (query_THD, key_TKD, value_TKD))
        tokens, heads, dim = query_THD.shape
        out_THD, lse_TH = query_THD.new_empty(tokens, heads, dim), query_THD.new_empty(tokens, heads, dtype=torch.float64)
        job = operations.fill_attention(layout, query_THD, key_TKD, value_TKD, scaling, out=out_THD, lse=lse_TH)
        operations.run_clusters(operations.native.library.attention_forward, job, layout, dim)
        ctx.save_for_backward(query_THD, key_TKD, value_TKD, lse_TH)
        ctx.operations, ctx.layout, ctx.scaling = operations, layout, scaling
        return out_THD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_THD: Tensor) -> Any:
        query_THD, key_TKD, value_TKD, lse_TH = ctx.saved_tensors
        operations, layout, d_out_THD = ctx.operations, ctx.layout, d_out_THD.contiguous()
        d_query_THD, d_key_TKD, d_value_TKD = (part.new_empty(part.shape) for part in (query_THD, key_TKD, value_TKD))
        job = operations.fill_attention(
            layout, query_THD, key_TKD, value_TKD, ctx.scaling,
            lse=lse_TH, d_out=d_out_THD, d_query=d_query_THD, d_key=d_key_TKD, d_value=d_value_TKD,
        )  # fmt: skip
        operations.run_clusters(operations.native.library.attention_backward, job, layout, query_THD.shape[2])
        return d_query_THD, d_key_TKD, d_value_TKD, None, None, None


def count_chunks(rows: int) -> int:
    return -(-rows // CHUNK)


def find_stride(layout: Layout) -> int:
    stride = -(-layout.longest_row // LANES) * LANES
    return stride + LANES if stride % ALIASED == 0 else stride


def join_heads(part_THD: Tensor) -> Tensor:
    """Return the heads of each token contiguously; tokens may be strided."""
    return part_THD if part_THD.stride()[1:] == (part_THD.shape[2], 1) else part_THD.contiguous()
