"""The teacher: a frozen model that says of every sampled token how likely it finds it.

It scores the very ids that the policy sampled, so its vocabulary must be the policy's; its size and family are its own. It never
moves: a checkpoint holds its digest alone, and a resume with another teacher is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cohort.errors import ModelError, RunError
from cohort.model import lora
from cohort.model.digest import digest_weights, is_whole, sample_weights
from cohort.model.folders import refuse_unfit_source
from cohort.model.gguf import find_folder
from cohort.model.loading import LOADING_PROBLEMS, first_line, load_pretrained, read_tokenizer
from cohort.model.optim import cast_parameters
from cohort.model.policy import Policy
from cohort.model.rotary import count_positions
from cohort.recipe.schema import TeacherConfig


class Teacher:
    def __init__(self, policy: Policy, settings: TeacherConfig):
        self.policy, self.source, self.coef = policy, settings.source, settings.coef
        self.digest = digest_weights(dict(policy.model.named_parameters()))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"digest": self.digest}

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        saved = document["digest"]
        if saved != (self.digest if is_whole(saved) else sample_weights(self.policy.model)):
            raise RunError(
                f"teacher.source: {self.source} is not the teacher that the run was started with. Going on would learn from a mixture: "
                "restore it, or start a new run."
            )


def look_at_teacher(settings: TeacherConfig, policy: Policy, longest: int = 0) -> int:
    """Parameters of a teacher, from its config alone; one that cannot score what the policy samples is refused.

    longest: tokens of prompt and completion together, where that is known.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    source, revision, trusted = find_folder(settings.source, "teacher.source"), settings.revision, settings.trust_remote_code
    if lora.is_adapter(source):
        raise ModelError(
            f"teacher.source: {source} is a PEFT adapter and not a model. Merge it into its base first; a run's model folder is merged "
            "where model.lora.merge is true."
        )
    refuse_unfit_source(source, "teacher.source", trusted=trusted)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trusted, **({"revision": revision} if revision else {}))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
    except LOADING_PROBLEMS as problem:
        raise ModelError(
            f"teacher.source: cannot read {source!r} as a causal language model with its tokenizer ({first_line(problem)}). Give a folder "
            "written by save_pretrained, or a hub id that this machine can reach."
        ) from problem
    tokenizer = read_tokenizer(source, revision, "teacher.source", trusted)
    check_vocabulary(source, policy.tokenizer, tokenizer)
    theirs, ours = config.get_text_config(), policy.model.config.get_text_config()
    if theirs.vocab_size < ours.vocab_size:
        raise ModelError(
            f"teacher.source: {source} has {theirs.vocab_size} rows of logits and the policy {ours.vocab_size}, so the policy can sample "
            "an id that the teacher does not have. Use a teacher with as many."
        )
    positions = count_positions(theirs)
    if positions and longest > positions:
        raise ModelError(
            f"teacher.source: {source} has {positions} positions, and prompt and completion need {longest}. Lower "
            "sampling.max_completion_tokens or prompts.max_prompt_tokens, or use another teacher."
        )
    return sum(parameter.numel() for parameter in model.parameters())


def check_vocabulary(source: str, ours: Any, theirs: Any) -> None:
    """Every id must mean the same token to both: the teacher is shown ids, and never text."""
    mine, its = ({number: token for token, number in one.get_vocab().items()} for one in (ours, theirs))
    differing = sorted(number for number in mine.keys() | its.keys() if mine.get(number) != its.get(number))
    if not differing:
        return
    first = differing[0]
    policy, teacher = (repr(one[first]) if first in one else "no token" for one in (mine, its))
    raise ModelError(
        f"teacher.source: {source} has another tokenizer than the policy: id {first} is {policy} for the policy and {teacher} for the "
        f"teacher ({len(differing)} of {len(mine.keys() | its.keys())} ids differ). Use a teacher of the same family."
    )


def load_teacher(settings: TeacherConfig, policy: Policy) -> Teacher:
    """Frozen, beside the policy: on its device, in its dtype, at its temperature, with its kernels."""
    look_at_teacher(settings, policy)
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
    teacher.hold_lengths(policy.longest)
    teacher.prepare(policy.kernels)
    teacher.world = policy.world
    return Teacher(teacher, settings)
