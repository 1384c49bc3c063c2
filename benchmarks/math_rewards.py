"""Measures math_answer: verdicts on the table, speed with and without the fast path, bombs, responsiveness of the trainer, injections.

    python benchmarks/math_rewards.py                  all of it, about ten minutes on two idle cores
    python benchmarks/math_rewards.py --only speed     one part: table, speed, bombs, batch or injections
    python benchmarks/math_rewards.py --injections 500

Wall-clock figures depend on the load of the machine; CPU seconds of the workers are printed too. Bombs and injections run only in jailed
workers; the canary that they try to touch is in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cohort.rewards import math_answer
from cohort_verify.math.answer import MEMORY_MB
from cohort_verify.sandbox import Limits
from math_bombs import BOMBS, fuzzed
from math_pairs import PAIRS
from math_tripwire import watched_pool

BURNING = (
    "long sum", "long product", "hard integral", "harder integral", "power in an integral", "sum of sums", "factorial in a sum",
    "infinite sum",
)  # fmt: skip
"""Bombs that use up their whole share of CPU time; the others are answered in milliseconds."""

WALL_S, LATE_S = 10.0, 0.5
"""The default limit on a question, and how much later an answer may come."""
BATCH_S = 30.0


class Heartbeat:
    """A thread of this process that wants to run every 5 ms, and the longest time it could not."""

    def __enter__(self) -> Heartbeat:
        self.longest = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def _beat(self) -> None:
        last = time.perf_counter()
        while not self._stop.is_set():
            time.sleep(0.005)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def words_of(completions: list[str], golds: list[str], **options: float) -> list[str]:
    words: dict[int, str] = {}
    math_answer(completions, golds, log_verdict=lambda row, word, detail="": words.update({row: word}), **options)
    return [words[row] for row in range(len(completions))]


def warm_up() -> None:
    """Both workers started and their modules imported."""
    math_answer([rf"\boxed{{\sqrt{{{n}}}}}" for n in range(2, 40)], [r"\pi"] * 38)


def table() -> bool:
    words = words_of([row[0] for row in PAIRS], [row[1] for row in PAIRS])
    false_positives = sum(word == "right" != row[2] for word, row in zip(words, PAIRS, strict=True))
    false_negatives = sum(word != "right" == row[2] for word, row in zip(words, PAIRS, strict=True))
    other = sum(word != row[2] for word, row in zip(words, PAIRS, strict=True)) - false_positives - false_negatives
    print(
        f"table: {len(PAIRS)} pairs, {false_positives} false positives, {false_negatives} false negatives, {other} other words"
    )
    return false_positives == false_negatives == other == 0


def ordinary(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Answers as models give them to school and competition problems: mostly numbers, a third of them wrong."""
    dice = random.Random(seed)
    completions, golds = [], []
    for _ in range(count):
        a, b = dice.randrange(1, 1000), dice.randrange(2, 100)
        found, gold = dice.choice(
            [
                (str(a), str(a)), (f"{a:,}", str(a)), (rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}"), (f"x = {a}", str(a)),
                (rf"{a}\text{{ cm}}", str(a)), (f"({a}, {b})", f"({a},{b})"), (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}"),
                (rf"\frac{{{a}\pi}}{{{b}}}", rf"\frac{{{a}}}{{{b}}}\pi"), (f"(x+{b})^2", f"x^2+{2 * b}x+{b * b}"), ("(B)", "B"),
            ]
        )  # fmt: skip
        right = dice.random() < 0.67
        completions.append(f"Let us see. {'We compute and compute. ' * 40}So \\boxed{{{found if right else str(a + 1)}}}.")
        golds.append(gold)
    return completions, golds


def speed() -> bool:
    warm_up()
    completions, golds = ordinary(1000)
    for fast in (True, False):
        started, before = time.perf_counter(), cpu_seconds()
        counts = Counter(words_of(completions, golds, fast_path=fast))
        seconds = time.perf_counter() - started
        print(
            f"speed: 1,000 ordinary completions, fast path {'on ' if fast else 'off'}: {seconds:.2f} s, "
            f"{1000 / seconds:,.0f} a second, {cpu_seconds() - before:.2f} s of CPU here, {dict(counts)}"
        )
    return True


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def bombs() -> bool:
    warm_up()
    worst_gap, times, words = 0.0, [], Counter[str]()
    slow = []
    for name, text in BOMBS.items():
        math_answer([r"\boxed{\sqrt{8}}"], [r"2\sqrt{2}"])  # a killed worker is replaced by the next question
        with Heartbeat() as heart:
            started = time.perf_counter()
            (word,) = words_of([text], ["4"])
            times.append(time.perf_counter() - started)
        words[word] += 1
        worst_gap = max(worst_gap, heart.longest)
        if times[-1] > 0.5:
            slow.append(f"{name} {times[-1]:.1f} s ({word})")
    print(
        f"bombs: {len(BOMBS)}, limits 2 s of CPU and 10 s of wall clock: median {statistics.median(times) * 1000:.0f} ms, "
        f"worst {max(times):.2f} s, longest gap in the trainer {worst_gap * 1000:.0f} ms, {dict(words)}"
    )
    print("       " + ", ".join(slow))
    return max(times) <= WALL_S + LATE_S


def batch() -> bool:
    """512 completions, every twentieth a bomb: once any bomb of the list, once only bombs that burn all the CPU they get."""
    took = []
    for kind, texts in (("any", list(BOMBS.values())), ("the worst", [BOMBS[name] for name in BURNING])):
        warm_up()
        completions, golds = ordinary(512, seed=1)
        places = list(range(0, 512, 20))
        for number, place in enumerate(places):
            completions[place], golds[place] = texts[number % len(texts)], "4"
        with Heartbeat() as heart:
            started = time.perf_counter()
            words = Counter(words_of(completions, golds))
            seconds = time.perf_counter() - started
        took.append(seconds)
        print(
            f"batch: 512 completions with {len(places)} bombs ({kind}): {seconds:.1f} s on {os.cpu_count()} cores, "
            f"longest gap in the trainer {heart.longest * 1000:.0f} ms, {dict(words)}"
        )
    return max(took) <= BATCH_S


def injections(count: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary"
        tries = fuzzed(count, str(canary))
        started = time.perf_counter()
        words = Counter(words_of([text for text, _ in tries], ["0"] * count))
        limits = Limits(wall_s=60.0, memory_mb=MEMORY_MB)
        messages = [{"found": payload, "gold": "0", "cpu_s": 1.0, "raw": text} for text, payload in tries]
        with watched_pool(limits) as pool:
            answers = pool.ask_many(messages, limits)
        events = sum(len(answer.value["events"]) for answer in answers if isinstance(answer.value, dict))
        unanswered = Counter(answer.problem for answer in answers if answer.problem)
        print(
            f"injections: {count:,} in {time.perf_counter() - started:.0f} s, canaries on the host "
            f"{len(list(Path(folder).iterdir()))}, events at the tripwire {events}, {dict(words)}, ended by a limit {dict(unanswered)}"
        )
        return not events and not list(Path(folder).iterdir())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["table", "speed", "bombs", "batch", "injections"])
    parser.add_argument("--injections", type=int, default=10_000)
    chosen = parser.parse_args()
    parts = {
        "table": table,
        "speed": speed,
        "bombs": bombs,
        "batch": batch,
        "injections": lambda: injections(chosen.injections),
    }
    missed = [name for name, part in parts.items() if chosen.only in (None, name) and not part()]
    if missed:
        print(f"beyond its limits: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
