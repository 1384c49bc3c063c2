"""The policy: a causal language model, its tokenizer, and the log-probabilities of tokens under it.

The module always stays in eval mode: dropout would make the policy that is scored another one than the policy that
sampled, and gradients do not need train mode. With LoRA (model/lora.py) a policy is a frozen base and an adapter, and copies of it
share the base.
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
    from cohort.model.sharding import PolicyShards, Sharding


@dataclass(frozen=True)
class TokenScores:
    logprobs_M: Tensor
    entropy_M: Tensor


def score_trained_tokens(
    backbone: Backbone, split: head.SplitModel, micro: MicroBatch, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """(logprobs_M, entropy_M) of a micro-batch by both halves of a model."""
    hidden_MH = read_states_before(backbone, micro)
    return split.token_logprobs(hidden_MH, micro.token_ids_M, temperature=temperature, entropy_gradient=entropy_gradient)


class Policy:
    """A model ready to be sampled and trained. The engine reads these very parameters: there is no second copy."""

    def __init__(self, model: Any, tokenizer: Any, temperature: float = 1.0, adapter: lora.Adapter | None = None):
        """`adapter`: what `model` holds beside its frozen base; None where all of its weights are trained."""
        self.model = model.eval()
        self.adapter = adapter
        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.split = head.split(model)
        # A model proven to run on our attention is scored with it; any other keeps the one of transformers.
        self.attention_configs = attention_configs(model) if explain_not_own_attention(self.model, self.split) is None else []
        if not self.attention_configs:
            prove_padded(self.model, self.split)
        self.backbone: Backbone = ModuleBackbone(self.split.backbone, self.attention_configs)
        self.share_prompts = can_share_prompts(model, self.attention_configs)
        self.kernels, self.checkpointing = "modules", False
        self.shards: PolicyShards | None = None
        """Where the ranks share the model out: what is trained. The modules here are then whole while they are read (`hold_whole`)."""
        self.temperature = temperature
        self.world: World = ALONE
        """The processes that score examples together."""
        self.longest = 0
        """Tokens of the longest sequence of the run, once that is known; 0 before."""
        notes = (getattr(model.config, RESTORED, ""), describe_experts(model.config.get_text_config()))
        self.notes = [note for note in notes if note]
        """What the console says of how this model is trained."""

    def hold_lengths(self, longest: int) -> None:
        """Told the longest sequence of the run, before anything is sampled or scored (model/architecture.py)."""
        self.longest, most = longest, getattr(self.model.config.get_text_config(), "index_topk", None)
        if most and longest > most:
            raise ModelError(
                f"{type(self.model).__name__}: beyond {most} tokens its attention chooses keys by scores (index_topk), and equal scores are not "
                f"chosen alike in every batch; this run reaches {longest}. Lower sampling.max_completion_tokens or prompts.max_prompt_tokens."
            )
        held = hold_frequencies(self.model, longest) if longest else None
        self.notes += [held] if held else []

    def prepare(self, kernels: str, checkpointing: bool = False) -> str:
        """Choose how hidden states are computed, once the parameters have their dtype; gives a sentence for the console.

        On a CPU own kernels need compiled code, which is no condition for a run: what they replace is slower and has the same bits.
        """
        self.kernels, self.checkpointing = kernels, checkpointing
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
            # A kernel that does not compile or fit on this GPU is a reason too, as it is for the engine.
            if kernels == "fused" and not on_cpu:
                raise make_fused_error(problem) from problem
            return f"training with the modules of transformers ({describe_problem(problem)})"
        self.backbone = fused
        return f"training with own {'compiled code' if on_cpu else 'kernels'}"

    @property
    def device(self) -> torch.device:
        return self.model.device

    def wait(self) -> None:
        """Return when the device has done what it was given; a CPU has done it already."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def num_parameters(self) -> int:
        return sum(map(count_elements, self.model.parameters()))

    def compute_logprobs(
        self, micro: MicroBatch, *, temperature: float | None = None, entropy_gradient: bool = False
    ) -> TokenScores:
        """Log-probs and entropies of the trained tokens alone, at the sampling temperature unless told otherwise."""
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

    @property
    def sharding(self) -> Sharding | None:
        """How the models beside it are shared out, as it is itself."""
        return self.shards.sharding if self.shards is not None else None

    def hold_whole(self) -> None:
        """Called before weights are read by somebody who is no part of training; of a model that is shared out this gathers them."""
        if self.shards is not None:
            self.shards.hold_whole()

    def list_own_parameters(self) -> dict[str, Tensor]:
        """What is its own, and not of a base that others share: the adapter, or everything."""
        return dict(lora.adapter_parameters(self.model) if self.adapter else self.model.named_parameters())

    def read_weights(self) -> dict[str, Tensor]:
        """Its own parameters, whole, for whoever reads them outside of training."""
        self.hold_whole()
        return self.list_own_parameters()

    def list_held_parameters(self) -> dict[str, Tensor]:
        """Of its own parameters what this process holds: all of them, or its slices."""
        if self.shards is None:
            return self.list_own_parameters()
        names = lora.adapter_parameters(self.model) if self.adapter else self.shards.parameters
        return {name: self.shards.read_slice(name) for name in names}

    def make_whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What belongs to parameters that are held, as it belongs to all of them."""
        return dict(tensors) if self.shards is None else self.shards.make_whole(tensors)

    def take_own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The other way round."""
        return dict(tensors) if self.shards is None else self.shards.take_own(tensors)

    def make_frozen_copy(self) -> Policy:
        """A reference: the same weights, never trained. Over the same base, where there is one."""
        self.hold_whole()
        shares_base = self.adapter and self.shards is None  # slices of a base belong to one model
        model = lora.copy_over_base(self.model) if shares_base else copy.deepcopy(self.model)
        reference = Policy(model.requires_grad_(False), self.tokenizer, self.temperature, self.adapter)
        reference.prepare(self.kernels)
        reference.notice_new_weights()
        reference.longest, reference.world = self.longest, self.world
        return reference

    def copy_backbone(self) -> nn.Module:
        """A copy of the backbone to train apart from the policy: of all of it, or of the adapter over the same base."""
        self.hold_whole()
        if self.adapter is None:
            return copy.deepcopy(self.split.backbone).requires_grad_(True)
        shares_base = self.shards is None
        backbone: nn.Module = (lora.copy_over_base if shares_base else copy.deepcopy)(self.split.backbone)
        for parameter in lora.adapter_parameters(backbone).values():
            parameter.requires_grad_(True)
        return backbone

    def notice_new_weights(self) -> None:
        """Called when a reference got other weights: an adapter that does nothing is switched off, and costs nothing."""
        if self.shards is not None:
            self.shards.let_go()
        elif self.adapter:
            lora.switch_off_where_zero(self.model)

    def merge_model(self) -> Any:
        """A model of plain layers that computes what this policy computes; to read, not to train."""
        self.hold_whole()
        return lora.make_plain_model(self.model, merge=True) if self.adapter else self.model

    def save(self, folder: Path, *, merge: bool = False) -> None:
        """Hugging Face format; loads with AutoModelForCausalLM and AutoTokenizer. merge: an adapter goes into the weights.

        Of several processes all call this, and the main one writes.
        """
        self.hold_whole()
        self.world.on_main(lambda: self._write(folder, merge))

    def _write(self, folder: Path, merge: bool) -> None:
        hide_progress_bars()
        if self.adapter and not merge:
            lora.save_adapter(self.model, self.adapter, folder)
        else:
            self.merge_model().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
