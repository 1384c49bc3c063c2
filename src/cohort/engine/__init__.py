"""Engines: prompts in, groups of completions out.

`engine.py` is the contract; `hf_engine.py` the slow and obvious twin, `local_engine.py` the fast one. Importing this
package imports neither torch nor transformers; building an engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from cohort.engine.protocol import Engine
from cohort.engine.stop import stop_ids
from cohort.errors import EngineError

__all__ = ["Engine", "build_engine", "stop_ids"]


def build_engine(
    name: Literal["auto", "local", "hf"],
    model: Any,
    decode: Callable[[Sequence[int]], str],
    slots: int = 0,
    *,
    kernels: str = "auto",
    cuda_graphs: bool = True,
    decode_all: Callable[[Sequence[Sequence[int]]], list[str]] | None = None,
) -> tuple[Engine, str]:
    """The engine of that name, and a sentence for the console. auto: local where it is exact, else hf with the reason."""
    from cohort.engine.hf import HFEngine
    from cohort.engine.local import LocalEngine

    if name == "hf":
        return HFEngine(model, decode), "engine hf: the model's own forward for every token, slow and obvious"
    if name not in ("auto", "local"):
        raise EngineError(f'sampling.engine: {name!r} is not an engine; use "auto", "local" or "hf".')
    try:
        engine = LocalEngine(model, decode, slots, kernels=kernels, cuda_graphs=cuda_graphs, decode_all=decode_all)
        return engine, f"engine local: continuous batching with the policy's own weights, {engine.describe()}"
    except EngineError as problem:
        if name == "local":
            raise EngineError(
                f'sampling.engine = "local" cannot serve this model exactly. {problem} Use "auto" or "hf".'
            ) from problem
        return HFEngine(model, decode), f"engine hf (slow), because local cannot serve this model exactly. {problem}"
