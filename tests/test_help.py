"""What a newcomer reads first: help that fits a terminal, examples that can be typed, completion, and a word to Windows."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
from typer.main import get_command

from cohort.cli import app
from cohort.recipe.file import DEMO, build_recipe, find_recipe, list_built_in, split_arguments
from session_tools import COHORT, ONE_THREAD

NARROW = ONE_THREAD | {"COLUMNS": "80"}
GROUP = get_command(app)
COMMANDS = GROUP.list_commands(None)


def help_of(name: str) -> str:
    command = GROUP.commands[name] if name else GROUP
    with command.make_context("cohort", [], resilient_parsing=True, terminal_width=80) as context:
        return command.get_help(context)


def examples_of(text: str) -> list[list[str]]:
    """The words behind `cohort` of every line that is a command; two spaces begin its description."""
    lines = re.findall(r"^  ((?:\S+ )*cohort (?:\S+ ?)*)(?:  .*)?$", text, re.MULTILINE)
    return [shlex.split(line.split("cohort ", 1)[1]) for line in lines]


def parse(words: list[str]) -> dict:
    """As the command line parses them; nothing is run. Raises on an unknown command or option."""
    name, *rest = words
    return GROUP.commands[name].make_context(name, rest).params


@pytest.mark.parametrize("asked", [["--help"], []])
def test_a_newcomer_is_told_what_to_type_next(asked):
    done = subprocess.run([COHORT, *asked], env=NARROW, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    # A first run, looking at it, own data, help on a topic.
    told = [line.split("  ")[0] for line in re.findall(r"^  (cohort .*)$", printed, re.MULTILINE)]
    assert told == [
        "cohort train",
        "cohort look runs/NAME",
        "cohort dashboard",
        "cohort train my.toml",
        "cohort COMMAND --help",
    ]
    assert printed.index(told[0]) < printed.index("Commands:")


def test_no_summary_is_cut_off_and_no_line_is_wider_than_a_terminal():
    for name in ["", *COMMANDS]:
        text = help_of(name)
        assert "..." not in text.partition("Commands:")[2], name
        assert [line for line in text.splitlines() if len(line) > 80] == [], name


def test_a_usage_line_says_what_may_be_left_out_and_repeated():
    usages = {name: help_of(name).splitlines()[0].removeprefix("Usage: cohort [OPTIONS]").strip() for name in COMMANDS}
    assert usages["train"] == "[RECIPE] [KEY=VALUE]..."
    assert usages["report"] == "RUN..."
    assert usages["export"] == "RUN [OUT]"
    for name, usage in usages.items():
        assert not re.search(r"[{}]|None|\]\]|\.\.\.\]", usage), (name, usage)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_can_be_typed(name):
    examples = examples_of(help_of(name))
    assert [words for words in examples if words[0] == name], "its help has no example"
    for words in examples:
        params = parse(words)
        if words[0] in ("train", "doctor"):  # words that are given to a recipe must be words of it
            recipe, overrides = split_arguments(params["arguments"] or [])
            find_recipe(recipe if recipe in list_built_in() else DEMO, overrides)


def test_an_example_with_a_word_that_does_not_exist_would_be_noticed():
    assert examples_of("  cohort look runs/a --wrung    text\n  LEVEL=1 cohort train\n") == [
        ["look", "runs/a", "--wrung"],
        ["train"],
    ]
    with pytest.raises(Exception, match="wrung"):
        parse(["look", "runs/a", "--wrung"])


def test_the_least_recipe_of_the_help_is_a_recipe():
    said = help_of("train").partition("docs/recipe.md):\n")[2].partition("\n\n")[0]
    recipe = build_recipe(tomllib.loads(said))
    assert (recipe.model.source, recipe.prompts.source) == ("path or hub id", "data.jsonl")
    assert [reward.function for reward in recipe.rewards] == ["math_answer"]


# -- completion --------------------------------------------------------------------------------------------------------


TYPED = {
    "cohort re": ["resume", "report", "recipes"],
    "cohort train gr": ["gradual.toml", "group_size=", "greedy="],
    "cohort train gs": ["gsm8k_qwen"],
    # After a recipe only keys follow. The user types `=` and the value.
    "cohort doctor gsm8k_qwen gr": ["group_size=", "greedy="],
    "cohort train group_s": ["group_size", "group_size="],
    "cohort train train.group_s": ["train.group_size", "train.group_size="],
    "cohort train algorithm = da": [],  # as bash splits algorithm=da
    "cohort look runs/s": ["runs/second"],
    "cohort algorithms da": ["dapo"],
    "cohort look --wr": ["--wrong"],
}
ASK = """
import json, os, sys
sys.argv[0], sys.modules["torch"] = "cohort", None  # importing it now fails
from cohort.cli import app
for line in json.loads(sys.stdin.read()):
    words = line.split(" ")
    os.environ |= {"_COHORT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    try:
        app()
    except SystemExit:
        print("==")
"""


def test_a_shell_completes_commands_recipes_keys_runs_and_algorithms_without_torch(tmp_path):
    (tmp_path / "gradual.toml").touch()
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.toml").touch()
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([*TYPED]), env=ONE_THREAD, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    offered = [part.split() for part in done.stdout.split("==\n")][:-1]
    assert dict(zip(TYPED, offered, strict=True)) == TYPED


def test_bash_gets_its_words_through_the_script_that_is_installed(tmp_path):
    # In its own bash: the shell is found among the parent processes, and that of make is sh.
    below_bash = ["bash", "-c", f'"{COHORT}" --show-completion; exit $?']
    script = subprocess.run(below_bash, env=ONE_THREAD, capture_output=True, text=True, check=True)
    asked = f'{script.stdout}\nCOMP_WORDS=(cohort rec) COMP_CWORD=1\n_cohort_completion "{COHORT}"\necho "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", asked], env=ONE_THREAD, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "recipes\n"


# -- Windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "said"),
    [("cohort.exe", "error: Cohort does not run on Windows"), ("-c", "ImportError: Cohort does not run on Windows")],
)
def test_windows_is_told_in_one_sentence(typed, said):
    code = f"import sys\nsys.platform, sys.argv[0] = 'win32', {typed!r}\nimport cohort"
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(said)
    assert "WSL 2" in last
    assert ("Traceback" in done.stderr) == (typed == "-c")
