"""Models sharded with FSDP2 by real processes: the same bits on one, two and three ranks as in one process without sharding."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.errors import CheckpointError
from cohort.training import checkpoint

SCRIPT = Path(__file__).with_name("sharding_ranks.py")
KINDS = ("untied", "tied", "lora")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results that rank 0 of three processes wrote."""
    out = tmp_path_factory.mktemp("sharding") / "found.pt"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    run = subprocess.run([sys.executable, str(SCRIPT), str(out)], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    return torch.load(out, weights_only=False) | {"checkpoints": out.parent / "checkpoints"}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("what", ["gradients", "weights", "moments"])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_model_trains_with_the_bits_of_one_process(found, kind, size, what):
    """Two of the ranks checkpoint their layers; one of two, or of three, takes a turn without work."""
    assert same(found[f"{kind} {size}"][what], found[f"{kind} plain"][what])


@pytest.mark.parametrize("size", [2, 3])
def test_fast_sums_are_near(found, size):
    plain, fast = found["untied plain"]["gradients"], found[f"fast {size}"]["gradients"]
    assert plain.keys() == fast.keys()
    assert max(float((fast[name] - plain[name]).norm() / plain[name].norm()) for name in plain) <= 2e-6


def test_the_norm_is_that_of_the_whole_gradient_on_every_rank(found):
    gradients = found["untied plain"]["gradients"].values()
    norm = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt()
    for size in (1, 2, 3):
        assert found[f"untied {size}"]["norms"][0] == pytest.approx(float(norm), rel=1e-15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_reference_engine_and_trainer_read_the_same_weights(found, kind, size):
    """The reference is another policy until it becomes this one; the model gathered for an engine computes the same as the trained one."""
    assert found[f"{kind} {size}"]["reference"] == [False, True]
    assert found[f"{kind} {size}"]["whole"]


def test_each_rank_holds_a_slice_and_the_head_is_read_in_chunks(found):
    whole = max(value.numel() for value in found["untied plain"]["weights"].values())
    assert [found[f"untied {size}"]["largest_slice"] for size in (1, 2)] == [whole, whole // 2]
    assert found["untied 3"]["largest_slice"] <= whole // 3 + 48  # rows are not cut
    assert set(found["tied 3"]["why_not_linear"]) == {None}


def test_a_checkpoint_of_two_ranks_loads_on_three_and_without_sharding(found):
    from cohort.model.optim import Adam32, MasterWeights
    from cohort.recipe.schema import OptimizerConfig
    from model.sharding_ranks import make_policy

    for what in ("weights", "moments"):
        assert same(found["loaded 3"][what], found["untied 2"][what])
    weights = MasterWeights(make_policy("untied").model, torch.float32)
    weights.load(found["untied 2"]["weights"])
    assert same(weights.tensors(), found["untied plain"]["weights"])
    adam = Adam32(weights.masters, OptimizerConfig())
    for name in weights.masters:
        of_this = {
            key.rpartition("|")[2]: value for key, value in found["untied 2"]["moments"].items() if key.startswith(f"{name}|")
        }
        adam.load(name, of_this)
    assert same(adam.state(), found["untied plain"]["moments"])


@pytest.mark.parametrize("size", [2, 3])
def test_a_critic_is_sharded_too(found, size):
    assert torch.equal(found[f"critic {size}"]["values"], found["critic plain"]["values"])
    assert same(found[f"critic {size}"]["gradients"], found["critic plain"]["gradients"])


@pytest.mark.parametrize("size", [2, 3])
def test_minibatches_without_work_block_no_rank(found, size):
    assert found[f"masked {size}"]


def test_slices_that_two_ranks_wrote_are_one_checkpoint_for_three_and_for_one_process(found):
    from cohort.model.optim import MasterWeights, Optimizer
    from cohort.recipe.schema import OptimizerConfig
    from model.sharding_ranks import make_policy

    root = found["checkpoints"]
    assert [folder.name for folder in root.iterdir()] == ["step-1"], "of step-2, which a rank could not write, nothing is left"
    assert "No space left on device" in found["refused"]
    names = {file.name for file in (root / "step-1").iterdir()}
    assert names == {
        *("weights.0-of-2.safetensors", "weights.1-of-2.safetensors", "optimizer.0-of-2.safetensors"),
        *("optimizer.1-of-2.safetensors", "optimizer.safetensors", "state.json", "manifest.json"),
    }
    snapshot = checkpoint.latest(root).snapshot
    weights = MasterWeights(make_policy("untied").model, torch.float32)
    optimizer = Optimizer(weights, OptimizerConfig(), 10)
    weights.load(snapshot.tensors["weights"])
    optimizer.load_state(snapshot.tensors["optimizer"], snapshot.document)
    assert same(weights.tensors(), found["slices 3"]["weights"])
    assert same(optimizer.state()[0], found["slices 3"]["moments"])
    assert optimizer.updates == found["slices 3"]["updates"] == 1


def test_a_damaged_slice_is_named(found, tmp_path):
    shutil.copytree(found["checkpoints"], tmp_path / "checkpoints")
    file = tmp_path / "checkpoints" / "step-1" / "weights.1-of-2.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weights\.1-of-2\.safetensors does not match its checksum"):
        checkpoint.load(tmp_path / "checkpoints" / "step-1")
