"""The section [ahead]: training that does not wait for sampling and rewards."""

from __future__ import annotations

from pydantic import Field

from cohort.recipe.section import Section


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
