"""benchmarks/speed.py: costs by hand, the same planned work for every engine, and figures that follow from the measured seconds."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import machine  # noqa: E402
import speed as command  # noqa: E402
import speed_child as child  # noqa: E402
import speed_peers as peers  # noqa: E402
import speed_result as output  # noqa: E402
from speed import Options, make_job, measure, write_inputs  # noqa: E402
from speed_child import Peak, peak_memory, reset_resident_peak  # noqa: E402
from speed_costs import (  # noqa: E402
    ACCELERATORS,
    count_live_rows,
    count_parameters,
    decode_limit,
    estimate_training_cost,
    find_accelerator,
)
from speed_job import BenchJob  # noqa: E402
from speed_result import make_document  # noqa: E402
from speed_shapes import SHAPES, BenchShape, make_random_model, make_tokenizer, write_folder  # noqa: E402
from speed_workload import EOS, Workload, draw_lengths, spell_token, varied  # noqa: E402

from cohort.errors import RecipeError  # noqa: E402
from cohort.model import lora  # noqa: E402
from cohort.ops.flops import Dimensions, count_training_flops  # noqa: E402
from cohort.recipe.schema import LoraConfig  # noqa: E402
from conftest import tiny_policy  # noqa: E402

H200 = ACCELERATORS["NVIDIA H200"]
NO_GPU: dict[str, Any] = {"gpu": "", "cpu": "a CPU", "threads": 1, "versions": {}}
NARROW = BenchShape("narrow", Dimensions(64, 172, 6, 1, 1, 64, vocabulary=64, tied=False))
ON_H200: dict[str, Any] = {**NO_GPU, "gpu": "NVIDIA H200"}

ask_once = functools.cache(machine.ask_machine)
"""The machine stays the same, and asking it starts a process that imports torch."""


@pytest.fixture(autouse=True)
def one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ask_machine", ask_once)


# -- costs, by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "layer", "head", "total"),
    [
        # 2 x 896^2 (q, o) + 2 x 896 x 128 (k, v) + 3 x 896 x 4864 (MLP); 151936 x 896; 24 layers, 49 norms, tied
        ("0.5b", 1_605_632 + 229_376 + 13_074_432, 136_134_656, 24 * 14_909_440 + 49 * 896 + 136_134_656),
        ("1.5b", 4_718_592 + 786_432 + 41_287_680, 233_373_696, 28 * 46_792_704 + 57 * 1536 + 233_373_696),
        ("7b", 25_690_112 + 3_670_016 + 203_685_888, 544_538_624, 28 * 233_046_016 + 57 * 3584 + 2 * 544_538_624),
    ],
)
def test_parameters_of_the_shapes(shape: str, layer: int, head: int, total: int) -> None:
    dimensions = SHAPES[shape]
    assert dimensions.layer_parameters == layer
    assert dimensions.head_parameters == head
    assert count_parameters(dimensions) == total


def test_parameters_are_those_of_the_model(tmp_path: Path) -> None:
    shape = BenchShape("tiny", SHAPES["tiny"])
    model = make_random_model(write_folder(shape, tmp_path), "cpu", None)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert round(shape.parameters / 1e6, 1) == 4.4
    assert Dimensions.from_config(model.config) == shape.dimensions
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    assert matrices == shape.dimensions.body_parameters + shape.dimensions.head_parameters


def test_training_flops_and_mfu_by_hand() -> None:
    tiny = SHAPES["tiny"]
    # 6 x (724,992 x 6 x 1000 tokens + 16,384 x 700 scored tokens)
    assert count_training_flops(tiny, 1000, 700) == 6 * (4_349_952 * 1000 + 16_384 * 700)
    assert count_training_flops(tiny, 1000, 700, frozen_base=True) * 3 == count_training_flops(tiny, 1000, 700) * 2
    # The probe that the target is taken from: 0.5B, 32 x 640 tokens, head on 512 of 640, 108k tokens/s: 31 % of 989 TFLOP/s.
    flops = count_training_flops(SHAPES["0.5b"], 32 * 640, 32 * 512)
    assert flops / (32 * 640 / 108_000) / H200.peak_flops == pytest.approx(0.31, abs=0.006)


@pytest.mark.parametrize(
    ("shape", "new", "step_bytes", "step_flops", "rate"),
    [
        # weights in bfloat16 + 256 rows x mean context x KV bytes; 2 x parameters x 256 + scores
        ("0.5b", 512, 2 * 493_961_216 + 256 * 383.5 * 12_288, 512 * 493_961_216 + 4 * 24 * 896 * 256 * 383.5, 501_000),
        ("1.5b", 512, 2 * 1_543_569_408 + 256 * 383.5 * 28_672, 512 * 1_543_569_408 + 4 * 28 * 1536 * 256 * 383.5, 186_500),
        ("7b", 256, 2 * 7_069_827_072 + 256 * 255.5 * 57_344, 512 * 7_069_827_072 + 4 * 28 * 3584 * 256 * 255.5, 55_500),
    ],
)
def test_decode_limit_by_hand(shape: str, new: int, step_bytes: float, step_flops: float, rate: float) -> None:
    limit = decode_limit(SHAPES[shape], 128, [new] * 256, 256, H200)
    assert limit.steps == new
    assert limit.bytes_seconds == pytest.approx(new * step_bytes / 4.3e12)
    assert limit.flops_seconds == pytest.approx(new * step_flops / 790e12)
    # Each step takes the larger of both, so the whole takes at least that, and little more where one of them always binds.
    least = max(limit.bytes_seconds, limit.flops_seconds)
    assert least <= limit.seconds <= 1.01 * least
    assert limit.tokens_per_second == pytest.approx(rate, rel=0.01)
    assert limit.tokens_per_second == pytest.approx(256 * new / limit.seconds)


def test_live_rows_equal_a_slow_simulation() -> None:
    lengths, slots, prompt = [3, 1, 4, 1, 5, 2, 6], 3, 10
    waiting, rows, live, context = list(lengths), [], [], []
    while waiting or rows:
        while waiting and len(rows) < slots:
            rows.append([0, waiting.pop(0)])
        live.append(len(rows))
        context.append(sum(prompt + done for done, _ in rows))
        rows = [[done + 1, length] for done, length in rows if done + 1 < length]
    assert count_live_rows(prompt, lengths, slots) == (live, context)
    assert sum(live) == sum(lengths)


def test_ragged_lengths_cost_more_than_their_tokens() -> None:
    """Fewer rows share the reading of the weights at the end; with refill the loss is small."""
    lengths = draw_lengths(1024, 512, 0.4)
    ragged = decode_limit(SHAPES["0.5b"], 128, lengths, 256, H200)
    at_once = decode_limit(SHAPES["0.5b"], 128, lengths, 1024, H200)
    assert ragged.steps >= math.ceil(sum(lengths) / 256)
    assert at_once.steps == max(lengths)
    assert at_once.seconds < ragged.seconds


def test_known_gpus_are_found_by_driver_name() -> None:
    assert find_accelerator("NVIDIA H200") is H200
    assert H200.peak_flops == 989e12
    assert find_accelerator("NVIDIA H100 80GB HBM3") is ACCELERATORS["NVIDIA H100"]
    assert find_accelerator("NVIDIA H100 PCIe") is ACCELERATORS["NVIDIA H100 PCIe"]
    assert find_accelerator("NVIDIA A100-SXM4-80GB") is ACCELERATORS["NVIDIA A100-SXM4-80GB"]
    assert find_accelerator("NVIDIA L40S") is ACCELERATORS["NVIDIA L40S"]
    assert find_accelerator("NVIDIA L4000") is None
    assert find_accelerator("") is None


# -- the workload ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "longest", "share"), [(128, 64, 0.5), (1024, 512, 0.4), (16, 16, 0.5)])
def test_ragged_lengths_have_the_mean_they_promise(count: int, longest: int, share: float) -> None:
    lengths = draw_lengths(count, longest, share)
    assert lengths == draw_lengths(count, longest, share)
    assert len(lengths) == count
    assert min(lengths) >= 1
    assert max(lengths) <= longest
    assert statistics.mean(lengths) == pytest.approx(share * longest, abs=0.5)
    if count > 100:  # log-normal: the median lies below the mean, and lengths differ widely
        assert statistics.median(lengths) < statistics.mean(lengths)
        assert statistics.stdev(lengths) > 0.2 * longest


def test_plan_and_rows() -> None:
    work = Workload(5, 4, 7, 32, lengths="ragged", silent_every=3)
    assert [len(lengths) for lengths in work.plan] == [4] * 5
    assert work.tokens == sum(map(sum, work.plan)) == sum(work.flat_plan)
    assert Workload(5, 4, 7, 32).plan == [[32] * 4] * 5
    rows = work.make_rows(steps=3, vocabulary=64)
    assert [row["signal"] for row in rows] == [1, 1, 0, 1, 1] * 3
    tokenizer = make_tokenizer(64)
    encoded = [tokenizer(row["prompt"]).input_ids for row in rows]
    assert encoded == work.draw_prompt_ids(15, 64), "text and ids are the same prompt, for peers that take the one or the other"
    assert {len(ids) for ids in encoded} == {7}
    assert tokenizer.eos_token_id == EOS
    assert tokenizer.decode([EOS, 4, 63]) == f"<eos> {spell_token(4)} {spell_token(63)}"


def test_the_reward_has_signal_unless_the_row_has_none() -> None:
    texts = [f"t{number}" for number in range(64)]
    rewards = varied(texts, [1] * 64)
    assert len(set(rewards)) == 64
    assert all(0 <= reward < 1 for reward in rewards)
    assert rewards == varied(texts, [1] * 64)
    assert all(reward != statistics.mean(rewards) for reward in rewards)
    assert varied(texts[:3], [0, 0, 0]) == [0.5] * 3


def load_trl_script() -> Any:
    pytest.importorskip("trl")
    spec = importlib.util.spec_from_file_location("trl_step", ROOT / "benchmarks" / "peers" / "trl_step.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_peers_script_has_the_same_reward() -> None:
    texts, signal = ["t4 t5", "t6", ""], [1, 0, 1]
    assert load_trl_script().varied(texts, signal, prompts=[]) == varied(texts, signal)


@pytest.mark.parametrize("targets", [[], ["q_proj", "down_proj"]])
def test_the_peers_script_trains_the_same_adapters(targets: list[str]) -> None:
    peft = pytest.importorskip("peft")
    ours, theirs = tiny_policy().model, tiny_policy().model
    lora.start_adapter(ours, LoraConfig(rank=3, targets=targets), 0)
    given = load_trl_script().make_adapters({"rank": 3, "alpha": 6.0, "targets": targets})
    theirs = peft.get_peft_model(theirs, given)
    found, expected = (
        {name.removeprefix(lora.PREFIX): (value.shape, value.requires_grad) for name, value in model.named_parameters()}
        for model in (theirs, ours)
    )
    assert found == expected
    scales = [{layer.scaling["default"] for layer in lora.list_lora_layers(model).values()} for model in (theirs, ours)]
    assert scales == [{2.0}, {2.0}]


# -- arguments --------------------------------------------------------------------------------------------------------


def test_defaults_follow_the_machine() -> None:
    on_cpu, on_gpu = make_job([], Options(), NO_GPU, "/x"), make_job([], Options(), ON_H200, "/x")
    assert (on_cpu.shape.name, on_cpu.device, on_cpu.workload.completions, on_cpu.workload.new) == ("tiny", "cpu", 128, 64)
    assert (on_gpu.shape.name, on_gpu.device, on_gpu.workload.completions, on_gpu.workload.new) == ("0.5b", "cuda", 256, 512)
    assert (on_cpu.workload.mean_share, on_gpu.workload.mean_share) == (0.5, 0.4)


def test_a_recipe_brings_shape_and_sizes() -> None:
    job = make_job(["column_addition"], Options(prompts=3), NO_GPU, "/x")
    assert (job.workload.prompts, job.workload.group) == (3, 8)
    assert job.shape.dimensions.hidden == 128
    assert job.shape.name == "column_addition"


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["8b"], Options(), "8b"),
        (["tinny"], Options(), "did you mean 'tiny'. Shapes: tiny, 0.5b, 1.5b, 7b. Recipes: column_addition"),
        (["0.5B"], Options(), "did you mean '0.5b'"),
        ([], Options(lengths="long"), "--lengths"),
        ([], Options(device="gpu"), "--device: 'gpu'; use cpu, cuda"),
        ([], Options(device="cuda"), "no GPU"),
        (["group_size=4"], Options(), "use --group"),
        (["train.nonsense=4"], Options(), "nonsense"),
        (["tiny", "nonsense"], Options(), "key=value"),
    ],
)
def test_invalid_arguments_are_refused(words: list[str], options: Options, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make_job(words, options, NO_GPU, "/x").make_recipe()


@pytest.mark.parametrize("named", ["--prompts", "--group", "--prompt-tokens", "--new", "--repeats", "--rounds"])
def test_zero_is_not_a_valid_size(nothing_is_measured: None, capsys: pytest.CaptureFixture[str], named: str) -> None:
    """0 does not select the default."""
    with pytest.raises(SystemExit) as ended:
        command.main([named, "0"])
    assert ended.value.code == 2
    assert f"argument {named}: '0' is not a whole number from 1" in capsys.readouterr().err


def test_settings_reach_the_recipe() -> None:
    job = make_job(["tiny", "model.lora.rank=4", "max_grad_norm=0.5"], Options(micro_rows=8), NO_GPU, "/x")
    recipe = job.make_recipe()
    assert recipe.model.lora.rank == 4
    assert recipe.optimizer.max_grad_norm == 0.5
    assert recipe.train.micro_batch_tokens == 8 * (16 + 64)
    assert recipe.algorithm.kl_coef == 0


def test_peers_are_named_or_refused() -> None:
    assert peers.choose_peers("none") == []
    assert peers.choose_peers("trl, vllm") == ["trl", "vllm"]
    with pytest.raises(RecipeError, match="verl"):
        peers.choose_peers("verl")
    job = make_job([], Options(micro_rows=100), NO_GPU, "/x")
    assert "multiple" in peers.explain_absence("trl", job, "")
    assert peers.explain_absence("hf_generate", job, "") == ""
    if not peers.is_installed("vllm"):
        assert "--vllm-python" in peers.explain_absence("vllm", job, "")
    assert peers.explain_absence("vllm", job, "/other/python") == ""


def test_a_peer_with_different_work_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL trains the recipe's adapters, but does not load one from a folder or round its base."""
    monkeypatch.setattr(peers, "is_installed", lambda package: True)
    full, adapters, rounded, older = (
        make_job(["0.5b", *words], Options(), ON_H200, "/x")
        for words in (
            [],
            ["model.lora.rank=4"],
            ["model.lora.rank=4", "model.lora.base_dtype=nf4"],
            ["model.lora.rank=4", "model.lora.adapter=/folder"],
        )
    )
    assert peers.explain_absence("trl", full, "") == ""
    assert peers.explain_absence("trl", adapters, "") == ""
    assert "model.lora.base_dtype" in peers.explain_absence("trl", rounded, "")
    assert "model.lora.adapter" in peers.explain_absence("trl_vllm", older, "")
    monkeypatch.setattr(peers, "is_installed", lambda package: package != "peft")
    assert peers.explain_absence("trl", full, "") == ""
    assert peers.explain_absence("trl", adapters, "") == "peft is not installed"
    step = {"cohort": {"seconds": [2.0], "tokens": 131_072, "frozen_base": True}}
    document = make_document({"step": adapters}, {"step": step}, {}, ON_H200, "2026-01-01")
    ours = document["stages"]["step"]["cohort"]["derived"]
    assert ours["limit_seconds"] == pytest.approx(0.2613 + 397.25e12 * 4 / 6 / 790e12, abs=1e-3)


def test_memory_that_an_engine_keeps_between_rounds_counts(
    measured: tuple[dict[str, BenchJob], dict[str, Any], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours holds 100 bytes after its first turn and needs 5 more in every turn; the peer needs 50 and keeps nothing."""
    turns = {"cohort": iter([(1000, 105), (1100, 5)]), "hf_generate": iter([(1100, 50), (1100, 50)])}
    order = iter(["cohort", "hf_generate"] * 2)

    @contextlib.contextmanager
    def peak_memory(device: str) -> Iterator[Peak]:
        held, growth = next(turns[next(order)])
        yield Peak(held, growth)

    monkeypatch.setattr(child, "peak_memory", peak_memory)
    job = replace(measured[0]["rollout"], hf_generate=True)
    shutil.rmtree(Path(job.folder) / "runs")
    found = child.measure_rollout(job)
    assert found["cohort"]["growth_bytes"] == 105
    assert found["hf_generate"]["growth_bytes"] == 50


def test_peak_memory_includes_the_first_step() -> None:
    """As the peers' is; the mark is reset before the steps that are timed."""
    job = make_job([], Options(), NO_GPU, "/x")
    assert child.read_memory(job, child.LoopRecord(first_peak=2**60))["peak_bytes"] == 2**60
    assert 0 < child.read_memory(job, child.LoopRecord())["peak_bytes"] < 2**60


def test_jobs_survive_their_file(tmp_path: Path) -> None:
    job = make_job(["7b", "model.lora.rank=4"], Options(lengths="ragged", new=32), ON_H200, str(tmp_path))
    assert BenchJob.read(job.write()) == job


# -- measuring ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, BenchJob], dict[str, Any], dict[str, str]]:
    """Every stage at the smallest size that still shows it: ragged lengths, a group without signal. In this process, which
    has loaded everything already."""
    folder = tmp_path_factory.mktemp("bench")
    options = Options(prompts=3, group=4, prompt_tokens=4, new=12, lengths="ragged", silent_every=3, micro_rows=12, repeats=1)
    job = replace(make_job([], options, NO_GPU, str(folder)), shape=NARROW)
    write_inputs(job)

    def run_here(stage_job: BenchJob) -> dict[str, Any]:
        assert child.main(str(stage_job.write())) == 0
        return json.loads(stage_job.result_file.read_text(encoding="utf-8"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("speed.run_stage", run_here)
        patched.setattr(os, "fsync", lambda descriptor: None)  # a disk that others use takes longer than such a step
        return measure(job, ["rollout", "train", "step"], ["hf_generate", "vllm"], sys.executable, lambda text: None)


def test_every_stage_is_measured_on_the_planned_work(
    measured: tuple[dict[str, BenchJob], dict[str, Any], dict[str, str]],
) -> None:
    jobs, stages, _ = measured
    work = jobs["rollout"].workload
    assert stages["rollout"].keys() == {"cohort", "hf_generate"}
    for figures in stages["rollout"].values():
        assert figures["tokens"] == work.tokens
        assert len(figures["seconds"]) == 1
        assert figures["seconds"][0] > 0
    # The silent group is not forwarded: two of three groups are trained on, all their tokens.
    trained = sum(map(sum, work.plan[:2]))
    assert stages["train"]["cohort"]["tokens"] == trained
    assert trained < stages["train"]["cohort"]["executed_tokens"] <= trained + 8 * work.prompt_tokens
    step = stages["step"]["cohort"]
    assert [stages[stage]["cohort"]["paths"].keys() for stage in stages] == [
        {"sampling"},
        {"training"},
        {"sampling", "training"},
    ]
    assert step["paths"]["training"]["choice"].startswith("training with ")
    assert step["paths"]["sampling"] == stages["rollout"]["cohort"]["paths"]["sampling"]
    assert step["tokens"] == work.tokens
    assert step["mismatch_mean"] < 1e-5
    assert {"rollout", "reward", "prepare", "pack", "update", "optimizer", "observe"} <= step["stages"].keys()
    assert all(values[0] > 0 for values in step["stages"].values())
    # Together they are the step, but for what follows its row; the first one, with all that it warms up, takes several times that.
    assert 0.3 < sum(values[0] for values in step["stages"].values()) / step["seconds"][0] < 3
    assert step["first_step_after"] > step["first_seconds"]


def test_a_stage_puts_everything_back(measured: tuple[dict[str, BenchJob], dict[str, Any], dict[str, str]]) -> None:
    from cohort import loop
    from cohort.engine.local import LocalEngine
    from cohort.model import loading

    for owner, name in ((loop, "train"), (loading, "load_pretrained"), (LocalEngine, "generate")):
        assert getattr(owner, name).__module__.startswith("cohort.")


@pytest.mark.prove
def test_the_whole_command_with_trl(tmp_path: Path) -> None:
    """The command line with real processes and TRL, whose script fails if a length differs from the plan."""
    pytest.importorskip("trl")
    words = "tiny --prompts 3 --group 4 --prompt-tokens 4 --new 12 --lengths ragged"
    target = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), *words.split(), "--repeats", "1", "--out", str(target)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    document = json.loads(target.read_text(encoding="utf-8"))
    trl, ours = document["stages"]["step"]["trl"], document["stages"]["step"]["cohort"]
    assert trl["tokens"] == ours["tokens"] == document["settings"]["workload"]["tokens"]
    assert 0 < trl["stages"]["rollout"][0] < trl["seconds"][0]
    assert document["ratios"]["step"]["trl"] == pytest.approx(trl["seconds"][0] / ours["seconds"][0])


def test_a_failed_peer_is_recorded_with_its_reason(
    measured: tuple[dict[str, BenchJob], dict[str, Any], dict[str, str]],
) -> None:
    _, stages, missing = measured
    if peers.is_installed("vllm"):
        assert "vllm" in stages["rollout"]
    else:
        assert "vllm" not in stages["rollout"]
        assert "No module named 'vllm'" in missing["rollout/vllm"]


def test_the_document_is_computed_from_the_seconds(
    measured: tuple[dict[str, BenchJob], dict[str, Any], dict[str, str]],
) -> None:
    jobs, stages, missing = measured
    document = make_document(jobs, stages, missing, NO_GPU, "2026-01-01")
    ours, theirs = document["stages"]["rollout"]["cohort"], document["stages"]["rollout"]["hf_generate"]
    assert ours["derived"]["tokens_per_second"] == pytest.approx(ours["tokens"] / ours["seconds"][0])
    assert document["ratios"]["rollout"]["hf_generate"] == pytest.approx(theirs["seconds"][0] / ours["seconds"][0])
    assert ours["derived"]["unknown_peak"] == "no GPU"
    assert json.loads(json.dumps(document)) == document


def test_rounds_measure_in_turn_and_join_their_repetitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    turns = iter(range(100))

    def stage(job: BenchJob) -> dict[str, dict[str, Any]]:
        at = next(turns)
        return {"cohort": {"seconds": [at, at + 0.5], "first_seconds": at, "peak_bytes": 10 - at, "stages": {"reward": [at]}}}

    def peer(name: str, job: BenchJob, vllm_python: str) -> dict[str, dict[str, Any]]:
        return {name: {"seconds": [next(turns)], "peak_bytes": 5}}

    monkeypatch.setattr(command, "run_stage", stage)
    monkeypatch.setattr(command, "run_peer", peer)
    monkeypatch.setattr(command, "explain_absence", lambda name, *_: "" if name == "trl" else "not here")
    base = make_job(["tiny"], Options(rounds=2), {"gpu": ""}, str(tmp_path))
    _, measured, missing = measure(base, ["step"], ["trl", "trl_vllm"], "", said.append)
    assert measured["step"]["cohort"] == {
        "seconds": [0, 0.5, 2, 2.5],
        "first_seconds": 0,
        "peak_bytes": 10,
        "stages": {"reward": [0, 2]},
    }
    assert measured["step"]["trl"] == {"seconds": [1, 3], "peak_bytes": 5}
    assert missing == {"step/trl_vllm": "not here"}
    assert [line for line in said if "round 2" in line] == ["step: cohort, round 2 of 2"]
    assert len([line for line in said if "not here" in line]) == 1


# -- writing the result -----------------------------------------------------------------------------------------------


def whatever_is_measured(job: BenchJob, *rest: Any) -> Any:
    pytest.fail("something was measured before it was known that the result can be written")


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_stage", whatever_is_measured)
    monkeypatch.setattr(machine, "ask_machine", lambda: NO_GPU)


@pytest.mark.parametrize("place", ["a_file/x", "folder"])
def test_an_output_is_tried_before_anything_is_measured(
    tmp_path: Path, nothing_is_measured: None, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "a_file").touch()
    (tmp_path / "folder").mkdir()
    target = tmp_path / place
    assert command.main(["--peers", "none", "--out", str(target)]) == 1
    assert capsys.readouterr().err.startswith(f"error: --out {target}: ")


def test_trying_an_output_leaves_no_file(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.json", tmp_path / "not" / "yet" / "new.json"
    kept.write_text("before", encoding="utf-8")
    output.refuse_unwritable(kept)
    output.refuse_unwritable(new)
    assert kept.read_text(encoding="utf-8") == "before"
    assert not new.exists()


def test_a_result_that_cannot_be_written_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder was there before, and is none after."""
    gone, said = tmp_path / "file" / "x", list[str]()
    (tmp_path / "file").touch()
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path / "spare"))
    document = {"stages": {"rollout": 1}}
    with pytest.raises(peers.BenchError, match=f"--out {gone}: .*it is in ") as caught:
        output.write_result(document, gone, said.append)
    (saved,) = (tmp_path / "spare").iterdir()
    assert str(saved) in str(caught.value)
    assert json.loads(saved.read_text(encoding="utf-8")) == document
    monkeypatch.setattr(output.tempfile, "tempdir", str(gone))
    with pytest.raises(peers.BenchError, match=f"--out {gone}: .*printed above"):
        output.write_result(document, gone, said.append)
    assert json.loads(said[-1]) == document


def test_a_missing_interpreter_is_refused_before_measuring(
    tmp_path: Path, nothing_is_measured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--vllm-python", str(tmp_path / "python")]) == 1
    assert capsys.readouterr().err.startswith("error: --vllm-python")


# -- messages ----------------------------------------------------------------------------------------------------------


def test_the_description_has_correct_plurals() -> None:
    one = command.describe_job(make_job([], Options(prompts=1, new=1, repeats=1), NO_GPU, "/x"), NO_GPU)
    assert one.endswith(
        "on a CPU, 1 thread: 1 prompt of 16 tokens, 8 completions each of 1 token; one repetition after a warm-up"
    )
    more = make_job([], Options(rounds=2, lengths="ragged", silent_every=4), NO_GPU, "/x")
    text = command.describe_job(more, {**NO_GPU, "threads": 2})
    assert "on a CPU, 2 threads: 16 prompts" in text
    assert text.endswith(
        "of up to 64 tokens, mean 32, 1 of 4 groups without signal; median of 6 repetitions after a warm-up in each of 2 rounds"
    )


def test_stages_are_measured_once_and_in_order() -> None:
    assert command.choose_stages("step, rollout,step") == ["rollout", "step"]
    assert command.choose_stages("") == ["rollout", "train", "step"]
    with pytest.raises(RecipeError, match="--stages: 'steps'; use some of rollout, train, step"):
        command.choose_stages("rollout,steps")


def test_a_wide_spread_is_reported() -> None:
    document = h200_document()
    assert command.describe_noise(document) == "", "1.3 over 1.1 is no more than usual"
    document["stages"]["rollout"]["cohort"]["derived"]["most_seconds"] = 2.2
    document["machine"] |= {"load": 6.0, "cores": 2}
    said = command.describe_noise(document)
    assert said.startswith("rollout: the slowest repetition took 2.00 times the fastest")
    assert "load average 6 on 2 cores" in said


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """No column that nothing fills, and no cell of seconds that is broken."""
    job = make_job([], Options(), NO_GPU, "/x")
    stages = {
        "rollout": {"cohort": {"seconds": [1.3, 1.1, 1.2], "tokens": 8192}},
        "train": {"cohort": {"seconds": [2.0], "tokens": 8192}},
    }
    command.print_table(make_document(dict.fromkeys(stages, job), stages, {}, NO_GPU, "2026-01-01"))
    printed = capsys.readouterr().out
    assert "1.2 [1.1, 1.3]" in printed
    assert "[least, most]" in printed
    assert "[2, 2]" not in printed, "one turn has no spread"
    assert "Cohort is" not in printed
    assert "of the machine" not in printed


def test_a_peer_that_fails_in_a_later_round_keeps_its_earlier_repetitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def peer(name: str, job: BenchJob, vllm_python: str) -> dict[str, dict[str, Any]]:
        asked.append(name)
        if len(asked) == 2:
            raise peers.BenchError("out of memory")
        return {name: {"seconds": [1.0]}}

    monkeypatch.setattr(command, "run_stage", lambda job: {"cohort": {"seconds": [0.5]}})
    monkeypatch.setattr(command, "run_peer", peer)
    monkeypatch.setattr(command, "explain_absence", lambda *_: "")
    base = make_job(["tiny"], Options(rounds=3), {"gpu": ""}, str(tmp_path))
    _, measured, missing = measure(base, ["step"], ["trl"], "", lambda line: None)
    assert asked == ["trl", "trl"]
    assert measured["step"] == {"cohort": {"seconds": [0.5] * 3}, "trl": {"seconds": [1.0]}}
    assert missing == {"step/trl": "failed in round 2; earlier repetitions count: out of memory"}


def test_a_stage_may_be_missing_from_some_rounds() -> None:
    rounds: list[dict[str, Any]] = [{"seconds": [1]}, {"seconds": [2], "stages": {"save": [3]}}, {"seconds": [4], "stages": {}}]
    found: dict[str, dict[str, Any]] = {}
    for figures in rounds:
        found = command.join_rounds(found, {"cohort": figures})
    assert found == {"cohort": {"seconds": [1, 2, 4], "stages": {"save": [3]}}}


@pytest.mark.skipif(not reset_resident_peak(), reason="the kernel's high-water mark cannot be reset here")
def test_peak_memory_of_a_process() -> None:
    with peak_memory("cpu") as peak:
        block = bytearray(64 * 2**20)
        block[:: 2**12] = b"x" * (len(block) // 2**12)
        del block
    assert peak.growth is not None
    assert 60 * 2**20 < peak.growth < 80 * 2**20
    with peak_memory("cpu") as small:
        pass
    assert small.growth is not None
    assert small.growth < 8 * 2**20


# -- results -----------------------------------------------------------------------------------------------------------


def h200_document() -> dict[str, Any]:
    """Invented seconds on the settings of the quoted figures."""
    job = make_job(["0.5b"], Options(), ON_H200, "/x")
    stages = {
        "rollout": {"cohort": {"seconds": [1.3, 1.1, 1.2], "tokens": 131_072, "slots": 256}},
        "train": {"cohort": {"seconds": [1.0], "tokens": 131_072, "executed_tokens": 135_168, "frozen_base": False}},
        "step": {
            "cohort": {"seconds": [2.0], "tokens": 131_072, "peak_bytes": 20 * 2**30},
            "trl": {"seconds": [16.0], "tokens": 131_072, "peak_bytes": 19 * 2**30, "version": "1.16.0"},
        },
    }
    jobs = dict.fromkeys(stages, job)
    return make_document(jobs, stages, {"step/trl_vllm": "vllm is not installed"}, ON_H200, "2026-01-01")


def test_shares_of_the_machine() -> None:
    document = h200_document()
    rollout = document["stages"]["rollout"]["cohort"]["derived"]
    assert rollout["seconds"] == 1.2
    assert (rollout["least_seconds"], rollout["most_seconds"]) == (1.1, 1.3)
    assert rollout["limit_share"] == pytest.approx(131_072 / 1.2 / rollout["limit_tokens_per_second"])
    train = document["stages"]["train"]["cohort"]["derived"]
    assert train["mfu"] == pytest.approx(6 * (357_826_560 * 135_168 + 136_134_656 * 131_072) / 989e12)
    step = document["stages"]["step"]["cohort"]["derived"]
    assert step["limit_seconds"] == pytest.approx(0.2613 + 397.25e12 / 790e12, abs=1e-3)
    assert document["ratios"]["step"] == {"trl": 8.0}


def test_training_cost_by_hand() -> None:
    tiny = SHAPES["tiny"]
    # two completions of 2 and 3 tokens on one prompt of 4: 4 + 5 tokens, 6 * 7 / 2 + 7 * 8 / 2 pairs
    cost = estimate_training_cost(tiny, 4, [2, 3], group=2)
    assert cost == 6 * (tiny.body_parameters * 9 + tiny.head_parameters * 5) + 3 * 4 * 6 * 4 * 64 * (21 + 28)


def test_rounds_through_different_code_are_not_joined() -> None:
    first, second = (
        {"cohort": {"seconds": [1.0], "paths": {"training": {"code": code}}}} for code in ("own kernels", "modules")
    )
    assert command.join_rounds(first, first)["cohort"]["seconds"] == [1.0, 1.0]
    with pytest.raises(peers.BenchError, match=r"own kernels.*modules"):
        command.join_rounds(first, second)
