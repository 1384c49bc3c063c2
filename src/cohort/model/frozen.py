"""The reference and the teacher (frozen models), and digests of frozen weights.

The reference is the model of the KL term. It stays at the starting weights, becomes the policy every N steps (iterative training), or
follows the policy as a moving average. With LoRA it is an adapter over the policy's base, and only the adapter moves: A and B are averaged
separately, not their product.

The teacher gives the log-prob of every token that the policy sampled. It scores token ids, so its vocabulary must equal the
policy's; its size and family may differ. It never changes.

Frozen weights are not part of a checkpoint. A checkpoint holds their digest, and a resume with other weights is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from cohort.base.hub import use_cache_if_offline
from cohort.errors import ModelError, RunError
from cohort.model import four_bit, lora
from cohort.model.architecture import count_positions
from cohort.model.loading import LOADING_PROBLEMS, first_line, load_pretrained, read_tokenizer
from cohort.model.optim import cast_parameters
from cohort.model.policy import Policy
from cohort.model.sources import find_folder, refuse_unfit_source
from cohort.recipe.schema import TeacherConfig

HASHING_THREADS = 8
SAMPLED_VALUES = 256
"""Values of each tensor that `sample_weights` reads."""


# -- digests -----------------------------------------------------------------------------------------------------------


def digest_weights(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of all bits of these tensors, with their names, dtypes and shapes.

    It reads the tensors in memory, not files, so two files with the same weights have the same digest. Tensors are hashed in parallel
    (hashlib releases the interpreter lock), at about a second per 2 GB and core.
    """
    with ThreadPoolExecutor(min(HASHING_THREADS, os.cpu_count() or 1)) as pool:
        lines = pool.map(describe_tensor, tensors, tensors.values())
        return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def describe_tensor(name: str, tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous()
    content = hashlib.sha256(values.flatten().view(torch.uint8).numpy().data).hexdigest()
    return f"{name} {values.dtype} {tuple(values.shape)} {content}"


def sample_weights(model: Any) -> str:
    """A cheap digest of the first values of every parameter, to compare the models of several ranks."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        values = parameter.detach().flatten()[:SAMPLED_VALUES].float().cpu().contiguous()
        digest.update(name.encode() + values.numpy().tobytes())
    return digest.hexdigest()


def digest_base(model: Any) -> str:
    """Digest of the frozen base under an adapter: all bits of its parameters, and the adapter's shapes."""
    adapters = lora.adapter_parameters(model)
    frozen = {name: value[:0] if name in adapters else value for name, value in model.named_parameters()}
    return digest_weights(
        {part: one for name, value in frozen.items() for part, one in four_bit.list_stored_parts(name, value)}
    )


# -- the reference -----------------------------------------------------------------------------------------------------


class Reference:
    """The policy that the KL term compares with. A reference that moves is part of the checkpoint."""

    def __init__(self, policy: Policy, every: int = 0, decay: float = 0.0):
        self.policy = policy
        self.every, self.decay = every, decay
        self.moved = False
        """Whether `become` was called, as at the start of an iteration: from then on it is part of the checkpoint."""
        self.averages: dict[str, Tensor] = {}
        """Moving averages in float32: a small step would be lost in a bfloat16 parameter."""
        if decay:
            self.averages = {name: value.detach().float().clone() for name, value in self.values.items()}

    @property
    def values(self) -> dict[str, Tensor]:
        return self.policy.list_held_parameters()

    @property
    def moves(self) -> bool:
        return bool(self.every or self.decay or self.moved)

    def follow(self, policy: Policy, step: int) -> None:
        """Update the reference after a step, as its settings say."""
        if self.every and step % self.every == 0:
            self.become(policy)
        elif self.decay:
            self._average(policy)

    @torch.no_grad()
    def become(self, policy: Policy) -> None:
        """Copy the policy's weights. A moving average restarts from them."""
        self.moved = True
        self._copy(policy.list_held_parameters())

    def _copy(self, weights: Mapping[str, Tensor]) -> None:
        for name, mine in self.values.items():
            mine.copy_(weights[name])
            if self.averages:
                self.averages[name].copy_(weights[name])
        self.policy.refresh_weights()

    @torch.no_grad()
    def _average(self, policy: Policy) -> None:
        theirs = policy.list_held_parameters()
        for name, mine in self.values.items():
            self.averages[name].lerp_(theirs[name].float(), 1.0 - self.decay)
            mine.copy_(self.averages[name])
        self.policy.refresh_weights()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and settings that a checkpoint saves; nothing for a reference that never moves."""
        if not self.moves:
            return {}, {}
        current = self.averages or {name: value.detach() for name, value in self.values.items()}
        return self.policy.gather_tensors(current), {"moved": self.moved}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        if tensors:
            self.moved = bool(document["moved"])
            self._copy(self.policy.take_slices(tensors))


# -- the teacher -------------------------------------------------------------------------------------------------------


class Teacher:
    """A frozen model whose log-probs the policy is trained on. A checkpoint holds only its digest."""

    def __init__(self, policy: Policy, settings: TeacherConfig):
        self.policy, self.source, self.coef = policy, settings.source, settings.coef
        self.digest = digest_weights(dict(policy.model.named_parameters()))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"digest": self.digest}

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        if document["digest"] != self.digest:
            raise RunError(
                f"teacher.source: {self.source} is not the teacher that the run was started with, and training would mix two teachers. "
                "Restore the first one, or start a new run."
            )


def load_teacher(settings: TeacherConfig, policy: Policy) -> Teacher:
    """The teacher, frozen, with the policy's device, dtype, temperature and kernels."""
    inspect_teacher(settings, policy)
    model, tokenizer = load_pretrained(
        settings.source,
        settings.revision,
        policy.model.dtype,
        device=policy.device,
        field="teacher.source",
        trusted=settings.trust_remote_code,
    )
    cast_parameters(model.requires_grad_(False), policy.model.dtype)
    teacher = Policy(model, tokenizer, policy.temperature)
    teacher.set_longest(policy.longest)
    teacher.prepare(policy.kernels)
    teacher.world = policy.world
    return Teacher(teacher, settings)


def inspect_teacher(settings: TeacherConfig, policy: Policy, longest: int = 0) -> int:
    """Number of parameters of a teacher, read from its config. Raises ModelError where it cannot score the policy's samples.

    longest: tokens of prompt and completion together; 0 if unknown.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    source, revision, trusted = find_folder(settings.source, "teacher.source"), settings.revision, settings.trust_remote_code
    if lora.is_adapter(source):
        raise ModelError(
            f"teacher.source: {source} is a PEFT adapter, not a model. Merge it into its base first (a run with model.lora.merge = true "
            "writes a merged model folder)."
        )
    refuse_unfit_source(source, "teacher.source", trusted=trusted)
    try:
        with use_cache_if_offline(source):
            config = AutoConfig.from_pretrained(
                source, trust_remote_code=trusted, **({"revision": revision} if revision else {})
            )
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
    except LOADING_PROBLEMS as problem:
        raise ModelError(
            f"teacher.source: cannot read {source!r} as a causal language model ({first_line(problem)}). Use a folder written by "
            "save_pretrained, or a hub id that this machine can reach."
        ) from problem
    tokenizer = read_tokenizer(source, revision, "teacher.source", trusted)
    check_vocabulary(source, policy.tokenizer, tokenizer)
    theirs, ours = config.get_text_config(), policy.model.config.get_text_config()
    if theirs.vocab_size < ours.vocab_size:
        raise ModelError(
            f"teacher.source: {source} has {theirs.vocab_size} rows of logits and the policy {ours.vocab_size}, so the policy can sample "
            "an id that the teacher does not have. Use a teacher with at least as many."
        )
    positions = count_positions(theirs)
    if positions and longest > positions:
        raise ModelError(
            f"teacher.source: {source} has {positions} positions, but prompt and completion need {longest}. Lower "
            "sampling.max_completion_tokens or prompts.max_prompt_tokens, or use another teacher."
        )
    return sum(parameter.numel() for parameter in model.parameters())


def check_vocabulary(source: str, ours: Any, theirs: Any) -> None:
    """Raise ModelError unless every id is the same token in both tokenizers: the teacher receives ids, not text."""
    mine, its = ({number: token for token, number in one.get_vocab().items()} for one in (ours, theirs))
    differing = sorted(number for number in mine.keys() | its.keys() if mine.get(number) != its.get(number))
    if not differing:
        return
    first = differing[0]
    policy, teacher = (repr(one[first]) if first in one else "no token" for one in (mine, its))
    raise ModelError(
        f"teacher.source: the tokenizer of {source} differs from the policy's: id {first} is {policy} for the policy and {teacher} for the "
        f"teacher ({len(differing)} of {len(mine.keys() | its.keys())} ids differ). Use a teacher of the same family."
    )
