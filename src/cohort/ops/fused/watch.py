"""Whether a model is still the one that was read into tensors.

Every micro-batch asks, so the question is a walk over flat lists: nothing is looked up by name in modules, which takes torch longer
than all of the comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

Entry = tuple[Mapping[str, Any], str, Any]
"""A table of a module, a name in it, and what stood there."""


class Watch:
    """The modules and parameters below a module as they are now."""

    def __init__(self, root: nn.Module) -> None:
        modules = list(root.modules())
        self.children: list[Entry] = [(one._modules, name, child) for one in modules for name, child in one._modules.items()]
        self.parameters: list[Entry] = [
            (one._parameters, name, value) for one in modules for name, value in one._parameters.items()
        ]
        self.places = [find_place(value) for _, _, value in self.parameters]
        self.adapted = [one for one in modules if hasattr(one, "lora_A")]
        self.switches = [read_switches(one) for one in self.adapted]

    def is_same(self) -> bool:
        """Whether modules and parameters are the same objects, parameters lie where they lay, and adapters are switched as they were."""
        return (
            all(table.get(name) is one for table, name, one in self.children)
            and all(table.get(name) is one for table, name, one in self.parameters)
            and all(find_place(value) == place for (_, _, value), place in zip(self.parameters, self.places, strict=True))
            and all(read_switches(one) == before for one, before in zip(self.adapted, self.switches, strict=True))
        )


def find_place(parameter: Tensor | None) -> tuple[int, bool] | None:
    """Where a parameter lies, and whether by rows. The fused tensors keep its storage, so nothing else comes to lie there."""
    return None if parameter is None else (parameter.data_ptr(), parameter.is_contiguous())


def read_switches(layer: Any) -> tuple[bool, list[str], list[str], dict[str, float]]:
    """Of a layer with adapters (PEFT): whether they are off, which are on, which are merged, and the scale of each."""
    return layer.disable_adapters, list(layer.active_adapters), list(layer.merged_adapters), dict(layer.scaling)
