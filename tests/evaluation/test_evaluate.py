"""Evaluation with a scripted engine: every number can be worked out by hand."""

import json
import re
from dataclasses import dataclass

import pytest

from cohort.evaluation.estimators import pass_at_k
from cohort.evaluation.evaluate import (
    Evaluation,
    compare,
    compare_set,
    evaluate,
    find_largest_k,
    list_ks,
    make_problem_key,
    summarize,
)
from cohort.types import Completion, Outcome, Prompt, Sampling

SAMPLING = Sampling(group_size=4, temperature=1.0, max_completion_tokens=8, stop_ids=(2,), top_p=0.9, top_k=5)


def make_prompts(texts, names=None):
    """Problem i is called "problem i", or as `names` says; its script lists what will be written: "7 7 8 -"."""
    names = names or [f"problem {i}" for i in range(len(texts))]
    return [
        Prompt(i, name, {"answer": "7", "script": text}, (1, 2))
        for i, (name, text) in enumerate(zip(names, texts, strict=True))
    ]


class ScriptedEngine:
    """Writes the words of a problem's script. Greedy writes the first one."""

    name = "scripted"

    def __init__(self):
        self.calls = []

    def generate(self, requests, sampling, noise):
        self.calls.append((sampling, noise, requests))
        words = [
            request.prompt.columns["script"].split()[0 if sampling.for_sample(request.sample).greedy else request.sample]
            for request in requests
        ]
        return [Completion((5,) * len(w), (-0.1,) * len(w), "length" if len(w) > 3 else "stop", w) for w in words]


@dataclass
class Result:
    outcomes: list


class Verifier:
    """ "7" is right, "-" has no answer, "?" is unscored."""

    def __init__(self, extracts=True):
        self.has_answers = self.extracts = extracts

    def score(self, prompts, completions, *, step, num_steps):
        assert len(prompts) == len(completions)
        outcomes = []
        for prompt, completion in zip(prompts, completions, strict=True):
            if completion.text == "?":
                outcomes.append(Outcome({}, None, None))
                continue
            right = completion.text == prompt.columns["answer"]
            answer = completion.text if self.extracts and completion.text != "-" else None
            outcomes.append(Outcome({"check": float(right)}, 2.0 * right + 0.5, right, answer))
        return Result(outcomes)


def run(sets, *, extracts=True, names=None, **options):
    options = {"sampling": SAMPLING, "seed": 3, "step": 10, "greedy": True, "resamples": 200, **options}
    prompts = {name: make_prompts(texts, names) for name, texts in sets.items()}
    return evaluate(ScriptedEngine(), prompts, dict.fromkeys(prompts, Verifier(extracts)), **options)


def test_values_by_hand():
    found = run({"held_out": ["7 7 8 -", "8 8 7 1", "7 7 7 7", "1 2 3 9999"]})
    numbers = found.sets["held_out"]
    assert numbers["pass@1"].value == pytest.approx((0.5 + 0.25 + 1 + 0) / 4)
    assert numbers["pass@2"].value == pytest.approx((pass_at_k(2, 4, 2) + pass_at_k(1, 4, 2) + 1 + 0) / 4)
    assert numbers["pass@4"].value == pytest.approx(0.75)
    assert numbers["maj@4"].value == pytest.approx((1 + 0 + 1 + 0) / 4)
    assert numbers["mean@4"].value == pytest.approx(numbers["pass@1"].value)
    assert numbers["greedy"].value == pytest.approx(0.5)
    assert numbers["reward"].value == pytest.approx(2 * 0.4375 + 0.5)
    assert (numbers["pass@1"].low, numbers["pass@1"].reason) == (None, "4 problems are too few for an interval; it takes 6")
    six = run({"held_out": ["7 7 8 -", "8 8 7 1", "7 7 7 7", "1 2 3 9999", "7 7 8 -", "8 8 7 1"]}).sets["held_out"]["pass@1"]
    assert six.low < (0.5 + 0.25 + 1 + 0 + 0.5 + 0.25) / 6 < six.high
    assert found.counts["held_out"] == {
        "problems": 4, "completions": 16, "unscored": 0, "truncated": 1 / 16, "length_mean": pytest.approx(19 / 16)
    }  # fmt: skip
    assert found.metrics()["eval/held_out/pass@1"] == pytest.approx(0.4375)
    assert found.metrics()["eval/held_out/truncated"] == 1 / 16


def test_unscored_completions_are_left_out_and_counted():
    found = run({"s": ["7 ? 8 ?", "7 7 7 8", "? ? ? ?"]})
    numbers = found.sets["s"]
    assert numbers["pass@1"].value == pytest.approx((0.5 + 0.75) / 2)
    assert numbers["pass@4"].value == 1.0  # only the second problem has four verdicts
    assert numbers["maj@4"].value == pytest.approx((0.5 + 1) / 2)  # the first votes 7 against 8
    assert found.counts["s"]["unscored"] == 6
    assert numbers["greedy"].value == 1.0


def test_maj_is_null_with_a_reason_without_extracted_answers():
    missing = run({"s": ["7 7 8 8"]}, extracts=False).sets["s"]["maj@4"]
    assert missing.value is None
    assert "extract" in missing.reason
    # A reward that extracts, and a policy that never answers: that is a vote of 0, not a missing number.
    assert run({"s": ["- - - -"]}).sets["s"]["maj@4"].value == 0.0


def test_maj_at_8_is_estimated_from_more_samples():
    texts = [" ".join(["7"] * 9 + ["8"] * 7)]
    numbers = run({"s": texts}, sampling=Sampling(16, 1.0, 8, (2,))).sets["s"]
    assert numbers["maj@16"].value == 1.0
    assert 0.5 < numbers["maj@8"].value < 1.0
    assert {"pass@1", "pass@2", "pass@4", "pass@8", "pass@16"} <= set(numbers)


def test_all_sets_and_the_greedy_completions_are_one_call_of_the_engine():
    """With the same noise at every step, and the cuts of the user on all but the greedy completions."""
    engine = ScriptedEngine()
    sets = {"a": make_prompts(["7 7 7 7", "8 8 8 8"]), "b": make_prompts(["7 8 7 8"]), "none": []}
    for step in (0, 50):
        found = evaluate(
            engine, sets, dict.fromkeys(sets, Verifier()), sampling=SAMPLING, seed=3, step=step, greedy=True, resamples=100
        )
    first, second = engine.calls
    assert first == second
    sampling, noise, requests = first
    assert (noise.stream, noise.step, noise.seed) == ("evaluate", 0, 3)
    assert [(request.prompt.content, request.sample) for request in requests] == [
        (prompt.content, sample) for name in ("a", "b") for prompt in sets[name] for sample in range(5)
    ]
    assert [sampling.for_sample(sample) for sample in range(4)] == [sampling] * 4
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.9, 5)
    greedy = sampling.for_sample(4)
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, 0)
    assert [found.counts[name]["completions"] for name in sets] == [8, 4, 0]  # greedy ones are no samples
    assert [found.sets[name]["greedy"].value for name in ("a", "b")] == [0.5, 1.0]
    evaluate(engine, sets, dict.fromkeys(sets, Verifier()), sampling=SAMPLING, seed=3, greedy=False, resamples=100)
    assert len(engine.calls[2][2]) == 12


def test_the_engine_reports_its_progress_to_the_evaluation_and_to_nobody_later():
    class Slow(ScriptedEngine):
        def generate(self, *arguments):
            self.on_progress(0.25)
            return super().generate(*arguments)

    engine, shares = Slow(), []
    sets = {"a": make_prompts(["7 7 7 7"])}
    evaluate(engine, sets, {"a": Verifier()}, sampling=SAMPLING, seed=3, resamples=100, on_progress=shares.append)
    assert shares == [0.25]
    assert engine.on_progress is None


def draws_of(names, **others):
    """Set "s" -> the draws of its problems, when evaluated together with the other sets."""
    engine, prompts = ScriptedEngine(), {"s": make_prompts(["7 7 7 7"] * len(names), names)}
    prompts = {**{name: make_prompts(["7 7 7 7"] * len(of), of) for name, of in others.items()}, **prompts}
    evaluate(engine, prompts, dict.fromkeys(prompts, Verifier()), sampling=SAMPLING, seed=3, resamples=100)
    return [request.draw for request in engine.calls[0][2][-5 * len(names) :: 5]]


def test_noise_depends_on_the_content_of_a_problem_and_not_its_row():
    """It does not depend on the order of rows or on other sets. Each copy of a problem has its own noise."""
    draws = dict(zip("abcd", draws_of(["a", "b", "c", "d"]), strict=True))
    assert len(set(draws.values())) == 4
    assert draws_of(["d", "b", " a\n"]) == [draws["d"], draws["b"], draws["a"]]
    assert draws_of(["c", "a"], before=["c", "x", "y"]) == [draws["c"], draws["a"]]
    copies = draws_of(["a", "b", "a", "a"])
    assert copies[:2] == [draws["a"], draws["b"]]
    assert len(set(copies)) == 4
    assert draws_of(["a", "a", "a", "b"]) == [copies[0], copies[2], copies[3], copies[1]]


def test_empty_set_and_no_set():
    assert run({}).sets == {}
    numbers = run({"s": []}).sets["s"]
    assert numbers["pass@1"].value is None
    assert run({"s": []}).counts["s"]["problems"] == 0


def test_json_round_trip_keeps_what_compare_needs():
    found = run({"s": ["7 ? 8 8", "7 7 7 7"]}, label="before")
    back = Evaluation.from_json(json.loads(json.dumps(found.to_json())))
    assert back.per_problem == found.per_problem
    assert {k: dict(v) for k, v in back.sets.items()} == found.sets
    assert back.counts == found.counts
    assert (back.step, back.label) == (10, "before")


def test_compare_pairs_problem_by_problem():
    before = run({"s": ["8 8 8 7"] * 6 + ["7 8 8 8"] * 6})
    after = run({"s": ["7 7 7 8"] * 6 + ["7 7 7 7"] * 5})  # one problem fewer
    change = compare(before, after)["s"]
    assert change["pass@1"].problems == 11
    assert change["pass@1"].difference == pytest.approx((6 * 0.5 + 5 * 0.75) / 11)
    assert change["pass@1"].p_value == pytest.approx(2 / 2**11)
    assert change["greedy"].difference == pytest.approx(6 / 11)
    assert compare(before, run({"other": ["7 7 7 7"]})) == {}


def test_compare_matches_problems_by_content_and_not_by_row():
    """Two runs with different seeds: row 0 of one is not row 0 of the other."""
    before = run({"s": ["8 8 8 8"] * 4}, names=["a", "b", "c", "d"])
    assert compare(before, run({"s": ["7 7 7 7"] * 4}, names=["e", "f", "g", "h"])) == {}
    after = run({"s": ["7 7 7 7", "8 8 8 8", "8 8 8 8"]}, names=["d", "x", " c\n"])  # other rows, other order
    change = compare(before, after)["s"]["pass@1"]
    assert (change.problems, change.difference) == (2, 0.5)


def test_a_problem_is_its_question_and_its_reference_answer():
    key = make_problem_key(Prompt(0, "1+1=", {"answer": "2", "note": "x"}, (1,)))
    assert re.fullmatch("[0-9a-f]{16}", key)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1="}]
    assert make_problem_key(Prompt(5, " 1+1=\n", {"answer": 2, "note": "y"}, (3, 4))) == key
    assert make_problem_key(Prompt(5, chat, {"answer": "2"}, (3, 4))) == key
    others = [Prompt(0, "1+1=", {"answer": "3"}, (1,)), Prompt(0, "1+1=", {}, (1,)), Prompt(0, "1+2=", {"answer": "2"}, (1,))]
    assert len({key, *(make_problem_key(other) for other in others)}) == 4


def test_copies_of_a_problem_are_one_problem():
    before = run({"s": ["8 8 8 8", "? ? ? ?", "7 7 7 7", "8 8 8 8"]}, names=["a", "a", "a", "b"])
    after = run({"s": ["7 7 7 7", "8 8 8 8", "7 7 7 7", "8 8 8 8", "7 7 7 7"]}, names=["b", "a", "a", "a", "a"])
    # a: 4 of 8 -> 8 of 16; b: 0 -> 1
    change = compare(before, after)["s"]["pass@1"]
    assert (change.problems, change.difference, change.p_value) == (2, 0.5, 1.0)
    assert before.counts["s"]["problems"] == after.counts["s"]["problems"] == 2
    # Two problems of sixteen copies each are no 32 problems: no interval, and nothing "rose".
    names = ["a"] * 16 + ["b"] * 16
    before, after = run({"s": ["8 8 8 8"] * 32}, names=names), run({"s": ["7 7 7 7"] * 32}, names=names)
    for what, estimate in after.sets["s"].items():
        assert estimate.low is None, what
    for change in compare(before, after)["s"].values():
        assert (change.problems, change.low, change.verdict) == (2, None, "no clear change")


def test_examples_show_the_first_problems_with_verdicts():
    rows = run({"s": ["7 8 8 8"] * 6}, examples=2).examples
    assert len(rows) == 2
    assert rows[0] == {
        "set": "s",
        "prompt": "problem 0",
        "answer": "7",
        "completions": [{"text": "7", "reward": 2.5, "success": True}] + [{"text": "8", "reward": 0.5, "success": False}] * 3,
    }
    json.dumps(rows)


def test_summary_entry():
    before, after = run({"s": ["8 8 8 8"] * 6, "t": ["7 8 8 8"]}), run({"s": ["7 7 7 7"] * 6, "t": ["7 8 8 8"]})
    entry = summarize(before, after)
    assert entry["before"]["pass@1"]["value"] == 0.0
    assert entry["after"]["pass@1"]["value"] == 1.0
    assert set(entry["after"]["maj@4"]) == {"value", "low", "high"}
    assert entry["sets"]["t"]["after"]["pass@1"]["value"] == 0.25
    assert entry["change"]["s"]["pass@1"] | {"low": 0, "high": 0} == {
        "difference": 1.0, "low": 0, "high": 0, "p_value": 2 / 2**6, "problems": 6, "verdict": "rose",
    }  # fmt: skip
    assert list(entry["change"]["s"]) == ["pass@1", "pass@4", "greedy"]
    assert entry["change"]["t"]["pass@1"]["verdict"] == "no clear change"
    assert summarize(before, None)["after"] == {}
    assert summarize(None, None) == {"before": {}, "after": {}, "sets": {}, "change": {}}
    json.dumps(entry)


def test_pass_at_k_is_paired_for_the_largest_k_that_most_problems_have_verdicts_for():
    """By hand: pass@4 of 4 counts a problem as solved; one verdict that is missing takes it out of pass@4 and not of pass@2."""
    before, after = run({"s": ["7 8 8 8"] * 7}).per_problem["s"], run({"s": ["7 7 7 7"] * 3 + ["8 8 8 8"] * 4}).per_problem["s"]
    assert find_largest_k(before, after) == 4
    found = compare_set(before, after, 0, 1000)
    assert found["pass@4"].difference == pytest.approx(3 / 7 - 1)
    assert found["pass@1"].difference == pytest.approx(3 / 7 - 1 / 4)
    assert found["pass@4"].p_value == 2 / 2**4  # four of seven problems moved, all one way
    unscored = run({"s": ["7 8 8 ?"] * 4 + ["7 8 8 8"] * 3}).per_problem["s"]
    assert find_largest_k(unscored, after) == 2
    assert compare_set(unscored, after, 0, 1000)["pass@2"].problems == 7
    alone = run({"s": ["7"] * 7}, sampling=Sampling(1, 1.0, 8, (2,))).per_problem["s"]
    assert find_largest_k(alone, after) == 0
    assert list(compare_set(alone, after, 0, 1000)) == ["pass@1", "greedy"]


def test_default_ks():
    assert list_ks(1) == (1,)
    assert list_ks(8) == (1, 2, 4, 8)
    assert list_ks(12) == (1, 2, 4, 8, 12)
