"""The base class of every section of a recipe, and the sections about how a run is executed and watched. No torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

LARGEST = 1e30
"""Of a number that meets tensors: what is computed with it must stay within float32, which ends at 3.4e38."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def refuse_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """True is 1 to Python, and a learning rate of 1 is not what anybody meant by it."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation in (int, float):
            raise ValueError(
                f"{str(value).lower()} is no number; give one, for example {field.get_default(call_default_factory=True)}"
            )
        return value

    @field_validator("*", mode="after")
    @classmethod
    def refuse_what_overflows(cls, value: Any) -> Any:
        """A number that float32 cannot hold ends in a traceback, or in steps that are all skipped."""
        if isinstance(value, float) and abs(value) > LARGEST:
            raise ValueError(f"{value:g} is beyond what can be computed with; at most {LARGEST:g} is accepted")
        return value


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    close.sort(key=lambda other: sorted(other) != sorted(word))  # letters that changed places come first
    close = close or [other for other in known if len(word) > 2 and other.startswith(word)]
    return f"; did you mean {close[0]!r}?" if close else ""


class AheadConfig(Section):
    """Sampling and scoring of later steps while a step is trained. See docs/scale.md."""

    lag: int = Field(
        0,
        ge=0,
        le=64,
        description="Steps that completions are sampled before they are trained on, by the policy as it is then, while the steps between "
        "are trained; 0: every step waits for its own. The same bits in every run of a recipe, resumed or not.",
    )
    in_flight: bool = Field(
        False,
        description="In place of a lag: groups are sampled one by one, all the time, and weights are swapped under those that are on their way. "
        "For engines that can (vllm); no two runs have the same bits.",
    )
    max_staleness: int = Field(
        2,
        ge=0,
        le=64,
        description="With in_flight: steps that a token may be older than the policy that trains on it. So many steps are sampled ahead, and a "
        "group with an older token is dropped.",
    )
    limit_s: float = Field(
        3600.0,
        gt=0,
        le=1e6,
        description="Seconds that training waits for what is sampled or scored ahead, before the run ends with words.",
    )


class ParallelConfig(Section):
    """Several trainers under torchrun: what each holds, and how their gradients are added. See docs/scale.md."""

    sums: Literal["auto", "exact", "fast"] = Field(
        "auto",
        description="How gradients of micro-batches are added, alone as well as on many ranks. exact: in float64, rounded once, so a "
        "recipe gives the same bits on any number of ranks with as many threads each; 8 bytes a trained parameter. fast: in float32. "
        "auto: exact on a CPU and with train.deterministic, else fast.",
    )
    shard: Literal["none", "full"] = Field(
        "none",
        description="none: every rank holds the whole model. full: FSDP2; weights, gradients and moments are shared out over the ranks, "
        "for what does not fit one device.",
    )
    offload: bool = Field(
        False, description='With shard = "full": the shares of weights and moments rest in the memory of the host; slower.'
    )
    limit_s: float = Field(
        120.0,
        ge=5,
        le=3600,
        description="Seconds without a sign of life after which a rank counts as lost, and all others end with its name.",
    )


class VllmConfig(Section):
    """vLLM servers (sampling.servers): how weights reach them, and how long they are waited for. See docs/scale.md."""

    push: Literal["group", "files", "adapter"] = Field(
        "group",
        description="group: over a process group that the trainer and the servers' workers form (plugin cohort-vllm); with LoRA merged. "
        "files: saved in a folder that the servers read. adapter: of a LoRA policy the adapter alone, as files.",
    )
    folder: str = Field(
        "", description='With files and adapter: a folder that all servers see under this name; "": one inside the run folder.'
    )
    address: str = Field(
        "",
        description='With group: the address of this trainer at which the servers\' workers meet it; "": the one that leads to the first '
        "server.",
    )
    limit_s: float = Field(
        30.0,
        ge=1,
        le=3600,
        description="Seconds without a sign of life after which a server counts as lost; its work goes to the others.",
    )
    wait_s: float = Field(
        300.0, ge=0, le=86400, description="Seconds that a run waits for a server when none is left, before it saves and ends."
    )


class MonitorsConfig(Section):
    """Who watches. metrics.jsonl is always written and is the source of truth."""

    console: bool = Field(True, description="Live lines on the terminal.")
    tensorboard: bool = Field(False, description="Write TensorBoard events into the run folder.")
    wandb: bool = Field(False, description="Send metrics to Weights & Biases.")
    wandb_project: str = Field("cohort", description="Project for Weights & Biases and for Trackio.")
    also: list[str] = Field(
        default_factory=list,
        description='More monitors: names from cohort.observe.monitors, or "package.module:Class" of your own, which is imported when '
        "a run starts and never when a recipe is read.",
    )
    completions: bool = Field(
        False,
        description="Also send completions, with their prompts and rewards, as tables to wandb and trackio, whenever a group is shown "
        "(show_every). Off: what the policy writes stays in the run folder.",
    )
    rollouts_every: int = Field(1, ge=0, description="Keep every completion of every N-th step as parquet; 0 keeps none.")
    tokens_every: int = Field(
        25,
        ge=0,
        description="Keep single tokens of a few groups (advantage, log-probs, ratio, clipped or not, gradient coefficient) as parquet, at step 1, "
        "at every N-th step, and where a new finding names completions; at most 2 MB a step. 0 keeps none.",
    )
    show_every: int = Field(
        25,
        ge=0,
        description="Show a group on the console (prompt, best and worst completion, reward parts) at step 1 and every N steps; 0 shows none.",
    )
    kl: bool = Field(
        False,
        description="Measure the KL to the reference also where algorithm.kl_coef is 0, on the completions that are trained on. It "
        "costs what a reference costs (its memory, a forward per step), and changes no bit of the training.",
    )

    @model_validator(mode="after")
    def refuse_unread(self) -> MonitorsConfig:
        if self.completions and not (self.wandb or {"wandb", "trackio"} & {*self.also}):
            raise ValueError("completions: no monitor that takes them is asked for; set wandb = true or also = ['trackio'].")
        if self.completions and not self.show_every:
            raise ValueError("completions: they are sent whenever a group is shown, and show_every is 0; set it to N steps.")
        return self


class RewardModelConfig(Section):
    """Iterative training against a learned reward model. The functions of [[rewards]] label its data and judge success."""

    iterations: int = Field(
        0, ge=0, description="Rounds of (fit the reward model, refresh the reference, train); 0: no reward model."
    )
    source: str = Field(
        "", description='A folder or hub id of a sequence-classification model to begin with; "" makes one from the policy.'
    )
    trust_remote_code: bool = Field(False, description="Run Python code that ships with it, as model.trust_remote_code.")
    loss: Literal["pairwise", "pointwise"] = Field(
        "pairwise", description="pairwise: right above wrong in the same group. pointwise: right or wrong, each by itself."
    )
    prompts: int = Field(256, ge=1, description="Training prompts whose fresh completions are labelled before each iteration.")
    epochs: int = Field(2, ge=1, description="Passes over the labelled data.")
    batch_size: int = Field(64, ge=1, description="Completions per update of the reward model.")
    learning_rate: float = Field(1e-5, gt=0, description="Learning rate of the reward model.")
    replay_share: float = Field(0.1, ge=0, le=1, description="Older labelled completions mixed in, as a share of the new ones.")
    held_back: float = Field(0.1, gt=0, lt=1, description="Share of the prompts kept from the fit, to measure its accuracy.")
