"""What evaluations may claim: a rise or a fall only where a paired test shows it, and a pass@k that falls behind pass@1."""

from __future__ import annotations

import io
import json
import random
import re

import pytest
from rich.console import Console

from cohort.evaluation.estimators import pass_at_k
from cohort.evaluation.evaluate import Evaluation, summarize
from cohort.observe.diagnosis.checks import FindingWatch, diagnose
from cohort.observe.monitors.base import Monitors
from cohort.observe.monitors.console import ConsoleMonitor
from cohort.observe.outcome import describe_changes
from cohort.observe.report.page import write_report

SAMPLES = 16


def evaluation(label, counts, step=0, name="test", samples=SAMPLES):
    """Of the problems 0, 1, ..., each with so many successes of `samples`. The numbers are those that the counts give."""

    def value(k):
        return {"value": sum(pass_at_k(c, samples, k) for c in counts) / len(counts), "low": 0.0, "high": 1.0}

    verdicts = {
        "problem": [f"p{number}" for number in range(len(counts))],
        "success": ["1" * count + "0" * (samples - count) for count in counts],
        "greedy": "",
    }
    numbers = {"pass@1": value(1), f"pass@{samples}": value(samples), "problems": len(counts)}
    return {"step": step, "label": label, "sets": {name: numbers}, "per_problem": {name: verdicts}}


def narrowing(before, after, rows=(), **more):
    found = diagnose(rows, more.pop("recipe", None), [evaluation("before", before), evaluation("after", after, 9, **more)])
    return next((one for one in found if one.name == "pass_at_k_falls"), None)


NARROWED = [2] * 16 + [8] * 8, [16] * 8 + [0] * 8 + [12] * 8
"""24 problems: of 16 that were solved now and then, 8 are always and 8 never solved after it."""


def test_pass_at_16_that_falls_while_pass_at_1_rises_is_said_with_interval_meaning_and_help():
    """By hand: pass@1 (16 * 2 + 8 * 8) / (24 * 16) = 25 % to (8 * 16 + 8 * 12) / 384 = 58 %; pass@16 24 of 24 to 16 of 24.
    Eight problems moved, all down: p = 2 / 2^8 = 0.0078."""
    found = narrowing(*NARROWED, recipe={"algorithm": {"kl_coef": 0.01}})
    assert found.level == "warning"
    assert re.fullmatch(
        r"On test, pass@16 fell from 100 % to 67 % \(95 % interval -5\d\.\d to -1\d\.\d, paired over 24 problems, p = 0\.0078\), "
        r"while pass@1 rose from 25 % to 58 %\.",
        found.what,
    )
    assert "more certain, not more capable" in found.why
    for help_ in ("algorithm.kl_coef (now 0.01)", "algorithm.entropy_coef", "algorithm=maxrl", "fewer steps"):
        assert help_ in found.fix


def test_a_pass_at_k_that_falls_while_pass_at_1_stays_is_said_too():
    found = narrowing([8] * 20, [16] * 11 + [0] * 9)  # pass@1 50 % to 55 %, pass@16 20 of 20 to 11 of 20
    assert "pass@16 fell from 100 % to 55 %" in found.what
    assert "while pass@1 went from 50 % to 55 %, no clear change." in found.what


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([2] * 24, [8] * 24),  # pass@1 rises, pass@16 stays
        ([2] * 12 + [0] * 12, [16] * 20 + [0] * 4),  # both rise
        ([8] * 24, [2] * 12 + [0] * 12),  # both fall: the policy is worse, which is another matter
        ([2] * 20 + [8] * 4, [16] * 18 + [0] * 2 + [8] * 4),  # two problems of 24 lost: p = 0.5
        ([2] * 20, [16] * 15 + [0] * 5),  # five of 20 lost, none gained: p = 2 / 2^5 = 0.06
        ([2] * 5, [0] * 4 + [16]),  # too few problems for any claim
    ],
)
def test_what_is_no_narrowing_is_not_called_so(before, after):
    assert narrowing(before, after) is None


def test_one_problem_more_makes_it_clear():
    assert narrowing([2] * 20, [16] * 14 + [0] * 6).what.startswith("On test, pass@16 fell from 100 % to 70 %")  # p = 2 / 2^6


def test_noise_alone_raises_it_hardly_ever():
    """The same policy twice: 40 problems of any difficulty, 100 draws. A test at 5 % with two sides may err in 2.5 of 100."""
    raised = 0
    for seed in range(100):
        rng = random.Random(seed)
        rates = [rng.random() ** 2 for _ in range(40)]
        before, after = ([sum(rng.random() < rate for _ in range(8)) for rate in rates] for _ in range(2))
        sets = [evaluation("before", before, samples=8), evaluation("after", after, 9, samples=8)]
        raised += any(one.name == "pass_at_k_falls" for one in diagnose((), None, sets))
    assert raised <= 6


def test_only_the_end_of_a_run_is_judged():
    """Of many looks on the way one would show noise; and an old end says nothing of a run that goes on."""
    before, after = NARROWED
    looks = [evaluation("before", before), evaluation("during", after, 5)]
    assert not [one for one in diagnose((), None, looks) if one.name == "pass_at_k_falls"]
    assert narrowing(before, after, rows=[{"step": 9}]) is not None
    assert narrowing(before, after, rows=[{"step": 10}]) is None
    torn = [evaluation("before", before), evaluation("after", after, 9) | {"per_problem": {"test": {"problem": 3}}}]
    assert diagnose((), None, torn) == []


def console_of(folder, **before):
    """before: what the watch has of the run from before a resume."""
    stream = io.StringIO()
    return Monitors(
        [ConsoleMonitor(folder, {}, console=Console(file=stream, width=400))], watch=FindingWatch({}, **before)
    ), stream


def test_the_end_on_the_console_and_the_report_say_what_is_clear_and_what_is_not(tmp_path):
    before, after = NARROWED
    first, last = evaluation("before", before), evaluation("after", after, 9)
    summary = {"status": "finished", "steps": 9, "seconds": 1.0}
    summary["eval"] = summarize(Evaluation.from_json(first), Evaluation.from_json(last))
    assert summary["eval"]["change"]["test"]["pass@16"]["verdict"] == "fell"
    monitor, stream = console_of(tmp_path, evaluations=[first])
    monitor.on_evaluation(last)
    monitor.on_finish(summary)
    text = stream.getvalue()
    assert "pass@1 on test rose from 25.0 % to 58.3 %. A change of +33.3 points (95 % interval " in text
    assert "warning: On test, pass@16 fell from 100 % to 67 %" in text
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (first, last)))
    page = write_report(tmp_path).read_text()
    assert "On test, pass@16 fell from 100 % to 67 %" in page
    assert '<td class="down">-33.3</td>' in page
    assert '<td class="up">+33.3</td>' in page


def test_two_problems_rise_nowhere(tmp_path):
    """11 of 16 and 14 of 16 right: 68.8 % to 87.5 %, on two problems."""
    first, last = evaluation("before", [5, 6], samples=8), evaluation("after", [8, 6], 9, samples=8)
    entry = summarize(Evaluation.from_json(first), Evaluation.from_json(last))
    words = (
        "pass@1 on test went from 68.8 % to 87.5 %: no clear change; the difference is within the noise of the evaluation. A change of "
        "+18.8 points (paired over 2 problems, p = 1; 2 problems are too few for an interval; it takes 6)"
    )
    assert list(describe_changes(entry)) == [f"{words}."]
    (tmp_path / "summary.json").write_text(json.dumps({"status": "finished", "steps": 9, "eval": entry}))
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (first, last)))
    page = write_report(tmp_path).read_text()
    assert "rose" not in page
    assert "2 problems are too few for an interval; it takes 6" in page
    assert 'class="up"' not in page


def test_a_fall_without_an_interval_is_no_alarm():
    """Four problems have no interval; their numbers are not to be taken for exact."""

    def at(step, value):
        return {"step": step, "sets": {"test": {"pass@1": {"value": value, "low": None, "high": None}}}}

    rows = [{"step": step, "reward/mean": 0.5 + step / 200} for step in range(1, 61)]
    assert "held_out_falls" not in {one.name for one in diagnose(rows, None, [at(0, 0.75), at(60, 0.25)])}
