"""[reward_model] of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cohort.recipe.section import Section


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
