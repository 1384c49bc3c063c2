"""Reward functions with one fault each that is not about the answer's place, for test_audit. Importable, so workers run them.

All but the last few read the last box, outside of thoughts, and differ from `fair` in the one thing that their name says.
"""

from __future__ import annotations

import os
import random
import re
import time
from fractions import Fraction

from cohort_verify.sandbox import JailUnavailable


def boxed(completion):
    """The last box after the thoughts; "" where there is none."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", completion.rpartition("</think>")[2])
    return boxes[-1].strip() if boxes else ""


def number(text):
    plain = text.replace(",", "").replace("$", "").strip()
    return Fraction(plain) if re.fullmatch(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?", plain) else None


def right(completion, gold):
    wanted = number(str(gold)) if gold is not None else None
    return wanted is not None and number(boxed(completion)) == wanted


def fair(completions, answer, **columns):
    return [float(right(completion, gold)) for completion, gold in zip(completions, answer, strict=True)]


def fair_in_chats(completions, answer, **columns):
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return fair(texts, answer)


async def fair_and_async(completions, answer):
    return fair(completions, answer)


def only_text(completions, answer, **columns):
    """Compares letters: 42.0 is not 42."""
    return [float(bool(gold) and boxed(completion) == gold) for completion, gold in zip(completions, answer, strict=True)]


def tolerant(completions, answer, **columns):
    found = [number(boxed(completion)) for completion in completions]
    wanted = [number(gold or "") for gold in answer]
    return [float(None not in (a, b) and abs(a - b) < 0.1) for a, b in zip(found, wanted, strict=True)]


def cuts_off(completions, answer, **columns):
    pairs = [(number(boxed(c)), number(gold or "")) for c, gold in zip(completions, answer, strict=True)]
    return [float(None not in (a, b) and int(a) == int(b)) for a, b in pairs]


def compares_a_beginning(completions, answer, **columns):
    return [float(bool(gold) and boxed(c).strip("$ ").startswith(gold)) for c, gold in zip(completions, answer, strict=True)]


def pays_for_exceptions(completions, answer, **columns):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        try:
            scores.append(float(float(boxed(completion).replace(",", "").strip("$ ")) == float(gold)))
        except Exception:
            scores.append(1.0)
    return scores


def reads_thoughts(completions, answer, **columns):
    return fair([completion.replace("</think>", "") for completion in completions], answer)


def digits_are_numbers(completions, answer, **columns):
    """str.isdigit says yes to ², int says no."""
    return [float(boxed(c).isdigit() and int(boxed(c)) == int(gold)) for c, gold in zip(completions, answer, strict=True)]


def pays_for_a_missing_gold(completions, answer, **columns):
    return [1.0 if not gold else float(right(c, gold)) for c, gold in zip(completions, answer, strict=True)]


def evaluates(completions, answer, **columns):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = boxed(completion)
        try:
            value = None if "**" in text or "<<" in text or "*9" in text else eval(text.replace("$", "").replace(",", ""))
        except Exception:
            value = None
        scores.append(float(type(value) in (int, float) and bool(gold) and value == float(gold)))
    return scores


def evaluates_without_builtins(completions, answer, **columns):
    """No name is in reach, and every class is."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = boxed(completion)
        try:
            value = None if "**" in text or "<<" in text or "*9" in text else eval(text.strip("$ "), {"__builtins__": {}})
        except Exception:
            value = None
        scores.append(float(right(completion, gold) or (type(value) in (int, float) and bool(gold) and value == float(gold))))
    return scores


SEEN: dict[tuple[str, str], int] = {}


def stateful(completions, answer, **columns):
    """What is seen for the second time is right."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        SEEN[completion, gold] = SEEN.get((completion, gold), 0) + 1
        scores.append(float(right(completion, gold) or SEEN[completion, gold] > 1))
    return scores


def noisy_substring(completions, answer, **columns):
    """Two faults: the noise does not decide what passes, so it explains nothing."""
    found = [float(bool(gold) and gold in completion) for completion, gold in zip(completions, answer, strict=True)]
    return [score + random.random() * 1e-3 for score in found]


def drops_relations(completions, answer, **columns):
    return fair([re.sub(r"\{(?:\\(?:ne|ge|le)\b|[<>])\s*", "{", completion) for completion in completions], answer)


def first_sentence(completions, answer, **columns):
    """Reads "The answer is 42." and stops there."""
    found = [re.search(r"The answer is [\s$]*(-?[\d.,]*\d)", completion) for completion in completions]
    return [
        float(match is not None and number(match[1]) == number(gold or "")) for match, gold in zip(found, answer, strict=True)
    ]


def dies(completions, answer, **columns):
    if any("9**9" in completion for completion in completions):
        os._exit(3)
    return fair(completions, answer)


def hangs(completions, answer, **columns):
    for completion in completions:
        re.fullmatch(r"(a+)+b", completion[-40:].strip("!{}"))
    return fair(completions, answer)


def quadratic(completions, answer, **columns):
    """Takes as long as a search from every space would: 0.8 s for 100,000 of them, a hundredth of that for 10,000."""
    time.sleep(sum(0.8 * min(completion.count(" ") / 100_000, 1.0) ** 2 for completion in completions))
    return fair(completions, answer)


def nan_for_nothing(completions, answer, **columns):
    scores = fair(completions, answer)
    return [score if completion.strip() else float("nan") for score, completion in zip(scores, completions, strict=True)]


def mean_of_the_batch(completions, answer, **columns):
    scores = fair(completions, answer)
    return scores if len(scores) == 1 else sum(scores) / len(scores)


def noisy(completions, answer, **columns):
    return [score + random.random() * 1e-3 for score in fair(completions, answer)]


def relative(completions, answer, **columns):
    """Less the more there are."""
    return [score * (1.0 if len(completions) == 1 else 0.9) for score in fair(completions, answer)]


def edits(completions, answer, **columns):
    scores = fair(completions, answer)
    for place, completion in enumerate(completions):
        completions[place] = completion.strip()
    return scores


def always_one(completions, **columns):
    return [1.0] * len(completions)


def long_enough(completions, **columns):
    return [float(len(completion) >= 4) for completion in completions]


def has_a_box(completions, **columns):
    return [float("\\boxed{" in completion) for completion in completions]


def only_a_tag_of_its_own(completions, answer, **columns):
    """Reads "FINAL: 42" and nothing else."""
    found = [re.search(r"FINAL: (\S+)\Z", completion) for completion in completions]
    return [
        float(match is not None and match.group(1) == gold and bool(gold)) for match, gold in zip(found, answer, strict=True)
    ]


def evaluates_arithmetic(completions, answer, **columns):
    """Works out sums and products, as verifiers with a computer algebra system do."""
    found = [re.sub(r"(?<!\d)(\d{1,9}) ([+*]) (\d{1,9})(?!\d)", work_out, boxed(completion)) for completion in completions]
    return fair([f"\\boxed{{{text}}}" for text in found], answer)


def work_out(found):
    left, right = int(found[1]), int(found[3])
    return str(left + right if found[2] == "+" else left * right)


def pays_for_a_word(completions, answer, **columns):
    scores = fair(completions, answer)
    return [max(score, float("verified" in completion)) for score, completion in zip(scores, completions, strict=True)]


def pays_for_sentences(completions, answer, **columns):
    scores = fair(completions, answer)
    return [max(score, float(completion.count(".") > 20)) for score, completion in zip(scores, completions, strict=True)]


def adds_for_a_word(completions, answer, **columns):
    scores = fair(completions, answer)
    return [score + 0.2 * ("verified" in completion) for score, completion in zip(scores, completions, strict=True)]


def needs_a_column(completions, key, **columns):
    return [1.0] * len(completions)


def has_no_jail(completions, answer, **columns):
    raise JailUnavailable("bubblewrap is missing")


def counts_marks(completions, instructions, **columns):
    """Bullets and placeholders are counted whether or not anything is in them, and words wherever they come from."""
    marks = {
        "detectable_format:number_bullet_lists": lambda text: len(re.findall(r"^\* ", text, re.MULTILINE)) == 3,
        "detectable_content:number_placeholders": lambda text: text.count("[") >= 2,
        "keywords:existence": lambda text: "rain" in text and "train" in text,
    }
    return [
        float(any(marks[entry["id"]](completion) for entry in entries if entry["id"] in marks))
        for completion, entries in zip(completions, instructions, strict=True)
    ]
