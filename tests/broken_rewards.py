"""Six rewards, each with one flaw planted in it, for test_audit. Importable, so that workers run them.

The two graders of programs run them with subprocess and without a jail, as so many do: give them harmless programs only.
"""

from __future__ import annotations

import re
import subprocess
import sys


def program_of(completion):
    found = re.search(r"```(?:python)?\n(.*?)```", completion, re.DOTALL)
    return found.group(1) if found else completion


def run(program, limit_s=3):
    """(exit status, what it printed); status -1 at the time limit."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
        )
    except (subprocess.TimeoutExpired, ValueError):
        return -1, ""
    return done.returncode, done.stdout


def exit_code_grader(completions, tests, **columns):
    """Flaw: the program and its tests are one file, and exit status 0 is a success."""
    scores = []
    for completion, asserts in zip(completions, tests, strict=True):
        status, _ = run(program_of(completion) + "\n" + "\n".join(asserts))
        scores.append(float(status == 0))
    return scores


def stdout_grader(completions, tests, **columns):
    """Flaw: a success is announced by the word PASS, on an output that the program shares."""
    scores = []
    for completion, asserts in zip(completions, tests, strict=True):
        _, printed = run(program_of(completion) + "\n" + "\n".join(asserts) + "\nprint('PASS')")
        scores.append(float("PASS" in printed))
    return scores


def first_number(completions, answer, **columns):
    """Flaw: the first number of the text is the answer."""
    found = [re.search(r"-?\d+(?:\.\d+)?", completion) for completion in completions]
    return [float(match is not None and float(match.group()) == float(gold)) for match, gold in zip(found, answer, strict=True)]


def substring(completions, answer, **columns):
    """Flaw: the gold may stand anywhere, also inside a longer number."""
    return [float(gold in completion) for completion, gold in zip(completions, answer, strict=True)]


def boxed_number(completions, answer, **columns):
    """No flaw of its own; LEAKING_ROWS are the flaw."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        visible = completion.rpartition("</think>")[2]
        boxes = re.findall(r"\\boxed\{([^{}]*)\}", visible)
        plain = boxes[-1].replace(",", "").replace("$", "").strip() if boxes else ""
        is_number = re.fullmatch(r"-?\d{1,30}(?:\.\d{1,30})?", plain, re.ASCII) is not None
        scores.append(float(is_number and bool(str(gold or "").strip()) and float(plain) == float(gold)))
    return scores


def format_only(completions, answer, **columns):
    """Flaw: whoever thinks and fills a box is paid, whatever is in it."""
    return [float(re.search(r"\\boxed\{[^{}]+\}", completion) is not None) for completion in completions]


# -- rows --------------------------------------------------------------------------------------------------------------

SUMS = ((17, 25), (48, 91), (5, 8), (230, 407), (61, 12), (99, 33))

NUMBER_ROWS = [{"prompt": f"What is {a} plus {b}?", "answer": str(a + b)} for a, b in SUMS]
LEAKING_ROWS = [
    {"prompt": f"What is {a} plus {b}? Write the answer as \\boxed{{{a + b}}}.", "answer": str(a + b)} for a, b in SUMS
]
CODE_ROWS = [
    {
        "prompt": "Write a function add(first, second).",
        "tests": ["assert add(1, 2) == 3", "assert add(-4, 4) == 0", "assert add(20, 22) == 42"],
        "solution": "def add(first, second):\n    return first + second\n",
    },
    {
        "prompt": "Write a function double(text).",
        "tests": ["assert double('ab') == 'abab'", "assert double('') == ''"],
        "solution": "def double(text):\n    return text * 2\n",
    },
]
