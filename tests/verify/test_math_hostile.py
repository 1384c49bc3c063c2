"""math_answer against text that tries to hang it, stall the trainer or run code. The full versions are marked `prove`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cohort.rewards import math_answer
from cohort_verify.math.answer import ENTRY, MEMORY_MB
from cohort_verify.math.readers import read_answer
from cohort_verify.sandbox import JailUnavailable, Limits, find_tier, shared_pool
from math_bombs import BOMBS, INJECTIONS, PIECES, fuzzed
from math_tripwire import watched_pool
from yardstick import measure_slowdown

try:
    find_tier()
    JAIL = True
except JailUnavailable:
    JAIL = False

needs_jail = pytest.mark.skipif(not JAIL, reason="needs a jail")
BURNING = (
    "long sum", "long product", "hard integral", "harder integral", "power in an integral", "sum of sums", "factorial in a sum",
    "infinite sum",
)  # fmt: skip
"""Those that use up their whole share of CPU time."""
HARMLESS = {"wrong", "unparsed", "no_answer", "timeout", "memory", "crash"}


class Heartbeat:
    """A thread of the trainer that wants to run every 5 ms, and `stalled`, its longest gap.

    In CPU time that other threads of this process used meanwhile: what holds the interpreter lock shows there, and a busy
    machine does not.
    """

    def __enter__(self):
        self.stalled = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()
        time.sleep(0.02)
        return self

    def _beat(self):
        used = time.process_time()
        while not self._stop.is_set():
            time.sleep(0.005)
            spent = time.process_time()
            self.stalled, used = max(self.stalled, spent - used), spent

    def __exit__(self, *_):
        time.sleep(0.01)
        self._stop.set()
        self._thread.join()


def judged(completion, gold, **limits):
    words = []
    scores = math_answer([completion], [gold], log_verdict=lambda row, word, detail="": words.append(word), **limits)
    return scores[0], words[0]


STALL_S = 0.2
"""Longest gap that counts as a pulse, on a quiet core."""


def attacked(completion, gold, cpu_s, wall_s, attempts=3):
    """(score, word, CPU time in the longest gap). Whatever stalls the trainer stalls it each time."""
    best = None
    for _ in range(attempts):
        judged(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")  # a killed worker is replaced by the next question, on its own account
        with Heartbeat() as heart:
            score, word = judged(completion, gold, cpu_s=cpu_s, wall_s=wall_s)
        if best is None or heart.stalled < best[2]:
            best = score, word, heart.stalled
        if best[2] <= STALL_S:
            break
    return best


def check_bombs(names, golds, cpu_s, wall_s):
    problems, limit = [], STALL_S * measure_slowdown()
    for name in names:
        for gold in golds:
            score, word, gap = attacked(BOMBS[name], gold, cpu_s, wall_s)
            if score != 0.0 or word not in HARMLESS or gap > limit:
                problems.append((name, gold, score, word, round(gap, 3)))
    assert problems == []


@needs_jail
def test_bombs_come_to_an_end_and_the_trainer_keeps_its_pulse():
    assert len(BOMBS) >= 60
    check_bombs([name for name in BOMBS if name not in BURNING[2:]], ["4"], cpu_s=0.4, wall_s=6.0)


@needs_jail
@pytest.mark.prove
def test_bombs_in_full():
    """With the default limits, against golds of every kind."""
    check_bombs(BOMBS, ["4", r"\sqrt{3}", r"\{1, \sqrt{2}\}", "x^2+1", "Monday"], cpu_s=2.0, wall_s=10.0)


@needs_jail
def test_what_cannot_give_up_by_itself_is_killed_and_the_next_question_is_answered():
    limits = Limits(cpu_s=0.5, wall_s=20.0, memory_mb=MEMORY_MB)
    pool = shared_pool(ENTRY, limits=limits)
    stuck = {"found": r"\sum_{n=1}^{999999} \frac{1}{n}", "gold": "4", "cpu_s": 0.0}  # 0: no limit of its own
    assert pool.ask(stuck, limits).problem == "cpu"
    enough = Limits(cpu_s=20.0, wall_s=60.0, memory_mb=MEMORY_MB)  # a new worker has everything to learn
    assert pool.ask({"found": r"\sqrt{8}", "gold": r"2\sqrt{2}"}, enough).value["verdict"] == "right"


@needs_jail
def test_a_pattern_that_backtracks_without_end_is_stopped_and_blocks_no_thread():
    with Heartbeat() as heart:
        words = []
        scores = math_answer(
            ["=" + "a" * 60 + "b", "=aa 4"],
            ["4", "4"],
            pattern=r"=(?:a|aa)+ (\d+)",
            log_verdict=lambda row, word, detail="": words.append(word),
        )
    assert (scores, words) == ([0.0, 1.0], ["timeout", "right"])
    assert heart.stalled < STALL_S * measure_slowdown()
    assert math_answer.extract("=" + "a" * 60 + "b", pattern=r"=(?:a|aa)+ (\d+)") is None


def test_no_soup_of_tokens_breaks_the_reader():
    import random

    dice = random.Random(7)
    pieces = [
        *PIECES, r"\sqrt[3]{", r"\begin{pmatrix}", r"\end{pmatrix}", "&", r"\\", r"\{", r"\}", r"\cup", r"\text{or}", " or ", "\\le", "<",
        r"\overline", "0.", ".", "sin", r"\log_2", "^\\circ", " cm", r"\pm", "|", "[", "]", r"\lfloor", "1,234", "1 234", "e5", ":", "(A)",
        r"\binom", r"\langle", "½", "²", "\\$", "-", "apples", "million", r"\approx", r"\begin{aligned}", r"\end{aligned}", "&=", "5:00", " pm",
        "<=", "!=", "x>2 and ", r"\ne", r"\cap", r"\setminus", "...", r"\mathrm{m}", "^{-1}", r"\text{ s}", "f(2)=", "AB=", "; ", "about ", "noon",
    ]  # fmt: skip
    slowest = 0.0
    for _ in range(3000):
        text = "".join(dice.choice(pieces) for _ in range(dice.randrange(1, 40)))
        started = time.thread_time()
        read_answer(text)
        slowest = max(slowest, time.thread_time() - started)
    assert slowest < 0.2 * measure_slowdown()


# ---------------------------------------------------------------------------------------------------------------------
# Code
# ---------------------------------------------------------------------------------------------------------------------


def check_injections(count, folder):
    """No canary on the host, no event at the tripwire in the jail: neither through the reward nor by Math-Verify alone."""
    canary = folder / "canary"
    tries = fuzzed(count, str(canary))
    words = {}
    scores = math_answer(
        [text for text, _ in tries], ["0"] * count, log_verdict=lambda row, word, detail="": words.update({row: word})
    )
    assert not any(scores)
    messages = [{"found": payload, "gold": "0", "cpu_s": 1.0, "raw": text} for text, payload in tries]
    with watched_pool(Limits(memory_mb=MEMORY_MB)) as pool:
        answers = pool.ask_many(messages, Limits(wall_s=60.0, memory_mb=MEMORY_MB))
    events = [
        (tries[row][1], answer.value["events"]) for row, answer in enumerate(answers) if answer.value and answer.value["events"]
    ]
    assert events == []
    assert not canary.exists()
    assert list(folder.iterdir()) == []
    unanswered = [answer.problem for answer in answers if answer.problem]
    assert len(unanswered) <= count // 100, unanswered
    return len(answers) - len(unanswered)


@needs_jail
def test_injections_run_nothing(tmp_path):
    assert check_injections(120, tmp_path) >= 118


@needs_jail
@pytest.mark.prove
def test_ten_thousand_injections_run_nothing(tmp_path):
    assert check_injections(10_000, tmp_path) >= 9_900


@needs_jail
def test_the_tripwire_detects_evaluation():
    """Otherwise no event would prove nothing: sympify on the same payload is seen."""
    program = (
        "import math_tripwire as t, sympy\n"
        "t.install()\nt.watching = True\n"
        "try:\n    sympy.sympify('__import__(\"math\").sqrt(4)')\nexcept Exception:\n    pass\n"
        "open('/dev/null', 'w').close()\n"
        "t.watching = False\n"
        "print(any('__import__' in e for e in t.events), any('for writing' in e for e in t.events))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )  # our own text, not a model's
    assert done.stdout.split() == ["True", "True"]


def test_the_trainer_never_imports_a_computer_algebra_system():
    program = (
        "import sys, cohort.rewards as r\n"
        "r.math_answer([r'\\boxed{\\sqrt{8}}', r'\\boxed{\\sum_{n=1}^3 n}'], [r'2\\sqrt{2}', '6'])\n"
        "print([m for m in ('sympy', 'mpmath', 'math_verify', 'latex2sympy2_extended', 'torch') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_injections_are_many_and_of_many_kinds():
    assert len(INJECTIONS) >= 30
    assert len({text for text, _ in fuzzed(1000, "/nowhere/canary")}) > 950


# ---------------------------------------------------------------------------------------------------------------------
# Many at once
# ---------------------------------------------------------------------------------------------------------------------


@needs_jail
@pytest.mark.prove
def test_five_hundred_completions_with_five_percent_bombs_are_all_judged():
    bombs = [text for name, text in BOMBS.items() if name in BURNING]
    completions = [bombs[row // 20 % len(bombs)] if row % 20 == 0 else rf"\boxed{{\sqrt{{{row}}}}}" for row in range(512)]
    golds = [rf"\frac{{{row}}}{{\sqrt{{{row}}}}}" if row % 20 else "4" for row in range(512)]
    gaps = []
    while not gaps or (gaps[-1] > 0.2 and len(gaps) < 3):  # see `attacked`: only what recurs is ours
        judged(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")
        with Heartbeat() as heart:
            scores = math_answer(completions, golds)
        gaps.append(heart.stalled)
        assert scores == [float(row % 20 != 0) for row in range(512)]
    assert min(gaps) <= 0.2
