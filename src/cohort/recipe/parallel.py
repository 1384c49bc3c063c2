"""The section [parallel]: several trainers of one policy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cohort.recipe.section import Section


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
