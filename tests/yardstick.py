"""How slow a core is just now: a budget in CPU time means the same on a machine that others use too.

Whoever shares the core's caches slows every instruction; a fixed piece of work, done between the tries, shows by how much.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

QUIET_MS = 12.5
"""What the fixed work takes on a quiet core of the machine on which the budgets were written."""
TEXT = " ".join("".join(random.Random(number).choices("abcdefghij", k=6)) for number in range(5_000))
NUMBER = re.compile(r"\bab\w*")


def do_fixed_work() -> None:
    """Words, patterns, dictionaries and numbers as text: what a host does with completions."""
    counts = Counter(TEXT.split())
    NUMBER.findall(TEXT)
    json.dumps(sorted(counts.items(), key=lambda item: item[::-1]))


def measure_ms(function: Callable[[], Any]) -> float:
    """CPU time of all threads."""
    started = time.process_time()
    function()
    return 1000 * (time.process_time() - started)


def measure_slowdown(tries: int = 5) -> float:
    """How many times longer work takes than on the quiet core; never below 1."""
    return max(1.0, min(measure_ms(do_fixed_work) for _ in range(tries)) / QUIET_MS)


def measure_quiet_ms(function: Callable[[], Any], tries: int = 5) -> float:
    """The CPU time that `function` would take on the quiet core: the best of some tries, each beside the fixed work."""
    function()  # imports and caches
    pairs = [(measure_ms(function), measure_slowdown(1)) for _ in range(tries)]
    return min(spent for spent, _ in pairs) / min(slowdown for _, slowdown in pairs)
