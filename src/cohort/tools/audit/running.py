"""Calls of the audited function, in a worker process that may hang, crash or be taken over without the audit noticing more
than a fault. One completion per call, so that time and blame belong to one input; batches only where batching is the question."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.base.importing import search_current_folder
from cohort.errors import RewardError
from cohort.recipe.sections import suggest_nearest
from cohort.rewards import BUILT_IN, contract
from cohort.rewards.call import RewardCall, Signature, TrainerState
from cohort.rewards.entries import Answered, Failed, is_plain
from cohort.rewards.pool import LoadFailed, Worker
from cohort.tools.audit.cases import AuditCase, AuditRow, CaseResult, safe_text

START_S = 120.0
"""For the machinery that a supervised function starts on its first call: a jail, a pool."""
MAX_HANGS = 3
"""So many time limits reached by one attack: its other inputs are skipped, since each would cost the limit again."""
SIDE_BY_SIDE = 8
"""Completions in one call of a supervised function."""
ALONE = ("bomb", "injection", "length", "escape")
"""Attacks whose inputs are always called one by one: what each does to time and files is the question."""
CHARACTERS_PER_TOKEN = 4


class AuditError(RewardError):
    """The audit cannot be made; the message says why, and what would make it possible."""


KINDS = ("math", "exact", "code", "shape")
"""math: the answer counts by its value. exact: letter for letter. code: programs are run. shape: no gold is read."""


@dataclass(frozen=True)
class AuditOptions:
    """How a reward is audited.

    args           arguments bound to the function, as in a recipe.
    kind           one of KINDS; "" decides by the function and its rows.
    gold, prompt, solution, demonstration    columns of the rows that hold these.
    columns        parameter of the function -> column that it is fed from, where the names differ.
    template       a form of completion that the function reads, with {answer} in it, beside the ones that are always tried.
    threshold      a score from here on is a success; outcome=False takes the score of the golds instead.
    timeout_s      seconds that one completion may take.
    limit          rows that are used, drawn by the seed; None: 8 of the rows given, all of those that ship with the audit.
    name           what the report calls the reward.
    """

    args: Mapping[str, Any] | None = None
    kind: str = ""
    gold: str = "answer"
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
            raise AuditError(f"timeout_s: a number above 0 is expected, got {self.timeout_s!r}.")
        if self.template and "{answer}" not in self.template:
            example = "put {answer} where the answer stands, for example 'FINAL: {answer}'."
            raise AuditError(f"template {self.template!r}: {example}")

    @property
    def gold_column(self) -> str:
        return (self.columns or {}).get(self.gold, self.gold)


class Bench:
    """One function and the worker it runs in, which is replaced when it dies."""

    def __init__(self, spec: str, rows: Sequence[AuditRow], options: AuditOptions) -> None:
        self.spec, self.rows, self.timeout_s = spec, rows, options.timeout_s
        self.columns = tuple(dict.fromkeys(column for row in rows for column in row.columns))
        self.rename = dict(options.columns or {})
        """Parameter of the function -> column that it is fed from."""
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
        """End the worker. The next call starts a new one, without what an input may have left in the old."""
        self._worker.close()

    def load_function(self, spec: str) -> Mapping[str, Any]:
        """Import the function in the worker, a new one where the old has ended; what it accepts, as plain data."""
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
        """Refuse rows that lack a column which the function needs, and arguments that the function does not know."""
        problem = contract.find_renaming_problem(self.signature, self.rename, self.args)
        if problem := problem or contract.find_feeding_problem(self.rename, self.columns):
            raise AuditError(f"columns.{problem}")
        given = {*contract.RESERVED, *self.columns, *self.rename, *self.args}
        missing = [name for name in self.signature.required if name not in given]
        if missing:
            hint = suggest_nearest(missing[0], self.columns) or "."
            raise AuditError(
                f"reward {self.spec}: it needs {missing[0]!r}, which neither the rows nor the arguments have{hint} Columns: "
                f"{', '.join(self.columns) or 'none beside the prompt'}. Give rows that have it (--rows FILE), feed it from another "
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
            raise AuditError(f"{problem}. Write arguments as name=value behind the reward.")
        for name in self.list_asked():
            column = self.rename.get(name, name)
            foreign = [row for row in self.rows if column in row.columns and not is_plain(row.columns[column])]
            if foreign:
                raise AuditError(
                    f"rows: JSON cannot carry the column {column!r} to a worker as it is "
                    f"({type(foreign[0].columns[column]).__name__}); give it as text, numbers or lists."
                )

    def list_asked(self) -> list[str]:
        """Parameters that the function is given, those aside that every function may have."""
        names = self.signature.list_asked([*self.columns, *self.rename], self.args)
        return [name for name in names if name not in ("prompt", "completion")]

    # -----------------------------------------------------------------------------------------------------------------
    # Calls
    # -----------------------------------------------------------------------------------------------------------------

    def run(self, cases: Sequence[AuditCase]) -> list[CaseResult]:
        """Each case alone. After MAX_HANGS time limits in one attack the rest of that attack is skipped.

        A supervised function limits every completion by itself and works on several side by side: it is given a few at a
        time, and one by one only where such a call fails.
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
        """For inputs that run into the limit on purpose: less of it, where the function can be told so."""
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
        """A first call, with time for what a function imports and starts when it is first used. Its answer does not count."""
        row = self.rows[0]
        for text in (row.demonstration, f"\\boxed{{{row.gold or 1}}}", f"```python\n{row.solution or 'pass'}\n```"):
            self.call_worker(self.spec, self.make_arguments([AuditCase("warm-up", "", 0, text)]), [len(text)], START_S)

    def call(self, cases: Sequence[AuditCase]) -> list[CaseResult]:
        """One call for all of these cases."""
        arguments = self.make_arguments(cases)
        lengths = [len(safe_text(case.completion)) for case in cases]
        self.load_function(self.spec)  # starting a process is no part of the time of a call
        started = time.monotonic()
        reply = self.call_worker(self.spec, arguments, lengths)
        seconds = time.monotonic() - started
        if isinstance(reply, Failed):
            kind = "crash" if reply.kind == "memory" else reply.kind  # what it cost the worker
            return [CaseResult(case, None, kind, reply.detail, seconds) for case in cases]
        return [
            CaseResult(case, entry.value, entry.fault or "", entry.detail, seconds / len(cases))
            for case, entry in zip(cases, reply.entries, strict=True)
        ]

    def make_arguments(self, cases: Sequence[AuditCase]) -> dict[str, Any]:
        """What the function is called with for these cases."""
        chosen = [self.rows[case.row] for case in cases]
        offered: dict[str, list[Any]] = {
            column: [case.columns.get(column, row.columns.get(column)) for row, case in zip(chosen, cases, strict=True)]
            for column in self.columns
        }
        offered["prompts"] = [row.prompt for row in chosen]
        offered["completions"] = [make_completion(row, case) for row, case in zip(chosen, cases, strict=True)]
        named = {name: self.rename.get(name, name) for name in self.list_asked()}
        if "completion_ids" in named.values():
            sizes = [len(safe_text(case.completion)) // CHARACTERS_PER_TOKEN + 1 for case in cases]
            offered["completion_ids"] = [list(range(size)) for size in sizes]
        arguments: dict[str, Any] = {name: offered[column] for name, column in named.items() if column in offered}
        arguments.update(self.args)
        if self.signature.supervised and "wall_s" in self.signature.accepted:
            arguments.setdefault("wall_s", self.timeout_s)
        return arguments

    def call_worker(
        self, spec: str, arguments: Mapping[str, Any], lengths: Sequence[int], limit_s: float | None = None
    ) -> Answered | Failed:
        """Call a function in the worker: the audited one, or one that calls it."""
        names = [name for name in self.list_asked() if name not in arguments]
        call = RewardCall(arguments, lengths, TrainerState.for_step(1, 100), names)
        own = START_S + self.timeout_s * len(lengths) if self.signature.supervised else self.timeout_s
        self.load_function(spec)
        return self._worker.call_reward(spec, call, own if limit_s is None else limit_s)


def find_built_in(spec: str) -> str:
    """The name of Cohort's own reward that is imported from there; "" for others, which this process never imports."""
    return next((name for name, known in BUILT_IN.items() if contract.importable_name(known) == spec), "")


def make_completion(row: AuditRow, case: AuditCase) -> Any:
    """As the trainer would hand it over: chat messages where the prompt is a chat, unless the case says otherwise."""
    if isinstance(case.completion, str) and row.is_chat and case.attack != "chat":
        return [{"role": "assistant", "content": case.completion}]
    return case.completion
