"""Runs the reward functions of a recipe: lists in; one float, None or list of step rewards per completion out.

    with RewardRunner.for_run(recipe) as runner:      # starts the workers
        scored = runner.score(prompts, completions, step=1, num_steps=200)

A fault of a reward function (an exception, NaN, a wrong type or length, a crash) leaves the completion unscored and is counted; beyond
a share of the step it stops the run. A completion that makes the function hit its time limit scores 0 and is counted: otherwise hanging
would beat being wrong. Functions that can be imported by name run in worker processes, where such a call can be killed; the others
run in a thread of the trainer.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from cohort.base.importing import is_own, search_current_folder
from cohort.base.threads import LoopThread, run_concurrently, run_with_limit, split_evenly
from cohort.base.trees import copy_value
from cohort.base.world import ALONE, World
from cohort.errors import CohortError, RewardError
from cohort.rewards.call import (
    Answered,
    Failed,
    RewardCall,
    RewardEntry,
    Signature,
    TrainerState,
    call_reward,
    extract_answers,
    is_plain,
)
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
from cohort.rewards.early_scoring import EarlyPart, EarlyScoring, OnCompletion, is_worth_starting
from cohort.rewards.outcomes import check_faults, measure_rewards, sum_parts
from cohort.rewards.pool import HelperPool, LoadFailed, Worker
from cohort.rewards.retry_one_by_one import Progress, retry_one_by_one
from cohort.types import Completion, Prompt
from cohort_verify.sandbox import JailUnavailable, find_tier
from cohort_verify.workers import ProcessEnded

if TYPE_CHECKING:
    from cohort.recipe.schema import Recipe, RewardConfig

logger = logging.getLogger(__name__)

ASYNC_SINGLES = 16
"""Concurrent calls for single completions of an async function in the trainer."""


@dataclass(frozen=True)
class ScoredShare:
    """The parts' results for one rank's share of the completions."""

    verdicts: list[Verdicts]
    """One for each part."""
    answers: list[str | None]
    failed_extracts: int


class RewardRunner:
    """Runs the parts of the reward over the completions of a step.

    The recipe guarantees that each part has its own name and that at most one decides success.
    """

    def __init__(
        self, parts: Sequence[RewardPart], workers: int = 2, max_fault_share: float = 0.1, place: str = "rewards"
    ) -> None:
        """place: key of the parts in the recipe."""
        if not parts:
            raise RewardError("rewards: at least one part is needed.")
        self.parts = tuple(parts)
        self.sets: Mapping[str, RewardRunner] = {}
        """Runners of the evaluation sets that have their own rewards. They share this runner's workers."""
        self.notes: list[str] = []
        """Messages to the user about where functions run; each is also logged once."""
        self._bound = [bind_function(part, f"{place}.{index}") for index, part in enumerate(parts)]
        self._outcome = next((i for i, part in enumerate(parts) if part.outcome), 0)
        self._workers, self._max_fault_share = workers, max_fault_share
        self._pool = HelperPool()
        self._started = self._closed = False
        self._loop, self._one_by_one = LoopThread("async rewards"), threading.Lock()
        self.world = ALONE
        """The ranks that share the scoring; each scores the completions of its share of the prompts."""
        self.on_progress: Callable[[str, int, int], None] | None = None
        """Receives (part, completions scored, completions) from the scoring threads."""
        self.on_sampled: Callable[[int, int], None] | None = None
        """Receives (completions sampled, completions) during early scoring."""
        self._early: EarlyScoring | None = None

    @classmethod
    def from_recipe(
        cls,
        parts: Sequence[RewardConfig],
        functions: Mapping[str, Callable[..., Any]] | None = None,
        max_fault_share: float = 0.1,
        place: str = "rewards",
    ) -> Self:
        """The runner of these parts. `functions`: the callables behind names of the Python API, such as "python:correct"."""
        from cohort.recipe.rules import name_reward

        found = [(functions or {}).get(part.function, part.function) for part in parts]
        made = [
            RewardPart(**dict(part) | {"name": name_reward(part), "function": function})
            for part, function in zip(parts, found, strict=True)
        ]
        return cls(made, max_fault_share=max_fault_share, place=place)

    @classmethod
    def for_run(cls, recipe: Recipe, functions: Mapping[str, Callable[..., Any]] | None = None) -> Self:
        """The runner of a recipe's rewards, with those of its evaluation sets."""
        share, evaluation = recipe.train.max_fault_share, recipe.evaluation
        runner = cls.from_recipe(recipe.rewards, functions, share)
        runner.sets = {
            name: cls.from_recipe(one.rewards, functions, share, f"evaluation.sets.{name}.rewards")
            for name, one in evaluation.sets.items()
            if one.rewards and evaluation.samples
        }
        for one in runner.sets.values():
            one._pool, one.notes = runner._pool, runner.notes
        return runner

    # -----------------------------------------------------------------------------------------------------------------
    # Start and end
    # -----------------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the workers and import the functions in them. RewardError for a name that cannot be imported."""
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
            # A part uses at most `workers` of them, so with one more than all the other parts can use, none ever waits.
            parts = sum(bound.spec is not None for bound in remote)
            self._pool.grow((parts - 1) * self._workers + 1)
            for runner in self.sets.values():
                runner.start()
        except BaseException:
            self.close()
            raise
        return self

    def _warm_up(self, remote: Sequence[Bound]) -> None:
        """Import every function in one worker; if an import kills it, the next worker continues."""
        todo = list(remote)
        while todo:
            with self._pool.borrow() as worker:
                while todo and worker.alive:
                    self._load(worker, todo.pop(0))

    def _load(self, worker: Worker, bound: Bound) -> None:
        spec = bound.spec
        if spec is None:  # another worker has found that it must run in the trainer
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
                f"reward {bound.name!r} runs in the trainer, since a worker {problem} Its time limit then stops the run."
            )

    def close(self) -> None:
        for runner in self.sets.values():
            runner.close()
        self._closed = True
        self._pool.close()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def for_set(self, name: str) -> RewardRunner:
        """The runner that scores an evaluation set."""
        own = self.sets.get(name, self)
        own.world, own.on_progress = self.world, self.on_progress
        return own

    @property
    def has_answers(self) -> bool:
        """Whether the outcome part extracts answers, which majority votes need."""
        return self.start()._bound[self._outcome].signature.has_extract

    @property
    def needs_jail(self) -> bool:
        """Whether a part passes model text to this machine's jail."""
        own = any(bound.signature.jailed for bound in self.start()._bound)
        return own or any(runner.needs_jail for runner in self.sets.values())

    @property
    def jail(self) -> str:
        """Name of the jail for this run's untrusted text; empty if no part needs one, or the machine has none."""
        with contextlib.suppress(JailUnavailable):
            return find_tier().name if self.needs_jail else ""
        return ""

    def check_columns(self, prompts: Sequence[Prompt]) -> None:
        """Raise RewardError if a part needs a column that none of these rows has."""
        for bound in self.start()._bound:
            check_columns(bound, column_names(prompts))

    def find_unusable(self, prompts: Sequence[Prompt]) -> dict[str, list[tuple[int, str]]]:
        """By part: (number of the row, why it can never be scored), for parts that can tell before a run."""
        found = {bound.name: find_unusable_rows(bound, prompts) for bound in self.start()._bound}
        return {name: problems for name, problems in found.items() if problems}

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            logger.warning(text)

    # -----------------------------------------------------------------------------------------------------------------
    # Scoring
    # -----------------------------------------------------------------------------------------------------------------

    def start_early_scoring(self, prompts: Sequence[Prompt], *, step: int, num_steps: int) -> OnCompletion | None:
        """Start scoring while completions are sampled. The engine passes each to the returned function; call `score` with all of them.

        None if no part can start early: parts that may read the whole batch, parts that take no time, and parts that would only
        compete with the engine for this process.
        """
        own, state = find_own_rows(self.world, prompts), TrainerState.for_step(step, num_steps)
        early = EarlyScoring(prompts[own], own.start, column_names(prompts), state, self.on_sampled)
        rows = range(len(early.prompts))
        self._pool.terminal.refill()
        for bound in filter(is_worth_starting, self.start()._bound):
            in_worker = self._fits_worker(bound, early.collect_batch(rows).make_call(bound, rows))
            if in_worker or bound.signature.supervised or bound.signature.is_async:
                call = functools.partial(self._call, bound, in_worker, Progress(bound.name, len(rows), self.on_progress))
                early.parts.append(EarlyPart(bound, early, call, in_worker, self._workers if in_worker else 1))
        self._early = early if early.parts else None
        return early.add if early.parts else None

    def score(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Completion],
        *,
        step: int,
        num_steps: int,
        world: World | None = None,
    ) -> Scored:
        """One outcome per completion; prompts[i] is the prompt of completions[i]. world: the ranks that share the work, if not all."""
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
        started, self._early = self._early, None
        early = started.find_parts(prompts[own], completions[own]) if started else {}
        with self._one_by_one:  # scoring of the next step and an evaluation take turns
            shares = world.compute(lambda: [self._score_share(batch, early)])
        verdicts = [Verdicts.join(of_part) for of_part in zip(*(share.verdicts for share in shares), strict=True)]
        for verdict in verdicts:
            verdict.lose_faulty(completions)
        by_row = zip(*(verdict.entries for verdict in verdicts), strict=True)
        answers = [answer for share in shares for answer in share.answers]
        outcomes = sum_parts(self._bound, self._outcome, by_row, completions, answers)
        check_faults(self._bound, outcomes, verdicts, self._max_fault_share)
        failed_extracts = sum(share.failed_extracts for share in shares)
        return Scored(outcomes, measure_rewards(self._bound, outcomes, verdicts, failed_extracts))

    def _score_share(self, batch: ScoringBatch, early: Mapping[str, EarlyPart]) -> ScoredShare:
        """All parts' verdicts on these completions, and the extracted answers."""
        if not batch.texts:
            return ScoredShare([Verdicts([]) for _ in self._bound], [], 0)
        if not early:
            self._pool.terminal.refill()
        verdicts = run_concurrently(
            [functools.partial(self._score_part, bound, batch, early.get(bound.name)) for bound in self._bound]
        )
        return ScoredShare(verdicts, *self._extract(self._bound[self._outcome], batch, verdicts[self._outcome]))

    def _score_part(self, bound: Bound, batch: ScoringBatch, early: EarlyPart | None) -> Verdicts:
        """One part's verdicts: from early scoring, or from batch calls, of which the failed ones are retried one by one."""
        started, count = time.monotonic(), len(batch.texts)
        verdicts, everything = Verdicts([RewardEntry()] * count), range(count)
        if early is not None:
            if early.fill(verdicts):
                return verdicts
            self._note(f"reward {bound.name!r}: from now on it is called once all completions are sampled ({early.problem}).")
        in_worker = early.in_worker if early else self._fits_worker(bound, batch.make_call(bound, everything))
        call = functools.partial(self._call, bound, in_worker, Progress(bound.name, count, self.on_progress), batch)
        chunks = split_evenly(count, self._workers) if in_worker and bound.signature.per_completion else [list(everything)]
        retry: list[int] = []
        for rows, reply in zip(chunks, run_concurrently([functools.partial(call, rows) for rows in chunks]), strict=True):
            if isinstance(reply, Answered) or reply.has_wrong_form:
                verdicts.add(rows, reply)
                bound.limits_in_a_row = 0
                continue
            retry += rows
            verdicts.retry_detail = verdicts.retry_detail or reply.detail
            if not bound.retry_noted and not self._closed:  # closing ends the workers in the middle of a call
                bound.retry_noted = True
                reason = (reply.detail.strip().splitlines() or [reply.kind])[-1]
                self._note(f"reward {bound.name!r}: a batch call failed; retrying one completion at a time ({reason}).")
        if retry:
            side_by_side = self._workers if in_worker else ASYNC_SINGLES if bound.signature.is_async else 1
            answered = len(retry) < count
            retry_one_by_one(bound, call, verdicts, retry, side_by_side, answered, self._max_fault_share * count)
        verdicts.retried, verdicts.seconds = len(retry), time.monotonic() - started
        bound.seconds = verdicts.seconds
        return verdicts

    def _fits_worker(self, bound: Bound, call: RewardCall) -> bool:
        """Whether JSON can carry the call to a worker without changing a value."""
        if bound.spec is None:
            return False
        changed = [
            f"args.{name}" if name in bound.part.args else name
            for name, value in call.arguments.items()
            if name not in ("completions", "completion_ids") and not is_plain(value)
        ]
        if changed:
            self._note(
                f"reward {bound.name!r} runs in the trainer: JSON cannot carry {', '.join(changed)} to a worker unchanged. "
                "Its time limit then stops the run."
            )
        return not changed

    def _call(
        self, bound: Bound, in_worker: bool, progress: Progress, batch: ScoringBatch, rows: Sequence[int]
    ) -> Answered | Failed:
        """Call the part's function for these completions."""
        call = batch.make_call(bound, rows)
        reply = self._call_in_worker(bound, call) if in_worker else self._call_here(bound, call, progress.count_one)
        if isinstance(reply, Answered):
            progress.count_call(len(rows))
        return reply

    def _call_in_worker(self, bound: Bound, call: RewardCall) -> Answered | Failed:
        assert bound.spec is not None
        while True:
            with self._pool.borrow() as worker:
                try:
                    worker.load(bound.spec, bound.memory_mb)
                except LoadFailed as problem:
                    raise RewardError(f"{bound.place}.function: a new worker could not import it. {problem}") from None
                reply = worker.call_reward(bound.spec, call, bound.part.timeout_s)
            # Memory of earlier calls may have filled a used worker: try again in a fresh one.
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
                "It runs in a thread of the trainer, which cannot be stopped, so the run cannot continue. Move the function to "
                'the top level of its own module (and name it "module:function"): it then runs in a worker process '
                "that is killed at the limit. Or raise timeout_s."
            ) from None

    def _extract(self, bound: Bound, batch: ScoringBatch, verdicts: Verdicts) -> tuple[list[str | None], int]:
        """(the compared answers, failed extractions), for completions without a fault. Failures never change a score."""
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
        """(answers, failed extractions) of one call; all failed if the call did."""
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
            bound.extracts = False  # its thread is still running; another one would hang too
            self._note(f"reward {bound.name!r}: extract exceeded the time limit and is not called again in this run.")
        except (LoadFailed, ProcessEnded, TypeError, ValueError):
            pass
        return [None] * len(texts), len(texts)


def find_own_rows(world: World, prompts: Sequence[Prompt]) -> slice:
    """The completions that this rank scores: whole groups, whose prompts are adjacent."""
    starts = [row for row, prompt in enumerate(prompts) if row == 0 or prompt is not prompts[row - 1]] + [len(prompts)]
    block = world.block(len(starts) - 1)
    return slice(starts[block.start], starts[block.stop])
