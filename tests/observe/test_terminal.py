"""Sentences on a terminal and in a file: nothing is broken inside a word, and a file gets whole lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cohort.base.text import make_table
from cohort.observe.terminal import describe_completion, print_error, print_whole
from cohort.tools.doctor import print_checks
from cohort.training.preflight import Check

SENTENCE = "time rollout 40 % · update 23 % · observe 18 % · reward 7.2 % · length 30.5 % · other 11 %, of which /a/long/path"


@pytest.fixture
def terminal(monkeypatch):
    """Consoles print to a terminal of 80 columns, without colours."""
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)


def printed(text: str, **options) -> list[str]:
    console = Console(file=io.StringIO(), highlight=False, color_system=None, force_terminal=options.pop("tty"), width=80)
    print_whole(console, text, **options)
    return console.file.getvalue().splitlines()


def test_a_sentence_is_one_line_in_a_file_and_wrapped_between_words_on_a_terminal():
    assert printed(SENTENCE, tty=False) == [SENTENCE]
    lines = printed(SENTENCE, tty=True)
    assert max(map(len, lines)) <= 80
    assert " ".join(line.strip() for line in lines) == SENTENCE
    assert not any(line.strip().startswith("%") for line in lines)  # a number keeps its unit


def test_the_first_line_is_as_long_as_the_others_with_a_hanging_indent():
    first, second, *_ = printed("word " * 60, tty=True, indent=25)
    assert (len(first), len(second)) == (74, 79)  # the first line leaves two columns free
    assert second.startswith(" " * 25 + "word")


def test_an_error_of_any_command_is_wrapped_between_words(terminal, capsys):
    print_error("a message " * 20 + "\x1b[31m")
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    assert {word for line in lines for word in line.split()} == {"error:", "a", "message", "\\x1b[31m"}


def test_a_check_that_was_not_made_is_no_ok_and_its_text_has_a_column_of_its_own(terminal, capsys):
    print_checks([Check("skip", "shuffled answers", "all rows have the same answer " * 4), Check("ok", "memory", "fits")], 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("skip    shuffled answers all rows")
    assert lines[1].startswith(" " * 25 + "answer")
    assert max(map(len, lines)) <= 80
    assert "Ready to train (1 s)" in lines


def test_a_narrow_table_breaks_a_long_word_and_loses_no_letter():
    console = Console(file=io.StringIO(), width=20)
    console.print(make_table(("name", "value"), [("reinforce++_baseline", "54.1 %")]))
    text = console.file.getvalue()
    assert "…" not in text
    assert "reinforce++_baseline" in "".join(line.split()[0] for line in text.splitlines()[1:])


def test_one_is_not_plural():
    row = {"reward": 1.0, "success": True, "length": 1, "end": "length", "extracted": None}
    assert describe_completion(row) == "reward 1 · right · 1 token, truncated"
