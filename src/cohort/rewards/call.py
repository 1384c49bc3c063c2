"""One call of one reward function: its arguments, its reply entry by entry, its faults, and the messages to and from a worker.

Used in the worker process and, for functions that cannot be imported in a worker, in the trainer, so that a reward means the same in
both. Imports nothing heavy: workers start with it.
"""

from __future__ import annotations

import inspect
import math
import numbers
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cohort.base.text import write_count
from cohort.base.trees import copy_value
from cohort_verify.text import INFRASTRUCTURE, LIMIT_KINDS, shorten, show_value

CALLBACKS = ("trainer_state", "log_extra", "log_metric", "log_verdict")

ENVIRONMENTS = "environments"
OFFERED = ("prompts", "completions", "completion_ids", ENVIRONMENTS, *CALLBACKS)
"""Arguments that every reward function can take besides the columns of the rows: TRL's names, and log_verdict."""

Steps = tuple[tuple[int, float], ...]
"""Step rewards of one completion: (number of characters up to and including the end of a step, reward), in order."""

FAULT_KINDS = ("exception", "type", "length", "nan", "position", "crash", INFRASTRUCTURE)
"""Faults of the function, or of a service that it relies on: the completion is unscored."""
VERDICT = re.compile(r"[a-z][a-z_]{0,29}")

LARGEST = 1e18
"""A larger reward counts as infinite: variances and a critic's errors square it, and in float32 the square of 1e20 is infinite."""


# ---------------------------------------------------------------------------------------------------------------------
# The function
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """The arguments and attributes of a reward function, as plain data: a worker sends it to the trainer."""

    accepted: Sequence[str]
    required: Sequence[str]
    takes_any: bool
    reads: Sequence[str] | None
    per_completion: bool
    is_async: bool
    has_extract: bool
    supervised: bool
    """It limits its own processes, or only waits for the network: called in the trainer, without a limit."""
    has_unusable: bool
    jailed: bool
    """It passes model text to this machine's jail."""

    @classmethod
    def read(cls, function: Callable[..., Any]) -> Signature:
        reads = getattr(function, "reads", None)
        return cls(
            *read_parameters(function),
            reads=None if reads is None else [str(name) for name in reads],
            per_completion=bool(getattr(function, "per_completion", False)),
            is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__),
            has_extract=callable(getattr(function, "extract", None)),
            supervised=bool(getattr(function, "supervised", False)),
            has_unusable=callable(getattr(function, "unusable", None)),
            jailed=bool(getattr(function, "jailed", False)),
        )

    @property
    def is_strict(self) -> bool:
        """Whether the function declares all names that it uses: any other name is a mistake."""
        return self.reads is not None or not self.takes_any

    def list_arguments(self, columns: Iterable[str], bound: Iterable[str]) -> list[str]:
        """Names to pass: those in `reads`, else its parameters, else (with **kwargs) all that are available.

        log_verdict is passed only to functions that name it: functions written for TRL may pass their **kwargs on.
        """
        available = [*OFFERED, *columns]
        if self.reads is not None:
            wanted: Iterable[str] = (*self.reads, *(name for name in CALLBACKS if name in self.accepted))
        elif self.takes_any:
            wanted = [name for name in available if name != "log_verdict" or name in self.accepted]
        else:
            wanted = self.accepted
        return [name for name in dict.fromkeys(wanted) if name in available and name not in bound]


def read_parameters(function: Callable[..., Any]) -> tuple[list[str], list[str], bool]:
    """(accepted names, names without a default, whether it accepts any name)."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature
        return [], [], True
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [p.name for p in named if p.default is p.empty]
    return [p.name for p in named], required, any(p.kind is p.VAR_KEYWORD for p in found)


def pick_accepted(function: Callable[..., Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the function accepts."""
    accepted, _, takes_any = read_parameters(function)
    return {name: value for name, value in args.items() if takes_any or name in accepted}


# ---------------------------------------------------------------------------------------------------------------------
# The reply
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RewardEntry:
    """The reward of one completion, or the reason for having none."""

    value: float | None = None
    """The reward; of step rewards, their mean. None: no opinion, or a fault."""
    steps: Steps | None = None
    """The step rewards, if the function returned a list of them."""
    fault: str | None = None
    """One of FAULT_KINDS or LIMIT_KINDS; None if the value is usable."""
    detail: str = ""
    """The fault as a message."""
    verdict: str = ""
    """The verdict that the function logged ("wrong", "no_answer", "timeout", ...); empty if it logged none."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Values that the function logged about the completion, by column."""

    @property
    def has_more_than_value(self) -> bool:
        return bool(self.fault or self.verdict or self.extras or self.detail or self.steps is not None)

    @property
    def is_broken(self) -> bool:
        """Whether the function itself was at fault."""
        return self.fault is not None and self.fault not in LIMIT_KINDS


@dataclass(frozen=True)
class Answered:
    """The function returned one entry per completion; single entries may still be faults."""

    entries: list[RewardEntry]
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """All logged values, by name."""
    dropped: int = 0
    """Number of unusable logged values."""


@dataclass(frozen=True)
class Failed:
    """The whole call gave nothing: one of FAULT_KINDS, or "timeout"."""

    kind: str
    detail: str

    @property
    def has_wrong_form(self) -> bool:
        """Whether the function returned something other than a list of scores: calls for single completions would not help."""
        return self.kind in ("type", "length")

    @property
    def entry(self) -> RewardEntry:
        """The entry of a completion if the call is not repeated: 0 after a limit, otherwise unscored."""
        if self.kind in LIMIT_KINDS:
            return RewardEntry(0.0, fault=self.kind, verdict="" if self.kind == "timeout" else self.kind)
        return RewardEntry(fault=self.kind, detail=self.detail)


PAIRS = (
    "return a finite float or None, or a list of (position, reward) pairs, one per step, where the position is the number "
    "of characters up to and including the end of the step."
)


def read_entry(returned: Any, length: int) -> RewardEntry:
    """One entry of the returned list, for a completion of `length` characters."""
    if type(returned) is not float and is_listed(returned):
        return read_steps(returned, length)
    value, fault = read_value(returned)
    if fault is None:
        return RewardEntry(value)
    return RewardEntry(
        fault=fault,
        detail=f"it returned {describe_value(returned)} for a completion; return a finite float, at most {LARGEST:g}, or None.",
    )


def read_steps(returned: Any, length: int) -> RewardEntry:
    """The entry of a list of step rewards. An empty list is one step, at the end, worth 0.

    Without that, a completion without steps would escape the mean that wrong steps lower.
    """
    size, low = write_count(length, "character"), min(1, length)  # the end of an empty completion is position 0
    steps: list[tuple[int, float]] = []
    for pair in unpack_values(returned):
        items = unpack_values(pair) if is_listed(pair) else []
        if len(items) != 2:
            return RewardEntry(
                fault="type", detail=f"it returned {describe_value(returned)} for a completion of {size}; {PAIRS}"
            )
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
    # Sums, metrics and the threshold use the mean.
    return RewardEntry(math.fsum(reward for _, reward in found) / len(found), found)


def read_value(returned: Any) -> tuple[float | None, str | None]:
    """(value, kind of fault). Numpy scalars and 0-d tensors are numbers; a string that looks like one is not."""
    if type(returned) is float:  # the usual case
        return (returned, None) if abs(returned) <= LARGEST else (None, "nan")
    returned = unpack_scalar(returned)
    if returned is None:
        return None, None
    if not isinstance(returned, numbers.Real):
        return None, "type"
    try:
        value = float(returned)
    except OverflowError:
        return None, "nan"
    return (value, None) if abs(value) <= LARGEST else (None, "nan")  # comparisons with NaN are false


def read_integer(value: Any) -> int | None:
    """An integer, also from numpy or a 0-d array; None for anything else, such as True and 12.0."""
    if type(value) is int:
        return value
    value = unpack_scalar(value)
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def unpack_scalar(value: Any) -> Any:
    """The number in a 0-d array or tensor; other values unchanged."""
    is_boxed = not isinstance(value, numbers.Real) and getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_boxed else value


def unpack_values(values: Any) -> list[Any]:
    """The values as a list; arrays and tensors are converted at once, since reading single elements is slow."""
    return values.tolist() if hasattr(values, "tolist") and getattr(values, "shape", ()) != () else list(values)


def is_listed(value: Any) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "shape", ()) != ())


def describe_value(value: Any) -> str:
    return f"{type(value).__name__} {show_value(value)}"


# ---------------------------------------------------------------------------------------------------------------------
# The call
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainerState:
    """The fields of transformers' TrainerState that apply here. A run counts as one epoch."""

    global_step: int
    """Steps completed before this one, as in transformers: 0 while the first step is scored."""
    max_steps: int
    epoch: float
    num_train_epochs: int = 1
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True

    @classmethod
    def for_step(cls, step: int, num_steps: int) -> TrainerState:
        done = max(step - 1, 0)
        return cls(global_step=done, max_steps=num_steps, epoch=done / num_steps if num_steps else 0.0)


@dataclass(frozen=True)
class RewardCall:
    """The arguments of a call for some of the completions."""

    arguments: Mapping[str, Any]
    lengths: Sequence[int]
    """Characters of each completion: the limit of step positions."""
    state: TrainerState
    names: Sequence[str]
    """All arguments by name; trainer_state, log_extra, log_metric and log_verdict among them are created for the call."""

    def copy(self) -> RewardCall:
        """The call with a copy of every value for each completion, as after JSON on the way to a worker."""
        own = {
            name: [copy_value(one) for one in value] if type(value) is list else copy_value(value)
            for name, value in self.arguments.items()
        }
        return replace(self, arguments=own)


class EnvironmentView:
    """An environment after its episode: its plain attributes, read-only. The instance itself may be in another process."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.__dict__.update(attributes)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: an environment is read-only in a reward function")

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(one for one in vars(self) if not one.startswith("_"))
        raise AttributeError(
            f"{name}: reward functions see the plain public attributes of an environment ({known or 'it has none'})"
        )


EPISODE_REWARD = "_reward"


def environment(completions: Sequence[Any], environments: Sequence[EnvironmentView] = ()) -> list[float | None]:
    """What `get_reward` of each environment returned; None for a class without it, and for texts that are no episodes."""
    return [getattr(one, EPISODE_REWARD) for one in environments] or [None] * len(completions)


class CallLog:
    """Collects the values that a function logs with log_extra, log_metric and log_verdict.

    It counts misuse and never raises. `on_verdict` is called for the first verdict of each completion, for progress.
    """

    def __init__(self, on_verdict: Callable[[], None] | None = None) -> None:
        self.on_verdict = on_verdict
        self.verdicts: dict[int, tuple[str, str]] = {}
        self.columns: dict[str, list[Any]] = {}
        self.values: dict[str, list[float]] = {}
        self.dropped = 0

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        try:
            self.columns.setdefault(str(column), []).extend(copy_value(make_plain(value)) for value in unpack_values(values))
        except Exception:
            self.dropped += 1

    def log_metric(self, name: str, value: Any) -> None:
        """Log one or several numbers: the step's metric is the mean over all calls."""
        for one in unpack_values(value) if is_listed(value) else [value]:
            number, _ = read_value(one)
            if number is None:
                self.dropped += 1
            else:
                self.values.setdefault(str(name), []).append(number)

    def log_verdict(self, row: Any, verdict: Any, detail: Any = "") -> None:
        """Log the verdict on one completion, in one word. "infrastructure" removes its score."""
        try:
            position = read_integer(row)
            if position is None or not VERDICT.fullmatch(verdict):
                self.dropped += 1
                return
            first = position not in self.verdicts
            self.verdicts[position] = (str(verdict), str(detail))
            if first and self.on_verdict is not None:
                self.on_verdict()
        except Exception:
            self.dropped += 1

    def complete_reply(self, entries: Sequence[RewardEntry]) -> Answered:
        """The entries with their logged values. A column with another number of values is dropped."""
        extras = {column: values for column, values in self.columns.items() if len(values) == len(entries)}
        self.dropped += len(self.columns) - len(extras) + sum(not 0 <= row < len(entries) for row in self.verdicts)
        if not (self.verdicts or extras or any(entry.detail for entry in entries)):
            return Answered(list(entries), self.values, self.dropped)
        completed = []
        for row, entry in enumerate(entries):
            verdict, detail = self.verdicts.get(row, ("", ""))
            if verdict == INFRASTRUCTURE and entry.fault is None:
                entry = RewardEntry(fault=INFRASTRUCTURE, detail=detail or "a service that it relies on failed")
            logged = {column: values[row] for column, values in extras.items()}
            detail = shorten(entry.detail) if entry.detail else ""
            completed.append(RewardEntry(entry.value, entry.steps, entry.fault, detail, verdict, logged))
        return Answered(completed, self.values, self.dropped)


def call_reward(
    function: Callable[..., Any],
    call: RewardCall,
    await_result: Callable[[Awaitable[Any]], Any],
    on_verdict: Callable[[], None] | None = None,
    let_through: tuple[type[BaseException], ...] = (),
) -> Answered | Failed:
    """Call the function and read its reply. `let_through`: exceptions that concern the run, not these completions, and end it."""
    log, lengths = CallLog(on_verdict), call.lengths
    expected = f"for {write_count(len(lengths), 'completion')}; {EXPECTED}"
    given = {"trainer_state": call.state} | {name: getattr(log, name) for name in CALLBACKS[1:]}
    try:
        arguments = dict(call.arguments)
        if ENVIRONMENTS in arguments:
            arguments[ENVIRONMENTS] = [EnvironmentView(one) for one in arguments[ENVIRONMENTS]]
        result = function(**arguments, **{name: given[name] for name in call.names if name in given})
        if inspect.isawaitable(result):
            result = await_result(result)
        if not has_entries(result):
            return Failed("type", shorten(f"it returned {describe_value(result)} {expected}"))
        entries = unpack_values(result)
        if len(entries) != len(lengths):
            return Failed("length", f"it returned {len(entries)} values {expected}")
        return log.complete_reply([read_entry(returned, length) for returned, length in zip(entries, lengths, strict=True)])
    except let_through:
        raise
    # Everything: sys.exit() in a reward function is a fault too, and must not end the run or the worker.
    except BaseException as problem:
        return Failed("exception", shorten(format_problem(problem)))


EXPECTED = "return a list with one float or None per completion (or, for its steps, a list of (position, reward) pairs)."


def has_entries(result: Any) -> bool:
    """Whether the returned object is a sequence of values."""
    if isinstance(result, str | bytes | Mapping | set | frozenset) or getattr(result, "shape", None) == ():
        return False
    try:
        iter(result)
    except TypeError:
        return False
    return True


def extract_answers(
    function: Callable[..., Any], texts: Sequence[str], args: Mapping[str, Any]
) -> tuple[list[str | None], int]:
    """(answers, number of failed extractions). Extraction serves votes and logs; its failures never change a score."""
    extract: Callable[..., Any] = function.extract  # type: ignore[attr-defined]
    bound = pick_accepted(extract, args)
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


def format_problem(problem: BaseException) -> str:
    """The traceback from the reward function on, without the frames of the runner."""
    frames = problem.__traceback__
    return "".join(traceback.format_exception(type(problem), problem, frames.tb_next if frames and frames.tb_next else frames))


# ---------------------------------------------------------------------------------------------------------------------
# Messages of a worker
# ---------------------------------------------------------------------------------------------------------------------


def to_message(reply: Answered | Failed) -> dict[str, Any]:
    """Plain data for JSON. An entry without further fields is just its value."""
    if isinstance(reply, Failed):
        return vars(reply)
    return vars(reply) | {"entries": [vars(entry) if entry.has_more_than_value else entry.value for entry in reply.entries]}


def from_message(message: Any, lengths: Sequence[int]) -> Answered | Failed | None:
    """A worker's reply on completions of these lengths, checked entry by entry. None: malformed.

    The worker has processed model output, so it is not trusted: positions are checked again, and the mean of step rewards is
    computed here.
    """
    try:
        if message.get("kind") in FAULT_KINDS:
            return Failed(message["kind"], shorten(str(message["detail"])))
        entries = [
            check_entry(length, **entry) if type(entry) is dict else check_value(entry)
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


def check_value(value: Any) -> RewardEntry:
    """An entry that a worker sent as a bare value; ValueError if it is malformed."""
    if value is not None and not (type(value) is float and abs(value) <= LARGEST):
        raise ValueError("malformed")
    return RewardEntry(value)


def check_entry(length: int, *, value: Any, steps: Any, fault: Any, detail: Any, verdict: Any, extras: Any) -> RewardEntry:
    """An entry that a worker sent with all fields; ValueError if it is malformed."""
    if fault in FAULT_KINDS and value is steps is None:
        entry = RewardEntry(fault=fault, detail=shorten(str(detail)))
    else:
        entry = read_entry(value if steps is None else steps, length)
    well_formed = (
        entry.fault == fault
        and (value is None or is_finite_number(value))
        and steps != []
        and (verdict == "" or VERDICT.fullmatch(verdict))
        and isinstance(extras, dict)
    )
    if not well_formed:
        raise ValueError("malformed")
    return replace(entry, verdict=verdict, extras=extras) if verdict or extras else entry


def is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON returns exactly this value: no tuples, no integer keys, no arrays, no subclasses of str."""
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
    """A logged value as plain data; values that JSON cannot represent become their repr."""
    if is_plain(value):
        return value
    number, _ = read_value(value)
    return repr(value) if number is None else number
