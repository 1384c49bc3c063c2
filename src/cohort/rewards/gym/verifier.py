"""The reward of gym tasks: the task's own verifier, in a jailed worker, behind the guards of the trusted process.

    completion -> final answer (extract.py) -> guard (guards.py) -> verifier (worker.py, jailed) -> score, verdict

Where the machine has no jail, tasks whose modules cannot run text are scored in ordinary worker processes, which are
killed at the time limit; the others are refused.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cohort.errors import PromptError
from cohort.rewards.gym.catalogue import JAILED_TASKS, require_served
from cohort.rewards.gym.extract import extract_answer
from cohort.rewards.gym.golds import find_right_answer
from cohort.rewards.gym.guards import AnswerRefused, admit
from cohort.rewards.pool import HelperPool
from cohort_verify.sandbox import Answer, JailUnavailable, Limits, shared_pool
from cohort_verify.text import find_last_tag, text_of
from cohort_verify.workers import keep_pool

SCORE = "cohort.rewards.gym.worker:score_answer"
FIND = "cohort.rewards.gym.extract:find_answer"
LIMITS = Limits(cpu_s=5, memory_mb=2048, files_mb=1)
"""A verdict takes milliseconds, and up to half a second the first time a worker meets a task."""
VERDICTS = {"cpu": "timeout", "wall": "timeout", "memory": "memory", "output": "output", "files": "files", "crash": "crash"}
"""What the answer did to the worker, and the word for it. Any other problem is the machinery's."""
PLAIN_WORKERS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GymVerdict:
    score: float | None
    """None: nobody knows."""
    word: str
    detail: str = ""
    error: str = ""
    """Name of the exception that the verifier raised."""


def gym_verifier(
    completions: Sequence[Any],
    entry: Sequence[Any],
    task: Sequence[str],
    pattern: str = "",
    gym_args: Sequence[Mapping[str, Any] | None] | None = None,
    wall_s: float = 10.0,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_verdict: Callable[..., None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Score of the final answer by the task's own verifier, 0 to 1; many tasks give part marks below 1.

    An answer that makes a verifier raise is a wrong answer: 0.0, and logged in the column `verifier_error`.
    """
    answers = find_answers([text_of(completion) for completion in completions], pattern, wall_s)
    settings = gym_args if gym_args is not None else [None] * len(answers)
    verdicts = judge_answers(answers, [parse_entry(one) for one in entry], task, settings, wall_s)
    if log_extra is not None and any(verdict.error for verdict in verdicts):
        log_extra("verifier_error", [verdict.error for verdict in verdicts])
    if log_verdict is not None:
        for row, verdict in enumerate(verdicts):
            log_verdict(row, verdict.word, verdict.detail)
    return [verdict.score for verdict in verdicts]


def unusable(
    entry: Sequence[Any], task: Sequence[str], gym_args: Sequence[Mapping[str, Any] | None] | None = None, **columns: Any
) -> list[str | None]:
    """Why a row can never be scored: its task is not served, its entry is not the task's, its own answer does not score."""
    settings = gym_args if gym_args is not None else [None] * len(entry)
    problems: list[str | None] = [None] * len(entry)
    golds: dict[int, str] = {}
    for row, (one, name) in enumerate(zip(entry, task, strict=True)):
        try:
            require_served(name)
            gold = find_right_answer(name, parse_entry(one))
            if gold is not None:
                golds[row] = gold
        except PromptError as problem:
            problems[row] = str(problem)
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as problem:
            problems[row] = f"entry: not an entry of gym task {name} ({type(problem).__name__}: {problem})"
    rows = list(golds)
    verdicts = judge_answers(
        [golds[row] for row in rows],
        [parse_entry(entry[row]) for row in rows],
        [task[row] for row in rows],
        [settings[row] for row in rows],
        LIMITS.wall_s,
    )
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.score != 1.0:
            said = verdict.detail or verdict.error or f"it scores {verdict.score}"
            problems[row] = f"entry: its own answer {golds[row][:80]!r} is not right by gym task {task[row]} ({said})"
    return problems


gym_verifier.supervised = True  # type: ignore[attr-defined]
gym_verifier.jailed = True  # type: ignore[attr-defined]
gym_verifier.unusable = unusable  # type: ignore[attr-defined]
gym_verifier.extract = extract_answer  # type: ignore[attr-defined]


def parse_entry(entry: Any) -> Any:
    return json.loads(entry) if isinstance(entry, str) else entry


# ---------------------------------------------------------------------------------------------------------------------
# Answers and verdicts
# ---------------------------------------------------------------------------------------------------------------------


def find_answers(texts: Sequence[str], pattern: str, wall_s: float) -> list[str | GymVerdict]:
    """The final answers. A pattern is the user's and the text the model's: together they may take for ever."""
    if not pattern:
        return [extract_answer(text) for text in texts]
    re.compile(pattern)
    answers: list[str | GymVerdict] = [extract_answer(text) for text in texts]
    untagged = [row for row, text in enumerate(texts) if find_last_tag(text) is None]
    messages = [{"completion": texts[row], "pattern": pattern} for row in untagged]
    found = ask_workers(FIND, messages, LIMITS, wall_s, "", must_be_jailed=False)
    for row, answer in zip(untagged, found, strict=True):
        answers[row] = str(answer.value) if not answer.problem else read_failure(answer)
    return answers


def judge_answers(
    answers: Sequence[str | GymVerdict],
    entries: Sequence[Any],
    tasks: Sequence[str],
    settings: Sequence[Mapping[str, Any] | None],
    wall_s: float,
) -> list[GymVerdict]:
    for name in dict.fromkeys(tasks):  # Rows can come from a file, and a file can name any task.
        require_served(name)
    verdicts: list[GymVerdict | None] = [None] * len(answers)
    messages: dict[int, dict[str, Any]] = {}
    for row, (answer, entry, name, chosen) in enumerate(zip(answers, entries, tasks, settings, strict=True)):
        if isinstance(answer, GymVerdict):
            verdicts[row] = answer
            continue
        try:
            admitted = admit(name, answer, entry)
            messages[row] = {"task": name, "settings": dict(chosen or {}), "entry": entry, "answer": admitted}
        except AnswerRefused as refusal:
            verdicts[row] = GymVerdict(0.0, refusal.verdict, refusal.detail)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
            detail = f"entry: not an entry of gym task {name} ({type(problem).__name__}: {problem})"
            verdicts[row] = GymVerdict(None, "infrastructure", detail)
    must_be_jailed = any(message["task"] in JAILED_TASKS for message in messages.values())
    only_jailed = "gym tasks whose modules can run text are scored in a jail only"
    replies = ask_workers(SCORE, list(messages.values()), LIMITS, wall_s, only_jailed, must_be_jailed)
    for row, reply in zip(messages, replies, strict=True):
        verdicts[row] = read_verdict(reply)
    return [verdict for verdict in verdicts if verdict is not None]


def read_verdict(reply: Answer) -> GymVerdict:
    if reply.problem:
        return read_failure(reply)
    said = reply.value if isinstance(reply.value, dict) else {}
    error, score = said.get("error"), said.get("score")
    if isinstance(error, str):
        return GymVerdict(0.0, "wrong", f"the verifier raised {error}", error)
    if not isinstance(score, int | float) or isinstance(score, bool):
        return GymVerdict(None, "infrastructure", "the verifier's worker gave no score")
    if not (math.isfinite(score) and 0.0 <= score <= 1.0):
        # Only a flaw of the verifier gives such a number, and a wrong answer has found it.
        return GymVerdict(0.0, "wrong", f"the verifier gave {score}", "ScoreOutOfRange")
    return GymVerdict(float(score), "right" if score == 1.0 else "wrong")


def read_failure(reply: Answer) -> GymVerdict:
    word = VERDICTS.get(reply.problem)
    if word is None:
        return GymVerdict(None, "infrastructure", f"{reply.problem}: {reply.detail}")
    return GymVerdict(0.0, word, reply.detail)


# ---------------------------------------------------------------------------------------------------------------------
# Workers
# ---------------------------------------------------------------------------------------------------------------------


def ask_workers(
    entry: str, messages: Sequence[Any], limits: Limits, wall_s: float, refusal: str, must_be_jailed: bool
) -> list[Answer]:
    """Answers of jailed workers, or, where the machine has no jail and none must be, of ordinary ones."""
    try:
        return shared_pool(entry, limits).ask_many(messages, replace(limits, wall_s=wall_s))
    except JailUnavailable as problem:
        if must_be_jailed:
            raise PromptError(f"{refusal}, and {problem}") from problem
        warn_of_plain_workers(str(problem))
    # The order of sets must not decide a row or a verdict: in a jail the hash seed is fixed as well.
    pool = keep_pool(entry, lambda: HelperPool(PLAIN_WORKERS, entry, {"PYTHONHASHSEED": "0"}))
    return pool.ask_many(messages, replace(limits, wall_s=wall_s))


@functools.cache
def warn_of_plain_workers(problem: str) -> None:
    """Said once."""
    logger.warning("gym tasks are worked on in ordinary processes, under the time limit alone: %s", problem)
