"""Two real ranks, one of which is slow on purpose: the seconds of each, and that it is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_tools import run_ranks

from session_tools import fork_server, rows_of, summary_of, write_recipe

REWARD = """
import os, time

def digits(completions, **_):
    if os.environ.get("RANK") == "1":
        time.sleep(0.5)
    return [sum(letter.isdigit() for letter in text) / max(1, len(text)) for text in completions]
"""


@pytest.mark.prove
def test_a_rank_that_the_others_wait_for_is_seen_and_named(tmp_path: Path) -> None:
    (tmp_path / "slow_rank.py").write_text(REWARD, encoding="utf-8")
    recipe = write_recipe(
        tmp_path / "recipe.toml",
        **{
            "rewards": [{"function": "slow_rank:digits"}],
            "train.num_steps": 3,
            "train.micro_batch_tokens": 48,
            "cold_start.num_steps": 1,
            "evaluation.samples": 0,
            "monitors.console": True,
        },
    )
    with fork_server(tmp_path) as server:
        launch = run_ranks(server, 2, "train", recipe, f"runs_folder={tmp_path}", "name=run")
    run = tmp_path / "run"
    rows, lines = rows_of(run), rows_of(run, "ranks.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for row, line in zip(rows, lines, strict=True):
        main, slow = line["ranks"]
        for stage, seconds in main["seconds"].items():
            assert seconds == pytest.approx(row[f"time/{stage}"], abs=1e-6)
        assert sum(main["seconds"].values()) == pytest.approx(row["time/step"], abs=1e-4)
        for one in (main, slow):
            assert one["waited"].keys() <= one["seconds"].keys() == main["seconds"].keys()
            assert all(waited <= one["seconds"][stage] + 1e-6 for stage, waited in one["waited"].items())
        assert sum(one["tokens"]["rollout"] for one in (main, slow)) == row["rollout/tokens"]
        assert sum(one["tokens"]["update"] for one in (main, slow)) >= row["loss/trained_tokens"]
        assert slow["seconds"]["reward"] - slow["waited"].get("reward", 0.0) >= 0.5
        whole, waited = (sum(sum(one[what].values()) for one in (main, slow)) for what in ("seconds", "waited"))
        assert row["ranks/wait_share"] == pytest.approx(waited / whole, abs=1e-4)
        assert row["ranks/tokens_per_second"] == pytest.approx(row["perf/tokens_per_second"] / 2)
        assert row["ranks/count"] == 2
    said = "rank 1 is the slowest"
    why = "mostly in rewards: its reward functions take longer"
    report = (run / "report.html").read_text(encoding="utf-8")
    for text in (launch.ranks[0].output, report):
        assert said in text
        assert why in text
    assert summary_of(run)["saving"]["count"] == 3  # after the cold start, step 2 and the end
    assert summary_of(run)["ranks"] == 2
