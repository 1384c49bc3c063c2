"""code_tests in the real jail: honest programs score the tests they pass, well-known cheats score 0."""

from __future__ import annotations

import json
import signal
import statistics
import threading
from pathlib import Path
from typing import Any

import pytest

from cohort.data.benchmark_files import shape_row
from cohort.rewards.contract import RewardPart
from cohort.rewards.runner import RewardRunner
from cohort.types import Completion, Prompt
from cohort_verify.code import reward, trial
from cohort_verify.code.reward import code_tests, unusable
from cohort_verify.sandbox import CallsResult, CheckResult, ChecksResult, JailUnavailable, ScriptResult, find_tier


def has_jail() -> bool:
    try:
        find_tier()
    except JailUnavailable:
        return False
    return True


needs_jail = pytest.mark.skipif(not has_jail(), reason="this machine has no jail for untrusted code")


class Log:
    def __init__(self) -> None:
        self.verdicts: dict[int, str] = {}
        self.details: dict[int, str] = {}
        self.extras: dict[str, list[Any]] = {}
        self.metrics: dict[str, float] = {}

    def verdict(self, row: int, verdict: str, detail: str = "") -> None:
        assert row not in self.verdicts
        self.verdicts[row], self.details[row] = verdict, detail

    @property
    def words(self) -> list[str]:
        return [self.verdicts[row] for row in sorted(self.verdicts)]


def score(programs: list[str], tests: Any, **options: Any) -> tuple[list[float | None], Log]:
    """Fenced programs on the tests of one row, with everything that is logged."""
    log, logged = Log(), dict[str, list[float]]()
    completions = [f"```python\n{program}\n```" for program in programs]
    scores = code_tests(
        completions,
        [tests] * len(programs),
        log_verdict=log.verdict,
        log_extra=log.extras.__setitem__,
        log_metric=lambda name, value: logged.setdefault(name, []).append(value),
        **options,
    )
    log.metrics = {name: statistics.fmean(values) for name, values in logged.items()}
    return scores, log


ADD = [{"call": "add", "args": [a, b], "expected": a + b} for a, b in ((1, 2), (5, 5), (-3, 3), (10**20, 1))]

# ---------------------------------------------------------------------------------------------------------------------
# Honest programs
# ---------------------------------------------------------------------------------------------------------------------


@needs_jail
def test_fractions_and_all() -> None:
    programs = ["def add(a, b): return a + b", "def add(a, b): return 10", "def add(a, b): return b - a"]
    scores, log = score(programs, ADD)
    assert scores == [1.0, 0.25, 0.0]
    assert log.words == ["right", "wrong", "wrong"]
    assert log.extras == {"tests_passed": [4, 1, 0], "tests_total": [4, 4, 4]}
    assert log.metrics == {"pass_rate": pytest.approx(1.25 / 3), "all_passed": pytest.approx(1 / 3)}
    assert score(programs, ADD, scoring="all")[0] == [1.0, 0.0, 0.0]
    assert score(programs, json.dumps(ADD))[0] == scores


@needs_jail
def test_called_without_any_callback() -> None:
    completions = [
        "def add(a, b):\n    return a + b\n",
        [{"role": "assistant", "content": "```\ndef add(a, b): return 0\n```"}],
        "no",
    ]
    assert code_tests(completions, [["assert add(2, 3) == 5", "assert add(0, 0) == 0"]] * 3) == [1.0, 0.5, 0.0]


@needs_jail
def test_standard_input() -> None:
    tests = [{"input": f"{a}\n", "output": f"{2 * a}\n"} for a in range(3)]
    programs = [
        "print(2 * int(input()))",
        "print(0)",
        "import sys\nprint(2 * int(input()))\nsys.exit(0)",
        "print(int(input()) * 2)\n1 / 0",
    ]
    scores, log = score(programs, tests)
    assert scores == [1.0, pytest.approx(1 / 3), 1.0, 0.0]
    assert log.words == ["right", "wrong", "right", "error"]
    assert "ZeroDivisionError" in log.details[3]
    close = [{"input": "", "output": "0.333333", "tolerance": 1e-4}]
    assert score(["print(1 / 3)", "print(0.34)"], close)[0] == [1.0, 0.0]
    long = [{"input": "", "output": "\n".join(map(str, range(60_000)))}]
    assert score(["for i in range(60000): print(i)"], long)[0] == [1.0]


@needs_jail
def test_asserts_in_the_shape_of_mbpp() -> None:
    tests = [
        "assert volume(10, 8, 6) == 240",
        "assert volume(1, 2, 3) == 3",
        "assert abs(volume(0.1, 1, 1) - 0.05) < 1e-9",
    ]
    halves = "def volume(a, b, c): return a * b * c / 2"
    truth = "def volume(a, b, c): return True"
    scores, log = score([halves, truth, halves.replace("/ 2", "// 2")], tests)
    assert scores == [1.0, 0.0, pytest.approx(2 / 3)]
    assert log.words == ["right", "wrong", "wrong"]
    kinds = [
        "assert count('aba') == {'a': 2, 'b': 1}",
        "assert pair('ab') == ('a', 'b')",
        "assert letters('aab') == {'a', 'b'}",
    ]
    honest = "import collections\ndef count(s): return collections.Counter(s)\ndef pair(s): return tuple(s)\ndef letters(s): return set(s)"
    lists = honest.replace("tuple(s)", "list(s)").replace("set(s)", "sorted(set(s))")
    assert score([honest, lists], kinds)[0] == [1.0, pytest.approx(1 / 3)]


PREFIX = '''from typing import List


def scale(values: List[float], by: float) -> List[float]:
    return [value * by for value in values]


def mean_gap(values: List[float]) -> float:
    """Mean distance of neighbours; 0.0 for fewer than two values."""
'''
CHECK = """
def check(candidate):
    assert candidate([1.0, 2.0, 4.0]) == 1.5
    assert candidate([]) == 0.0
    assert abs(candidate([0.1, 0.2]) - 0.1) < 1e-9
    for by in (2.0, 3.0):
        assert abs(candidate(scale([1.0, 2.0], by)) - by) < 1e-9
"""


@needs_jail
def test_a_completion_of_the_prompt_in_the_shape_of_humaneval() -> None:
    body = "    gaps = [abs(b - a) for a, b in zip(values, values[1:])]\n    return sum(gaps) / len(gaps) if gaps else 0.0\n"
    whole = "```python\ndef mean_gap(values: List[float]) -> float:\n" + body + "```"
    cheat = body + "\n\ndef scale(values, by):\n    return [0.0, by]\n"
    wrong = "    return 1.5\n"
    tricked = "    return values[-1]\n\n\ndef scale(values, by): return [by]\n"
    completions = [body, whole, cheat, wrong, tricked, "I would rather not."]
    log = Log()
    scores = code_tests(
        completions,
        [CHECK] * 6,
        entry_point=["mean_gap"] * 6,
        program_prefix=[PREFIX] * 6,
        log_verdict=log.verdict,
    )
    # The prompt's own helper is the tests': a program that replaces it wins nothing (tricked would pass the loop with it).
    assert scores == [1.0, 1.0, 1.0, 0.25, 0.0, 0.0]
    assert log.words == ["right", "right", "right", "wrong", "wrong", "no_answer"]
    assert unusable([CHECK], entry_point=["mean_gap"], program_prefix=[PREFIX]) == [None]


@needs_jail
def test_a_method_of_solution() -> None:
    program = "class Solution:\n    def twice(self, x):\n        return 2 * x\n"
    assert score([program], {"fn_name": "twice", "inputs": [[1], [2]], "outputs": [[2], [4]]})[0] == [1.0]
    assert score([program], ["assert Solution().twice(3) == 6", "assert Solution().twice(3) > 5"])[0] == [1.0]
    assert score([program], "def check(candidate):\n    assert candidate(2) == 4", entry_point="Solution().twice")[0] == [1.0]


@needs_jail
def test_strict_types_of_pairs() -> None:
    program = "def f(x): return x"
    tests = [{"call": "f", "args": [value], "expected": value} for value in (1, 1.0, True, "1", None, [1], {"a": 1})]
    tests += [{"call": "f", "args": [(1, b"x")], "expected": (1, b"x")}]
    assert score([program], tests)[0] == [1.0]
    crossed = [
        {"call": "f", "args": [1], "expected": True},
        {"call": "f", "args": [1.0], "expected": 1},
        {"call": "f", "args": ["1"], "expected": 1},
        {"call": "f", "args": [[1]], "expected": (1,)},
        {"call": "f", "args": [None], "expected": False},
    ]
    assert score([program], crossed)[0] == [0.0]
    # a subclass is the value it holds: honest code returns such things, and nothing of theirs is run by the host
    counted = (
        "import collections, enum\nclass E(enum.IntEnum):\n    A = 3\ndef f(x): return [E.A, collections.OrderedDict(a=x)]"
    )
    assert score([counted], [{"call": "f", "args": [1], "expected": [3, {"a": 1}]}])[0] == [1.0]


# ---------------------------------------------------------------------------------------------------------------------
# Cheats
# ---------------------------------------------------------------------------------------------------------------------

AGREES = """
class Agrees:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __hash__(self): return 0
    def __bool__(self): return True
    def __sub__(self, other): return 0.0
    def __abs__(self): return 0.0
    def __instancecheck__(self, other): return True
"""

CHEATS = {
    "exits at once": "import sys\nsys.exit(0)",
    "raises SystemExit": "raise SystemExit(0)",
    "exits when called": "import os\ndef add(a, b): os._exit(0)",
    "exits politely when called": "def add(a, b): raise SystemExit(0)",
    "prints PASS": "print('PASS')\nprint('1 passed in 0.01s')\ndef add(a, b): print('PASS')",
    "agrees with everything": AGREES + "def add(a, b): return Agrees()",
    "a number that agrees": AGREES + "class N(int, Agrees): pass\ndef add(a, b): return N(999)",
    "a text that agrees": AGREES + "class S(str, Agrees): pass\ndef add(a, b): return S('7')",
    "patches builtins": (
        "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.AssertionError = Exception\n"
        "builtins.type = lambda *a: int\nbuiltins.hash = lambda x: 0\ndef add(a, b): return None"
    ),
    "patches the runner": (
        "import sys\nmain = sys.modules['__main__']\nfor name in list(vars(main)):\n"
        "    if callable(vars(main)[name]): setattr(main, name, lambda *a, **k: '[\"check\", true, \"\", \"\"]')\n"
        "def add(a, b): return True"
    ),
    "replaces modules": "import sys\nfor name in list(sys.modules): sys.modules[name] = sys\ndef add(a, b): return True",
    "writes verdicts on the pipe": (
        "import os\nfor word in (b'[\"check\", true, \"\", \"\"]', b'[\"loaded\"]', b'[\"passed\"]', b'true'):\n"
        "    for end in range(3, 20):\n"
        "        try: os.write(end, len(word).to_bytes(4, 'big') + word)\n"
        "        except OSError: pass\n"
        "def add(a, b): return True"
    ),
    "an exception for every answer": "def add(a, b): raise AssertionError('PASS')",
    "a generator": "def add(a, b):\n    yield a + b",
    "the function itself": "def add(a, b): return add",
    "a structure without end": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "registers an exit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef add(a, b): return 1 / 0",
    "traces its caller": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef add(a, b): return sys._getframe(1).f_locals",
}  # fmt: skip


@needs_jail
@pytest.mark.parametrize("kind", ["pairs", "asserts", "checks", "script"])
def test_no_cheat_scores(kind) -> None:
    tests: Any = {
        "pairs": [{"call": "add", "args": [1, 2], "expected": 3}, {"call": "add", "args": [10, 20], "expected": 30}],
        "asserts": ["assert add(1, 2) == 3", "assert 30 == add(10, 20)"],
        "checks": [
            "assert abs(add(1, 2) - 3) < 1e-6",
            "assert sorted([add(10, 20), 0]) == [0, 30]",
            "assert add(*[1, 2]) == 3",
        ],
        "script": [{"input": "1 2\n", "output": "3\n"}, {"input": "10 20\n", "output": "30\n"}],
    }[kind]
    scores, log = score(list(CHEATS.values()), tests)
    assert dict(zip(CHEATS, scores, strict=True)) == dict.fromkeys(CHEATS, 0.0)
    assert not {"right", "infrastructure"} & set(log.words)
    assert log.metrics["pass_rate"] == 0.0


LOOKS_EVERYWHERE = """
import gc, os, sys

def add(a, b):
    seen, found = set(), []
    def look(thing, depth):
        if id(thing) in seen or depth > 6: return
        seen.add(id(thing))
        if isinstance(thing, str) and "secret-" in thing and "look" not in thing: found.append(thing)
        for part in gc.get_referents(thing): look(part, depth + 1)
    frame = sys._getframe()
    while frame:
        look(frame.f_locals, 0); look(frame.f_globals, 0); frame = frame.f_back
    for thing in gc.get_objects(): look(thing, 0)
    look(list(os.environ.values()) + sys.argv, 0)
    for path in ("/proc/self/cmdline", "/proc/self/environ", "/proc/1/cmdline"):
        try: look(open(path).read(), 0)
        except OSError: pass
    return found[0] if found else "nothing"
"""


@needs_jail
def test_expected_values_are_nowhere_in_the_jail() -> None:
    secret = "secret-" + "7391"
    pairs = [{"call": "add", "args": [1, 2], "expected": secret}]
    for tests in (pairs, [f"assert add(1, 2) == {secret!r}"], [f"assert add(1, 2).strip() == {secret!r}"]):
        scores, log = score([LOOKS_EVERYWHERE], tests)
        assert scores == [0.0], log.details
        assert log.words == ["wrong"]
    # the search works: it finds what is there, its own argument
    assert score([LOOKS_EVERYWHERE], [{"call": "add", "args": [secret, 2], "expected": secret}])[0] == [1.0]


@needs_jail
def test_special_cases_for_the_visible_tests_score_zero() -> None:
    visible = [{"call": "add", "args": [1, 2], "expected": 3}, {"call": "add", "args": [4, 4], "expected": 8}]
    hidden = [{"call": "add", "args": [7, 5], "expected": 12}, {"call": "add", "args": [0, 9], "expected": 9}]
    special = "def add(a, b): return {(1, 2): 3, (4, 4): 8}.get((a, b))"
    scores, log = score([special, "def add(a, b): return a + b", "def f(): ..."], {"visible": visible, "hidden": hidden})
    assert scores == [0.0, 1.0, 0.0]
    assert log.words == ["wrong", "right", "error"]
    assert log.extras == {
        "tests_passed": [0, 2, 0],
        "tests_total": [2, 2, 2],
        "visible_passed": [2, 2, 0],
        "visible_total": [2, 2, 2],
    }
    assert log.metrics["visible_pass_rate"] == pytest.approx(2 / 3)
    assert log.metrics["pass_rate"] == pytest.approx(1 / 3)
    scripts = {"visible": [{"input": "1", "output": "2"}], "hidden": [{"input": "4", "output": "8"}]}
    assert score(["print(2)", "print(2 * int(input()))"], scripts)[0] == [0.0, 1.0]


MBPP_FILE = Path(__file__).parents[1] / "data" / "mbpp_sample.jsonl"


@needs_jail
def test_a_program_that_fails_the_test_in_its_prompt_is_not_right() -> None:
    """The hidden tests of a row often expect one value: a constant passes them all, and the test it was shown does not."""
    row = shape_row(json.loads(MBPP_FILE.read_text().splitlines()[3]), "mbpp", "row 3")
    assert row["tests"]["visible"] == ["assert is_square(49) == True"]
    constant = "def is_square(n): return False"
    right = "def is_square(n): return n >= 0 and round(n ** 0.5) ** 2 == n"
    raises = "def is_square(n):\n    if n == 49: raise ValueError\n    return False"
    hangs = "def is_square(n):\n    while n == 49: pass\n    return False"
    leaves = "import os\ndef is_square(n):\n    if n == 49: os._exit(0)\n    return False"
    for scoring in ("fraction", "all"):
        scores, log = score([constant, right, raises, hangs, leaves], row["tests"], scoring=scoring, cpu_s=0.5)
        assert scores == [0.0, 1.0, 0.0, 0.0, 0.0]
        assert log.words == ["wrong", "right", "error", "timeout", "error"]
        assert log.details[0] == "is_square(49) gave False"
        assert log.extras["tests_passed"] == [2] * 5
        assert log.metrics["all_passed"] == 0.2
    # a visible test that is broken leaves open what the hidden ones have not decided, and nothing else
    broken = {"visible": ["assert {} + [] == is_square(1)"], "hidden": ["assert is_square(4) == True"]}
    assert score([constant, right], broken)[0] == [0.0, None]


RAISES = [
    "try:\n    f(-1)\nexcept Exception:\n    pass\nelse:\n    assert False",
    "raised = False\ntry:\n    f(-1)\nexcept Exception:\n    raised = True\nassert raised",
    "def fails(x):\n    try:\n        f(x)\n    except:\n        return True\nassert fails(-1)",
]


@needs_jail
@pytest.mark.parametrize("tests", RAISES)
def test_a_missing_function_is_not_the_exception_that_a_test_waits_for(tests) -> None:
    programs = [
        "x = 1",
        "class Solution: pass",
        "def f(x):\n    if x < 0: raise ValueError('negative')\n    return x",
        "class Solution:\n    def f(self, x): return {}[x]",
        "def f(x): return x",
    ]
    scores, log = score(programs, [tests])
    assert scores == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert log.words == ["error", "error", "right", "right", "wrong"]
    assert log.details[0] == "NameError: the program defines no f"
    assert log.details[1] == "AttributeError: 'Solution' object has no attribute 'f'"


@needs_jail
def test_a_check_after_one_that_lacks_its_function_still_counts() -> None:
    tests = ["try:\n    f(-1)\nexcept Exception:\n    pass\nelse:\n    assert False", "assert g(1) < 2"]
    scores, log = score(["def g(x): return x"], tests)
    assert scores == [0.5]
    assert log.words == ["error"]


@needs_jail
def test_asserts_without_the_program_do_not_count() -> None:
    tests = ["assert len('ab') == 2", "assert 1 == 1", "assert f(1) == 1"]
    assert score(["x = 1", "def f(x): return x"], tests)[0] == [0.0, 1.0]
    scores, log = score(["x = 1"], ["assert 1 == 1"])
    assert scores == [None]
    assert log.words == ["infrastructure"]
    assert unusable([["assert 1 == 1"]]) == ["tests: the tests assert nothing about the program"]


ITERABLES = {
    "generator": "def f():\n    yield 2\n    yield 1",
    "range": "def f(): return range(2, 0, -1)",
    "deque": "from collections import deque\ndef f(): return deque([2, 1])",
    "keys": "def f(): return {2: 'a', 1: 'b'}.keys()",
    "map": "list = sorted = isinstance = 5\ndef f(): return map(int, '21')",
    "list": "def f(): return [2, 1]",
    "dict": "def f(): return {2: 0, 1: 0}",
    "method": "class Solution:\n    def f(self): return iter([2, 1])",
}
TAKEN_WHOLE = [
    "assert list(f()) == [2, 1]",
    "assert tuple(f()) == (2, 1)",
    "assert sorted(f()) == [1, 2]",
    "assert sum(f()) == 3",
]


@needs_jail
def test_what_a_test_iterates_over_may_be_any_iterable() -> None:
    assert score(list(ITERABLES.values()), TAKEN_WHOLE)[0] == [1.0] * len(ITERABLES)
    check = "def check(candidate):\n    assert set(candidate()) == {1, 2}\n    assert max(candidate()) == 2\n"
    assert score(list(ITERABLES.values()), check, entry_point="f")[0] == [1.0] * len(ITERABLES)
    # Without that it is what it is: neither equals a list in Python.
    assert score([ITERABLES["range"], ITERABLES["generator"]], ["assert f() == [2, 1]", "assert len(f()) == 9"])[0] == [0.0] * 2
    scores, log = score(
        ["def f(): return 5", "def f(): return [1, 2]", "x = 1", "def f():\n    while True: yield 0"], TAKEN_WHOLE, cpu_s=1.0
    )
    assert scores == [0.0, 0.5, 0.0, 0.0]
    assert log.words[:3] == ["error", "wrong", "error"]
    assert log.words[3] in ("timeout", "memory")
    assert log.details[2] == "NameError: the program defines no f"
    raises = "try:\n    list(f())\nexcept Exception:\n    pass\nelse:\n    assert False"
    assert score(["x = 1", "def f():\n    yield 1 / 0"], [raises])[0] == [0.0, 1.0]


@needs_jail
def test_expected_values_from_json_text_are_compared_as_json_can_tell() -> None:
    pair, two = {"call": "f", "args": [], "expected": [1, 2]}, {"call": "f", "args": [], "expected": 2}
    tuples, floats, truth = "def f(): return (1, 2)", "def f(): return 2.0", "def f(): return True"
    assert score([tuples, "def f(): return [1, 2.0]", "def f(): return {1, 2}"], json.dumps([pair]))[0] == [1.0, 1.0, 0.0]
    assert score([floats, truth], json.dumps([two]))[0] == [1.0, 0.0]
    assert score([truth, "def f(): return 1"], json.dumps([{**two, "expected": True}]))[0] == [1.0, 0.0]
    assert score([tuples], [pair])[0] == [0.0]
    assert score([floats], [two])[0] == [0.0]


@needs_jail
def test_packages_are_available_if_enabled() -> None:
    program = "import numpy as np\ndef f(x): return int(np.sum(x))"
    script = "import numpy as np\nprint(int(np.sum([1, 2])))"
    for tests, text in (
        ([{"call": "f", "args": [[1, 2]], "expected": 3}], program),
        (["assert f([1, 2]) < 4"], program),
        ([{"input": "", "output": "3"}], script),
    ):
        scores, log = score([text], tests)
        assert scores == [0.0]
        assert "No module named 'numpy'" in log.details[0]
        assert score([text], tests, packages=True, memory_mb=2048)[0] == [1.0]
    checked = ["import numpy as np", "assert np.isclose(f([1, 2]), 3)"]
    assert score([program], checked)[0] == [None]
    assert score([program, "def f(x): return 0"], checked, packages=True, memory_mb=2048)[0] == [1.0, 0.0]
    assert "packages = true" in (unusable([checked])[0] or "")
    assert unusable([checked], packages=True) == [None]
    assert "packages = true" in (unusable([checked], packages=["a column of that name"])[0] or "")


# ---------------------------------------------------------------------------------------------------------------------
# Verdicts and limits
# ---------------------------------------------------------------------------------------------------------------------


@needs_jail
@pytest.mark.parametrize("kind", ["pairs", "script"])
def test_each_way_to_fail_has_its_word(kind) -> None:
    programs = {
        "def add(a, b) return": "unparsed",
        "  x = 1\ny = 2": "unparsed",
        "1 / 0": "error",
        "import no_such_module": "error",
        "while True: pass": "timeout",
        "import time\ntime.sleep(60)": "timeout",
        "x = bytearray(10**9)": "memory",
        "import ctypes\nctypes.string_at(0)": "crash",
        "while True: print('x' * 10**6)": "output",
        "def add(a, b): return 0\nprint('?')": "wrong",
    }
    tests = [{"call": "add", "args": [1, 2], "expected": 3}] if kind == "pairs" else [{"input": "1", "output": "2"}]
    scores, log = score(list(programs), tests, cpu_s=1.0, wall_s=3.0)
    assert scores == [0.0] * len(programs)
    assert dict(zip(programs, log.words, strict=True)) == programs
    assert all(log.details.values())


@needs_jail
def test_what_is_no_program_is_no_answer() -> None:
    log = Log()
    completions = ["I think the answer is 3.", "", "```bash\nls\n```", "<think>```python\ndef add(a, b): return a + b\n```"]
    for tests in (ADD, [{"input": "1", "output": "2"}], ["assert add(1, 2) < 4"]):
        log.verdicts.clear()
        assert code_tests(completions, [tests] * 4, log_verdict=log.verdict) == [0.0] * 4
        assert log.words == ["no_answer"] * 4


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The kinds of runs that took place, in order."""
    kinds: list[str] = []
    for name in ("run_calls", "run_script", "run_checks"):
        real = getattr(trial, name)

        def counted(*args: Any, name: str = name, real: Any = real) -> Any:
            kinds.append(name)
            return real(*args)

        monkeypatch.setattr(trial, name, counted)
    return kinds


@needs_jail
def test_a_program_costs_one_limit_however_many_tests(runs) -> None:
    calls = [{"call": "f", "args": [i], "expected": i} for i in range(20)]
    slow = "def f(x):\n    while x >= 3: pass\n    return x"
    scores, log = score([slow, slow.replace("return x", "return -x")], calls, cpu_s=0.5)
    assert scores == [0.0, 0.0]
    assert log.words == ["timeout", "timeout"]
    assert log.extras["tests_passed"] == [3, 1]
    assert runs == ["run_calls"] * 2
    runs.clear()
    scripts = [{"input": str(i), "output": str(i)} for i in range(20)]
    script = "x = int(input())\nwhile x >= 3: pass\nprint(x)"
    scores, log = score([script], scripts, cpu_s=0.5)
    assert (scores, log.words, log.extras["tests_passed"]) == ([0.0], ["timeout"], [3])
    assert runs == ["run_script"] * 4
    runs.clear()
    mixed = {"hidden": [*calls[:5], *scripts, "assert f(1) < 2"], "visible": scripts}
    scores, log = score([slow + "\nif __name__ == '__main__': print(input())"], mixed, cpu_s=0.5)
    assert (scores, log.words, log.extras["tests_passed"]) == ([0.0], ["timeout"], [3])
    assert runs == ["run_calls"]


@needs_jail
def test_one_allowance_covers_all_tests() -> None:
    """A program that uses most of the limit on each test is stopped as one that hangs is."""
    script = "import time\nbegun = time.process_time()\nwhile time.process_time() < begun + 0.4: pass\nprint(input())"
    tests = [{"input": str(i), "output": str(i)} for i in range(10)]
    scores, log = score([script], tests, cpu_s=1.0)
    assert scores == [0.0]
    assert log.words == ["timeout"]
    assert log.extras["tests_passed"] == [2]


@needs_jail
def test_scoring_all_stops_at_the_first_failure(runs) -> None:
    tests = [{"input": "", "output": "0"}, {"input": "", "output": "1"}] + [{"input": "", "output": "0"}] * 20
    assert score(["print(0)"], tests, scoring="all")[0] == [0.0]
    assert runs == ["run_script"] * 2


@needs_jail
def test_values_that_cannot_be_carried_are_wrong_not_a_fault() -> None:
    programs = [
        "def f(): return object()",
        "def f(): return lambda: 1",
        "def f():\n    x = []\n    for _ in range(500): x = [x]\n    return x",
        "def f(): return list(range(1_100_000))",
        "def f(): return 'x' * (17 * 2**20)",
        "def f(): return float('nan')",
    ]
    scores, log = score(programs, [{"call": "f", "expected": 1}])
    assert scores == [0.0] * 6
    assert set(log.words) <= {"wrong", "output"}
    assert score(programs, ["assert f() < 1", "assert f(*[]) == 1"])[0] == [0.0] * 6


# ---------------------------------------------------------------------------------------------------------------------
# Faults
# ---------------------------------------------------------------------------------------------------------------------


def test_unusable_rows_are_named_before_the_run() -> None:
    reasons = unusable(tests=[ADD, [], "assert f(", [{"call": "f", "args": [1]}]])
    assert reasons[0] is None
    assert reasons[1] == "tests: there are no tests"
    assert [bool(reason and reason.startswith("tests: ")) for reason in reasons] == [False, True, True, True]
    assert code_tests.unusable is unusable  # type: ignore[attr-defined]


def test_unusable_rows_are_faults_not_scores(caplog) -> None:
    log = Log()
    assert code_tests(["x", "y"], [[], "assert f("], log_verdict=log.verdict) == [None, None]
    assert log.words == ["infrastructure", "infrastructure"]
    assert code_tests(["x"], [[]]) == [None]
    assert "completion 0 is not scored: tests: there are no tests" in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"scoring": "some"}, "scoring"),
        ({"cpu_s": 0}, "cpu_s"),
        ({"wall_s": -1}, "wall_s"),
        ({"memory_mb": 0}, "memory_mb"),
        ({"tags": "python"}, "tags"),
        ({"tests": ADD[0]}, "tests"),
        ({"tests": "assert f(1) == 2"}, "tests"),
        ({"tests": [ADD, ADD]}, "2 entries for 1 completions"),
        ({"entry_point": ["a", "b"]}, "entry_point"),
        ({"entry_point": [5]}, "entry_point: text is expected in every row, got 5 in row 0"),
        ({"program_prefix": [5]}, "program_prefix: text is expected"),
        ({"packages": "numpy"}, "packages: true or false"),
    ],
)
def test_mistakes_of_the_caller_are_errors(options, problem) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        code_tests(["x"], **{"tests": [ADD], **options})


def run_of(end: str, kind: type = CallsResult, **fields: Any) -> Any:
    common = {
        "detail": "why",
        "stdout": "",
        "stderr": "",
        "truncated": False,
        "cpu_s": 0.0,
        "wall_s": 0.0,
        "peak_mb": 1.0,
        "jail": "",
    }
    return kind(end=end, **common, **fields)


def test_a_jail_that_fails_is_a_fault_and_never_a_score(monkeypatch) -> None:
    monkeypatch.setattr(trial, "run_calls", lambda program, calls, *_: run_of("infrastructure", replies=(None,) * len(calls)))
    scores, log = score(["def add(a, b): return a + b"], ADD)
    assert scores == [None]
    assert log.words == ["infrastructure"]
    assert log.extras == {"tests_passed": [None], "tests_total": [None]}
    assert log.metrics == {}


def test_test_code_that_fails_by_itself_is_a_fault(monkeypatch) -> None:
    checks = (CheckResult(True), CheckResult(None, "NameError: helper"))
    monkeypatch.setattr(trial, "run_checks", lambda *_: run_of("finished", ChecksResult, checks=checks))
    scores, log = score(["def f(x): return x"], ["assert f(1) < 2", "assert f(2) < 3"])
    assert scores == [None]
    assert log.details == {0: "tests: NameError: helper"}


def test_no_jail_is_an_error_and_nothing_runs(monkeypatch) -> None:
    def refuse(*_: Any) -> Any:
        raise JailUnavailable("there is no jail")

    monkeypatch.setattr(trial, "run_calls", refuse)
    with pytest.raises(JailUnavailable):
        score(["def add(a, b): return a + b", "x = 1"], ADD)


class Interrupted(BaseException):
    """What a trainer raises from a signal handler."""


def test_an_interrupt_does_not_wait_for_the_programs(monkeypatch) -> None:
    release, started = threading.Event(), threading.Event()
    ran: list[str] = []
    ended: list[str] = []

    def run(program: str, *_: Any) -> Any:
        ran.append(program)
        if not started.is_set():
            signal.setitimer(signal.ITIMER_REAL, 0.2)  # by then the main thread waits for this one
        started.set()
        release.wait(60)
        ended.append(program)
        return run_of("finished", ScriptResult, status=0)

    def interrupt(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(trial, "run_script", run)
    monkeypatch.setattr(reward.os, "cpu_count", lambda: 1)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            score(["print(1)", "print(2)"], [{"input": "", "output": str(i)} for i in range(5)])
        assert ended == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        release.set()
    assert started.is_set()
    # What ran is let to its end; its other tests, and the programs that waited, are not begun.
    for thread in threading.enumerate():
        if thread.name.startswith("code tests"):
            thread.join(60)
    assert ran == ["print(1)\n"]


def test_equal_programs_run_once_and_different_ones_side_by_side(monkeypatch) -> None:
    ran: list[str] = []
    together = threading.Barrier(2, timeout=60)

    def run(program: str, calls: Any, *_: Any) -> Any:
        ran.append(program)
        together.wait()
        return run_of("exit", replies=(None,) * len(calls))

    monkeypatch.setattr(trial, "run_calls", run)
    monkeypatch.setattr(reward.os, "cpu_count", lambda: 2)
    scores, log = score(["a = 1", "b = 2", "a = 1", "a = 1"], ADD)
    assert sorted(ran) == ["a = 1\n", "b = 2\n"]
    assert scores == [0.0] * 4
    assert log.words == ["error"] * 4


@needs_jail
def test_in_a_run() -> None:
    """The runner binds timeout_s to wall_s, counts the verdicts, and makes a fault of a row that cannot be scored."""
    tests = ["assert add(2, 3) == 5", "assert add(0, 0) == 0"]
    rows = [{"tests": tests}] * 4 + [{"tests": []}]
    texts = ["def add(a, b): return a + b", "def add(a, b): return 0", "import time; time.sleep(60)", "no such thing", "x = 1"]
    prompts = [Prompt(index=i, content="q", columns=row, token_ids=(1,)) for i, row in enumerate(rows)]
    completions = [Completion((1,), (0.0,), end="stop", text=f"```python\n{text}\n```") for text in texts]
    part = RewardPart("code", code_tests, threshold=1.0, timeout_s=3.0)
    with RewardRunner([part], workers=1, max_fault_share=0.5) as runner:
        scored = runner.score(prompts, completions, step=1, num_steps=1)
        problems = runner.find_unusable(prompts)
    assert [outcome.reward for outcome in scored.outcomes] == [1.0, 0.5, 0.0, 0.0, None]
    assert [outcome.success for outcome in scored.outcomes] == [True, False, False, False, None]
    assert [outcome.extras.get("tests_passed") for outcome in scored.outcomes] == [2, 1, 0, 0, None]
    words = {name.removeprefix("reward/code/verdict/"): value for name, value in scored.metrics.items() if "verdict/" in name}
    assert words == {"right": 1, "wrong": 1, "timeout": 1, "unparsed": 1, "infrastructure": 1}
    assert scored.metrics["reward/code/pass_rate"] == pytest.approx(1.5 / 4)
    assert problems == {"code": [(4, "tests: there are no tests")]}


@needs_jail
def test_details_are_printable() -> None:
    _, log = score(["def add(a, b): raise ValueError('\\x1b[31mred' + 'x' * 10**5)"], ADD)
    assert "\x1b" not in log.details[0]
    assert len(log.details[0]) < 3000
