"""Engines: requests in, completions out.

`protocol.py` has the contract. `hf.py` is the slow reference, `local.py` the fast engine, `cached.py` serves models that `local` refuses,
and `vllm/` samples on servers. recipe/values.py lists their names: an engine is one file or folder here and one line there. Importing this
package imports neither torch nor transformers; building an engine does.
"""

from __future__ import annotations

from cohort.base.importing import load_function
from cohort.engine.protocol import Engine, EngineSetup
from cohort.engine.requests import make_requests, regroup, sample_groups, stop_ids
from cohort.errors import EngineError
from cohort.recipe.sections import suggest_nearest
from cohort.recipe.values import AUTO, AUTO_ORDER, ENGINES

__all__ = ["Engine", "EngineSetup", "build_engine", "make_requests", "regroup", "sample_groups", "stop_ids"]


def build_engine(name: str, setup: EngineSetup) -> tuple[Engine, str]:
    """The engine of this name and its console message. auto: the first exact engine, with the reasons against the ones before it."""
    if name != AUTO:
        return make_engine(name, setup)
    reasons: list[str] = []
    for choice in AUTO_ORDER:
        try:
            engine, message = make_engine(choice, setup)
        except EngineError as problem:
            reasons.append(f" Not {choice}: {problem.__cause__ or problem}")
            continue
        return engine, f"{message}, {ENGINES[choice].cost}.{''.join(reasons)}".rstrip(".") if reasons else message
    raise EngineError(f"no engine serves this model exactly.{''.join(reasons)}")


def make_engine(name: str, setup: EngineSetup) -> tuple[Engine, str]:
    if name not in ENGINES:
        known = [AUTO, *ENGINES]
        raise EngineError(
            f"sampling.engine: {name!r} is not an engine (known: {', '.join(known)}){suggest_nearest(name, known)}"
        )
    try:
        made: tuple[Engine, str] = load_function(ENGINES[name].maker)(setup)
    except EngineError as problem:
        if ENGINES[name].external:  # its errors name other settings, and no other engine can replace it
            raise
        raise EngineError(
            f'sampling.engine = "{name}" cannot serve this model exactly. {problem} Use "{AUTO}" or "{AUTO_ORDER[-1]}".'
        ) from problem
    return made
