"""Rows, cases and options of an audit, and the calls of the audited function.

The function runs in a worker process, where it may hang, crash or execute an attack: the audit only sees a fault. Each call has one
completion, so that time and faults belong to one input; calls with several test the effect of batching.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cohort.base.importing import load_function, search_current_folder
from cohort.errors import RewardError
from cohort.recipe.sections import suggest_nearest
from cohort.rewards import BUILT_IN, contract
from cohort.rewards.call import Answered, Failed, RewardCall, Signature, TrainerState, is_plain
from cohort.rewards.pool import LoadFailed, Worker
from cohort.tools.audit.reference_answers import read_number
from cohort_verify.text import text_of

# ---------------------------------------------------------------------------------------------------------------------
# Rows and cases
# ---------------------------------------------------------------------------------------------------------------------

Expect = Literal["pass", "fail", "any"]
"""pass: a score of at least the threshold. fail: a lower score, or none. any: any score, in time."""


@dataclass(frozen=True)
class AuditRow:
    """One row: the columns for the reward, and answers that are known to be right or wrong."""

    prompt: Any
    """Text or chat messages."""
    columns: Mapping[str, Any]
    reference: str = ""
    """The reference answer in the row's reference column; "" if it has none."""
    right: tuple[str, ...] = ()
    """Further answers that must be accepted."""
    wrong: tuple[str, ...] = ()
    """Further answers that must not be accepted."""
    demonstration: str = ""
    """A whole completion that is right."""
    solution: str = ""
    """For code: a program that passes the tests."""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.prompt, str)


@dataclass(frozen=True)
class AuditCase:
    """One completion for one row, and the expected result."""

    attack: str
    label: str
    """The variant of the attack: "off by one"."""
    row: int
    completion: Any
    """Text, or chat messages if the message format itself is tested."""
    expect: Expect = "fail"
    form: str = ""
    answer: str | None = None
    """The answer, if the completion gives exactly one and nothing else."""
    columns: dict[str, Any] = field(default_factory=dict, hash=False)
    """Columns of the row that are replaced, such as a missing reference answer."""


@dataclass(frozen=True)
class AnswerForm:
    """A way to write a completion around an answer."""

    name: str
    base: str
    """The marker of the answer, without the text around it."""
    write: Callable[[str], str]

    def fits(self, answer: str) -> bool:
        """Whether a reward should find this answer in the form: after ####, a Markdown heading, only a number."""
        return self.base != "hashes" or read_number(answer) is not None

    def make_case(self, attack: str, label: str, row: int, answer: str, expect: Expect = "fail") -> AuditCase:
        return AuditCase(attack, label, row, self.write(answer), expect, self.name, answer)


@dataclass(frozen=True)
class CaseResult:
    """The score of one case, or its fault."""

    case: AuditCase
    score: float | None
    """None: no opinion, or no score because of the fault."""
    fault: str = ""
    """"", a kind of fault ("exception", "nan", ...), "crash", or "timeout"."""
    detail: str = ""
    seconds: float = 0.0

    def passes(self, threshold: float) -> bool:
        return not self.fault and self.score is not None and self.score >= threshold


def rotate_forms(forms: Sequence[AnswerForm], place: int) -> AnswerForm:
    """The forms in turn: every attack is tried in every form for some row, without trying all combinations."""
    return forms[place % len(forms)]


# ---------------------------------------------------------------------------------------------------------------------
# Options and calls
# ---------------------------------------------------------------------------------------------------------------------

START_S = 120.0
"""Extra time for the jail or pool that a supervised function starts on its first call."""
MAX_HANGS = 3
"""After this many time limits the other inputs of an attack are skipped, since each would cost the limit again."""
SIDE_BY_SIDE = 8
"""Completions in one call of a supervised function."""
ALONE = ("bomb", "injection", "length", "escape")
"""Attacks that always have one input per call, since they measure its effect on time and files."""
CHARACTERS_PER_TOKEN = 4


class AuditError(RewardError):
    """The audit is impossible. The message gives the reason and the fix."""


KINDS = ("math", "exact", "code", "shape")
"""math: answers are compared by value. exact: letter for letter. code: programs are run. shape: no reference answer is used."""


@dataclass(frozen=True)
class AuditOptions:
    """Settings of an audit.

    args           arguments of the function, as in a recipe.
    kind           one of KINDS; "": chosen from the function and its rows.
    reference, prompt, solution, demonstration    names of the columns with these.
    columns        parameter of the function -> column, if the names differ.
    template       a form of completion that the function reads, with {answer} in it, in addition to the built-in ones.
    threshold      lowest score of a success; with outcome=False the score of the reference answers is used instead.
    timeout_s      seconds per completion.
    limit          number of rows, drawn by the seed; None: 8 of the given rows, or all rows that ship with the audit.
    name           name of the reward in the report.
    """

    args: Mapping[str, Any] | None = None
    kind: str = ""
    reference: str = "answer"
    prompt: str = "prompt"
    solution: str = "solution"
    demonstration: str = "demonstration"
    columns: Mapping[str, str] | None = None
    template: str = ""
    threshold: float | None = None
    outcome: bool = True
    timeout_s: float = 10.0
    limit: int | None = None
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind and self.kind not in KINDS:
            raise AuditError(f"kind: {self.kind!r} is not one of {', '.join(KINDS)}{suggest_nearest(self.kind, KINDS)}")
        if self.limit is not None and self.limit < 1:
            raise AuditError(f"limit: at least one row is needed, got {self.limit}.")
        if self.timeout_s <= 0:
            raise AuditError(f"timeout_s: expected a number above 0, got {self.timeout_s!r}.")
        if self.template and "{answer}" not in self.template:
            example = "write {answer} in place of the answer, for example 'FINAL: {answer}'."
            raise AuditError(f"template {self.template!r}: {example}")

    @property
    def reference_column(self) -> str:
        return (self.columns or {}).get(self.reference, self.reference)


class Bench:
    """The audited function and its worker, which is replaced when it dies."""

    def __init__(self, spec: str, rows: Sequence[AuditRow], options: AuditOptions) -> None:
        self.spec, self.rows, self.timeout_s = spec, rows, options.timeout_s
        self.columns = tuple(dict.fromkeys(column for row in rows for column in row.columns))
        self.rename = dict(options.columns or {})
        """Parameter of the function -> column, if the names differ."""
        self.args = dict(options.args or {})
        self.results: list[CaseResult] = []
        self.skipped = 0
        self._worker = Worker()
        search_current_folder()
        self.signature = Signature(**self.load_function(spec))

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker. The next call starts a new one, without any state of earlier inputs."""
        self._worker.close()

    def load_function(self, spec: str) -> Mapping[str, Any]:
        """Import the function in the worker, a new one if it has ended; returns its signature as plain data."""
        if not self._worker.alive:
            self._worker.close()
            self._worker = Worker()
        try:
            return self._worker.load(spec)
        except LoadFailed as problem:
            self.close()
            when = "a new worker could not import it. " if self.results else ""
            raise AuditError(f"reward: {when}{problem}") from None

    def check_call(self) -> None:
        """Raise AuditError for missing columns and unknown arguments."""
        problem = contract.find_renaming_problem(self.signature, self.rename, self.args)
        if problem := problem or contract.find_renamed_problem(self.rename, self.columns):
            raise AuditError(f"columns.{problem}")
        given = {*contract.RESERVED, *self.columns, *self.rename, *self.args}
        missing = [name for name in self.signature.required if name not in given]
        if missing:
            hint = suggest_nearest(missing[0], self.columns) or "."
            raise AuditError(
                f"reward {self.spec}: it needs {missing[0]!r}, which is neither a column nor an argument{hint} Columns: "
                f"{', '.join(self.columns) or 'none besides the prompt'}. Give rows that have it (--rows FILE), use another "
                f"column (--column {missing[0]}=COLUMN), or set it ({missing[0]}=VALUE)."
            )
        for name in self.args:
            if self.signature.is_strict and name not in self.signature.accepted:
                raise AuditError(
                    f"{name}: reward {self.spec} has no such argument{suggest_nearest(name, self.signature.accepted) or '.'}"
                )
        if problem := contract.find_argument_problem(
            BUILT_IN.get(find_built_in(self.spec)), self.args, [*self.columns, *self.rename]
        ):
            raise AuditError(f"{problem}. Write arguments as name=value after the reward.")
        for column in (self.rename.get(name, name) for name in self.list_arguments()):
            for row in self.rows:
                if column in row.columns and not is_plain(row.columns[column]):
                    kind = type(row.columns[column]).__name__
                    raise AuditError(
                        f"rows: JSON cannot carry the column {column!r} to a worker unchanged ({kind}); give it as text, "
                        "numbers or lists."
                    )

    def list_arguments(self) -> list[str]:
        """Names of the arguments that the function receives."""
        names = self.signature.list_arguments([*self.columns, *self.rename], self.args)
        return [name for name in names if name not in ("prompt", "completion")]

    # -----------------------------------------------------------------------------------------------------------------
    # Calls
    # -----------------------------------------------------------------------------------------------------------------

    def run(self, cases: Sequence[AuditCase]) -> list[CaseResult]:
        """The results of the cases, one call each. After MAX_HANGS time limits in one attack its other cases are skipped.

        A supervised function limits every completion itself and works on several in parallel: it gets a few per call, and one per
        call only if that fails.
        """
        hangs: Counter[str] = Counter()
        found: list[CaseResult] = []
        todo = list(cases)
        while todo:
            if hangs[todo[0].attack] >= MAX_HANGS:
                self.skipped += 1
                todo.pop(0)
                continue
            several = self.signature.supervised and todo[0].attack not in ALONE
            chunk = [case for case in todo[:SIDE_BY_SIDE] if case.attack not in ALONE] if several else todo[:1]
            todo = todo[len(chunk) :]
            results = self.call(chunk)
            if len(chunk) > 1 and any(result.fault for result in results):
                results = [self.call([case])[0] for case in chunk]
            hangs.update(result.case.attack for result in results if result.fault == "timeout")
            found += results
        self.results += found
        return found

    @contextlib.contextmanager
    def tighten_limits(self, wall_s: float, cpu_s: float) -> Iterator[None]:
        """Lower the limits of a supervised function for inputs that are meant to reach them."""
        before = self.timeout_s, self.args
        if self.signature.supervised:
            self.timeout_s = min(self.timeout_s, wall_s)
            if "cpu_s" in self.signature.accepted:
                self.args = {**self.args, "cpu_s": min(float(self.args.get("cpu_s", cpu_s)), cpu_s)}
        try:
            yield
        finally:
            self.timeout_s, self.args = before

    def warm_up(self) -> None:
        """Make first calls, with time for lazy imports and start-up. Their scores are ignored."""
        row = self.rows[0]
        for text in (row.demonstration, f"\\boxed{{{row.reference or 1}}}", f"```python\n{row.solution or 'pass'}\n```"):
            self.call_worker(self.spec, self.make_arguments([AuditCase("warm-up", "", 0, text)]), [len(text)], START_S)

    def call(self, cases: Sequence[AuditCase]) -> list[CaseResult]:
        """One call for all of these cases."""
        arguments = self.make_arguments(cases)
        lengths = [len(text_of(case.completion)) for case in cases]
        self.load_function(self.spec)  # the measured time excludes starting a process
        started = time.monotonic()
        reply = self.call_worker(self.spec, arguments, lengths)
        seconds = time.monotonic() - started
        if isinstance(reply, Failed):
            kind = "crash" if reply.kind == "memory" else reply.kind  # both cost the worker
            return [CaseResult(case, None, kind, reply.detail, seconds) for case in cases]
        return [
            CaseResult(case, entry.value, entry.fault or "", entry.detail, seconds / len(cases))
            for case, entry in zip(cases, reply.entries, strict=True)
        ]

    def make_arguments(self, cases: Sequence[AuditCase]) -> dict[str, Any]:
        """The arguments of a call for these cases."""
        chosen = [self.rows[case.row] for case in cases]
        offered: dict[str, list[Any]] = {
            column: [case.columns.get(column, row.columns.get(column)) for row, case in zip(chosen, cases, strict=True)]
            for column in self.columns
        }
        offered["prompts"] = [row.prompt for row in chosen]
        offered["completions"] = [make_completion(row, case) for row, case in zip(chosen, cases, strict=True)]
        named = {name: self.rename.get(name, name) for name in self.list_arguments()}
        if "completion_ids" in named.values():
            sizes = [len(text_of(case.completion)) // CHARACTERS_PER_TOKEN + 1 for case in cases]
            offered["completion_ids"] = [list(range(size)) for size in sizes]
        arguments: dict[str, Any] = {name: offered[column] for name, column in named.items() if column in offered}
        arguments.update(self.args)
        if self.signature.supervised and "wall_s" in self.signature.accepted:
            arguments.setdefault("wall_s", self.timeout_s)
        return arguments

    def call_worker(
        self, spec: str, arguments: Mapping[str, Any], lengths: Sequence[int], limit_s: float | None = None
    ) -> Answered | Failed:
        """Call a function in the worker: the audited one, or one that calls it in turn."""
        names = [name for name in self.list_arguments() if name not in arguments]
        call = RewardCall(arguments, lengths, TrainerState.for_step(1, 100), names)
        own = START_S + self.timeout_s * len(lengths) if self.signature.supervised else self.timeout_s
        self.load_function(spec)
        return self._worker.call_reward(spec, call, own if limit_s is None else limit_s)


def find_built_in(spec: str) -> str:
    """The name of the built-in reward with this import path; "" for other functions, which this process never imports."""
    return next((name for name, known in BUILT_IN.items() if contract.importable_name(known) == spec), "")


def make_completion(row: AuditRow, case: AuditCase) -> Any:
    """The completion as the trainer would pass it: as chat messages for chat prompts, unless the case tests that."""
    if isinstance(case.completion, str) and row.is_chat and case.attack != "chat":
        return [{"role": "assistant", "content": case.completion}]
    return case.completion


# ---------------------------------------------------------------------------------------------------------------------
# In the worker
# ---------------------------------------------------------------------------------------------------------------------


def leaves_arguments(audited: str, given: dict[str, Any], **offered: Any) -> Any:
    """1.0 per completion if a call of `audited` does not change its arguments, else 0.0. Other rewards receive the same lists."""
    before = copy.deepcopy(given)

    def compare() -> list[float]:
        return [float(before == given)] * len(given.get("completions", [0]))

    async def finish(result: Awaitable[Any]) -> list[float]:
        await result
        return compare()

    result = load_function(audited)(**given, **offered)
    if inspect.isawaitable(result):
        return finish(result)
    list(result)  # a generator runs only when it is read
    return compare()
