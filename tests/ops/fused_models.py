"""Tiny models with and without adapters, their sequences and gradients, for the tests of fused training on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.model import lora
from cohort.ops.fused import training
from conftest import relative_difference

EPSILON = 1e-5
TOKENS, WIDTH = 11, 12
VOCABULARY = 31
LENGTHS = (5, 1, 9, 7)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "every layer": {"r": 4},
    "queries alone": {"target_modules": ["q_proj"], "r": 3},
    "rank 1": {"r": 1},
    "values, up and down": {"target_modules": ["v_proj", "up_proj", "down_proj"], "r": 5},
    "wider than the model": {"r": 40},
    "rsLoRA": {"r": 4, "lora_alpha": 3, "use_rslora": True},
    "ranks of their own": {"r": 4, "rank_pattern": {"k_proj": 2, "gate_proj": 7}, "alpha_pattern": {"k_proj": 9}},
}


def random(*shape: int, seed: int, around: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) + around


def rms_norm(rows: Tensor, weight: Tensor) -> Tensor:
    return rows / (rows.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight


def assert_same_gradients(
    ours: Callable[..., Sequence[Tensor]], plain: Callable[..., Sequence[Tensor]], leaves: Sequence[Tensor | None]
) -> None:
    """Values, and gradients of every leaf, of a random linear function of all results."""
    found = []
    for function in (ours, plain):
        copies = [None if leaf is None else leaf.clone().requires_grad_() for leaf in leaves]
        results = function(*copies)
        total = sum((result * random(*result.shape, seed=50 + at)).sum() for at, result in enumerate(results))
        total.backward()
        found.append([*(result.detach() for result in results), *(copy.grad for copy in copies if copy is not None)])
    for left, right in zip(*found, strict=True):
        assert relative_difference(left, right) <= 1e-12


def tiny_model(family: str, dtype: torch.dtype) -> Any:
    """Two layers with grouped queries; weights large enough that every part of the model matters, norms away from 1."""
    import transformers

    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": None,
        "attn_implementation": "eager",
    }
    own: dict[str, dict[str, Any]] = {
        "Llama": {},
        "Qwen2": {},
        "Qwen3": {"head_dim": 8},
        "Mistral": {"sliding_window": 4, "head_dim": 8},
    }
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**shape | own[family])
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            parameter.copy_(0.3 * noise if parameter.dim() > 1 else parameter + 0.3 * noise)
    return model


def widen_norms(model: Any) -> None:
    """The norms of transformers compute in float32 whatever they are given; torch's own is the same formula in float64."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm") and not isinstance(child, nn.RMSNorm):
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(module, name, norm)


def widen_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention takes its softmax in float32; in float64 here, to see differences that are smaller than that."""
    softmax = F.softmax
    monkeypatch.setattr(F, "softmax", lambda scores, dim, dtype=None: softmax(scores, dim=dim, dtype=scores.dtype))


@dataclass(frozen=True)
class Sequences:
    """The part of a layout that the backbone reads, and the lengths that `attend_each` goes by."""

    token_ids_T: Tensor
    positions_T: Tensor
    lengths: tuple[int, ...]

    def to(self, device: str) -> Sequences:
        return Sequences(self.token_ids_T.to(device), self.positions_T.to(device), self.lengths)


def attend_each(
    layout: Sequences, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, scaling: float, window: int | None
) -> Tensor:
    """Causal attention written out, one sequence after the other; packed attention has its own tests."""
    group = query_THD.shape[1] // key_TKD.shape[1]
    outs = []
    for query, key, value in zip(*(rows.split(layout.lengths) for rows in (query_THD, key_TKD, value_TKD)), strict=True):
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(group, dim=1)) * scaling
        at = torch.arange(query.shape[0], device=query.device)
        seen = at[None] <= at[:, None]
        if window is not None:
            seen &= at[None] > at[:, None] - window
        shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        outs.append(torch.einsum("hqk,khd->qhd", shares, value.repeat_interleave(group, dim=1)))
    return torch.cat(outs)


@pytest.fixture(autouse=True)
def plain_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "attend", attend_each)


def layout_of(rows: Sequence[Tensor]) -> Any:
    positions = [torch.arange(len(row)) for row in rows]
    return Sequences(torch.cat(list(rows)), torch.cat(positions), tuple(len(row) for row in rows))


def ragged_layout() -> tuple[Any, list[Tensor]]:
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in LENGTHS]
    return layout_of(rows), rows


def from_transformers(model: Any, rows: Sequence[Tensor]) -> Tensor:
    """One sequence at a time: nothing is padded, so nothing can leak."""
    return torch.cat([model.base_model(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows])


def gradients_of(model: Any, states: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    (states * random(*states.shape, seed=6, dtype=states.dtype)).sum().backward()
    return {name: parameter.grad for name, parameter in model.base_model.named_parameters()}


def adapt(model: Any, moved: float = 0.1, **changes: Any) -> Any:
    """The model with adapters, in its own dtype; `moved` is the spread of B."""
    peft = pytest.importorskip("peft", reason="adapters need peft")
    kind = {"r": 4, "lora_alpha": 8, "target_modules": ALL} | changes
    lora.inject(model, peft.LoraConfig(task_type="CAUSAL_LM", **kind))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, value in lora.adapter_parameters(model).items():
            spread = moved if ".lora_B." in name else value.shape[1] ** -0.5
            value.copy_(spread * torch.randn(value.shape, generator=generator, dtype=torch.float64))
    return model
