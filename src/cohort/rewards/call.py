"""One call of one reward function: what it is offered, how its answer is read, what counts as its fault.

Used on both sides, in the worker process and in the trainer for functions that cannot be imported elsewhere, so that
a reward means the same wherever it runs. Imports nothing heavy: workers start with it.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cohort.base.text import write_count
from cohort.base.trees import copy_value
from cohort.rewards.entries import (
    INFRASTRUCTURE,
    VERDICT_WORD,
    Answered,
    Failed,
    RewardEntry,
    describe_value,
    is_listed,
    make_plain,
    read_entry,
    read_integer,
    read_value,
    shorten,
    unpack_values,
)

CALLBACKS = ("trainer_state", "log_extra", "log_metric", "log_verdict")

OFFERED = ("prompts", "completions", "completion_ids", *CALLBACKS)
"""What every reward function can ask for beside the columns of the rows; TRL's names, and log_verdict."""


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
    def for_step(cls, step: int, num_steps: int) -> TrainerState:
        done = max(step - 1, 0)
        return cls(global_step=done, max_steps=num_steps, epoch=done / num_steps if num_steps else 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# The function
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """What a function accepts, as plain data: the trainer learns it from the worker that imported the function."""

    accepted: Sequence[str]
    required: Sequence[str]
    takes_any: bool
    reads: Sequence[str] | None
    per_completion: bool
    is_async: bool
    has_extract: bool
    supervised: bool
    """It runs and limits processes of its own, or only waits for the network: called in the trainer, without a limit."""
    has_unusable: bool
    jailed: bool
    """It hands model text to the jail of this machine."""

    @classmethod
    def read(cls, function: Callable[..., Any]) -> Signature:
        accepted, required, takes_any = read_parameters(function)
        reads = getattr(function, "reads", None)
        return cls(
            accepted=accepted,
            required=required,
            takes_any=takes_any,
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
        """Whether the function says itself which names it uses: no other can be meant for it."""
        return self.reads is not None or not self.takes_any

    def list_asked(self, columns: Iterable[str], bound: Iterable[str]) -> list[str]:
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


def read_parameters(function: Callable[..., Any]) -> tuple[list[str], list[str], bool]:
    """(names it accepts, those without a default, whether it takes any name)."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature
        return [], [], True
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [p.name for p in named if p.default is p.empty]
    return [p.name for p in named], required, any(p.kind is p.VAR_KEYWORD for p in found)


def pick_accepted(function: Callable[..., Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that the function accepts."""
    accepted, _, takes_any = read_parameters(function)
    return {name: value for name, value in args.items() if takes_any or name in accepted}


# ---------------------------------------------------------------------------------------------------------------------
# The call
# ---------------------------------------------------------------------------------------------------------------------


class CallLog:
    """Collects what a function reports through log_extra, log_metric and log_verdict.

    An observer: it counts misuse and never raises. on_verdict is told of every verdict as it comes, for progress.
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
        """A number, or several: the mean of all that is logged in a step is written, however the step was cut into calls."""
        for one in unpack_values(value) if is_listed(value) else [value]:
            number, _ = read_value(one)
            if number is None:
                self.dropped += 1
            else:
                self.values.setdefault(str(name), []).append(number)

    def log_verdict(self, row: Any, word: Any, detail: Any = "") -> None:
        """What became of one completion, in a word. "infrastructure" takes its score away."""
        try:
            position = read_integer(row)
            if position is None or not VERDICT_WORD.fullmatch(word):
                self.dropped += 1
                return
            first = position not in self.verdicts
            self.verdicts[position] = (str(word), str(detail))
            if first and self.on_verdict is not None:
                self.on_verdict()
        except Exception:
            self.dropped += 1

    def complete_answer(self, entries: Sequence[RewardEntry]) -> Answered:
        """The entries with what was logged of each. A column with any other number of values cannot be attributed."""
        extras = {column: values for column, values in self.columns.items() if len(values) == len(entries)}
        self.dropped += len(self.columns) - len(extras) + sum(not 0 <= row < len(entries) for row in self.verdicts)
        if not (self.verdicts or extras or any(entry.detail for entry in entries)):
            return Answered(list(entries), self.values, self.dropped)
        completed = []
        for row, entry in enumerate(entries):
            word, detail = self.verdicts.get(row, ("", ""))
            if word == INFRASTRUCTURE and entry.fault is None:
                entry = RewardEntry(fault=INFRASTRUCTURE, detail=detail or "what it relies on failed")
            logged = {column: values[row] for column, values in extras.items()}
            detail = shorten(entry.detail) if entry.detail else ""
            completed.append(RewardEntry(entry.value, entry.steps, entry.fault, detail, word, logged))
        return Answered(completed, self.values, self.dropped)


@dataclass(frozen=True)
class RewardCall:
    """What a function is called with, for some of the completions."""

    arguments: Mapping[str, Any]
    lengths: Sequence[int]
    """Characters of the completions: what the positions of step rewards are held against."""
    state: TrainerState
    names: Sequence[str]
    """All that it is given by name; of these, trainer_state, log_extra, log_metric and log_verdict are made for the call."""

    def copy(self) -> RewardCall:
        """The call with a copy of every value for each completion, as the JSON sent to a worker makes them."""
        own = {
            name: [copy_value(one) for one in value] if type(value) is list else copy_value(value)
            for name, value in self.arguments.items()
        }
        return replace(self, arguments=own)


def call_reward(
    function: Callable[..., Any],
    call: RewardCall,
    await_result: Callable[[Awaitable[Any]], Any],
    on_verdict: Callable[[], None] | None = None,
    let_through: tuple[type[BaseException], ...] = (),
) -> Answered | Failed:
    """Make the call. `let_through`: exceptions that are not about these completions but about the run, and end it."""
    log, lengths = CallLog(on_verdict), call.lengths
    expected = f"for {write_count(len(lengths), 'completion')}; {EXPECTED}"
    given = {"trainer_state": call.state} | {name: getattr(log, name) for name in CALLBACKS[1:]}
    try:
        result = function(**call.arguments, **{name: given[name] for name in call.names if name in given})
        if inspect.isawaitable(result):
            result = await_result(result)
        if not has_entries(result):
            return Failed("type", shorten(f"it returned {describe_value(result)} {expected}"))
        entries = unpack_values(result)
        if len(entries) != len(lengths):
            return Failed("length", f"it returned {len(entries)} values {expected}")
        return log.complete_answer([read_entry(said, length) for said, length in zip(entries, lengths, strict=True)])
    except let_through:
        raise
    # Everything: sys.exit() inside a reward function is its fault too, and must not end the run or the worker.
    except BaseException as problem:
        return Failed("exception", shorten(format_problem(problem)))


EXPECTED = "return a list with one float or None per completion (or, for its steps, a list of (position, reward) pairs)."


def has_entries(result: Any) -> bool:
    """Whether the returned object holds values one by one."""
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
    """(answers, how many extractions failed). Extraction serves votes and logs: it can fail, but never hurt a score."""
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
