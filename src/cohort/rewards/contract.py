"""Data of scoring: a part of the reward, its function and the checks of its arguments, the data of a step, and the verdicts."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cohort.base.importing import NotImportable, is_own, load_function
from cohort.base.trees import copy_value
from cohort.errors import CohortError, RewardError
from cohort.recipe.rules import ENVIRONMENT_REWARD
from cohort.recipe.sections import suggest_nearest
from cohort.rewards import BUILT_IN, built_in
from cohort.rewards.call import (
    ENVIRONMENTS,
    EPISODE_REWARD,
    OFFERED,
    Answered,
    Failed,
    RewardCall,
    RewardEntry,
    Signature,
    TrainerState,
    environment,
    pick_accepted,
    read_parameters,
)
from cohort.rewards.pool import MEMORY_MB
from cohort.types import Completion, Outcome, Prompt
from cohort_verify.text import INFRASTRUCTURE, LIMIT_KINDS

RESERVED = {*OFFERED, "prompt", "completion"}
"""Column names that are not passed as columns; as in TRL."""
PROMPTS = "prompts"
"""Available besides the columns; a parameter of another name can receive it too."""
WALL_ARGUMENT = "wall_s"
"""The argument that passes the part's timeout_s to a supervised function."""
PATTERN_ARGUMENT = "pattern"
"""The argument of Cohort's own rewards that is a regular expression."""
NOT_LOADED_YET = Signature.read(lambda: None)


@dataclass(frozen=True)
class RewardPart:
    """One term of the reward: a function, its weight and its limits."""

    name: str
    function: str | Callable[..., Any]
    """A built-in name, "package.module:function", or the function itself."""
    weight: float = 1.0
    outcome: bool = False
    """This part decides success; if none is marked, the first one does."""
    threshold: float = 0.5
    timeout_s: float = 10.0
    memory_mb: int = 0
    """For the worker and all its child processes; 0: MEMORY_MB."""
    args: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the function -> column of the rows, if the names differ."""


@dataclass(frozen=True)
class Scored:
    """The outcomes and metrics of scored completions."""

    outcomes: list[Outcome]
    metrics: dict[str, float]


class Scorer(Protocol):
    """Reward functions, or a learned model in their place. Input: flat lists of equal length; output: outcomes in their order."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion], *, step: int, num_steps: int) -> Scored: ...


@dataclass
class Bound:
    """A part with its function and what is known about that."""

    part: RewardPart
    place: str
    """Its key in the recipe: "rewards.0"."""
    spec: str | None
    """The name that a worker imports; None: the function runs in the trainer."""
    function: Callable[..., Any] | None
    """The function itself, if it was given or had to be imported in the trainer."""
    signature: Signature = NOT_LOADED_YET
    """Read when the function is imported, in the trainer or in a worker."""
    limits_in_a_row: int = 0
    """Single completions that hit a limit since the function's last answer."""
    seconds: float = 0.0
    """Duration of its calls in the last step."""
    scores_early: bool = True
    """False once calls for some of the completions have not added up to one call for all."""
    extracts: bool = True
    retry_noted: bool = False

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def args(self) -> dict[str, Any]:
        """The recipe's arguments, and the time limit for a supervised function."""
        limited = self.signature.supervised and WALL_ARGUMENT in self.signature.accepted
        return {**self.part.args, **({WALL_ARGUMENT: self.part.timeout_s} if limited else {})}

    @property
    def memory_mb(self) -> int:
        return self.part.memory_mb or MEMORY_MB

    def list_columns(self, columns: Iterable[str]) -> tuple[str, ...]:
        """The names under which the function can receive rows with these columns."""
        return tuple(dict.fromkeys([*columns, *self.part.columns]))

    def load_here(self) -> Callable[..., Any]:
        """The function, imported in this process."""
        if self.function is None:
            assert self.spec is not None
            try:
                self.function = load_function(self.spec)
            except NotImportable as problem:
                raise RewardError(f"{self.place}.function: {problem}") from problem
        return self.function


@dataclass(frozen=True)
class ScoringBatch:
    """The completions of a step, with all arguments that reward functions can take."""

    texts: list[str]
    values: dict[str, list[Any]]
    """prompts, completions, completion_ids and every column, by name."""
    columns: tuple[str, ...]
    state: TrainerState

    @classmethod
    def collect(
        cls, prompts: Sequence[Prompt], completions: Sequence[Completion], names: tuple[str, ...], state: TrainerState
    ) -> ScoringBatch:
        """`names`: columns of all rows of the step; these rows may be a share of them."""
        texts = [completion.text for completion in completions]
        values: dict[str, list[Any]] = {
            "prompts": [prompt.content for prompt in prompts],
            "completions": [
                text
                if not prompt.is_chat
                else [dict(message) for message in one.episode.messages]
                if one.episode
                else [{"role": "assistant", "content": text}]
                for prompt, one, text in zip(prompts, completions, texts, strict=True)
            ],
            "completion_ids": [list(completion.token_ids) for completion in completions],
        }
        if any(completion.episode for completion in completions):
            values[ENVIRONMENTS] = [
                {**one.episode.attributes, EPISODE_REWARD: one.episode.reward} if one.episode else {EPISODE_REWARD: None}
                for one in completions
            ]
        values |= {name: [prompt.columns.get(name) for prompt in prompts] for name in names}
        return cls(texts, values, names, state)

    def make_call(self, bound: Bound, rows: Sequence[int]) -> RewardCall:
        """The call of a part's function for these completions. A parameter can receive a column of another name."""
        names = bound.signature.list_arguments(bound.list_columns(self.columns), bound.args)
        columns = {name: self.values.get(bound.part.columns.get(name, name)) for name in names}
        arguments = {name: [column[row] for row in rows] for name, column in columns.items() if column is not None}
        return RewardCall({**arguments, **bound.args}, [len(self.texts[row]) for row in rows], self.state, names)


@dataclass
class Verdicts:
    """One part's results for every completion of the step."""

    entries: list[RewardEntry]
    logged: dict[str, list[float]] = field(default_factory=dict)
    dropped: int = 0
    retry_detail: str = ""
    """Why a batch call was repeated one completion at a time; shown only if no single call gives a reason."""
    seconds: float = 0.0
    retried: int = 0
    """Completions that were scored one at a time."""
    stopped_early: bool = False

    @classmethod
    def join(cls, shares: Sequence[Verdicts]) -> Verdicts:
        """The verdicts on all completions, from those of each rank's share, in order."""
        if len(shares) == 1:
            return shares[0]
        logged: dict[str, list[float]] = {}
        for share in shares:
            for name, values in share.logged.items():
                logged.setdefault(name, []).extend(values)
        return cls(
            entries=[entry for share in shares for entry in share.entries],
            logged=logged,
            dropped=sum(share.dropped for share in shares),
            retry_detail=next((share.retry_detail for share in shares if share.retry_detail), ""),
            seconds=max(share.seconds for share in shares),
            retried=sum(share.retried for share in shares),
            stopped_early=any(share.stopped_early for share in shares),
        )

    def lose_faulty(self, completions: Sequence[Completion]) -> None:
        """Remove the scores of episodes that ended with a fault of their environment."""
        for row, completion in enumerate(completions):
            if completion.episode and completion.episode.fault:
                detail = (
                    f"environment {completion.episode.environment} ({completion.episode.fault}): {completion.episode.detail}"
                )
                self.entries[row] = RewardEntry(fault=INFRASTRUCTURE, detail=detail)

    def add(self, rows: Sequence[int], reply: Answered | Failed) -> None:
        """Add the final reply to a call for these rows."""
        if isinstance(reply, Failed):
            for row in rows:
                self.entries[row] = reply.entry
            return
        for row, entry in zip(rows, reply.entries, strict=True):
            limited = entry.fault is None and entry.verdict in LIMIT_KINDS
            self.entries[row] = replace(entry, value=0.0, steps=None, fault=entry.verdict) if limited else entry
        for name, values in reply.metrics.items():
            self.logged.setdefault(name, []).extend(values)
        self.dropped += reply.dropped

    @property
    def broken(self) -> list[int]:
        """Rows with a fault of the function."""
        return [row for row, entry in enumerate(self.entries) if entry.is_broken]

    @property
    def detail(self) -> str:
        """The message of the first fault."""
        return next((entry.detail for entry in self.entries if entry.is_broken and entry.detail), self.retry_detail)

    @property
    def timeouts(self) -> int:
        return sum(entry.fault == "timeout" for entry in self.entries)


def bind_function(part: RewardPart, place: str) -> Bound:
    function = part.function
    if callable(function):
        return Bound(part, place, find_spec(function), function)
    if function == ENVIRONMENT_REWARD:
        return Bound(part, place, None, environment)
    if function in BUILT_IN or ":" not in function:
        try:
            found = built_in(function)
        except RewardError as problem:
            raise RewardError(f"{place}.function: {problem}") from None
        return Bound(part, place, find_spec(found), found)
    if function.startswith("python:"):
        raise RewardError(
            f"{place}.function: {function!r} stands for a Python function, which has to be passed again. "
            "Use cohort.resume(run, rewards=[function]); if the function itself has another name, use "
            f'rewards=[{{"function": function, "name": "{function.removeprefix("python:")}"}}].'
        )
    module, _, name = function.partition(":")
    if not module or not name:
        raise RewardError(f'{place}.function: {function!r} is not of the form "package.module:function".')
    return Bound(part, place, function, None)


def find_spec(function: Callable[..., Any]) -> str | None:
    """The name that a worker imports; None for a function that runs in the trainer, such as a supervised one."""
    return None if getattr(function, "supervised", False) else importable_name(function)


def importable_name(function: Callable[..., Any]) -> str | None:
    """ "module:qualname" if importing that gives this very function in another process too, else None."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not qualname or module == "__main__" or "<" in qualname or inspect.ismethod(function):
        return None
    target: Any = sys.modules.get(module)
    for name in qualname.split("."):
        target = getattr(target, name, None)
    return f"{module}:{qualname}" if target is function else None


def check_args(bound: Bound) -> None:
    """Raise RewardError for arguments that the function would ignore or that the runner passes itself."""
    for mistake in find_mistakes(bound):
        raise RewardError(f"{bound.place}.{mistake}")


def find_mistakes(bound: Bound) -> Iterator[str]:
    """Settings of a part that its function cannot use, as messages: "args: reward 'f' needs ..."."""
    signature, part = bound.signature, bound.part
    if signature.supervised and WALL_ARGUMENT not in signature.accepted:
        yield (
            f"function: {part.name!r} is supervised but has no argument {WALL_ARGUMENT!r}, which passes timeout_s, the "
            "time limit of one completion in seconds. Add the argument, and enforce the limit."
        )
    if part.memory_mb and bound.spec is None:
        where = "set its own argument, args.memory_mb" if "memory_mb" in signature.accepted else "leave it out"
        yield f"memory_mb: {part.name!r} runs in the trainer, not in a worker; {where}."
    if problem := find_renaming_problem(signature, part.columns, part.args):
        yield f"columns.{problem}"
    if signature.reads is not None:  # else a column may fill it
        for name in missing_columns(signature.required, signature.reads, bound.args):
            yield f"args: reward {part.name!r} needs the argument {name!r}."
    home = bound.spec or str(getattr(bound.function, "__module__", ""))
    for name, value in part.args.items():
        if name in OFFERED:
            yield f"args.{name}: the runner passes it, so it cannot be set."
        elif name == WALL_ARGUMENT and signature.supervised:
            yield f"args.{name}: set {bound.place}.timeout_s instead; it is passed under this name."
        elif signature.is_strict and name not in signature.accepted:
            hint = suggest_nearest(name, [known for known in signature.accepted if known not in OFFERED]) or "."
            yield f"args: reward {part.name!r} has no argument {name!r}{hint}"
        elif name == PATTERN_ARGUMENT and is_own(home):
            try:
                re.compile(value)
            except (re.error, TypeError, OverflowError, RecursionError) as problem:
                yield f"args.{name}: {value!r} is not a regular expression ({problem})."


def check_columns(bound: Bound, columns: Sequence[str]) -> None:
    """Raise RewardError unless every required argument is a column or is set in the recipe."""
    if problem := find_renamed_problem(bound.part.columns, columns):
        raise RewardError(f"{bound.place}.columns.{problem}")
    available = bound.list_columns(columns)
    for name in missing_columns(bound.signature.required, available, bound.args):
        raise RewardError(
            f"reward {bound.name!r} {describe_missing(name, columns)} To use a column of another name: "
            f"{bound.place}.columns.{name}=COLUMN (the prompt itself is called {PROMPTS})."
        )
    if problem := find_argument_problem(bound.function, bound.part.args, available):
        raise RewardError(f"{bound.place}.args: {problem}.")


def find_unusable_rows(bound: Bound, prompts: Sequence[Prompt]) -> list[tuple[int, str]]:
    """(number of the row, why it can never be scored), for functions with the attribute `unusable`.

    Empty if the rows lack a required column: `check_columns` reports that once, and rows that are never scored need none.
    """
    columns = bound.list_columns(column_names(prompts))
    needs = missing_columns(bound.signature.required, columns, bound.args)
    if not bound.signature.has_unusable or not prompts or needs:
        return []
    check = bound.load_here().unusable  # type: ignore[attr-defined]
    subject = f"{bound.place}.function: `unusable` of {bound.name!r}"
    for name in missing_columns(read_parameters(check)[1], columns, bound.args):
        raise RewardError(f"{subject} {describe_missing(name, columns)}")

    def read_column(name: str) -> list[Any]:
        column = bound.part.columns.get(name, name)
        return [copy_value(prompt.content if column == PROMPTS else prompt.columns.get(column)) for prompt in prompts]

    offered = {name: read_column(name) for name in columns}
    try:
        reasons = list(check(**pick_accepted(check, offered | copy_value(bound.args))))
    except CohortError:
        raise
    except Exception as problem:
        raise RewardError(f"{subject} failed: {type(problem).__name__}: {problem}") from problem
    if len(reasons) != len(prompts):
        raise RewardError(
            f"{subject} returned {len(reasons)} entries for {len(prompts)} rows; return one per row, None for a usable row."
        )
    return [(row, str(reason)) for row, reason in enumerate(reasons) if reason is not None]


def find_renaming_problem(signature: Signature, columns: Mapping[str, str], args: Mapping[str, Any]) -> str:
    """Why a parameter cannot receive a column of another name: "answr: ..."; "" if all can."""
    known = [one for one in (signature.accepted if signature.reads is None else signature.reads) if one not in OFFERED]
    for name in columns:
        if name in OFFERED:
            return f"{name}: the runner passes it, so it cannot be a column."
        if name in args:
            return f"{name}: args sets it too; keep one of them."
        if signature.is_strict and name not in known:
            listed = f"It can read {', '.join(known)}." if known else "It reads no column."
            return f"{name}: the function does not read it{suggest_nearest(name, known) or '.'} {listed}"
    return ""


def find_renamed_problem(renamed: Mapping[str, str], columns: Sequence[str]) -> str:
    """Which parameter should receive a column that no row has; "" if none."""
    for name, column in renamed.items():
        if column not in (*columns, PROMPTS):
            known = list_known(column, columns)
            return f"{name}: the rows have no column {column!r}{known} (the prompt itself is called {PROMPTS})."
    return ""


def column_names(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """The columns that reward functions can receive, in the order of the rows."""
    return tuple(dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in RESERVED))


def missing_columns(required: Sequence[str], columns: Sequence[str], args: Mapping[str, Any]) -> list[str]:
    return [name for name in required if name not in OFFERED and name not in columns and name not in args]


def describe_missing(name: str, columns: Sequence[str]) -> str:
    """The missing column as a sentence without its subject."""
    return f"needs the column {name!r}, which the rows do not have{list_known(name, columns)}."


def list_known(name: str, columns: Sequence[str]) -> str:
    """The end of a sentence about a missing column: the nearest name, and all columns."""
    return f"{suggest_nearest(name, columns) or '.'} Columns: {', '.join(columns) or 'none besides the prompt'}"


def find_argument_problem(function: Callable[..., Any] | None, args: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Why no call with these arguments can succeed, according to the function's `check_arguments(columns, **args)`, which raises
    ValueError; "" if no problem is known."""
    check = getattr(function, "check_arguments", None)
    if check is not None:
        try:
            check(columns, **args)
        except (TypeError, ValueError) as problem:
            return str(problem)
    return ""
