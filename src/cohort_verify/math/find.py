r"""Finds the final answer in a completion, and reads reference answers. Linear in the text; nothing is evaluated.

An answer is taken only from a marker, never from the thinking: from the last <answer>...</answer>, which excludes all text
outside it; from the last \boxed{}; from the recipe's pattern; or from the last "#### x" or "answer is x". Boxes joined only by
a comma, "and" or "or" are a list, as \boxed{1} and \boxed{2}; otherwise the last one counts. `guess_answer`, for the lenient
metric, also takes the last formula or number.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any

from cohort_verify.math.expressions import MAX_NUMBER_CHARS
from cohort_verify.math.kinds import Value
from cohort_verify.math.quantities import HEDGES
from cohort_verify.math.readers import MAX_ITEMS, read_answer
from cohort_verify.math.text import MAX_ANSWER_CHARS, normalise
from cohort_verify.text import drop_thinking, find_boxes, find_last_tag

PATTERN_LIMIT_S = 1.0
"""Limit per completion for the recipe's pattern. Some patterns never end on some texts."""
GUESS_CHARS = 2000
"""Length of the end of the text that is searched for a guess."""

BARE_BOX = re.compile(r"\\boxed[ ]?(-?\d+(?:\.\d+)?|[A-Za-z])(?=[ ]?(?:\$|\\[)\]]|\.?[ ]*(?:\n|$)|\.[ ]))")
r"""\boxed 7 before the end of the formula, line or sentence. \boxed 7 + 1 is not a box."""
HASHES = re.compile(r"(?<!#)####(?!#)((?:(?!####)[^\n])*)")
HEADING = re.compile(r"\d+[.)]\s+\S|\(?[A-Za-z0-9][.)]\s+[A-Za-z]{2}")
"""A heading, not an answer: 2. Compute the area; (a) First case"""
HASHED = re.compile(r"[\d+\-−–$\\.(€£]|[A-Za-z]\s?=")
"""The start of an answer behind ####: a number, a formula, or x = 12."""
DOUBLED_BOX = re.compile(r"(?<!\\)\\\\(?=(?:boxed|fbox)\b)")
r"""\\boxed, escaped twice."""
ANSWER_IS = re.compile(
    # The lookahead rejects most positions by their first letter.
    r"(?P<english>(?=[ac])(?<!wrong\s)(?<!incorrect\s)(?<!false\s)(?<!bad\s)(?<!no\s)(?<!not\sthe\s)"
    r"(?:answers?(?:\sto\s(?:the|this|your)\s(?:question|problem))?|\bcorrect\s(?:option|choice))[*_]{0,3}\s?"
    r"(?:(?:is|are|equals|(?:would|should|must|will|can only)\sbe|(?:turns|comes|works)\sout\sto(?:\sbe)?)\b|:|=)"
    r"(?!\s(?:indeed\s)?(?:correct|reasonable|consistent|verified)\b)"
    r"|^[#*_ \t]*(?:the\s)?final\sanswer[*_ \t]*$)"
    # Other languages; "answer:" needs only the word.
    r"|(?=[raо答답])(?:\b(?:respuesta|resposta|risposta|réponse)(?:\s(?:final[ea]?|correcta|corretta|correta))?[*_]{0,3}(?:\s(?:es|é|è|est)\b|\s?[:：])"
    r"|\bantwort[*_]{0,3}(?:\s(?:ist|lautet)\b|\s?:)|\bответ[*_]{0,3}(?:\sравен\b|\s?:|\s[—–-]\s)"
    r"|(?<!错误的)(?<!錯誤的)答案[*_]{0,3}\s?[是为為:：]|答え\s?[は:：]|답\s?[은:：])",
    re.IGNORECASE | re.MULTILINE,
)
"""Announces a final answer. A denial behind it ("es no 5", 是不是 5) becomes part of the answer, which is then unreadable."""
FILLERS = re.compile(
    r"(?:(?:therefore|thus|hence|then|simply|indeed|just|now|clearly|obviously|definitely|certainly|surely|in\sfact|of\scourse|finally"
    r"|exactly|precisely|approximately|approx\.?|about|around|roughly|circa|equal\sto|equals|given\sby|found\sto\sbe)(?:\s*[:,]\s*|\s+))*",
    re.IGNORECASE,
)
"""Words without meaning for the answer, or with that of a rounding sign: approximately 3.14 is 3.14."""
SAID_OF = re.compile(r"([^\d=\\<>]{2,120}?)\s(?:is|are|equals)(?:\sequal\sto)?:?\s(.+)", re.IGNORECASE)
"""Matches "The largest n is 34": a subject without a number, and its value."""
DISPLAYED = ("$$", "$$"), ("\\[", "\\]")
TAKEN_BACK = (
    r"(?:or|alternatively|maybe|perhaps|possibly|probably|potentially|otherwise|else|could|might|may|unless|if|even|"
    r"(?:but|and|then|though|although|while|whereas|however)\s(?:[a-z']+\s){0,4}?(?:could|might|may|maybe|perhaps|possibly|also|or)|"
    r"plus|minus|times|over|multiplied|divided|then\s[a-z]+ed|squared|cubed|doubled|tripled|halved|negated|percent|million|billion|thousand|hundred)\b"
)
"""Beginnings of a clause that changes the value before its comma."""
SENTENCE_END = re.compile(
    rf"[.?](?=\s)|。|[,;](?=\s(?!{TAKEN_BACK})(?:and\s[a-z]{{2}}|(?!and\b)[a-z]{{2}}))|\s(?:because|since)\b"
)
"""A comma does not end the sentence before "or", before a change of the value, or before "and" without a word behind it."""
WHICH_IS = re.compile(r"(?<=\d)\$?, which (?:is|equals) \$?(?=-?\d[\d.,]*\$?\.?(?:\s*$|\s+[A-Z\n]))", re.MULTILINE)
"""The answer is 95 + 82, which is 177."""
FULL_STOP = re.compile(r"[.?](?=\s)|。|です")
"""Ends of a sentence in other languages, for which TAKEN_BACK has no words."""
WITHDRAWN = re.compile(
    r"[\s.?*_。]*(?:(?:or|o|ou|oder|или|或|alternatively|maybe|perhaps|possibly|otherwise)\b|(?:no|wait|actually|hmm|sorry|oops|correction)\b\s?[,.!:—-])",
    re.IGNORECASE,
)
"""Beginnings of a next sentence that takes the answer back: 5. Wait, it is 6."""
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\(((?:[^\\]|\\(?!\)))+)\\\)|\\\[((?:[^\\]|\\(?!\]))+)\\\]")
LAST_NUMBER = re.compile(r"[-−]?(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?[ ]?\\?%?")
MAX_BETWEEN = 120
SET_AS_TEXT = re.compile(r"\\(?:text|textrm|mbox|mathrm)\s?\{([^{}]*)\}")
TYPOGRAPHY = re.compile(r"\\q?quad|\\[()\[\],;:!> \\]|[$~&*\s]")
NAME = r"[A-Za-z](?:_\{?\w{1,3}\}?)?(?: ?\([A-Za-z]\))?"
JOINT = re.compile(rf"(?:[,;]|(?:[,;] ?)?(?:and|or))(?: ?({NAME}) ?=)?")
REFERENCE_JOINT = re.compile(rf"(?:(?:[a-z]{{1,15}} )?(?:[,;]|(?:[,;] ?)?(?:and|or)))?(?: ?({NAME}) ?=)?")
"""Boxes of a reference answer may also stand side by side, or have a unit behind them."""
NAMED = re.compile(rf"(?<![A-Za-z\\])({NAME})\s?=[\s$]*(?:\\[(\[])?\s*$")

Marked = tuple[int, str | None]
"""Position of a marker (-1: none), and the answer behind it."""


class PatternTimeout(Exception):
    """The pattern took too long on this text."""


def find_answer(completion: str, pattern: str = "") -> str | None:
    """Return the final answer as written, or None without a marker. Raises PatternTimeout."""
    text = drop_thinking(completion)
    tagged = find_last_tag(text)
    found = find_marked(text, text, pattern) if tagged is None else find_in_tags(tagged, pattern)
    return found.strip() or None if found is not None else None


def find_in_tags(content: str, pattern: str) -> str:
    """Return the answer at a marker inside the tags, else their whole content."""
    found = find_marked(content, f"<answer>{content}</answer>", pattern)  # a pattern may name the tags
    return content if found is None else found


def find_marked(text: str, searched: str, pattern: str) -> str | None:
    """Return the answer at the strongest marker of the text. The pattern is applied to `searched`."""
    found = find_boxed(BARE_BOX.sub(r"\\boxed{\1}", DOUBLED_BOX.sub(r"\\", text))) if "box" in text else None
    if found is None and pattern:
        found = find_by_pattern(searched, pattern)
    if found is None:
        # The later marker wins: it corrects what came before.
        _, found = max(find_hashed(text), find_announced(text), key=lambda marked: marked[0])
    return found


@functools.lru_cache
def compile_pattern(pattern: str) -> Any:
    """Compile the pattern once. The cache of `regex` itself is slower than searching a short text."""
    import regex

    return regex.compile(pattern)


def find_by_pattern(text: str, pattern: str) -> str | None:
    """Return the last match (its first group if there is one). Uses `regex`, because Python's re would hold all threads
    meanwhile.
    """
    compiled = compile_pattern(pattern)
    try:
        matches = compiled.finditer(text, timeout=PATTERN_LIMIT_S, concurrent=True)
        last = max(matches, key=lambda match: match.span(), default=None)
    except TimeoutError:
        raise PatternTimeout(f"the pattern took more than {PATTERN_LIMIT_S:g} s on this completion") from None
    return None if last is None else last.group(1 if compiled.groups else 0)


def find_hashed(text: str) -> Marked:
    """Find the last "#### 42" (GSM8K). Markdown headings use the same mark, so the line must begin like an answer."""
    last: Marked = (-1, None)
    for match in HASHES.finditer(text):
        line = match.group(1).strip(" \t*_`")
        if line and not HEADING.match(line) and (HASHED.match(line) or line[0].isdecimal()):
            last = (match.start(), line)
    return last


def find_announced(text: str) -> Marked:
    """Find the rest of the sentence after the last "answer is" or "answer:". It may begin on the next line."""
    last = max(ANSWER_IS.finditer(text), key=lambda match: match.start(), default=None)
    if last is None:
        return -1, None
    rest = text[last.end() : last.end() + 2 * MAX_ANSWER_CHARS].lstrip(" \t:：,*_\n")
    rest = WHICH_IS.sub(" = ", FILLERS.sub("", rest, count=1), count=1)
    for opening, closing in DISPLAYED:
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) > 0:
            return last.start(), rest[len(opening) : end]
    ends = FULL_STOP if last["english"] is None else SENTENCE_END
    said = ends.split(rest.partition("\n")[0], maxsplit=1)[0]
    if not said or WITHDRAWN.match(rest, len(said)):
        return last.start(), rest if said else None
    return last.start(), find_said(said)


def find_said(sentence: str) -> str:
    """Return 34 for "The largest n is 34". Unchanged if there is a second verb or a hedging word."""
    found = SAID_OF.fullmatch(sentence)
    if found is None or re.search(r"\b(?:is|are|or|equals)\b", found[2]) or {"or", *HEDGES} & set(found[1].lower().split()):
        return sentence
    return found[2]


def guess_answer(completion: str) -> str | None:
    """Return what a reader would take for the answer without a marker: the last formula, else the last number."""
    text = drop_thinking(completion)
    if not text.strip():
        text = completion
        tagged = find_last_tag(text)
        if (found := find_boxed(text) if tagged is None else find_in_tags(tagged, "")) is not None:
            return found.strip() or None
    text = text[-GUESS_CHARS:]
    formulas, numbers = list(FORMULA.finditer(text)), list(LAST_NUMBER.finditer(text))
    if formulas and (not numbers or formulas[-1].end() >= numbers[-1].end()):
        return next(part for part in formulas[-1].groups() if part is not None).strip() or None
    return numbers[-1].group().strip() if numbers else None


# ---------------------------------------------------------------------------------------------------------------------
# Boxes
# ---------------------------------------------------------------------------------------------------------------------


def join_boxes(text: str, joint: re.Pattern[str] = JOINT) -> tuple[list[str], list[str]]:
    """Return (the contents of the last box and those joined with it, the contents of earlier boxes)."""
    boxes = find_boxes(text)
    first, names = len(boxes) - 1, list[str]()
    while first > 0 and len(names) < MAX_ITEMS:
        between = text[boxes[first - 1][2] + 1 : boxes[first][0]]
        plain = " ".join(TYPOGRAPHY.sub(" ", SET_AS_TEXT.sub(r" \1 ", between[: MAX_BETWEEN + 1])).split())
        if len(between) > MAX_BETWEEN or (found := joint.fullmatch(plain)) is None:
            break
        names.insert(0, found[1] or "")
        first -= 1
    contents = [text[start:end] for _, start, end in boxes]
    before, last = contents[:first], contents[first:]
    named = NAMED.search(text[max(0, boxes[first][0] - MAX_BETWEEN) : boxes[first][0]]) if names else None
    if named and all(names):
        last = [f"{name} = {content}" for name, content in zip([named[1], *names], last, strict=True)]
    return last, before


def find_boxed(text: str) -> str | None:
    """Return the final box of a completion: joined boxes as a list, repeated ones once; None without a box."""
    last, _ = join_boxes(text)
    return merge_contents(last) if last else None


def find_boxed_reference(text: str) -> str | None:
    """Return the box of a reference answer, None without one. Raises ValueError if several boxes differ and are not a list."""
    last, before = join_boxes(text, REFERENCE_JOINT)
    unlike = [content for content in before if not any(are_equal([content, other]) for other in last)]
    if unlike:
        named = ", ".join(repr(content[:60]) for content in [*unlike[-2:], last[-1]])
        raise ValueError(f"several boxes differ ({named}); keep only the final answer in the column, or put all in one box")
    return merge_contents(last) if last else None


def merge_contents(contents: list[str]) -> str:
    return contents[-1] if are_equal(contents) else "; ".join(contents)


def are_equal(contents: list[str]) -> bool:
    """Return whether all contents are equal, as text or as numbers: 1/2 and 0.5."""
    if len(contents) > MAX_ITEMS or any(len(content) > MAX_ANSWER_CHARS for content in contents):
        return False
    if len(set(map(normalise, contents))) == 1:
        return True
    values = [value for value in map(read_answer, contents) if isinstance(value, Value)]
    numbers = {(value.exact, value.unit) for value in values if value.node is None or not value.doubtful}
    return len(values) == len(contents) and len(numbers) == 1 and all(number is not None for number, _ in numbers)


# ---------------------------------------------------------------------------------------------------------------------
# Reference answers
# ---------------------------------------------------------------------------------------------------------------------


def refuse_reference(gold: Any, problem: str) -> ValueError:
    return ValueError(f"unusable reference answer {show_reference(gold)}: {problem}")


def show_reference(gold: Any) -> str:
    if isinstance(gold, int) and gold.bit_length() > 10_000:
        return f"of {gold.bit_length()} bits"
    text = repr(gold)
    return text if len(text) <= 200 else text[:200] + "..."


def write_reference(gold: Any) -> str:
    """Return a cell of the answer column as text. Raises ValueError for anything that cannot be an answer."""
    held = unwrap_number(gold)
    if isinstance(held, str):
        text = held
    elif isinstance(held, bool) or not hasattr(held, "__float__"):
        raise refuse_reference(gold, "a string or a number is expected")
    elif isinstance(held, int):
        text = str(held) if held.bit_length() < 3 * MAX_NUMBER_CHARS else ""
    elif not is_finite(held):
        raise refuse_reference(gold, "it is not finite")
    else:
        text = write_shortest(gold, held) if hasattr(gold, "new_tensor") else str(gold)
    if not text.strip():
        raise refuse_reference(gold, "it is empty or too long")
    return text


def write_cell(cell: Any) -> str:
    """Return a cell of any column as text: normalised if it can be an answer, else as Python prints it."""
    try:
        return write_reference(cell)
    except ValueError:
        return str(cell)


def unwrap_number(gold: Any) -> Any:
    """Return the number in a tensor or array without dimensions, None for any other tensor or array, and other objects
    unchanged.

    Recognised by their methods: importing torch would cost every worker seconds. Without this a tensor would be written as
    "tensor(4)".
    """
    if not (hasattr(gold, "item") and hasattr(gold, "ndim")):
        return gold
    try:
        return gold.item() if gold.ndim == 0 else None
    except (TypeError, ValueError, RuntimeError):  # a tensor without data
        return None


def write_shortest(tensor: Any, held: float) -> str:
    """Return the shortest decimal that rounds to the value in the tensor's dtype: 0.1 in float32 holds 0.10000000149011612."""
    if held.is_integer() and abs(held) < 2**53:  # written out: as text, 123456792 is not 1.2345679e+08
        return str(int(held))
    texts = (f"{held:.{digits}g}" for digits in range(1, 17))
    return next((text for text in texts if tensor.new_tensor(float(text)).item() == held), repr(held))


def is_finite(number: Any) -> bool:
    try:
        return math.isfinite(float(number))
    except (TypeError, ValueError, ArithmeticError):  # a fraction too large for a float, a symbol without a value
        return False


def find_reference(gold: Any) -> str:
    r"""Return the reference answer to compare with; x of a whole solution that ends in <answer>x</answer>, "#### x" or
    \boxed{x}.
    """
    whole = write_reference(gold)
    text = whole if (tagged := find_last_tag(whole)) is None else tagged
    found: str | None = text
    if any(mark in text for mark in (r"\boxed", r"\fbox", "####")):
        try:
            boxed = find_boxed_reference(DOUBLED_BOX.sub(r"\\", text))
        except ValueError as problem:
            raise refuse_reference(gold, str(problem)) from None
        found = boxed if boxed is not None else find_hashed(text)[1]
    if found is None:
        raise refuse_reference(gold, "its final answer cannot be read")
    if len(found) > MAX_ANSWER_CHARS or not normalise(found):
        raise refuse_reference(gold, "it is empty or too long")
    return found
