"""The nouns of scoring: a part of the reward, the function behind it, the arguments of a call, and what came of it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cohort.base.importing import NotImportable, load_function
from cohort.errors import RewardError
from cohort.recipe.section import nearest
from cohort.rewards import BUILT_IN, built_in
from cohort.rewards.call import LIMIT_KINDS, OFFERED, Answered, Failed, Signature, Steps, TrainerState
from cohort.rewards.pool import MEMORY_MB
from cohort.types import Completion, Outcome, Prompt

RESERVED = {*OFFERED, "prompt", "completion"}
"""Column names that are not passed on as columns; as in TRL."""
PROMPTS = "prompts"
"""What is offered beside the columns and may feed a parameter of another name."""
WALL_ARGUMENT = "wall_s"
"""The argument under which a supervised function is told the part's timeout_s."""
PATTERN_ARGS = ("pattern",)
"""Arguments of Cohort's own rewards that are regular expressions."""


@dataclass(frozen=True)
class RewardPart:
    """One reward function and its place in the sum."""

    name: str
    function: str | Callable[..., Any]
    """A built-in name, "package.module:function", or the function itself."""
    weight: float = 1.0
    outcome: bool = False
    """This part decides success; without any, the first part does."""
    threshold: float = 0.5
    timeout_s: float = 10.0
    memory_mb: int = 0
    """Of the worker and what it starts; 0: MEMORY_MB."""
    args: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the function -> column of the rows, where the names differ."""


@dataclass(frozen=True)
class Scored:
    outcomes: list[Outcome]
    metrics: dict[str, float]


class Scorer(Protocol):
    """Reward functions, or a learned model that stands in for them: flat lists of equal length in, outcomes in their order out."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion], *, step: int, num_steps: int) -> Scored: ...


@dataclass
class Bound:
    """A part together with the function behind it."""

    part: RewardPart
    place: str
    """Where the recipe has it: "rewards.0"."""
    spec: str | None
    """Where a worker imports it from; None: it runs in the trainer."""
    function: Callable[..., Any] | None
    """The function itself, where it was given or had to be imported here."""
    signature: Signature | None = None
    limits_in_a_row: int = 0
    """Single completions that ran into a limit since the function last answered at all."""
    extracts: bool = True
    retry_noted: bool = False

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def shape(self) -> Signature:
        assert self.signature is not None
        return self.signature

    @property
    def args(self) -> dict[str, Any]:
        """Arguments bound to the function."""
        wall = {WALL_ARGUMENT: self.part.timeout_s} if self.shape.supervised and WALL_ARGUMENT in self.shape.accepted else {}
        return {**self.part.args, **wall}

    @property
    def memory_mb(self) -> int:
        return self.part.memory_mb or MEMORY_MB

    def hopeless(self, kind: str, tried: int) -> str:
        """What is said of a function that met a limit on every single completion."""
        limit = f"timeout_s = {self.part.timeout_s:g} s" if kind == "timeout" else f"memory_mb = {self.memory_mb:g} MB"
        verb, either = ("hangs", "never returns") if kind == "timeout" else ("runs out of memory", "never has enough")
        return (
            f"reward {self.name!r} {verb}: {tried} completions were tried one at a time, and none was answered within {limit}. "
            f"Either the function {either}, or the limit is too low for it."
        )

    def sees(self, columns: Iterable[str]) -> tuple[str, ...]:
        """The names under which rows with these columns are offered to the function."""
        return tuple(dict.fromkeys([*columns, *self.part.columns]))

    def read(self, prompt: Prompt, name: str) -> Any:
        """What the function is given of a row under this name."""
        column = self.part.columns.get(name, name)
        return prompt.content if column == PROMPTS else prompt.columns.get(column)

    def here(self) -> Callable[..., Any]:
        """The function in this process."""
        if self.function is None:
            assert self.spec is not None
            try:
                self.function = load_function(self.spec)
            except NotImportable as problem:
                raise RewardError(f"{self.place}.function: {problem}") from problem
        return self.function


@dataclass(frozen=True)
class Batch:
    """The arguments of one call for all completions of a step."""

    texts: list[str]
    values: dict[str, list[Any]]
    """prompts, completions, completion_ids and every column, by name."""
    columns: tuple[str, ...]
    state: TrainerState

    @classmethod
    def of(cls, prompts: Sequence[Prompt], completions: Sequence[Completion], state: TrainerState) -> Batch:
        texts = [completion.text for completion in completions]
        names = column_names(prompts)
        values: dict[str, list[Any]] = {
            # Messages are copied: a function that edits its arguments must not edit the prompts of the run.
            "prompts": [p.content if isinstance(p.content, str) else [dict(m) for m in p.content] for p in prompts],
            "completions": [
                [{"role": "assistant", "content": text}] if prompt.is_chat else text
                for prompt, text in zip(prompts, texts, strict=True)
            ],
            "completion_ids": [list(completion.token_ids) for completion in completions],
        }
        for name in names:
            values[name] = [prompt.columns.get(name) for prompt in prompts]
        return cls(texts, values, names, state)

    def fed(self, columns: Mapping[str, str]) -> Batch:
        """The batch with parameters that are fed from columns of other names."""
        more = {parameter: self.values[column] for parameter, column in columns.items()}
        return replace(self, values=self.values | more, columns=tuple(dict.fromkeys([*self.columns, *columns])))

    def take(self, names: Iterable[str], rows: Sequence[int]) -> dict[str, list[Any]]:
        return {name: [self.values[name][row] for row in rows] for name in names if name in self.values}

    def lengths(self, rows: Iterable[int]) -> list[int]:
        """Characters of these completions: what the positions of step rewards are held against."""
        return [len(self.texts[row]) for row in rows]


@dataclass
class Verdicts:
    """What one part said of every completion of the step."""

    values: list[float | None]
    faults: list[str | None]
    extras: list[dict[str, Any]]
    steps: list[Steps | None]
    """Step rewards before weighting, of the completions for which the part gave a list of them."""
    logged: dict[str, list[float]] = field(default_factory=dict)
    dropped: int = 0
    words: list[str] = field(default_factory=list)
    """By row: what became of the completion in a word; empty where the function says nothing."""
    details: dict[int, str] = field(default_factory=dict)
    """By row: the first fault of a call, in words."""
    seconds: float = 0.0
    retried: int = 0
    """Completions that were called one by one."""
    stopped_early: bool = False

    @classmethod
    def empty(cls, count: int) -> Verdicts:
        return cls([None] * count, [None] * count, [{} for _ in range(count)], [None] * count, words=[""] * count)

    def add(self, rows: Sequence[int], reply: Answered) -> None:
        for position, row in enumerate(rows):
            self.values[row], self.steps[row] = reply.values[position], reply.steps[position]
            self.faults[row] = reply.faults[position]
            word = self.words[row] = reply.verdicts[position] if reply.verdicts else ""
            if word in LIMIT_KINDS and self.faults[row] is None:
                self.values[row], self.steps[row], self.faults[row] = 0.0, None, word
            self.extras[row] = {column: values[position] for column, values in reply.extras.items()}
        if reply.detail:
            self.details[next(row for row, fault in zip(rows, reply.faults, strict=True) if fault)] = reply.detail
        for name, value in reply.metrics.items():
            self.logged.setdefault(name, []).append(value)
        self.dropped += reply.dropped

    def add_failure(self, rows: Sequence[int], reply: Failed) -> None:
        """A call that will not be repeated gave nothing: at a limit that is a score of 0, else no score."""
        limited = reply.kind in LIMIT_KINDS
        for row in rows:
            self.values[row], self.steps[row] = 0.0 if limited else None, None
            self.faults[row] = reply.kind
            self.words[row] = reply.kind if limited and reply.kind != "timeout" else ""
        if not limited:
            self.details[rows[0]] = reply.detail

    @property
    def broken(self) -> list[int]:
        """Rows on which the function itself was at fault."""
        return [row for row, fault in enumerate(self.faults) if fault is not None and fault not in LIMIT_KINDS]

    @property
    def timeouts(self) -> int:
        return self.faults.count("timeout")


def bind(part: RewardPart, place: str) -> Bound:
    function = part.function
    if callable(function):
        return Bound(part, place, importable_name(function), function)
    if function in BUILT_IN or ":" not in function:
        try:
            found = built_in(function)
        except RewardError as problem:
            raise RewardError(f"{place}.function: {problem}") from None
        return Bound(part, place, importable_name(found), found)
    if function.startswith("python:"):
        raise RewardError(
            f"{place}.function: {function!r} stands for a Python function, which must be given again with the run. "
            "Hand it in again with cohort.resume(run, rewards=[function]); if the function itself has another name, "
            f'with rewards=[{{"function": function, "name": "{function.removeprefix("python:")}"}}].'
        )
    module, _, name = function.partition(":")
    if not module or not name:
        raise RewardError(f'{place}.function: {function!r} is not of the form "package.module:function".')
    return Bound(part, place, function, None)


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
    """Bound arguments the function would ignore, or that the runner passes itself, are mistakes of the recipe."""
    shape, part = bound.shape, bound.part
    if shape.supervised and WALL_ARGUMENT not in shape.accepted:
        raise RewardError(
            f"{bound.place}.function: {part.name!r} is supervised and has no argument {WALL_ARGUMENT!r}, under which it is told "
            "timeout_s, the seconds that one completion may take. Add it, and keep to it."
        )
    if part.memory_mb and bound.spec is None:
        where = "set its own argument, args.memory_mb" if "memory_mb" in shape.accepted else "leave it out"
        raise RewardError(
            f"{bound.place}.memory_mb: {part.name!r} runs in the trainer and not in a worker of its own; {where}."
        )
    if problem := renaming_problem(shape, part.columns, part.args):
        raise RewardError(f"{bound.place}.columns.{problem}")
    if missing := missing_argument(bound):
        raise RewardError(f"{bound.place}.args: reward {part.name!r} needs the argument {missing!r}.")
    for name in part.args:
        if name in OFFERED:
            raise RewardError(f"{bound.place}.args.{name}: it is passed by the runner and cannot be set.")
        if name == WALL_ARGUMENT and shape.supervised:
            raise RewardError(f"{bound.place}.args.{name}: set {bound.place}.timeout_s, which is passed on under this name.")
        strict = shape.reads is not None or not shape.takes_any
        if strict and name not in shape.accepted:
            hint = nearest(name, [known for known in shape.accepted if known not in OFFERED]) or "."
            raise RewardError(f"{bound.place}.args: reward {part.name!r} has no argument {name!r}{hint}")
        home = bound.spec or str(getattr(bound.function, "__module__", ""))
        if name in PATTERN_ARGS and home.startswith("cohort."):
            check_pattern(part.args[name], f"{bound.place}.args.{name}")


def missing_argument(bound: Bound) -> str:
    """A required parameter that no column can fill, since the function says which ones it reads; "" if there is none."""
    shape = bound.shape
    if shape.reads is None:
        return ""
    return next((name for name in shape.required if name not in (*OFFERED, *shape.reads, *bound.args)), "")


def check_pattern(pattern: Any, place: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError, OverflowError, RecursionError) as problem:
        raise RewardError(f"{place}: {pattern!r} is not a regular expression ({problem}).") from None


def check_columns(bound: Bound, columns: Sequence[str]) -> None:
    """Rows with these columns can be scored: every column that each call needs is there, or bound as an argument."""
    if problem := feeding_problem(bound.part.columns, columns):
        raise RewardError(f"{bound.place}.columns.{problem}")
    seen = bound.sees(columns)
    if missing := missing_columns(bound.shape.required, seen, bound.args):
        raise RewardError(
            f"reward {bound.name!r} {needs_column(missing[0], columns)} To take it from a column of another name: "
            f"{bound.place}.columns.{missing[0]}=COLUMN (the prompt itself is called {PROMPTS})."
        )
    if problem := argument_problem(bound.function, bound.part.args, seen):
        raise RewardError(f"{bound.place}.args: {problem}.")


def renaming_problem(shape: Signature, columns: Mapping[str, str], args: Mapping[str, Any]) -> str:
    """Why a parameter cannot be fed from a column of another name: "answr: ..."; "" if all can."""
    for name in columns:
        if name in OFFERED:
            return f"{name}: it is passed by the runner and is no column."
        if name in args:
            return f"{name}: args sets it too; keep one of them."
        known = [one for one in (shape.accepted if shape.reads is None else shape.reads) if one not in OFFERED]
        if (shape.reads is not None or not shape.takes_any) and name not in known:
            listed = f"It can read {', '.join(known)}." if known else "It reads no column."
            return f"{name}: the function does not read it{nearest(name, known) or '.'} {listed}"
    return ""


def feeding_problem(renamed: Mapping[str, str], columns: Sequence[str]) -> str:
    """Which parameter is to be fed from a column that no row has; "" if there is none."""
    for name, column in renamed.items():
        if column not in (*columns, PROMPTS):
            listed = ", ".join(columns) or "none beside the prompt"
            return (
                f"{name}: the rows have no column {column!r}{nearest(column, columns) or '.'} Columns: {listed} "
                f"(the prompt itself is called {PROMPTS})."
            )
    return ""


def column_names(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """The columns that reward functions can ask for, in the order in which the rows have them."""
    return tuple(dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in RESERVED))


def missing_columns(required: Sequence[str], columns: Sequence[str], args: Mapping[str, Any]) -> list[str]:
    return [name for name in required if name not in OFFERED and name not in columns and name not in args]


def needs_column(name: str, columns: Sequence[str]) -> str:
    """What is missing, as a sentence without its subject."""
    hint = nearest(name, columns) or "."
    listed = ", ".join(columns) or "none beside the prompt"
    return f"needs the column {name!r}, which the rows do not have{hint} Columns: {listed}."


def argument_problem(function: Callable[..., Any] | None, args: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Why no call with these arguments can succeed; "" if nothing is known.

    A function tells through `check_arguments(columns, **args)`, which raises ValueError.
    """
    check = getattr(function, "check_arguments", None)
    if check is not None:
        try:
            check(columns, **args)
        except (TypeError, ValueError) as problem:
            return str(problem)
    return ""
