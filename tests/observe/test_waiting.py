"""Who waits for whom among ranks: made-up seconds, worked out by hand, and what report and console make of them."""

import json

import pytest
from rich.console import Console
from test_report import EVIL, Page, make_run

from cohort.base.stopwatch import Laps
from cohort.observe.metrics import find_metric
from cohort.observe.monitors.console import ConsoleMonitor
from cohort.observe.monitors.jsonl import JsonlMonitor
from cohort.observe.ranks import add_up_ranks, describe_ranks, find_slowest, make_rank_metrics, make_record
from cohort.observe.report.page import write_report

ROW = {"rollout/tokens": 600, "time/step": 4.0}


def record(rank, seconds, waited=None, rollout=100, update=200, host="a"):
    return make_record(rank, host, Laps(seconds, waited or {}, {"rollout": rollout, "update": update}), 0.5 + rank)


def lines(*records, steps=3):
    return [{"step": step, "ranks": list(records)} for step in range(1, steps + 1)]


SLOW_REWARD = (
    record(0, {"rollout": 1.0, "reward": 2.0, "update": 1.0}, {"reward": 1.5}),
    record(1, {"rollout": 1.0, "reward": 2.0, "update": 1.0}, {"rollout": 0.25}),
    record(2, {"rollout": 1.0, "reward": 2.0, "update": 1.0}, {"reward": 1.75}),
)
UNEVEN = (
    record(0, {"rollout": 1.0, "update": 3.0}, {"update": 1.0}, update=200),
    record(1, {"rollout": 1.0, "update": 3.0}, update=300),
)
IDLE = (record(0, {"rollout": 1.0, "update": 1.0}, update=120), record(1, {"rollout": 1.0}, update=0))
MAIN = (record(0, {"update": 1.0, "checkpoint": 3.0}), record(1, {"update": 1.0, "checkpoint": 3.0}, {"checkpoint": 3.0}))
SLOW_HOST = (
    record(0, {"rollout": 3.0, "update": 1.0}, {"rollout": 2.0}),
    record(1, {"rollout": 3.0, "update": 1.0}, {"rollout": 0.1}, host="b"),
    record(2, {"rollout": 3.0, "update": 1.0}, host="b"),
    record(3, {"rollout": 3.0, "update": 1.0}, {"rollout": 2.1}),
)
SLOW_DEVICE = (record(0, {"rollout": 2.0}, {"rollout": 1.0}), record(1, {"rollout": 2.0}))
BOTH = (record(0, {"reward": 2.0}, rollout=120), record(1, {"reward": 2.0}, {"reward": 1.9}))
EVEN = (record(0, {"rollout": 2.0}, {"rollout": 0.02}), record(1, {"rollout": 2.0}, {"rollout": 0.04}))


def test_the_numbers_of_a_row_by_hand():
    found = make_rank_metrics(SLOW_REWARD, ROW)
    # Work: 2.5, 3.75 and 2.25 s of 4 s each; the others of rank 1 work 2.375 s on average, in rewards 0.375 s against its 2 s.
    assert found == pytest.approx(
        {
            "ranks/count": 3,
            "ranks/wait_share": 3.5 / 12,
            "ranks/slowest": 1,
            "ranks/behind": 1.375,
            "ranks/behind/reward": 1.625,
            "ranks/explained_by_tokens": 0.0,
            "ranks/tokens_per_second": 50.0,
        }
    )
    # Half as many tokens more, and rank 0 takes 2 s in that stage: 1 s longer, as it is; were rank 1 2 s behind, they would explain half.
    assert make_rank_metrics(UNEVEN, ROW)["ranks/explained_by_tokens"] == 1.0
    further = (UNEVEN[0], record(1, {"rollout": 1.0, "update": 4.0}, update=300))
    assert make_rank_metrics(further, ROW)["ranks/explained_by_tokens"] == 0.5
    assert "ranks/explained_by_tokens" not in make_rank_metrics(MAIN, ROW)  # nobody deals out tokens to save
    nothing_sampled = make_rank_metrics(UNEVEN, {"loss/trained_tokens": 80, "time/step": 4.0})
    assert nothing_sampled["ranks/tokens_per_second"] == 10.0
    assert all(find_metric(name) and find_metric(name).area == "ranks" for name in found)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (SLOW_REWARD, "3 ranks waited for each other in 29 % of their time; rank 1 is the slowest, by 1.38 s per step, mostly in rewards: its reward functions are slower"),
        (UNEVEN, "rank 1 is the slowest, by 1.00 s per step, mostly in forward and backward passes: it has more tokens to process"),
        (IDLE, "rank 0 is the slowest, by 1.00 s per step, mostly in forward and backward passes: it has more tokens to process"),
        (MAIN, "rank 0 is the slowest, by 3.00 s per step, mostly in checkpoints: it is the main rank, which writes to the run folder"),
        (SLOW_HOST, "rank 2 is the slowest, by 1.40 s per step, mostly in sampling completions: its device or host is slower"),
        (BOTH, "mostly in rewards: its reward functions are slower"),
        (SLOW_DEVICE, "mostly in sampling completions: its device or host is slower"),
        (EVEN, "2 ranks waited for each other in 1.5 % of their time; none is far behind the others"),
    ],
    ids=["reward", "tokens", "all tokens", "main", "host", "more tokens and slow rewards", "device", "even"],
)  # fmt: skip
def test_the_slowest_rank_is_named_with_its_reason(records, words):
    assert words in describe_ranks(lines(*records))


def test_steps_of_another_number_of_ranks_and_the_first_step_are_left_out():
    before, first = lines(*SLOW_REWARD), lines(record(0, {"rollout": 90.0}), record(1, {"rollout": 1.0}), steps=1)
    assert describe_ranks([*before, *first, *lines(*SLOW_DEVICE)]) == describe_ranks(lines(*SLOW_DEVICE, steps=4))
    assert describe_ranks([*lines(*SLOW_DEVICE), {"step": 4, "ranks": [record(0, {"rollout": 1.0})]}]) == ""


@pytest.mark.parametrize(
    "torn",
    [
        {},
        {"ranks": 3},
        {"ranks": [4]},
        {"ranks": [{"rank": "x"}]},
        {"ranks": [{"rank": 0, "host": 1, "seconds": [], "waited": 1}]},
    ],
)
def test_lines_of_another_form_say_nothing_and_break_nothing(torn):
    assert add_up_ranks([torn, torn]) == []
    assert describe_ranks([torn, torn]) == ""


def test_what_is_no_time_counts_as_none():
    odd = json.loads(json.dumps(SLOW_DEVICE))
    odd[0]["seconds"] |= {"update": float("nan"), "old": "3", "reward": -1.0, "nowhere": 5.0}
    assert add_up_ranks(lines(*odd)) == add_up_ranks(lines(*SLOW_DEVICE))
    assert find_slowest(add_up_ranks(lines(record(0, {}), record(1, {})))) is None


# -- who shows it ------------------------------------------------------------------------------------------------------


def add_ranks(folder, written):
    (folder / "ranks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written), encoding="utf-8")
    return folder


def test_a_report_draws_the_ranks_and_names_the_slowest(tmp_path):
    folder = add_ranks(make_run(tmp_path / "run", steps=4), lines(*SLOW_REWARD[:2], record(2, {"rollout": 1.0}, host=EVIL)))
    page = write_report(folder).read_text()
    shown = Page(page)
    assert EVIL not in page
    assert "rank 1 is the slowest, by 2.00 s per step, mostly in rewards" in shown.text
    assert "1 a 3.75 s waits 6.2 % 100 200 1.50" in shown.text  # work a step, its share of waiting, tokens, memory
    assert "Main rank, including its waiting for other ranks." in shown.text
    assert "could not be written" not in shown.text


def test_of_many_ranks_those_with_the_most_work_are_shown(tmp_path):
    many = [record(rank, {"update": 40.0}, {"update": float(rank)}) for rank in range(40)]
    shown = Page(write_report(add_ranks(make_run(tmp_path / "run", steps=4), lines(*many))).read_text())
    assert "Shown: the 15 of 40 ranks with the most work, and the one with the least." in shown.text
    assert "14 26.00 s waits 35 %" in shown.text
    assert "15 25.00 s" not in shown.text
    assert "39 1.00 s waits 98 %" in shown.text


def test_a_run_of_one_process_has_no_word_of_ranks(tmp_path):
    shown = Page(write_report(make_run(tmp_path / "run", steps=4)).read_text())
    assert "Ranks" not in shown.text
    assert "main rank" not in shown.text


def test_the_console_says_it_in_its_last_lines(tmp_path, capsys):
    add_ranks(tmp_path, lines(*MAIN))
    monitor = ConsoleMonitor(tmp_path, {}, console=Console(width=400))
    monitor.on_finish({"status": "finished", "steps": 3})
    said = " ".join(capsys.readouterr().out.split())
    assert "ranks 2 ranks waited for each other in 38 % of their time; rank 0 is the slowest, by 3.00 s per step" in said


def test_the_file_has_a_line_a_step_and_loses_those_that_come_again(tmp_path):
    monitor = JsonlMonitor(tmp_path)
    for step in (1, 2, 3):
        monitor.on_ranks(step, EVEN)
    monitor.truncate_after(2)
    read = [json.loads(line) for line in (tmp_path / "ranks.jsonl").read_text().splitlines()]
    assert read == lines(*EVEN, steps=2)
