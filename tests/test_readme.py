"""README: short, every block and command of it runs, and its figures of speed are those of the table."""

from __future__ import annotations

import json
import re
import shlex
import sys
from typing import Any

import pytest

import cohort
from cohort.errors import RecipeError
from cohort.recipe.file import find_recipe
from site_pages import ROOT, list_lines, make_tiny_chat_model, make_tiny_train, read_blocks, run_tiny

PAGE = ROOT / "README.md"
README = PAGE.read_text(encoding="utf-8")


def test_it_can_be_read_in_five_minutes():
    assert len(README.split()) <= 1000


def test_its_blocks_and_commands_run(tmp_path, monkeypatch, capsys):
    """As they stand and in their order, with a tiny chat model in place of the hub's and one step instead of many."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    seen: list[dict[str, Any]] = []
    train = cohort.train
    monkeypatch.setattr(cohort, "train", make_tiny_train(make_tiny_chat_model(tmp_path / "tiny"), seen))
    row = re.search(r"each line of problems\.jsonl: (\{.*\})", README)
    assert row is not None
    rows = [row[1].replace("3 boxes", f"{n} boxes") for n in range(48)]
    (tmp_path / "problems.jsonl").write_text("\n".join(rows), encoding="utf-8")
    small, large, own = read_blocks(PAGE, "python")
    for block in (small, large):
        names: dict[str, Any] = {}
        exec(compile(block, "README.md", "exec"), names)
        assert names["run"].status == "finished"
        assert (names["run"].model / "config.json").exists()
    assert len(seen[0]["prompts"]) == 100
    assert seen[0]["rewards"][0](["8", "3"], answer=["8", "8"]) == [1.0, 0.0]
    assert json.loads(row[1])["answer"] == str(3 * 12)

    (tmp_path / "my_module.py").write_text(own, encoding="utf-8")
    monkeypatch.setattr(cohort, "train", train)
    lines = [shlex.split(line)[1:] for line in list_lines(PAGE)]
    assert [words for words in lines if "gsm8k_qwen" in words] == [
        ["doctor", "gsm8k_qwen"], ["train", "gsm8k_qwen", "group_size=16", "model.lora.rank=16"]
    ]  # fmt: skip
    for words in lines:
        if "gsm8k_qwen" in words:  # model and data are of the hub: read to the end, and not begun
            find_recipe(words[1], words[2:])
        else:
            assert run_tiny(words) == 0, words
    assert len(list((tmp_path / "runs").iterdir())) == 4  # two blocks, two trainings
    printed = capsys.readouterr().out
    assert "step 1" in printed  # cohort look
    assert "runs/first is finished" in printed  # cohort resume


def test_a_typing_error_gets_the_key_that_was_meant():
    assert "`cohort train grup_size=4` suggests the key you meant" in README
    with pytest.raises(RecipeError, match="group_size"):
        find_recipe("", ["grup_size=4"])


def test_make_commands_are_targets():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    told = set(re.findall(r"(?:^    |`)make ([a-z]+)", README, re.MULTILINE))
    assert told == {"demo", "test", "setup", "site"}
    assert told <= set(targets)


def test_speed_figures_are_those_of_the_table():
    table = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    told = re.search(
        r"0\.5B model: rollouts at (\d+k) tokens a second, ([\d.]+) times HF generate.*?step in ([\d.]+) s, TRL's takes ([\d.]+) times",
        README,
        re.DOTALL,
    )
    assert told is not None
    rate, times, seconds, faster = told.groups()
    rows = table.splitlines()
    assert any(f"**{rate} tok/s**" in row and f"**{times}×**" in row and "H200, 0.5b" in row for row in rows)
    assert any(f"**{seconds} s**" in row and f"**{faster}×**" in row and "H200, 0.5b" in row for row in rows)
