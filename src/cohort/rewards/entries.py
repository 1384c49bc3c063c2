"""What a reward function says of each completion: read entry by entry, and carried from the worker to the trainer.

Used on both sides, in the worker process and in the trainer. Imports nothing heavy: workers start with it.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cohort.base.text import write_count
from cohort_verify.text import INFRASTRUCTURE, LIMIT_KINDS, shorten, show_value

Steps = tuple[tuple[int, float], ...]
"""What a process reward says of one completion: (characters up to and including the end of a step, reward), in order."""

FAULT_KINDS = ("exception", "type", "length", "nan", "position", "crash", INFRASTRUCTURE)
"""Faults of the function, or of what it relies on: the completion is unscored."""
VERDICT_WORD = re.compile(r"[a-z][a-z_]{0,29}")

LARGEST = 1e18
"""A reward beyond counts as infinite: variances and the errors of a critic square it, in float32, where 1e20 squared is infinite."""


@dataclass(frozen=True)
class RewardEntry:
    """What the function says of one completion, or why that cannot be used."""

    value: float | None = None
    """The reward; of step rewards, their mean. None: no opinion, or a fault."""
    steps: Steps | None = None
    """The step rewards where the function gave a list of them."""
    fault: str | None = None
    """One of FAULT_KINDS or LIMIT_KINDS; None where the value can be used."""
    detail: str = ""
    """The fault in words."""
    word: str = ""
    """What became of the completion ("wrong", "no_answer", "timeout", ...); empty where the function says nothing."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What the function logged of the completion, by column."""

    @property
    def says_more(self) -> bool:
        """Whether there is anything beside the value."""
        return bool(self.fault or self.word or self.extras or self.detail or self.steps is not None)

    @property
    def is_broken(self) -> bool:
        """Whether the function itself was at fault."""
        return self.fault is not None and self.fault not in LIMIT_KINDS


@dataclass(frozen=True)
class Answered:
    """The function gave one entry per completion; single entries may still be faults."""

    entries: list[RewardEntry]
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """All that was logged under each name."""
    dropped: int = 0
    """Logged values that could not be used."""


@dataclass(frozen=True)
class Failed:
    """The call as a whole gave nothing: one of FAULT_KINDS, or "timeout"."""

    kind: str
    detail: str

    @property
    def has_wrong_form(self) -> bool:
        """Whether the function came back with something that is no list of scores: a call for one completion could only hide it."""
        return self.kind in ("type", "length")

    @property
    def entry(self) -> RewardEntry:
        """What a completion is left with if the call is not repeated: at a limit a score of 0, else none."""
        if self.kind in LIMIT_KINDS:
            return RewardEntry(0.0, fault=self.kind, word="" if self.kind == "timeout" else self.kind)
        return RewardEntry(fault=self.kind, detail=self.detail)


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------

PAIRS = (
    "return a finite float or None, or a list of (position, reward) pairs, one per step, where the position is the number "
    "of characters up to and including the end of the step."
)


def read_entry(said: Any, length: int) -> RewardEntry:
    """One entry of the returned list, for a completion of `length` characters."""
    if type(said) is not float and is_listed(said):
        return read_steps(said, length)
    value, fault = read_value(said)
    if fault is None:
        return RewardEntry(value)
    return RewardEntry(
        fault=fault,
        detail=f"it returned {describe_value(said)} for a completion; return a finite float, at most {LARGEST:g}, or None.",
    )


def read_steps(said: Any, length: int) -> RewardEntry:
    """No pairs at all means that no step was found, which is the completion's doing: one step, at its end, worth 0.

    Without that, a completion without steps would escape the mean that wrong steps lower.
    """
    size, low = write_count(length, "character"), min(1, length)  # the end of an empty completion is position 0
    steps: list[tuple[int, float]] = []
    for pair in unpack_values(said):
        items = unpack_values(pair) if is_listed(pair) else []
        if len(items) != 2:
            return RewardEntry(fault="type", detail=f"it returned {describe_value(said)} for a completion of {size}; {PAIRS}")
        position, last = read_integer(items[0]), steps[-1][0] if steps else low - 1
        if position is None or not last < position <= length:
            kind = f" ({type(items[0]).__name__})" if position is None else ""
            order = f" after one at position {last}" if steps else ""
            return RewardEntry(
                fault="position",
                detail=f"it gave a step reward at position {show_value(items[0])}{kind}{order}, but the completion has {size}; a "
                "position is an integer, the number of characters up to and including the end of the step, from "
                f"{low} to {length}; give the steps in the order of the text, each position once.",
            )
        reward, fault = read_value(items[1])
        if reward is None:
            return RewardEntry(
                fault=fault or "type",
                detail=f"it gave the reward {describe_value(items[1])} to the step at position {position} of a completion with "
                f"{size}; the reward of a step is a finite number.",
            )
        steps.append((position, reward))
    found = tuple(steps) or ((length, 0.0),)
    # The one number a list of step rewards stands for: in sums, metrics and against the threshold.
    return RewardEntry(math.fsum(reward for _, reward in found) / len(found), found)


def read_value(said: Any) -> tuple[float | None, str | None]:
    """(value, fault kind). Numpy scalars and 0-d tensors are numbers; a string that looks like one is not."""
    if type(said) is float:  # what nearly all functions give
        return (said, None) if abs(said) <= LARGEST else (None, "nan")
    said = unpack_scalar(said)
    if said is None:
        return None, None
    if not isinstance(said, numbers.Real):
        return None, "type"
    try:
        value = float(said)
    except OverflowError:
        return None, "nan"
    return (value, None) if abs(value) <= LARGEST else (None, "nan")  # NaN compares as false


def read_integer(value: Any) -> int | None:
    """An integer, a numpy one or an array of one included; True and 12.0 are none."""
    if type(value) is int:
        return value
    value = unpack_scalar(value)
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def unpack_scalar(value: Any) -> Any:
    """The number inside of a 0-d array or tensor; anything else as it is."""
    is_boxed = not isinstance(value, numbers.Real) and getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_boxed else value


def unpack_values(values: Any) -> list[Any]:
    """A list; arrays and tensors are converted at once, since their single elements are slow to read."""
    return values.tolist() if hasattr(values, "tolist") and getattr(values, "shape", ()) != () else list(values)


def is_listed(value: Any) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "shape", ()) != ())


# ---------------------------------------------------------------------------------------------------------------------
# Messages
# ---------------------------------------------------------------------------------------------------------------------


def to_message(reply: Answered | Failed) -> dict[str, Any]:
    """Plain data for JSON. An entry that says no more than its value is that value."""
    if isinstance(reply, Failed):
        return vars(reply)
    return vars(reply) | {"entries": [vars(entry) if entry.says_more else entry.value for entry in reply.entries]}


def from_message(message: Any, lengths: Sequence[int]) -> Answered | Failed | None:
    """A worker's reply on completions of these lengths, checked entry by entry. None: malformed.

    The worker has handled model output, so it is not trusted: positions are held against the text again, and the mean
    of step rewards is taken here.
    """
    try:
        if message.get("kind") in FAULT_KINDS:
            return Failed(message["kind"], shorten(str(message["detail"])))
        entries = [
            reread_entry(length, **entry) if type(entry) is dict else reread_value(entry)
            for entry, length in zip(message["entries"], lengths, strict=True)
        ]
        logged = message["metrics"].values()
        if not all(values and all(map(is_finite_number, values)) for values in logged) or not isinstance(
            message["dropped"], int
        ):
            return None
        return Answered(entries, message["metrics"], message["dropped"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def reread_value(value: Any) -> RewardEntry:
    """An entry that is its value alone, as a worker sends it; ValueError as below."""
    if value is not None and not (type(value) is float and abs(value) <= LARGEST):
        raise ValueError("malformed")
    return RewardEntry(value)


def reread_entry(length: int, *, value: Any, steps: Any, fault: Any, detail: Any, word: Any, extras: Any) -> RewardEntry:
    """One entry as a worker sends it; ValueError where no worker of ours sends such a thing."""
    if fault in FAULT_KINDS and value is steps is None:
        entry = RewardEntry(fault=fault, detail=shorten(str(detail)))
    else:
        entry = read_entry(value if steps is None else steps, length)
    well_formed = (
        entry.fault == fault
        and (value is None or is_finite_number(value))
        and steps != []
        and (word == "" or VERDICT_WORD.fullmatch(word))
        and isinstance(extras, dict)
    )
    if not well_formed:
        raise ValueError("malformed")
    return replace(entry, word=word, extras=extras) if word or extras else entry


def is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON gives back exactly this value: no tuples, no integer keys, no arrays, no subclasses of str."""
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() < 10_000)
    if kind in (str, float, bool) or value is None:
        return True
    if depth > 50:
        return False
    if kind is list:
        return all(is_plain(item, depth + 1) for item in value)
    return kind is dict and all(type(key) is str and is_plain(item, depth + 1) for key, item in value.items())


def make_plain(value: Any) -> Any:
    """A logged value as plain data; what JSON has no word for becomes its repr."""
    if is_plain(value):
        return value
    number, _ = read_value(value)
    return repr(value) if number is None else number


# ---------------------------------------------------------------------------------------------------------------------
# Words
# ---------------------------------------------------------------------------------------------------------------------


def describe_value(value: Any) -> str:
    return f"{type(value).__name__} {show_value(value)}"
