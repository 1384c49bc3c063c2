"""The policy: a causal language model, its tokenizer, and the log-probabilities of tokens under it.

The module always stays in eval mode: dropout would make the policy that is scored another one than the policy that
sampled, and gradients do not need train mode.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort import head
from cohort.algorithms.logprobs import token_logprobs
from cohort.attention import CAUSAL_ATTENTION, attending, attention_configs
from cohort.batching import Example, MicroBatch, pack
from cohort.chat import ChatCodec
from cohort.config import ModelConfig
from cohort.errors import ModelError
from cohort.rollout.support import why_not_local
from cohort.steady import missing_rows

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class TokenScores:
    logprobs_M: Tensor
    entropy_M: Tensor


class Policy:
    """A model ready to be sampled and trained. The engine reads these very parameters: there is no second copy."""

    def __init__(self, model: Any, tokenizer: Any, temperature: float = 1.0):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.split = head.split(model)
        # A model proven to run on our attention is scored with it; any other keeps the one of transformers.
        self.attention_configs = attention_configs(model) if why_not_local(model) is None else []
        self.temperature = temperature

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def compute_logprobs(
        self, micro: MicroBatch, *, temperature: float | None = None, entropy_gradient: bool = False
    ) -> TokenScores:
        """Log-probs and entropies of the trained tokens alone, at the sampling temperature unless told otherwise."""
        hidden_MH = states_before(self.split.backbone, self.attention_configs, micro)
        logprobs_M, entropy_M = token_logprobs(
            hidden_MH,
            micro.token_ids_M,
            self.split.logits,
            vocabulary=self.model.config.get_text_config().vocab_size,
            temperature=self.temperature if temperature is None else temperature,
            entropy_gradient=entropy_gradient,
        )
        return TokenScores(logprobs_M, entropy_M)

    @torch.no_grad()
    def score_examples(
        self,
        examples: list[Example],
        micro_batch_tokens: int,
        skip_zero_advantage: bool = False,
        *,
        keep_groups: bool = False,
    ) -> list[Tensor]:
        """Log-probs of each example's completion tokens (0 where masked or skipped), without gradients, on the CPU."""

        def logprobs(micro: MicroBatch) -> Tensor:
            return self.compute_logprobs(micro.to(self.device)).logprobs_M

        dtype = torch.promote_types(self.model.dtype, torch.float32)
        return score_tokens(examples, logprobs, dtype, micro_batch_tokens, skip_zero_advantage, keep_groups)

    def frozen_copy(self) -> Policy:
        """A reference: the same weights, never trained."""
        model = copy.deepcopy(self.model).requires_grad_(False)
        return Policy(model, self.tokenizer, self.temperature)

    def save(self, folder: Path) -> None:
        """Hugging Face format; loads with AutoModelForCausalLM and AutoTokenizer."""
        hide_progress_bars()
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def score_tokens(
    examples: list[Example],
    score: Callable[[MicroBatch], Tensor],
    dtype: torch.dtype,
    micro_batch_tokens: int,
    skip_zero_advantage: bool = False,
    keep_groups: bool = False,
) -> list[Tensor]:
    """`score` of every trained token, as one vector per example over its completion (0 elsewhere), on the CPU."""
    scored = [torch.zeros(len(example.completion_ids), dtype=dtype) for example in examples]
    batch = pack(
        examples,
        aggregation="token_mean",
        max_completion_tokens=1,
        micro_batch_tokens=micro_batch_tokens,
        skip_zero_advantage=skip_zero_advantage,
        keep_groups=keep_groups,
    )
    for micro in batch.micro_batches:
        values_M = score(micro).cpu()
        for row, index in enumerate(micro.examples):
            chosen_M = micro.row_M == row
            scored[index][micro.position_M[chosen_M] - len(examples[index].prompt_ids)] = values_M[chosen_M]
    return scored


def states_before(backbone: Any, attention: list[Any], micro: MicroBatch) -> Tensor:
    """Hidden states from which each trained token is predicted (or valued): those one position earlier."""
    token_ids_BT = micro.token_ids_BT
    missing = missing_rows(token_ids_BT.numel(), token_ids_BT.device)
    if missing:
        token_ids_BT = F.pad(token_ids_BT, (0, -(-missing // token_ids_BT.shape[0])))
    with attending(attention, CAUSAL_ATTENTION):
        hidden_BTH: Tensor = backbone(input_ids=token_ids_BT, use_cache=False).last_hidden_state
    return hidden_BTH[micro.row_M, micro.position_M - 1]  # the only shift in the project


def weights_digest(model: Any) -> str:
    """A digest of a few values of every parameter: cheap at any size, and training changes all of them."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        few = parameter.detach().flatten()[:256].float().cpu().contiguous()
        digest.update(name.encode() + few.numpy().tobytes())
    return digest.hexdigest()


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
                f"model.device: {config.device!r}, but this machine shows {torch.cuda.device_count()} CUDA devices."
            )
        return device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "bfloat16" and device.type == "cpu":
        raise ModelError('model.dtype: bfloat16 on a CPU is slow, and on some CPUs ends the process; use "float32" or a GPU.')
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_model(config: ModelConfig, seed: int, alphabet: Iterable[str] = ()) -> tuple[Any, Any]:
    """Model in float32 on its device, and tokenizer. The optimizer casts to the compute dtype once it holds the masters."""
    model: Any
    if config.source == "scratch":
        from cohort.scratch import build_scratch

        model, tokenizer = build_scratch(config.scratch, alphabet, seed)
    else:
        model, tokenizer = load_pretrained(config.source, config.revision)
    return model.to(pick_device(config)), tokenizer


def load_pretrained(source: str, revision: str = "") -> tuple[Any, Any]:
    """A local folder or a hub id through transformers. Code that ships with a checkpoint is never run."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    hide_progress_bars()
    options: dict[str, Any] = {"revision": revision} if revision else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False, **options
        )
    except (OSError, ValueError, KeyError, RuntimeError) as problem:
        first_line = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise ModelError(
            f"model.source: cannot load {source!r} as a causal language model ({first_line}). "
            "Give a folder written by save_pretrained, or a hub id that this machine can reach."
        ) from problem
    return model, tokenizer
