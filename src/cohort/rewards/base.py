"""The reward contract and its runner: lists in, one float, None or list of step rewards per completion out, nothing silent.

    with RewardRunner.from_recipe(recipe.rewards) as runner:      # starts the workers
        scored = runner.score(prompts, completions, step=1, num_steps=200)

What a reward function gets wrong (an exception, NaN, a wrong type or length, a crash) leaves the completion unscored
and is counted; past a share of the step it stops the run. What a completion causes (it runs into the time limit)
scores 0 and is counted, for otherwise hanging would beat being wrong. To tell the two apart, and to kill what hangs,
functions that can be imported by name run in worker processes; the others run in a thread of the trainer.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from cohort.base.importing import is_own, search_current_folder
from cohort.base.threads import LoopThread, run_concurrently, run_with_limit, split_evenly
from cohort.base.trees import copy_value
from cohort.base.world import ALONE, World
from cohort.errors import CohortError, RewardError
from cohort.rewards.call import RewardCall, Signature, TrainerState, call_reward, extract_answers
from cohort.rewards.contract import (
    Bound,
    RewardPart,
    Scored,
    ScoringBatch,
    Verdicts,
    bind_function,
    check_args,
    check_columns,
    column_names,
    find_unusable_rows,
)
from cohort.rewards.entries import Answered, Failed, RewardEntry, is_plain
from cohort.rewards.listening import EarlyPart, Hear, Heard, is_worth_telling
from cohort.rewards.pool import HelperPool, LoadFailed, Worker
from cohort.rewards.shares import JudgedShare, find_own_rows, join_verdicts
from cohort.rewards.singles import Progress, Singles, spread_rows
from cohort.rewards.summing import add_answers, check_faults, measure_rewards, sum_parts
from cohort.types import Completion, Prompt
from cohort_verify.sandbox import JailUnavailable, find_tier
from cohort_verify.workers import ProcessEnded

if TYPE_CHECKING:
    from cohort.recipe.schema import RewardConfig

logger = logging.getLogger(__name__)

ASYNC_SINGLES = 16
"""Single calls of an async function in the trainer that wait side by side."""


class RewardRunner:
    """Runs the parts of the reward over the completions of a step.

    The recipe has seen to it that each has a name of its own and at most one decides success.
    """

    def __init__(
        self, parts: Sequence[RewardPart], workers: int = 2, max_fault_share: float = 0.1, place: str = "rewards"
    ) -> None:
        """place: of the parts in the recipe."""
        if not parts:
            raise RewardError("rewards: at least one part is needed.")
        self.parts = tuple(parts)
        self.notes: list[str] = []
        """What the user should know of where functions run; each is also logged once."""
        self._bound = [bind_function(part, f"{place}.{index}") for index, part in enumerate(parts)]
        self._outcome = next((i for i, part in enumerate(parts) if part.outcome), 0)
        self._workers, self._max_fault_share = workers, max_fault_share
        self._pool = HelperPool()
        self._started = self._closed = False
        self._loop, self._one_by_one = LoopThread("async rewards"), threading.Lock()
        self.world = ALONE
        """The processes that judge together, each the completions of its share of the prompts."""
        self.on_progress: Callable[[str, int, int], None] | None = None
        """Told (part, completions judged, completions) from the threads that judge, as the parts get on."""
        self.on_sampled: Callable[[int, int], None] | None = None
        """Told (completions sampled, completions) where parts judge meanwhile."""
        self._heard: Heard | None = None

    @classmethod
    def from_recipe(
        cls,
        parts: Sequence[RewardConfig],
        functions: Mapping[str, Callable[..., Any]] | None = None,
        max_fault_share: float = 0.1,
        place: str = "rewards",
    ) -> Self:
        """`functions` gives the callables behind names of the Python API, such as "python:correct"."""
        from cohort.recipe.rules import name_reward

        found = [(functions or {}).get(part.function, part.function) for part in parts]
        made = [
            RewardPart(**dict(part) | {"name": name_reward(part), "function": function})
            for part, function in zip(parts, found, strict=True)
        ]
        return cls(made, max_fault_share=max_fault_share, place=place)

    # -----------------------------------------------------------------------------------------------------------------
    # Life
    # -----------------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the workers and have them import the functions: a name that cannot be imported is an error here."""
        if self._closed:
            raise RewardError("The reward runner is closed.")
        if self._started:
            return self
        self._started = True
        remote = [bound for bound in self._bound if bound.spec is not None]
        try:
            if remote:
                search_current_folder()  # here, so that workers started later see the same folder
                self._pool.grow(self._workers)
                run_concurrently([functools.partial(self._warm_up, remote) for _ in range(self._workers)])
            for bound in self._bound:
                if bound.spec is None:
                    bound.signature = Signature.read(bound.load_here())
                check_args(bound)
            # A part holds at most `workers` of them, so with one more than all the others can hold, none ever waits.
            parts = sum(bound.spec is not None for bound in remote)
            self._pool.grow((parts - 1) * self._workers + 1)
        except BaseException:
            self.close()
            raise
        return self

    def _warm_up(self, remote: Sequence[Bound]) -> None:
        """Have one worker import everything; a function whose import kills the worker is met by the next one."""
        todo = list(remote)
        while todo:
            with self._pool.borrow() as worker:
                while todo and worker.alive:
                    self._introduce(worker, todo.pop(0))

    def _introduce(self, worker: Worker, bound: Bound) -> None:
        spec = bound.spec
        if spec is None:  # another worker has found that it must stay here
            return
        try:
            bound.signature = Signature(**worker.load(spec, bound.memory_mb))
            if bound.signature.supervised:
                bound.load_here()
                bound.spec = None
        except LoadFailed as problem:
            if bound.function is None or is_own(spec):
                raise RewardError(f"{bound.place}.function: {problem}") from None
            bound.spec = None
            self._note(
                f"reward {bound.name!r} runs in the trainer, for a worker {problem} Over its time limit it stops the run."
            )

    def close(self) -> None:
        self._closed = True
        self._pool.close()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worker_pids(self) -> list[int]:
        return self._pool.pids

    @property
    def has_answers(self) -> bool:
        """Whether the outcome part exposes the answer it compares: without it there is nothing to vote on."""
        return self.start()._bound[self._outcome].signature.has_extract

    @property
    def needs_jail(self) -> bool:
        """Whether a part hands model text to the jail of this machine."""
        return any(bound.signature.jailed for bound in self.start()._bound)

    @property
    def jail(self) -> str:
        """The jail that untrusted text of this run goes to; empty if no part needs one, or there is none."""
        with contextlib.suppress(JailUnavailable):
            return find_tier().name if self.needs_jail else ""
        return ""

    def check_columns(self, prompts: Sequence[Prompt]) -> None:
        """RewardError where a part needs a column that none of these rows has: then every call of it would fail."""
        for bound in self.start()._bound:
            check_columns(bound, column_names(prompts))

    def find_unusable(self, prompts: Sequence[Prompt]) -> dict[str, list[tuple[int, str]]]:
        """By part: (number of the row, why it can never be scored), for parts that can tell beforehand."""
        found = {bound.name: find_unusable_rows(bound, prompts) for bound in self.start()._bound}
        return {name: problems for name, problems in found.items() if problems}

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            logger.warning(text)

    # -----------------------------------------------------------------------------------------------------------------
    # Scoring
    # -----------------------------------------------------------------------------------------------------------------

    def listen(self, prompts: Sequence[Prompt], *, step: int, num_steps: int) -> Hear | None:
        """Whom to tell of completions as they are sampled, by their places among `prompts`; the next `score` is of all of them.

        None where no part would begin before all are there: those that may look at the whole batch, those that are done in a moment,
        and those that would only take turns with the engine in this process.
        """
        own, state = find_own_rows(self.world, prompts), TrainerState.for_step(step, num_steps)
        heard = Heard(prompts[own], own.start, column_names(prompts), state, self.on_sampled)
        everything = range(len(heard.prompts))
        self._pool.terminal.refill()
        for bound in filter(is_worth_telling, self.start()._bound):
            in_worker = self._fits_worker(bound, heard.collect_batch(everything).make_call(bound, everything))
            if in_worker or bound.signature.supervised or bound.signature.is_async:
                judged = Progress(bound.name, len(everything), self.on_progress)
                call = functools.partial(self._call, bound, in_worker, judged)
                heard.parts.append(EarlyPart(bound, heard, call, in_worker, self._workers if in_worker else 1))
        self._heard = heard if heard.parts else None
        return heard.hear if heard.parts else None

    def score(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Completion],
        *,
        step: int,
        num_steps: int,
        world: World | None = None,
    ) -> Scored:
        """One outcome per completion; prompts[i] is the prompt of completions[i]. world: who judges, if not all processes together."""
        if len(prompts) != len(completions):
            raise ValueError(f"{len(prompts)} prompts for {len(completions)} completions: one prompt each is expected")
        self.start()
        if not completions:
            return Scored([], {})
        columns, state = column_names(prompts), TrainerState.for_step(step, num_steps)
        for bound in self._bound:
            check_columns(bound, columns)
        world = world or self.world
        own = find_own_rows(world, prompts)
        batch = ScoringBatch.collect(prompts[own], completions[own], columns, state)
        heard, self._heard = self._heard, None
        early = heard.find_parts(prompts[own], completions[own]) if heard else {}
        with self._one_by_one:  # what is scored ahead and an evaluation take turns
            shares = world.compute(lambda: [self._judge(batch, early)])
        verdicts = [join_verdicts(of_part) for of_part in zip(*(share.verdicts for share in shares), strict=True)]
        by_row = zip(*(verdict.entries for verdict in verdicts), strict=True)
        outcomes = sum_parts(self._bound, self._outcome, by_row, [len(completion.text) for completion in completions])
        check_faults(self._bound, outcomes, verdicts, self._max_fault_share)
        outcomes = add_answers(outcomes, [answer for share in shares for answer in share.answers])
        failed_extracts = sum(share.failed_extracts for share in shares)
        return Scored(outcomes, measure_rewards(self._bound, outcomes, verdicts, failed_extracts))

    def _judge(self, batch: ScoringBatch, early: Mapping[str, EarlyPart]) -> JudgedShare:
        """What all parts say of these completions, and the answers in them."""
        if not batch.texts:
            return JudgedShare([Verdicts([]) for _ in self._bound], [], 0)
        if not early:
            self._pool.terminal.refill()
        verdicts = run_concurrently(
            [functools.partial(self._run_part, bound, batch, early.get(bound.name)) for bound in self._bound]
        )
        return JudgedShare(verdicts, *self._extract(self._bound[self._outcome], batch, verdicts[self._outcome]))

    def _run_part(self, bound: Bound, batch: ScoringBatch, early: EarlyPart | None) -> Verdicts:
        """What was judged while others were sampled; else the whole batch, and where that raised, hung or crashed, completion by completion."""
        started, count = time.monotonic(), len(batch.texts)
        verdicts, everything = Verdicts([RewardEntry()] * count), range(count)
        if early is not None:
            if early.fill(verdicts):
                return verdicts
            self._note(f"reward {bound.name!r}: from now on it is called once all completions are sampled ({early.problem}).")
        in_worker = early.in_worker if early else self._fits_worker(bound, batch.make_call(bound, everything))
        judged = Progress(bound.name, count, self.on_progress)

        def call(rows: Sequence[int]) -> Answered | Failed:
            return self._call(bound, in_worker, judged, batch.make_call(bound, rows))

        chunks = split_evenly(count, self._workers) if in_worker and bound.signature.per_completion else [list(range(count))]
        retry: list[int] = []
        for rows, reply in zip(chunks, run_concurrently([functools.partial(call, rows) for rows in chunks]), strict=True):
            if isinstance(reply, Answered) or reply.has_wrong_form:
                verdicts.add(rows, reply)
                bound.limits_in_a_row = 0
            else:
                retry += rows
                verdicts.retry_detail = verdicts.retry_detail or reply.detail
                self._note_retry(bound, reply)
        if retry:
            some = len(retry) < count
            side_by_side = self._workers if in_worker else ASYNC_SINGLES if bound.signature.is_async else 1
            Singles(bound, call, verdicts, some, self._max_fault_share * count).call_each(spread_rows(retry), side_by_side)
        verdicts.retried, verdicts.seconds = len(retry), time.monotonic() - started
        bound.seconds = verdicts.seconds
        return verdicts

    def _call(self, bound: Bound, in_worker: bool, judged: Progress, call: RewardCall) -> Answered | Failed:
        reply = self._call_in_worker(bound, call) if in_worker else self._call_here(bound, call, judged.count_one)
        if isinstance(reply, Answered):
            judged.count_call(len(call.lengths))
        return reply

    def _note_retry(self, bound: Bound, reply: Failed) -> None:
        """Said once per part: the metric `retried` tells how often."""
        if not bound.retry_noted and not self._closed:  # whoever closes ends the workers, in the middle of a call
            bound.retry_noted = True
            reason = (reply.detail.strip().splitlines() or [reply.kind])[-1]
            self._note(f"reward {bound.name!r}: a call for many completions failed and was repeated one by one ({reason}).")

    def _fits_worker(self, bound: Bound, call: RewardCall) -> bool:
        """Whether the call can be put into JSON without changing a value."""
        if bound.spec is None:
            return False
        foreign = [
            f"args.{name}" if name in bound.part.args else name
            for name, value in call.arguments.items()
            if name not in ("completions", "completion_ids") and not is_plain(value)
        ]
        if foreign:
            self._note(
                f"reward {bound.name!r} runs in the trainer: JSON cannot carry {', '.join(foreign)} to a worker as it is. "
                "Over its time limit it stops the run."
            )
        return not foreign

    def _call_in_worker(self, bound: Bound, call: RewardCall) -> Answered | Failed:
        assert bound.spec is not None
        while True:
            with self._pool.borrow() as worker:
                try:
                    worker.load(bound.spec, bound.memory_mb)
                except LoadFailed as problem:
                    raise RewardError(f"{bound.place}.function: a new worker could not import it. {problem}") from None
                reply = worker.call_reward(bound.spec, call, bound.part.timeout_s)
            # One that was called before may be full of what others left there: a fresh one decides.
            if not (isinstance(reply, Failed) and reply.kind == "memory" and worker.calls > 1):
                return reply

    def _call_here(self, bound: Bound, call: RewardCall, on_verdict: Callable[[], None]) -> Answered | Failed:
        run = functools.partial(call_reward, bound.load_here(), call.copy(), self._loop.wait_for, on_verdict)
        if bound.signature.supervised:
            try:
                return run(let_through=(CohortError, JailUnavailable))
            except JailUnavailable as problem:
                raise RewardError(f"reward {bound.name!r}: {problem}") from problem
        try:
            return run_with_limit(run, bound.part.timeout_s)
        except TimeoutError:
            raise RewardError(
                f"reward {bound.name!r}: no answer within timeout_s = {bound.part.timeout_s:g} s for {len(call.lengths)} completions. "
                "It runs in a thread of the trainer, which cannot be stopped, so the run cannot go on. Put the function at "
                'the top level of a module of its own (and name it "module:function"): it then runs in a worker process '
                "that is killed at the limit. Or raise timeout_s."
            ) from None

    def _extract(self, bound: Bound, batch: ScoringBatch, verdicts: Verdicts) -> tuple[list[str | None], int]:
        """The compared answers, of completions the outcome part could read. Never at the cost of a score."""
        answers: list[str | None] = [None] * len(batch.texts)
        failed = 0
        rows = [row for row, entry in enumerate(verdicts.entries) if entry.fault is None]
        if not rows or not bound.signature.has_extract or not bound.extracts:
            return answers, failed
        in_worker = bound.spec is not None and all(map(is_plain, bound.part.args.values()))
        chunks = [[rows[i] for i in chunk] for chunk in split_evenly(len(rows), self._workers if in_worker else 1)]
        texts = [[batch.texts[row] for row in chunk] for chunk in chunks]
        replies = run_concurrently([functools.partial(self._extract_chunk, bound, chunk, in_worker) for chunk in texts])
        for chunk, (found, missed) in zip(chunks, replies, strict=True):
            failed += missed
            for row, answer in zip(chunk, found, strict=True):
                answers[row] = answer
        return answers, failed

    def _extract_chunk(self, bound: Bound, texts: list[str], in_worker: bool) -> tuple[list[str | None], int]:
        """(answers, how many extractions failed), from one call: all of them where it gave nothing."""
        args, limit_s = bound.part.args, bound.part.timeout_s
        try:
            if not in_worker:
                return run_with_limit(functools.partial(extract_answers, bound.load_here(), texts, copy_value(args)), limit_s)
            assert bound.spec is not None
            with self._pool.borrow() as worker:
                worker.load(bound.spec, bound.memory_mb)
                answers, failed = worker.ask({"op": "extract", "spec": bound.spec, "texts": texts, "args": dict(args)}, limit_s)
            if len(answers) == len(texts) and all(isinstance(answer, str | None) for answer in answers):
                return list(answers), int(failed)
        except TimeoutError:
            bound.extracts = False  # its thread is still running; a second one would not fare better
            self._note(f"reward {bound.name!r}: extract ran over the time limit and is not called again in this run.")
        except (LoadFailed, ProcessEnded, TypeError, ValueError):
            pass
        return [None] * len(texts), len(texts)
