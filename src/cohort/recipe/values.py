"""Values of a recipe that name something: engines, devices, servers, stop conditions, and objects given from Python. No torch."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cohort.base.http import Endpoint

# -- engines -----------------------------------------------------------------------------------------------------------


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
    "hf": EngineEntry("cohort.engine.hf:make_hf", "the slow reference", "1/30 to 1/100 of the speed of cached"),
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


# -- devices -----------------------------------------------------------------------------------------------------------

SERVED = "use auto, cpu, cuda or cuda:N"
OTHERS = {
    "mps|metal|apple": "Apple's GPU (mps) is not served: kernels, engines and tests are for CUDA and for CPUs. Set it to cpu on a Mac",
    "gpu": f"a GPU is called cuda here; {SERVED}",
    "tpu|xla|jax": f"TPUs are not served; {SERVED}",
    "xpu|hpu|npu|mlu|musa|vulkan|hip|rocm|privateuseone": f"{{kind}} devices are not served; {SERVED}",
    "cuda": f"{{name!r}} is not one device: a run has one, {SERVED}, with N from 0",
}
"""Kinds of devices, as a pattern -> what is said of them."""


def explain_device(name: str) -> str:
    """Why a device cannot be used, as far as its name says; "" where this machine must be asked."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        return ""
    kind = name.lower().partition(":")[0].strip()
    said = (text for pattern, text in OTHERS.items() if re.fullmatch(pattern, kind))
    return next(said, f"{{name!r}} is not a device; {SERVED}").format(name=name, kind=kind)


# -- servers -----------------------------------------------------------------------------------------------------------

EXAMPLE = "http://10.0.0.5:8000"
MOST_SERVERS = 4096
MOST_BYTES = 1 << 20


def check_entries(given: Sequence[str]) -> None:
    """Raises ValueError for what is neither an address nor a file's name."""
    for entry in given:
        if entry in ("", "@"):
            raise ValueError(f"an entry is empty; each is an address like {EXAMPLE}, or @FILE.")
        if not entry.startswith("@"):
            write_address(entry)


def read_servers(given: Sequence[str]) -> list[str]:
    """The addresses, files read, in the form in which they are compared and called. Raises ValueError."""
    listed: list[str] = []
    for entry in given:
        listed += read_list(entry[1:]) if entry.startswith("@") else [entry]
    addresses = [write_address(entry) for entry in listed]
    if twice := next((address for address in addresses if addresses.count(address) > 1), ""):
        raise ValueError(f"{twice} is named twice; a server is one server.")
    if len(addresses) > MOST_SERVERS:
        raise ValueError(f"{len(addresses)} servers are named; at most {MOST_SERVERS} are accepted.")
    return addresses


def read_list(file: str) -> list[str]:
    """The lines of a file that are addresses: neither empty nor a comment (#)."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(MOST_BYTES)
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(
            f"@{file}: it cannot be read ({problem}); name a file with one address a line, like {EXAMPLE}."
        ) from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if not any(lines):
        raise ValueError(f"@{file}: it holds no address; write one a line, like {EXAMPLE}.")
    return [line for line in lines if line]


def write_address(entry: str) -> str:
    """http://host:port, without anything behind it."""
    endpoint = parse_address(entry)
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{'https' if endpoint.tls else 'http'}://{host}:{endpoint.port}"


def parse_address(entry: str) -> Endpoint:
    from cohort.base.http import Endpoint  # only runs with servers need asyncio and TLS

    endpoint = Endpoint.parse(entry, "", key_word="no key, for the routes of weights take none", example=EXAMPLE)
    if endpoint.path:
        raise ValueError(f"{entry!r} goes on after the port; a server is named like {EXAMPLE}.")
    return endpoint


# -- train.stop_when ---------------------------------------------------------------------------------------------------

SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
PRINTED = {"≥": ">=", "≤": "<="}
CONDITION = re.compile(rf"(\S+?)\s*({'|'.join([*SIGNS, *PRINTED])})\s*(\S+|\S+ %)")
HOW = 'write a metric, a sign and a number, e.g. "eval/pass@1 >= 0.95"; several with `and`, `or`'


@dataclass(frozen=True)
class Condition:
    metric: str
    sign: str
    limit: float

    def holds(self, row: Mapping[str, Any]) -> bool:
        """In the row of one step; a metric that the row does not have meets no condition."""
        value = row.get(self.metric)
        return isinstance(value, int | float) and SIGNS[self.sign](float(value), self.limit)


def parse_conditions(text: str) -> list[list[Condition]]:
    """Alternatives, each of conditions that must all hold; ValueError says what cannot be read."""
    if not text.strip():
        return []
    if found := re.search(r"[()]", text):
        raise ValueError(f"{found[0]!r} cannot be read: there are no brackets, and `and` binds before `or`; {HOW}")
    return [[parse_condition(one) for one in re.split(r"\s+and\s+", part)] for part in re.split(r"\s+or\s+", text.strip())]


def parse_condition(text: str) -> Condition:
    found = CONDITION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text.strip()!r} is no condition; {HOW}")
    try:
        limit = float(found[3])
    except ValueError:
        share = "; shares are written as 0.95" if found[3].endswith("%") else ""
        raise ValueError(f"{found[3]!r} is not a number{share}; {HOW}") from None
    if not math.isfinite(limit):
        raise ValueError(f"{found[3]!r} is no limit that a metric could pass; {HOW}")
    return Condition(found[1], PRINTED.get(found[2], found[2]), limit)


# -- objects given from Python -----------------------------------------------------------------------------------------

PYTHON_ROWS = "python:rows"
"""Source of prompts, or of an evaluation set, whose rows were handed in from Python."""

PYTHON_MODEL = "python:model"
"""model.source of a run whose model was handed in from Python, until it is kept in the run folder."""


@dataclass(frozen=True)
class Materials:
    rows: Iterable[Mapping[str, Any]] | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    monitors: Sequence[Any] = ()
    sets: Mapping[str, Iterable[Mapping[str, Any]]] = field(default_factory=dict)
    """Rows of the evaluation sets whose source is PYTHON_ROWS."""
    model: tuple[Any, Any] | None = None
    """A loaded model to start from, and its tokenizer: (model, tokenizer)."""
