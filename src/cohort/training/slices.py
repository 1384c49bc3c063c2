"""Checkpoints of a model that the ranks share out and that none should have to hold: each writes the slices it has.

The format stays the one of checkpoint.py: a folder with a manifest of every file, under its name only when it is whole. Of a part the
folder holds `part.safetensors`, or `part.0-of-3.safetensors` and so on, whose tensors laid one below the other are the whole ones.
So any number of ranks reads it, and one process without ranks. The folder must be one that all ranks see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

OF_A_RANK = re.compile(r"(.+)\.(\d+)-of-(\d+)")


def is_slice(value: Any) -> bool:
    """Whether it is a DTensor, by what it can do: without ranks nothing of torch.distributed is imported."""
    return hasattr(value, "to_local")


def select_slices(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key: value.to_local() for key, value in tensors.items() if is_slice(value)}


class Joined(Mapping[str, Tensor]):
    """Whole tensors from the files of ranks, one at a time: read when they are asked for, and held by whoever asks."""

    def __init__(self, files: list[Path], whole: Mapping[str, Tensor]):
        self.files, self.whole = files, whole
        with safe_open(files[0], "pt") as first:
            self.names = [*whole, *first.keys()]

    def __getitem__(self, name: str) -> Tensor:
        if name in self.whole:
            return self.whole[name]
        if name not in self.names:
            raise KeyError(name)
        slices = []
        for file in self.files:
            with safe_open(file, "pt") as opened:
                slices.append(opened.get_tensor(name))
        return torch.cat(slices)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def join_parts(folder: Path, stems: list[str], whole: dict[str, Mapping[str, Tensor]]) -> dict[str, Mapping[str, Tensor]]:
    """The parts of a checkpoint by name, from those of whole files and the files of ranks."""
    of_ranks: dict[str, dict[int, Path]] = {}
    for stem in stems:
        if match := OF_A_RANK.fullmatch(stem):
            of_ranks.setdefault(match[1], {})[int(match[2])] = folder / f"{stem}.safetensors"
    return whole | {
        part: Joined([files[rank] for rank in sorted(files)], whole.get(part, {})) for part, files in of_ranks.items()
    }
