"""Values that a recipe gives by name: engines, devices, servers, stop conditions, and objects passed from Python. No torch."""

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
    """Its speed, for the console; measured by benchmarks/tiers.py."""
    external: bool = False
    """Whether it is another program than the trainer, whose log-probs differ by rounding for the same weights."""


ENGINES = {
    "local": EngineEntry("cohort.engine.local:make_local", "fast, shares the policy's weights"),
    "cached": EngineEntry(
        "cohort.engine.cached:make_cached",
        "batched decoding with the cache of transformers",
        "a quarter of local's tokens per second on a CPU, a twentieth on a GPU",
    ),
    "hf": EngineEntry("cohort.engine.hf:make_hf", "slow, simple reference", "a thirtieth to a hundredth of cached's speed"),
    "vllm": EngineEntry(
        "cohort.engine.vllm.engine:make_vllm", "vLLM servers (sampling.servers), to which weights are pushed", external=True
    ),
}

AUTO = "auto"
"""The first engine of AUTO_ORDER that is exact for the model."""
AUTO_ORDER = ("local", "cached", "hf")

ABOUT_ENGINES = (
    "".join(f"{name}: {entry.about}. " for name, entry in ENGINES.items())
    + f"{AUTO}: vllm if sampling.servers is set; else the first of {', '.join(AUTO_ORDER)} that is exact for the architecture. The run "
    "prints which one and why."
)


# -- devices -----------------------------------------------------------------------------------------------------------

SUPPORTED = "use auto, cpu, cuda or cuda:N"
OTHERS = {
    "mps|metal|apple": "Apple's GPU (mps) is not supported, only CUDA and CPUs; on a Mac use cpu",
    "gpu": f"a GPU is called cuda here; {SUPPORTED}",
    "tpu|xla|jax": f"TPUs are not supported; {SUPPORTED}",
    "xpu|hpu|npu|mlu|musa|vulkan|hip|rocm|privateuseone": f"{{kind}} devices are not supported; {SUPPORTED}",
    "cuda": f"{{name!r}} is not one device; {SUPPORTED}, with N from 0",
}
"""Pattern of device names -> message."""


def explain_device(name: str) -> str:
    """Why a device name is refused; "" if it is valid."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        return ""
    kind = name.lower().partition(":")[0].strip()
    messages = (text for pattern, text in OTHERS.items() if re.fullmatch(pattern, kind))
    return next(messages, f"{{name!r}} is not a device; {SUPPORTED}").format(name=name, kind=kind)


# -- servers -----------------------------------------------------------------------------------------------------------

EXAMPLE = "http://10.0.0.5:8000"
MOST_SERVERS = 4096
MOST_BYTES = 1 << 20


def check_entries(given: Sequence[str]) -> None:
    """Raise ValueError if an entry is neither an address nor the name of a file."""
    for entry in given:
        if entry in ("", "@"):
            raise ValueError(f"an entry is empty; write an address like {EXAMPLE}, or @FILE.")
        if not entry.startswith("@"):
            write_address(entry)


def read_servers(given: Sequence[str]) -> list[str]:
    """The addresses of all servers, including those in files, in one canonical form. Raises ValueError.

    Called when a run starts or resumes, not when the recipe is read: the servers may have moved by then.
    """
    listed: list[str] = []
    for entry in given:
        listed += read_list(entry[1:]) if entry.startswith("@") else [entry]
    addresses = [write_address(entry) for entry in listed]
    if twice := next((address for address in addresses if addresses.count(address) > 1), ""):
        raise ValueError(f"{twice} is listed twice; list each server once.")
    if len(addresses) > MOST_SERVERS:
        raise ValueError(f"{len(addresses)} servers are listed; at most {MOST_SERVERS} are accepted.")
    return addresses


def read_list(file: str) -> list[str]:
    """The addresses in a file, one per line, without empty lines and comments (#)."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(MOST_BYTES)
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(
            f"@{file}: cannot be read ({problem}); give a file with one address per line, like {EXAMPLE}."
        ) from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if not any(lines):
        raise ValueError(f"@{file}: contains no address; write one per line, like {EXAMPLE}.")
    return [line for line in lines if line]


def write_address(entry: str) -> str:
    """The address as http://host:port."""
    endpoint = parse_address(entry)
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{'https' if endpoint.tls else 'http'}://{host}:{endpoint.port}"


def parse_address(entry: str) -> Endpoint:
    from cohort.base.http import Endpoint  # only runs with servers need asyncio and TLS

    endpoint = Endpoint.parse(entry, "", key_word="no key: the servers' weight routes accept none", example=EXAMPLE)
    if endpoint.path:
        raise ValueError(f"{entry!r} has a path after the port; write an address like {EXAMPLE}.")
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
        """Whether the metrics of a step meet the condition; a missing metric never does."""
        value = row.get(self.metric)
        return isinstance(value, int | float) and SIGNS[self.sign](float(value), self.limit)


def parse_conditions(text: str) -> list[list[Condition]]:
    """The alternatives, each a list of conditions that must all hold, as in `eval/pass@1 >= 0.95` or `reward/success > 0.9 and loss/entropy < 0.05`.

    `and` binds before `or`. observe/early_stop.py checks the names of the metrics. Raises ValueError.
    """
    if not text.strip():
        return []
    if found := re.search(r"[()]", text):
        raise ValueError(f"{found[0]!r} is not supported: conditions have no brackets, and `and` binds before `or`; {HOW}")
    return [[parse_condition(one) for one in re.split(r"\s+and\s+", part)] for part in re.split(r"\s+or\s+", text.strip())]


def parse_condition(text: str) -> Condition:
    found = CONDITION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text.strip()!r} is not a condition; {HOW}")
    try:
        limit = float(found[3])
    except ValueError:
        share = "; write shares like 0.95" if found[3].endswith("%") else ""
        raise ValueError(f"{found[3]!r} is not a number{share}; {HOW}") from None
    if not math.isfinite(limit):
        raise ValueError(f"{found[3]!r} cannot be a limit; {HOW}")
    return Condition(found[1], PRINTED.get(found[2], found[2]), limit)


# -- objects given from Python -----------------------------------------------------------------------------------------

PYTHON_ROWS = "python:rows"
"""Source of prompts, or of an evaluation set, whose rows were passed from Python."""

PYTHON_MODEL = "python:model"
"""model.source of a run whose model was passed from Python, until it is saved in the run folder."""


@dataclass(frozen=True)
class Materials:
    """Python objects passed to `cohort.train`, which a recipe can only name."""

    rows: Iterable[Mapping[str, Any]] | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    monitors: Sequence[Any] = ()
    sets: Mapping[str, Iterable[Mapping[str, Any]]] = field(default_factory=dict)
    """Rows of the evaluation sets whose source is PYTHON_ROWS."""
    model: tuple[Any, Any] | None = None
    """A loaded model to start from, and its tokenizer."""
