"""A sample of the small twin: a few steps of `skills_small` from nothing, judged by the tasks' verifiers, and the stages around it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import cohort
from cohort.recipe.file import dump_recipe

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def skills_bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import skills as bench

    yield bench
    sys.modules.pop("skills", None)


def test_a_few_steps_of_the_twin_learn_from_traces_and_from_verifiers(tmp_path, skills_bench):
    """24 supervised batches on one task teach its form; the verifier pays some completions and not others; GRPO takes its steps."""
    chosen = skills_bench.Bench(skills_bench.SIZES["small"], tmp_path, 60.0, 0.0).choose_recipe("sample", [])
    only = {"tasks": ["binary_alternation"], "levels": [1], "count": 40}
    source = chosen.cold_start.source.model_copy(update={"args": only})
    held_out = chosen.evaluation.sets["held_out"].model_copy(update={"args": only | {"count": 16}})
    words = {
        "prompts": chosen.prompts.model_copy(update={"args": only}),
        "cold_start": chosen.cold_start.model_copy(update={"source": source, "num_steps": 40, "until_success": 1.0, "learning_rate": 5e-3}),
        "train": chosen.train.model_copy(update={"num_steps": 3, "prompts_per_step": 8}),
        "sampling": chosen.sampling.model_copy(update={"max_completion_tokens": 16}),
        "evaluation": chosen.evaluation.model_copy(update={"sets": {"held_out": held_out}, "samples": 4, "max_problems": 12, "every_steps": 0}),
    }  # fmt: skip
    file = tmp_path / "sample.toml"
    file.write_text(dump_recipe(chosen.model_copy(update=words)), encoding="utf-8")
    run = cohort.train(recipe=file, monitors={"console": False})
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["reward/faults"] == 0 for row in rows if "reward/faults" in row)
    successes = [row["reward/success"] for row in rows]
    assert 0.05 < sum(successes) / 3 < 0.95  # mediocre: a third of such strings is answered by -1, 0 or 1
    assert all(row["optim/grad_norm"] > 0 for row in rows)


def test_what_a_stage_leaves_is_what_the_tables_are_made_of(monkeypatch, skills_bench, capsys):
    """Tables from verdicts that are written by hand: 8 problems in each set, half of them solved before, all but one after."""
    import skills_table

    names = [
        "held_out",
        *(f"{task}_{level}" for task in ("chain_sum", "gcd") for level in (1, 2)),
        "lcm_1",
        "binary_alternation_1",
    ]
    monkeypatch.setattr(skills_table, "LEVELS", {name: [] for name in ("chain_sum", "gcd", "lcm", "binary_alternation")})
    monkeypatch.setattr(skills_table, "TAUGHT", ("binary_alternation",))
    monkeypatch.setattr(skills_table, "UNSEEN", ("lcm",))

    def make_stage(right: list[int]) -> dict:
        verdicts = {
            name: {"problem": [f"{name}-{i}" for i in range(8)], "success": ["1" * n + "0" * (4 - n) for n in right], "greedy": "1" * 4 + "0" * 4}
            for name in names
        }  # fmt: skip
        numbers = {name: {"maj@8": {"value": 0.5}, "maj@4": {"value": 0.5}, "greedy": {"value": 0.5}} for name in names}
        evaluation = {"per_problem": verdicts, "sets": numbers}
        spent = {"wall": 1.0, "cpu": 1.0}
        return {
            "recipe": "skills_small",
            "passes": evaluation,
            "votes": evaluation,
            "spent": spent,
            "device": "x",
            "commit": "c",
        }

    start, after = make_stage([4, 2, 2, 0, 0, 0, 0, 0]), make_stage([4, 4, 4, 4, 4, 4, 2, 0])
    curve = [{"step": s, "tokens": s * 10, "seconds": s, "value": v} for s, v in enumerate((0.25, 0.4, 0.5, 0.6, 0.7, 0.8))]
    metrics = {key: [0.5, 0.4] for key in ("loss/entropy", "loss/kl_per_completion")}
    run = after | {"curve": curve, "metrics": metrics, "learning_rate": 3e-4}
    text = "\n".join(skills_table.write_tables({"start": start, "grpo-0": run}))
    assert "| problems of the trained levels | 16 | 25.0 → 81.2 (+56.2" in text
    assert "| a harder level | 16 | 25.0 → 81.2" in text
    assert "| tasks never seen | 8 |" in text
    assert "| problems of the trained levels | 10 | 8 | 0 |" in text  # 5 of 8 at 0 before, 4 of them solved after; twice
    assert "not up to here" in text
    assert "2 held-out looks" in text  # 40 % of five looks are too few for a curve, and the table says so


def test_a_level_is_reached_where_the_line_between_looks_crosses_it(skills_bench):
    import skills_trl

    curve = [(0.0, 0.20), (10.0, 0.30), (20.0, 0.28), (30.0, 0.40)]
    assert skills_trl.find_crossing(curve, 0.25) == 5.0
    assert skills_trl.find_crossing(curve, 0.35) == pytest.approx(20.0 + 10.0 * 7 / 12)
    assert skills_trl.find_crossing(curve, 0.40) == 30.0
    assert skills_trl.find_crossing(curve, 0.41) is None
    assert skills_trl.choose_levels([curve, [(0.0, 0.20), (10.0, 0.32)]]) == pytest.approx([0.24, 0.28, 0.32])


def test_seconds_to_a_level_are_steps_times_the_seconds_of_a_step(skills_bench):
    import skills_trl

    fast = {"0": {"curve": [(0.0, 0.2), (10.0, 0.5)], "clock": {"cpu": 0.5}}}
    slow = {"0": {"curve": [(0.0, 0.2), (20.0, 0.5)], "clock": {"cpu": 2.0}}}
    rows = skills_trl.compare_sides(fast, slow)
    assert [row["ratio"] for row in rows] == pytest.approx([8.0, 8.0, 8.0])  # twice the steps, four times the seconds of each
    assert rows[-1]["seconds"] == pytest.approx([5.0, 40.0])
    assert skills_trl.draw_curves(fast, slow).count("<polyline") == 2


def test_the_clock_counts_a_process_and_its_children(skills_bench):
    import subprocess

    from skills_clock import count_tree_seconds

    before = count_tree_seconds()
    child = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass\nprint('spent', flush=True)\ninput()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout.readline() == "spent\n"
    assert count_tree_seconds() - before >= 0.45  # of a child that is alive
    child.communicate("\n")
    assert count_tree_seconds() - before >= 0.45  # and of one that has ended


def test_the_published_tables_are_made_from_the_published_verdicts(skills_bench):
    import skills_table

    folder = BENCHMARKS.parent / "docs" / "results" / "skills" / "small"
    assert "\n".join(skills_table.write_tables(skills_table.read_stages(folder))) + "\n" == (folder / "tables.md").read_text(
        encoding="utf-8"
    )
