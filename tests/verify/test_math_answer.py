"""math_answer beyond the table: its log, refused reference answers, and a missing or broken jail."""

from __future__ import annotations

import logging
import statistics

import pytest

import cohort_verify.sandbox
from cohort.rewards import math_answer
from cohort_verify.math.answer import Comparer, unusable, warn_without_jail, was_stopped_midway
from cohort_verify.math.find import find_answer, find_reference, guess_answer
from cohort_verify.sandbox import Answer, JailUnavailable, find_tier
from cohort_verify.text import drop_thinking, read_visible

try:
    find_tier()
    JAIL = True
except JailUnavailable:
    JAIL = False

needs_jail = pytest.mark.skipif(not JAIL, reason="needs a jail")
ROOT = r"\boxed{\sqrt{8}}"


class Log:
    def __init__(self):
        self.verdicts, self.extras, self.metrics = {}, {}, {}

    def verdict(self, row, word, detail=""):
        self.verdicts[row] = (word, detail)

    def of(self, completions, golds, **options):
        scores = math_answer(
            completions,
            golds,
            log_verdict=self.verdict,
            log_extra=self.extras.__setitem__,
            log_metric=lambda name, value: self.metrics.setdefault(name, []).append(value),
            **options,
        )
        return scores, [self.verdicts[row][0] for row in range(len(scores))]


class FakePool:
    """Replaces the workers: gives one answer to everything, and records the messages."""

    def __init__(self, answer):
        self.answer, self.messages = answer, []

    def ask_many(self, messages, limits=None):
        self.messages += messages
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer for _ in messages]


@pytest.fixture
def pool_of(monkeypatch):
    def install(answer):
        pool = FakePool(answer)
        monkeypatch.setattr(cohort_verify.sandbox, "shared_pool", lambda entry, limits, retire_after: pool)
        monkeypatch.setattr(Comparer, "checked", {})
        return pool

    return install


def test_its_place_in_the_contract():
    assert math_answer.supervised
    assert math_answer.jailed
    assert math_answer.unusable is unusable
    assert math_answer.per_completion  # begun while others are sampled; what is left then is one batch


# ---------------------------------------------------------------------------------------------------------------------
# Workers that fail
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "score", "word"),
    [
        (Answer({"verdict": "right", "detail": ""}), 1.0, "right"),
        (Answer({"verdict": "wrong", "detail": ""}), 0.0, "wrong"),
        (Answer({"verdict": "unparsed", "detail": ""}), 0.0, "unparsed"),
        (Answer({"verdict": "timeout", "detail": ""}), 0.0, "timeout"),
        (Answer(problem="cpu"), 0.0, "timeout"),
        (Answer(problem="wall"), 0.0, "timeout"),
        (Answer(problem="memory"), 0.0, "memory"),
        (Answer(problem="crash"), 0.0, "crash"),
        (Answer(problem="files"), 0.0, "crash"),
        (Answer(problem="exception"), 0.0, "unparsed"),
        (Answer(problem="infrastructure"), None, "infrastructure"),
        (Answer({"verdict": "excellent"}), 0.0, "unparsed"),
        (Answer("right"), 0.0, "unparsed"),
        (Answer({"verdict": "right", "detail": ""}, problem="crash"), 0.0, "crash"),
    ],
)
def test_what_becomes_of_an_answer_of_the_workers(pool_of, answer, score, word):
    pool_of(answer)
    assert Log().of([ROOT, r"\boxed{3}"], ["3", "3"]) == ([score, 1.0], [word, "right"])


def test_a_reference_answer_that_breaks_the_workers_is_not_the_completions_fault(pool_of):
    pool_of(Answer(problem="cpu", detail="2 s"))
    log = Log()
    assert log.of([ROOT], [r"\sum_{n=1}^{9} n^n"]) == ([None], ["infrastructure"])
    assert "the reference answer" in log.verdicts[0][1]
    assert Log().of([ROOT], ["3"]) == ([0.0], ["timeout"])


def test_equal_pairs_are_compared_once(pool_of):
    pool = pool_of(Answer({"verdict": "right"}))
    assert math_answer([ROOT] * 50, ["3"] * 50) == [1.0] * 50
    assert len(pool.messages) == 1


def test_a_jail_that_fails_during_a_run_leaves_completions_unscored(pool_of):
    pool_of(JailUnavailable("it does not start any more"))
    assert Log().of([ROOT, r"\boxed{1}"], [r"2\sqrt{2}", "1"]) == ([None, 1.0], ["infrastructure", "right"])


def test_a_worker_that_was_stopped_midway_is_retired():
    assert was_stopped_midway(Answer({"verdict": "timeout"}))
    assert not was_stopped_midway(Answer({"verdict": "right"}))
    assert not was_stopped_midway(Answer(problem="cpu"))


def test_without_a_jail_text_and_numbers_are_compared_and_one_warning_is_logged(monkeypatch, caplog):
    warn_without_jail.cache_clear()

    def no_jail():
        raise JailUnavailable("no bubblewrap")

    monkeypatch.setattr(cohort_verify.sandbox, "find_tier", no_jail)
    completions = [ROOT, r"\boxed{2\sqrt{2}}", r"\boxed{0.5}", r"\boxed{(2, 1)}"]
    golds = [r"2\sqrt{2}", r"2\sqrt{2}", "1/2", "(1, 2)"]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert Log().of(completions, golds) == ([0.0, 1.0, 1.0, 0.0], ["unparsed", "right", "right", "wrong"])
        assert unusable(answer=[r"\sqrt{2}"]) == [None]
    assert len(caplog.records) == 1
    assert "no jail works on this machine" in caplog.text
    assert "no bubblewrap" in caplog.text


# ---------------------------------------------------------------------------------------------------------------------
# Golds
# ---------------------------------------------------------------------------------------------------------------------


@needs_jail
def test_unusable_reference_answers_are_named_before_the_run():
    golds = [
        "4", r"\frac{\sqrt{2}}{2}", "Monday", "(A)", r"\{1, 2\}", "x = 5", r"(-\infty, 3]", r"\sum_{n=1}^{3} n", "1010_2",
        "", None, "9^{9^{9^9}}", "1e999999999", "1/0", r"\sum_{n=1}^{999999} \frac{1}{n}", r"\frac{1}{", "5 if it rains",
    ]  # fmt: skip
    reasons = unusable(answer=golds, cpu_s=1.0, wall_s=30.0)
    assert reasons[:9] == [None] * 9
    words = ["empty", "string or a number", "too large", "too many digits", "no value", "too long", "can read it", "words"]
    for gold, reason, word in zip(golds[9:], reasons[9:], words, strict=True):
        assert reason is not None
        assert reason.startswith("unusable reference answer"), gold
        assert word in reason, (gold, reason)


FINE_GOLDS = [
    "0.5", ".5", "-3", "1,234", r"\frac12", r"\tfrac34", r"2\frac12", r"0.\overline{3}", "A", "(A)", "6:8", r"50\%", r"\$5", "5 cm",
    r"45^\circ", r"\sqrt2", r"3\pi", "x+1", "x_1", r"\theta", "(1,2)", r"\{1,2\}", "[0,1)", "x=5", r"1\pm\sqrt3", r"\text{yes}",
    r"\begin{pmatrix}1\\2\end{pmatrix}", "5!", r"\sum_{k=1}^3 k", r"\log_2 3", r"\infty", "x>3", "y = 2x + 3", "1011_2", r"\text{June 20}",
    r"\text{9:30 PM}", r"8\text{ hours }30\text{ minutes}", r"\angle ABC", r"n^2 \equiv 1 \pmod 8", r"\text{2 and 3}",
]  # fmt: skip
UNREAD_BY_US = [
    r"{1 \over 2}", r"\int_0^1 x dx", r"\sum_{k=1}^{4} k^2", r"\lim_{x\to 0} \frac{\sin x}{5x}", r"\frac{d}{dx}x^2", r"\frac{1}{", "1/0",
    "\ud800\\sqrt{3}", "\x00", r"\phantom{5} = \int_0^1", r"\frac{0}{0} = 5",
]  # fmt: skip


@needs_jail
@pytest.mark.parametrize("fast_path", [True, False])
def test_no_completion_makes_itself_unscored(fast_path):
    """Only a gold that `unusable` names may leave a row without a score."""
    assert unusable(answer=FINE_GOLDS) == [None] * len(FINE_GOLDS)
    rows = [(found, gold) for found in UNREAD_BY_US for gold in FINE_GOLDS]
    rows += [(r"\sum_{n=1}^{999999} \frac{1}{n}", gold) for gold in ("4", r"\sqrt2", r"\sum_{k=1}^3 k")]
    completions, golds = [rf"\boxed{{{found}}}" for found, _ in rows], [gold for _, gold in rows]
    scores, words = Log().of(completions, golds, cpu_s=1.0, wall_s=60.0, fast_path=fast_path)
    assert [row for row, score in zip(rows, scores, strict=True) if score is None] == []
    assert words[-3:] == ["timeout"] * 3


def test_a_reference_answer_is_blamed_only_if_it_fails_on_its_own(pool_of):
    pool = pool_of(Answer({"verdict": "gold", "detail": "it cannot be read"}))
    assert Log().of([ROOT], ["3"]) == ([0.0], ["unparsed"])
    assert len(pool.messages) == 1  # our own reader knows 3: nobody is asked
    assert Log().of([ROOT], [r"\sum_{n=1}^{9} n"]) == ([None], ["infrastructure"])


def test_a_reference_answer_with_several_boxes_is_a_list_or_refused():
    assert find_reference(r"\boxed{1} and \boxed{2}") == "1; 2"
    assert find_reference(r"$x = \boxed{1}$, $y = \boxed{2}$") == "x = 1; y = 2"
    assert find_reference(r"\(\boxed{1}\boxed{2}\)") == "1; 2"
    assert find_reference(r"\boxed{3} papers and \boxed{4} bins") == "3; 4"
    assert find_reference(r"so \boxed{840}. Check. **Final answer** \boxed{840}") == "840"
    assert find_reference(r"so \boxed{\frac{1}{2}}, which is \boxed{0.5}") == "0.5"
    assert find_reference(r"so \fbox{3}") == "3"
    gold = r"first \boxed{3}, no, that is wrong: \boxed{4}"
    with pytest.raises(ValueError, match=r"several boxes differ \('3', '4'\); keep only the final answer in the column"):
        math_answer([r"\boxed{4}"], [gold])
    assert "several boxes differ" in unusable(answer=[gold])[0]


def test_many_boxes_are_no_way_to_hit_one():
    """A list of all candidates is right for none of them, however it is joined, and costs no time."""
    flood = ", ".join(rf"\boxed{{{number}}}" for number in range(5000))
    assert Log().of([flood, flood.replace(", ", " or ")], ["4999", "4999"]) == ([0.0, 0.0], ["unparsed", "unparsed"])
    assert find_answer(r"\boxed{3}, \boxed{3}") == "3"
    assert find_answer(r"\boxed{3} then \boxed{4}") == "4"


def test_a_bomb_in_the_reference_answer_leaves_the_row_unscored():
    log = Log()
    assert log.of([r"\boxed{4}", r"\boxed{9^{9^{9^9}}}"], ["9^{9^{9^9}}"] * 2) == ([None, 1.0], ["infrastructure", "right"])


# ---------------------------------------------------------------------------------------------------------------------
# Strict and lenient
# ---------------------------------------------------------------------------------------------------------------------


@needs_jail
def test_lenient_is_logged_beside_the_reward_and_never_changes_it():
    rows = [
        # completion, gold, strict, lenient
        (r"\boxed{4}", "4", 1.0, 1.0),
        ("so it is 4.", "4", 0.0, 1.0),
        ("so it is $x = 4$.", "4", 0.0, 1.0),
        ("4 is not it; it is 5", "4", 0.0, 0.0),
        (r"\boxed{5} or rather 4", "4", 0.0, 0.0),
        (r"<think>\boxed{4}</think>", "4", 0.0, 1.0),
        (r"<think>\boxed{4}</think>It is 5.", "4", 0.0, 0.0),
        (r"we find \(\frac{1}{\sqrt{2}}\).", r"\frac{\sqrt{2}}{2}", 0.0, 1.0),
        ("it costs $1,250 in all", "1250", 0.0, 1.0),
        ("no idea", "4", 0.0, 0.0),
        ("<think>hm</think><answer>4</answer>", "4", 1.0, 1.0),
        ("<answer>5</answer> or rather 4", "4", 0.0, 0.0),
        ("<answer>4", "4", 0.0, 1.0),
        (r"<think><answer>4.0</answer></think>", "4", 0.0, 1.0),
        (r"<think><answer>so \boxed{4}</answer> 5</think>", "4", 0.0, 1.0),
    ]
    log = Log()
    scores, words = log.of([row[0] for row in rows], [row[1] for row in rows])
    assert scores == [row[2] for row in rows]
    assert log.extras == {"lenient": [row[3] for row in rows]}
    means = {name: statistics.fmean(values) for name, values in log.metrics.items()}
    assert means == {"strict": pytest.approx(2 / 15), "lenient": pytest.approx(10 / 15)}
    assert words[1] == "no_answer"


def test_guess_takes_the_last_formula_or_number():
    assert guess_answer("first 3, then $x^2$ and 7.5 apples") == "7.5"
    assert guess_answer("first 3, then $x^2$.") == "x^2"
    assert guess_answer(r"we get \[ \frac12 \]") == r"\frac12"
    assert guess_answer("in the end 45%") == "45%"
    assert guess_answer("nothing here") is None


def test_thinking_is_no_place_for_an_answer():
    assert drop_thinking("a<think>b</think>c") == "ac"
    assert drop_thinking("b</think>c") == "c"
    assert drop_thinking("a<think>b") == "a"
    assert drop_thinking("<think>b</think>") == ""
    assert find_answer(r"<think>\boxed{1}</think> \boxed{2}") == "2"
    assert read_visible("a<think>b</think>c") == "ac"
    for whole in ("a<think>b", "<think>b</think>", "a<think>b</think> ", "b</think>", "a"):
        assert read_visible(whole) == whole


@needs_jail
def test_tolerance_reaches_roots():
    completions, golds = (
        [r"\boxed{1.414}", r"\boxed{1.41}", r"\boxed{(1.414, 2)}"],
        [r"\sqrt{2}", r"\sqrt{2}", r"(\sqrt{2}, 2)"],
    )
    assert math_answer(completions, golds) == [0.0, 0.0, 0.0]
    assert math_answer(completions, golds, tolerance=0.001) == [1.0, 0.0, 1.0]


def test_votes_are_counted_on_one_form():
    extract = math_answer.extract
    assert extract(r"\boxed{x = 0.5}") == extract(r"\boxed{\frac{1}{2}}") == "1/2"
    assert extract(r"\boxed{2^{-1}}") == "2^{-1}"  # scores 0 against 1/2: no vote for it
    assert extract(r"\boxed{1,000}") == "1000"
    assert extract(r"\boxed{7.0\%}") == "7%"
    assert extract(r"<think>\boxed{4}</think>") is None
    assert extract("<answer>0.5</answer>") == extract("<answer>\nx = 1/2\n</answer>") == "1/2"
    assert extract("<think><answer>4</answer></think>") is extract("<answer>4") is None


def test_a_number_times_a_letter_is_not_the_expected_number_and_starts_no_worker(monkeypatch):
    monkeypatch.setattr(Comparer, "ask", lambda self, messages: pytest.fail("asked a worker") if messages else [])
    assert math_answer([r"\boxed{36x}", r"\boxed{2xy}", r"\boxed{36}"], answer=["36"] * 3) == [0.0, 0.0, 1.0]
