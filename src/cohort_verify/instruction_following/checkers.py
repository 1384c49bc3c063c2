"""The checkers of instructions by id, and the readers of their arguments, which are validated before a run.

First the wording: keywords, numbers of words and sentences, paragraphs, case, punctuation, the beginning and the end. Then the
shape: placeholders, lists, sections, titles, fixed answers and JSON.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Reader = Callable[[Any], Any]
"""Reads an argument; raises ValueError with the expected kind."""
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


def has_word(text: str) -> bool:
    """Return whether the text contains a letter or a digit."""
    return WORD.search(text) is not None


def list_words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def read_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 1:
        raise ValueError("a whole number of at least 1 is expected")
    return int(value)


def read_relation(value: Any) -> str:
    if value not in ("less than", "at least"):
        raise ValueError("'less than' or 'at least' is expected")
    return str(value)


def read_phrase(value: Any) -> str:
    if not isinstance(value, str) or not has_word(value):
        raise ValueError("a text with at least one letter or digit is expected")
    return " ".join(value.split())


def read_phrases(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError("a list of texts is expected")
    return [read_phrase(phrase) for phrase in value]


def read_letter(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or value.isspace():
        raise ValueError("a single character is expected")
    return value.casefold()


def read_word(value: Any) -> str:
    if not isinstance(value, str) or not WORD.fullmatch(value.strip()):
        raise ValueError("a single word is expected")
    return value.strip().casefold()


@dataclass(frozen=True)
class Checker:
    """One kind of instruction."""

    follows: Callable[..., bool]
    readers: Mapping[str, Reader]
    """Its arguments, all required."""


CHECKERS: dict[str, Checker] = {}
"""The checkers by id. Instructions of IFEval and IFBench keep their ids."""


def checker(name: str, **readers: Reader) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    def register(follows: Callable[..., bool]) -> Callable[..., bool]:
        CHECKERS[name] = Checker(follows, readers)
        return follows

    return register


def read_instruction(entry: Any) -> tuple[str, Callable[[str], bool]]:
    """Return (id, check of a text) for {"id": ..., arguments}. Raises ValueError if the entry is invalid. None means no
    argument.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
        raise ValueError(f'an instruction is a dict such as {{"id": "punctuation:no_comma"}}, not {str(entry)[:100]!r}')
    name = entry["id"]
    if name not in CHECKERS:
        close = difflib.get_close_matches(name, CHECKERS, n=1, cutoff=0.5)
        raise ValueError(f"unknown id {name[:100]!r}{f'; did you mean {close[0]!r}?' if close else ''}")
    known, given = CHECKERS[name], {key: value for key, value in entry.items() if key != "id" and value is not None}
    for argument in {**given, **known.readers}:
        if argument not in known.readers:
            expected = f"its arguments: {', '.join(known.readers)}" if known.readers else "it takes none"
            raise ValueError(f"{name} has no argument {argument!r}; {expected}")
        if argument not in given:
            raise ValueError(f"{name} needs the argument {argument!r}")
        try:
            given[argument] = known.readers[argument](given[argument])
        except ValueError as problem:
            raise ValueError(f"{name}: {argument} = {str(given[argument])[:100]!r}: {problem}") from None
    check = functools.partial(known.follows, **given)
    check("")  # contradictory arguments raise on any text
    return name, check


def compare_count(count: int, relation: str, bound: int) -> bool:
    return count < bound if relation == "less than" else count >= bound


# ---------------------------------------------------------------------------------------------------------------------
# Wording
# ---------------------------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"(?<![\w.,])\d++(?:[.,]\d++)*+")
PARAGRAPH_DIVIDER = re.compile(r"^[ \t]*\*{3}[ \t]*$", re.MULTILINE)
LIST_ITEM = re.compile(r"[ \t]*(?:[*+-]|\d{1,4}[.)])[ \t]+")
COMMAS = ",\u060c\u3001\uff0c\ufe50\ufe51\uff64\u201a"
ENDS = (".", "!", "?", "…")
CLOSERS = "\"'”’»)]}*_`"
MARKUP = "*_#>`\"'“‘ \t"
ABBREVIATIONS = {"mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "jr.", "sr.", "vs.", "e.g.", "i.e."}


def count_phrase(text: str, phrase: str) -> int:
    """Occurrences of the phrase as whole words, without regard to case and line breaks."""
    left, right = (r"(?<!\w)" if phrase[0].isalnum() else ""), (r"(?!\w)" if phrase[-1].isalnum() else "")
    return len(re.findall(left + re.escape(phrase.casefold()) + right, " ".join(text.casefold().split())))


def split_paragraphs(text: str) -> list[str]:
    """The non-empty paragraphs between blank lines."""
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return [paragraph for paragraph in lines.split("\n\n") if paragraph.strip()]


def split_at(divider: re.Pattern[str], text: str) -> list[str]:
    """The pieces of the text between dividers, without an empty first or last piece."""
    pieces = divider.split(text)
    last = len(pieces) - (not has_word(pieces[-1]))
    return pieces[not has_word(pieces[0]) : last]


def split_blocks(text: str) -> list[str]:
    """Paragraphs, and each list item as a block of its own, without its marker."""
    blocks: list[list[str]] = [[]]
    for line in text.split("\n"):
        item = LIST_ITEM.match(line)
        if item or not line.strip():
            blocks.append([])
        blocks[-1].append(line[item.end() :] if item else line)
    return [" ".join(block) for block in blocks]


def count_sentences(text: str, unfinished: bool) -> int:
    """Sentences with a word in them; with `unfinished`, also words without a full stop at the end of a paragraph or list item."""
    count = 0
    for block in split_blocks(re.sub(r"[。！？]", ". ", text)):
        tokens, open_words = block.split(), False
        for place, token in enumerate(tokens):
            bare = token.rstrip(CLOSERS)
            open_words = open_words or has_word(bare)
            initial = len(bare.lstrip(MARKUP)) == 2 and bare[-2].isalpha() and bare[-1] == "."
            pause = (initial or bare.lstrip(MARKUP).casefold() in ABBREVIATIONS) and place + 1 < len(tokens)
            if bare.endswith(ENDS) and open_words and not pause:
                count, open_words = count + 1, False
        count += open_words and unfinished
    return count


@checker("keywords:existence", keywords=read_phrases)
def has_keywords(text: str, keywords: Sequence[str]) -> bool:
    return all(count_phrase(text, keyword) for keyword in keywords)


@checker("keywords:forbidden_words", forbidden_words=read_phrases)
def avoids_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(count_phrase(text, word) for word in forbidden_words)


@checker("keywords:frequency", keyword=read_phrase, frequency=read_count, relation=read_relation)
def has_keyword_often(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return compare_count(count_phrase(text, keyword), relation, frequency)


@checker("keywords:letter_frequency", letter=read_letter, let_frequency=read_count, let_relation=read_relation)
def has_letter_often(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compare_count(text.casefold().count(letter), let_relation, let_frequency)


@checker("length_constraints:number_words", num_words=read_count, relation=read_relation)
def has_number_of_words(text: str, num_words: int, relation: str) -> bool:
    return compare_count(len(list_words(text)), relation, num_words)


@checker("count:word_count_range", min_words=read_count, max_words=read_count)
def has_words_in_range(text: str, min_words: int, max_words: int) -> bool:
    if min_words > max_words:
        raise ValueError(f"count:word_count_range: min_words = {min_words} is more than max_words = {max_words}")
    return min_words <= len(list_words(text)) <= max_words


@checker("count:unique_word_count", N=read_count)
def has_different_words(text: str, N: int) -> bool:
    return len(set(list_words(text))) >= N


@checker("count:numbers", N=read_count)
def has_numbers(text: str, N: int) -> bool:
    return len(NUMBER.findall(text)) == N


@checker("length_constraints:number_sentences", num_sentences=read_count, relation=read_relation)
def has_number_of_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return compare_count(count_sentences(text, unfinished=relation == "less than"), relation, num_sentences)


@checker("length_constraints:number_paragraphs", num_paragraphs=read_count)
def has_divided_paragraphs(text: str, num_paragraphs: int) -> bool:
    """The divider *** is a line of its own; dividers before the first and after the last paragraph are ignored."""
    pieces = split_at(PARAGRAPH_DIVIDER, text)
    return len(pieces) == num_paragraphs and all(map(has_word, pieces))


@checker(
    "length_constraints:nth_paragraph_first_word", num_paragraphs=read_count, nth_paragraph=read_count, first_word=read_word
)
def has_paragraph_with_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    if nth_paragraph > num_paragraphs:
        raise ValueError(
            f"length_constraints:nth_paragraph_first_word: nth_paragraph = {nth_paragraph} of num_paragraphs = {num_paragraphs}"
        )
    paragraphs = split_paragraphs(text)
    if len(paragraphs) != num_paragraphs or not all(map(has_word, paragraphs)):
        return False
    return list_words(paragraphs[nth_paragraph - 1])[0] == first_word


def is_english(text: str) -> bool:
    """Whether nine of ten letters are A to Z; the language itself is not checked."""
    letters = sum(map(str.isalpha, text))
    return sum(letter.isascii() and letter.isalpha() for letter in text) >= max(0.9 * letters, 1)


@checker("change_case:english_capital")
def is_capital(text: str) -> bool:
    return text.isupper() and is_english(text)


@checker("change_case:english_lowercase")
def is_lowercase(text: str) -> bool:
    return text.islower() and is_english(text)


@checker("change_case:capital_word_frequency", capital_frequency=read_count, capital_relation=read_relation)
def has_capital_words(text: str, capital_frequency: int, capital_relation: str) -> bool:
    """A single letter ("I", "A") does not count."""
    capital = sum(word.isupper() and len(word) > 1 for word in WORD.findall(text))
    return compare_count(capital, capital_relation, capital_frequency)


@checker("punctuation:no_comma")
def has_no_comma(text: str) -> bool:
    return not any(comma in text for comma in COMMAS)


@checker("startend:quotation")
def is_quoted(text: str) -> bool:
    """One pair of quotation marks around the whole text; two quotations at its ends are not one."""
    body = text.strip().replace("“", '"').replace("”", '"')
    inner, marks = body[1:-1], body[:1] + body[-1:]
    first = inner.find('"')
    reopened = first >= 0 and not (first > 0 and (inner[first - 1].isspace() or inner[first - 1] in "([{\\—-"))
    return marks == '""' and has_word(inner) and not reopened


@checker("startend:end_checker", end_phrase=read_phrase)
def has_end(text: str, end_phrase: str) -> bool:
    """The text ends with the phrase, except for quotation marks and emphasis, and has words before it."""
    body = " ".join(text.casefold().split()).rstrip(MARKUP)
    end = end_phrase.casefold().rstrip(MARKUP)
    before = body.removesuffix(end)
    return before != body and has_word(before) and not before[-1].isalnum()


# ---------------------------------------------------------------------------------------------------------------------
# Shape
# ---------------------------------------------------------------------------------------------------------------------

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
