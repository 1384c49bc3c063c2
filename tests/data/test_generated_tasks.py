"""The tasks of the SmolLM2 recipes: right answers, splits by content, and what is held out."""

from __future__ import annotations

import json
import re

import pytest

from cohort.data.tasks import KINDS, NEW_KINDS, NEW_WORDING, ONE, TWO, json_records, load_task, word_problems
from cohort.errors import PromptError
from cohort_verify.instruction_following.reward import instructions
from cohort_verify.math.answer import math_answer


def text(row):
    (message,) = row["prompt"]
    assert message["role"] == "user"
    return message["content"]


@pytest.mark.parametrize("test", ["new_rows", "new_wording", "new_kind"])
def test_every_value_of_a_record_is_in_its_sentence_and_the_record_scores(test):
    rows = load_task("json_records", "held_out", 0, {"test": test, "count": 60})
    checks = [row["instructions"] for row in rows]
    for row in rows:
        record = json.loads(row["answer"])
        (kind,) = [kind for kind, (keys, _) in KINDS.items() if keys == tuple(record)]
        assert (kind in NEW_KINDS) == (test == "new_kind")
        assert all(f'"{key}"' in text(row) for key in record)
        assert all(re.search(rf"\b{value}\b", text(row)) for value in record.values())
        assert text(row).startswith(NEW_WORDING[:10]) == (test == "new_wording")
    golds = [row["answer"] for row in rows]
    assert instructions(golds, instructions=checks) == [1.0] * 60
    assert instructions([json.dumps(json.loads(gold), indent=2) for gold in golds], instructions=checks) == [1.0] * 60
    for spoil in ("```json\n{}\n```", "Here is the JSON: {}", "{}\nIs there anything else?"):
        assert instructions([spoil.replace("{}", gold) for gold in golds], instructions=checks) == [0.0] * 60
    quoted = [json.dumps({key: str(value) for key, value in json.loads(gold).items()}) for gold in golds]
    has_text_only = [float(gold == other) for gold, other in zip(golds, quoted, strict=True)]
    assert instructions(quoted, instructions=checks) == has_text_only, "a number in quotes is no number"


def test_records_are_split_by_their_content_whatever_the_seed():
    train = {row["answer"] for seed in range(4) for row in json_records("train", seed, count=600)}
    held_out = {row["answer"] for seed in range(4) for row in json_records("held_out", seed, count=600)}
    assert len(train) > 1200
    assert len(held_out) > 700
    assert not train & held_out
    assert {tuple(json.loads(answer)) for answer in train} == {
        keys for kind, (keys, _) in KINDS.items() if kind not in NEW_KINDS
    }
    assert not [row for row in json_records("train", 0, count=600) if text(row).startswith(NEW_WORDING[:10])]


def test_word_problems_are_split_by_their_text_whatever_the_seed():
    train = {text(row) for seed in range(3) for row in word_problems("train", seed, count=2000)}
    held_out = {text(row) for seed in range(3) for row in word_problems("held_out", seed, count=2000)}
    assert len(train) > 5000
    assert not train & held_out


def test_word_problems_by_hand():
    """The answers of all 22 kinds for one set of numbers."""
    numbers = {"a": 12, "b": 30, "c": 40, "d": 4, "m": 7, "n": 5, "p": 60}
    assert [solve(**numbers) for _, solve in ONE] == [42, 42, 42, 28, 28, 28, 35, 35, 35, 12, 12, 12]
    assert [solve(**numbers) for _, solve in TWO] == [38, 58, 54, 47, 31, 46, 24, 48, 31, 8]


def test_answers_are_positive_and_the_numbers_of_a_solution_are_in_the_text():
    for operations, problems in ((1, ONE), (2, TWO)):
        rows = word_problems("train", 1, operations=operations, count=600)
        assert all(int(row["answer"]) > 0 for row in rows)
        assert all(len(re.findall(r"\d+", text(row))) == 1 + operations or "more than" in text(row) for row in rows)
        assert len({re.sub(r"\d+|[A-Z][a-z]+", "", text(row)) for row in rows}) > len(problems)
    answers = [row["answer"] for row in word_problems("train", 0, count=50)]
    said = [f"That is {answer} in all, because it is 7 and more: {answer}." for answer in answers]
    assert math_answer(said, answers, pattern=r"-?\d+(?:,\d{3})*(?:\.\d+)?") == [1.0] * 50


@pytest.mark.parametrize(
    ("name", "split", "args", "message"),
    [
        ("json_records", "test", {}, "known: train, held_out"),
        ("json_records", "train", {"test": "new_kind"}, "only for held-out rows"),
        ("json_records", "held_out", {"test": "new_kinds"}, "did you mean 'new_kind'"),
        ("json_records", "train", {"count": 601}, "from 1 to 600"),
        ("word_problems", "test", {}, "known: train, held_out"),
        ("word_problems", "train", {"operations": 3}, "give 1, 2, or 0"),
        ("word_problems", "train", {"count": 0}, "from 1 to 50000"),
    ],
)
def test_wrong_requests_are_explained(name, split, args, message):
    with pytest.raises(PromptError, match=message):
        load_task(name, split, 0, args)
