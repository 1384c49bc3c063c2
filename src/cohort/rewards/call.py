"""One call of one reward function: what it is offered, how its answer is read, what counts as its fault.

Used on both sides, in the worker process and in the trainer for functions that cannot be imported elsewhere, so that
a reward means the same wherever it runs. Imports nothing heavy: workers start with it.
"""

from __future__ import annotations

import inspect
import math
import numbers
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cohort.base.importing import load_function as load_function
from cohort.base.text import printable

OFFERED = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "log_verdict")
"""What every reward function can ask for beside the columns of the rows; TRL's names, and log_verdict."""

CALLBACKS = ("trainer_state", "log_extra", "log_metric", "log_verdict")

Steps = tuple[tuple[int, float], ...]
"""What a process reward says of one completion: (characters up to and including the end of a step, reward), in order."""

FAULT_KINDS = ("exception", "type", "length", "nan", "position", "crash", "infrastructure")
"""Faults of the function, or of what it relies on: the completion is unscored."""
LIMIT_KINDS = ("timeout", "memory", "output", "files")
"""Limits that the completion ran into: its own doing, so it scores 0, is counted, and is never a success."""
INFRASTRUCTURE = "infrastructure"
VERDICT_WORD = re.compile(r"[a-z][a-z_]{0,29}")

MAX_DETAIL_CHARS = 8000
LARGEST = 1e18
"""A reward beyond counts as infinite: variances and the errors of a critic square it, in float32, where 1e20 squared is infinite."""


@dataclass(frozen=True)
class TrainerState:
    """The part of transformers' TrainerState that means something here. A run counts as one epoch."""

    global_step: int
    """Steps completed before this one, as in transformers: 0 while the first step is scored."""
    max_steps: int
    epoch: float
    num_train_epochs: int = 1
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True

    @classmethod
    def at(cls, step: int, num_steps: int) -> TrainerState:
        done = max(step - 1, 0)
        return cls(global_step=done, max_steps=num_steps, epoch=done / num_steps if num_steps else 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# The function
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """What a function accepts, as plain data: the trainer learns it from the worker that imported the function."""

    accepted: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool
    reads: tuple[str, ...] | None
    per_completion: bool
    is_async: bool
    has_extract: bool
    supervised: bool = False
    """It runs and limits processes of its own, or only waits for the network: called in the trainer, without a limit."""
    has_unusable: bool = False
    jailed: bool = False
    """It hands model text to the jail of this machine."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        accepted, required, takes_any = parameters(function)
        reads = getattr(function, "reads", None)
        return cls(
            accepted=accepted,
            required=required,
            takes_any=takes_any,
            reads=None if reads is None else tuple(str(name) for name in reads),
            per_completion=bool(getattr(function, "per_completion", False)),
            is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__),
            has_extract=callable(getattr(function, "extract", None)),
            supervised=bool(getattr(function, "supervised", False)),
            has_unusable=callable(getattr(function, "unusable", None)),
            jailed=bool(getattr(function, "jailed", False)),
        )

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Signature:
        return cls(
            accepted=tuple(message["accepted"]),
            required=tuple(message["required"]),
            takes_any=bool(message["takes_any"]),
            reads=None if message["reads"] is None else tuple(message["reads"]),
            per_completion=bool(message["per_completion"]),
            is_async=bool(message["is_async"]),
            has_extract=bool(message["has_extract"]),
            supervised=bool(message["supervised"]),
            has_unusable=bool(message["has_unusable"]),
            jailed=bool(message["jailed"]),
        )

    def asked(self, columns: Iterable[str], bound: Iterable[str]) -> list[str]:
        """Names to pass: those it reads, else those it names, else (with **kwargs) everything there is.

        log_verdict goes only to who names it: functions written for TRL may pass their **kwargs on.
        """
        available = [*OFFERED, *columns]
        if self.reads is not None:
            wanted: Iterable[str] = (*self.reads, *(name for name in CALLBACKS if name in self.accepted))
        elif self.takes_any:
            wanted = [name for name in available if name != "log_verdict" or name in self.accepted]
        else:
            wanted = self.accepted
        return [name for name in dict.fromkeys(wanted) if name in available and name not in bound]


def parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """(names it accepts, those without a default, whether it takes any name)."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature
        return (), (), True
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = tuple(p.name for p in named if p.default is p.empty)
    return tuple(p.name for p in named), required, any(p.kind is p.VAR_KEYWORD for p in found)


# ---------------------------------------------------------------------------------------------------------------------
# The call
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answered:
    """The function gave one entry per completion; single entries may still be faults."""

    values: list[float | None]
    """One number per completion; of step rewards, their mean."""
    steps: list[Steps | None]
    """The step rewards where the entry was a list of them, else None."""
    faults: list[str | None]
    """Kind of the fault, entry by entry; None where the value can be used."""
    detail: str = ""
    """The first fault in words."""
    extras: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    """Logged values that could not be used."""
    verdicts: list[str] = field(default_factory=list)
    """One word per completion ("wrong", "no_answer", "timeout", ...), empty where the function gave none."""


@dataclass(frozen=True)
class Failed:
    """The call as a whole gave nothing: one of FAULT_KINDS, or "timeout"."""

    kind: str
    detail: str

    @property
    def wrong_form(self) -> bool:
        """The function came back with something that is no list of scores. A call for one completion could only hide it."""
        return self.kind in ("type", "length")


class Log:
    """Collects what a function reports through log_extra, log_metric and log_verdict.

    An observer: it counts misuse and never raises. on_verdict is told of every verdict as it comes, for progress.
    """

    def __init__(self, on_verdict: Callable[[], None] | None = None) -> None:
        self.on_verdict = on_verdict
        self.verdicts: dict[int, tuple[str, str]] = {}
        self.columns: dict[str, list[Any]] = {}
        self.values: dict[str, list[float]] = {}
        self.dropped = 0

    def extra(self, column: str, values: Iterable[Any]) -> None:
        try:
            self.columns.setdefault(str(column), []).extend(plain(value) for value in unpacked(values))
        except Exception:
            self.dropped += 1

    def metric(self, name: str, value: Any) -> None:
        number, fault = read_value(value)
        if number is None or fault is not None:
            self.dropped += 1
        else:
            self.values.setdefault(str(name), []).append(number)

    def verdict(self, row: Any, word: Any, detail: Any = "") -> None:
        """What became of one completion, in a word. "infrastructure" takes its score away."""
        try:
            position = whole_number(row)
            if position is None or not VERDICT_WORD.fullmatch(word):
                self.dropped += 1
                return
            first = position not in self.verdicts
            self.verdicts[position] = (str(word), str(detail))
            if first and self.on_verdict is not None:
                self.on_verdict()
        except Exception:
            self.dropped += 1

    def words(self, count: int) -> list[str]:
        self.dropped += sum(not 0 <= row < count for row in self.verdicts)
        return [self.verdicts.get(row, ("", ""))[0] for row in range(count)]

    def extras(self, count: int) -> dict[str, list[Any]]:
        """Columns with one value per completion. Any other length cannot be attributed."""
        kept = {column: values for column, values in self.columns.items() if len(values) == count}
        self.dropped += len(self.columns) - len(kept)
        return kept

    def metrics(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.values.items()}


def call_reward(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    lengths: Sequence[int],
    state: TrainerState,
    names: Iterable[str],
    await_result: Callable[[Awaitable[Any]], Any],
    on_verdict: Callable[[], None] | None = None,
    let_through: tuple[type[BaseException], ...] = (),
) -> Answered | Failed:
    """Call `function` on completions of so many characters.

    `names` says which of trainer_state, log_extra, log_metric, log_verdict it is given. `let_through`: exceptions that are
    not about these completions but about the run, and end it.
    """
    log, count = Log(on_verdict), len(lengths)
    given = {"trainer_state": state, "log_extra": log.extra, "log_metric": log.metric, "log_verdict": log.verdict}
    try:
        result = function(**arguments, **{name: given[name] for name in names if name in given})
        if inspect.isawaitable(result):
            result = await_result(result)
        entries = entries_of(result)
        if isinstance(entries, str):
            return Failed("type", shorten(f"it returned {entries} for {counted(count)}; {EXPECTED}"))
        if len(entries) != count:
            return Failed("length", f"it returned {len(entries)} values for {counted(count)}; {EXPECTED}")
        return answered(entries, lengths, log)
    except let_through:
        raise
    # Everything: sys.exit() inside a reward function is its fault too, and must not end the run or the worker.
    except BaseException as problem:
        return Failed("exception", shorten(readable_traceback(problem)))


EXPECTED = "return a list with one float or None per completion (or, for its steps, a list of (position, reward) pairs)."


def counted(count: int, noun: str = "completion") -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def answered(entries: Sequence[Any], lengths: Sequence[int], log: Log) -> Answered:
    read = [read_entry(entry, length) for entry, length in zip(entries, lengths, strict=True)]
    words = log.words(len(entries))
    for row, word in enumerate(words):
        if word == INFRASTRUCTURE and read[row].fault is None:
            read[row] = Entry(fault=INFRASTRUCTURE, detail=log.verdicts[row][1] or "what it relies on failed")
    return Answered(
        values=[entry.value for entry in read],
        steps=[entry.steps for entry in read],
        faults=[entry.fault for entry in read],
        detail=next((shorten(entry.detail) for entry in read if entry.fault is not None), ""),
        extras=log.extras(len(entries)),
        metrics=log.metrics(),
        dropped=log.dropped,
        verdicts=words,
    )


def entries_of(result: Any) -> list[Any] | str:
    """The returned values one by one, or, for what is not a list of values, its description."""
    if isinstance(result, str | bytes | Mapping | set | frozenset) or result is None or getattr(result, "shape", None) == ():
        return describe(result)
    try:
        iter(result)
    except TypeError:
        return describe(result)
    return unpacked(result)


def unpacked(values: Any) -> list[Any]:
    """A list; arrays and tensors are converted at once, since their single elements are slow to read."""
    return values.tolist() if hasattr(values, "tolist") and getattr(values, "shape", ()) != () else list(values)


def read_value(entry: Any) -> tuple[float | None, str | None]:
    """(value, fault kind). Numpy scalars and 0-d tensors are numbers; a string that looks like one is not."""
    if entry is None:
        return None, None
    if not isinstance(entry, numbers.Real) and getattr(entry, "shape", None) == () and hasattr(entry, "item"):
        entry = entry.item()
    if not isinstance(entry, numbers.Real):
        return None, "type"
    try:
        value = float(entry)
    except OverflowError:
        return None, "nan"
    return (value, None) if abs(value) <= LARGEST else (None, "nan")  # NaN compares as false


# ---------------------------------------------------------------------------------------------------------------------
# One entry
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """What the function says of one completion, or why that cannot be used."""

    value: float | None = None
    steps: Steps | None = None
    fault: str | None = None
    detail: str = ""


PAIRS = (
    "return a finite float or None, or a list of (position, reward) pairs, one per step, where the position is the number "
    "of characters up to and including the end of the step."
)


def read_entry(entry: Any, length: int) -> Entry:
    """One entry of the returned list, for a completion of `length` characters."""
    if is_listed(entry):
        return read_steps(entry, length)
    value, fault = read_value(entry)
    detail = (
        f"it returned {describe(entry)} for a completion; return a finite float, at most {LARGEST:g}, or None." if fault else ""
    )
    return Entry(value, fault=fault, detail=detail)


def read_steps(entry: Any, length: int) -> Entry:
    """No pairs at all means that no step was found, which is the completion's doing: one step, at its end, worth 0.

    Without that, a completion without steps would escape the mean that wrong steps lower.
    """
    steps: list[tuple[int, float]] = []
    for pair in unpacked(entry):
        items = unpacked(pair) if is_listed(pair) else []
        if len(items) != 2:
            return Entry(
                fault="type",
                detail=f"it returned {describe(entry)} for a completion of {counted(length, 'character')}; {PAIRS}",
            )
        position = whole_number(items[0])
        problem = position_problem(items[0], position, steps[-1][0] if steps else None, length)
        if position is None or problem:
            return Entry(fault="position", detail=problem)
        reward, fault = read_value(items[1])
        if reward is None:
            detail = (
                f"it gave the reward {describe(items[1])} to the step at position {position} of a completion with "
                f"{counted(length, 'character')}; the reward of a step is a finite number."
            )
            return Entry(fault=fault or "type", detail=detail)
        steps.append((position, reward))
    found = tuple(steps) or ((length, 0.0),)
    return Entry(mean_reward(found), found)


def position_problem(given: Any, position: int | None, last: int | None, length: int) -> str:
    """What is wrong with a position, in words; empty if nothing is. The end of an empty completion is position 0."""
    said, low = f"it gave a step reward at position {shown(given)}", min(1, length)
    if position is None:
        return (
            f"{said} ({type(given).__name__}) of a completion with {counted(length, 'character')}; a position is an integer, "
            "the number of characters up to and including the end of the step."
        )
    if not low <= position <= length:
        return (
            f"{said}, but the completion has {counted(length, 'character')}; a position is the number of characters up to and "
            f"including the end of the step, from {low} to {length}."
        )
    if last is not None and position <= last:
        return (
            f"{said} after one at position {last}, for a completion with {counted(length, 'character')}; give the steps in the "
            "order of the text, each position once."
        )
    return ""


def whole_number(value: Any) -> int | None:
    """An integer, a numpy one or an array of one included; True and 12.0 are none."""
    if not isinstance(value, numbers.Integral) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def is_listed(value: Any) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "shape", ()) != ())


def mean_reward(steps: Steps) -> float:
    """The one number a list of step rewards stands for: in sums, metrics and against the threshold."""
    return math.fsum(reward for _, reward in steps) / len(steps)


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


def extract_answers(
    function: Callable[..., Any], texts: Sequence[str], args: Mapping[str, Any]
) -> tuple[list[str | None], int]:
    """(answers, how many extractions failed). Extraction serves votes and logs: it can fail, but never hurt a score."""
    extract: Callable[..., Any] = function.extract  # type: ignore[attr-defined]
    accepted, _, takes_any = parameters(extract)
    bound = {name: value for name, value in args.items() if takes_any or name in accepted}
    answers: list[str | None] = []
    failed = 0
    for text in texts:
        try:
            answer = extract(text, **bound)
            usable = answer is None or isinstance(answer, str)
        except Exception:
            answer, usable = None, False
        answers.append(answer if usable else None)
        failed += not usable
    return answers, failed


# ---------------------------------------------------------------------------------------------------------------------
# Plain data
# ---------------------------------------------------------------------------------------------------------------------


def to_message(reply: Answered | Failed) -> dict[str, Any]:
    return asdict(reply)


def from_message(message: Any, lengths: Sequence[int]) -> Answered | Failed | None:
    """A worker's reply on completions of these lengths, checked entry by entry. None: malformed.

    The worker has handled model output, so it is not trusted: positions are held against the text again, and the mean
    of step rewards is taken here.
    """
    if not isinstance(message, dict):
        return None
    if message.get("kind") in FAULT_KINDS:
        return Failed(message["kind"], shorten(str(message.get("detail", ""))))
    count, values, steps, faults = len(lengths), message.get("values"), message.get("steps"), message.get("faults")
    extras, metrics, dropped = message.get("extras"), message.get("metrics"), message.get("dropped")
    words = message.get("verdicts", [""] * count)
    if not (isinstance(values, list) and isinstance(steps, list) and isinstance(faults, list)):
        return None
    if not len(values) == len(steps) == len(faults) == count:
        return None
    if not (isinstance(words, list) and len(words) == count and all(is_verdict(word) for word in words)):
        return None
    if not (isinstance(extras, dict) and isinstance(metrics, dict) and isinstance(dropped, int)):
        return None
    well_formed = (
        all(value is None or is_finite_number(value) for value in values)
        and all(fault is None or fault in FAULT_KINDS for fault in faults)
        and all(isinstance(column, list) and len(column) == count for column in extras.values())
        and all(is_finite_number(value) for value in metrics.values())
    )
    if not well_formed:
        return None
    scores = [None if value is None else float(value) for value in values]
    kept: list[Steps | None] = [None] * count
    for row, (pairs, length) in enumerate(zip(steps, lengths, strict=True)):
        if pairs is None:
            continue
        entry = read_steps(pairs, length) if isinstance(pairs, list) and pairs else Entry(fault="type")
        if entry.fault is not None or faults[row] is not None:
            return None
        scores[row], kept[row] = entry.value, entry.steps
    return Answered(scores, kept, faults, shorten(str(message.get("detail", ""))), extras, metrics, dropped, words)


def is_verdict(word: Any) -> bool:
    return isinstance(word, str) and (not word or VERDICT_WORD.fullmatch(word) is not None)


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


def plain(value: Any) -> Any:
    """A logged value as plain data; what JSON has no word for becomes its repr."""
    if is_plain(value):
        return value
    number, fault = read_value(value)
    return number if number is not None and fault is None else repr(value)


def describe(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"


def shown(value: Any) -> str:
    """Its repr, cut short. What refuses to be shown (an integer of many thousand digits) must not hide the fault."""
    try:
        text = repr(value)
    except Exception:
        return "(it cannot be shown)"
    return text if len(text) <= 100 else text[:100] + "..."


def readable_traceback(problem: BaseException) -> str:
    """The traceback from the reward function on, without the frames of the runner."""
    frames = problem.__traceback__
    return "".join(traceback.format_exception(type(problem), problem, frames.tb_next if frames and frames.tb_next else frames))


def shorten(text: str) -> str:
    """Foreign text as it can be shown: not endless, and without control characters."""
    text = printable(text)
    half = MAX_DETAIL_CHARS // 2
    return text if len(text) <= MAX_DETAIL_CHARS else f"{text[:half]}\n[...]\n{text[-half:]}"
