"""instructions: sums over a row, thoughts and copies of the prompt, arguments that cannot be used, and hostile text."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from cohort.errors import RewardError
from cohort.rewards import BUILT_IN, instructions
from cohort.rewards.contract import RewardPart
from cohort.rewards.runner import RewardRunner
from cohort.types import Completion, Prompt
from cohort_verify.instruction_following.checkers import CHECKERS
from cohort_verify.instruction_following.reward import MAX_CHARS, find_unusable
from doc_examples import examples_of
from instruction_pairs import PAIRS
from yardstick import measure_slowdown

PAGE = (Path(__file__).parents[2] / "docs" / "instruction-rewards.md").read_text(encoding="utf-8")
COMMA = {"id": "punctuation:no_comma"}
RECORD = {"id": "json_record", "record": {"name": "Ann", "age": 31}}
JSON = '{"name": "Ann", "age": 31}'
THREE = [COMMA, {"id": "detectable_format:title"}, {"id": "keywords:existence", "keywords": ["rain"]}]


def judge(completion, *entries, **options):
    """(score, verdict, detail)"""
    said = []
    (score,) = instructions(
        [completion], [list(entries)], log_verdict=lambda row, word, detail="": said.append((word, detail)), **options
    )
    return (score, *said[0])


def test_all_of_them_or_the_share_that_is_followed():
    assert judge("<<A day>> of rain", *THREE) == (1.0, "right", "")
    assert judge("A day, of rain", *THREE) == (0.0, "wrong", "punctuation:no_comma, detectable_format:title")
    assert judge("A day, of rain", *THREE, mode="share")[0] == pytest.approx(1 / 3)
    assert judge("<<A day>> of sun", *THREE, mode="share") == (pytest.approx(2 / 3), "wrong", "keywords:existence")
    assert instructions([JSON, JSON], [[RECORD], [COMMA]]) == [1.0, 0.0]


def test_a_divider_is_no_bullet_and_has_three_signs():
    two = {"id": "detectable_format:number_bullet_lists", "num_bullets": 2}
    assert [judge(f"* one\n{line}\n* two", two)[0] for line in ("* * *", "* *")] == [1.0, 0.0]


def test_a_completion_of_a_chat_is_its_last_message():
    chat = [{"role": "assistant", "content": JSON}]
    assert instructions([chat], [[RECORD]], prompts=[[{"role": "user", "content": "Write JSON."}]]) == [1.0]


def test_arguments_that_are_none_are_none_as_a_table_of_rows_fills_them():
    assert judge("One.", {**COMMA, "num_words": None, "relation": None})[0] == 1.0
    assert judge("One two.", {"id": "length_constraints:number_words", "relation": "at least", "num_words": 2.0})[0] == 1.0


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (f"<think>a, b</think>\n{JSON}", 1.0),
        (f"a, b</think>{JSON}", 1.0),
        (f"<think>{JSON}", 0.0),
        (f"<think>{JSON}</think>", 0.0),
        (f"So: <think>a</think>{JSON}", 0.0),
    ],
)
def test_thoughts_are_not_judged(completion, score):
    assert judge(completion, RECORD)[0] == score


@pytest.mark.parametrize("nothing", ["", " \n", "<think>a</think>", "<think>a", "...", "* \n* ", "[ ] [ ]", "\u200b", "******"])
def test_a_text_without_words_follows_nothing(nothing):
    entries = [pair[0] for pair in PAIRS if pair[0]["id"] != "json_record"]
    assert instructions([nothing] * len(entries), [[entry] for entry in entries]) == [0.0] * len(entries)


def test_a_copy_of_the_prompt_follows_nothing():
    prompt = "Write one line on rain with a title such as <<A day>>."
    assert judge(prompt, *THREE)[0] == 1.0  # without the prompt beside it, it is a text as any other
    for copy in (prompt, prompt.upper(), f"\n{prompt}\n\n{prompt}", f"{prompt} It is wet."):
        assert judge(copy, *THREE, prompts=[prompt])[0] == 0.0, copy
    assert judge(f"{prompt} <<Wet>> and more rain.", *THREE, prompts=[prompt])[0] == 1.0
    assert judge(f"{prompt}\n{JSON}", RECORD, prompts=[prompt])[0] == 0.0  # and no copy stands before JSON
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    assert judge(prompt, *THREE, prompts=[chat])[0] == 0.0


def test_the_prompt_is_repeated_where_that_is_asked_for():
    repeat = {"id": "combination:repeat_prompt", "prompt_to_repeat": "Name a fruit."}
    prompt = "Name a fruit. First repeat the request."
    assert judge("Name a fruit. An apple.", repeat, prompts=[prompt])[0] == 1.0
    assert judge(f"{prompt} An apple.", repeat, prompts=[prompt])[0] == 1.0
    assert judge(prompt, repeat, prompts=[prompt])[0] == 0.0
    assert judge("Name a fruit.", repeat, prompts=["Name a fruit."])[0] == 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Rows and arguments that cannot be used
# ---------------------------------------------------------------------------------------------------------------------

DEEP: list = []
for _ in range(60):
    DEEP = [DEEP]

BAD = [
    (None, "a list with at least one instruction is expected"),
    ([], "a list with at least one instruction is expected"),
    (COMMA, "a list with at least one instruction is expected"),
    ("punctuation:no_comma", "a list with at least one instruction is expected"),
    (["punctuation:no_comma"], "an instruction is a dict such as"),
    ([{"name": "punctuation:no_comma"}], "an instruction is a dict such as"),
    ([{"id": "punctuation:no_coma"}], "did you mean 'punctuation:no_comma'"),
    ([{"id": "language:response_language", "language": "de"}], "unknown id"),
    ([{**COMMA, "num_words": 3}], "has no argument 'num_words'; it takes none"),
    ([{"id": "keywords:existence", "words": ["a"]}], "has no argument 'words'; its arguments: keywords"),
    ([{"id": "keywords:existence", "keywords": None}], "needs the argument 'keywords'"),
    ([{"id": "keywords:existence", "keywords": "rain"}], "a list of texts is expected"),
    ([{"id": "keywords:existence", "keywords": []}], "a list of texts is expected"),
    ([{"id": "keywords:existence", "keywords": ["rain", ""]}], "a text with at least one letter or digit"),
    ([{"id": "length_constraints:number_words", "num_words": 0, "relation": "at least"}], "a whole number of at least 1"),
    ([{"id": "length_constraints:number_words", "num_words": 2.5, "relation": "at least"}], "a whole number of at least 1"),
    ([{"id": "length_constraints:number_words", "num_words": True, "relation": "at least"}], "a whole number of at least 1"),
    ([{"id": "length_constraints:number_words", "num_words": float("inf"), "relation": "at least"}], "a whole number"),
    ([{"id": "length_constraints:number_words", "num_words": 2, "relation": "more than"}], "'less than' or 'at least'"),
    ([{"id": "count:word_count_range", "min_words": 3, "max_words": 2}], "min_words = 3 is more than max_words = 2"),
    (
        [{"id": "length_constraints:nth_paragraph_first_word", "num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}],
        "nth_paragraph = 3 of num_paragraphs = 2",
    ),
    (
        [{"id": "keywords:letter_frequency", "letter": "ab", "let_frequency": 1, "let_relation": "at least"}],
        "a single character",
    ),
    ([{"id": "json_record", "record": None}], "needs the argument 'record'"),
    ([{"id": "json_record", "record": "{'a': 1}"}], "a JSON value, or JSON text, is expected"),
    ([{"id": "json_record", "record": {"a": float("nan")}}], "a JSON value, or JSON text, is expected"),
    ([{"id": "json_record", "record": {"a": {1, 2}}}], "a JSON value, or JSON text, is expected"),
    ([{"id": "json_record", "record": '{"a": 1, "a": 1}'}], "a key occurs twice"),
    ([{"id": "json_record", "record": DEEP}], "at most 50 levels"),
    ([{"id": "json_record", "record": "[" * 100_000 + "]" * 100_000}], "nested too deeply"),
]


@pytest.mark.parametrize(("entries", "words"), BAD)
def test_a_row_that_cannot_be_checked_is_known_before_the_run_and_never_scored(entries, words):
    (reason,) = find_unusable([entries])
    assert reason.startswith("instructions: ")
    assert words in reason
    said = []
    assert instructions(["A text."], [entries], log_verdict=lambda *word: said.append(word)) == [None]
    assert said == [(0, "infrastructure", reason)]


def test_a_run_names_the_rows_and_refuses_another_mode():
    rows = [Prompt(0, "q", {"instructions": [COMMA]}, (1,)), Prompt(1, "q", {"instructions": [{"id": "no_comma"}]}, (1,))]
    with RewardRunner([RewardPart("follow", "instructions", outcome=True)], workers=1, max_fault_share=0.5) as runner:
        ((row, reason),) = runner.find_unusable(rows)["follow"]
        assert (row, "unknown id 'no_comma'" in reason) == (1, True)
        runner.check_columns(rows)
        completions = [Completion((1,), (), "stop", "Fine."), Completion((1,), (), "stop", "Fine.")]
        good, bad = runner.score(rows, completions, step=1, num_steps=1).outcomes
        assert (good.reward, good.success) == (1.0, True)
        assert bad.reward is None
        with pytest.raises(RewardError, match="needs the column 'instructions'"):
            runner.check_columns([Prompt(0, "q", {}, (1,))])
    other = RewardRunner([RewardPart("follow", "instructions", args={"mode": "any"})], workers=1)
    with other, pytest.raises(RewardError, match="mode = 'any': 'all' or 'share' is expected"):
        other.check_columns(rows)
    with pytest.raises(ValueError, match="'all' or 'share'"):
        instructions(["a"], [[COMMA]], mode="any")


def test_it_is_built_in_and_a_batch_may_be_split():
    assert BUILT_IN["instructions"] is instructions
    assert instructions.per_completion
    assert instructions.reads == ("completions", "prompts", "instructions")


# ---------------------------------------------------------------------------------------------------------------------
# Hostile text
# ---------------------------------------------------------------------------------------------------------------------

ONE_OF_EACH = list({pair[0]["id"]: pair[0] for pair in PAIRS}.values())


@pytest.mark.parametrize(
    "filler",
    ["a", "*a ", "**", "***\n", "[a", "<<a", '"', "- a\n", "1.1", "Section 1\n", "P.S. \n", '{"a":', "[", "9", "<think>", "Name a fruit. ",
     "\ud800", "\n ", "...x ", "a'"],
)  # fmt: skip
def test_every_checker_takes_time_linear_in_the_text(filler):
    """The longest text that is read, 28 times: a quadratic checker takes minutes."""
    text = (filler * MAX_CHARS)[:MAX_CHARS]
    started = time.process_time()
    (score,) = instructions([text], [ONE_OF_EACH], prompts=["Name a fruit."], mode="share")
    assert time.process_time() - started < 2.0 * measure_slowdown()
    assert 0 <= score < 1


def test_a_longer_text_is_not_read():
    assert judge("a" * (MAX_CHARS + 1), COMMA) == (0.0, "output", f"{MAX_CHARS + 1} characters, more than {MAX_CHARS}")
    assert judge("a" * MAX_CHARS, COMMA)[0] == 1.0


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 40_000, "[" * 100_000 + "]" * 100_000, "-" * 200_000, "1" * 5_000])
def test_json_that_breaks_parsers_is_wrong_and_no_fault(text):
    assert judge(text, {"id": "json_record", "record": [1]}) == (0.0, "wrong", "json_record")
    assert judge(text, {"id": "detectable_format:json_format"})[:2] == (0.0, "wrong")


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------


def test_the_page_lists_every_checker_with_its_arguments_and_its_examples_hold():
    listed = {}
    for name, arguments in re.findall(r"^\| `([a-z_]+:?[a-z_]+)` \|(.*?)\| [^|]*\|$", PAGE, re.MULTILINE):
        listed[name] = tuple(re.findall(r"`(\w+)`", arguments))
    assert listed == {name: tuple(checker.readers) for name, checker in CHECKERS.items()}
    found = list(examples_of(PAGE))
    assert len(found) == 3
    for code, value, expected in found:
        assert value == expected, code
