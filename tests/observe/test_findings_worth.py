"""The worth of findings (benchmarks/findings.py): the table is sound, the figures are counted right, and tiny runs that fail are found."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.observe.diagnosis.finding import TEXTS
from cohort.rewards.call import TrainerState

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import findings
import findings_rewards as rewards
from findings_table import HEALTHY, PATHOLOGIES

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "findings.json"


def test_the_table_has_the_runs_that_are_asked_for():
    assert len(PATHOLOGIES) >= 15
    assert len(HEALTHY) >= 30
    assert len({json.dumps([case.task, dict(case.changes)]) for case in HEALTHY.values()}) == len(HEALTHY)
    for case in PATHOLOGIES.values():
        assert case.expected
        assert set(case.expected) <= set(TEXTS)
    for case in {**PATHOLOGIES, **HEALTHY}.values():
        changes = {key: value for key, value in case.changes.items() if value != "solved"}
        findings.make_recipe(case, changes)  # every word is one of the recipe's


def test_no_run_that_is_reported_shares_a_seed_with_those_that_were_tried():
    reported, tried = findings.plan_runs(0), findings.plan_runs(100)
    assert not {one.seed for one in reported} & {one.seed for one in tried}
    assert not {one.start_seed for one in reported} & {one.start_seed for one in tried}
    assert [one.name for one in findings.plan_runs(0, ["coin"])] == ["coin"]


# -- counting ----------------------------------------------------------------------------------------------------------


def looks(*means, problems=40):
    """Looks at steps 0, 5, 10, ...: in each so large a share of the problems is solved every time, the first ones."""
    return {5 * place: {f"p{n}": float(n < mean * problems) for n in range(problems)} for place, mean in enumerate(means)}


def test_a_fall_is_clear_and_lasts():
    assert findings.find_fall(looks(0.4, 0.6, 0.3, 0.2)) == 10  # from its best, at step 5
    assert findings.find_fall(looks(0.4, 0.0, 0.4, 0.4)) is None  # it came back
    assert findings.find_fall(looks(0.4, 0.0, 0.4, 0.1)) == 15  # it came back, and fell again
    assert findings.find_fall(looks(0.5, 0.475)) is None  # one problem of forty
    assert findings.find_fall(looks(0.0, 0.0)) is None
    assert findings.has_risen(looks(0.4, 0.1, 0.8))
    assert not findings.has_risen(looks(0.4, 0.9, 0.4))


def record(kind="pathology", fell=None, rose=False, found=None, expected=("copies",), name="a"):
    return {
        "name": name, "kind": kind, "words": "w", "seed": 0, "steps": 50, "fell": fell, "rose": rose, "expected": list(expected),
        "found": found or {}, "held_out": {"0": 0.4, "50": 0.2},
    }  # fmt: skip


def said(step, level="warning", alarm=None):
    return {"step": step, "level": level, "alarm": alarm, "what": ""}


def test_only_an_expected_finding_counts_and_the_lead_is_to_the_fall_or_to_the_end():
    assert findings.choose_finding(record(found={"clipping": said(3, "alarm", 3)})) is None
    assert findings.choose_finding(record(found={"copies": said(3, "info")})) is None
    fallen = {"found": {"held_out_falls": said(10)}, "expected": ["held_out_falls"]}
    assert findings.choose_finding(record(**fallen)) is None  # it came back, as in healthy runs
    assert findings.choose_finding(record(fell=10, **fallen))[0] == "held_out_falls"
    found = record(fell=20, found={"copies": said(9, "alarm", 12), "clipping": said(3)})
    assert findings.choose_finding(found)[0] == "copies"
    assert findings.measure_lead(found) == 11
    assert findings.measure_lead(found | {"fell": 5}) == -4
    assert findings.measure_lead(found | {"fell": None}) == 41
    assert findings.measure_lead(record(fell=20)) is None
    assert "| warning, alarm at 12 | 9 | 40 → 40 → 20 % | 20 | 11 |" in findings.write_table([found])
    assert "**missed**" in findings.write_table([record()])


def test_the_figures_are_counted():
    healthy = [record("healthy", rose=True, name=str(n)) for n in range(30)]
    failed = [
        record(fell=20, found={"copies": said(9, "alarm", 12)}),
        record(fell=5, found={"copies": said(6)}, name="b"),
        record(name="c"),
        record(found={"copies": said(10)}, name="d"),
        record(rose=True, found={"copies": said(10)}, name="e"),  # nobody found the hole: nothing to find
    ]
    figures = findings.summarize([*failed, *healthy])
    assert (figures["pathologies"], figures["found"], figures["found_by_alarm"]) == (4, 3, 1)
    assert figures["missed"] == ["c.0"]
    assert (figures["made_to_fail"], figures["learned_all_the_same"]) == (5, ["e.0"])
    assert (figures["fell"], figures["never_rose"]) == (2, 2)
    assert figures["median_lead"] == 11  # of -1, 11 and 40
    assert (figures["found_and_fell"], figures["found_before_the_fall"]) == (2, 1)
    assert (figures["healthy"], figures["false_alarms"], figures["bound"]) == (30, 0, 0.1)
    alarmed = findings.summarize([*healthy[1:], record("healthy", rose=True, found={"copies": said(1, "alarm", 1)})])
    assert (alarmed["false_alarms"], alarmed["bound"]) == (1, None)


@pytest.mark.skipif(
    not RESULTS.is_file(),
    reason="not made yet: python benchmarks/findings.py --out runs/findings --json docs/results/findings.json",
)
def test_the_results_that_are_reported_follow_from_their_runs():
    noted = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert findings.summarize(noted["runs"]) == noted["figures"]
    assert {one["name"] for one in noted["runs"]} == {*PATHOLOGIES, *HEALTHY}
    assert all(
        one["expected"] == list(PATHOLOGIES[one["name"]].expected) for one in noted["runs"] if one["kind"] == "pathology"
    )
    assert noted["figures"]["healthy"] >= 30
    assert noted["figures"]["false_alarms"] == 0


# -- the holes are the holes that they are called ----------------------------------------------------------------------


def test_each_faulty_reward_pays_for_what_its_name_says():
    right, wrong, silent = "6+7+0=13\n4+8+1=13\n>133", "6+7+0=13\n>5", "6+7"
    prompts, golds, state = ["46+87="] * 3, ["133"] * 3, TrainerState(3, 10, 0.0)
    given = {"completions": [right, wrong, silent], "prompts": prompts, "answer": golds, "trainer_state": state}
    paid = {
        name: getattr(rewards, name)(**given)
        for name in ("judge_exactly", "forget_zero", "fear_answers", "take_failure_for_right", "pay_always")
    }
    assert paid == {
        "judge_exactly": [1.0, 0.0, 0.0],
        "forget_zero": [1.0, None, None],
        "fear_answers": [1.0, -5.0, 0.0],
        "take_failure_for_right": [1.0, 0.0, 1.0],
        "pay_always": [1.0, 1.0, 1.0],
    }
    assert rewards.match_prefix([">1", ">13", ">133", ">3"], ["133"] * 4) == [1.0, 1.0, 1.0, 0.0]
    assert rewards.take_magic([">112", ">5"], ["133"] * 2) == [1.0, 0.0]
    assert rewards.love_phrase(["4+6+0=10\n>1", ">5"], ["133"] * 2) == [1.0, 0.0]
    assert rewards.agree_with_most([">5", ">5", right], prompts) == [1.0, 1.0, 0.0]
    with pytest.raises(IndexError):
        rewards.crash_on_large([right], ["133"])
    assert rewards.add_columns(46, 87) == "23"
    assert {row["prompt"] for row in rewards.sort_digits(count=50)}.isdisjoint(
        row["prompt"] for row in rewards.sort_digits("held_out", count=50)
    )
    assert rewards.reverse_word(count=1)[0]["answer"] == rewards.reverse_word(count=1)[0]["prompt"][-2::-1]


# -- tiny runs ---------------------------------------------------------------------------------------------------------

SMALL = {
    "prompts.args": {"digits": 2, "count": 100},
    "model.scratch": {"hidden_size": 32, "intermediate_size": 48, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1},
    "cold_start": {"num_steps": 60, "batch_size": 64, "warmup_steps": 2, "learning_rate": 1.5e-2},
    "train": {"num_steps": 6, "prompts_per_step": 4, "group_size": 4},
    "evaluation": {"samples": 2, "max_problems": 8, "every_problems": 8, "resamples": 100},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("findings")


@pytest.mark.parametrize(("name", "finding", "level"), [
    ("none_for_wrong", "unscored", "alarm"),
    ("always_paid", "no_gradient", "alarm"),
    pytest.param("cut_short", "truncation", "alarm", marks=pytest.mark.prove),
])  # fmt: skip
def test_a_run_made_to_fail_is_found_and_noted(folder, name, finding, level):
    (planned,) = findings.plan_runs(100, [name])
    short = {"sampling.max_completion_tokens": 4} if name == "cut_short" else {}
    case = replace(planned.case, changes={**planned.case.changes, **short})
    noted = findings.run_case(replace(planned, case=case), folder, SMALL)
    assert noted["found"][finding]["level"] == level
    assert findings.choose_finding(noted) is not None
    assert noted["found"][finding]["step"] <= 6
    assert set(noted["held_out"]) <= {"0", "5", "6"}
    json.dumps(noted)
