"""The model section of a recipe: where the policy comes from, and what of it is trained. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from cohort.recipe.devices import why_no_device
from cohort.recipe.section import Section


class ScratchConfig(Section):
    """A small Llama built here, for runs that download nothing. Used when model.source is "scratch"."""

    hidden_size: int = Field(128, ge=8, description="Width of the residual stream.")
    intermediate_size: int = Field(384, ge=8, description="Width of the MLP.")
    num_layers: int = Field(4, ge=1, description="Decoder layers.")
    num_heads: int = Field(4, ge=1, description="Query heads; must divide hidden_size.")
    num_kv_heads: int = Field(2, ge=1, description="Key/value heads; must divide num_heads.")
    max_positions: int = Field(256, ge=8, description="Longest sequence, prompt and completion together.")
    characters: str = Field(
        "", description='Alphabet of the character tokenizer; "" collects it from prompts and demonstrations.'
    )


class LoraConfig(Section):
    """Low-rank adapters through PEFT: the base stays frozen, and only the adapter is trained and saved."""

    rank: int = Field(0, ge=0, description="Rank of the adapters; 0 trains all weights.")
    alpha: float = Field(0.0, ge=0, description="The adapter is scaled by alpha / rank; 0 is twice the rank.")
    targets: list[str] = Field(
        default_factory=list, description="Names of the modules that get adapters; empty: every linear layer but the head."
    )
    adapter: str = Field(
        "", description='Folder of a PEFT adapter that the run starts from, and its reference for the KL; "" begins with none.'
    )
    base_dtype: Literal["auto", "nf4"] = Field(
        "auto",
        description="How the frozen base is held. auto: in model.dtype. nf4: its linear layers in 4 bits (QLoRA; needs bitsandbytes), "
        "which is a rounded base: a quarter of the memory, slower products.",
    )
    merge: bool = Field(True, description="The exported model holds merged weights; false exports the adapter alone.")


class ModelConfig(Section):
    """Where the policy comes from."""

    source: str = Field(
        "scratch", description='A model folder, a hub id, a run folder, or "scratch" for the model of [model.scratch].'
    )
    revision: str = Field("", description='Hub revision; "" is the default branch.')
    trust_remote_code: bool = Field(
        False,
        description="Run Python code that ships with the model: with your rights, outside of every jail. Named in the run's first lines "
        "and its summary. Read it before.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Dtype of the parameters while computing. auto: bfloat16 on CUDA, float32 on CPU. "
        "The optimizer always keeps float32 masters.",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    kernels: Literal["auto", "fused", "modules"] = Field(
        "auto",
        description="fused: own kernels for the Llama and Qwen families, to sample and to train (on a CPU where a compiler is found). "
        "modules: the modules of transformers. auto: fused where it is proven to give the same numbers, else modules, and says so.",
    )
    scratch: ScratchConfig = ScratchConfig()
    lora: LoraConfig = LoraConfig()

    @field_validator("device")
    @classmethod
    def refuse_other_device(cls, name: str) -> str:
        if reason := why_no_device(name):
            raise ValueError(reason)
        return name
