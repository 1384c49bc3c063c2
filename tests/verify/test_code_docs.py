"""docs/code-rewards.md: its examples give the values on the page, and its tables are complete."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from cohort_verify.code.reward import code_tests
from cohort_verify.code.trial import LIMIT_ENDS
from cohort_verify.sandbox import JailUnavailable, find_tier

PAGE = (Path(__file__).parents[2] / "docs" / "code-rewards.md").read_text(encoding="utf-8")
RESULT = re.compile(r"^(code_tests\(.*\))\s+# (\[.*\])$", re.MULTILINE)


def test_examples_give_what_the_page_says() -> None:
    try:
        find_tier()
    except JailUnavailable as problem:
        pytest.skip(str(problem))
    namespace: dict[str, Any] = {}
    seen = 0
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(RESULT.sub("", block), namespace)
        for call, expected in RESULT.findall(block):
            assert eval(call, namespace) == ast.literal_eval(expected), call
            seen += 1
    assert seen == PAGE.count("\ncode_tests(") == 8


def test_the_page_names_every_argument_and_verdict() -> None:
    arguments = set(inspect.signature(code_tests).parameters) - {
        "completions", "prompts", "prefilled", "columns", "log_verdict", "log_extra", "log_metric",
    }  # fmt: skip
    assert {name for name in arguments if f"`{name}`" not in PAGE} == set()
    words = {"right", "wrong", "error", "no_answer", "unparsed", "infrastructure", *LIMIT_ENDS.values()}
    assert {word for word in words if f"`{word}`" not in PAGE} == set()
