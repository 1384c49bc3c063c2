r"""Where a completion says its final answer, and the answer column as text. Linear in the text, nothing is evaluated.

An answer is taken from a marker only: the last <answer>...</answer>, whose content is then all that is looked at; the last
\boxed{}; a pattern of the recipe; or the last of "#### x" and "answer is x". Never from the thinking. `guess` is for the
lenient score beside the reward, which also takes the last formula or number of the text.
"""

from __future__ import annotations

import math
import re
from typing import Any

from cohort.rewards.math.boxes import final_boxed, gold_boxed
from cohort.rewards.math.expressions import MAX_NUMBER_CHARS
from cohort.rewards.math.text import MAX_ANSWER_CHARS, normalise
from cohort.rewards.math.units import HEDGES
from cohort.rewards.text import last_tagged, outside_thinking

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
    r"(?P<english>(?<!wrong\s)(?<!incorrect\s)(?<!false\s)(?<!bad\s)(?<!no\s)(?<!not\sthe\s)"
    r"(?:answers?(?:\sto\s(?:the|this|your)\s(?:question|problem))?|\bcorrect\s(?:option|choice))[*_]{0,3}\s?"
    r"(?:(?:is|are|equals|(?:would|should|must|will|can only)\sbe|(?:turns|comes|works)\sout\sto(?:\sbe)?)\b|:|=)"
    r"(?!\s(?:indeed\s)?(?:correct|reasonable|consistent|verified)\b)"
    r"|^[#*_ \t]*(?:the\s)?final\sanswer[*_ \t]*$)"
    # The same in other languages; "answer:" needs no more than the word.
    r"|\b(?:respuesta|resposta|risposta|réponse)(?:\s(?:final[ea]?|correcta|corretta|correta))?[*_]{0,3}(?:\s(?:es|é|è|est)\b|\s?[:：])"
    r"|\bantwort[*_]{0,3}(?:\s(?:ist|lautet)\b|\s?:)|\bответ[*_]{0,3}(?:\sравен\b|\s?:|\s[—–-]\s)"
    r"|(?<!错误的)(?<!錯誤的)答案[*_]{0,3}\s?[是为為:：]|答え\s?[は:：]|답\s?[은:：]",
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
FULL_STOP = re.compile(r"[.?](?=\s)|。|です")
"""The end where other languages are spoken, whose words for "or" and "perhaps" no list here holds."""
WITHDRAWN = re.compile(
    r"[\s.?*_。]*(?:(?:or|o|ou|oder|или|或|alternatively|maybe|perhaps|possibly|otherwise)\b|(?:no|wait|actually|hmm|sorry|oops|correction)\b\s?[,.!:—-])",
    re.IGNORECASE,
)
"""How the next sentence begins where it takes the answer back: 5. Wait, it is 6."""
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\(((?:[^\\]|\\(?!\)))+)\\\)|\\\[((?:[^\\]|\\(?!\]))+)\\\]")
LAST_NUMBER = re.compile(r"[-−]?(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?[ ]?\\?%?")


class PatternTimeout(Exception):
    """The pattern took too long on this text."""


def find_answer(completion: str, pattern: str = "") -> str | None:
    """The final answer as it is written, or None: without a marker there is no answer. Raises PatternTimeout."""
    text = outside_thinking(completion)
    tagged = last_tagged(text)
    found = marked_answer(text, text, pattern) if tagged is None else tagged_answer(tagged, pattern)
    return found.strip() or None if found is not None else None


def tagged_answer(content: str, pattern: str) -> str:
    """What stands at a marker inside the tags, else all that they hold: it is compared as a whole, like a box."""
    found = marked_answer(content, f"<answer>{content}</answer>", pattern)  # a pattern may name the tags
    return content if found is None else found


def marked_answer(text: str, searched: str, pattern: str) -> str | None:
    """What stands at the strongest marker of the text; the pattern is looked for in `searched`."""
    found = final_boxed(BARE_BOX.sub(r"\\boxed{\1}", DOUBLED_BOX.sub(r"\\", text)))
    if found is None and pattern:
        found = last_match(searched, pattern)
    if found is None:
        # Whichever marker comes last in the text: what is said later corrects what was said before.
        _, found = max(after_hashes(text), after_answer_is(text), key=lambda marked: marked[0])
    return found


def last_match(text: str, pattern: str) -> str | None:
    """The last match, its first group if it has one. Python's own re would hold every thread of the trainer meanwhile."""
    import regex

    compiled = regex.compile(pattern)
    last = None
    try:
        for match in compiled.finditer(text, timeout=PATTERN_LIMIT_S, concurrent=True):
            last = match
    except TimeoutError:
        raise PatternTimeout(f"the pattern took more than {PATTERN_LIMIT_S:g} s on this completion") from None
    return None if last is None else last.group(1 if compiled.groups else 0)


Marked = tuple[int, str | None]
"""Where a marker stands (-1: nowhere), and the answer behind it."""


def after_hashes(text: str) -> Marked:
    """GSM8K's "#### 42", the last one. Markdown's headings use the same mark, so the line must begin like an answer."""
    last: Marked = (-1, None)
    for match in HASHES.finditer(text):
        line = match.group(1).strip(" \t*_`")
        if line and not HEADING.match(line) and (HASHED.match(line) or line[0].isdecimal()):
            last = (match.start(), line)
    return last


def after_answer_is(text: str) -> Marked:
    """The rest of the sentence after the last "answer is" or "answer:"; it may begin on a line of its own."""
    last = None
    for match in ANSWER_IS.finditer(text):
        last = match
    if last is None:
        return -1, None
    rest = text[last.end() : last.end() + 2 * MAX_ANSWER_CHARS].lstrip(" \t:：,*_\n")
    rest = rest[FILLERS.match(rest).end() :]  # type: ignore[union-attr]  # it matches nothing at least
    for opening, closing in DISPLAYED:
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) > 0:
            return last.start(), rest[len(opening) : end]
    line = rest.partition("\n")[0]
    ends = FULL_STOP if last["english"] is None else SENTENCE_END
    said = ends.split(line, maxsplit=1)[0]
    if not said or WITHDRAWN.match(rest, len(said)):
        return last.start(), rest if said else None
    return last.start(), said_in(said)


def said_in(sentence: str) -> str:
    """34 of "The largest n is 34". A second verb, or a word that takes something back, and the sentence stays as it is."""
    found = SAID_OF.fullmatch(sentence)
    if found is None or re.search(r"\b(?:is|are|or|equals)\b", found[2]) or {"or", *HEDGES} & set(found[1].lower().split()):
        return sentence
    return found[2]


def guess(completion: str) -> str | None:
    """What a reader would take for the answer where no marker says so: the last formula, else the last number."""
    text = outside_thinking(completion)
    if not text.strip():
        text = completion
        tagged = last_tagged(text)
        if (found := final_boxed(text) if tagged is None else tagged_answer(tagged, "")) is not None:
            return found.strip() or None
    text = text[-GUESS_CHARS:]
    formulas, numbers = list(FORMULA.finditer(text)), list(LAST_NUMBER.finditer(text))
    if formulas and (not numbers or formulas[-1].end() >= numbers[-1].end()):
        return next(part for part in formulas[-1].groups() if part is not None).strip() or None
    return numbers[-1].group().strip() if numbers else None


# ---------------------------------------------------------------------------------------------------------------------
# Gold answers
# ---------------------------------------------------------------------------------------------------------------------


def plain_gold(gold: Any) -> str:
    """A gold cell as text. Whatever cannot be an answer raises: it must never be equal to a completion."""
    held = held_value(gold)
    if isinstance(held, str):
        text = held
    elif isinstance(held, bool) or not hasattr(held, "__float__"):
        raise ValueError(f"unusable gold answer {shown(gold)}: a string or a number is expected")
    elif isinstance(held, int):
        text = str(held) if held.bit_length() < 3 * MAX_NUMBER_CHARS else ""
    elif not is_finite(held):
        raise ValueError(f"unusable gold answer {shown(gold)}: it is not finite")
    else:
        text = shortest_text(gold, held) if hasattr(gold, "new_tensor") else str(gold)
    if not text.strip():
        raise ValueError(f"unusable gold answer {shown(gold)}: it is empty or too long")
    return text


def cell_text(cell: Any) -> str:
    """A cell of any column as text: an answer as it is compared, anything else as Python writes it."""
    try:
        return plain_gold(cell)
    except ValueError:
        return str(cell)


def held_value(gold: Any) -> Any:
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


def shortest_text(tensor: Any, held: float) -> str:
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


def gold_text(gold: Any) -> str:
    r"""The gold answer to compare with; a whole solution ending in <answer>x</answer>, "#### x" or \boxed{x} gives its x."""
    text = plain_gold(gold)
    tagged = last_tagged(text)
    text = text if tagged is None else tagged
    if "\\boxed" in text or "\\fbox" in text or "####" in text:
        try:
            boxed = gold_boxed(DOUBLED_BOX.sub(r"\\", text))
        except ValueError as problem:
            raise ValueError(f"unusable gold answer {shown(gold)}: {problem}") from None
        found = boxed if boxed is not None else after_hashes(text)[1]
        if found is None:
            raise ValueError(f"unusable gold answer {shown(gold)}: its final answer cannot be read")
        text = found
    if len(text) > MAX_ANSWER_CHARS or not normalise(text):
        raise ValueError(f"unusable gold answer {shown(gold)}: it is empty or too long")
    return text


def shown(gold: Any) -> str:
    if isinstance(gold, int) and gold.bit_length() > 10_000:
        return f"of {gold.bit_length()} bits"
    text = repr(gold)
    return text if len(text) <= 200 else text[:200] + "..."
