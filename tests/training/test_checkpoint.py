"""Checkpoints: bitwise round trips, every kind of damage named, nothing half-written ever visible, exact batches."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.model.critic import NoCritic
from cohort.model.examples import Example, join_examples
from cohort.model.optim import MasterWeights, Optimizer
from cohort.recipe.file import load_recipe
from cohort.recipe.schema import OptimizerConfig
from cohort.training import checkpoint
from cohort.training.checkpoint import CheckpointError, Snapshot
from cohort.training.experience import Models
from cohort.training.rollouts import Collected
from cohort.training.state import TrainState, decode_batch, encode_batch
from cohort.types import UNSCORED, Completion, Outcome, Prompt, Rollout
from conftest import collect_batch, tiny_policy


def snapshot(seed: int = 0) -> Snapshot:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        "a": torch.randn(3, 4, generator=generator),
        "b": torch.randn(5, generator=generator).to(torch.bfloat16),
        "transposed": torch.randn(2, 6, generator=generator).T,
        "empty": torch.zeros(0),
        "extremes": torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45]),
    }
    return Snapshot(
        {"weights": weights, "optimizer": {"a|step": torch.ones(1)}},
        {"step": seed, "pi": 3.141592653589793, "text": "ü\n", "none": None},
    )


def same(left: Snapshot, right: Snapshot) -> bool:
    """Bit for bit, NaN and signed zeros included."""
    if left.document != right.document or left.tensors.keys() != right.tensors.keys():
        return False
    for part, tensors in left.tensors.items():
        if tensors.keys() != right.tensors[part].keys():
            return False
        for key, value in tensors.items():
            other = right.tensors[part][key]
            bytes_of = [tensor.contiguous().view(torch.uint8).flatten().tolist() for tensor in (value, other)]
            if value.dtype != other.dtype or value.shape != other.shape or bytes_of[0] != bytes_of[1]:
                return False
    return True


def test_round_trip_is_bitwise(tmp_path):
    folder = checkpoint.save(tmp_path / "deep" / "checkpoints", "step-3", snapshot(3))
    assert folder.name == "step-3"
    assert same(checkpoint.load(folder), snapshot(3))
    assert sorted(file.name for file in folder.iterdir()) == [
        "manifest.json",
        "optimizer.safetensors",
        "state.json",
        "weights.safetensors",
    ]


def flip_bit(file: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[byte] ^= 1 << bit
    file.write_bytes(bytes(content))


DAMAGE = {
    "truncated file": (lambda folder: truncate(folder / "weights.safetensors"), "weights.safetensors has .* bytes instead of"),
    "flipped bit in weights": (
        lambda folder: flip_bit(folder / "weights.safetensors", -3),
        "weights.safetensors does not match its checksum",
    ),
    "flipped bit in a header": (
        lambda folder: flip_bit(folder / "optimizer.safetensors", 20),
        "optimizer.safetensors does not match",
    ),
    "flipped bit in the state": (lambda folder: flip_bit(folder / "state.json", 5), "state.json does not match"),
    "missing weights": (lambda folder: (folder / "weights.safetensors").unlink(), "weights.safetensors is missing"),
    "missing state": (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
    "missing manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing or unreadable"),
    "cut manifest": (lambda folder: truncate(folder / "manifest.json"), "manifest.json is missing or unreadable"),
    "empty manifest": (lambda folder: (folder / "manifest.json").write_text(""), "manifest.json is missing or unreadable"),
    "manifest of another kind": (
        lambda folder: (folder / "manifest.json").write_text("[1]"),
        "manifest.json is missing or unreadable",
    ),
    "later format": (lambda folder: (folder / "manifest.json").write_text('{"format": 99, "files": {}}'), "format 99"),
    "an empty folder": (lambda folder: [file.unlink() for file in folder.iterdir()], "manifest.json is missing"),
}


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_damage_is_named_and_the_checkpoint_before_is_used(tmp_path, damage):
    break_it, message = DAMAGE[damage]
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, f"step-{step}", snapshot(step))
    break_it(tmp_path / "step-3")
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint.load(tmp_path / "step-3")
    assert "step-3" in str(caught.value)
    found = checkpoint.latest(tmp_path)
    assert found.folder.name == "step-2"
    assert same(found.snapshot, snapshot(2))
    assert len(found.problems) == 1
    assert "step-3" in found.problems[0]


def test_a_manifest_that_forgot_the_weights_is_damage(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, f"step-{step}", snapshot(step))
    manifest = tmp_path / "step-2" / "manifest.json"
    document = json.loads(manifest.read_text())
    del document["files"]["weights.safetensors"]
    manifest.write_text(json.dumps(document))
    found = checkpoint.latest(tmp_path)
    assert (found.folder.name, len(found.problems)) == ("step-1", 1)
    assert found.problems[0].endswith("manifest.json does not name weights.safetensors")


def test_a_flipped_bit_in_any_byte_of_the_manifest_is_refused_or_changes_nothing(tmp_path):
    """Anywhere in it: refused as damage, or (in white space) reads the same; it never crashes the search."""
    folder = checkpoint.save(tmp_path, "step-1", snapshot(1))
    manifest = folder / "manifest.json"
    original = manifest.read_bytes()
    refused = 0
    for byte in range(len(original)):
        content = bytearray(original)
        content[byte] ^= 1 << byte % 7
        manifest.write_bytes(bytes(content))
        try:
            checkpoint.verify(folder)
        except CheckpointError:
            refused += 1
        else:
            assert json.loads(content) == json.loads(original)
    assert refused > 0.85 * len(original)


def test_nothing_usable_says_what_was_wrong(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint.latest(tmp_path / "nowhere")
    for step in (1, 2):
        folder = checkpoint.save(tmp_path, f"step-{step}", snapshot(step))
        (folder / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)no usable checkpoint.*step-2.*step-1"):
        checkpoint.latest(tmp_path)


def test_a_stray_file_is_not_part_of_the_checkpoint(tmp_path):
    folder = checkpoint.save(tmp_path, "step-1", snapshot(1))
    shutil.copy(folder / "weights.safetensors", folder / "extra.safetensors")
    assert same(checkpoint.load(folder), snapshot(1))


class Failure(OSError):
    pass


def operations(monkeypatch, fail_at: int) -> list[str]:
    """Every file operation of `save` counts; number `fail_at` fails instead of happening."""
    done: list[str] = []

    def guard(name, original):
        def guarded(*args, **kwargs):
            done.append(name)
            if len(done) - 1 == fail_at:
                raise Failure(f"{name} failed")
            return original(*args, **kwargs)

        return guarded

    for name in ("mkdir", "open", "rename"):
        monkeypatch.setattr(Path, name, guard(name, getattr(Path, name)))
    monkeypatch.setattr(os, "fsync", guard("fsync", os.fsync))
    return done


def count_operations(tmp_path) -> list[str]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        done = operations(monkeypatch, -1)
        checkpoint.save(tmp_path / "count", "step-2", snapshot(2))
    return list(done)


def test_a_failure_at_any_file_operation_leaves_all_or_nothing(tmp_path):
    """Disk full, or a kill, at each single operation: step-2 is whole or not there, step-1 stays, and trying again works."""
    names = count_operations(tmp_path)
    assert {"mkdir", "open", "fsync", "rename"} == set(names)
    for fail_at in range(len(names)):
        root = tmp_path / f"case-{fail_at}"
        checkpoint.save(root, "step-1", snapshot(1))
        with pytest.MonkeyPatch.context() as monkeypatch:
            operations(monkeypatch, fail_at)
            with pytest.raises(Failure):
                checkpoint.save(root, "step-2", snapshot(2))
        visible = [folder.name for folder in checkpoint.list_checkpoints(root)]
        found = checkpoint.latest(root)
        assert found.problems == []
        # The only operation after the rename is the sync of the root: the checkpoint is whole by then.
        if fail_at > names.index("rename"):
            assert visible == ["step-1", "step-2"]
        else:
            assert visible == ["step-1"]
            assert same(found.snapshot, snapshot(1))
        checkpoint.save(root, "step-2", snapshot(2))
        assert same(checkpoint.latest(root).snapshot, snapshot(2))
        checkpoint.prune_checkpoints(root, keep=2)
        assert sorted(os.listdir(root)) == ["step-1", "step-2"]


def test_a_damaged_checkpoint_of_the_same_name_is_replaced_and_a_whole_one_kept(tmp_path):
    folder = checkpoint.save(tmp_path, "step-1", snapshot(1))
    written = (folder / "manifest.json").stat().st_mtime_ns
    checkpoint.save(tmp_path, "step-1", snapshot(1))
    assert (folder / "manifest.json").stat().st_mtime_ns == written
    flip_bit(folder / "weights.safetensors", -1)
    checkpoint.save(tmp_path, "step-1", snapshot(1))
    assert same(checkpoint.load(folder), snapshot(1))


def test_names_are_ordered_by_time(tmp_path):
    names = ["cold-2", "cold-10", "step-0", "step-2", "step-2.1", "step-2.10", "step-3", "step-10"]
    for name in reversed(names):
        (tmp_path / name).mkdir()
    for other in ("best.json", "step-x", ".step-9.tmp", "step-", "model"):
        (tmp_path / other).mkdir()
    assert [folder.name for folder in checkpoint.list_checkpoints(tmp_path)] == names


def test_prune_keeps_the_newest_and_the_named(tmp_path):
    for step in (1, 2, 3, 10):
        checkpoint.save(tmp_path, f"step-{step}", snapshot(step))
    (tmp_path / ".step-11.tmp").mkdir()
    (tmp_path / ".step-0.old").mkdir()
    checkpoint.prune_checkpoints(tmp_path, keep=2, always="step-1")
    assert sorted(os.listdir(tmp_path)) == ["step-1", "step-10", "step-3"]
    checkpoint.prune_checkpoints(tmp_path, keep=5)
    assert sorted(os.listdir(tmp_path)) == ["step-1", "step-10", "step-3"]
    assert same(checkpoint.latest(tmp_path).snapshot, snapshot(10))


PROMPTS = [
    Prompt(index=17 + place, content=f"q{place}", columns={"answer": "4"}, token_ids=(5, 6, 7 + place)) for place in range(2)
]


def find_prompt(index: int) -> Prompt:
    return {prompt.index: prompt for prompt in PROMPTS}[index]


def sample_rollouts() -> list[Rollout]:
    def completion(length: int, mask=None, end="stop") -> Completion:
        # Values as an engine gives them: float32 read back as Python floats.
        logprobs = torch.linspace(-0.1, -3.3, length).tolist()
        return Completion(tuple(range(3, 3 + length)), tuple(logprobs), end=end, text=f"text {length} é", sampled_mask=mask)

    good = Outcome({"math": 1.0, "format": None}, 1.0, True, "4", (), {"seen": "x"})
    bad = Outcome({"math": 0.1 + 0.2, "format": 0.5}, 0.1 + 0.2, False, None, ("math:timeout",), {})
    return [
        Rollout(PROMPTS[0], 0, 0, completion(4), good, 3),
        Rollout(PROMPTS[0], 0, 1, completion(1, end="length"), bad, 3),
        Rollout(PROMPTS[0], 0, 2, completion(3, mask=(True, False, True)), bad, 3),
        Rollout(PROMPTS[1], 1, 0, completion(2), good, 3),
        Rollout(PROMPTS[1], 1, 1, completion(2), UNSCORED, 3),
        Rollout(PROMPTS[1], 1, 2, completion(5), bad, 3),
    ]


def batch_of(rollouts, recipe, step):
    collected = Collected(rollouts, {"reward/mean": 0.65}, prompts_taken=2, tokens_sampled=17, verdicts={0: (1, 3), 7: (0, 2)})
    return collect_batch(collected, Models(tiny_policy(), None, NoCritic()), recipe, step, kl_coef=0.0)


def equal_examples(left: Example, right: Example) -> bool:
    for name, value in vars(left).items():
        other = getattr(right, name)
        if isinstance(value, torch.Tensor):
            if other is None or value.dtype != other.dtype or not torch.equal(value, other):
                return False
        elif value != other:
            return False
    return True


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_a_batch_survives_encoding(tmp_path, with_logprobs):
    """Unscored rollouts, masks with holes, truncated completions, awkward floats: everything comes back equal."""
    recipe = load_recipe(overrides=["group_size=3", "minibatches_per_step=2", "mask_truncated=true", "kl_coef=0"])
    batch = batch_of(sample_rollouts(), recipe, step=2)
    assert [example.rollout for example in batch.examples] == [0, 1, 2, 3, 5]
    if with_logprobs:
        examples = [
            replace(
                example,
                old_logprobs_T=torch.randn(len(example.completion_ids)),
                old_values_T=torch.randn(len(example.completion_ids)),
                returns_T=torch.randn(len(example.completion_ids)),
                ref_logprobs_T=torch.randn(len(example.completion_ids)),
            )
            for example in batch.examples
        ]
        batch = replace(batch, examples=join_examples(examples))
    tensors, document = encode_batch(batch)
    folder = checkpoint.save(tmp_path, "step-1.1", Snapshot({"batch": tensors}, {"batch": document}))
    loaded = checkpoint.load(folder)
    restored = decode_batch(dict(loaded.tensors["batch"]), loaded.document["batch"], find_prompt)
    assert restored.rollouts == batch.rollouts
    assert restored.advantages_N == batch.advantages_N
    assert restored.plan == batch.plan
    assert restored.metrics == batch.metrics
    assert (restored.prompts_taken, restored.verdicts) == (2, {0: (1, 3), 7: (0, 2)})
    assert len(restored.examples) == len(batch.examples)
    assert all(equal_examples(left, right) for left, right in zip(batch.examples, restored.examples, strict=True))


def test_a_batch_without_examples_survives_encoding(tmp_path):
    recipe = load_recipe(overrides=["group_size=3", "kl_coef=0"])
    rollouts = [replace(rollout, outcome=UNSCORED) for rollout in sample_rollouts()]
    batch = batch_of(rollouts, recipe, step=1)
    tensors, document = encode_batch(batch)
    loaded = checkpoint.load(checkpoint.save(tmp_path, "step-1.1", Snapshot({"batch": tensors}, {"batch": document})))
    restored = decode_batch(dict(loaded.tensors["batch"]), loaded.document["batch"], find_prompt)
    assert (restored.rollouts, list(restored.examples)) == (batch.rollouts, [])


def test_state_in_the_middle_of_a_step_comes_back(tmp_path):
    """Weights, moments, counters and the unfinished batch with the updates it still owes."""

    def fresh(seed: int) -> TrainState:
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 2)
        return TrainState(optimizer=Optimizer(MasterWeights(model, torch.float32), OptimizerConfig(learning_rate=0.1), 10))

    state = fresh(0)
    recipe = load_recipe(overrides=["group_size=3", "minibatches_per_step=2", "kl_coef=0"])
    state.step, state.cursor, state.best_step, state.best_score = 4, 8, 3, [0.1 + 0.2, 0.5]
    state.begin_batch(batch_of(sample_rollouts(), recipe, step=5))
    for master in state.optimizer.weights.masters.values():
        master.grad = torch.ones_like(master)
    state.optimizer.clip_and_step()
    state.update_metrics.append({"loss/total": 0.25})
    assert state.checkpoint_name == "step-4.1"
    checkpoint.save(tmp_path, state.checkpoint_name, state.make_snapshot())

    other = fresh(1)
    other.restore(checkpoint.latest(tmp_path).snapshot, find_prompt)
    assert (other.step, other.cursor, other.best_step, other.best_score, other.update_metrics) == (
        4,
        8,
        3,
        [0.1 + 0.2, 0.5],
        [{"loss/total": 0.25}],
    )
    assert other.policy_version == 1
    owed = list(other.remaining_minibatches())
    assert [len(examples) for examples in owed] == [len(examples) for examples in state.remaining_minibatches()]
    assert len(owed) == 1
    for left, right in (
        (other.optimizer.weights.tensors(), state.optimizer.weights.tensors()),
        (other.optimizer.state()[0], state.optimizer.state()[0]),
    ):
        assert all(torch.equal(left[name], right[name]) for name in right)
