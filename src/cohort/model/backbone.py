"""Backbones compute the hidden states of packed micro-batches: transformers' modules or our own kernels.

The second half of this file decides whether a model can use our attention, for training and for sampling. It reads the config and the
class, which shows what a short run cannot (a window of 4096 tokens, chunks), and then compares logits on a few tokens, which shows
what reading cannot (a module that ignores position ids). A model that fails keeps the attention of transformers. engine/decoders.py
makes the additional checks that decoding needs, on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cohort.base.world import ALONE, World
from cohort.errors import EngineError, InvariantError, ModelError, describe_problem
from cohort.model.examples import Example, join_examples
from cohort.model.head import SplitModel
from cohort.model.packing import Layouts, MicroBatch, pack
from cohort.ops.attention import CAUSAL_ATTENTION, attention_configs, use_attention
from cohort.ops.cached_attention import SLOT_ATTENTION, PrefixCache, prefill
from cohort.ops.layout import Layout, lay_out, take
from cohort.ops.packed_attention import use_layout
from cohort.ops.products import count_missing_rows

LAYER_TYPES = {"full_attention", "sliding_attention"}
PROOF_STEPS = 3
LONGEST_PROOF_WINDOW = 32
"""The proof crosses sliding windows up to this length; longer ones are checked by what the layers ask for."""


Backbone = Callable[[Layout], Tensor]
"""hidden_TH of a layout's tokens after the final norm, differentiable."""


def read_states_before(backbone: Backbone, micro: MicroBatch) -> Tensor:
    """Hidden states that predict (or value) each trained token: those one token earlier in its row."""
    return take(backbone(micro.layout), micro.before)


def score_tokens(
    examples: Sequence[Example],
    score: Callable[[MicroBatch], Tensor],
    dtype: torch.dtype,
    micro_batch_tokens: int,
    skip_zero_advantage: bool = False,
    keep_groups: bool = False,
    share_prompts: bool = False,
    layouts: Layouts | None = None,
    world: World = ALONE,
) -> list[Tensor]:
    """`score` of every trained token: one vector per example over its completion (0 for other tokens), on the CPU.

    Each process of `world` scores its share of the micro-batches.
    """
    examples = join_examples(examples)
    scored_C = torch.zeros(len(examples.loss_mask_C), dtype=dtype)
    batch = pack(
        examples,
        aggregation="token_mean",
        max_completion_tokens=1,
        micro_batch_tokens=micro_batch_tokens,
        skip_zero_advantage=skip_zero_advantage,
        keep_groups=keep_groups,
        share_prompts=share_prompts,
        layouts=layouts,
    )

    def score_own() -> list[tuple[int, Tensor]]:
        values = [(micro, score(micro)) for micro in batch.deal(world)]  # queue all before waiting for the first
        return [(micro.place, values_M.cpu()) for micro, values_M in values if not micro.idle]

    for place, values_M in world.compute(score_own):
        scored_C[torch.from_numpy(batch.micro_batches[place].trained_M)] = values_M.to(dtype)
    return list(scored_C.split(examples.length_N.tolist()))


class ModuleBackbone:
    """The modules of a transformers model on flat rows, always in eval mode.

    attention_configs: those of a model proven to run on our attention. If empty, the model keeps its own attention, which does not
    support flat rows, and the rows are padded.
    """

    def __init__(self, backbone: Any, attention_configs: Sequence[Any], checkpointing: bool = False):
        self.backbone = backbone
        self.attention_configs = attention_configs
        self.layers = list_layers(backbone) if checkpointing else []

    def __call__(self, layout: Layout) -> Tensor:
        return self._run_flat(layout) if self.attention_configs else self._run_padded(layout)

    def _run_flat(self, layout: Layout) -> Tensor:
        token_ids_T, positions_T = layout.token_ids_T, layout.positions_T
        missing = count_missing_rows(layout.num_tokens, token_ids_T.device)
        if missing:
            token_ids_T, positions_T = F.pad(token_ids_T, (0, missing)), F.pad(positions_T, (0, missing))
        with self._use_layout(layout), self._checkpoint_layers(layout):
            hidden_1TH = self.backbone(
                input_ids=token_ids_T[None], position_ids=positions_T[None], use_cache=False
            ).last_hidden_state
        hidden_TH: Tensor = hidden_1TH[0]
        return hidden_TH[: layout.num_tokens] if missing else hidden_TH

    def _run_padded(self, layout: Layout) -> Tensor:
        """No mask is needed: causal attention never reads padding after the end of a row."""
        if layout.shared is not None:
            raise InvariantError("prompts are shared, but this model keeps its own attention, which does not support that.")
        padding = layout.padding
        places_N = layout.token_ids_T if padding.rows is None else layout.token_ids_T.index_select(0, padding.rows.index_N)
        states = []
        for block_N, (rows, width) in zip(places_N.split([a * b for a, b in padding.shapes]), padding.shapes, strict=True):
            token_ids_BT = block_N.view(rows, width)
            missing = count_missing_rows(token_ids_BT.numel(), token_ids_BT.device)
            if missing:
                token_ids_BT = F.pad(token_ids_BT, (0, -(-missing // rows)))
            with self._checkpoint_layers(layout):
                hidden_BTH = self.backbone(input_ids=token_ids_BT, use_cache=False).last_hidden_state
            states.append(hidden_BTH[:, :width].flatten(0, 1))
        hidden_NH = torch.cat(states)
        return hidden_NH if padding.flat is None else take(hidden_NH, padding.flat)

    @contextmanager
    def _use_layout(self, layout: Layout) -> Iterator[None]:
        with use_attention(self.attention_configs, CAUSAL_ATTENTION), use_layout(layout):
            yield

    @contextmanager
    def _checkpoint_layers(self, layout: Layout) -> Iterator[None]:
        """Keep only each layer's input, and recompute the layer in the backward pass, over the same layout.

        transformers' own checkpointing works only in train mode, which would also switch on dropout.
        """
        if not (self.layers and torch.is_grad_enabled()):
            yield
            return
        replaced = [vars(layer).get("forward") for layer in self.layers]
        try:
            for layer in self.layers:
                layer.forward = partial(self._recompute_layer, layout, layer.forward)
            yield
        finally:
            for layer, before in zip(self.layers, replaced, strict=True):
                if before is None:
                    del layer.forward
                else:
                    layer.forward = before

    def _recompute_layer(self, layout: Layout, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run(*inner_args: Any, **inner_kwargs: Any) -> Any:
            with self._use_layout(layout):
                return forward(*inner_args, **inner_kwargs)

        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def list_layers(backbone: Any, field: str = "train.activation_checkpointing") -> list[Any]:
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        fixes = {
            "train.activation_checkpointing": "Set it to false and lower train.micro_batch_tokens instead.",
            "parallel.shard": 'Use shard = "none".',
        }
        raise ModelError(f"{field}: {type(backbone).__name__} has no list `layers`, which this needs. {fixes[field]}")
    return list(layers)


def can_share_prompts(model: Any, attention_configs: Sequence[Any]) -> bool:
    """Whether a prompt can be stored once for all its completions: our attention, and no window shorter than a sequence."""
    if not attention_configs:
        return False
    config = model.config.get_text_config()
    window = int(getattr(config, "sliding_window", None) or 0)
    slides = window > 0 and getattr(config, "use_sliding_window", True)
    if getattr(config, "layer_types", None):
        slides = slides and "sliding_attention" in config.layer_types
    longest = getattr(config, "max_position_embeddings", None)
    return not slides or bool(longest and window >= longest)


# -- which models run on our attention -----------------------------------------------------------------------------------


@torch.no_grad()
def explain_not_own_attention(model: Any, parts: SplitModel) -> str | None:
    """The reason why this model, in eval mode, cannot use our attention; None if it can."""
    reason = find_unsupported(model)
    if reason:
        return reason
    try:
        proof, configs = ProofRows.make(model), attention_configs(model)
        with use_attention(configs, SLOT_ATTENTION):
            cache_prompts(model, parts, proof)
        # Two completions share one prompt, which exposes a module that counts positions itself.
        prompt, completions = proof.prompts[0], [ids[-PROOF_STEPS:] for ids in proof.token_ids]
        expected = compute_logits(model, [[*prompt, *completion] for completion in completions])
        layout = lay_out([(prompt, completion) for completion in completions], keys=[0, 0])
        hidden_TH = ModuleBackbone(parts.backbone, configs)(layout.to(proof.device))
        for start, wanted_TV in zip(layout.rows.completion_start_B.tolist(), expected, strict=True):
            logits_BV = parts.logits(hidden_TH[start : start + PROOF_STEPS])
            compare_logits(logits_BV, wanted_TV[-PROOF_STEPS:], model.dtype, "flat rows")
    except EngineError as problem:
        return str(problem)
    except Exception as problem:
        # Any exception of a foreign modeling file is a reason, not a crash: the model then keeps its own attention.
        return f"its modules do not run on our attention ({describe_problem(problem)})"
    return None


@torch.no_grad()
def prove_padded(model: Any, parts: SplitModel) -> None:
    """Raise ModelError unless rows that are padded after their end give the plain forward pass of a model with its own attention."""
    try:
        proof = ProofRows.make(model)
        layout = lay_out([(ids[:1], ids[1:]) for ids in proof.token_ids], keys=None).to(proof.device)
        hidden = ModuleBackbone(parts.backbone, [])(layout).split([len(ids) for ids in proof.token_ids])
        for states_TH, wanted_TV in zip(hidden, compute_logits(model, proof.token_ids), strict=True):
            compare_logits(parts.logits(states_TH), wanted_TV, model.dtype, "rows padded after their end")
    except EngineError as problem:
        raise ModelError(
            f"{type(model).__name__}: {problem}. A token's logits must not depend on later tokens or on other rows. It cannot be trained "
            "exactly: check whether it is an encoder, or has attention that is not causal."
        ) from problem


def find_unsupported(model: Any) -> str | None:
    config = model.config.get_text_config()
    other_layers = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    reasons = {
        "it is an encoder-decoder": getattr(model.config, "is_encoder_decoder", False),
        f"it has {', '.join(other_layers)} layers; only full and sliding attention are supported": other_layers,
        "its layers carry a recurrent state (SSM or linear attention)": getattr(model, "_is_stateful", False),
        "its modules do not take an attention function from outside (_supports_attention_backend is not set)": not getattr(
            model, "_supports_attention_backend", False
        ),
        "multi-head latent attention (kv_lora_rank) has another cache layout": getattr(config, "kv_lora_rank", None),
        "chunked attention (attention_chunk_size) is not honoured": getattr(config, "attention_chunk_size", None),
        "its layers share keys and values (num_kv_shared_layers)": getattr(config, "num_kv_shared_layers", None),
        "its attention is not causal": getattr(config, "is_causal", True) is False,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def cache_prompts(model: Any, parts: SplitModel, proof: ProofRows) -> PrefixCache:
    """Keys and values of the prompts, inside `use_attention`. Raises EngineError if a layer ignores the window of its config."""
    config = model.config.get_text_config()
    prefix, _ = prefill(parts.backbone, config.num_hidden_layers, proof.prompts, model.device)
    for number, key in enumerate(prefix.keys):
        if key is None:
            raise EngineError(f"layer {number} has no keys and values")
    check_windows(config, prefix.windows)
    return prefix


def check_windows(config: Any, windows: list[int | None]) -> None:
    """A layer that gets its sliding window only through the mask would silently get full attention here."""
    window, layer_types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if layer_types:
        expected = [window if kind == "sliding_attention" else None for kind in layer_types]
        if [asked or None for asked in windows] != [size or None for size in expected]:
            raise EngineError(f"its layers ask for sliding windows {windows} where its config says {expected}")
    elif window and getattr(config, "use_sliding_window", True) and not any(windows):
        raise EngineError(f"its sliding window of {window} is not passed to the attention function")


@dataclass(frozen=True)
class ProofRows:
    """Two rows of token ids; the first `lengths` tokens of each are the prompts."""

    token_ids: list[list[int]]
    lengths: tuple[int, int]
    device: torch.device

    @staticmethod
    def make(model: Any) -> ProofRows:
        config = model.config.get_text_config()
        window = getattr(config, "sliding_window", None) or 0
        longest = 5 + (window if window <= LONGEST_PROOF_WINDOW else 0)
        if getattr(config, "max_position_embeddings", None):
            longest = max(2, min(longest, config.max_position_embeddings - PROOF_STEPS))
        lengths = (longest, longest - 1)
        token_ids = [
            [(7 * at + 11 * row + 3) % config.vocab_size for at in range(n + PROOF_STEPS)] for row, n in enumerate(lengths)
        ]
        return ProofRows(token_ids, lengths, model.device)

    @property
    def prompts(self) -> list[list[int]]:
        return [ids[:n] for ids, n in zip(self.token_ids, self.lengths, strict=True)]


def compute_logits(model: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """Logits [T, V] of the plain forward pass, row by row."""
    inputs = [torch.tensor([ids], device=model.device) for ids in rows]
    return [model(input_ids=row, use_cache=False).logits[0].float() for row in inputs]


def compare_logits(ours_BV: Tensor, reference_BV: Tensor, dtype: torch.dtype, through: str) -> None:
    """Raise EngineError if logits differ by more than rounding. through: what computed them."""
    # The same sums in another order and batch differ by a few roundings of the compute dtype, relative to the largest logit.
    tolerance = max(1e-4, 8 * torch.finfo(dtype).eps) * max(1.0, reference_BV.abs().max().item())
    difference = (ours_BV - reference_BV).abs().max().item()
    if not difference <= tolerance:
        raise EngineError(
            f"on a few tokens its logits through {through} differ from its plain forward by {difference:.2g} "
            f"(tolerance {tolerance:.2g})"
        )
