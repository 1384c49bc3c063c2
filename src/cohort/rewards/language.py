r"""Scores whether a completion is written in the target language, by the scripts of its words: Latin, Han, Cyrillic, ...

Reasoning trained only by reward drifts into a mixture of languages; DeepSeek-R1 rewarded the share of words in the target language to
prevent that. Here the script identifies a word's language, so Chinese inside English is detected, and French inside English is not:
stop words would distinguish those only in long texts, and a policy soon learns to insert them. Notation is not counted: Latin and
Greek letters in mathematics, code, links and tags, variables, and the names in NOTATION. Letters of other scripts always count, so that
foreign text cannot hide in a code block or in \text{}.

Single characters are folded (full-width, mathematical and circled letters become ordinary ones). Whole texts are never normalised: Unicode
normalisation takes time quadratic in a run of combining marks.
"""

from __future__ import annotations

import difflib
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from cohort_verify.text import text_of

Scripts = frozenset[str]

SCRIPT_OF_NAME = {
    "CJK": "Han",
    "KANGXI": "Han",
    "IDEOGRAPHIC": "Han",
    "VERTICAL": "Hiragana",
    "KATAKANA-HIRAGANA": "Katakana",
    "HANGZHOU": "Han",
    "MODIFIER": "",
}
"""First word of a character's Unicode name -> script, if they differ; "" for signs that are not letters of a word."""

CARDINALS = "ℵℶℷℸ"
"""Mathematical symbols, although Unicode folds them into Hebrew."""

MAX_CHARS = 250_000
"""Only this many characters at the end of a text are scored, which bounds the time for any text."""

UNSPACED = frozenset(
    ["Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Javanese", "Balinese", "Yi"]
)
"""Scripts without spaces between words: each of their letters counts as one word."""

ALPHABETS_OF_NOTATION = frozenset(["Latin", "Greek"])

FUNCTIONS_AND_UNITS = """
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp lim sup inf max min arg det dim ker mod gcd lcm
    deg sqrt sum int mm cm dm km mg kg ml kb mb gb tb ms ns hz khz mhz ghz kw pa mol iff qed http https www
"""
NOTATION = frozenset(FUNCTIONS_AND_UNITS.split())
"""Latin words with the same spelling in every language."""


def read_languages(table: str) -> dict[str, Scripts]:
    lines = [line.split(":") for line in table.strip().splitlines()]
    return {code: frozenset(scripts.split()) for scripts, codes in lines for code in codes.split()}


LANGUAGES = read_languages(
    """
    Latin: en fr de es it pt nl sv da no nb nn fi is et lv lt pl cs sk sl hr bs hu ro sq tr az uz vi id ms tl sw eu ca gl ga cy
    Latin: mt af zu xh so ha yo ig la eo
    Cyrillic: ru uk be bg mk kk ky tg mn
    Cyrillic Latin: sr
    Han Bopomofo: zh
    Han Hiragana Katakana: ja
    Hangul: ko
    Arabic: ar fa ur ps
    Hebrew: he yi
    Greek: el
    Devanagari: hi mr ne sa
    Bengali: bn as
    Gurmukhi: pa
    Gujarati: gu
    Oriya: or
    Tamil: ta
    Telugu: te
    Kannada: kn
    Malayalam: ml
    Sinhala: si
    Thai: th
    Lao: lo
    Khmer: km
    Myanmar: my
    Tibetan: bo
    Georgian: ka
    Armenian: hy
    Ethiopic: am ti
    """
)
"""Language code -> its scripts."""

NAMED = {**{script.lower(): frozenset([script]) for scripts in LANGUAGES.values() for script in scripts}, **LANGUAGES}
"""The values of target_language besides "auto"."""


def language_consistency(
    completions: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    target_language: str | Sequence[str] = "auto",
    **columns: Any,
) -> list[float | None]:
    """Share of the completion's words in the target's scripts, 0.0 to 1.0; 0.0 without words.

    `target_language` is a language code ("zh", "pt-BR"), a script ("Latin"), or "auto": the most frequent script of the prompt's
    words (of the last user message in a chat). The score is None, no opinion, if the prompt has no words. A column
    `target_language` sets it for each row.
    """
    wanted = [target_language] * len(completions) if isinstance(target_language, str) else list(target_language)
    if "auto" in wanted and prompts is None:
        raise ValueError('target_language: "auto" reads the prompts; pass prompts, or name a language such as "en"')
    prompts = [""] * len(completions) if prompts is None else prompts
    shares: list[float | None] = []
    for completion, prompt, name in zip(completions, prompts, wanted, strict=True):
        scripts = find_prompt_scripts(prompt) if name == "auto" else find_named_scripts(name)
        shares.append(None if scripts is None else measure_share(text_of(completion)[-MAX_CHARS:], scripts))
    return shares


def measure_share(text: str, scripts: Scripts) -> float:
    counts = count_words(text)
    total = sum(counts.values())
    return sum(count for found, count in counts.items() if found <= scripts) / total if total else 0.0


# ---------------------------------------------------------------------------------------------------------------------
# The target
# ---------------------------------------------------------------------------------------------------------------------


def find_named_scripts(name: Any) -> Scripts:
    """The scripts of a language code or a script's name. A region or variant ("zh-Hans") is ignored."""
    key = re.split("[-_]", name.strip().lower())[0] if isinstance(name, str) else ""
    if key in NAMED:
        return NAMED[key]
    close = difflib.get_close_matches(key, NAMED, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise ValueError(
        f'target_language: unknown language code or script {name!r}{hint} Give "auto", a code ("en", "zh", "ru") or a '
        'script ("Latin", "Han", "Cyrillic")'
    )


def find_prompt_scripts(prompt: Any) -> Scripts | None:
    """The scripts of the question; None without words. Han with kana is Japanese, Han without it Chinese."""
    counts: Counter[str] = Counter()
    for scripts, count in count_words(find_question(prompt)[-MAX_CHARS:]).items():
        if len(scripts) == 1:
            counts.update({next(iter(scripts)): count})
    japanese, chinese = LANGUAGES["ja"], LANGUAGES["zh"]
    east_asian = japanese if counts["Hiragana"] + counts["Katakana"] else chinese
    groups: Counter[Scripts] = Counter()
    for script, count in counts.items():
        groups.update({east_asian if script in japanese | chinese else frozenset([script]): count})
    return groups.most_common(1)[0][0] if groups.total() else None


def find_question(prompt: Any) -> str:
    """Text of the prompt; for a chat, of its last user message, since a system message may be in another language."""
    if isinstance(prompt, str):
        return prompt
    questions = [message for message in prompt if message.get("role") == "user"]
    return text_of(questions[-1:] or prompt)


# ---------------------------------------------------------------------------------------------------------------------
# Words
# ---------------------------------------------------------------------------------------------------------------------

MARK, DIGIT, BREAK = "m", "d", " "
FIRST_SPACED, FIRST_UNSPACED = 0xE000, 0xF000
WORD = re.compile("[\uf000-\uf8ff]|[\ue000-\uefffmd]+")
"""A word, in a text whose characters are replaced by their kinds: a letter of an unspaced script, or a run of other letters."""


def count_words(text: str) -> Counter[Scripts]:
    """Number of words by their set of scripts; a word with several scripts counts for the set of them."""
    names, kinds = replace_by_kinds(text)
    spans = find_notation(text)
    span = next(spans, None)
    counts: Counter[Scripts] = Counter()
    for word in WORD.finditer(kinds):
        while span is not None and span[1] <= word.start():
            span = next(spans, None)
        scripts = frozenset(names[letter] for letter in set(word.group()) if letter in names)
        in_notation = span is not None and span[0] < word.end()
        if scripts and not (scripts <= ALPHABETS_OF_NOTATION and (in_notation or is_notation(word, text, scripts))):
            counts[scripts] += 1
    return counts


def replace_by_kinds(text: str) -> tuple[dict[str, str], str]:
    """(script of each private-use letter, the text in these letters): same length, same positions."""
    numbers: dict[str, int] = {}
    table: dict[int, str] = {}
    for character in set(text):
        script = find_script(character)
        if script:
            number = numbers.setdefault(script, len(numbers))
            table[ord(character)] = chr((FIRST_UNSPACED if script in UNSPACED else FIRST_SPACED) + number)
        elif character == "_" or character.isdecimal():
            table[ord(character)] = DIGIT
        else:
            table[ord(character)] = MARK if is_mark(character) else BREAK
    names = {chr(start + number): script for script, number in numbers.items() for start in (FIRST_SPACED, FIRST_UNSPACED)}
    return names, text.translate(table)


def is_notation(word: re.Match[str], text: str, scripts: Scripts) -> bool:
    """Whether a word of Latin or Greek letters is a variable, an identifier, a set of points or a name common to all languages."""
    written = text[word.start() : word.end()]
    letters = len(written) - word.group().count(MARK)
    return (
        letters == 1
        or DIGIT in word.group()
        or (written.isupper() and letters <= 4)
        or (len(scripts) == 2 and letters <= 3)  # a difference or a unit: "Δx", "μm"
        or (letters <= 6 and written.lower() in NOTATION)
    )


def is_mark(character: str) -> bool:
    """Whether the character belongs to the letter before it: accents, vowel signs, and the two joiners of Persian and Hindi."""
    return unicodedata.category(character).startswith("M") or character in "\u200c\u200d"


@functools.lru_cache(maxsize=1 << 16)
def find_script(character: str) -> str:
    """Script of a letter, "" for other characters; full-width, mathematical and circled letters count as ordinary ones."""
    if unicodedata.category(character)[0] in "CMZ" or character in CARDINALS:
        return ""
    folded = unicodedata.normalize("NFKC", character)
    letter = next((one for one in folded if unicodedata.category(one).startswith("L")), "")
    first = unicodedata.name(letter, "").split(" ")[0] if letter else ""
    return SCRIPT_OF_NAME.get(first, first.capitalize())


# ---------------------------------------------------------------------------------------------------------------------
# Notation
# ---------------------------------------------------------------------------------------------------------------------

ENVIRONMENTS = "equation|align|aligned|alignat|gather|gathered|multline|split|eqnarray|cases|array|[pbBvV]?matrix|math"
DELIMITER = re.compile(
    rf"\\(?P<environment>begin|end)\{{(?P<name>{ENVIRONMENTS})\*?\}}"
    r"|(?P<whole>https?://[^\s<>]+|</?[A-Za-z][\w-]{0,30}>|\\(?:begin|end)\{[A-Za-z]{1,30}\*?\}|\\[A-Za-z]+)"
    r"|(?P<fence>```)|(?P<tick>`)"
    r"|(?P<display>\$\$)|(?P<dollar>\$)"
    r"|\\(?P<round>[()])|\\(?P<square>[\[\]])"
    r"|\\[\\$`]"
)
INLINE = frozenset(["tick", "dollar", "round"])
MAX_INLINE_CHARS = 300
"""Longest inline code or mathematics; anything longer is text between two stray marks."""


def find_notation(text: str) -> Iterator[tuple[int, int]]:
    """Spans of mathematics, code, links and tags, in order. A mark without a closing mark is ignored.

    One pass from the end finds the next closing mark of each kind, so that a million opening marks take a million steps.
    """
    marks = [mark for mark in DELIMITER.finditer(text) if mark.lastgroup]
    closing: list[int] = [0] * len(marks)
    nearest: dict[str, int] = {}
    for number in range(len(marks) - 1, -1, -1):
        kind, opens, closes = read_role(marks[number], text)
        if opens:
            closing[number] = nearest.get(kind, 0)
        if closes:
            nearest[kind] = number
    number = 0
    while number < len(marks):
        mark, last = marks[number], closing[number]
        kind = str(mark.lastgroup)
        if last and not (kind in INLINE and marks[last].start() - mark.end() > MAX_INLINE_CHARS):
            yield mark.start(), marks[last].end()
            number = last
        elif kind in ("whole", "name"):
            yield mark.span()
        number += 1


def read_role(mark: re.Match[str], text: str) -> tuple[str, bool, bool]:
    """(kind, whether it can open, whether it can close). "$5 and $10" is money: an opening dollar is followed by text, a closing one
    preceded by it."""
    kind = str(mark.lastgroup)
    before, after = text[mark.start() - 1 : mark.start()], text[mark.end() : mark.end() + 1]
    if kind == "dollar":
        return kind, bool(after.strip()), bool(before.strip()) and not after.isdecimal()
    if kind in ("round", "square"):
        return kind, mark.group(kind) in "([", mark.group(kind) in ")]"
    if kind == "name":
        return f"environment {mark['name']}", mark["environment"] == "begin", mark["environment"] == "end"
    return kind, kind != "whole", kind != "whole"


language_consistency.reads = ("completions", "prompts", "target_language")  # type: ignore[attr-defined]
language_consistency.per_completion = True  # type: ignore[attr-defined]
