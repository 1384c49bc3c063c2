"""A module that is imported when it is first used: what only names functions then costs no import of theirs."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module until somebody asks it for an attribute. (Not importlib's LazyLoader, which torch does not survive.)"""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module(self._name)
        return getattr(self._module, attribute)

    def __repr__(self) -> str:
        return f"LazyModule({self._name!r})"
