"""The command line before anything large is loaded: the version, options that are words of a recipe, the first line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import cohort
from cohort.cli import app

WATCHED = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("TORCH", flush=True)
            os._exit(0)
sys.meta_path.insert(0, Watch())
from cohort.cli import app
app(sys.argv[1:])
"""
"""Says when torch would be loaded, and ends there."""


def said(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2
    return result.output.splitlines()[-1]


def test_the_version():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"cohort {cohort.__version__}\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--group_size", "8"], "group_size=8"),
        (["--group-size=8"], "group_size=8"),
        (["--group_size=8", "name=x"], "group_size=8"),
        (["my.toml", "--learning_rate", "1e-6"], "learning_rate=1e-6"),
        (["--train.group_size", "8"], "train.group_size=8"),
        (["--train.group-size", "8"], "train.group_size=8"),
        (["--model", "Qwen/Qwen2.5-0.5B"], "model=Qwen/Qwen2.5-0.5B"),
        (["--deterministic"], "deterministic=true"),
        (["--deterministic", "--seed", "3"], "deterministic=true"),
    ],
)
@pytest.mark.parametrize("command", ["train", "doctor"])
def test_an_option_that_is_a_recipe_key_is_answered_with_the_setting(command, typed, meant):
    assert said(command, *typed).endswith(f"write recipe settings as key=value, without dashes: {meant}")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["train", "--num_generations", "8"], "here it is called train.group_size: write group_size=8"),
        (["train", "--num-generations=8"], "here it is called train.group_size: write group_size=8"),
        (["train", "--bf16"], "here it is called model.dtype: write dtype=bfloat16"),
        (["train", "--group_sise", "8"], "did you mean 'group_size'?"),
        (["train", "--batch_size", "8"], "set train.prompts_per_step"),
        (["train", "--config", "my.toml"], "name the recipe without an option: cohort train my.toml"),
        (["evaluate", "runs/a", "--max_problems", "8"], "give recipe settings with --set: --set max_problems=8"),
        (["resume", "runs/a", "--num_steps", "8"], "start another run with: cohort train num_steps=8"),
        (["train", "--nonsense-word", "8"], "No such option: --nonsense-word"),
        (["report", "runs/a", "--group_size", "8"], "No such option: --group_size"),
    ],
)
def test_options_of_other_tools_and_other_commands(typed, meant):
    assert meant in said(*typed)


def test_settings_without_an_equals_sign():
    result = CliRunner().invoke(app, ["train", "group_size", "8"])
    assert result.exit_code == 1
    assert "error: group_size: write settings as key=value, without spaces: group_size=VALUE" in result.output


def before_torch(*words: object) -> list[str]:
    command = [sys.executable, "-c", WATCHED, *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout
    before, torch, _ = printed.partition("TORCH")
    assert torch
    return before.splitlines()


def test_a_run_prints_its_first_line_before_it_loads_torch(tmp_path):
    sized = ["num_steps=3", "prompts_per_step=4", "group_size=2", f"runs_folder={tmp_path}", "name=a", "cold_start.num_steps=5"]
    assert before_torch("train", *sized)[0] == ("cold start, then 3 steps of 4 prompts x 2 completions (grpo); loading ...")
    assert before_torch("resume", tmp_path / "a")[0] == f"resuming {tmp_path / 'a'}; loading ..."
    assert before_torch("train", *sized, "monitors.console=false", "name=b") == []
