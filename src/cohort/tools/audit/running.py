"""Calls of the audited function, in a worker process that may hang, crash or be taken over without the audit noticing more
than a fault. One completion per call, so that time and blame belong to one input; batches only where batching is the question."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cohort.base.importing import search_current_folder
from cohort.errors import RewardError
from cohort.rewards import BUILT_IN
from cohort.rewards.call import Signature, TrainerState
from cohort.rewards.contract import RESERVED, find_argument_problem, find_feeding_problem, find_renaming_problem
from cohort.rewards.entries import Answered, Failed, is_plain
from cohort.rewards.pool import NOT_LOADED, Worker, load_problem
from cohort.rewards.text import text_of
from cohort.tools.audit.attacks import Case
from cohort.tools.audit.samples import AuditRow

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


@dataclass(frozen=True)
class Result:
    """What came of one case."""

    case: Case
    score: float | None
    """None: no opinion, or no score because of the fault."""
    fault: str = ""
    """"", a kind of fault ("exception", "nan", ...), "crash", or "timeout"."""
    detail: str = ""
    seconds: float = 0.0
    verdict: str = ""
    """The word that the function gave with the score, where it gives any."""

    def passes(self, threshold: float) -> bool:
        return not self.fault and self.score is not None and self.score >= threshold


class Bench:
    """One function and the worker it runs in, which is replaced when it dies."""

    def __init__(
        self,
        spec: str,
        args: Mapping[str, Any],
        columns: Sequence[str],
        timeout_s: float,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        self.spec, self.timeout_s = spec, timeout_s
        self.columns = tuple(columns)
        self.rename = dict(rename or {})
        """Parameter of the function -> column that it is fed from."""
        self.args = dict(args)
        self.results: list[Result] = []
        self.skipped = 0
        self.crashes = 0
        self._worker: Worker | None = None
        search_current_folder()
        self.signature = self._load()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._worker is not None and self._worker.alive:
            self._worker.hang_up()
            self._worker.kill(grace_s=1.0)
        self._worker = None

    @property
    def supervised(self) -> bool:
        return bool(getattr(self.signature, "supervised", False))

    def worker(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self._worker = Worker()
        return self._worker

    def ready(self, spec: str) -> Worker:
        """The worker, with the function imported."""
        worker = self.worker()
        try:
            worker.load(spec)
        except NOT_LOADED as problem:
            raise AuditError(f"reward: a new worker could not import it. {load_problem(spec, problem)}") from None
        return worker

    def fresh(self) -> None:
        """Go on in a new process: the old one may hold what an input has left in it."""
        self.close()

    def _load(self) -> Signature:
        try:
            return Signature(**self.worker().load(self.spec))
        except NOT_LOADED as problem:
            self.close()
            raise AuditError(f"reward: {load_problem(self.spec, problem)}") from None

    def check(self, rows: Sequence[AuditRow]) -> None:
        """The rows have every column that the function needs, and the function knows every argument."""
        from cohort.recipe.section import nearest

        problem = find_renaming_problem(self.signature, self.rename, self.args) or find_feeding_problem(
            self.rename, self.columns
        )
        if problem:
            raise AuditError(f"columns.{problem}")
        given = {*self.parameters(), *self.args}
        missing = [name for name in self.signature.required if name not in given]
        if missing:
            hint = nearest(missing[0], self.columns) or "."
            raise AuditError(
                f"reward {self.spec}: it needs {missing[0]!r}, which neither the rows nor the arguments have{hint} Columns: "
                f"{', '.join(self.columns) or 'none beside the prompt'}. Give rows that have it (--rows FILE), feed it from another "
                f"column (--column {missing[0]}=COLUMN), or set it ({missing[0]}=VALUE)."
            )
        for name in self.args:
            if self.signature.is_strict and name not in self.signature.accepted:
                raise AuditError(
                    f"{name}: reward {self.spec} has no such argument{nearest(name, self.signature.accepted) or '.'}"
                )
        if problem := find_argument_problem(built_in_function(self.spec), self.args, [*self.columns, *self.rename]):
            raise AuditError(f"{problem}. Write arguments as name=value behind the reward.")
        for name in self.asked():
            column = self.rename.get(name, name)
            foreign = [row for row in rows if column in row.columns and not is_plain(row.columns[column])]
            if foreign:
                raise AuditError(
                    f"rows: JSON cannot carry the column {column!r} to a worker as it is "
                    f"({type(foreign[0].columns[column]).__name__}); give it as text, numbers or lists."
                )

    def parameters(self) -> list[str]:
        """What can be passed by name beside the arguments that are bound."""
        return [*RESERVED, *self.columns, *self.rename]

    def asked(self) -> list[str]:
        names = self.signature.list_asked([*self.columns, *self.rename], self.args)
        return [name for name in names if name not in ("prompt", "completion")]

    # -----------------------------------------------------------------------------------------------------------------
    # Calls
    # -----------------------------------------------------------------------------------------------------------------

    def run(self, rows: Sequence[AuditRow], cases: Sequence[Case]) -> list[Result]:
        """Each case alone. After MAX_HANGS time limits in one attack the rest of that attack is skipped.

        A supervised function limits every completion by itself and works on several side by side: it is given a few at a
        time, and one by one only where such a call fails.
        """
        hangs: dict[str, int] = {}
        found: list[Result] = []
        todo = list(cases)
        while todo:
            if hangs.get(todo[0].attack, 0) >= MAX_HANGS:
                self.skipped += 1
                todo.pop(0)
                continue
            size = SIDE_BY_SIDE if self.supervised and todo[0].attack not in ALONE else 1
            chunk = [case for case in todo[:size] if case.attack not in ALONE] if size > 1 else todo[:1]
            todo = todo[len(chunk) :]
            results = self.call(rows, chunk)
            if len(chunk) > 1 and any(result.fault for result in results):
                results = [self.call(rows, [case])[0] for case in chunk]
            for result in results:
                hangs[result.case.attack] = hangs.get(result.case.attack, 0) + (result.fault == "timeout")
            found += results
        self.results += found
        return found

    @contextlib.contextmanager
    def tighter(self, wall_s: float, cpu_s: float) -> Iterator[None]:
        """For inputs that run into the limit on purpose: less of it, where the function can be told so."""
        before = self.timeout_s, self.args
        if self.supervised:
            self.timeout_s = min(self.timeout_s, wall_s)
            if "cpu_s" in self.signature.accepted:
                self.args = {**self.args, "cpu_s": min(float(self.args.get("cpu_s", cpu_s)), cpu_s)}
        try:
            yield
        finally:
            self.timeout_s, self.args = before

    def warm_up(self, rows: Sequence[AuditRow]) -> None:
        """A first call, with time for what a function imports and starts when it is first used. Its answer does not count."""
        row = rows[0]
        for text in (row.demonstration, f"\\boxed{{{row.gold or 1}}}", f"```python\n{row.solution or 'pass'}\n```"):
            case = Case("warm-up", "", 0, text, "any")
            self.ask(self.spec, self.arguments(rows, [case]), [len(text)], START_S)

    def call(self, rows: Sequence[AuditRow], cases: Sequence[Case]) -> list[Result]:
        """One call for all of these cases."""
        texts = [safe_text(case.completion) for case in cases]
        arguments = self.arguments(rows, cases)
        lengths = [len(text) for text in texts]
        self.ready(self.spec)  # starting a process is no part of the time of a call
        started = time.monotonic()
        reply = self.ask(self.spec, arguments, lengths)
        seconds = time.monotonic() - started
        if isinstance(reply, Failed):
            self.crashes += reply.kind == "crash"
            kind = "crash" if reply.kind == "memory" else reply.kind  # what it cost the worker
            return [Result(case, None, kind, reply.detail, seconds) for case in cases]
        return [
            Result(case, entry.value, entry.fault or "", entry.detail, seconds / len(cases), entry.word)
            for case, entry in zip(cases, reply.entries, strict=True)
        ]

    def arguments(self, rows: Sequence[AuditRow], cases: Sequence[Case]) -> dict[str, list[Any]]:
        chosen = [rows[case.row] for case in cases]
        offered: dict[str, list[Any]] = {
            "prompts": [row.prompt for row in chosen],
            "completions": [completion_for(row, case) for row, case in zip(chosen, cases, strict=True)],
            "completion_ids": [
                list(range(len(safe_text(case.completion)) // CHARACTERS_PER_TOKEN + 1))
                if "completion_ids" in self.asked()
                else []
                for case in cases
            ],
        }
        arguments: dict[str, Any] = {}
        for name in self.asked():
            column = self.rename.get(name, name)
            if column in offered:
                arguments[name] = offered[column]
            elif column in self.columns:
                arguments[name] = [
                    case.columns[column] if column in case.columns else row.columns.get(column)
                    for row, case in zip(chosen, cases, strict=True)
                ]
        arguments.update(self.args)
        if self.supervised and "wall_s" in self.signature.accepted:
            arguments.setdefault("wall_s", self.timeout_s)
        return arguments

    def ask(
        self, spec: str, arguments: Mapping[str, Any], lengths: Sequence[int], limit_s: float | None = None
    ) -> Answered | Failed:
        message = {
            "op": "call",
            "spec": spec,
            "arguments": dict(arguments),
            "lengths": list(lengths),
            "state": asdict(TrainerState.at(1, 100)),
            "names": [name for name in self.asked() if name not in arguments],
        }
        own = self.timeout_s if not self.supervised else START_S + self.timeout_s * len(lengths)
        limit = own if limit_s is None else limit_s
        return self.ready(spec).call(message, lengths, limit)


def built_in_function(spec: str) -> Callable[..., Any] | None:
    """Cohort's own reward behind a name; others are never imported into this process."""
    return next((known for name, known in BUILT_IN.items() if spec == f"{known.__module__}:{name}"), None)


def completion_for(row: AuditRow, case: Case) -> Any:
    """As the trainer would hand it over: chat messages where the prompt is a chat, unless the case says otherwise."""
    if isinstance(case.completion, str) and row.is_chat and case.attack != "chat":
        return [{"role": "assistant", "content": case.completion}]
    return case.completion


def safe_text(completion: Any) -> str:
    return completion if isinstance(completion, str) else text_of(completion)
