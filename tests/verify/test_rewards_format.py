"""Rewards for the form: <think> and <answer> in their places, with real content."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from cohort.rewards import exact_match, math_answer
from cohort.rewards.contract import RewardPart
from cohort.rewards.runner import RewardRunner
from cohort.training.preflight import check_reference_answers, rewards_format
from cohort.types import Prompt
from cohort_verify.format import has_content, regex_format, think_answer_format, think_format
from session_tools import only_boxed

THOUGHT = "<think>6*7</think>"
ANSWER = "<answer>42</answer>"


@pytest.mark.parametrize(
    ("completion", "verdict", "verdict_inside"),
    [
        (THOUGHT + ANSWER, 1, 0),
        (f"\n {THOUGHT}\n\n{ANSWER}\n", 1, 0),
        ("6*7</think><answer>42</answer>", 0, 1),
        ("\n6*7\n</think>\n<answer>\n42\n</answer>\n", 0, 1),
        # nothing outside
        (f"Well. {THOUGHT}{ANSWER}", 0, 0),
        (f"{THOUGHT} so {ANSWER}", 0, 0),
        (f"{THOUGHT}{ANSWER}.", 0, 0),
        ("6*7</think>so<answer>42</answer>", 0, 0),
        ("6*7</think><answer>42</answer>!", 0, 0),
        # exactly once
        (THOUGHT + ANSWER + ANSWER, 0, 0),
        (THOUGHT + THOUGHT + ANSWER, 0, 0),
        (f"<think>a {ANSWER}</think>{ANSWER}", 0, 0),
        ("<think>a<think>b</think><answer>4</answer>", 0, 0),
        ("<think>a</think><answer><answer>4</answer></answer>", 0, 0),
        ("<think>a</think><answer>4<think></answer>", 0, 0),
        # in order, and closed
        (ANSWER + THOUGHT, 0, 0),
        ("</think>6*7<think><answer>42</answer>", 0, 0),
        ("<think>6*7</think>", 0, 0),
        ("<think>6*7</think><answer>42", 0, 0),
        ("<think>6*7<answer>42</answer></think>", 0, 0),
        ("<answer>42</answer>", 0, 0),
        ("42", 0, 0),
        # not empty
        ("<think></think><answer>42</answer>", 0, 0),
        ("<think>6*7</think><answer> \n</answer>", 0, 0),
        ("</think><answer>42</answer>", 0, 0),
        ("<think>\u200b\u2060</think><answer>42</answer>", 0, 0),
        ("<think>6*7</think><answer>\u3164\ufeff</answer>", 0, 0),
        ("", 0, 0),
        (" \n\t", 0, 0),
        # other tags are text
        ("<think>a <b>b</b></think><answer><i>4</i></answer>", 1, 0),
        ("<Think>a</Think><Answer>4</Answer>", 0, 0),
    ],
)
def test_think_answer_format(completion, verdict, verdict_inside):
    assert think_answer_format([completion]) == think_answer_format([completion], prefilled=False) == [float(verdict)]
    assert think_answer_format([completion], prefilled=True) == [float(verdict_inside)]
    assert think_answer_format([completion], prompts=["q <think>\n"]) == [float(verdict_inside)]
    chat = [[{"role": "assistant", "content": completion}]]
    assert think_answer_format(chat, prompts=[[{"role": "user", "content": "say <think>"}]]) == [float(verdict)]
    opened = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>"}]
    assert think_answer_format(chat, prompts=[opened]) == [float(verdict_inside)]


def test_each_row_can_have_its_own_flag():
    texts = ["a</think><answer>b</answer>"] * 2
    assert think_answer_format(texts, prefilled=[True, False]) == [1.0, 0.0]
    assert think_format(["a</think>b"] * 2, prefilled=[True, False]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="shorter"):
        think_format(["a", "b"], prefilled=[True])


@pytest.mark.parametrize(
    "nothing", ["\u200b", "\u200d\u2060", "\ufeff", "\u00ad", "\u2800", "\u3164", "\ud800", "\x00", "\U000e0041", "\ufe0f"]
)
def test_what_cannot_be_seen_is_neither_a_thought_nor_an_answer(nothing):
    """str.strip() keeps all of these, so a policy could be paid for an empty thought."""
    assert nothing.strip()
    assert not has_content(f" {nothing}\n{nothing}")
    assert think_format(
        [f"<think>{nothing}</think>4", f"<think>a</think>{nothing}", f"<think>a{nothing}</think>{nothing}4"]
    ) == [
        0.0,
        0.0,
        1.0,
    ]


def test_a_pattern_covers_the_whole_completion():
    assert regex_format(["a\nb", "xa\nb", "a", ""], pattern="a.b") == [1.0, 0.0, 0.0, 0.0]
    assert regex_format(["", "a"], pattern="") == [1.0, 0.0]


@pytest.mark.parametrize("function", [think_format, think_answer_format])
@pytest.mark.parametrize(
    "text", ["<think>" * 140_000, "</think>" * 125_000, "<answer>" * 125_000, "<" * 10**6, "\u200b" * 10**6, " " * 10**6, "\ud800" * 10**6]
)  # fmt: skip
def test_a_megabyte_takes_no_time(function, text):
    started = time.process_time()
    assert function([text, "<think>" + text, f"<think>{text}</think>"]) == [0.0] * 3
    assert function([text], prefilled=True) == [0.0]
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("function", [think_format, think_answer_format, regex_format])
def test_a_batch_may_be_split(function):
    assert function.per_completion
    assert "completions" in function.reads


# ---------------------------------------------------------------------------------------------------------------------
# With an outcome: golds must score in the form that is paid
# ---------------------------------------------------------------------------------------------------------------------


def golds_check(outcome, *formats, rows=None, **args):
    """The doctor's sentence on golds, without a model: only the tokenizer of the policy is asked."""
    rows = rows or [{"answer": str(number)} for number in range(40, 48)]
    prompts = [Prompt(index, "6*7", columns, (1,)) for index, columns in enumerate(rows)]
    parts = [RewardPart("outcome", outcome, outcome=True)]
    parts += [RewardPart(getattr(f, "__name__", f), f, weight=0.1, args=args) for f in formats]
    with RewardRunner(parts, workers=1) as runner:
        recipe = SimpleNamespace(
            cold_start=SimpleNamespace(completion_column="demonstration"), train=SimpleNamespace(num_steps=1)
        )
        policy = SimpleNamespace(tokenizer=lambda text, add_special_tokens: {"input_ids": [0] * len(text)})
        right, shuffled = check_reference_answers(SimpleNamespace(rewards=runner, recipe=recipe, policy=policy), prompts)
    assert (shuffled.level, shuffled.text) == ("ok", "0 of 8 answers of other rows score as success")
    return right.level, right.text


def test_reference_answers_score_in_the_required_form():
    accepted = "8 of 8 reference answers score as success in a format that"
    assert golds_check(math_answer, "think_answer_format") == ("ok", f"{accepted} think_answer_format accepts")
    assert golds_check(math_answer, think_format, think_answer_format) == (
        "ok",
        f"{accepted} think_format and think_answer_format accept",
    )
    assert golds_check(exact_match, think_format) == ("ok", f"{accepted} think_format accepts")
    opened = [{"answer": str(number), "prefilled": True} for number in range(40, 48)]
    assert golds_check(math_answer, think_answer_format, rows=opened) == ("ok", f"{accepted} think_answer_format accepts")
    held = [{"answer": torch.tensor(number / 10)} for number in range(40, 48)]
    assert golds_check(math_answer, think_answer_format, rows=held) == ("ok", f"{accepted} think_answer_format accepts")


@pytest.mark.parametrize("outcome", [only_boxed, exact_match])
def test_reference_answers_that_score_only_in_another_form_are_reported(outcome):
    """The policy would be rewarded for a format in which it can never succeed."""
    level, text = golds_check(outcome, think_answer_format)
    assert level == "warning"
    assert text.startswith("0 of 8 reference answers score as success in a format that think_answer_format accepts. Check")
    assert golds_check(outcome) == ("ok", "8 of 8 reference answers score as success")


def test_a_format_that_no_wrapping_has_is_named():
    """No known format matches the recipe's own: the answers are then checked in the usual ones."""
    only_mine = golds_check(math_answer, regex_format, pattern=r"FINAL: \d+")
    assert only_mine == ("ok", "8 of 8 reference answers score as success, but not in the format of regex_format")
    shown = [{"answer": str(number), "demonstration": f"#### {number}"} for number in range(40, 48)]
    assert golds_check(math_answer, think_format, rows=shown)[1].endswith(", but not in the format of think_format")


def test_which_parts_ask_for_a_form():
    for function in (think_format, "think_format", "cohort.rewards:think_answer_format", "regex_format"):
        assert rewards_format(function)
    for function in (math_answer, "math_answer", "mine:think_format", "cohort_verify.format:score_form", only_boxed):
        assert not rewards_format(function)
