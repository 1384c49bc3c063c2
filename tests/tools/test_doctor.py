"""`cohort doctor`: everything in order on the demo, and each kind of broken recipe said in words."""

from __future__ import annotations

import json
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
        "golds",
        "shuffled golds",
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
    assert "64 of 64 gold answers score as success" in printed
    assert "0 of 64 answers of other rows score as success" in printed
    assert "ready to train" in printed
    assert not Path(server.folder / "runs").exists()  # a look leaves nothing behind


def broken(server: Any, **overrides: Any) -> tuple[int, str]:
    defaults = {"cold_start.num_steps": 0}
    return examine(server, write_recipe(server.folder / "broken.toml", **defaults | overrides))


def test_a_reward_that_no_gold_satisfies(server):
    code, printed = broken(server, rewards=[{"function": "session_tools:always_wrong"}])
    assert level(printed, "golds") == "FAILURE"
    assert "0 of 64 gold answers score as success" in printed
    assert code == 1


def test_a_reward_that_every_answer_satisfies(server):
    _, printed = broken(server, rewards=[{"function": "session_tools:always_right"}])
    assert level(printed, "golds") == "ok"
    assert level(printed, "shuffled golds") == "warning"
    assert "64 of 64 answers of other rows score as success" in printed
    assert level(printed, "success") == "warning"
    assert "Too easy" in printed


def test_a_monitor_that_cannot_watch(server):
    """Whatever monitors there are: the doctor asks each that the recipe names, and starts none."""
    (server.folder / "my_monitors.py").write_text(
        "class Pager:\n"
        "    missing = staticmethod(lambda: 'the pager lies at home. Fetch it')\n"
        "    on_finish = print\n"
        "class Bell:\n"
        "    def __init__(self):\n"
        "        raise SystemExit('rung by the doctor')\n"
    )
    also = ["my_monitors:Pager", "tensorbord", "my_monitors:Bell"]
    code, printed = broken(server, **{"monitors.also": also})
    assert level(printed, "monitors") == "FAILURE"
    assert "monitors.also names my_monitors:Pager, but the pager lies at home. Fetch it, or take it out" in printed
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


def test_a_model_that_solves_nothing_is_told_what_to_try(server):
    _, printed = broken(server)
    assert level(printed, "success") == "warning"
    assert "try easier prompts, a cold start" in printed


def test_a_reward_that_raises_on_golds(server):
    """The failure stands among the other checks, which are printed all the same."""
    code, printed = broken(server, rewards=[{"function": "session_tools:always_broken"}])
    assert code == 1
    assert level(printed, "golds") == "FAILURE"
    assert "the verifier lost its dictionary" in printed
    assert level(printed, "memory") == "ok"
    assert "1 checks failed" in printed


# -- ranks -------------------------------------------------------------------------------------------------------------


def table(printed: str) -> list[list[str]]:
    """The cells of the prediction, a list for each number of ranks."""
    lines = printed[printed.index("most goes into") :].splitlines()[1:]
    return [line.split() for line in lines if line[:1].isdigit()]


def test_ranks_are_predicted_from_the_steps_of_a_run(server):
    """Only what is shared out gets less: 12 s of updates in 4 micro-batches, 1 s of the optimizer that every rank takes."""
    run = server.folder / "runs" / "measured"
    run.mkdir(parents=True)
    one_update = {"train.minibatches_per_step": 1, "train.passes_per_step": 1}
    write_recipe(run / "recipe.toml", **{"cold_start.num_steps": 0} | one_update)
    row = {"time/update": 12.0, "time/optimizer": 1.0, "time/step": 13.0, "rollout/tokens": 1300, "perf/micro_batches": 4}
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": step, **row}) + "\n" for step in (1, 2, 3)))
    _, printed = examine(server, run, "--ranks", 6)
    cells = table(printed)
    assert [line[0] for line in cells] == ["1", "2", "4", "6"]
    assert [line[1] for line in cells] == ["update"] * 4
    seconds = [float(next(cell for cell in line[1:] if cell[0].isdigit())) for line in cells]
    assert seconds == pytest.approx([13, 7, 4, 4], rel=0.01)
    assert "the median step of 3 that the run has measured" in printed
    assert "on each of 6 ranks" in printed
    assert "not measured" in printed


def test_nothing_measured_and_no_known_device_predict_memory_alone(server):
    _, printed = broken(server)
    assert "most goes into" not in printed
    recipe = write_recipe(server.folder / "scaled.toml", **{"cold_start.num_steps": 0})
    _, printed = examine(server, recipe, "--ranks", 4)
    assert [line[0] for line in table(printed)] == ["1", "2", "4"]
    assert all(len(line) == 2 for line in table(printed))  # the ranks, and the memory of each
    assert "Seconds are not predicted" in printed
    assert "cohort doctor RUN_FOLDER --ranks N" in printed


@pytest.mark.parametrize(("shard", "words"), [("none", ["--ranks", 2]), ("full", [])])
def test_what_several_ranks_cannot_sample_ahead_is_said_before_they_are_started(server, shard, words):
    """Alone the same recipe would be in order."""
    changes = {"cold_start.num_steps": 0, "ahead.lag": 1, "parallel.shard": shard}
    code, printed = examine(server, write_recipe(server.folder / f"ahead-{shard}.toml", **changes), *words)
    assert code == 1
    assert level(printed, "ahead") == "FAILURE"
    assert "what is sampled ahead comes from servers" in printed


def test_a_run_that_sampled_ahead_predicts_no_ranks(server):
    run = server.folder / "runs" / "sampled-ahead"
    run.mkdir(parents=True)
    write_recipe(run / "recipe.toml", **{"cold_start.num_steps": 0, "ahead.lag": 1})
    row = {"step": 1, "time/update": 12.0, "time/step": 13.0, "rollout/tokens": 1300, "ahead/staleness_max": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    code, printed = examine(server, run, "--ranks", 2)
    assert code == 1
    assert "it sampled ahead, beside training" in printed


def test_what_ranks_would_share_out_is_looked_at_whole(server):
    """Alone there is nobody to share with; the memory that is predicted is that of shares all the same."""
    recipe = write_recipe(server.folder / "shared.toml", **{"cold_start.num_steps": 0, "parallel.shard": "full"})
    _, printed = examine(server, recipe, "--ranks", 2)
    assert level(printed, "ranks") == "warning"
    assert 'parallel.shard = "full" is for ranks that torchrun starts' in printed
    assert level(printed, "step 1") == "ok"
    assert "on each of 2 ranks" in printed
