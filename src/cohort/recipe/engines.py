"""The engines that a recipe can name: one line each. No torch; engine/__init__.py loads what a line names.

A maker is a function of one `EngineSetup` (engine/protocol.py) that gives the engine and a sentence for the console, or raises
EngineError with the reason why it cannot serve the model exactly.
"""

from __future__ import annotations

from typing import NamedTuple


class EngineEntry(NamedTuple):
    maker: str
    """module:function"""
    about: str
    cost: str = ""
    """What it costs to have this one, for the console: measured by benchmarks/tiers.py."""
    foreign: bool = False
    """Whether it computes with another program than the trainer, so that log-probs of equal weights differ by its rounding."""


ENGINES = {
    "local": EngineEntry("cohort.engine.local:make_local", "fast, shares the policy's weights"),
    "cached": EngineEntry(
        "cohort.engine.cached:make_cached",
        "decodes in batches with the cache that transformers keeps for the architecture",
        "a quarter of local's tokens per second on a CPU, a twentieth on a GPU",
    ),
    "hf": EngineEntry("cohort.engine.hf:make_hf", "slow and obvious", "a thirtieth to a hundredth of cached's speed"),
    "vllm": EngineEntry(
        "cohort.engine.vllm.engine:make_vllm",
        "vLLM servers elsewhere (sampling.servers), which weights are pushed to",
        foreign=True,
    ),
}

AUTO = "auto"
"""The first of these that serves the model exactly."""
AUTO_ORDER = ("local", "cached", "hf")

ABOUT_ENGINES = (
    "".join(f"{name}: {entry.about}. " for name, entry in ENGINES.items())
    + f"{AUTO}: vllm where sampling.servers names any; else the first of {', '.join(AUTO_ORDER)} that is exact for the architecture, "
    "and says which and why."
)
