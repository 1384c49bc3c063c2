"""From packed micro-batches to the hidden states that predict their tokens, and to one number per token.

Whatever turns a flat layout into hidden states is a backbone here: the modules of transformers, or own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cohort.base.world import ALONE, World
from cohort.errors import InvariantError, ModelError
from cohort.model.examples import Example, join_examples
from cohort.model.packing import Layouts, MicroBatch, pack
from cohort.ops.attention import CAUSAL_ATTENTION, use_attention
from cohort.ops.layout import Layout, take
from cohort.ops.packed_attention import use_layout
from cohort.ops.products import count_missing_rows


class Backbone(Protocol):
    def __call__(self, layout: Layout) -> Tensor:
        """hidden_TH of the layout's tokens after the final norm, differentiable."""
        ...


def read_states_before(backbone: Backbone, micro: MicroBatch) -> Tensor:
    """Hidden states from which each trained token is predicted (or valued): those one token earlier in its row."""
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
    """`score` of every trained token, as one vector per example over its completion (0 elsewhere), on the CPU.

    Each process of the world scores its share of the micro-batches.
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
        values = [(micro, score(micro)) for micro in batch.deal(world)]  # all are under way before the first is waited for
        return [(micro.place, values_M.cpu()) for micro, values_M in values if not micro.idle]

    for place, values_M in world.compute(score_own):
        scored_C[torch.from_numpy(batch.micro_batches[place].trained_M)] = values_M.to(dtype)
    return list(scored_C.split(examples.length_N.tolist()))


class ModuleBackbone:
    """The modules of a transformers model, driven flat; always in eval mode.

    `attention_configs` are those of a model proven to run on our attention. Where there are none the model keeps its own
    attention, which knows nothing of layouts: its rows are padded.
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
        with self._read_layout(layout), self._checkpoint_layers(layout):
            hidden_1TH = self.backbone(
                input_ids=token_ids_T[None], position_ids=positions_T[None], use_cache=False
            ).last_hidden_state
        hidden_TH: Tensor = hidden_1TH[0]
        return hidden_TH[: layout.num_tokens] if missing else hidden_TH

    def _run_padded(self, layout: Layout) -> Tensor:
        """No mask: under a causal one padding after the end is never seen."""
        if layout.shared is not None:
            raise InvariantError("prompts are shared, but this model keeps its own attention, which cannot read them so.")
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
    def _read_layout(self, layout: Layout) -> Iterator[None]:
        with use_attention(self.attention_configs, CAUSAL_ATTENTION), use_layout(layout):
            yield

    @contextmanager
    def _checkpoint_layers(self, layout: Layout) -> Iterator[None]:
        """Each layer keeps its input alone and is computed again in the backward, over the same layout.

        transformers' own checkpointing acts in train mode only, where dropout would act too.
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
            with self._read_layout(layout):
                return forward(*inner_args, **inner_kwargs)

        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def list_layers(backbone: Any, field: str = "train.activation_checkpointing") -> list[Any]:
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        instead = {
            "train.activation_checkpointing": "set it to false and lower train.micro_batch_tokens instead.",
            "parallel.shard": 'use shard = "none".',
        }
        raise ModelError(f"{field}: {type(backbone).__name__} has no list `layers` to take one by one; {instead[field]}")
    return list(layers)


def can_share_prompts(model: Any, attention_configs: Sequence[Any]) -> bool:
    """Whether a prompt may stand once for all its completions: our attention, and no window that ends inside a sequence."""
    if not attention_configs:
        return False
    config = model.config.get_text_config()
    window = int(getattr(config, "sliding_window", None) or 0)
    slides = window > 0 and getattr(config, "use_sliding_window", True)
    if getattr(config, "layer_types", None):
        slides = slides and "sliding_attention" in config.layer_types
    longest = getattr(config, "max_position_embeddings", None)
    return not slides or bool(longest and window >= longest)
