"""The reader of Math-Verify's tests: reading cases, scoring predictions, sorting disagreements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import math_verify_suite as suite

from cohort_verify.sandbox import JailUnavailable, find_tier

try:
    find_tier()
    JAIL = True
except JailUnavailable:
    JAIL = False

TESTS = r"""
import math, os
os.abort()  # these files are read, never run

@pytest.mark.parametrize("gold,pred,expected", [("$7$", r"so \\boxed{7}", 1), ("$7$", "$8$", 0), ("$0.333$", "$1/3$", 1)])
def test_numbers(gold, pred, expected): ...

@pytest.mark.parametrize("gold, pred, result", [(f"{math.sqrt(4):.1f}", f"the root is ${{2}}$ here", 1), ("$9$", "is 9 not", 0)])
def test_more(gold, pred, result): ...

@pytest.mark.parametrize("pred,expected,config", [("x", [], Config())])
def test_without_a_gold(pred, expected, config): ...
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "test_theirs.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


def test_cases_are_read_and_nothing_is_run(folder):
    cases = list(suite.read_cases(folder))
    assert [(case.gold, case.prediction, case.expected) for case in cases] == [
        ("$7$", r"so \\boxed{7}", True),
        ("$7$", "$8$", False),
        ("$0.333$", "$1/3$", True),
        ("2.0", "the root is ${2}$ here", True),
        ("$9$", "is 9 not", False),
    ]
    assert len({case.key for case in cases}) == 5


def test_a_marker_a_formula_or_prose():
    assert suite.completion_of(r"so \boxed{7}") == (r"so \boxed{7}", False)
    assert suite.completion_of("$8$") == (r"\boxed{$8$}", False)
    assert suite.completion_of("28 percent") == (r"\boxed{28 percent}", False)
    assert suite.completion_of("it is $8$, I think") == ("it is $8$, I think", True)


@pytest.mark.skipif(not JAIL, reason="needs a jail")
def test_agreement_is_counted_and_every_disagreement_has_a_group(folder, tmp_path, capsys, monkeypatch):
    third = list(suite.read_cases(folder))[2]
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"near misses": {"right": "ours", "why": "0.333 is not 1/3", "cases": [third.key]}}))
    monkeypatch.setattr(sys, "argv", ["suite", str(folder), "--against", str(groups)])
    assert suite.main() == 0
    said = capsys.readouterr().out
    assert "4 of 5" in said
    assert "| near misses | 1 | ours | 0.333 is not 1/3 |" in said
    groups.write_text(json.dumps({}))
    assert suite.main() == 1
    assert f"in no group: {third.key}" in capsys.readouterr().out
