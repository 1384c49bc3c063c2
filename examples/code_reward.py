"""A model that writes programs, rewarded by unit tests. One GPU; on a CPU it takes hours.

    python examples/code_reward.py                          Qwen/Qwen2.5-Coder-0.5B-Instruct, from the hub
    python examples/code_reward.py path/to/a/model num_steps=50

A row has a task and its tests. `code_tests` takes the last program of a completion and runs it in a jail: what a model writes
is never trusted (docs/sandbox.md; on Linux, `apt install bubblewrap` makes the strongest one). The reward is the share of the
tests that pass. A row's own solution must pass all of them, or nothing could: that is looked at first. Three tasks show
the shape; a real set has hundreds. This has been tried on small models made on the spot, not on the one that is named here.
"""

from __future__ import annotations

import argparse
from typing import Any

import cohort
from cohort.rewards import code_tests

TASKS = [
    {
        "task": "Write a function double(n) that returns twice n.",
        "tests": ["assert double(2) == 4", "assert double(-1) == -2", "assert double(0) == 0"],
        "solution": "def double(n):\n    return 2 * n",
    },
    {
        "task": "Write a function is_palindrome(text): whether it reads the same backwards, whatever the case of its letters.",
        "tests": ["assert is_palindrome('Anna')", "assert is_palindrome('')", "assert not is_palindrome('ab')"],
        "solution": "def is_palindrome(text):\n    return text.lower() == text.lower()[::-1]",
    },
    {
        "task": "Write a function count_words(text) that returns a dict from each word to how often it occurs.",
        # A call and its result instead of an assertion; one column may hold both kinds.
        "tests": [{"call": "count_words", "args": ["a b a"], "expected": {"a": 2, "b": 1}}],
        "solution": "def count_words(text):\n    words = text.split()\n    return {word: words.count(word) for word in words}",
    },
]


def make_rows() -> list[dict[str, Any]]:
    """Prompts as messages, the tests as a column of their own; the solutions stay here."""
    for task in TASKS:
        if code_tests([f"```python\n{task['solution']}\n```"], tests=[task["tests"]]) != [1.0]:
            raise SystemExit(f"its own solution does not pass the tests of: {task['task']}")
    ask = "{} Answer with one Python code block."
    return [{"prompt": [{"role": "user", "content": ask.format(t["task"])}], "tests": t["tests"]} for t in TASKS]


def main(model: str = "Qwen/Qwen2.5-Coder-0.5B-Instruct", **settings: Any) -> cohort.RunResult:
    """Train. `settings` are recipe words that replace those below."""
    rows = make_rows()
    reward = {"function": "code_tests", "threshold": 1.0, "timeout_s": 10}  # a success passes every test
    defaults: dict[str, Any] = {
        "prompts_per_step": len(rows),
        "group_size": 16,
        "max_completion_tokens": 512,
        "learning_rate": 1e-6,
        "num_steps": 100,
        "evaluation.samples": 0,  # of three tasks none can be held out; with a real set, leave this line out
    }
    return cohort.train(model=model, prompts=rows, rewards=[reward], **defaults | settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="Qwen/Qwen2.5-Coder-0.5B-Instruct")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    words = parser.parse_args()
    chosen = dict(word.split("=", 1) for word in words.settings)
    raise SystemExit(130 if main(words.model, **chosen).status == "interrupted" else 0)
