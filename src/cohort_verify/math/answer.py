r"""Compares the final answer of a completion with the reference answer: exact match, then numbers, then algebra in a jail.

    math_answer([r"so \boxed{\frac{1}{\sqrt{2}}}"], answer=[r"\frac{\sqrt{2}}{2}"])   ->  [1.0]

It is stricter than the usual verifiers. It takes an answer only from a marker and never guesses. It compares numbers as exact
fractions: 0.5 = 1/2, but 0.333 is not 1/3 and 7% is not 7. A list of alternatives is not an answer. An unusable reference
answer is an error of the row and never gives a reward. In the trainer's process every step is bounded and linear in the text.
Anything beyond exact arithmetic is compared in jailed workers with limits on CPU time, wall clock and memory
(cohort_verify.math.symbolic), so no text can run code or block the run. docs/math-rewards.md has the rules.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cohort_verify import sandbox
from cohort_verify.math.compare import ExactJudge, find_verdict
from cohort_verify.math.find import (
    PatternTimeout,
    find_answer,
    find_reference,
    guess_answer,
    refuse_reference,
    show_reference,
    write_reference,
)
from cohort_verify.math.kinds import Group, Reading, Relation, Value, find_value, list_leaves
from cohort_verify.math.readers import read_answer
from cohort_verify.math.text import MAX_ANSWER_CHARS, normalise
from cohort_verify.math.words import read_plain_words
from cohort_verify.text import list_references, read_visible, text_of

logger = logging.getLogger(__name__)

ENTRY = "cohort_verify.math.symbolic:compare"
MEMORY_MB = 1024
SHARE = 0.5
"""Share of cpu_s after which a comparison stops by itself. If it cannot, the worker is killed at cpu_s and replaced."""
PROBLEMS = {"cpu": "timeout", "wall": "timeout", "memory": "memory", "output": "crash", "files": "crash", "crash": "crash"}
"""How a jailed worker ended -> the verdict."""
KEPT_REFERENCES, KEPT_CHARS = 4096, 2000
NO_JAIL = (
    "no jail works on this machine, so answers are compared only as text and numbers; `cohort doctor` shows what is missing"
)


@dataclass(frozen=True)
class MathVerdict:
    """A verdict: right, wrong, unevaluated, no_answer, unparsed, timeout, memory or crash; infrastructure if the completion is
    not to blame.
    """

    word: str
    detail: str = ""

    @property
    def score(self) -> float | None:
        return None if self.word == "infrastructure" else float(self.word == "right")


def math_answer(
    completions: Sequence[Any],
    answer: Sequence[Any],
    pattern: str = "",
    tolerance: float = 0.0,
    fast_path: bool = True,
    wall_s: float = 10.0,
    cpu_s: float = 2.0,
    log_verdict: Callable[..., Any] | None = None,
    log_extra: Callable[..., Any] | None = None,
    log_metric: Callable[..., Any] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 where the completion's final answer equals the row's `answer`, else 0.0; None if the verifier itself failed.

    If `answer` is a number, the final answer has to be one too: 95 + 82 scores 0.0 for 177, with the verdict `unevaluated`.
    `pattern` is a regular expression for the final answer (its last match, group 1 if it has one), used where there is no
    \\boxed{}. `tolerance` is an absolute difference that still counts as equal. `wall_s` and `cpu_s` limit the comparison of
    one completion. Without `fast_path` everything is compared in the workers, which is slower and gives the same verdicts.
    Raises ValueError for a reference answer that is empty or unusable.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance: a number from 0 up is expected, got {tolerance!r}")
    column = list_references(answer, completions)
    unique = {id(gold): gold for gold in column}  # the completions of a group share one object
    known = {key: find_reference(gold) for key, gold in unique.items()}
    references, count = [known[id(gold)] for gold in column], len(column)
    texts = [text_of(completion) for completion in completions]
    found = [find_or_refuse(text, pattern) for text in texts]
    guesses = [(guess_answer(text) if one == NO_ANSWER else None) or one for text, one in zip(texts, found, strict=True)]
    comparer = Comparer(Fraction(repr(float(tolerance))), fast_path, wall_s, cpu_s)
    verdicts = comparer.judge(list(zip(found + guesses, references + references, strict=True)))
    strict, lenient = ([verdict.score for verdict in half] for half in (verdicts[:count], verdicts[count:]))
    if log_verdict is not None:
        for row, verdict in enumerate(verdicts[:count]):
            log_verdict(row, verdict.word, verdict.detail)
    if log_extra is not None:
        log_extra("lenient", lenient)
    if log_metric is not None:
        for name, scores in (("strict", strict), ("lenient", lenient)):
            for score in scores:  # TRL expects one value per call
                if score is not None:
                    log_metric(name, score)
    return strict


NO_ANSWER = MathVerdict("no_answer", "no marker with an answer")


find_kept = functools.lru_cache(maxsize=KEPT_REFERENCES)(find_answer)
"""Caches short texts: an answer is extracted once for the score and again for the majority vote. Timeouts are not cached."""


def find_or_refuse(text: str, pattern: str) -> str | MathVerdict:
    try:
        found = find_kept(text, pattern) if len(text) <= KEPT_CHARS else find_answer(text, pattern)
    except PatternTimeout as problem:
        return MathVerdict("timeout", str(problem))
    return NO_ANSWER if found is None or (len(found) <= MAX_ANSWER_CHARS and not normalise(found)) else found


def extract(completion: str, pattern: str = "") -> str | None:
    """Return the extracted answer, with one spelling per number: "0.50" and 1/2 both give "1/2"."""
    found = find_or_refuse(completion, pattern)
    if isinstance(found, MathVerdict):
        return None
    if len(found) > MAX_ANSWER_CHARS:
        return found
    text, reading = normalise(found), read_answer(found)
    if isinstance(reading, Relation):
        reading = find_value(reading, strict=False) or reading
    if isinstance(reading, Group) and reading.grouped is not None:
        reading = reading.grouped
    number = reading.exact if isinstance(reading, Value) and reading.is_numeral and not reading.doubtful else None
    if number is None:
        return text or None
    return f"{number * 100}%" if text.endswith("%") else str(number)


def unusable(answer: Sequence[Any], wall_s: float = 10.0, cpu_s: float = 2.0, **columns: Any) -> list[str | None]:
    """Return for each row why its reference answer can never be scored, or None. Reads each one and evaluates it in a worker."""
    texts: dict[int, str] = {}
    reasons: list[str | None] = []
    for row, gold in enumerate(answer):
        try:
            texts[row] = find_reference(gold)
            reasons.append(None)
        except ValueError as error:
            reasons.append(str(error))
    problems = Comparer(Fraction(0), True, wall_s, cpu_s).check_references(list(texts.values()))
    for row, problem in zip(texts, problems, strict=True):
        reasons[row] = str(refuse_reference(answer[row], problem)) if problem else None
    return reasons


def exact_match(completions: Sequence[Any], answer: Sequence[Any], ignore_case: bool = False, **columns: Any) -> list[float]:
    """1.0 where the completion (without <think> and outer spaces) is exactly the row's `answer`, else 0.0."""
    references = [read_whole(write_reference(gold), ignore_case) for gold in list_references(answer, completions)]
    texts = [read_whole(text_of(completion), ignore_case) for completion in completions]
    return [float(text == gold) for text, gold in zip(texts, references, strict=True)]


def read_whole(completion: str, ignore_case: bool = False) -> str:
    text = read_visible(completion).strip()
    return text.casefold() if ignore_case else text


# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    reading: Reading
    words: str
    """Words to compare by, if the answer is plain text such as June 20, else ""."""
    problem: str
    """Why only its own spelling could match it, else ""."""
    needs_worker: bool


@functools.lru_cache(maxsize=KEPT_REFERENCES)
def read_reference(text: str) -> Reference:
    reading = read_answer(text)
    leaves = list(list_leaves(reading))
    refused = next((leaf.refused for leaf in leaves if leaf.refused), "")
    words = read_plain_words(text) if refused else ""
    return Reference(reading, words, "" if words else refused, not refused and any(leaf.exact is None for leaf in leaves))


class Comparer:
    """Judges (found, reference) pairs: in this process where possible, otherwise in the jailed workers."""

    checked: dict[str, str] = {}
    """Reference answers checked by a worker -> the problem found, or ""."""

    def __init__(self, tolerance: Fraction, fast_path: bool, wall_s: float, cpu_s: float) -> None:
        self.tolerance, self.fast_path, self.wall_s, self.cpu_s = tolerance, fast_path, wall_s, cpu_s

    def judge(self, questions: Sequence[tuple[str | MathVerdict, str]]) -> list[MathVerdict]:
        """Return one verdict per pair, keeping verdicts that are already given. Equal pairs, common within a group, are
        compared once.
        """
        verdicts: dict[tuple[str | MathVerdict, str], MathVerdict] = {}
        remaining: list[tuple[str, str]] = []
        for found, gold in dict.fromkeys(questions):
            verdict = self.compare_here(found, gold) if isinstance(found, str) else found
            if verdict is not None:
                verdicts[found, gold] = verdict
            elif isinstance(found, str):
                remaining.append((found, gold))
        verdicts |= zip(remaining, self.compare_in_workers(remaining), strict=True)
        return [verdicts[question] for question in questions]

    def compare_here(self, found: str, text: str) -> MathVerdict | None:
        """Return the verdict of exact and numeric matching, or None if undecided."""
        if len(found) > MAX_ANSWER_CHARS:
            is_same_text = found.strip() == text.strip()
            return MathVerdict("right") if is_same_text else MathVerdict("unparsed", "the answer is too long to be read")
        gold = read_reference(text)
        is_same_text = normalise(found) == normalise(text)
        if gold.words:
            return MathVerdict("right" if is_same_text or read_plain_words(found) == gold.words else "wrong")
        if not self.fast_path:
            return None
        judge = ExactJudge(self.tolerance)
        word = "right" if is_same_text else find_verdict(read_answer(found), gold.reading, judge)
        if gold.problem and word not in ("right", None):
            return blame_reference(text, gold.problem)
        detail = (judge.unread or judge.reference_unread) if word == "unparsed" else ""
        return MathVerdict(word, detail) if word else None

    def compare_in_workers(self, questions: Sequence[tuple[str, str]]) -> list[MathVerdict]:
        answers = self.ask([{"found": found, "gold": gold, "tolerance": str(self.tolerance)} for found, gold in questions])
        if answers is None:
            return [MathVerdict("unparsed", NO_JAIL)] * len(questions)
        return [self.read_verdict(answer, gold) for answer, (_, gold) in zip(answers, questions, strict=True)]

    def ask(self, messages: Sequence[dict[str, Any]]) -> list[sandbox.Answer] | None:
        """Send messages to the workers. Returns None without a jail: no model text may reach a computer algebra system outside
        one.
        """
        if not messages:
            return []
        limits = sandbox.Limits(cpu_s=self.cpu_s, wall_s=self.wall_s, memory_mb=MEMORY_MB)
        try:
            sandbox.find_tier()
        except sandbox.JailUnavailable as problem:
            warn_without_jail(str(problem))
            return None
        try:
            pool = sandbox.shared_pool(ENTRY, limits=limits, retire_after=was_stopped_midway)
            return pool.ask_many([{**message, "cpu_s": SHARE * self.cpu_s} for message in messages], limits)
        except sandbox.JailUnavailable as problem:  # the jail exists but fails just now, which says nothing about the answers
            return [sandbox.Answer(problem="infrastructure", detail=str(problem))] * len(messages)

    def read_verdict(self, answer: sandbox.Answer, gold: str) -> MathVerdict:
        if answer.problem == "infrastructure":
            return MathVerdict("infrastructure", answer.detail)
        word, detail = read_field(answer, "verdict"), read_field(answer, "detail")
        if word in ("right", "wrong", "unevaluated") and not answer.problem:
            return MathVerdict(word)
        if answer.problem:
            # An exception of the verifier counts against the text that caused it. Otherwise it would be a way to avoid being
            # scored.
            word, detail = PROBLEMS.get(answer.problem, "unparsed"), answer.detail
        # Only a reference answer that fails on its own excuses the row. Otherwise a completion could make itself unscored.
        if word in ("gold", "timeout", "memory", "crash") and (problem := self.check_references([gold])[0]):
            return blame_reference(gold, problem)
        return MathVerdict(word if word in ("unparsed", "timeout", "memory", "crash") else "unparsed", detail)

    def check_references(self, references: Sequence[str]) -> list[str]:
        """Return the problem of each reference answer on its own; "" if there is none, or no jail to check it in."""
        todo = [gold for gold in dict.fromkeys(references) if gold not in self.checked and read_reference(gold).needs_worker]
        answers = self.ask([{"gold": gold} for gold in todo])
        for gold, answer in zip(todo, answers or [], strict=False):
            if answer.problem == "infrastructure":
                continue
            if len(self.checked) >= KEPT_REFERENCES:
                self.checked.clear()
            self.checked[gold] = (
                f"evaluating it ended with: {answer.problem}" if answer.problem else read_field(answer, "detail")
            )
        return [read_reference(gold).problem or self.checked.get(gold, "") for gold in references]


def read_field(answer: sandbox.Answer, key: str) -> str:
    return str(answer.value.get(key, "")) if isinstance(answer.value, dict) else ""


def blame_reference(gold: str, problem: str) -> MathVerdict:
    return MathVerdict("infrastructure", f"the reference answer {show_reference(gold)} cannot be used: {problem}")


def was_stopped_midway(answer: sandbox.Answer) -> bool:
    """Return whether a comparison was interrupted, which may leave the algebra system's caches broken."""
    return read_field(answer, "verdict") == "timeout"


@functools.cache
def warn_without_jail(problem: str) -> None:
    """Log the warning once."""
    logger.warning("math_answer: %s (%s)", NO_JAIL, problem)


math_answer.extract = extract  # type: ignore[attr-defined]
math_answer.unusable = unusable  # type: ignore[attr-defined]
math_answer.reads = ("completions", "answer")  # type: ignore[attr-defined]
math_answer.per_completion = True  # type: ignore[attr-defined]
math_answer.supervised = True  # type: ignore[attr-defined]
math_answer.jailed = True  # type: ignore[attr-defined]
exact_match.extract = read_whole  # type: ignore[attr-defined]
exact_match.reads = ("completions", "answer")  # type: ignore[attr-defined]
exact_match.per_completion = True  # type: ignore[attr-defined]
