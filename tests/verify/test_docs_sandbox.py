"""docs/sandbox.md: its examples give the values on the page, and its lists are complete."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from cohort_verify.sandbox import ENDS, Limits
from doc_examples import examples_of

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")


def test_the_examples_give_the_values_in_their_comments():
    checked = list(examples_of(PAGE))
    assert [code for code, value, expected in checked if value != expected] == []
    assert len(checked) == 5


def test_limits_and_ends_are_those_of_the_code():
    defaults = {name: float(value) for name, value in re.findall(r"^\| `(\w+_?\w*)` \| (\d+) \| ", PAGE, re.MULTILINE)}
    assert defaults == {field.name: float(field.default) for field in dataclasses.fields(Limits)}
    ends = re.search(r"\| `end` \| \|\n(.*?)\n\n", PAGE, re.DOTALL)
    assert ends is not None
    named = [word for line in ends[1].splitlines()[1:] for word in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(ENDS)
