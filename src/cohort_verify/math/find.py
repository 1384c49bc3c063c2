r"""Where a completion says its final answer, and the answer column as text. Linear in the text, nothing is evaluated.

An answer is taken from a marker only: the last <answer>...</answer>, whose content is then all that is looked at; the last
\boxed{}; a pattern of the recipe; or the last of "#### x" and "answer is x". Never from the thinking. `guess_answer` is for the
lenient score beside the reward, which also takes the last formula or number of the text. Boxes that only a comma, "and" or "or"
joins are one list, \boxed{1} and \boxed{2}; else the last one counts.
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
"""For one completion under a pattern of the recipe. Some patterns take for ever on some texts."""
GUESS_CHARS = 2000
"""The end of the text that a guess is made on."""

BARE_BOX = re.compile(r"\\boxed[ ]?(-?\d+(?:\.\d+)?|[A-Za-z])(?=[ ]?(?:\$|\\[)\]]|\.?[ ]*(?:\n|$)|\.[ ]))")
r"""\boxed 7 before the end of the formula, the line or the sentence; \boxed 7 + 1 boxes nothing that is meant."""
HASHES = re.compile(r"(?<!#)####(?!#)((?:(?!####)[^\n])*)")
HEADING = re.compile(r"\d+[.)]\s+\S|\(?[A-Za-z0-9][.)]\s+[A-Za-z]{2}")
"""2. Compute the area; (a) First case"""
HASHED = re.compile(r"[\d+\-−–$\\.(€£]|[A-Za-z]\s?=")
"""How an answer behind #### begins: like a number or a formula, or x = 12."""
DOUBLED_BOX = re.compile(r"(?<!\\)\\\\(?=(?:boxed|fbox)\b)")
r"""\\boxed, escaped twice."""
ANSWER_IS = re.compile(
    # A look at the first letter, before all that could stand behind it: most places of a text are none.
    r"(?P<english>(?=[ac])(?<!wrong\s)(?<!incorrect\s)(?<!false\s)(?<!bad\s)(?<!no\s)(?<!not\sthe\s)"
    r"(?:answers?(?:\sto\s(?:the|this|your)\s(?:question|problem))?|\bcorrect\s(?:option|choice))[*_]{0,3}\s?"
    r"(?:(?:is|are|equals|(?:would|should|must|will|can only)\sbe|(?:turns|comes|works)\sout\sto(?:\sbe)?)\b|:|=)"
    r"(?!\s(?:indeed\s)?(?:correct|reasonable|consistent|verified)\b)"
    r"|^[#*_ \t]*(?:the\s)?final\sanswer[*_ \t]*$)"
    # The same in other languages; "answer:" needs no more than the word.
    r"|(?=[raо答답])(?:\b(?:respuesta|resposta|risposta|réponse)(?:\s(?:final[ea]?|correcta|corretta|correta))?[*_]{0,3}(?:\s(?:es|é|è|est)\b|\s?[:：])"
    r"|\bantwort[*_]{0,3}(?:\s(?:ist|lautet)\b|\s?:)|\bответ[*_]{0,3}(?:\sравен\b|\s?:|\s[—–-]\s)"
    r"|(?<!错误的)(?<!錯誤的)答案[*_]{0,3}\s?[是为為:：]|答え\s?[は:：]|답\s?[은:：])",
    re.IGNORECASE | re.MULTILINE,
)
"""Where a final answer is announced. A denial behind it ("es no 5", 是不是 5) is read as part of the answer, which is then none."""
FILLERS = re.compile(
    r"(?:(?:therefore|thus|hence|then|simply|indeed|just|now|clearly|obviously|definitely|certainly|surely|in\sfact|of\scourse|finally"
    r"|exactly|precisely|approximately|approx\.?|about|around|roughly|circa|equal\sto|equals|given\sby|found\sto\sbe)(?:\s*[:,]\s*|\s+))*",
    re.IGNORECASE,
)
"""They say nothing, or what a sign of rounding says: approximately 3.14 is 3.14."""
SAID_OF = re.compile(r"([^\d=\\<>]{2,120}?)\s(?:is|are|equals)(?:\sequal\sto)?:?\s(.+)", re.IGNORECASE)
"""The largest n is 34: what is said of the words before it, which hold no number."""
DISPLAYED = ("$$", "$$"), ("\\[", "\\]")
TAKEN_BACK = (
    r"(?:or|alternatively|maybe|perhaps|possibly|probably|potentially|otherwise|else|could|might|may|unless|if|even|"
    r"(?:but|and|then|though|although|while|whereas|however)\s(?:[a-z']+\s){0,4}?(?:could|might|may|maybe|perhaps|possibly|also|or)|"
    r"plus|minus|times|over|multiplied|divided|then\s[a-z]+ed|squared|cubed|doubled|tripled|halved|negated|percent|million|billion|thousand|hundred)\b"
)
"""How a clause begins that says another value than the one before its comma."""
SENTENCE_END = re.compile(
    rf"[.?](?=\s)|。|[,;](?=\s(?!{TAKEN_BACK})(?:and\s[a-z]{{2}}|(?!and\b)[a-z]{{2}}))|\s(?:because|since)\b"
)
"""A comma before "or", before another value, or before "and" with no word behind it, goes on."""
WHICH_IS = re.compile(r"(?<=\d)\$?, which (?:is|equals) \$?(?=-?\d[\d.,]*\$?\.?(?:\s*$|\s+[A-Z\n]))", re.MULTILINE)
"""The answer is 95 + 82, which is 177."""
FULL_STOP = re.compile(r"[.?](?=\s)|。|です")
"""The end where other languages are spoken, whose words for "or" and "perhaps" no list here holds."""
WITHDRAWN = re.compile(
    r"[\s.?*_。]*(?:(?:or|o|ou|oder|или|或|alternatively|maybe|perhaps|possibly|otherwise)\b|(?:no|wait|actually|hmm|sorry|oops|correction)\b\s?[,.!:—-])",
    re.IGNORECASE,
)
"""How the next sentence begins where it takes the answer back: 5. Wait, it is 6."""
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\(((?:[^\\]|\\(?!\)))+)\\\)|\\\[((?:[^\\]|\\(?!\]))+)\\\]")
LAST_NUMBER = re.compile(r"[-−]?(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?[ ]?\\?%?")
MAX_BETWEEN = 120
SET_AS_TEXT = re.compile(r"\\(?:text|textrm|mbox|mathrm)\s?\{([^{}]*)\}")
TYPOGRAPHY = re.compile(r"\\q?quad|\\[()\[\],;:!> \\]|[$~&*\s]")
NAME = r"[A-Za-z](?:_\{?\w{1,3}\}?)?(?: ?\([A-Za-z]\))?"
JOINT = re.compile(rf"(?:[,;]|(?:[,;] ?)?(?:and|or))(?: ?({NAME}) ?=)?")
GOLD_JOINT = re.compile(rf"(?:(?:[a-z]{{1,15}} )?(?:[,;]|(?:[,;] ?)?(?:and|or)))?(?: ?({NAME}) ?=)?")
"""A gold may also put boxes side by side, or a unit behind one."""
NAMED = re.compile(rf"(?<![A-Za-z\\])({NAME})\s?=[\s$]*(?:\\[(\[])?\s*$")

Marked = tuple[int, str | None]
"""Where a marker stands (-1: nowhere), and the answer behind it."""


class PatternTimeout(Exception):
    """The pattern took too long on this text."""


def find_answer(completion: str, pattern: str = "") -> str | None:
    """The final answer as it is written, or None: without a marker there is no answer. Raises PatternTimeout."""
    text = drop_thinking(completion)
    tagged = find_last_tag(text)
    found = find_marked(text, text, pattern) if tagged is None else find_in_tags(tagged, pattern)
    return found.strip() or None if found is not None else None


def find_in_tags(content: str, pattern: str) -> str:
    """What stands at a marker inside the tags, else all that they hold: it is compared as a whole, like a box."""
    found = find_marked(content, f"<answer>{content}</answer>", pattern)  # a pattern may name the tags
    return content if found is None else found


def find_marked(text: str, searched: str, pattern: str) -> str | None:
    """What stands at the strongest marker of the text; the pattern is looked for in `searched`."""
    found = find_boxed(BARE_BOX.sub(r"\\boxed{\1}", DOUBLED_BOX.sub(r"\\", text))) if "box" in text else None
    if found is None and pattern:
        found = find_by_pattern(searched, pattern)
    if found is None:
        # Whichever marker comes last in the text: what is said later corrects what was said before.
        _, found = max(find_hashed(text), find_announced(text), key=lambda marked: marked[0])
    return found


@functools.lru_cache
def compile_pattern(pattern: str) -> Any:
    """regex keeps what it has compiled as well, and takes longer to look there than to search a short text."""
    import regex

    return regex.compile(pattern)


def find_by_pattern(text: str, pattern: str) -> str | None:
    """The last match, its first group if it has one. Python's own re would hold every thread of the trainer meanwhile."""
    compiled = compile_pattern(pattern)
    try:
        matches = compiled.finditer(text, timeout=PATTERN_LIMIT_S, concurrent=True)
        last = max(matches, key=lambda match: match.span(), default=None)
    except TimeoutError:
        raise PatternTimeout(f"the pattern took more than {PATTERN_LIMIT_S:g} s on this completion") from None
    return None if last is None else last.group(1 if compiled.groups else 0)


def find_hashed(text: str) -> Marked:
    """GSM8K's "#### 42", the last one. Markdown's headings use the same mark, so the line must begin like an answer."""
    last: Marked = (-1, None)
    for match in HASHES.finditer(text):
        line = match.group(1).strip(" \t*_`")
        if line and not HEADING.match(line) and (HASHED.match(line) or line[0].isdecimal()):
            last = (match.start(), line)
    return last


def find_announced(text: str) -> Marked:
    """The rest of the sentence after the last "answer is" or "answer:"; it may begin on a line of its own."""
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
    """34 of "The largest n is 34". A second verb, or a word that takes something back, and the sentence stays as it is."""
    found = SAID_OF.fullmatch(sentence)
    if found is None or re.search(r"\b(?:is|are|or|equals)\b", found[2]) or {"or", *HEDGES} & set(found[1].lower().split()):
        return sentence
    return found[2]


def guess_answer(completion: str) -> str | None:
    """What a reader would take for the answer where no marker says so: the last formula, else the last number."""
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
    """(the last box and those joined with it, the boxes before these)."""
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
    """What a completion boxes in the end: joined boxes as a list, one that is only repeated once; None without a box."""
    last, _ = join_boxes(text)
    return merge_contents(last) if last else None


def find_gold_boxed(text: str) -> str | None:
    """The answer of a gold with boxes, None without one. Different boxes that are no list leave open which is meant: ValueError."""
    last, before = join_boxes(text, GOLD_JOINT)
    unlike = [content for content in before if not any(are_equal([content, other]) for other in last)]
    if unlike:
        named = ", ".join(repr(content[:60]) for content in [*unlike[-2:], last[-1]])
        raise ValueError(
            f"it has several boxes that differ ({named}); keep the final answer alone in the column, or all in one box"
        )
    return merge_contents(last) if last else None


def merge_contents(contents: list[str]) -> str:
    return contents[-1] if are_equal(contents) else "; ".join(contents)


def are_equal(contents: list[str]) -> bool:
    """Whether all say the same, letter for letter or as numbers: 1/2 and 0.5."""
    if len(contents) > MAX_ITEMS or any(len(content) > MAX_ANSWER_CHARS for content in contents):
        return False
    if len(set(map(normalise, contents))) == 1:
        return True
    values = [value for value in map(read_answer, contents) if isinstance(value, Value)]
    numbers = {(value.exact, value.unit) for value in values if value.node is None or not value.doubtful}
    return len(values) == len(contents) and len(numbers) == 1 and all(number is not None for number, _ in numbers)


# ---------------------------------------------------------------------------------------------------------------------
# Gold answers
# ---------------------------------------------------------------------------------------------------------------------


def refuse_gold(gold: Any, problem: str) -> ValueError:
    return ValueError(f"unusable gold answer {show_gold(gold)}: {problem}")


def show_gold(gold: Any) -> str:
    if isinstance(gold, int) and gold.bit_length() > 10_000:
        return f"of {gold.bit_length()} bits"
    text = repr(gold)
    return text if len(text) <= 200 else text[:200] + "..."


def write_gold(gold: Any) -> str:
    """A gold cell as text. Whatever cannot be an answer raises: it must never be equal to a completion."""
    held = unwrap_number(gold)
    if isinstance(held, str):
        text = held
    elif isinstance(held, bool) or not hasattr(held, "__float__"):
        raise refuse_gold(gold, "a string or a number is expected")
    elif isinstance(held, int):
        text = str(held) if held.bit_length() < 3 * MAX_NUMBER_CHARS else ""
    elif not is_finite(held):
        raise refuse_gold(gold, "it is not finite")
    else:
        text = write_shortest(gold, held) if hasattr(gold, "new_tensor") else str(gold)
    if not text.strip():
        raise refuse_gold(gold, "it is empty or too long")
    return text


def write_cell(cell: Any) -> str:
    """A cell of any column as text: an answer as it is compared, anything else as Python writes it."""
    try:
        return write_gold(cell)
    except ValueError:
        return str(cell)


def unwrap_number(gold: Any) -> Any:
    """The number in a tensor or array without dimensions, None for any other of them; everything else as it is.

    Known by their methods: importing torch would cost every worker seconds, and a tensor writes itself as "tensor(4)",
    which no completion equals.
    """
    if not (hasattr(gold, "item") and hasattr(gold, "ndim")):
        return gold
    try:
        return gold.item() if gold.ndim == 0 else None
    except (TypeError, ValueError, RuntimeError):  # a tensor that holds no data
        return None


def write_shortest(tensor: Any, held: float) -> str:
    """The shortest decimal that the tensor's own type rounds to its value: 0.1 in float32 holds 0.10000000149011612."""
    if held.is_integer() and abs(held) < 2**53:  # written out: 123456792 is no 1.2345679e+08 to whoever reads it as text
        return str(int(held))
    texts = (f"{held:.{digits}g}" for digits in range(1, 17))
    return next((text for text in texts if tensor.new_tensor(float(text)).item() == held), repr(held))


def is_finite(number: Any) -> bool:
    try:
        return math.isfinite(float(number))
    except (TypeError, ValueError, ArithmeticError):  # a fraction too large for a float, a symbol without a value
        return False


def find_gold(gold: Any) -> str:
    r"""The gold answer to compare with; a whole solution ending in <answer>x</answer>, "#### x" or \boxed{x} gives its x."""
    whole = write_gold(gold)
    text = whole if (tagged := find_last_tag(whole)) is None else tagged
    found: str | None = text
    if any(mark in text for mark in (r"\boxed", r"\fbox", "####")):
        try:
            boxed = find_gold_boxed(DOUBLED_BOX.sub(r"\\", text))
        except ValueError as problem:
            raise refuse_gold(gold, str(problem)) from None
        found = boxed if boxed is not None else find_hashed(text)[1]
    if found is None:
        raise refuse_gold(gold, "its final answer cannot be read")
    if len(found) > MAX_ANSWER_CHARS or not normalise(found):
        raise refuse_gold(gold, "it is empty or too long")
    return found
