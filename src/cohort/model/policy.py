"""The policy: a causal language model, its tokenizer, and the log-probabilities of tokens under it.

The module always stays in eval mode: dropout would make the policy that is scored another one than the policy that
sampled, and gradients do not need train mode. With LoRA (model/lora.py) a policy is a frozen base and an adapter, and copies of it
share the base.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cohort.errors import EngineError, ModelError
from cohort.model import head, lora
from cohort.model.backbone import Backbone, ModuleBackbone, can_share_prompts, score_tokens, states_before
from cohort.model.chat import ChatCodec
from cohort.model.experts import describe_experts
from cohort.model.own_attention import prove_padded, why_not_own_attention
from cohort.model.packing import Example, Layouts, MicroBatch
from cohort.model.rotary import hold_frequencies
from cohort.model.tokenizer import load_tokenizer
from cohort.ops.attention import attention_configs
from cohort.ops.fused import with_kernels
from cohort.ops.fused.training import FusedBackbone
from cohort.recipe.schema import ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class TokenScores:
    logprobs_M: Tensor
    entropy_M: Tensor


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
        self.attention_configs = attention_configs(model) if why_not_own_attention(self.model, self.split) is None else []
        if not self.attention_configs:
            prove_padded(self.model, self.split)
        self.backbone: Backbone = ModuleBackbone(self.split.backbone, self.attention_configs)
        self.share_prompts = can_share_prompts(model, self.attention_configs)
        self.kernels, self.checkpointing = "modules", False
        self.temperature = temperature
        self.longest = 0
        """Tokens of the longest sequence of the run, once that is known; 0 before."""
        self.notes = [note for note in (describe_experts(model.config.get_text_config()),) if note]
        """What the console says of how this model is trained."""

    def hold_lengths(self, longest: int) -> None:
        """Told the longest sequence of the run, before anything is sampled or scored (model/rotary.py)."""
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

        On a CPU own kernels need a compiler, which is no condition for a run: what they replace is slower and has the same bits.
        """
        self.kernels, self.checkpointing = kernels, checkpointing
        modules = ModuleBackbone(self.split.backbone, self.attention_configs, checkpointing)
        self.backbone = modules
        on_cpu = self.device.type == "cpu"
        if kernels == "modules":
            return "training with the modules of transformers"
        try:
            if not self.attention_configs:
                raise EngineError("its attention is its own")
            if not on_cpu and not with_kernels(self.device):
                raise EngineError("Triton is not installed")
            fused = FusedBackbone(self.model, checkpointing)
            fused.prove(modules)
        except Exception as problem:
            # A kernel that does not compile or fit on this GPU is a reason too, as it is for the engine.
            reason = str(problem) if isinstance(problem, EngineError) else f"{type(problem).__name__}: {problem}"
            if kernels == "fused" and not on_cpu:
                raise ModelError(f'model.kernels = "fused" is not possible: {reason}. Use "auto" or "modules".') from problem
            return f"training with the modules of transformers ({reason})"
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
        return sum(parameter.numel() for parameter in self.model.parameters())

    def compute_logprobs(
        self, micro: MicroBatch, *, temperature: float | None = None, entropy_gradient: bool = False
    ) -> TokenScores:
        """Log-probs and entropies of the trained tokens alone, at the sampling temperature unless told otherwise."""
        hidden_MH = states_before(self.backbone, micro)
        temperature = self.temperature if temperature is None else temperature
        return TokenScores(
            *self.split.token_logprobs(hidden_MH, micro.token_ids_M, temperature=temperature, entropy_gradient=entropy_gradient)
        )

    @torch.no_grad()
    def score_examples(
        self,
        examples: list[Example],
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
            examples, logprobs, dtype, micro_batch_tokens, skip_zero_advantage, keep_groups, self.share_prompts, layouts
        )

    def own_parameters(self) -> dict[str, Tensor]:
        """What is its own, and not of a base that others share: the adapter, or everything."""
        return dict(lora.adapter_parameters(self.model) if self.adapter else self.model.named_parameters())

    def frozen_copy(self) -> Policy:
        """A reference: the same weights, never trained. Over the same base, where there is one."""
        model = lora.copy_over_base(self.model) if self.adapter else copy.deepcopy(self.model)
        reference = Policy(model.requires_grad_(False), self.tokenizer, self.temperature, self.adapter)
        reference.prepare(self.kernels)
        reference.weights_changed()
        reference.longest = self.longest
        return reference

    def trainable_backbone(self) -> nn.Module:
        """A copy of the backbone to train apart from the policy: of all of it, or of the adapter over the same base."""
        if self.adapter is None:
            return copy.deepcopy(self.split.backbone).requires_grad_(True)
        backbone: nn.Module = lora.copy_over_base(self.split.backbone)
        for parameter in lora.adapter_parameters(backbone).values():
            parameter.requires_grad_(True)
        return backbone

    def weights_changed(self) -> None:
        """Called when a reference got other weights: an adapter that does nothing is switched off, and costs nothing."""
        if self.adapter:
            lora.switch_off_where_zero(self.model)

    def merged_model(self) -> Any:
        """A model of plain layers that computes what this policy computes; to read, not to train."""
        return lora.plain_model(self.model, merge=True) if self.adapter else self.model

    def save(self, folder: Path, *, merge: bool = False) -> None:
        """Hugging Face format; loads with AutoModelForCausalLM and AutoTokenizer. merge: an adapter goes into the weights."""
        hide_progress_bars()
        if self.adapter and not merge:
            lora.save_adapter(self.model, self.adapter, folder)
        else:
            self.merged_model().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def hide_progress_bars() -> None:
    """transformers' bars would tear the live line of the console."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def pick_device(config: ModelConfig) -> torch.device:
    if config.device != "auto":
        try:
            device = torch.device(config.device)
        except RuntimeError:
            raise ModelError(f"model.device: {config.device!r} is not a device; use auto, cpu, cuda or cuda:N.") from None
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ModelError(
                f"model.device: {config.device!r}, but this machine shows {torch.cuda.device_count()} CUDA devices. "
                'Set model.device to "cpu", or to "auto" to take a GPU where there is one.'
            )
        if device.index is not None:
            torch.cuda.set_device(device)  # Triton launches its kernels on the current device
        return device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "bfloat16" and device.type == "cpu":
        raise ModelError('model.dtype: bfloat16 on a CPU is slow, and on some CPUs ends the process; use "float32" or a GPU.')
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_model(config: ModelConfig, seed: int, alphabet: Iterable[str] = ()) -> tuple[Any, Any]:
    """Model on its device, and tokenizer: in float32, and the optimizer casts to the compute dtype once it holds the masters.

    A base that stays frozen has no masters and is loaded in the compute dtype: in float32 it might not fit.
    """
    model: Any
    if config.source == "scratch":
        from cohort.model.scratch import build_scratch

        model, tokenizer = build_scratch(config.scratch, alphabet, seed)
    else:
        dtype = pick_dtype(config, pick_device(config)) if config.lora.rank else torch.float32
        model, tokenizer = load_pretrained(config.source, config.revision, dtype, base_alone=bool(config.lora.adapter))
    return model.to(pick_device(config)), tokenizer


def load_pretrained(
    source: str,
    revision: str = "",
    dtype: torch.dtype = torch.float32,
    *,
    base_alone: bool = False,
    field: str = "model.source",
) -> tuple[Any, Any]:
    """A local folder or a hub id through transformers. Code that ships with a checkpoint is never run.

    base_alone: of a folder that holds a base and an adapter, the base. field: the word of the recipe that names the source.
    """
    from transformers import AutoModelForCausalLM

    hide_progress_bars()
    options: dict[str, Any] = {"revision": revision} if revision else {}
    try:
        tokenizer = load_tokenizer(source, revision)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, RuntimeError) as problem:
        first_line = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise ModelError(
            f"{field}: cannot load {source!r} as a causal language model ({first_line}). "
            "Give a folder written by save_pretrained, or a hub id that this machine can reach."
        ) from problem
    if getattr(model, "_hf_peft_config_loaded", False):  # transformers has put the adapter of that folder in
        if not base_alone:
            raise ModelError(
                f"{field}: {source!r} is a PEFT adapter and not a model. Set model.source to its base, model.lora.adapter to "
                "this folder and model.lora.rank to its rank; or merge it into its base first."
            )
        model = lora.plain_model(model, merge=False)
    return model, tokenizer


def load_adapted(folder: Path, device: torch.device) -> tuple[Any, Any, lora.Adapter]:
    """An adapter folder as a run or PEFT writes it: its base in float32, with the adapter, and the tokenizer."""
    config = lora.read_config(folder, "adapter")
    inside = lora.holds_base(folder)
    base = str(folder) if inside else config.base_model_name_or_path
    if not base:
        raise ModelError(f"{folder}: adapter_config.json names no base (base_model_name_or_path), and none lies in the folder.")
    revision = "" if inside else config.revision or ""
    model, tokenizer = load_pretrained(base, revision, base_alone=inside)
    if not inside and (folder / "tokenizer_config.json").is_file():
        tokenizer = load_tokenizer(str(folder))
    model = model.to(device)
    return model, tokenizer, lora.load_adapter(model, folder, "" if inside else base, revision)
