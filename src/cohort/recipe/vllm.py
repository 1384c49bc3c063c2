"""The section [vllm]: servers that sample for the trainer, and how they get its weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cohort.recipe.section import Section


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
