"""`cohort doctor` on two ranks: they look together, one speaks, and a rank that was started otherwise is named."""

from __future__ import annotations

import pytest
from ranks_tools import run_ranks, start_ranks

from session_tools import fork_server, write_recipe


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with fork_server(tmp_path_factory.mktemp("look_together")) as server:
        yield server


def make_recipe(server):
    return write_recipe(server.folder / "recipe.toml", **{"cold_start.num_steps": 0, "evaluation.samples": 0})


@pytest.mark.prove
def test_two_ranks_look_together_and_one_speaks(server):
    first, second = (child.output for child in run_ranks(server, 2, "doctor", make_recipe(server)).ranks)
    assert "2 ranks with the same recipe, code and data: ranks 0, 1 on " in first
    assert "GB/s, message latency " in first
    assert "on each of 2 ranks" in first
    assert first.count("step 1") == 1
    assert "ok" not in second
    assert not (server.folder / "runs").exists()  # a look leaves nothing behind


@pytest.mark.prove
def test_a_rank_that_was_started_otherwise_is_named(server):
    launch = start_ranks(server, 2, "doctor", make_recipe(server), own={1: ["seed=3", "train.group_size=2"]})
    assert launch.wait() == [1, 1]
    assert "FAILURE ranks" in launch.ranks[0].output
    assert "seed is 0 on rank 0 and 3 on rank 1" in launch.ranks[0].output
    assert "train.group_size is 4 on rank 0 and 2 on rank 1" in launch.ranks[0].output
