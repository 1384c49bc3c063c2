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


ENGINES = {
    "local": EngineEntry("cohort.engine.local:make_local", "fast, shares the policy's weights"),
    "hf": EngineEntry("cohort.engine.hf:make_hf", "slow and obvious"),
}

AUTO = "auto"
"""The first of these two that serves the model exactly."""
AUTO_ORDER = ("local", "hf")

ABOUT_ENGINES = (
    "".join(f"{name}: {entry.about}. " for name, entry in ENGINES.items())
    + f"{AUTO}: {AUTO_ORDER[0]} where it is exact for the architecture, else {AUTO_ORDER[1]}, and says so."
)
