"""Checkers of the shape: placeholders, lists, sections, titles, answers of a fixed form, and JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from cohort_verify.following.table import checker, has_word, list_words, read_count, read_phrase
from cohort_verify.following.wording import MARKUP, split_at, split_paragraphs

MAX_RECORD_DEPTH = 50
PLACEHOLDER = re.compile(r"\[[^\[\]\n]++\](?!\()")
TITLE = re.compile(r"<<[^<>\n]+>>")
HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,3})(?=[^\s*])([^*\n]*[^\s*])\1(?!\*)")
BULLET = re.compile(r"[ \t]*[*+-](?:[ \t]+(.*))?")
DIVIDER = re.compile(r"\s*(?:\*[*\s]*|-[-\s]*|_[_\s]*)")
SIX_ASTERISKS = re.compile(r"(?<!\*)\*{6}(?!\*)")
ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@checker("detectable_content:number_placeholders", num_placeholders=read_count)
def has_placeholders(text: str, num_placeholders: int) -> bool:
    """A placeholder such as [address] contains a letter and is no link. The text contains other words, too."""
    held = [any(map(str.isalpha, held)) for held in PLACEHOLDER.findall(text)]
    return sum(held) >= num_placeholders and has_word(PLACEHOLDER.sub("", text))


@checker("detectable_content:postscript", postscript_marker=read_phrase)
def has_postscript(text: str, postscript_marker: str) -> bool:
    """A line of the last paragraph starts with the marker, with words before and after it."""
    letters = r"\s?".join(map(re.escape, postscript_marker.rstrip(".").replace(" ", "").casefold()))
    *before, last = split_paragraphs(text) or [""]
    lines = [line.lstrip(MARKUP).casefold() for line in last.split("\n")]
    for place, line in enumerate(lines):
        if found := re.match(letters + r"(?!\w)", line):
            rest = [line[found.end() :], *lines[place + 1 :]]
            return any(map(has_word, [*before, *lines[:place]])) and any(map(has_word, rest))
    return False


@checker("detectable_format:number_bullet_lists", num_bullets=read_count)
def has_bullets(text: str, num_bullets: int) -> bool:
    """Exactly that many lines "* item" or "- item" at any depth, none of them empty; dividers do not count."""
    found = [BULLET.fullmatch(line) for line in text.split("\n") if not is_divider(line)]
    items = [bullet[1] or "" for bullet in found if bullet]
    return len(items) == num_bullets and all(map(has_word, items))


def is_divider(line: str) -> bool:
    return DIVIDER.fullmatch(line) is not None and len("".join(line.split())) >= 3


@checker("detectable_format:constrained_response")
def is_constrained_answer(text: str) -> bool:
    """Exactly one of IFEval's three answers."""
    return text.strip().strip("*_\"'`“”") in ANSWERS


@checker("detectable_format:number_highlighted_sections", num_highlights=read_count)
def has_highlights(text: str, num_highlights: int) -> bool:
    return sum(has_word(highlight[2]) for highlight in HIGHLIGHT.finditer(text)) >= num_highlights


@checker("detectable_format:multiple_sections", section_spliter=read_phrase, num_sections=read_count)
def has_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """Lines that begin with "Section 1", "Section 2", ... in this order, each followed by a word."""
    heading = re.compile(rf"[#*_\s]*{re.escape(section_spliter)}\s?(\d{{1,4}})(?!\d)")
    numbers: list[int] = []
    filled: set[int] = set()
    for line in text.split("\n"):
        found = heading.match(line)
        if found:
            numbers.append(int(found[1]))
        if numbers and has_word(line[found.end() if found else 0 :]):
            filled.add(len(numbers))
    return numbers == list(range(1, num_sections + 1)) and len(filled) == num_sections


@checker("detectable_format:title")
def has_title(text: str) -> bool:
    """A <<title>> with a word in it, and words outside it."""
    return any(has_word(title) for title in TITLE.findall(text)) and has_word(TITLE.sub("", text))


@checker("combination:two_responses")
def has_two_responses(text: str) -> bool:
    """Two responses with different words; dividers before the first and after the second are ignored."""
    pieces = split_at(SIX_ASTERISKS, text)
    return len(pieces) == 2 and all(map(has_word, pieces)) and list_words(pieces[0]) != list_words(pieces[1])


@checker("combination:repeat_prompt", prompt_to_repeat=read_phrase)
def repeats_prompt(text: str, prompt_to_repeat: str) -> bool:
    """The request letter for letter, except for white space, and then an answer."""
    body = " ".join(text.split())
    rest = body.removeprefix(prompt_to_repeat).strip()
    return rest != body and has_word(rest) and rest != prompt_to_repeat


# ---------------------------------------------------------------------------------------------------------------------
# JSON
# ---------------------------------------------------------------------------------------------------------------------


def read_json(text: str) -> Any:
    """The one JSON value of the text; ValueError for repeated keys, NaN, infinite and overlong numbers, and deep nesting."""

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key occurs twice")
        return dict(pairs)

    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def read_float(digits: str) -> float:
        if not math.isfinite(number := float(digits)):
            raise ValueError("a number is too large")
        return number

    try:
        return json.loads(text, object_pairs_hook=read_object, parse_constant=refuse_constant, parse_float=read_float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def measure_depth(value: Any) -> int:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(measure_depth, members), default=0)


def is_same_json(found: Any, expected: Any) -> bool:
    """Equality of JSON values: numbers by value (1 equals 1.0), true is not 1, keys in any order, lists in order."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(is_same_json(found[key], expected[key]) for key in expected)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_same_json, found, expected))
    return isinstance(found, bool) == isinstance(expected, bool) and bool(found == expected)


def read_record(value: Any) -> Any:
    """The expected JSON value: a dict or a list, or any value as JSON text."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        record = read_json(text)
        depth = measure_depth(record)
    except (TypeError, ValueError, RecursionError) as problem:
        raise ValueError(f"a JSON value, or JSON text, is expected ({problem})") from None
    if depth > MAX_RECORD_DEPTH:
        raise ValueError(f"at most {MAX_RECORD_DEPTH} levels of nesting are expected")
    return record


@checker("json_record", record=read_record)
def is_record(text: str, record: Any) -> bool:
    """The text is exactly one JSON value, which equals the record: no fence, no other word."""
    try:
        return is_same_json(read_json(text), record)
    except ValueError:
        return False


@checker("detectable_format:json_format")
def is_json(text: str) -> bool:
    """A non-empty JSON object or list, bare or in one code fence."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```") and len(body) > 6:
        body = re.sub(r"\A(?i:json)?\s", "", body[3:-3])
    try:
        value = read_json(body)
    except ValueError:
        return False
    return isinstance(value, dict | list) and bool(value)
