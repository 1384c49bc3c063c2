"""The table of instructions: verdicts written by hand, planted errors that it must detect, and a comparison with another implementation."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from cohort.rewards import instructions
from cohort_verify.instruction_following.checkers import CHECKERS, Checker
from instruction_pairs import PAIRS, ROWS


def find_differing(pairs):
    """The rows of the table with another verdict than written."""
    scores = instructions([pair[1] for pair in pairs], [[pair[0]] for pair in pairs])
    return [pair for pair, score in zip(pairs, scores, strict=True) if score != float(pair[2])]


def test_every_row_of_the_table():
    assert find_differing(PAIRS) == []
    assert len(PAIRS) >= 250
    assert len({json.dumps(pair[:2], sort_keys=True) for pair in PAIRS}) == len(PAIRS)


def test_every_checker_has_rows_that_follow_and_rows_that_do_not():
    assert list(ROWS) != []
    assert set(ROWS) == set(CHECKERS)
    counts = Counter((pair[0]["id"], pair[2]) for pair in PAIRS)
    assert all(counts[name, True] >= 1 and counts[name, False] >= 1 for name in CHECKERS)


PLANTED = {
    "keywords:existence": lambda text, keywords: all(word in text.lower() for word in keywords),
    "keywords:forbidden_words": lambda text, forbidden_words: not any(word in text for word in forbidden_words),
    "keywords:frequency": lambda text, keyword, frequency, relation: text.lower().count(keyword) >= frequency,
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation: text.count(letter) >= let_frequency,
    "length_constraints:number_words": lambda text, num_words, relation: (
        len(text.split()) < num_words if relation == "less than" else len(text.split()) >= num_words
    ),
    "count:word_count_range": lambda text, min_words, max_words: min_words <= len(text.split()) < max_words,
    "count:unique_word_count": lambda text, N: len(text.split()) >= N,
    "count:numbers": lambda text, N: len(re.findall(r"\d+", text)) == N,
    "length_constraints:number_sentences": lambda text, num_sentences, relation: (
        (text.count(".") < num_sentences) == (relation == "less than")
    ),
    "length_constraints:number_paragraphs": lambda text, num_paragraphs: len(text.split("***")) == num_paragraphs,
    "length_constraints:nth_paragraph_first_word": lambda text, num_paragraphs, nth_paragraph, first_word: [
        *text.lower().split("\n\n"),
        "",
        "",
    ][nth_paragraph - 1].startswith(first_word),
    "change_case:english_capital": lambda text: text.isupper(),
    "change_case:english_lowercase": lambda text: text.islower(),
    "change_case:capital_word_frequency": lambda text, capital_frequency, capital_relation: (
        (sum(word.isupper() for word in text.split()) < capital_frequency) == (capital_relation == "less than")
    ),
    "punctuation:no_comma": lambda text: "," not in text,
    "startend:quotation": lambda text: text.strip()[0] == text.strip()[-1] == '"',
    "startend:end_checker": lambda text, end_phrase: text.strip().endswith(end_phrase),
    "detectable_content:number_placeholders": lambda text, num_placeholders: text.count("[") >= num_placeholders,
    "detectable_content:postscript": lambda text, postscript_marker: postscript_marker.lower() in text.lower(),
    "detectable_format:number_bullet_lists": lambda text, num_bullets: (
        len(re.findall(r"^\s*[*-]", text, re.MULTILINE)) == num_bullets
    ),
    "detectable_format:constrained_response": lambda text: "My answer is" in text,
    "detectable_format:number_highlighted_sections": lambda text, num_highlights: (
        len(re.findall(r"\*[^*\n]+\*", text)) >= num_highlights
    ),
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: (
        text.count(section_spliter) >= num_sections
    ),
    "detectable_format:title": lambda text: "<<" in text and ">>" in text,
    "combination:two_responses": lambda text: len(text.split("******")) == 2,
    "combination:repeat_prompt": lambda text, prompt_to_repeat: text.startswith(prompt_to_repeat),
    "detectable_format:json_format": lambda text: is_json(text),
    "json_record": lambda text, record: is_json(text) and json.loads(text) == record,
}
"""Id -> a checker as one writes it first."""


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_noticed(name, monkeypatch):
    rows = [pair for pair in PAIRS if pair[0]["id"] == name]

    def check(text, **args):
        return bool(text) and PLANTED[name](text, **args)

    monkeypatch.setitem(CHECKERS, name, Checker(check, CHECKERS[name].readers))
    assert find_differing(rows)


def test_an_error_is_planted_in_every_checker():
    assert set(PLANTED) == set(CHECKERS)


# ---------------------------------------------------------------------------------------------------------------------
# A second opinion
# ---------------------------------------------------------------------------------------------------------------------


def test_the_table_says_how_often_the_second_opinion_differs():
    """It knows no json_record; docs/instruction-rewards.md has these figures."""
    compared = [pair for pair in PAIRS if pair[0]["id"] != "json_record"]
    assert (len(compared), sum(bool(pair[4]) for pair in compared)) == (225, 74)
    assert not any(pair[4] for pair in PAIRS if pair[0]["id"] == "json_record")


def test_the_second_opinion_is_as_written(monkeypatch):
    """pip install if-verifiable==0.1.2, and nltk's punkt_tab in NLTK_DATA, in a separate environment."""
    pytest.importorskip("if_verifiable", reason="needs if-verifiable 0.1.2, which downloads data of nltk as it runs")
    import langdetect
    from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT as IFBENCH
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT as IFEVAL

    monkeypatch.setattr(langdetect.DetectorFactory, "seed", 0)  # without it two calls may differ
    wrong = []
    for entry, completion, follows, about, argument in PAIRS:
        args = dict(entry)
        known = {**IFEVAL, **IFBENCH}.get(args.pop("id"))
        if known is not None:
            judge = known(entry["id"])
            judge.build_description(**args)
            if (bool(judge.check_following(completion)) != follows) != bool(argument):
                wrong.append((entry, completion, about))
    assert wrong == []
