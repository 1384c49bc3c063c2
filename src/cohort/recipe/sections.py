"""The base class of every section of a recipe, and the sections about how a run is executed and watched. No torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

LARGEST = 1e30
"""Largest number in a recipe: results computed with it must stay within float32, which ends at 3.4e38."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def refuse_bool_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes True for 1, but nobody means a learning rate of 1 by it."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation in (int, float):
            raise ValueError(
                f"{str(value).lower()} is not a number; give one, for example {field.get_default(call_default_factory=True)}"
            )
        return value

    @field_validator("*", mode="after")
    @classmethod
    def refuse_overflow(cls, value: Any) -> Any:
        """Refuse numbers too large for float32: they end in a traceback, or every step is skipped."""
        if isinstance(value, float) and abs(value) > LARGEST:
            raise ValueError(f"{value:g} is too large to compute with; at most {LARGEST:g} is accepted")
        return value


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'group_size'?" for the most similar known name, "" if none is similar."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    close.sort(key=lambda other: sorted(other) != sorted(name))  # the same letters in another order come first
    close = close or [other for other in known if len(name) > 2 and other.startswith(name)]
    return f"; did you mean {close[0]!r}?" if close else ""


class AheadConfig(Section):
    """Sampling and scoring ahead: later steps are sampled while a step is trained. See docs/scale.md."""

    lag: int = Field(
        0, ge=0, le=64, description="Steps by which sampling runs ahead of training; 0: off. Exactly reproducible."
    )
    in_flight: bool = Field(
        False,
        description="Instead of a fixed lag: groups are sampled continuously, and weights are updated while completions are in flight. Only "
        "for engines that support it (vllm); two runs never have the same bits.",
    )
    max_staleness: int = Field(
        2, ge=0, le=64, description="With in_flight: steps sampled ahead, and maximum age of a token; older groups are dropped."
    )
    limit_s: float = Field(
        3600.0, gt=0, le=1e6, description="Seconds that training waits for rollouts before the run ends with an error."
    )


class ParallelConfig(Section):
    """Several trainers under torchrun: how they split the model and add their gradients. See docs/scale.md."""

    sums: Literal["auto", "exact", "fast"] = Field(
        "auto",
        description="How gradients of micro-batches are added, on one rank or many. exact: in float64, rounded once, so a recipe gives "
        "the same bits on any number of ranks with equally many threads; costs 8 bytes per trained parameter. fast: in float32. "
        "auto: exact on a CPU and with train.deterministic, else fast.",
    )
    shard: Literal["none", "full"] = Field(
        "none",
        description="none: every rank holds the whole model. full: weights, gradients and optimizer states are split over the ranks (FSDP2), "
        "for models larger than one device.",
    )
    offload: bool = Field(False, description='With shard = "full": keep weights and optimizer states in host memory; slower.')
    limit_s: float = Field(
        120.0, ge=5, le=3600, description="A rank without a sign of life for this many seconds is lost; the others then end."
    )


class VllmConfig(Section):
    """vLLM servers (sampling.servers): how they receive weights, and how long the trainer waits for them. See docs/scale.md."""

    push: Literal["group", "files", "adapter"] = Field(
        "group",
        description="group: through a process group of the trainer and the servers' workers (plugin cohort-vllm); LoRA weights are merged "
        "first. files: through a folder that the servers read. adapter: only the adapter of a LoRA policy, as files.",
    )
    folder: str = Field(
        "", description='With files and adapter: a folder that all servers reach; "": one inside the run folder.'
    )
    address: str = Field(
        "", description='With group: the address at which servers reach this trainer; "": that of the route to the first.'
    )
    limit_s: float = Field(
        30.0, ge=1, le=3600, description="A server without a sign of life for this many seconds is lost; the others take over."
    )
    wait_s: float = Field(
        300.0, ge=0, le=86400, description="Seconds that a run waits when no server is left, before it saves and ends."
    )


class MonitorsConfig(Section):
    """Where a run is shown. metrics.jsonl is always written and is the source of truth."""

    console: bool = Field(True, description="Live lines in the terminal.")
    tensorboard: bool = Field(False, description="Write TensorBoard events into the run folder.")
    wandb: bool = Field(False, description="Send metrics to Weights & Biases.")
    wandb_project: str = Field("cohort", description="Project name for Weights & Biases and Trackio.")
    also: list[str] = Field(
        default_factory=list,
        description='More monitors: names from cohort.observe.monitors, or your own "package.module:Class", which is imported when a run '
        "starts, not when the recipe is read.",
    )
    completions: bool = Field(
        False,
        description="Also send completions, with prompts and rewards, as tables to wandb and trackio whenever a group is shown "
        "(show_every). Off: the policy's completions stay in the run folder.",
    )
    rollouts_every: int = Field(1, ge=0, description="Save all completions of every N-th step as parquet; 0 saves none.")
    tokens_every: int = Field(
        25,
        ge=0,
        description="Save the tokens of a few groups (advantage, log-probs, ratio, clipped or not, gradient coefficient) as parquet at "
        "step 1, every N steps, and where a new finding names completions; at most 2 MB per step. 0 saves none.",
    )
    show_every: int = Field(
        25, ge=0, description="Show a group (best and worst completion) at step 1 and every N steps; 0: never."
    )
    kl: bool = Field(
        False,
        description="Measure the KL to the reference even if algorithm.kl_coef is 0. This needs a reference (its memory and a forward "
        "pass per step) and does not change the training.",
    )

    @model_validator(mode="after")
    def refuse_unread(self) -> MonitorsConfig:
        if self.completions and not (self.wandb or {"wandb", "trackio"} & {*self.also}):
            raise ValueError("completions: no monitor receives them; set wandb = true or also = ['trackio'].")
        if self.completions and not self.show_every:
            raise ValueError("completions: they are sent when a group is shown, and show_every is 0; set it to N steps.")
        return self


class RewardModelConfig(Section):
    """Iterative training against a learned reward model. The functions of [[rewards]] label its data and decide success."""

    iterations: int = Field(0, ge=0, description="Rounds of fitting the model, refreshing the reference, training; 0: off.")
    source: str = Field(
        "", description='A sequence-classification model (folder or hub id) to start from; "": made from the policy.'
    )
    trust_remote_code: bool = Field(False, description="Run Python code that ships with it, as model.trust_remote_code.")
    loss: Literal["pairwise", "pointwise"] = Field(
        "pairwise",
        description="pairwise: correct completions score above incorrect ones of the same group. pointwise: each completion by itself.",
    )
    prompts: int = Field(256, ge=1, description="Training prompts whose new completions are labelled before each iteration.")
    epochs: int = Field(2, ge=1, description="Passes over the labelled data.")
    batch_size: int = Field(64, ge=1, description="Completions per update of the reward model.")
    learning_rate: float = Field(1e-5, gt=0, description="Learning rate of the reward model.")
    replay_share: float = Field(0.1, ge=0, le=1, description="Older labelled completions, as a share of the new ones.")
    held_back: float = Field(0.1, gt=0, lt=1, description="Share of the prompts kept out of the fit, to measure its accuracy.")
