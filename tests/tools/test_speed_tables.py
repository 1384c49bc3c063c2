"""The tables, drawings and cost curves of docs/speed.md, which benchmarks/ makes from what benchmarks/speed.py measures."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import curves  # noqa: E402
import machine  # noqa: E402
import speed_peers as peers  # noqa: E402
import speed_plot  # noqa: E402
import speed_table  # noqa: E402
from speed import Options, make_job  # noqa: E402
from speed_cases import SpeedTarget, add_origin, check_paths, compare_quoted  # noqa: E402
from speed_child import reset_resident_peak  # noqa: E402
from speed_job import BenchJob  # noqa: E402
from speed_plot import draw_bars, draw_curves  # noqa: E402
from speed_result import make_document  # noqa: E402
from test_speed import H200, NO_GPU, ON_H200, h200_document  # noqa: E402

from cohort.errors import RecipeError  # noqa: E402


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ask_machine", lambda: {**NO_GPU, "cores": 2})


@pytest.mark.parametrize(
    ("axes", "points", "message"),
    [
        ("head", "1,2", "--points"),
        ("group,length", "4,8", "--points"),
        ("length", "4,many", "whole numbers"),
        ("length", "0,8", "whole numbers"),
        ("length", "64", "at least two"),
        ("length", "64,64", "twice"),
        ("model", "64,huge", "'huge' is not known"),
        ("model", "0,64", "from 1 on"),
        ("group", "1,2", "group size 1: train.group_size"),
        ("lengths", "", "--axes: 'lengths'"),
    ],
)
def test_points_without_a_curve_are_refused(axes: str, points: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        curves.run_curves([], Options(), axes, points)


def test_curves_survive_a_head_that_fails_and_make_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of other points must not be lost with it."""
    growth = iter([2**20, None])

    def run(command: list[str], what: str) -> None:
        Path(command[-1]).write_text(json.dumps({"growth_bytes": next(growth)}), encoding="utf-8")

    monkeypatch.setattr(curves, "run_process", run)
    out = tmp_path / "new" / "folder" / "curves.json"
    document = curves.run_curves([], Options(out=out, device="cpu"), "head", "")
    assert document["curves"] == []
    assert document["stopped"] == ["loss head, 2048 tokens: its memory cannot be measured on this machine"]
    assert json.loads(out.read_text(encoding="utf-8")) == document


def test_a_wrong_setting_is_refused_before_curves_are_measured() -> None:
    with pytest.raises(RecipeError, match="nonsense"):
        curves.run_curves(["train.nonsense=3"], Options(), "prompts", "2,4")


def test_curves_without_points_are_reported_and_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(job: BenchJob) -> dict[str, Any]:
        raise peers.BenchError("out of memory")

    monkeypatch.setattr(curves, "run_stage", fails)
    options = Options(stages=" train ", out=tmp_path / "curves.json")
    assert curves.run_curves([], options, "prompts", "4,2")["stopped"] == ["train, prompts 2: out of memory"]
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "train, prompts 2: out of memory"
    assert said[2].startswith("no curve to draw")
    assert [file.name for file in tmp_path.iterdir()] == ["curves.json"]


def test_quoted_figures_are_shown_only_for_the_same_settings() -> None:
    document = add_origin(h200_document())
    assert {quoted["label"] for quoted in document["quoted"]} == {
        "vLLM 0.25.1, in process",
        "vLLM 0.25.1 as started by default, with log-probs",
        "TRL 1.16, vLLM rollouts",
    }
    by_stage = {quoted["stage"]: quoted for quoted in document["quoted"]}
    assert compare_quoted(by_stage["step"], document) == pytest.approx(10.2 / 2.0)
    other = make_job(["0.5b"], Options(new=256), ON_H200, "/x")
    stages = {"rollout": {"cohort": {"seconds": [1.0], "tokens": 65_536, "slots": 256}}}
    assert add_origin(make_document({"rollout": other}, stages, {}, ON_H200, "2026-01-01"))["quoted"] == []
    adapters = make_job(["0.5b", "model.lora.rank=4"], Options(), ON_H200, "/x")
    step = {"cohort": {"seconds": [2.0], "tokens": 131_072, "frozen_base": True}}
    assert add_origin(make_document({"step": adapters}, {"step": step}, {}, ON_H200, "2026-01-01"))["quoted"] == []


def test_targets() -> None:
    document = h200_document()
    assert SpeedTarget("step", "ratio:trl", low=6.4).is_met(document)
    assert not SpeedTarget("step", "seconds", high=1.9).is_met(document)
    assert SpeedTarget("step", "peak_bytes", high=61 * 2**30).is_met(document)
    assert not SpeedTarget("step", "ratio:trl_vllm", low=0.0).is_met(document), "what was not measured is not met"


def test_a_case_fails_if_other_code_ran() -> None:
    document = h200_document()
    ours = {stage: engines["cohort"] for stage, engines in document["stages"].items()}
    graphs = {"code": "own kernels in CUDA graphs", "choice": "engine local: own kernels, captured in CUDA graphs"}
    modules = {"code": "modules", "choice": "training with the modules of transformers (its hidden states differ)"}
    ours["rollout"]["paths"], ours["train"]["paths"] = {"sampling": graphs}, {"training": modules}
    ours["step"]["paths"] = {"sampling": graphs | {"code": "own kernels"}, "training": {"code": "own kernels", "choice": ""}}
    rows, wrong = check_paths("case", document)
    assert wrong == 2
    assert [row.endswith("| FAIL |") for row in rows] == [False, True, True, False]
    assert "modules: training with the modules of transformers (its hidden states differ)" in rows[1]


def test_the_table_shows_what_was_measured() -> None:
    text = speed_table.table([add_origin(h200_document()), {"benchmark": "curves"}])
    assert "| rollouts | H200, 0.5b, 32 × 8 × 512 | **109k tok/s**, 22 % of the limit |" in text
    assert "vLLM 0.25.1, in process†: 36k tok/s, 3.0×" in text
    assert (
        "| GRPO step | H200, 0.5b, 32 × 8 × 512, micro-batches of 16 rows | **2.00 s**, 20.0 GiB | TRL 1.16.0, HF rollouts: 16.00 s, 19.0 GiB, **8.0×**"
        in text
    )
    assert "not in this run" in text


def test_table_goes_between_the_markers() -> None:
    text = f"before\n{speed_table.BEGIN}\nold\n{speed_table.END}\nafter\n"
    assert speed_table.put_between(text, "new") == f"before\n{speed_table.BEGIN}\nnew\n{speed_table.END}\nafter\n"
    with pytest.raises(SystemExit):
        speed_table.put_between("nothing", "new")


def test_the_page_shows_the_committed_results() -> None:
    """The table is what `python benchmarks/speed_table.py docs/results/*.json` writes."""
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    documents = speed_table.read(list((ROOT / "docs" / "results").glob("*.json")))
    assert speed_table.put_between(page, speed_table.table(documents)) == page


# -- curves ------------------------------------------------------------------------------------------------------------


def test_slope_of_a_power_is_its_exponent() -> None:
    xs = [1.0, 2.0, 8.0, 64.0]
    assert curves.fit_slope(xs, [3 * x**1.5 for x in xs]) == pytest.approx(1.5)
    assert curves.fit_slope(xs, [7.0] * 4) == pytest.approx(0.0)
    # least squares by hand: logs (0, 0), (1, 1), (2, 3) have slope 1.5
    assert curves.fit_slope([1, math.e, math.e**2], [1, math.e, math.e**3]) == pytest.approx(1.5)


def test_expected_slopes_of_the_cost_model() -> None:
    axes = {axis.name: axis for axis in curves.AXES}
    base = make_job(["0.5b"], Options(prompts=32, group=8, prompt_tokens=128, new=256, slots=256), ON_H200, "/x")

    def expected(name: str, stage: str) -> float:
        jobs = [axes[name].change(replace(base, stage=stage), value) for value in axes[name].points["cuda"]]
        xs = [axes[name].x(job) for job in jobs]
        return curves.fit_slope(xs, [curves.model_seconds(stage, job, H200) for job in jobs])

    assert expected("prompts", "rollout") == pytest.approx(1.0, abs=1e-6), "time per token is flat once slots are full"
    assert expected("prompts", "train") == pytest.approx(1.0, abs=1e-6)
    assert 0.5 < expected("group", "rollout") < 1.0, "half-empty slots read the weights all the same"
    assert 1.0 < expected("length", "rollout") < 2.0, "attention reads more and more"
    assert 1.0 < expected("length", "train") < 2.0
    assert expected("model", "train") == pytest.approx(1.0, abs=0.05)


def test_curves_are_judged_by_their_slopes() -> None:
    axis = next(axis for axis in curves.AXES if axis.name == "prompts")
    base = make_job([], Options(prompts=8, group=8, slots=64), NO_GPU, "/x")
    jobs = [axis.change(replace(base, stage="rollout"), value) for value in (8, 16, 32)]
    figures = [{"seconds": [0.5 * n, 9.0 * n, 0.6 * n], "growth_bytes": 2**20} for n in (1, 2, 4)]
    time_curve, memory_curve = curves.fit_curves(axis, "rollout", jobs, figures, None)
    assert time_curve["slope"] == pytest.approx(1.0)
    assert time_curve["expected"] == pytest.approx(1.0)
    assert time_curve["points"][0] == [8, 0.6], "the median counts"
    assert time_curve["as_expected"]
    assert (memory_curve["slope"], memory_curve["expected"]) == (0.0, 0.0)
    slow = [{"seconds": [n**1.4], "growth_bytes": n * 2**20} for n in (1, 2, 4)]
    assert [found["as_expected"] for found in curves.fit_curves(axis, "rollout", jobs, slow, None)] == [False, False]
    assert "slope 1.00, expected 1.00" in draw_curves({"curves": [time_curve, memory_curve]})


def test_memory_of_training_grows_until_a_step_fills_the_budget() -> None:
    axes = {axis.name: axis for axis in curves.AXES}
    # 128 rows of 16 + 32 tokens: 6,144. A prompt adds 16 + 8 * 32 = 272, so 8 prompts are 2,176, and 32 fill it.
    base = make_job([], Options(prompts=8, group=8, prompt_tokens=16, new=32), NO_GPU, "/x")
    prompts = curves.make_jobs_along(axes["prompts"], (64, 8, 32), base)
    assert [curves.count_largest_micro_batch(job) for job in prompts] == [2176, 6144, 6144]
    lengths = curves.make_jobs_along(axes["length"], (1000, 9000), base)
    assert [curves.count_largest_micro_batch(job) for job in lengths] == [6144, 9016], "a row is never cut"
    xs = [64.0, 128.0]
    assert curves.model_memory("train", axes["prompts"], prompts[1:], xs) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("kind", "slope", "said"),
    [
        ("memory", 0.35, "less than expected, which is good"),
        ("memory", 1.3, "NOT as expected, grows faster"),
        ("time", 0.95, "as expected"),
        ("time", 0.3, "NOT as expected, grows more slowly: fixed costs"),
    ],
)
def test_the_verdict_names_the_direction(kind: str, slope: float, said: str) -> None:
    found = curves.fit_curve("title", kind, None, [1.0, 2.0, 4.0], [x**slope for x in (1.0, 2.0, 4.0)], 1.0)
    assert curves.judge_slope(found).startswith(said)


# -- drawings ----------------------------------------------------------------------------------------------------------


def test_bars_of_all_stages_have_one_scale() -> None:
    """Ours and quoted ones alike; a quoted time is over the same tokens. No label is cut."""
    drawn = draw_bars(add_origin(h200_document()))
    widths = [float(width) for width in re.findall(r"<rect[^>]* width='([0-9.]+)'", drawn)]
    rates = [131_072 / 1.2, 36_000, 16_800, 131_072, 131_072 / 2, 131_072 / 16, 131_072 / 10.2]
    assert widths == pytest.approx([400 * rate / 131_072 for rate in rates], abs=0.06)
    assert "vLLM 0.25.1 as started by default, with log-probs †" in drawn
    assert "0.5b, 32 x 8 completions of 512 tokens, on NVIDIA H200" in drawn
    assert "not in this run" in drawn


def test_numbers_of_an_axis_are_short() -> None:
    numbers = (0.0412, 8, 1024, 16_384, 4_366_336, 2.68435e8, 2e10)
    assert [speed_plot.shorten_number(number) for number in numbers] == ["0.0412", "8", "1024", "16.4k", "4.37M", "268M", "20G"]


def test_a_drawing_can_be_made_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(add_origin(h200_document())), encoding="utf-8")
    assert speed_plot.main(str(file)) == 0
    assert capsys.readouterr().out == draw_bars(add_origin(h200_document()))


@pytest.mark.skipif(not reset_resident_peak(), reason="the kernel's high-water mark cannot be reset here")
def test_memory_of_the_loss_head_is_flat() -> None:
    """Eight times the logits, the same memory."""
    small, large = (curves.measure_head_growth("cpu", tokens, 16_384) for tokens in (1024, 8192))
    logits = 4 * 8192 * 16_384
    assert small is not None
    assert large is not None
    assert large < 0.6 * logits
    assert large < 1.5 * small
