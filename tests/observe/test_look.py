"""Completions for the eye: what rollouts/ keeps of a row, how a group is shown, and `cohort look`."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len
from rich.console import Console

import cohort
from cohort.errors import RunError
from cohort.observe.monitors.console import ConsoleMonitor
from cohort.observe.rollouts import MAX_CELL, list_kept_steps, list_rows, read_rollouts
from cohort.observe.run_folder import RunFolder
from cohort.observe.terminal import find_telling_group, pick_best_and_worst, print_group, shorten_lines
from cohort.recipe.file import load_recipe
from cohort.tools.look import run_look
from cohort.types import Completion, Outcome, Prompt, Rollout
from session_tools import tree

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e a\x00b \x7f end"


def rollout(group, sample, text, reward, *, prompt=None, columns=None, extracted=None, answer_column="answer", **parts):
    columns = {"answer": "46"} if columns is None else columns
    prompt = prompt or Prompt(group, "12+34=", columns, (1, 2), answer_column)
    outcome = Outcome(parts or {"right": reward}, reward, None if reward is None else reward >= 1, extracted)
    return Rollout(prompt, group, sample, Completion((1, 2), (0.0, -1.0), "stop", text), outcome, 0)


GROUPS = [
    rollout(0, 0, "flat", 0.0),
    rollout(0, 1, "also flat", 0.0),
    rollout(1, 0, "none", None),
    rollout(1, 1, "so 46", 1.0, extracted="46"),
    rollout(1, 2, "so 47", 0.0, extracted="47"),
]


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder.create(load_recipe(values={"runs_folder": str(tmp_path), "name": "run"}))
    folder.unlock()
    folder.write_rollouts(2, GROUPS, [0.0, 0.0, 0.0, 0.5, -0.5])
    folder.write_rollouts(4, GROUPS[:2], [0.0, 0.0])
    return folder


def printed(width=80, rollouts=GROUPS, most=320) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    group = find_telling_group(list_rows(7, rollouts, [0.0] * len(rollouts)))
    print_group(console, group, pick_best_and_worst(group), most)
    return console.file.getvalue().splitlines()


# -- files -------------------------------------------------------------------------------------------------------------


def test_arrow_is_given_no_file_of_pythons(run, monkeypatch):
    """Its threads would ask for the interpreter, and one that asks while a command ends aborts it: 10 of 120 times at full load."""
    monkeypatch.setattr(Path, "open", None)
    assert [row["completion"] for row in read_rollouts(run.rollouts_file(2))][:2] == ["flat", "also flat"]


def test_the_files_hold_the_columns_of_the_row_by_name_and_what_was_extracted(tmp_path):
    columns = {
        "answer": "7", "solution": "46", "level": 3, "share": 0.5, "hard": True, "tests": [{"in": 1}], "reward": "mine", "none": None,
        "reward/right": "x", "long": "é" * 5000, "half": "a\ud800b", "huge": 1 << 70, "row": 5, "code": {"é": 1},
    }  # fmt: skip
    first = rollout(0, 0, "so 47", 0.0, columns=columns, extracted="47", answer_column="solution")
    mixed = Prompt(1, "p", {"level": "many"}, (1,))
    folder = RunFolder(tmp_path)
    folder.write_rollouts(1, [first], [0.0])
    folder.write_rollouts(2, [first, rollout(1, 0, "b", 1.0, prompt=mixed)], [0.0, 0.0])
    row = pq.read_table(folder.rollouts_file(1)).to_pylist()[0]
    assert (row["extracted"], row["reference_answer"], row["answer"], row["solution"]) == ("47", "46", "7", "46")
    assert (row["level"], row["share"], row["hard"], row["none"]) == (3, 0.5, True, None)
    assert (row["tests"], row["code"], row["huge"], row["half"]) == ('[{"in": 1}]', '{"é": 1}', str(1 << 70), "a?b")
    assert (row["reward"], row["row/reward"], row["reward/right"], row["row/reward/right"]) == (0.0, "mine", 0.0, "x")
    assert row["long"] == "é" * MAX_CELL + " … (5000 characters, cut here)"
    assert row["length"] == 2
    assert [row["level"] for row in read_rollouts(folder.rollouts_file(2))] == ["3", "many"]
    assert list_rows(1, [first], [0.0]) == read_rollouts(folder.rollouts_file(1))  # those who watch see what is kept


def test_long_columns_do_not_make_the_files_long(tmp_path):
    """A column of 100 kB in each of 32 rows, 8 completions each, costs what is kept of it once per row."""
    folder = RunFolder(tmp_path)
    for step, size in ((1, 1), (2, 100_000)):
        made = [Prompt(n, "p", {"tests": f"{n:09d}" * (size // 9 + 1)}, (1,)) for n in range(32)]
        folder.write_rollouts(step, [rollout(p.index, s, "t", 0.0, prompt=p) for p in made for s in range(8)], [0.0] * 256)
    small, large = (folder.rollouts_file(step).stat().st_size for step in (1, 2))
    assert large - small < 32 * 2 * MAX_CELL


# -- the text ----------------------------------------------------------------------------------------------------------


def test_a_group_shows_prompt_reference_answer_best_worst_parts_and_what_was_extracted():
    members = [
        rollout(3, 0, "so 46", 1.1, extracted="46", form=1.0, shape=0.1),
        rollout(3, 1, "", 0.5, form=0.5, shape=None),
        rollout(3, 2, "line\n\n\tlast 47", 0.0, extracted="47", form=0.0, shape=0.0),
    ]
    assert printed(rollouts=members) == [
        "step 7, group 3: 1 of 3 right, mean reward 0.533",
        "  prompt   12+34=",
        "  expected 46",
        "  best     reward 1.1 · form 1 · shape 0.1 · right · extracted 46 · 2 tokens",
        "           so 46",
        "  worst    reward 0 · form 0 · shape 0 · wrong · extracted 47 · 2 tokens",
        "           line",
        "",
        "               last 47",
    ]
    assert printed()[0] == "step 7, group 1: 1 of 3 right, mean reward 0.5, 1 without a score"  # rewards differ: it teaches
    flat = printed(rollouts=GROUPS[:2])
    assert [line.split()[0] for line in flat if line.startswith("  ") and line[2] != " "] == [
        "prompt",
        "expected",
        "one",
        "another",
    ]
    silent = printed(rollouts=[rollout(0, 0, "", None)])
    assert silent[0] == "step 7, group 0: 1 without a score"
    assert silent[3:] == ["  one      no score · 2 tokens", "           (nothing)"]


def test_without_a_reference_answer_the_short_columns_are_shown_and_a_chat_is_no_json():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    prompt = Prompt(0, messages, {"target": "4", "essay": "x" * 500, "empty": None}, (1,))
    lines = printed(rollouts=[rollout(0, 0, "4", 1.0, prompt=prompt)])
    assert lines[1:4] == ["  prompt   system: Be brief.", "           user: 2+2?", "  target   4"]
    assert "essay" not in "".join(lines)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(
    "text", [HOSTILE, "字" * 700, "word " * 400, "x" * 5000, "🙂\u200d" * 90, "a\n" * 300, "e\u0301" * 300]
)
def test_what_a_model_wrote_cannot_steer_the_terminal_or_leave_its_columns(width, text):
    member = rollout(0, 0, text, 1.0, columns={"answer": text}, extracted=text, prompt=None)
    lines = printed(width, [member])
    assert max(map(cell_len, lines)) <= min(width, 100)
    assert len(lines) < 100
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2028\u2066" for line in lines for c in line)
    if text == HOSTILE and width > 40:
        assert any(r"\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e a\x00b" in line for line in lines)


def test_long_texts_keep_their_beginning_and_their_end():
    text = "start " + "x" * 1000 + r" \boxed{46}"
    assert shorten_lines(text, 60 * 5).startswith("start x")
    assert shorten_lines(text, 60 * 5).endswith(r"\boxed{46}")
    assert "characters left out" in shorten_lines(text, 300)
    assert shorten_lines(text, 0) == text
    lines = shorten_lines("\n".join(map(str, range(40))), 300).split("\n")
    assert (lines[0], lines[-1], len(lines)) == ("0", "39", 9)


# -- the command -------------------------------------------------------------------------------------------------------


def look(capsys, run, *, step=None, wrong=False, group=None, full=False, as_json=False) -> str:
    run_look(run.root, step, wrong, group, full, as_json)
    return capsys.readouterr().out


def test_look_shows_the_last_step_that_was_kept_or_the_one_that_is_named(run, capsys):
    assert list_kept_steps(run.rollouts) == [2, 4]
    assert look(capsys, run).startswith("step 4, group 0: 0 of 2 right")
    shown = look(capsys, run, step=2)
    assert shown.count("step 2, group") == 2
    whole = look(capsys, run, step=2, group=1)
    assert [f"row {n}" in whole for n in range(6)] == [False, False, True, True, True, False]
    wrong = look(capsys, run, step=2, wrong=True)
    assert "so 47" in wrong
    assert "so 46" not in wrong.replace("expected 46", "")
    assert "3 of 5 completions of step 2 are wrong" in wrong
    rows = [json.loads(line) for line in look(capsys, run, step=2, wrong=True, group=1, as_json=True).splitlines()]
    assert [(row["completion"], row["extracted"], row["reference_answer"], row["answer"], row["row"]) for row in rows] == [
        ("so 47", "47", "46", "46", 4)
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"step": 3}, "--step 3: its completions are not saved: monitors.rollouts_every is 2. Saved: 2 steps from 2 to 4"),
        ({"step": 9}, "--step 9: its completions are not saved: the last saved step is 4."),
        ({"step": 0}, "--step 0: its completions are not saved: steps count from 1."),
        ({"group": 7}, "--group 7: step 4 has groups 0 to 0."),
        ({"step": 2, "group": -1}, "--group -1: step 2 has groups 0 to 1."),
    ],
)
def test_look_says_what_is_not_there(run, capsys, words, said):
    text = run.recipe_file.read_text().replace("rollouts_every = 1", "rollouts_every = 2")
    run.recipe_file.write_text(text)
    with pytest.raises(RunError) as problem:
        look(capsys, run, **words)
    assert str(problem.value).startswith(said)


def test_look_at_runs_that_were_cut_short(run, capsys):
    """A file that is half written beside the whole ones; one that a crash has cut; none at all."""
    half = run.rollouts_file(4).read_bytes()[:-40]
    run.rollouts_file(6).with_suffix(".tmp").write_bytes(half)
    run.rollouts_file(4).write_bytes(half)
    shown = look(capsys, run)
    assert "step-000004.parquet cannot be read" in shown.replace("\n", "")
    assert "step 2, group 0" in shown
    with pytest.raises(RunError, match=r"step-000004.parquet cannot be read"):
        look(capsys, run, step=4)
    run.rollouts_file(2).write_bytes(b"")
    with pytest.raises(RunError, match=r"step-000002.parquet cannot be read"):
        look(capsys, run)
    shutil.rmtree(run.rollouts)
    with pytest.raises(RunError, match=r"no completions are saved: no step is finished yet.$"):
        look(capsys, run)
    run.recipe_file.write_text(run.recipe_file.read_text().replace("rollouts_every = 1", "rollouts_every = 0"))
    with pytest.raises(RunError, match=r"no completions are saved: monitors.rollouts_every is 0.$"):
        look(capsys, run)


def test_none_wrong_is_said(tmp_path, run, capsys):
    run.write_rollouts(5, [rollout(0, 0, "a", 1.0), rollout(0, 1, "b", None)], [0.0, 0.0])
    with pytest.raises(RunError, match=r"none of the 2 completions of step 5 was wrong; 1 have no verdict.$"):
        look(capsys, run, wrong=True)


# -- in a run ----------------------------------------------------------------------------------------------------------


class Watcher:
    def __init__(self):
        self.seen = []

    def on_rollouts(self, step, rollouts):
        self.seen.append((step, [dict(row) for row in rollouts]))
        rollouts.clear()


def test_a_run_shows_step_1_and_every_nth_and_feeds_columns_of_other_names(tmp_path, monkeypatch):
    """One run: `columns` from Python, the reference answer in samples and rollouts, on_rollouts at its steps, the console, and look."""
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = [
        {"prompt": f"{a}+{b}=", "solution": str(a + b), "demonstration": f"{a}+{b}+0={a + b}\n>{a + b}"}
        for a in range(10)
        for b in range(10)
    ]
    settings = tree(**{"train.num_steps": 4, "evaluation.sets": {}, "evaluation.every_steps": 0, "monitors.show_every": 3})
    reward = settings.pop("rewards")[0] | {"columns": {"answer": "solution"}}
    settings["prompts.max_prompt_tokens"] = settings.pop("prompts")["max_prompt_tokens"]
    settings["model.scratch"], monitors = settings.pop("model")["scratch"], settings.pop("monitors")
    first, second = Watcher(), Watcher()
    run = cohort.train(
        prompts=rows, rewards=[reward], monitors=[first, second], runs_folder=tmp_path, name="run", console=False,
        show_every=monitors["show_every"], **settings,
    )  # fmt: skip
    folder = RunFolder.open(run.folder)
    assert folder.recipe().rewards[0].columns == {"answer": "solution"}
    assert [step for step, _ in first.seen] == [1, 3]
    assert [(step, len(seen)) for step, seen in first.seen] == [(step, len(seen)) for step, seen in second.seen]
    for step, seen in first.seen:
        assert seen == read_rollouts(folder.rollouts_file(step))
    kept = read_rollouts(folder.rollouts_file(1))
    assert all(row["reference_answer"] == row["solution"] == str(eval_sum(row["prompt"])) for row in kept)
    assert any(row["success"] for row in kept)  # a reward that read another column would pay nobody
    assert all(row["success"] == (row["extracted"] == row["reference_answer"]) for row in kept)
    samples = [json.loads(line) for line in (run.folder / "samples" / "before.jsonl").read_text().splitlines()]
    assert all(sample["answer"] == str(eval_sum(sample["prompt"])) for sample in samples)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    ConsoleMonitor(run.folder, {}, console=console).on_rollouts(1, kept)
    assert console.file.getvalue().startswith("step 1, group ")


def eval_sum(prompt: str) -> int:
    first, second = prompt.rstrip("=").split("+")
    return int(first) + int(second)
