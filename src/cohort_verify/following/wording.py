"""Checkers of the wording: keywords, numbers of words and sentences, paragraphs, case, punctuation, the beginning and the end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cohort_verify.following.table import (
    WORD,
    checker,
    compare_count,
    has_word,
    list_words,
    read_count,
    read_letter,
    read_phrase,
    read_phrases,
    read_relation,
    read_word,
)

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
