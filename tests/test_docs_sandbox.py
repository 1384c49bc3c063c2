"""docs/sandbox.md: its examples give what the page says, and its lists are those of the code."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

from cohort.sandbox import ENDS, Limits

PAGE = (Path(__file__).parents[1] / "docs" / "sandbox.md").read_text(encoding="utf-8")


def test_the_examples_give_the_values_in_their_comments():
    names: dict[str, Any] = {}
    checked = 0
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        for statement in ast.parse(block).body:
            code = ast.get_source_segment(block, statement)
            assert code is not None
            assert statement.end_lineno is not None
            comment = block.splitlines()[statement.end_lineno - 1].partition("    # ")[2].strip()
            if isinstance(statement, ast.Expr):
                assert eval(code, names) == ast.literal_eval(comment), code
                checked += 1
            else:
                exec(code, names)
    assert checked == 5


def test_limits_and_ends_are_those_of_the_code():
    defaults = {name: float(value) for name, value in re.findall(r"^\| `(\w+_?\w*)` \| (\d+) \| ", PAGE, re.MULTILINE)}
    assert defaults == {field.name: float(field.default) for field in dataclasses.fields(Limits)}
    ends = re.search(r"\| `end` \| \|\n(.*?)\n\n", PAGE, re.DOTALL)
    assert ends is not None
    named = [word for line in ends[1].splitlines()[1:] for word in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(ENDS)
