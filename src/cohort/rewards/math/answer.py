r"""Does the completion's final answer equal the gold answer? Exact match, numbers, then mathematics in a jail.

    math_answer([r"so \boxed{\frac{1}{\sqrt{2}}}"], answer=[r"\frac{\sqrt{2}}{2}"])   ->  [1.0]

Differs from the usual verifiers in what it refuses to do. It takes an answer only from a marker and never guesses; it
compares numbers as exact fractions, so 0.5 = 1/2 and 0.333 is not 1/3; 7% is not 7; a list of alternatives is not an
answer; a gold answer it cannot use is an error of the row, never a reward. In the trainer every step is linear in the text
and bounded; whatever needs more than exact arithmetic is compared in jailed worker processes with limits on CPU time,
wall clock and memory (cohort.rewards.math.symbolic), so no text can run code, hang the run or stall its threads. The rules
are in docs/math-rewards.md.
"""

from __future__ import annotations

import functools
import logging
import math
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from cohort.rewards.math.compare import ExactJudge, is_same
from cohort.rewards.math.find import PatternTimeout, find_answer, gold_text, guess, plain_gold, shown
from cohort.rewards.math.kinds import Group, Reading, Relation, Value, find_value, list_leaves
from cohort.rewards.math.readers import read_answer
from cohort.rewards.math.text import MAX_ANSWER_CHARS, normalise
from cohort.rewards.math.tree import find_exact
from cohort.rewards.math.words import read_plain_words
from cohort.rewards.text import as_rows, text_of, visible_text

if TYPE_CHECKING:
    from cohort.sandbox import Answer

logger = logging.getLogger(__name__)

ENTRY = "cohort.rewards.math.symbolic:compare"
MEMORY_MB = 1024
SHARE = 0.5
"""Of cpu_s, after which a comparison gives up by itself. One that cannot is killed at cpu_s, and its worker replaced."""
PROBLEMS = {"cpu": "timeout", "wall": "timeout", "memory": "memory", "output": "crash", "files": "crash", "crash": "crash"}
"""How a jailed worker ended, as a verdict."""
KEPT_GOLDS = 4096


def stopped_midway(answer: Answer) -> bool:
    """A comparison that ran out of time may have left a table of the algebra system half built, for good."""
    return isinstance(answer.value, dict) and answer.value.get("verdict") == "timeout"


@dataclass(frozen=True)
class Verdict:
    """right, wrong, no_answer, unparsed, timeout, memory, crash: the completion's doing. infrastructure: not."""

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
    """1.0 where the completion's final answer equals the row's `answer`, else 0.0; None where the verifier itself failed.

    `pattern` is a regular expression for the final answer (its last match, group 1 if it has one), used where there is
    no \\boxed{}. `tolerance` is an absolute difference that still counts as equal. `wall_s` and `cpu_s` limit the
    comparison of one completion. Without `fast_path` everything is compared in the workers, which is slower and gives the
    same verdicts. Raises on a gold answer that is empty or no answer at all.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance: a number from 0 up is expected, got {tolerance!r}")
    golds = [gold_text(gold) for gold in as_rows(answer, completions)]
    texts = [text_of(completion) for completion in completions]
    comparer = Comparer(Fraction(repr(float(tolerance))), fast_path, wall_s, cpu_s)
    found = [found_in(text, pattern) for text in texts]
    guesses = [
        guess(text) if isinstance(one, Verdict) and one.word == "no_answer" else None
        for text, one in zip(texts, found, strict=True)
    ]
    questions = [one if isinstance(one, str) else None for one in found]
    judged = comparer.judge([*zip(questions, golds, strict=True), *zip(guesses, golds, strict=True)])
    strict = [one if isinstance(one, Verdict) else judged[row] for row, one in enumerate(found)]
    lenient = [
        judged[len(golds) + row].score if guesses[row] is not None else verdict.score for row, verdict in enumerate(strict)
    ]
    if log_verdict is not None:
        for row, verdict in enumerate(strict):
            log_verdict(row, verdict.word, verdict.detail)
    if log_extra is not None:
        log_extra("lenient", lenient)
    if log_metric is not None:
        for name, scores in (("strict", [verdict.score for verdict in strict]), ("lenient", lenient)):
            known = [score for score in scores if score is not None]
            if known:
                log_metric(name, statistics.fmean(known))
    return [verdict.score for verdict in strict]


def found_in(text: str, pattern: str) -> str | Verdict:
    try:
        found = find_answer(text, pattern)
    except PatternTimeout as problem:
        return Verdict("timeout", str(problem))
    if found is None or (len(found) <= MAX_ANSWER_CHARS and not normalise(found)):
        return Verdict("no_answer", "there is no marker with an answer")
    return found


def extract(completion: str, pattern: str = "") -> str | None:
    """The answer that is compared, in one form for all spellings of a number ("0.50" and 1/2 are both "1/2")."""
    found = found_in(completion, pattern)
    if isinstance(found, Verdict):
        return None
    if len(found) > MAX_ANSWER_CHARS:
        return found
    text = normalise(found)
    shape = read_answer(found)
    if isinstance(shape, Relation):
        shape = find_value(shape, strict=False) or shape
    if isinstance(shape, Group) and shape.grouped is not None:
        shape = shape.grouped
    readable = isinstance(shape, Value) and not shape.doubtful
    number = find_exact(shape.node) if isinstance(shape, Value) and readable and shape.node is not None else None
    if number is None:
        return text or None
    return f"{number * 100}%" if text.endswith("%") else str(number)


def unusable(answer: Sequence[Any], wall_s: float = 10.0, cpu_s: float = 2.0, **columns: Any) -> list[str | None]:
    """Per row, why its gold answer can never be scored, or None: each is read, and evaluated in a worker, before the run."""
    reasons: list[str | None] = []
    for gold in answer:
        try:
            problem = gold_problem(gold_text(gold))
            reasons.append(f"unusable gold answer {shown(gold)}: {problem}" if problem else None)
        except ValueError as error:
            reasons.append(str(error))
    open_rows = [row for row, reason in enumerate(reasons) if reason is None and needs_worker(gold_text(answer[row]))]
    checks = Comparer(Fraction(0), True, wall_s, cpu_s).check_golds([gold_text(answer[row]) for row in open_rows])
    for row, found in zip(open_rows, checks, strict=True):
        reasons[row] = f"unusable gold answer {shown(answer[row])}: {found}" if found else None
    return reasons


def exact_match(completions: Sequence[Any], answer: Sequence[Any], ignore_case: bool = False, **columns: Any) -> list[float]:
    """1.0 where the completion (outside <think>, outer spaces aside) is the row's `answer`, letter for letter."""
    golds = [whole_text(plain_gold(gold), ignore_case) for gold in as_rows(answer, completions)]
    return [
        float(whole_text(text_of(completion), ignore_case) == gold) for completion, gold in zip(completions, golds, strict=True)
    ]


def whole_text(completion: str, ignore_case: bool = False) -> str:
    text = visible_text(completion).strip()
    return text.casefold() if ignore_case else text


# ---------------------------------------------------------------------------------------------------------------------
# Golds
# ---------------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=KEPT_GOLDS)
def read_gold(gold: str) -> Reading:
    return read_answer(gold)


def refusal(gold: str) -> str:
    return next((leaf.refused for leaf in list_leaves(read_gold(gold)) if leaf.refused), "")


@functools.lru_cache(maxsize=KEPT_GOLDS)
def gold_as_words(gold: str) -> str:
    """Of a gold that is no mathematics but can be an answer (June 20), the words it is compared by; "" for any other."""
    return read_plain_words(gold) if refusal(gold) else ""


def gold_problem(gold: str) -> str:
    """Why no spelling but its own could ever match it; "" for nothing."""
    return "" if gold_as_words(gold) else refusal(gold)


def needs_worker(gold: str) -> bool:
    return not gold_as_words(gold) and any(
        leaf.node is None or find_exact(leaf.node) is None for leaf in list_leaves(read_gold(gold))
    )


# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------

Question = tuple[str | None, str]


class Comparer:
    """Judges (found, gold) pairs: those it can in this process, the others in the jailed workers."""

    checked: dict[str, str] = {}
    """Golds that a worker was asked about, and what is wrong with them ("" for nothing)."""
    warned = threading.Event()

    def __init__(self, tolerance: Fraction, fast_path: bool, wall_s: float, cpu_s: float) -> None:
        self.tolerance, self.fast_path, self.wall_s, self.cpu_s = tolerance, fast_path, wall_s, cpu_s

    def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """One verdict per pair. Equal pairs, the rule in a group of completions, are compared once."""
        verdicts: dict[Question, Verdict | None] = {}
        for question in questions:
            if question not in verdicts:
                verdicts[question] = self.here(*question)
        open_ones = [(found, gold) for (found, gold), verdict in verdicts.items() if verdict is None and found is not None]
        verdicts.update(zip(open_ones, self.in_workers(open_ones), strict=True))
        return [verdict for question in questions if (verdict := verdicts[question]) is not None]

    def here(self, found: str | None, gold: str) -> Verdict | None:
        """The verdict of exact and numeric matching; None where they cannot tell."""
        if found is None:
            return Verdict("no_answer")
        if len(found) > MAX_ANSWER_CHARS:
            return (
                Verdict("right") if found.strip() == gold.strip() else Verdict("unparsed", "the answer is too long to be read")
            )
        if words := gold_as_words(gold):
            return Verdict("right" if normalise(found) == normalise(gold) or read_plain_words(found) == words else "wrong")
        if not self.fast_path:
            return None
        if normalise(found) == normalise(gold):
            return Verdict("right")
        judge = ExactJudge(self.tolerance)
        verdict = is_same(read_answer(found), read_gold(gold), judge)
        if verdict is None:
            return None
        if verdict:
            return Verdict("right")
        if problem := gold_problem(gold):
            return Verdict("infrastructure", f"the gold answer {shown(gold)} cannot be used: {problem}")
        return Verdict("unparsed", judge.unread or judge.gold_unread) if judge.unread or judge.gold_unread else Verdict("wrong")

    def in_workers(self, questions: Sequence[tuple[str, str]]) -> list[Verdict]:
        messages = [
            {"found": found, "gold": gold, "tolerance": str(self.tolerance), "cpu_s": SHARE * self.cpu_s}
            for found, gold in questions
        ]
        answers = self.ask(messages)
        if answers is None:
            return [Verdict("unparsed", NO_JAIL)] * len(questions)
        return [self.verdict_of(answer, gold) for answer, (_, gold) in zip(answers, questions, strict=True)]

    def ask(self, messages: Sequence[Any]) -> list[Answer] | None:
        """None: there is no jail here, and without one no model text is given to a computer algebra system."""
        if not messages:
            return []
        from cohort.sandbox import Answer, JailUnavailable, Limits, find_tier, shared_pool

        limits = Limits(cpu_s=self.cpu_s, wall_s=self.wall_s, memory_mb=MEMORY_MB)
        try:
            find_tier()
        except JailUnavailable as problem:
            if not self.warned.is_set():
                self.warned.set()
                logger.warning("math_answer: %s (%s)", NO_JAIL, problem)
            return None
        try:
            return shared_pool(ENTRY, limits=limits, retire_after=stopped_midway).ask_many(messages, limits)
        except JailUnavailable as problem:  # this machine has a jail, which fails just now: no one's answer is worse for it
            return [Answer(problem="infrastructure", detail=str(problem))] * len(messages)

    def verdict_of(self, answer: Answer, gold: str) -> Verdict:
        if answer.problem == "infrastructure":
            return Verdict("infrastructure", answer.detail)
        said = answer.value if isinstance(answer.value, dict) else {}
        word, detail = str(said.get("verdict", "")), str(said.get("detail", ""))
        if word in ("right", "wrong") and not answer.problem:
            return Verdict(word)
        if answer.problem:
            # An exception of the verifier on this text is the text's doing too: else a way out of being scored.
            word, detail = PROBLEMS.get(answer.problem, "unparsed"), answer.detail
        # Only what `unusable` says of the gold by itself excuses a row: else a completion could make itself unscored.
        if word in ("gold", "timeout", "memory", "crash") and (problem := self.gold_alone(gold)):
            return Verdict("infrastructure", f"the gold answer {shown(gold)} cannot be used: {problem}")
        return Verdict(word if word in ("unparsed", "timeout", "memory", "crash") else "unparsed", detail)

    def gold_alone(self, gold: str) -> str:
        """What is wrong with the gold answer by itself, which is not the completion's doing; "" for nothing."""
        return gold_problem(gold) or (self.check_golds([gold])[0] if needs_worker(gold) else "")

    def check_golds(self, golds: Sequence[str]) -> list[str]:
        """What is wrong with each gold, evaluated by itself; "" for nothing, or where there is no jail to ask in."""
        todo = [gold for gold in dict.fromkeys(golds) if gold not in self.checked]
        answers = self.ask([{"gold": gold, "cpu_s": SHARE * self.cpu_s} for gold in todo])
        for gold, answer in zip(todo, answers or [], strict=False):
            said = answer.value if isinstance(answer.value, dict) else {}
            if answer.problem == "infrastructure":
                continue
            problem = str(said.get("detail", "")) if not answer.problem else f"evaluating it ended with: {answer.problem}"
            if len(self.checked) >= KEPT_GOLDS:
                self.checked.clear()
            self.checked[gold] = problem
        return [self.checked.get(gold, "") for gold in golds]


NO_JAIL = "there is no jail on this machine, so answers are compared as text and as numbers only; `cohort doctor` says what is missing"

math_answer.extract = extract  # type: ignore[attr-defined]
math_answer.unusable = unusable  # type: ignore[attr-defined]
math_answer.reads = ("completions", "answer")  # type: ignore[attr-defined]
math_answer.supervised = True  # type: ignore[attr-defined]
math_answer.jailed = True  # type: ignore[attr-defined]
exact_match.extract = whole_text  # type: ignore[attr-defined]
exact_match.reads = ("completions", "answer")  # type: ignore[attr-defined]
exact_match.per_completion = True  # type: ignore[attr-defined]
