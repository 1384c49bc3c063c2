"""The section [monitors]: who watches a run."""

from __future__ import annotations

from pydantic import Field, model_validator

from cohort.recipe.section import Section


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
