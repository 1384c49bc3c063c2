"""The memory estimate: compared with real models and with numbers worked out by hand, and the suggestions if a run does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.ops.adam8 import Moments
from cohort.ops.fused import native
from cohort.training import memory_estimate, preflight
from cohort.training.build import EncodedData
from cohort.training.memory_estimate import (
    GIB,
    ModelNumbers,
    RunNumbers,
    count_activation_bytes,
    count_head_bytes,
    count_slot_bytes,
    describe_memory,
    estimate_memory,
)
from cohort.types import Prompt, Sampling
from session_tools import tiny, train_tiny

QWEN_05B = ModelNumbers(24, 896, 14, 2, 64, 4864, 151936, 494_032_768, 357_826_560)
QWEN_15B = ModelNumbers(28, 1536, 12, 2, 128, 8960, 151936, 1_543_714_304, 1_310_195_712)
QWEN_7B = ModelNumbers(28, 3584, 28, 4, 128, 18944, 152064, 7_615_616_512, 6_525_288_448)
"""Qwen2.5 as the checkpoints have it: all parameters, and those of the linear layers below the head."""


def test_adapters_by_hand():
    """Rank 2, width 8, 2 query heads and 1 kv head of 4, intermediate 10: 2 x (16 + 12 + 12 + 16 + 18 + 18 + 18) per layer."""
    assert ModelNumbers(3, 8, 2, 1, 4, 10, 50, 0).adapter_parameters(2) == 3 * 2 * 110


def test_bytes_per_parameter():
    """18 bytes for full training in bfloat16, 12.03 with 8-bit moments, 16 in float32; 2 and a share of 18 with adapters."""
    count = QWEN_05B.parameters

    def weights(run: RunNumbers) -> float:
        needed = estimate_memory(QWEN_05B, run)
        return sum(needed.held.values()) + needed.training["gradients"]

    assert weights(RunNumbers()) == 18 * count
    assert weights(RunNumbers(state_bits=8)) == 12.03125 * count
    assert weights(RunNumbers(element=4)) == 16 * count
    adapter = QWEN_05B.adapter_parameters(16)
    assert weights(RunNumbers(lora_rank=16)) == 2 * count + 18 * adapter
    assert weights(RunNumbers(lora_rank=16, adapter_parameters=1000)) == 2 * count + 18_000
    assert weights(RunNumbers(reference=True)) == 20 * count
    assert weights(RunNumbers(lora_rank=16, reference=True)) == 2 * count + 18 * adapter
    assert weights(RunNumbers(teacher_parameters=7)) == 18 * count + 14
    assert weights(RunNumbers(lora_rank=16, element=4, teacher_parameters=7)) == 4 * count + 16 * adapter + 28
    assert weights(RunNumbers(critic=True)) == 36 * count
    assert weights(RunNumbers(lora_rank=16, critic=True)) == 2 * count + 36 * adapter
    assert weights(RunNumbers(reward_model=True)) == (18 + 14) * count
    assert weights(RunNumbers(lora_rank=16, reward_model=True)) == 2 * count + 14 * adapter + 18 * count
    moments = Moments.zeros(torch.empty(1 << 16)).tensors().values()
    assert sum(tensor.nbytes for tensor in moments) == memory_estimate.MOMENT_BYTES[8] * (1 << 16)


def test_activations_and_cache_by_hand():
    """Qwen2.5 0.5B, one token: 24 layers x (2 bytes x (2 x 896 + 2 x 896 + 2 x 128 + 2 x 4864) + 4 bytes x 16) = 652,800."""
    assert count_activation_bytes(QWEN_05B, 1, 2, False) == 24 * (2 * (1792 + 1792 + 256 + 9728) + 64) == 652_800
    assert count_activation_bytes(QWEN_05B, 10, 2, True) == 10 * (24 * 2 * 896 + 27_136 + 64)
    assert count_slot_bytes(QWEN_05B, 640, 2) == 2 * 2 * 24 * 2 * 64 * 640 == 7_864_320
    needed = estimate_memory(QWEN_05B, RunNumbers(slots=3, longest=640, cache_element=4))
    assert needed.sampling == {"keys and values": 2 * 3 * 7_864_320.0}
    assert needed.training["loss head"] == 2 * 64 * 2**20


def test_the_loss_head_has_the_sizes_of_the_loss_head():
    """Chunks and blocks as ops/logprobs.py plans them; by hand for 0.5B on a GPU of 140 GiB."""
    gpu = RunNumbers(gpu_bytes=140 * GIB)
    vocabulary, weight = 151936, 151936 * 896
    # 5 x 2^28 bytes are 2,208 rows of logits, 2,048 in whole tiles; 140 GiB / 16 are 15 times as many in bfloat16.
    assert count_head_bytes(QWEN_05B, gpu) == 4 * 2048 * vocabulary + 2 * 16384 * vocabulary + 2 * weight
    many = replace(gpu, micro_batch_tokens=1 << 20)
    assert count_head_bytes(QWEN_05B, many) == 4 * 2048 * vocabulary + 2 * 15 * 2048 * vocabulary + 4 * weight
    assert count_head_bytes(QWEN_05B, replace(many, lora_rank=16)) == (4 + 2) * 2048 * vocabulary


def test_modules_keep_more_and_adapters_run_on_own_code():
    own, modules = RunNumbers(), RunNumbers(own_kernels=False)
    kept = estimate_memory(QWEN_05B, own).training["activations"]
    assert estimate_memory(QWEN_05B, modules).training["activations"] == 2 * kept
    advised = next(
        memory_estimate.list_fitting_runs(estimate_memory(QWEN_7B, replace(own, micro_batch_tokens=8192)), 70 * GIB), None
    )
    assert advised is not None
    assert (advised.lora_rank, advised.own_kernels) == (16, True)
    adapted = estimate_memory(QWEN_05B, replace(own, lora_rank=16)).training["activations"]
    assert adapted - kept == 2 * 16384 * 24 * 7 * 16  # A x of seven linear layers in each of 24


def test_training_and_sampling_take_turns():
    needed = estimate_memory(QWEN_05B, RunNumbers())
    held = sum(needed.held.values())
    assert needed.peak == held + sum(needed.training.values()) > held + needed.sampling["keys and values"]
    crowded = estimate_memory(QWEN_05B, RunNumbers(slots=100_000))
    assert crowded.peak == held + crowded.sampling["keys and values"]


def fits(model: ModelNumbers, run: RunNumbers, free: float) -> bool:
    return estimate_memory(model, run).peak <= free


@pytest.mark.parametrize(
    ("model", "run", "gib", "expected"),
    [
        (QWEN_05B, RunNumbers(), 140, "fits."),
        (QWEN_05B, RunNumbers(micro_batch_tokens=1 << 18), 100, "Set train.micro_batch_tokens = "),
        (QWEN_05B, RunNumbers(micro_batch_tokens=1024, slots=4000, longest=2000), 24, "Set sampling.slots = "),
        (
            QWEN_15B,
            RunNumbers(micro_batch_tokens=16384, longest=16384, slots=16),
            40,
            "Set train.activation_checkpointing = true.",
        ),
        (QWEN_7B, RunNumbers(micro_batch_tokens=8192), 120, "Set optimizer.state_bits = 8."),
        (QWEN_7B, RunNumbers(micro_batch_tokens=8192, state_bits=8), 80, "Set model.lora.rank = 16."),
        (QWEN_7B, RunNumbers(micro_batch_tokens=4096, lora_rank=16), 14, 'model.lora.base_dtype = "nf4".'),
        (QWEN_7B, RunNumbers(), 6, "does not fit with any setting"),
    ],
)
def test_words_name_the_first_setting_to_change(model, run, gib, expected):
    needed = estimate_memory(model, run)
    said = describe_memory(needed, gib * GIB)
    assert expected in said
    assert f"{needed.peak / GIB:.1f} GiB at the peak" in said
    advised = next(memory_estimate.list_fitting_runs(needed, gib * GIB), None)
    if "any setting" in expected:
        assert advised is None
    else:
        assert advised is not None
        assert fits(model, advised, gib * GIB)
        assert fits(model, run, gib * GIB) == (advised == run) == ("fits." in said)


def test_advised_sizes_are_as_large_as_fit():
    run, free = RunNumbers(micro_batch_tokens=1 << 18, slots=20_000), 60 * GIB
    advised = next(memory_estimate.list_fitting_runs(estimate_memory(QWEN_05B, run), free), None)
    assert advised is not None
    changed = {one.split(" = ")[0] for one in memory_estimate.describe_changes(run, advised).split(" and ")}
    assert changed == {"train.micro_batch_tokens", "sampling.slots"}
    assert not fits(QWEN_05B, replace(advised, micro_batch_tokens=advised.micro_batch_tokens + 256), free)
    assert not fits(QWEN_05B, replace(advised, slots=advised.slots + 1), free)
    assert advised.micro_batch_tokens % 256 == 0


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_exact_sums_are_eight_bytes_a_trained_parameter():
    plain, exact = (estimate_memory(QWEN_05B, RunNumbers(exact=flag)) for flag in (False, True))
    assert exact.training["gradients"] == 8 * QWEN_05B.parameters == 2 * plain.training["gradients"]
    assert exact.held == plain.held
    adapters = estimate_memory(QWEN_05B, RunNumbers(exact=True, lora_rank=16, critic=True))
    assert adapters.training["gradients"] == 2 * 8 * QWEN_05B.adapter_parameters(16)


def test_ranks_that_share_nothing_out_hold_what_one_holds():
    assert estimate_memory(QWEN_7B, RunNumbers(ranks=8)).peak == estimate_memory(QWEN_7B, RunNumbers()).peak


def test_what_is_shared_out_by_hand():
    """7B over 4 ranks: a quarter of 4 + 8 bytes held and of 4 in gradients; the head, 545 M, at work; 2 bytes each to sample."""
    count, head = QWEN_7B.parameters, 152064 * 3584
    layer = 2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944
    assert QWEN_7B.layer_parameters == layer
    run = RunNumbers(ranks=4, shard=True, reference=True)
    needed = estimate_memory(QWEN_7B, run)
    assert needed.held == {"parameters": 0, "masters": count, "moments": 2 * count, "reference": count / 2}
    assert needed.training["gradients"] == count
    assert needed.training["units at work"] == 2 * (head + 2 * layer) + (2 + 4) * head
    assert needed.sampling["whole model"] == 2 * count
    exact = estimate_memory(QWEN_7B, replace(run, exact=True))
    assert exact.training["gradients"] == 3 * count  # a float64 sum, and the float32 rounded from it
    assert exact.training["units at work"] == 2 * (head + 2 * layer) + (2 + 8) * head
    adapter = QWEN_7B.adapter_parameters(16)
    base = estimate_memory(QWEN_7B, replace(run, lora_rank=16))
    # A reference over adapters has a base of its own: slices belong to one model.
    assert base.held == {"parameters": count / 2, "masters": adapter, "moments": 2 * adapter, "reference": count / 2}
    critic = estimate_memory(QWEN_7B, replace(run, lora_rank=16, critic=True))
    assert critic.held["critic"] == (2 * count + 12 * adapter) / 4
    # Each rank reads the whole model before it is shared out: in float32, a frozen base in bfloat16.
    assert needed.starting == {"whole model as read": 4 * count, "its copy": 2 * count}
    assert base.starting == {"whole model as read": 2 * count, "its copy": 2 * count}
    many = estimate_memory(QWEN_7B, RunNumbers(ranks=1024, shard=True, micro_batch_tokens=640, slots=1))
    assert many.peak == 4 * count
    assert estimate_memory(QWEN_7B, RunNumbers()).starting == {}
    assert base.training["units at work"] == 2 * (head + 2 * layer)  # no gradient of a frozen unit
    resting = estimate_memory(QWEN_7B, replace(run, offload=True, gpu_bytes=140 * GIB))
    assert sum(resting.held.values()) == 0
    # A CPU has no second memory to rest in.
    assert estimate_memory(QWEN_7B, replace(run, offload=True)).held == needed.held
    taught = estimate_memory(QWEN_7B, replace(run, teacher_parameters=100))
    assert taught.held["teacher"] == 200  # a teacher is whole on every rank


@pytest.mark.parametrize(
    ("run", "gib", "expected"),
    [
        # Alone: the cheapest setting of one device first, then what else would do, more devices last.
        (
            RunNumbers(micro_batch_tokens=8192, gpu_bytes=140 * GIB),
            120,
            'Set optimizer.state_bits = 8. Also enough: model.lora.rank = 16; or parallel.shard = "full" on 2 ranks '
            "(torchrun --standalone --nproc-per-node 2 -m cohort train RECIPE).",
        ),
        # Ranks that are there share out before anything is rounded.
        (RunNumbers(micro_batch_tokens=8192, gpu_bytes=80 * GIB, ranks=8), 80, 'Set parallel.shard = "full". Also enough: '),
        (
            RunNumbers(micro_batch_tokens=4096, gpu_bytes=140 * GIB, exact=True),
            140,
            'Set train.micro_batch_tokens = 3072 and parallel.sums = "fast".',
        ),
        # The shares of two ranks have no room beside the whole model that sampling needs: they rest on the host.
        (
            RunNumbers(micro_batch_tokens=2048, gpu_bytes=32 * GIB, ranks=2, slots=16),
            32,
            "parallel.offload = true",
        ),
        (
            RunNumbers(micro_batch_tokens=1024, slots=16, own_kernels=False),
            30,
            " on 8 ranks (torchrun --nnodes 8 --nproc-per-node 1 ",
        ),
    ],
)
def test_words_say_what_else_makes_it_fit(run, gib, expected):
    needed = estimate_memory(QWEN_7B, run)
    assert expected in describe_memory(needed, gib * GIB)
    advised = list(memory_estimate.list_fitting_runs(needed, gib * GIB))
    assert len(advised) > 0
    assert all(fits(QWEN_7B, one, gib * GIB) for one in advised)
    assert run.ranks == 1 or {one.ranks for one in advised} == {run.ranks}  # ranks that are there, no others


def tabulate_memory(models: Mapping[str, ModelNumbers]) -> list[str]:
    """The rows of docs/memory.md: GiB of each part, for each model."""
    adapters, gpu = RunNumbers(lora_rank=16), RunNumbers(gpu_bytes=140 * GIB)
    columns = []
    for model in models.values():

        def weights(run: RunNumbers, model: ModelNumbers = model) -> float:
            needed = estimate_memory(model, run)
            return sum(needed.held.values()) + needed.training["gradients"]

        columns.append(
            {
                "full training": weights(RunNumbers()),
                "full training, 8-bit moments": weights(RunNumbers(state_bits=8)),
                "adapters of rank 16": weights(adapters),
                "the same over a base in 4 bits": weights(replace(adapters, four_bit=True)),
                "reference for the KL (none with adapters)": 2.0 * model.parameters,
                "activations of 16,384 tokens": count_activation_bytes(model, 16384, 2, False),
                "the same, checkpointed": count_activation_bytes(model, 16384, 2, True),
                "loss head of 16,384 tokens on a GPU of 140 GiB": count_head_bytes(model, gpu),
                "the same with adapters": count_head_bytes(model, replace(gpu, lora_rank=16)),
                "keys and values of 256 slots of 640 tokens": 256 * count_slot_bytes(model, 640, 2),
                "keys and values of 32 slots of 16,512 tokens": 32 * count_slot_bytes(model, 16512, 2),
            }
        )
    return [f"| {name} | " + " | ".join(f"{column[name] / GIB:.2f}" for column in columns) + " |" for name in columns[0]]


def test_the_table_of_the_documentation():
    """Every figure in docs/memory.md comes from the function."""
    text = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
    for line in tabulate_memory({"0.5B": QWEN_05B, "1.5B": QWEN_15B, "7B": QWEN_7B}):
        assert line in text, line


def test_words_at_the_limits():
    needed = estimate_memory(QWEN_05B, RunNumbers())
    assert describe_memory(needed, needed.peak).endswith(": fits.")
    assert "does not fit" in describe_memory(needed, needed.peak - 1)
    assert " on each of " not in describe_memory(needed, needed.peak)
    assert "GiB at the peak on each of 2 ranks (" in describe_memory(
        estimate_memory(QWEN_05B, RunNumbers(ranks=2)), needed.peak
    )
    # Parts below 0.05 GiB are not named.
    held = {"small": 0.049 * GIB, "limit": 0.05 * GIB, "large": GIB}
    assert "(large 1.0, limit 0.1)" in describe_memory(replace(needed, held=held, training={}, sampling={}), 2 * GIB)
    slots = replace(needed, held={"all": 10.0}, training={}, sampling={"keys and values": 80.0, "whole model": 5.0})
    slots = replace(slots, run=RunNumbers(slots=8))
    assert [memory_estimate.fit_slots(slots, free) for free in (96.0, 95.0, 94.9, 85.0, 35.0, 25.0, 24.0, 0.0)] == [
        8, 8, 7, 7, 2, 1, 1, 1,
    ]  # fmt: skip


def test_commands_for_more_ranks():
    def command(ranks: int, gpu: bool) -> str:
        run = RunNumbers(gpu_bytes=80 * GIB * gpu)
        return memory_estimate.describe_changes(run, replace(run, ranks=ranks, shard=True))

    start, tail = 'parallel.shard = "full" on', "-m cohort train RECIPE)"
    assert command(8, True) == f"{start} 8 ranks (torchrun --standalone --nproc-per-node 8 {tail}"
    assert command(16, True) == (
        f"{start} 16 ranks (torchrun --nnodes 2 --nproc-per-node 8 --node-rank K --master-addr HOST {tail}"
    )
    assert (
        command(2, False) == f"{start} 2 ranks (torchrun --nnodes 2 --nproc-per-node 1 --node-rank K --master-addr HOST {tail}"
    )


# -- at the start of a run ---------------------------------------------------------------------------------------------


SHORT = {"train.num_steps": 1, "cold_start.num_steps": 0, "evaluation.samples": 0, "sampling.slots": 8}


def compiled() -> bool:
    """Whether training on this machine has own code."""
    try:
        native.load_library(16, 2, 32)
    except native.NoNative:
        return False
    return True


@pytest.mark.parametrize("rank", [0, 2])
def test_a_run_reads_its_numbers_from_model_and_recipe(tmp_path, monkeypatch, rank):
    if rank:
        pytest.importorskip("peft", reason="adapters need peft")
    seen = []
    monkeypatch.setattr(
        preflight,
        "check_memory",
        lambda parts, encoded, teacher_parameters: (
            seen.append((parts, preflight.read_model_numbers(parts.policy), preflight.read_run_numbers(parts, encoded)))
            or preflight.Check("ok", "memory", "")
        ),
    )
    settings = {
        "optimizer.state_bits": 8,
        "train.activation_checkpointing": True,
        "model.lora.rank": rank,
        "algorithm.name": "ppo",
    }
    train_tiny(tmp_path, **SHORT, **settings)
    ((parts, model, run),) = seen
    trained = sum(value.numel() for value in parts.policy.model.parameters() if value.requires_grad)
    total = sum(value.numel() for value in parts.policy.model.parameters())
    assert model.parameters == (total - trained if rank else total)
    assert (model.layers, model.width, model.query_heads, model.kv_heads, model.head_dim) == (2, 32, 2, 1, 16)
    assert run == RunNumbers(
        element=4,
        state_bits=8,
        lora_rank=rank,
        adapter_parameters=trained if rank else None,
        reference=True,
        critic=True,
        micro_batch_tokens=24 * run.longest,  # a step of 6 x 4 rows is less than the budget
        activation_checkpointing=True,
        own_kernels=compiled(),
        slots=8,
        longest=run.longest,
        cache_element=4 if compiled() else 8,
        exact=True,  # what parallel.sums = "auto" is on a CPU
    )
    assert 12 < run.longest <= 12 + 8
    if not rank:  # what is held, and the formula, agree: weights in float32, two moments in 8 bits
        assert estimate_memory(model, run).held["parameters"] == 4 * total


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}, (4, 2, 8, 64)),  # wider than 16 / 4
        ({"num_attention_heads": 4, "intermediate_size": 24}, (4, 4, 4, 24)),
        ({"intermediate_size": [24, 40, 32]}, (1, 1, 16, 40)),  # a state-space model; layers of several widths
    ],
)
def test_the_numbers_of_a_model_by_hand(config, expected):
    shape = SimpleNamespace(hidden_size=16, num_hidden_layers=3, vocab_size=50, **config)
    model = torch.nn.Sequential(torch.nn.Linear(16, 5, bias=False))
    model.config, model.get_output_embeddings = SimpleNamespace(get_text_config=lambda: shape), lambda: None
    adapter = {"a": torch.zeros(2, 3)}
    policy: Any = SimpleNamespace(model=model, adapter=None, num_parameters=1000, list_own_parameters=lambda: adapter)
    numbers = memory_estimate.read_model_numbers(policy)
    assert (numbers.query_heads, numbers.kv_heads, numbers.head_dim, numbers.intermediate) == expected
    assert (numbers.layers, numbers.width, numbers.vocabulary, numbers.parameters) == (3, 16, 50, 1000)
    policy.adapter = object()
    assert memory_estimate.read_model_numbers(policy).parameters == 994  # those of the adapter are not the base's


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # 6 x 4 rows of a step, of which 2 ranks decode 12 each; a micro-batch holds at most 24 x 15 tokens.
        ({}, {"micro_batch_tokens": 24 * 15, "slots": 24}),
        ({"ranks": 2}, {"slots": 12, "ranks": 2}),
        ({"ranks": 5}, {"slots": 5, "ranks": 5}),
        ({"most_slots": 8}, {"slots": 8}),
        ({"engine_slots": 3}, {"slots": 3}),
        ({"most_slots": 1, "engine_slots": 3}, {"slots": 1}),
        ({"evaluation.samples": 3}, {"slots": 30}),  # of the larger of two sets, 10 problems
        ({"train.micro_batch_tokens": 100}, {"micro_batch_tokens": 100}),
        ({"train.micro_batch_tokens": 2}, {"micro_batch_tokens": 15}),  # at least one row
        ({"cold_start.num_steps": 1, "cold_start.batch_size": 30}, {"micro_batch_tokens": 30 * 15}),
        ({"ahead.lag": 1}, {"ahead": True}),
        ({"ahead.lag": 1, "shares": False}, {}),
    ],
)
def test_the_numbers_of_a_rank_by_hand(settings, expected):
    given = {"engine_slots": 0, "most_slots": 64, "ranks": 1, "shares": True}
    changes = {name: value for name, value in settings.items() if name not in given}
    recipe = tiny(Path(), **SHORT | {"train.prompts_per_step": 6, "train.group_size": 4, "algorithm.kl_coef": 0.0} | changes)
    given |= {name: value for name, value in settings.items() if name in given}
    able = SimpleNamespace(most_slots=given["most_slots"], shares_weights=given["shares"], cache_itemsize=4)
    run: Any = SimpleNamespace(
        recipe=recipe,
        policy=SimpleNamespace(device=torch.device("cpu"), model=torch.zeros(1), adapter=None, backbone=None),
        sampling=Sampling(4, 1.0, 12, ()),
        engine=SimpleNamespace(slots=given["engine_slots"], capabilities=able),
    )
    prompts = [Prompt(number, "q", {}, (1,) * number) for number in (1, 3, 2)]
    encoded = EncodedData(prompts, {"few": prompts, "many": prompts * 3 + prompts[:1]}, [], [], {})
    numbers = memory_estimate.read_run_numbers(run, encoded, given["ranks"])
    base = {"element": 4, "longest": 15, "cache_element": 4, "own_kernels": False, "exact": True, "slots": 24}
    assert numbers == RunNumbers(**base | {"micro_batch_tokens": 24 * 15} | expected)


def test_a_run_that_will_not_fit_is_told_which_setting_to_change(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(preflight, "measure_room", lambda device: 130 * 2**20)
    original = preflight.check_memory
    monkeypatch.setattr(preflight, "check_memory", lambda *args: said.append(original(*args)) or said[-1])
    train_tiny(tmp_path, **SHORT, **{"train.prompts_per_step": 64, "model.kernels": "modules"})
    (check,) = said
    assert check.level == "warning"
    assert "does not fit. Set train.micro_batch_tokens = 256" in check.text
    monkeypatch.setattr(preflight, "measure_room", lambda device: 4 * GIB)
    train_tiny(tmp_path, "roomy", **SHORT)
    assert said[-1].level == "ok"


def test_slots_that_the_engine_chooses_are_no_reason_to_warn(tmp_path, monkeypatch):
    """With sampling.slots = 0 the engine uses free memory; a number in the recipe may be too large."""
    said = []
    original = preflight.check_memory
    monkeypatch.setattr(preflight, "check_memory", lambda *args: said.append(original(*args)) or said[-1])
    monkeypatch.setattr(memory_estimate, "count_slot_bytes", lambda *args: 2.0 * GIB)
    monkeypatch.setattr(preflight, "measure_room", lambda device: 4 * GIB)
    train_tiny(tmp_path, "fixed", **SHORT)
    train_tiny(tmp_path, "chosen", **SHORT | {"sampling.slots": 0})
    assert [check.level for check in said] == ["warning", "ok"]
    assert "Set sampling.slots = 1." in said[0].text
