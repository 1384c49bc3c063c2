"""A whole run on stub servers: sampling, weights, records, and resuming."""

from __future__ import annotations

import json

import pytest
from stub import GENERATE, run_stubs

from cohort.errors import EngineError
from cohort.observe.metrics import find_metric
from cohort.recipe.file import build_recipe, load_recipe
from cohort.recipe.values import Materials
from cohort.session import resume, start
from cohort.tools.evaluate import run_evaluation
from cohort.training import build
from session_tools import TINY, tree


def make_recipe(tmp_path, stubs, **changes):
    words = {
        "runs_folder": str(tmp_path),
        "sampling.servers": [stub.url for stub in stubs],
        "vllm.wait_s": 0,
        "vllm.limit_s": 5,
        "cold_start.until_success": 0.99,
        "cold_start.check_every": 12,
        "train.num_steps": 2,
    }
    return build_recipe(tree(**words, **changes))


@pytest.fixture
def start_policy(tmp_path):
    recipe = load_recipe(None, values=TINY)
    return build.load_policy(recipe, build.load_data(recipe, Materials()))


def test_a_run_learns_on_servers_and_goes_on_when_they_are_back(tmp_path, start_policy):
    with run_stubs(start_policy.model, 2) as stubs:
        recipe = make_recipe(tmp_path, stubs, name="whole")
        result = start(recipe)
        assert result.status == "finished"
        rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2]
        for row in rows:
            assert row["rollout/mismatch_max"] < 1e-5
            assert row["loss/mismatch_weight"] == pytest.approx(1.0, abs=1e-3)
            assert row["servers/ready"] == 2
            assert all(find_metric(name) for name in row if "/" in name)
            assert {"servers/1/tokens_per_second", "servers/2/tokens_per_second", "servers/push_seconds"} <= {*row}
        assert 'mismatch_weight = "auto"' in (result.folder / "recipe.toml").read_text()
        run_evaluation([str(result.folder)], "", "", ["evaluation.max_problems=2"], tmp_path / "out.json")
        assert json.loads((tmp_path / "out.json").read_text())

        stopped = make_recipe(tmp_path, stubs, name="stopped")
        asked = [0]

        def lose_all(body):
            asked[0] += 1
            if asked[0] == 24 + 64 + 8 + 24 + 3:  # some way into step 2
                for stub in stubs:
                    stub.faults["/weight_info"] = stub.faults[GENERATE] = fail

        def fail(body):
            raise RuntimeError("gone")

        for stub in stubs:
            stub.faults[GENERATE] = lose_all
        with pytest.raises(EngineError, match=r"no server is left.*cohort resume"):
            start(stopped)
        for stub in stubs:
            stub.faults.clear()
        again = resume(tmp_path / "stopped")
        assert again.status == "finished"
        assert (tmp_path / "stopped" / "model" / "model.safetensors").read_bytes() == (
            result.folder / "model" / "model.safetensors"
        ).read_bytes()
