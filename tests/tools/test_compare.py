"""`cohort compare`: planned runs, running, results and output. Most run folders are fabricated."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cohort.algorithms.named import PRESETS
from cohort.cli import app
from cohort.errors import CohortError, PromptError, RecipeError, RunError
from cohort.evaluation.evaluate import Evaluation, compare
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.describe import find_differing, list_cells, list_used, print_algorithms, read_preset
from cohort.recipe.values import Materials
from cohort.tools.compare import parse_seeds, run_compare
from cohort.tools.compare.contenders import find_contenders
from cohort.tools.compare.output import average_curves, print_comparison, render_comparison, write_amount, write_p
from cohort.tools.compare.plan import make_document, make_plan, open_output
from cohort.tools.compare.results import compare_runs, read_results
from cohort.tools.compare.runner import collect_signals, make_environment, run_plan
from session_tools import COHORT, ONE_THREAD, summary_of, write_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    return str(write_recipe(tmp_path / "tiny.toml"))


def plan_of(tmp_path: Path, words: list[str], recipe: str = "", seeds: tuple[int, ...] = (0,)):
    return make_plan(find_contenders(words, recipe), seeds, tmp_path / "out")


# -- contenders --------------------------------------------------------------------------------------------------------


def test_an_algorithm_is_its_preset_in_the_base_recipe_and_the_bases_own_algorithm_keeps_its_tuning():
    field = find_contenders(["grpo", "dr_grpo", "ppo", "loose=grpo:kl_coef=0,clip_high=0.3", "num_steps=7"], "")
    by_label = {contender.label: contender.recipe for contender in field.contenders}
    assert list(by_label) == ["grpo", "dr_grpo", "ppo", "loose"]
    assert field.base_name == "column_addition"
    assert by_label["grpo"].algorithm.kl_coef == 0.005  # the demo's own
    assert by_label["dr_grpo"].algorithm.kl_coef == 0.0  # the preset's, not the demo's
    assert by_label["ppo"].algorithm.model_dump() == read_preset("ppo")
    assert (by_label["loose"].algorithm.kl_coef, by_label["loose"].algorithm.clip_high) == (0.0, 0.3)
    assert {one.train.num_steps for one in by_label.values()} == {7}
    assert {one.optimizer.learning_rate for one in by_label.values()} == {3e-4}


def test_settings_that_no_preset_names_stay_as_in_the_recipe(tmp_path):
    tuned = write_recipe(tmp_path / "a.toml", **{"algorithm.std_ddof": 1, "algorithm.clip_high": 0.25})
    field = find_contenders(["grpo", "dapo", "algorithm.entropy_coef=0.01"], str(tuned))
    grpo, dapo = (contender.recipe.algorithm for contender in field.contenders)
    assert (grpo.std_ddof, grpo.clip_high, grpo.kl_coef, grpo.entropy_coef) == (1, 0.25, 0.02, 0.01)
    assert (dapo.std_ddof, dapo.clip_high, dapo.kl_coef, dapo.entropy_coef) == (1, 0.28, 0.0, 0.01)


def test_contenders_may_name_user_functions_with_arguments(tmp_path, monkeypatch):
    source = "def middle(rewards_PG, scored_PG, *, share=0.5):\n    return rewards_PG\n"
    (tmp_path / "contending.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    base = str(write_recipe(tmp_path / "a.toml", **{"algorithm.advantage": "contending:middle", "algorithm.args.share": 0.25}))
    words = ["grpo", "own=grpo:advantage=contending:middle,args.share=0.75", "dr_grpo"]
    plan = plan_of(tmp_path, words, base)
    assert read_results(plan, {}).list_choices() == {
        "grpo": {"name": "grpo", "advantage": "contending:middle", "kl_coef": 0.02, "kl_estimator": "k3", "kl_in": "loss",
                 "aggregation": "sequence_mean", "args.share": 0.25},
        "own": {"name": "grpo", "advantage": "contending:middle", "kl_coef": 0.02, "kl_estimator": "k3", "kl_in": "loss",
                "aggregation": "sequence_mean", "args.share": 0.75},
        "dr_grpo": {"name": "dr_grpo", "advantage": "group_centered", "kl_coef": 0.0, "aggregation": "constant"},
    }  # fmt: skip
    digest = hashlib.sha256(source.encode()).hexdigest()
    documents = make_document(plan)["contenders"]
    assert documents["own"]["source"] == {"advantage": digest}
    assert "source" not in documents["dr_grpo"]
    with pytest.raises(RecipeError, match=r"contender bad: algorithm\.advantage: cannot import contending:mddle"):
        find_contenders(["grpo", "bad=grpo:advantage=contending:mddle"], "")
    with pytest.raises(RecipeError, match=r"contender bad: algorithm\.args\.shares: .* did you mean 'share'"):
        find_contenders(["bad=grpo:advantage=contending:middle,args.shares=1"], "")


def test_the_first_of_several_recipes_is_the_base_and_another_model_is_noted(tmp_path):
    first = write_recipe(tmp_path / "one.toml")
    other = write_recipe(tmp_path / "two.toml", **{"model.scratch.num_layers": 3})
    alike = write_recipe(tmp_path / "three.toml", **{"optimizer.learning_rate": 5e-4})
    field = find_contenders([str(first), f"deep={other}", str(alike)], "")
    assert [contender.label for contender in field.contenders] == ["one", "deep", "three"]
    assert [contender.shares_start for contender in field.contenders] == [True, False, True]
    assert field.contenders[1].note == "has its own starting model (other [model])"
    assert field.contenders[2].recipe.optimizer.learning_rate == 5e-4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["grop"], "did you mean 'grpo'"),
        (["grpo", "grpo"], "two contenders are called 'grpo' (grpo and grpo); give one another label, e.g. second=grpo"),
        (["grpo", "seed=3"], "seed: a comparison sets it itself; give the seeds with --seeds"),
        (["grpo", "algorithm=dapo"], "the contenders name the algorithms"),
        (["grpo", "name=x"], "LABEL=CONTENDER"),
        (
            ["grpo:num_steps=5"],
            "'num_steps' is not a key of [algorithm]. For all contenders, write it as an argument: num_steps=5",
        ),
        (["grpo:kl_coeff=0"], "did you mean 'kl_coef'"),
        (["grpo:kl_coef"], "write key=value,key=value after the colon"),
        (["dapo:data=demonstrations"], "contender dapo:data=demonstrations: algorithm: advantage 'group_normalized' compares"),
        (["grpo", "num_stepz=5"], "did you mean 'num_steps'"),
        (["grpo", "max_steps=5"], "train.num_steps"),
        (["grpo", "num_steps=0"], "0 trains no contender"),
        (["start=grpo"], "reserved for the shared cold start"),
        (["num_steps=5"], "name at least one contender"),
        (["a/b=grpo"], "it names folders"),
    ],
)
def test_mistakes_are_refused_with_a_message(words, said):
    with pytest.raises(CohortError, match=re.escape(said)):
        find_contenders(words, "")


def test_a_contender_may_not_change_the_budget(tmp_path, recipe):
    longer = write_recipe(tmp_path / "longer.toml", **{"train.num_steps": 6})
    with pytest.raises(RecipeError, match=r"contender 'longer': train.num_steps is 6, and 5 in the base recipe"):
        find_contenders(["grpo", str(longer)], recipe)
    field = find_contenders(["grpo", str(longer), "num_steps=4"], recipe)  # one value for all
    assert {contender.recipe.train.num_steps for contender in field.contenders} == {4}
    easier = write_recipe(tmp_path / "easier.toml", **{"evaluation.sets.held_out.args": {"digits": 2}})
    with pytest.raises(RecipeError, match=r"evaluation.sets.held_out.args.digits is 2, and 1"):
        find_contenders(["grpo", str(easier)], recipe)


# -- plan --------------------------------------------------------------------------------------------------------------


def test_one_cold_start_per_seed_is_shared_and_other_settings_are_kept(tmp_path, recipe):
    plan = plan_of(tmp_path, ["grpo", "dr_grpo"], recipe, (0, 3))
    assert [run.name for run in plan.starts] == ["start-seed-0", "start-seed-3"]
    assert [run.name for run in plan.runs] == ["grpo-seed-0", "dr_grpo-seed-0", "grpo-seed-3", "dr_grpo-seed-3"]
    start, run = plan.starts[1].recipe, plan.runs[3].recipe
    assert (start.seed, start.train.num_steps, start.cold_start.num_steps) == (3, 0, 24)
    assert (run.seed, run.train.num_steps, run.cold_start.num_steps) == (3, 5, 0)
    assert run.model.source == str(tmp_path / "out" / "start-seed-3" / "model")
    kept = plan.lineup.contenders[1].recipe.model_dump(exclude={"model": {"source"}, "cold_start": {"num_steps"}})
    mine = run.model_dump(exclude={"model": {"source"}, "cold_start": {"num_steps"}})
    assert {key for key in kept if kept[key] != mine[key]} == {"name", "runs_folder", "seed", "evaluation"}
    assert {key for key in kept["evaluation"] if kept["evaluation"][key] != mine["evaluation"][key]} == {"problems_seed"}


def test_all_seeds_are_evaluated_on_the_problems_of_the_first(tmp_path, recipe, monkeypatch):
    """All seeds have the same split and sets. A problems_seed in the recipe stays; with a user's rows function every seed keeps its own."""

    def held_out(plan):
        from cohort.training.build import load_data

        return [[row["prompt"] for row in load_data(run.recipe, Materials()).sets["held_out"][1]] for run in plan.runs]

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(60)))
    words = ["grpo", "cold_start.num_steps=0", f"prompts.source={rows}", "prompts.args={}", "evaluation.sets={}"]
    split = str(write_recipe(tmp_path / "split.toml", **{"prompts.args": {}, "evaluation.sets": {}}))
    for plan in (plan_of(tmp_path, ["grpo"], recipe, (4, 1, 2)), plan_of(tmp_path, words[:3], split, (4, 1, 2))):
        assert {run.recipe.evaluation.problems_seed for run in plan.runs} == {4}
        first, second, third = held_out(plan)
        assert first == second == third
        assert len(first) > 1
    given = plan_of(tmp_path, ["grpo", "evaluation.problems_seed=9"], recipe, (4, 1))
    assert {run.recipe.evaluation.problems_seed for run in given.runs} == {9}
    own = plan_of(tmp_path, ["grpo", 'evaluation.sets.held_out={source="my_rows:test_rows"}'], recipe, (4, 1))
    assert {run.recipe.evaluation.problems_seed for run in own.runs} == {-1}


def test_nothing_is_shared_without_a_cold_start_or_with_another_model(tmp_path, recipe):
    plain = plan_of(tmp_path, ["grpo", "dr_grpo", "cold_start.num_steps=0"], recipe)
    assert plain.starts == ()
    assert {run.recipe.model.source for run in plain.runs} == {"scratch"}
    other = write_recipe(tmp_path / "deep.toml", **{"model.scratch.num_layers": 3})
    mixed = plan_of(tmp_path, ["grpo", str(other)], recipe)
    assert [run.start for run in mixed.runs] == ["start-seed-0", ""]
    assert mixed.runs[1].recipe.cold_start.num_steps == 24


def test_required_columns_are_checked_before_anything_runs(tmp_path, recipe):
    with pytest.raises(PromptError, match=r"contender dpo: .*no column 'chosen' .*algorithm.data = \"start\""):
        plan_of(tmp_path, ["grpo", "dpo"], recipe)
    with pytest.raises(
        PromptError,
        match=r"contender sft: .*no column 'solution' for its demonstration \(it has the columns 'answer', 'demonstration'\)",
    ):
        plan_of(tmp_path, ["grpo", "sft", "cold_start.completion_column=solution", "cold_start.num_steps=0"], recipe)
    assert len(plan_of(tmp_path, ["sft", "dpo:data=start", "dpo:data=policy"], recipe).runs) == 3
    rows = tmp_path / "pairs.jsonl"
    rows.write_text(json.dumps({"prompt": "1+1", "chosen": "2", "rejected": "3"}) + "\n")
    words = ["dpo", "cold_start.num_steps=0", "prompts.args={}"]
    assert len(plan_of(tmp_path, [*words, f"prompts.source={rows}"], recipe).runs) == 1
    # The hub and code are not read here: the run itself reports what is wrong.
    assert len(plan_of(tmp_path, [*words, "prompts.source=someone/pairs"], recipe).runs) == 1
    assert len(plan_of(tmp_path, [*words, "prompts.source=no.such.module:rows"], recipe).runs) == 1


def test_a_folder_holds_one_comparison(tmp_path, recipe):
    held = open_output(plan_of(tmp_path, ["grpo", "dr_grpo"], recipe))
    with pytest.raises(RunError, match="in use by another comparison"):
        open_output(plan_of(tmp_path, ["grpo", "dr_grpo"], recipe))
    held.close()
    open_output(plan_of(tmp_path, ["grpo", "dr_grpo"], recipe)).close()  # the same again is accepted
    for words, seeds, said in (
        (["grpo", "dr_grpo", "num_steps=9"], (0,), "contenders.grpo.recipe.train.num_steps is 5 there and 9 here"),
        (["grpo", "dr_grpo"], (0, 1), r"seeds is \[0\] there and \[0, 1\] here"),
        (["grpo", "dapo"], (0,), "holds a comparison of grpo, dr_grpo"),
    ):
        with pytest.raises(RunError, match=said):
            open_output(plan_of(tmp_path, words, recipe, seeds))
    something = tmp_path / "something"
    something.mkdir()
    (something / "thesis.tex").touch()
    with pytest.raises(RunError, match="holds something else"):
        open_output(make_plan(find_contenders(["grpo"], recipe), (0,), something))
    with pytest.raises(RunError, match="it is a file"):
        open_output(make_plan(find_contenders(["grpo"], recipe), (0,), Path(recipe)))


def test_seeds_and_jobs_are_checked(tmp_path):
    assert parse_seeds("0,2, 5") == (0, 2, 5)
    for text in ("a", "0,,1", "1.5", "-1", "0,0", ""):
        with pytest.raises(RecipeError, match="--seeds"):
            parse_seeds(text)
    with pytest.raises(RecipeError, match="--jobs 0"):
        run_compare(["grpo"], "", "0", 0, tmp_path)


# -- measuring ---------------------------------------------------------------------------------------------------------


def number(value: float, reach: float = 0.05) -> dict[str, float]:
    return {"value": value, "low": value - reach, "high": value + reach}


def marks(count: int, problems: int) -> list[str]:
    """`count` successes of 4 samples each, spread over the problems."""
    return ["".join("1" if problem * 4 + sample < count else "0" for sample in range(4)) for problem in range(problems)]


def fabricate(folder: Path, *, before: int = 4, after: int, steps: int = 12, seed: int = 0, own: bool = False) -> None:
    """Write a run folder: 8 problems with 4 samples, so pass@1 is after / 32. own: different problems in every seed."""
    folder.mkdir(parents=True)
    rows = [
        {
            "step": step,
            "rollout/tokens": 100 + step,
            "loss/trained_tokens": 50.0,
            "time/step": 0.5,
            "perf/peak_memory_gib": 0.25 + step / 100,
            "reward/mean": step / 10,
            "reward/success": step / 20,
        }
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = []
    for label, count, step, length in (
        ("before", before, 0, 10.0),
        ("during", (before + after) // 2, 6, 9.0),
        ("after", after, steps, 8.0),
    ):
        numbers = {"pass@1": number(count / 32), "maj@4": number(count / 40), "pass@4": number(count / 33)}
        counts = {"problems": 8, "completions": 32, "unscored": 0, "truncated": 0.0, "length_mean": length}
        problems = [f"seed{seed}-{place}" if own else f"problem-{place}" for place in range(8)]
        verdicts = {"problem": problems, "success": marks(count, 8), "greedy": ""}
        lines.append(
            {"step": step, "label": label, "sets": {"held_out": numbers | counts}, "per_problem": {"held_out": verdicts}}
        )
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, last = lines[0]["sets"]["held_out"], lines[-1]["sets"]["held_out"]
    summary = {"status": "finished", "steps": steps, "seconds": 11.0, "seed": seed, "eval": {"before": first, "after": last}}
    (folder / "summary.json").write_text(json.dumps(summary))


def fabricated_plan(
    tmp_path: Path, recipe: str, after: dict[str, list[int]], words: list[str] | None = None, own: bool = False
):
    seeds = tuple(range(len(next(iter(after.values())))))
    plan = plan_of(tmp_path, [*(words or after), "evaluation.samples=4"], recipe, seeds)
    open_output(plan).close()
    for run in plan.runs:
        if run.label in after:
            fabricate(plan.folder(run.name), after=after[run.label][run.seed], seed=run.seed, own=own)
    return plan


def test_every_number_of_a_run_is_read_from_its_files(tmp_path, recipe):
    comparison = read_results(fabricated_plan(tmp_path, recipe, {"grpo": [16], "dr_grpo": [20]}), {})
    run = comparison.contenders[1].runs[0]
    assert run.find_number("before", "pass@1") == 4 / 32
    assert run.find_number("after", "pass@1") == 20 / 32
    assert run.find_number("after", "maj@4") == 20 / 40
    assert run.find_number("after", "pass@4") == 20 / 33
    assert (run.find_number("before", "length_mean"), run.find_number("after", "length_mean")) == (10.0, 8.0)
    assert run.sampled_tokens == sum(100 + step for step in range(1, 13))
    assert run.trained_tokens == 600
    assert (run.training_seconds, run.whole_seconds) == (6.0, 11.0)
    assert run.peak_memory_gib == pytest.approx(0.37)
    assert run.last_reward == pytest.approx(fmean(step / 10 for step in range(3, 13)))
    assert list(run.evaluation_curve) == [(0, 4 / 32), (6, 12 / 32), (12, 20 / 32)]
    assert run.success_curve[-1] == (12, 0.6)


def test_the_summarys_peak_memory_is_preferred(tmp_path, recipe):
    plan = fabricated_plan(tmp_path, recipe, {"grpo": [16]})
    file = plan.folder("grpo-seed-0") / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"peak_memory_gib": 2.5}))
    assert read_results(plan, {}).contenders[0].runs[0].peak_memory_gib == 2.5


def test_a_reward_model_costs_its_labels_and_fits_once_per_iteration(tmp_path, recipe):
    """12 steps in 3 iterations, two of them with equal seconds; every row of an iteration has its values."""
    plan = fabricated_plan(tmp_path, recipe, {"grpo": [16], "dr_grpo": [20]})
    file = plan.folder("grpo-seed-0") / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    fits = {1: (1000.0, 2.5), 2: (1000.0, 2.5), 3: (700.0, 4.0)}
    for row in rows:
        iteration = 1 + (row["step"] - 1) // 4
        tokens, seconds = fits[iteration]
        row |= {"reward_model/iteration": iteration, "reward_model/tokens": tokens, "reward_model/seconds": seconds}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    learned, plain = (standing.runs[0] for standing in read_results(plan, {}).contenders)
    assert learned.sampled_tokens == plain.sampled_tokens + 2700
    assert learned.training_seconds == plain.training_seconds + 9.0
    assert learned.trained_tokens == plain.trained_tokens


def test_over_seeds_and_paired_with_the_first(tmp_path, recipe):
    comparison = read_results(fabricated_plan(tmp_path, recipe, {"grpo": [8, 16], "dr_grpo": [16, 28]}), {})
    first, second = comparison.contenders
    assert second.summarise_seeds("after", "pass@1") == {"mean": 22 / 32, "min": 16 / 32, "max": 28 / 32, "seeds": 2}
    assert first.against_first == {}
    # Seed 0: problems 2 and 3 gained 1 each of 8; seed 1: problems 4, 5 and 6. Averaged over seeds, five gained a half.
    paired = second.against_first["held_out"]
    assert (paired.problems, paired.difference) == (8, 2.5 / 8)
    assert (
        paired.difference
        == second.summarise_seeds("after", "pass@1")["mean"] - first.summarise_seeds("after", "pass@1")["mean"]
    )
    assert paired.p_value == pytest.approx(2 / 2**5)
    document_ = comparison.to_json()
    assert [one["label"] for one in document_["contenders"]] == ["grpo", "dr_grpo"]
    assert document_["contenders"][1]["over_seeds"]["held_out"]["after"]["pass@1"]["mean"] == 22 / 32
    assert document_["contenders"][1]["against_first"]["held_out"]["problems"] == 8
    assert json.loads(json.dumps(document_)) is not None


def test_seeds_with_different_problems_are_not_averaged(tmp_path, recipe):
    """Otherwise a row would hold means over different problems next to a paired difference that contradicts them."""
    comparison = read_results(fabricated_plan(tmp_path, recipe, {"grpo": [8, 16], "dr_grpo": [16, 28]}, own=True), {})
    first, second = comparison.contenders
    assert first.summarise_seeds("after", "pass@1") is second.summarise_seeds("before", "pass@1") is None
    words = (
        "held_out: not all runs were evaluated on the same problems (0 are in all), so no mean is taken. 8 problems: grpo-seed-0 25.0 %, "
        "dr_grpo-seed-0 50.0 %; 8 problems: grpo-seed-1 50.0 %, dr_grpo-seed-1 87.5 %"
    )
    assert comparison.different == comparison.to_json()["different_problems"] == {"held_out": words}
    paired = second.against_first["held_out"]  # each problem with itself: 5 of 16 gained 1
    assert (paired.problems, paired.difference) == (16, 5 / 16)
    printed = printed_table(comparison)
    assert f"note: {words}" in printed
    table = printed[: printed.index("note:")]
    assert "68.8" not in table
    assert re.search(r"^dr_grpo +– +– +\+31\.2 \[", table, re.MULTILINE)
    page = render_comparison(comparison)
    assert "Not all runs were evaluated on the same problems." in page
    assert words in page
    assert "68.8" not in page
    assert "ended highest" not in page


def test_with_one_seed_the_pairing_is_that_of_cohort_evaluate(tmp_path, recipe):
    plan = fabricated_plan(tmp_path, recipe, {"grpo": [9], "dr_grpo": [22]})
    a, b = (Evaluation.from_json(json.loads((plan.folder(n) / "evaluations.jsonl").read_text().splitlines()[-1]))
            for n in ("grpo-seed-0", "dr_grpo-seed-0"))  # fmt: skip
    mine = read_results(plan, {}).contenders[1].against_first["held_out"]
    assert mine == compare(a, b)["held_out"]["pass@1"]


def test_a_problem_that_seeds_share_is_one_problem(tmp_path, recipe):
    plan = fabricated_plan(tmp_path, recipe, {"grpo": [8], "dr_grpo": [16]})
    runs = [read_results(plan, {}).contenders[place].runs[0] for place in (0, 1)]
    from dataclasses import replace

    again = [replace(run, seed=1) for run in runs]
    once = compare_runs([runs[0]], [runs[1]])["held_out"]
    twice = compare_runs([runs[0], again[0]], [runs[1], again[1]])["held_out"]
    assert twice == once


def test_a_failed_contender_has_its_reason_and_the_others_their_numbers(tmp_path, recipe):
    plan = fabricated_plan(tmp_path, recipe, {"grpo": [16]}, ["grpo", "dapo"])
    comparison = read_results(plan, {"dapo-seed-0": "the verifier <lost> its dictionary"})
    assert comparison.notes == ["dapo-seed-0: the verifier <lost> its dictionary"]
    printed = printed_table(comparison)
    assert "failed, see below" in printed
    assert "dapo-seed-0: the verifier <lost> its dictionary" in printed
    assert re.search(r"^grpo +50\.0 \[45\.0, 55\.0\]", printed, re.MULTILINE)
    assert "all started at pass@1 12.5 %" in printed
    page = render_comparison(comparison)
    assert "the verifier &lt;lost&gt; its dictionary" in page
    assert "could not be written" not in page


def test_differences_leave_out_settings_without_effect():
    grpo, dr_grpo = list_used(read_preset("grpo")), list_used(read_preset("dr_grpo"))
    assert find_differing([grpo, dr_grpo]) == ["name", "advantage", "kl_coef", "kl_estimator", "kl_in", "aggregation"]
    assert find_differing([grpo, grpo | {"std_epsilon": 1e-4}]) == ["std_epsilon"]
    assert "clip_low" not in list_used(read_preset("rloo"))
    assert "gae_lambda" in list_used(read_preset("ppo"))
    assert "gae_lambda" not in grpo
    assert "gamma" in list_used(read_preset("reinforce++"))
    assert {"reference_every", "reference_decay"} <= list_used(read_preset("dpo")).keys()
    # Off and unused count as the same: dpo has no mismatch weight and nothing to drop.
    dpo = list_used(read_preset("dpo"))
    assert find_differing([grpo, dpo]) == [
        "name", "data", "advantage", "region", "clip_low", "clip_high", "kl_coef", "kl_estimator", "kl_in", "aggregation"
    ]  # fmt: skip
    assert list_cells(AlgorithmConfig(name="online_rft", region="clip", overlong_share=0.3))[2::3] == ["clip 0.2/0.2", ""]


# -- printing ----------------------------------------------------------------------------------------------------------


def printed_table(comparison) -> str:
    stream = StringIO()
    print_comparison(Console(file=stream, width=100, highlight=False), comparison)
    return stream.getvalue()


def test_the_table_fits_100_columns_with_every_algorithm_and_wraps_nothing(tmp_path, recipe):
    names = [name for name in PRESETS if name not in ("dpo", "sft", "opd")]  # which need other rows or a teacher
    plan = fabricated_plan(tmp_path, recipe, {name: [32 - place, 30] for place, name in enumerate(names)})
    printed = printed_table(read_results(plan, {}))
    rows = printed.splitlines()
    table = rows[: len(names) + 1]
    assert all(len(row) <= 100 for row in table)
    assert [row.split()[0] for row in table[1:]] == names
    assert rows[len(names) + 1] == ""
    assert "…" not in "".join(table)
    place = len(names) - 1
    low, mean = 100 * (32 - place) / 32, 100 * (32 - place + 30) / 64
    assert table[-1].startswith("rft ")
    assert f"{mean:.1f} [{low:.1f}, 93.8] " in table[-1]
    assert table[-1].split()[-4:] == ["8.0", "1.28k", "6", "s"]


def test_numbers_are_written_short():
    assert [write_amount(v) for v in (950, 12_345, 1_254_000, 45e6, 3.2e9)] == ["950", "12.3k", "1.25M", "45.0M", "3.20G"]
    assert [write_p(p) for p in (0.0004, 0.0312, 0.5, 1.0)] == ["<.001", ".031", ".500", "1"]


def test_the_page_is_self_contained_escaped_and_shows_each_contender_and_seed(tmp_path, recipe):
    plan = fabricated_plan(tmp_path, recipe, {"grpo": [8, 16], "dr_grpo": [16, 28], "gspo": [12, 13]})
    page = render_comparison(read_results(plan, {}))
    assert "could not be written" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert (
        len(re.findall(r'<circle class="dot c\d"[^>]*><title>', page)) == 6
    )  # one per contender and seed; those of charts say nothing
    assert "dr_grpo ended highest: 68.8 % pass@1" in page
    assert "+31.2 points against grpo (95 % interval" in page
    for words in ("Training success", "Held-out pass@1", "Different settings", "group_centered", '<td class="strong">68.8 %'):
        assert words in page
    choices = page[page.index("Different settings") :]
    assert "prompts_per_step" not in choices
    assert re.findall(r"<tr><td>(\w+)</td>", choices) == [
        "advantage", "region", "clip_low", "clip_high", "kl_coef", "kl_estimator", "kl_in", "aggregation"
    ]  # fmt: skip


def test_lines_keep_their_contenders_colour_where_another_has_no_curve(tmp_path, recipe):
    plan = fabricated_plan(tmp_path, recipe, {"grpo": [8], "gspo": [12]}, ["grpo", "dapo", "gspo"])
    page = render_comparison(read_results(plan, {}))
    curves = page[page.index("Training success") : page.index("Different settings")]
    assert set(re.findall(r'class="line (c\d)[ "]', curves)) == {"c0", "c2"}
    assert re.findall(r'<svg class="key (c\d)".*?</svg>(\w+)</span>', curves)[:2] == [("c0", "grpo"), ("c2", "gspo")]


def test_average_curves_uses_only_steps_that_all_seeds_have():
    assert average_curves([[(1, 0.0), (2, 1.0), (3, 1.0)], [(1, 1.0), (2, 0.0)], []]) == [(1, 0.5), (2, 0.5)]
    assert average_curves([[], []]) == []


# -- cohort algorithms -------------------------------------------------------------------------------------------------


def test_the_table_of_algorithms_lists_their_choices(capsys):
    assert list_cells(AlgorithmConfig(name="dapo")) == [
        "policy", "group_normalized", "clip 0.2/0.28", "token_mean", "no KL",
        "dynamic sampling, at most 3 more rounds, soft overlong penalty over the last 20%",
    ]  # fmt: skip
    assert list_cells(AlgorithmConfig(name="ppo"))[4:] == ["k1 0.01 in each token's reward", "critic, lambda 0.95"]
    assert list_cells(AlgorithmConfig(name="opd"))[2::3] == ["none", "teacher"]
    print_algorithms([])
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == ["algorithm", *PRESETS]
    with pytest.MonkeyPatch.context() as patched:  # a terminal of 80 columns: no name is cut
        for name, value in {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": "80"}.items():
            patched.setenv(name, value)
        print_algorithms([])
    narrow = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in narrow if not line.startswith(" ")} == {"algorithm", *PRESETS}
    assert max(map(len, narrow)) <= 80
    assert "…" not in "".join(narrow)
    print_algorithms(["grpo"])
    assert re.search(r"kl_coef +0\.04 +Weight of the KL", capsys.readouterr().out)
    print_algorithms(["grpo", "gspo"])
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {
        "setting", "region", "clip_low", "clip_high", "kl_coef", "kl_estimator", "kl_in"
    }  # fmt: skip
    with pytest.raises(RecipeError, match="did you mean 'gspo'"):
        print_algorithms(["gspoo"])


# -- running -----------------------------------------------------------------------------------------------------------

STUB = """
import json, os, pathlib, signal, sys, time
words = sys.argv[1:]
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Children that end at once instead of training for minutes; a script decides by the name of the run."""
    script = tmp_path / "child.py"

    def install(body: str) -> None:
        script.write_text(STUB + body)
        monkeypatch.setattr("cohort.tools.compare.runner.sys.executable", str(launcher))

    launcher = tmp_path / "python"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    launcher.chmod(0o755)
    return install


WORKS = """
name = pathlib.Path(words[3]).name.removesuffix(".toml")
root = pathlib.Path(OUT)
with (root / "order.txt").open("a") as file:
    file.write(f"{words[2]} {name}\\n")
folder = root / name
folder.mkdir(exist_ok=True)
if name.startswith("dapo"):
    print("error: the verifier lost its dictionary")
    sys.exit(1)
(folder / "summary.json").write_text(json.dumps({"status": "finished", "eval": {
    "before": {"pass@1": {"value": 0.25}}, "after": {"pass@1": {"value": 0.5}}}}))
"""


def test_one_failure_does_not_stop_the_others_and_finished_runs_are_not_run_again(tmp_path, recipe, stub):
    plan = plan_of(tmp_path, ["grpo", "dapo"], recipe)
    open_output(plan).close()
    stub(f"OUT = {str(plan.output)!r}\n{WORKS}")
    said: list[str] = []
    outcome = run_plan(plan, 1, said.append)
    assert outcome.failed.keys() == {"dapo-seed-0"}
    assert outcome.failed["dapo-seed-0"].startswith("the verifier lost its dictionary (its output is in ")
    assert not outcome.interrupted
    order = (plan.output / "order.txt").read_text().splitlines()
    assert order == ["train start-seed-0", "train grpo-seed-0", "train dapo-seed-0"]
    assert any(re.fullmatch(r"grpo-seed-0: finished in \d+ s, pass@1 25.0 % -> 50.0 %", line) for line in said)
    (plan.output / "order.txt").unlink()
    (plan.folder("dapo-seed-0") / "metrics.jsonl").touch()  # it had begun, so it is resumed
    said.clear()
    run_plan(plan, 1, said.append)
    assert (plan.output / "order.txt").read_text().splitlines() == ["resume dapo-seed-0"]
    assert "grpo-seed-0: finished before, pass@1 25.0 % -> 50.0 %" in said


def test_a_failed_start_fails_every_contender_of_its_seed(tmp_path, recipe, stub):
    plan = plan_of(tmp_path, ["grpo", "dr_grpo"], recipe)
    open_output(plan).close()
    stub("print('error: no disk'); sys.exit(1)")
    outcome = run_plan(plan, 2, lambda text: None)
    assert outcome.failed.keys() == {"start-seed-0", "grpo-seed-0", "dr_grpo-seed-0"}
    assert outcome.failed["grpo-seed-0"].startswith("start-seed-0 failed: no disk")


def test_several_jobs_share_the_cores(monkeypatch):
    monkeypatch.setattr("cohort.tools.compare.runner.os.cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert make_environment(3)["OMP_NUM_THREADS"] == "2"
    assert make_environment(100)["OMP_NUM_THREADS"] == "1"
    assert make_environment(1)["OMP_NUM_THREADS"] == "5"


def test_a_signal_repeated_within_a_second_counts_once(monkeypatch):
    """Otherwise three quick Ctrl-C would kill the runs before they have saved."""
    now = [100.0]
    monkeypatch.setattr("cohort.tools.compare.runner.time.monotonic", lambda: now[0])
    with collect_signals() as seen:
        for now[0] in (100.0, 100.02, 100.9, 101.0, 101.5):
            os.kill(os.getpid(), signal.SIGTERM)
    assert len(seen) == 2


def test_a_comparison_prints_what_its_runs_are_doing(tmp_path, recipe, stub, monkeypatch):
    """Each change once; events from before a resume do not count."""
    plan = plan_of(tmp_path, ["grpo", "dr_grpo", "cold_start.num_steps=0"], recipe)
    open_output(plan).close()
    monkeypatch.setattr("cohort.tools.compare.runner.PROGRESS_S", 0.0)
    out = str(plan.output)
    stub(
        f"""
name = pathlib.Path(words[3]).name.removesuffix(".toml")
folder = pathlib.Path({out!r}) / name
folder.mkdir(exist_ok=True)
def note(at, kind, **facts):
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(dict(time=time.time() + at, kind=kind, **facts)) + "\\n")
    time.sleep(0.4)
if name.startswith("grpo"):
    note(-60.0, "stage", stage="final evaluation", total=5)
    note(0.0, "stage", stage="baseline evaluation", total=1467, done=0)
    note(0.0, "progress", stage="baseline evaluation", total=1467, done=512, values=dict())
    note(0.0, "stage", stage="training", total=3, done=0)
    (folder / "metrics.jsonl").write_text('{{"step": 1}}\\n')
    note(0.0, "message", text="saved")
(folder / "summary.json").write_text(json.dumps(dict(status="finished")))
"""
    )
    said: list[str] = []
    assert run_plan(plan, 1, said.append).failed == {}
    assert [line.removeprefix("grpo-seed-0: ") for line in said if line.startswith("grpo") and "finished" not in line] == [
        "started",
        "loading",
        "baseline evaluation, 0 of 1,467",
        "baseline evaluation, 512 of 1,467",
        "training, 0 of 3",
        "training, 1 of 3",
    ]


def test_a_signal_is_passed_on_once_and_no_run_is_started(tmp_path, recipe, stub):
    plan = plan_of(tmp_path, ["grpo", "dr_grpo", "cold_start.num_steps=0"], recipe)
    open_output(plan).close()
    out = str(plan.output)
    stub(
        f"""
count = 0
def saved(number, frame):
    global count
    count += 1
signal.signal(signal.SIGTERM, saved)
(pathlib.Path({out!r}) / "began").touch()
while not count:
    time.sleep(0.01)
time.sleep(0.3)
(pathlib.Path({out!r}) / "signals").write_text(str(count))
sys.exit(130)
"""
    )
    pid = os.getpid()
    waiter = subprocess.Popen(
        ["/bin/sh", "-c", f"while [ ! -e '{out}/began' ]; do sleep 0.05; done; kill -{signal.SIGTERM.value} {pid}"]
    )
    said: list[str] = []
    outcome = run_plan(plan, 1, said.append)
    waiter.wait()
    assert outcome.interrupted
    assert not outcome.failed
    assert (plan.output / "signals").read_text() == "1"
    assert [line.split(":")[0] for line in said] == ["grpo-seed-0", "grpo-seed-0"]
    assert "interrupted after" in said[-1]


# -- end to end --------------------------------------------------------------------------------------------------------


@pytest.mark.prove
def test_two_contenders_end_to_end_have_the_same_start_and_are_not_run_again(tmp_path, recipe):
    """Real processes, of which three import torch."""
    words = ["compare", "grpo", "dr_grpo", "--recipe", recipe, "--output", str(tmp_path / "out"), "num_steps=3"]
    command = [sys.executable, "-m", "cohort", *words]
    first = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    out = tmp_path / "out"
    written = json.loads((out / "compare.json").read_text())
    grpo, dr_grpo = written["contenders"]
    before = [one["runs"][0]["sets"]["held_out"]["before"] for one in (grpo, dr_grpo)]
    assert before[0] == before[1]
    start = summary_of(out / "start-seed-0")["eval"]["after"]["pass@1"]
    assert before[0]["pass@1"] == start
    for one in (grpo, dr_grpo):
        run = one["runs"][0]
        assert (run["status"], run["reason"]) == ("finished", "")
        assert run["sampled_tokens"] > 0
    assert "dr_grpo" in first.stdout
    assert "compare.html" in first.stdout
    assert (out / "compare.html").stat().st_size > 10_000
    written_at = {file: file.stat().st_mtime_ns for file in out.glob("*/*.jsonl")}
    assert len(written_at) >= 3
    again = CliRunner().invoke(app, words)  # all runs are finished, so no process is started
    assert again.exit_code == 0
    assert again.output.count("finished before") == 3
    assert {file: file.stat().st_mtime_ns for file in out.glob("*/*.jsonl")} == written_at
    other = CliRunner().invoke(app, [*words, "group_size=2"])
    assert other.exit_code == 1
    assert "train.group_size is 4 there and 2 here" in other.output


def test_the_command_refuses_mistakes_with_a_message():
    done = subprocess.run([COHORT, "compare", "grop"], env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "did you mean 'grpo'" in done.stderr
    refused = CliRunner().invoke(app, ["compare", "grpo", "--seeds", "x"])
    assert refused.exit_code == 1
    assert "--seeds x" in refused.output
