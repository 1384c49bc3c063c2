"""The table of awkward answers: every verdict, with and without the fast path, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from cohort.rewards import math_answer
from cohort_verify.math.answer import unusable
from cohort_verify.sandbox import JailUnavailable, find_tier
from math_pairs import PAIRS

try:
    find_tier()
    JAIL = True
except JailUnavailable:
    JAIL = False

pytestmark = pytest.mark.skipif(not JAIL, reason="symbolic comparison needs a jail")
SCORES = {"right": 1.0, "infrastructure": None}
COMPLETIONS, GOLDS = [row[0] for row in PAIRS], [row[1] for row in PAIRS]
EXPECTED = [row[2] for row in PAIRS]


def verdicts_of(completions, golds, **options):
    words = {}
    # Hours of wall clock: other programs on the machine must not decide here; CPU time does.
    scores = math_answer(
        completions, golds, wall_s=600.0, log_verdict=lambda row, word, detail="": words.update({row: word}), **options
    )
    assert scores == [SCORES.get(words[row], 0.0) for row in range(len(scores))]
    return [words[row] for row in range(len(scores))]


def differing(words):
    return [(*row[:3], word, row[3]) for row, word in zip(PAIRS, words, strict=True) if row[2] != word]


def test_every_row_of_the_table():
    """0 false positives, 0 false negatives, and the right word for each."""
    assert len(PAIRS) >= 300
    assert len({row[:2] for row in PAIRS}) == len(PAIRS)
    counts = Counter(EXPECTED)
    assert counts["right"] >= 130
    assert counts["wrong"] >= 100
    assert differing(verdicts_of(COMPLETIONS, GOLDS)) == []


def test_without_the_fast_path_every_verdict_is_the_same():
    assert differing(verdicts_of(COMPLETIONS, GOLDS, fast_path=False)) == []


def test_the_same_verdicts_from_a_thread_and_from_asyncio():
    """Math-Verify's own time limits work in the main thread only; here they are off, and the workers are processes."""
    rows = slice(None, None, 6)
    found = {}

    def work():
        found["thread"] = verdicts_of(COMPLETIONS[rows], GOLDS[rows])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    async def in_loop():
        there = asyncio.to_thread(verdicts_of, COMPLETIONS[rows], GOLDS[rows])
        return verdicts_of(COMPLETIONS[rows], GOLDS[rows]), await there

    found["loop"], found["loop's thread"] = asyncio.run(in_loop())
    assert found == dict.fromkeys(("thread", "loop", "loop's thread"), EXPECTED[rows])


def test_unusable_reference_answers_of_the_table_are_known_before_the_run():
    reasons = unusable(answer=GOLDS)
    reported = {gold for gold, reason in zip(GOLDS, reasons, strict=True) if reason is not None}
    assert reported == {gold for gold, word in zip(GOLDS, EXPECTED, strict=True) if word == "infrastructure"}
