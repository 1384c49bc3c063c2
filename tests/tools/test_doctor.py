"""`cohort doctor`: everything in order on the demo, and each kind of broken recipe said in words."""

from __future__ import annotations

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
