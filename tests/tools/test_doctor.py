"""`cohort doctor`: the demo passes, and each kind of broken recipe is reported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from session_tools import fork_server, write_recipe


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with fork_server(tmp_path_factory.mktemp("doctor")) as server:
        yield server


def examine(server: Any, *words: object) -> tuple[int, str]:
    child = server.run("doctor", *words)
    return child.wait(), child.output


def level(printed: str, name: str) -> str:
    """ok, warning or FAILURE of the check called `name`."""
    return next(
        line.split()[0] for line in printed.splitlines() if line.split(None, 1)[1:] and line.split(None, 1)[1].startswith(name)
    )


def test_the_demo_is_in_order(server):
    code, printed = examine(server)
    assert code == 0, printed
    for name in (
        "answers",
        "shuffled answers",
        "sampling",
        "lengths",
        "memory",
        "truncation",
        "success",
        "diversity",
        "example",
        "step 1",
    ):
        assert level(printed, name) == "ok", name
    assert "64 of 64 reference answers score as success" in printed
    assert "0 of 64 answers of other rows score as success" in printed
    assert "Ready to train" in printed
    assert not Path(server.folder / "runs").exists()  # the temporary folder is removed


def broken(server: Any, **overrides: Any) -> tuple[int, str]:
    defaults = {"cold_start.num_steps": 0}
    return examine(server, write_recipe(server.folder / "broken.toml", **defaults | overrides))


def test_a_reward_that_no_reference_answer_satisfies(server):
    code, printed = broken(server, rewards=[{"function": "session_tools:always_wrong"}])
    assert level(printed, "answers") == "FAILURE"
    assert "0 of 64 reference answers score as success" in printed
    assert code == 1


def test_a_reward_that_every_answer_satisfies(server):
    _, printed = broken(server, rewards=[{"function": "session_tools:always_right"}])
    assert level(printed, "answers") == "ok"
    assert level(printed, "shuffled answers") == "warning"
    assert "64 of 64 answers of other rows score as success" in printed
    assert level(printed, "success") == "warning"
    assert "Too easy" in printed


def test_a_monitor_that_cannot_run(server):
    """The doctor checks every monitor that the recipe names, and starts none."""
    (server.folder / "my_monitors.py").write_text(
        "class Pager:\n"
        "    missing = staticmethod(lambda: 'the pager is missing. Fetch it')\n"
        "    on_finish = print\n"
        "class Bell:\n"
        "    def __init__(self):\n"
        "        raise SystemExit('rung by the doctor')\n"
    )
    also = ["my_monitors:Pager", "tensorbord", "my_monitors:Bell"]
    code, printed = broken(server, **{"monitors.also": also})
    assert level(printed, "monitors") == "FAILURE"
    assert "monitors.also names my_monitors:Pager, but the pager is missing. Fetch it, or remove it" in printed
    assert "unknown monitor 'tensorbord'; did you mean 'tensorboard'?" in printed
    assert "rung" not in printed
    assert code == 1


def test_prompts_that_are_too_long_are_counted(server):
    _, printed = broken(server, **{"prompts.args": {"digits": 2}, "prompts.max_prompt_tokens": 5})
    assert "max_prompt_tokens" in printed


def test_positions_that_the_model_does_not_have(server):
    code, printed = broken(server, **{"sampling.max_completion_tokens": 40})
    assert code == 1
    assert level(printed, "lengths") == "FAILURE"
    assert "the model has 32. Lower sampling.max_completion_tokens" in printed
    assert "Traceback" not in printed


def test_a_model_that_solves_nothing_gets_advice(server):
    _, printed = broken(server)
    assert level(printed, "success") == "warning"
    assert "try easier prompts or a cold start" in printed


def test_a_reward_that_raises_on_reference_answers(server):
    """The failure is one of the checks; the others are printed too."""
    code, printed = broken(server, rewards=[{"function": "session_tools:always_broken"}])
    assert code == 1
    assert level(printed, "answers") == "FAILURE"
    assert "the verifier lost its dictionary" in printed
    assert level(printed, "memory") == "ok"
    assert "1 check failed" in printed


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_memory_is_predicted_for_every_power_of_two_up_to_the_ranks(server):
    """Every rank holds all weights and samples fewer prompts, so none needs more than a single process."""
    _, printed = broken(server)
    assert "memory by ranks" not in printed
    recipe = write_recipe(server.folder / "scaled.toml", **{"cold_start.num_steps": 0})
    _, printed = examine(server, recipe, "--ranks", 6)
    (line,) = [line for line in printed.splitlines() if "memory by ranks" in line]
    found = re.findall(r"([0-9.]+) GiB on ([0-9]+)", line)
    assert [int(ranks) for _, ranks in found] == [1, 2, 4, 6]
    peaks = [float(peak) for peak, _ in found]
    assert all(0 < peak <= peaks[0] for peak in peaks)
    assert "on each of 6 ranks" in printed


@pytest.mark.parametrize(("shard", "words"), [("none", ["--ranks", 2]), ("full", [])])
def test_ranks_that_cannot_sample_ahead_are_reported_by_a_single_process(server, shard, words):
    """With one rank the same recipe passes."""
    changes = {"cold_start.num_steps": 0, "ahead.lag": 1, "parallel.shard": shard}
    code, printed = examine(server, write_recipe(server.folder / f"ahead-{shard}.toml", **changes), *words)
    assert code == 1
    assert level(printed, "ahead") == "FAILURE"
    assert "sampling ahead needs servers" in printed


def test_a_single_process_checks_a_sharded_recipe_with_the_whole_model(server):
    """A single process cannot shard, but the predicted memory is that of sharded ranks."""
    recipe = write_recipe(server.folder / "shared.toml", **{"cold_start.num_steps": 0, "parallel.shard": "full"})
    _, printed = examine(server, recipe, "--ranks", 2)
    assert level(printed, "ranks") == "warning"
    assert 'parallel.shard = "full" needs ranks started by torchrun' in printed
    assert level(printed, "step 1") == "ok"
    assert "on each of 2 ranks" in printed
