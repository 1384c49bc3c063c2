"""The policy: a causal language model, its tokenizer, and the log-probabilities of tokens under it.

The module is always in eval mode: with dropout, scoring would use another policy than sampling, and gradients do not need
train mode. With LoRA (model/lora.py) a policy is a frozen base with an adapter, and its copies share the base.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cohort.base.world import ALONE, World
from cohort.errors import EngineError, ModelError, describe_problem
from cohort.model import head, lora
from cohort.model.architecture import describe_experts, hold_frequencies
from cohort.model.backbone import (
    Backbone,
    ModuleBackbone,
    can_share_prompts,
    explain_not_own_attention,
    prove_padded,
    read_states_before,
    score_tokens,
)
from cohort.model.chat import ChatCodec
from cohort.model.examples import Example
from cohort.model.four_bit import count_elements
from cohort.model.loading import hide_progress_bars
from cohort.model.packing import Layouts, MicroBatch
from cohort.model.sources import RESTORED
from cohort.ops.attention import attention_configs
from cohort.ops.fused import has_kernels, make_fused_error
from cohort.ops.fused.training import FusedBackbone

if TYPE_CHECKING:
    from cohort.model.sharding import PolicyShards


@dataclass(frozen=True)
class TokenScores:
    logprobs_M: Tensor
    entropy_M: Tensor


def score_trained_tokens(
    backbone: Backbone, split: head.SplitModel, micro: MicroBatch, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """(logprobs_M, entropy_M) of a micro-batch from both halves of a model."""
    hidden_MH = read_states_before(backbone, micro)
    return split.token_logprobs(hidden_MH, micro.token_ids_M, temperature=temperature, entropy_gradient=entropy_gradient)


class Policy:
    """A model that can be sampled and trained. Local engines read these parameters directly, without a copy."""

    def __init__(self, model: Any, tokenizer: Any, temperature: float = 1.0, adapter: lora.Adapter | None = None):
        """adapter: the adapter in `model`, over a frozen base; None if all weights are trained."""
        self.model = model.eval()
        self.adapter = adapter
        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.split = head.split(model)
        # A model proven to run on our attention uses it; any other model keeps the attention of transformers.
        self.attention_configs = attention_configs(model) if explain_not_own_attention(self.model, self.split) is None else []
        if not self.attention_configs:
            prove_padded(self.model, self.split)
        self.backbone: Backbone = ModuleBackbone(self.split.backbone, self.attention_configs)
        self.share_prompts = can_share_prompts(model, self.attention_configs)
        self.kernels, self.checkpointing = "modules", False
        self.code, self.prepared = "modules", ""
        """What computes hidden states ("own kernels", "compiled code" or "modules"), and the console message about it."""
        self.shards: PolicyShards | None = None
        """The trained shards, if the ranks shard the model. `model` is then whole only after `gather_weights`."""
        self.temperature = temperature
        self.world: World = ALONE
        """The processes that score examples together."""
        self.longest = 0
        """Tokens of the longest sequence of the run; 0 until it is known."""
        notes = (getattr(model.config, RESTORED, ""), describe_experts(model.config.get_text_config()))
        self.notes = [note for note in notes if note]
        """Notices for the console about how this model is trained."""

    def set_longest(self, longest: int) -> None:
        """Set the longest sequence of the run, before anything is sampled or scored (model/architecture.py)."""
        self.longest, most = longest, getattr(self.model.config.get_text_config(), "index_topk", None)
        if most and longest > most:
            raise ModelError(
                f"{type(self.model).__name__}: beyond {most} tokens its attention chooses keys by score (index_topk), and the choice among equal "
                f"scores depends on the batch. This run reaches {longest}: lower sampling.max_completion_tokens or prompts.max_prompt_tokens."
            )
        held = hold_frequencies(self.model, longest) if longest else None
        self.notes += [held] if held else []

    def prepare(self, kernels: str, checkpointing: bool = False) -> str:
        """Choose how hidden states are computed, once the parameters have their dtype. Returns a console message.

        On a CPU our kernels need compiled code. A run does not depend on it: the code that they replace is slower but has the same bits.
        """
        self.kernels, self.checkpointing, self.code = kernels, checkpointing, "modules"
        self.prepared = self._choose_backbone(kernels, checkpointing)
        return self.prepared

    def _choose_backbone(self, kernels: str, checkpointing: bool) -> str:
        if self.shards is not None:
            return self.shards.prepare(checkpointing)
        modules = ModuleBackbone(self.split.backbone, self.attention_configs, checkpointing)
        self.backbone = modules
        on_cpu = self.device.type == "cpu"
        if kernels == "modules":
            return "training with the modules of transformers"
        try:
            if not self.attention_configs:
                raise EngineError("its attention is its own")
            if not on_cpu and not has_kernels(self.device):
                raise EngineError("Triton is not installed")
            fused = FusedBackbone(self.model, checkpointing)
            fused.prove(modules)
        except Exception as problem:
            # A kernel that does not compile or fit on this GPU is a reason too, as in the engine.
            if kernels == "fused" and not on_cpu:
                raise make_fused_error(problem) from problem
            return f"training with the modules of transformers ({describe_problem(problem)})"
        self.backbone, self.code = fused, "compiled code" if on_cpu else "own kernels"
        return f"training with own {'compiled code' if on_cpu else 'kernels'}"

    @property
    def device(self) -> torch.device:
        return self.model.device

    def wait(self) -> None:
        """Wait until the device has finished all queued work; a CPU has none."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def num_parameters(self) -> int:
        return sum(map(count_elements, self.model.parameters()))

    def compute_logprobs(
        self, micro: MicroBatch, *, temperature: float | None = None, entropy_gradient: bool = False
    ) -> TokenScores:
        """Log-probs and entropies of the trained tokens. temperature: by default the sampling temperature."""
        temperature = self.temperature if temperature is None else temperature
        compute = self.compute_plain if self.shards is None else self.shards
        return TokenScores(*compute(micro, temperature, entropy_gradient))

    def compute_plain(self, micro: MicroBatch, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        return score_trained_tokens(self.backbone, self.split, micro, temperature, entropy_gradient)

    @torch.no_grad()
    def score_examples(
        self,
        examples: Sequence[Example],
        micro_batch_tokens: int,
        skip_zero_advantage: bool = False,
        *,
        keep_groups: bool = False,
        layouts: Layouts | None = None,
    ) -> list[Tensor]:
        """Log-probs of each example's completion tokens (0 where masked or skipped), without gradients, on the CPU."""

        def logprobs(micro: MicroBatch) -> Tensor:
            return self.compute_logprobs(micro.to(self.device)).logprobs_M

        dtype = torch.promote_types(self.model.dtype, torch.float32)
        return score_tokens(
            examples,
            logprobs,
            dtype,
            micro_batch_tokens,
            skip_zero_advantage,
            keep_groups,
            self.share_prompts,
            layouts,
            self.world,
        )

    def gather_weights(self) -> None:
        """Gather the weights of a sharded model. Called before code outside of training reads them."""
        if self.shards is not None:
            self.shards.gather_weights()

    def list_own_parameters(self) -> dict[str, Tensor]:
        """Its own parameters, without a shared base: the adapter's, or all of them."""
        return dict(lora.adapter_parameters(self.model) if self.adapter else self.model.named_parameters())

    def read_weights(self) -> dict[str, Tensor]:
        """Its own parameters, gathered, for code outside of training."""
        self.gather_weights()
        return self.list_own_parameters()

    def list_held_parameters(self) -> dict[str, Tensor]:
        """Its own parameters as this process holds them: whole, or its slices."""
        if self.shards is None:
            return self.list_own_parameters()
        names = lora.adapter_parameters(self.model) if self.adapter else self.shards.parameters
        return {name: self.shards.read_slice(name) for name in names}

    def gather_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors from this process's slices, named as the parameters are."""
        return dict(tensors) if self.shards is None else self.shards.gather_tensors(tensors)

    def take_slices(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This process's slices of whole tensors."""
        return dict(tensors) if self.shards is None else self.shards.take_slices(tensors)

    def make_frozen_copy(self) -> Policy:
        """A copy with the same weights that is never trained. With an adapter it shares the base."""
        model = self._copy_module(self.model).requires_grad_(False)
        reference = Policy(model, self.tokenizer, self.temperature, self.adapter)
        reference.prepare(self.kernels)
        reference.refresh_weights()
        reference.longest, reference.world = self.longest, self.world
        return reference

    def copy_backbone(self) -> nn.Module:
        """A copy of the backbone that is trained separately. With an adapter it shares the base."""
        backbone = self._copy_module(self.split.backbone)
        for parameter in lora.adapter_parameters(backbone).values() if self.adapter else backbone.parameters():
            parameter.requires_grad_(True)
        return backbone

    def _copy_module(self, module: nn.Module) -> nn.Module:
        self.gather_weights()
        shares_base = self.adapter and self.shards is None  # the slices of a base belong to one model
        copied: nn.Module = (lora.copy_over_base if shares_base else copy.deepcopy)(module)
        return copied

    def refresh_weights(self) -> None:
        """Called after the weights of a reference changed: an adapter without effect is switched off, to save its cost."""
        if self.shards is not None:
            self.shards.free_gathered()
        elif self.adapter:
            lora.switch_off_where_zero(self.model)

    def merge_model(self) -> Any:
        """A model of plain layers that computes the same as this policy. It must not be trained."""
        self.gather_weights()
        return lora.make_plain_model(self.model, merge=True) if self.adapter else self.model

    def save(self, folder: Path, *, merge: bool = False) -> None:
        """Save in Hugging Face format, for AutoModelForCausalLM and AutoTokenizer. merge: merge the adapter into the weights.

        All processes call this, and the main one writes.
        """
        self.gather_weights()

        def write() -> None:
            hide_progress_bars()
            if self.adapter and not merge:
                lora.save_adapter(self.model, self.adapter, folder)
            else:
                self.merge_model().save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        self.world.on_main(write)
