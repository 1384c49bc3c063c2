"""Finds a string shared by most successes, the sign of an exploited verifier. No torch.

A policy usually exploits a verifier with the same text for every problem: an answer that always passes, a closing line, or a phrase that
convinces an LLM grader. `find_shared_string` looks for a string in the successes of different prompts. Five rules exclude ordinary
templates, and the level of the finding depends on what is known about the failures. docs/hacking-alarms.md lists the rules by number, with
reasons, under "The rules".
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from cohort.observe.diagnosis.finding import Level
from cohort.types import Rollout

PROMPTS = 5
"""Different prompts whose successes must contain a string."""
REFERENCES = 3
LIFT = 3.0
ERRORS = 4.0
"""Standard errors between the two shares: among thousands of strings some differ by chance."""
PAYS = 0.8
FAILURES_NEEDED = 8
"""Finished failures needed to measure a lift."""

UNREAD = ("no_answer", "unparsed")
"""Verdicts without an answer that the verifier could compare."""
FORM_SHARE = 0.9
"""Share of the successes with a marker from the prompt above which failures without the marker are not comparable."""
MARKER = re.compile(r"```\w*|</?\w+>|\\boxed\{|####")

SAMPLED = 48
"""Successes, and failures, of different prompts that are searched for strings; a string is then counted in all of them."""
READ_CHARS = 1200
"""Characters read of a completion: half from its beginning, half from its end."""
SEED_CHARS = 6
LONGEST = 200
ASKED = 16
"""Successes that are compared with their prompts."""
SEEDS, CANDIDATES = 200, 6


@dataclass(frozen=True, slots=True)
class SharedString:
    """A string that successes of different prompts share."""

    kind: str
    """answer: the extracted answer; ending: the last line; text: anywhere."""
    text: str
    share: float
    """Successes that contain it and are not explained by their reference answers ÷ all successes."""
    share_failed: float | None
    """Comparable failures that contain it ÷ all comparable failures; None for an answer, where it does not matter."""
    prompts: int
    references: int
    rows: tuple[int, ...]
    level: Level = "alarm"
    """warning: it may be a form that the reward requires."""


@dataclass(frozen=True, slots=True)
class JudgedText:
    """A completion with a verdict, for the search."""

    row: int
    group: int
    text: str
    right: bool
    finished: bool
    read: bool | None
    """Whether the verifier read an answer or ran a program; None if it gives no verdict."""
    answer: str | None
    reference: str | None
    """The reference answer as text; None if the row has none."""
    reference_key: str
    """Differs between prompts with different reference answers, of any form."""
    prompt: str
    surroundings: str
    """The prompt and the columns of its row."""

    @property
    def matches_reference(self) -> bool:
        return self.answer is not None and self.reference is not None and is_same_answer(self.answer, self.reference)

    def holds(self, kind: str, string: str) -> bool:
        return read_last_line(self.text) == string if kind == "ending" else string in self.text

    def earned_without(self, string: str) -> bool:
        """Whether the reference answer explains the success: it was extracted, or is in the text outside the string."""
        if self.answer is not None or not self.reference:
            return self.matches_reference
        return any(
            string not in self.text[max(0, start + len(self.reference) - len(string)) : start + len(string)]
            for start in find_places(self.reference, self.text)
        )


def find_shared_string(rollouts: Sequence[Rollout]) -> SharedString | None:
    """The string that most successes share; None if no string satisfies the rules."""
    right = read_completions([(row, one) for row, one in enumerate(rollouts) if one.outcome.success], rollouts)
    suspects = [one for one in right if not one.matches_reference]
    if len({one.group for one in suspects}) < PROMPTS:
        return None
    wrong = read_completions([(row, one) for row, one in enumerate(rollouts) if one.outcome.success is False], rollouts)
    written = sorted([*right, *wrong], key=lambda one: one.row)
    asked = "\n".join(dict.fromkeys(one.prompt for one in written))
    failures = choose_comparable([one for one in wrong if one.finished], right, asked)
    found = [find_shared_answer(suspects, len(right))]
    if len(failures) >= FAILURES_NEEDED:
        lines = Counter(read_last_line(one.text) for one in suspects).most_common(2)
        pieces = find_frequent_pieces(sample_texts(suspects), sample_texts(failures))
        for kind, string in [*(("ending", line) for line, _ in lines), *(("text", piece) for piece in pieces)]:
            if string and not is_in_prompt(string, asked):
                found.append(judge_string(kind, string, right, failures))
    passed = [shared for shared in found if shared]
    return max(passed, key=lambda one: (one.share, one.kind == "answer", one.level == "alarm", len(one.text)), default=None)


def choose_comparable(failures: Sequence[JudgedText], right: Sequence[JudgedText], asked: str) -> list[JudgedText]:
    """The failures that the verifier read and found wrong; only these can show that a string is rewarded.

    Excluded are failures in which the verifier found no answer, failures without an answer if successes have one, and failures without a
    marker (a code fence, a tag, a box) that the prompt names and nearly every success contains.
    """
    answered = 2 * sum(one.answer is not None for one in right) >= len(right)
    named = {marker for found in MARKER.findall(asked) for marker in (found, found[:3] if found[0] == "`" else found)}
    form = [marker for marker in named if sum(marker in one.text for one in right) >= FORM_SHARE * len(right)]
    return [
        one
        for one in failures
        if one.read is not False and (one.answer is not None or not answered) and all(marker in one.text for marker in form)
    ]


def read_completions(chosen: Sequence[tuple[int, Rollout]], rollouts: Sequence[Rollout]) -> list[JudgedText]:
    """Completions with verdicts, with their rows in the step; the parts about the prompt are computed once per group."""
    prompts: dict[int, dict[str, Any]] = {}
    verdicts = find_outcome_verdicts(rollouts)
    found = []
    for row, rollout in chosen:
        outcome, completion = rollout.outcome, rollout.completion
        if rollout.group not in prompts:
            prompts[rollout.group] = read_prompt(rollout)
        words = [word for column in verdicts if (word := outcome.extras.get(column))]
        read = not any(word in UNREAD for word in words) if words else None
        about: dict[str, Any] = {
            "right": outcome.success,
            "answer": outcome.answer,
            "finished": completion.end == "stop",
            "read": read,
        }
        found.append(JudgedText(row, rollout.group, clip_text(completion.text), **about, **prompts[rollout.group]))
    return found


def find_outcome_verdicts(rollouts: Sequence[Rollout]) -> list[str]:
    """The verdict columns that can belong to the outcome: they are "right" for every success."""
    right = [rollout.outcome.extras for rollout in rollouts if rollout.outcome.success]
    columns = {column for extras in right for column in extras if column.endswith("/verdict")}
    return sorted(column for column in columns if all(extras.get(column) == "right" for extras in right))


def read_prompt(rollout: Rollout) -> dict[str, Any]:
    """The reference answer and the texts of a prompt, as fields of JudgedText."""
    prompt, reference = rollout.prompt, rollout.prompt.reference_answer
    text = None if reference is None or isinstance(reference, Mapping | list | tuple) else str(reference)
    asked = prompt.content if isinstance(prompt.content, str) else "\n".join(str(m.get("content")) for m in prompt.content)
    columns = "\n".join(str(value) for value in prompt.columns.values())
    key = simplify_answer(text) if text else columns or asked
    return {"reference": text, "reference_key": key, "prompt": asked, "surroundings": f"{asked}\n{columns}"}


def clip_text(text: str) -> str:
    half = READ_CHARS // 2
    return text if len(text) <= READ_CHARS else f"{text[:half]}\0{text[-half:]}"


def read_last_line(text: str) -> str:
    line = text.rstrip().rpartition("\n")[2].strip()
    return line if len(line) <= LONGEST else ""


def sample_texts(written: Sequence[JudgedText]) -> list[str]:
    """The first text of each prompt, for at most SAMPLED prompts."""
    texts: dict[int, str] = {}
    for one in written:
        texts.setdefault(one.group, one.text)
    return list(islice(texts.values(), SAMPLED))


def find_shared_answer(suspects: Sequence[JudgedText], successes: int) -> SharedString | None:
    """The extracted answer shared by most successes with known, different reference answers."""
    answers: dict[str, list[JudgedText]] = {}
    for one in suspects:
        if one.answer is not None and one.reference is not None:
            answers.setdefault(simplify_answer(one.answer), []).append(one)
    holders = max(answers.values(), key=len, default=[])
    if not holders or not is_spread(holders):
        return None
    return make_shared("answer", holders[0].answer or "", holders, successes, None)


def judge_string(kind: str, string: str, right: Sequence[JudgedText], failures: Sequence[JudgedText]) -> SharedString | None:
    """Rules 1 to 5 for one string."""
    holders = [one for one in right if one.holds(kind, string)]
    unearned = [one for one in holders if not one.earned_without(string)]
    if not is_spread(unearned):
        return None
    failed_with = sum(one.holds(kind, string) for one in failures)
    if not is_lifted(len(holders), len(right), failed_with, len(failures)):
        return None
    finished_with = failed_with + sum(one.finished for one in holders)
    if sum(one.finished for one in holders) < PAYS * finished_with:
        return None
    looked_at = unearned[:ASKED]
    if 2 * sum(is_mostly_in(string, one.surroundings) for one in looked_at) >= len(looked_at):
        return None
    known = all(one.reference is not None for one in unearned) and all(one.read for one in failures)
    # If other answers were extracted, they differ between problems: only the form is shared.
    beside = sum(one.answer is not None and not is_mostly_in(string, one.answer) for one in unearned)
    level: Level = "alarm" if known and 2 * beside < len(unearned) else "warning"
    return make_shared(kind, string, unearned, len(right), failed_with / len(failures), level)


def is_lifted(holders: int, successes: int, failed_with: int, failures: int) -> bool:
    """Rule 3. Half a failure is added, since zero among few failures does not prove an unlimited lift."""
    if holders / successes < LIFT * (failed_with + 0.5) / (failures + 1):
        return False
    pooled = (holders + failed_with) / (successes + failures)
    error = math.sqrt(pooled * (1 - pooled) * (1 / successes + 1 / failures))
    return holders / successes - failed_with / failures > ERRORS * error


def is_mostly_in(string: str, surroundings: str) -> bool:
    """Whether 60 % of the string occurs there in one piece; text added around it does not make it another string."""
    length = max(1, -(-3 * len(string) // 5))
    return any(string[start : start + length] in surroundings for start in range(len(string) - length + 1))


def is_in_prompt(string: str, asked: str) -> bool:
    """Whether any prompt contains the string, or its longest part between markers."""
    longest = max(MARKER.split(string), key=len).strip()
    return next(find_places(longest or string, asked), None) is not None


def is_spread(holders: Sequence[JudgedText]) -> bool:
    """Rule 2: many prompts with different reference answers."""
    references = {one.group: one.reference_key for one in holders}
    counts = Counter(references.values())
    return len(references) >= PROMPTS and len(counts) >= REFERENCES and 2 * max(counts.values()) <= len(references)


def make_shared(
    kind: str, string: str, holders: Sequence[JudgedText], successes: int, share_failed: float | None, level: Level = "alarm"
) -> SharedString:
    references = {one.group: one.reference_key for one in holders}
    firsts = {one.group: one.row for one in reversed(holders)}  # one row per prompt: the first
    rows = tuple(sorted(firsts.values()))
    return SharedString(
        kind, string, len(holders) / successes, share_failed, len(references), len(set(references.values())), rows, level
    )


# -- pieces of text ----------------------------------------------------------------------------------------------------


def find_frequent_pieces(rewarded: Sequence[str], others: Sequence[str]) -> list[str]:
    """The longest strings that many of `rewarded` and fewer of `others` contain.

    All windows of SEED_CHARS characters are hashed and counted by text. Those that differ most between the two sides are seeds, and each
    seed grows while nine tenths of the texts that contain it still contain the longer string.
    """
    found: list[str] = []
    for seed in find_seeds(rewarded, others):
        if len(found) == CANDIDATES:
            break
        if any(seed in piece for piece in found):
            continue
        piece = grow_piece(seed, [text for text in rewarded if seed in text]).strip()
        if is_long_enough(piece) and piece not in found:
            found.append(piece)
    return found


def find_seeds(rewarded: Sequence[str], others: Sequence[str]) -> list[str]:
    """Windows in at least a quarter of `rewarded` and twice as common there as in `others`, the largest difference first."""
    texts = [*rewarded, *others]
    joined = "".join(texts)
    if len(joined) < SEED_CHARS:
        return []
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    owners = np.repeat(np.arange(len(texts), dtype=np.uint64), [len(text) for text in texts])
    count = len(codes) - SEED_CHARS + 1
    hashes = codes[:count].copy()
    for offset in range(1, SEED_CHARS):  # modulo 2**64
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes += codes[offset : offset + count]
    # The number of the text goes into the low bits: one sort brings equal windows together, and copies within a text.
    bits = np.uint64(len(texts).bit_length())
    windows = hashes << bits
    whole = owners[:count] == owners[SEED_CHARS - 1 :]
    pairs = np.sort((windows | owners[:count])[whole])
    if not len(pairs):
        return []
    pairs = pairs[np.concatenate(([True], pairs[1:] != pairs[:-1]))]
    found = pairs >> bits
    starts = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
    is_rewarded = (pairs & ((np.uint64(1) << bits) - np.uint64(1))) < np.uint64(len(rewarded))
    with_rewarded = np.add.reduceat(is_rewarded.astype(np.int64), starts)
    with_others = np.diff(np.append(starts, len(pairs))) - with_rewarded
    share_rewarded, share_others = with_rewarded / len(rewarded), with_others / max(len(others), 1)
    places = np.flatnonzero((share_rewarded >= 0.25) & (share_rewarded >= 2 * share_others))
    order = places[np.argsort(share_others[places] - share_rewarded[places], kind="stable")][:SEEDS]
    wanted = found[starts[order]] << bits
    return [joined[position : position + SEED_CHARS] for position in find_first_positions(windows, whole, wanted)]


def find_first_positions(windows: Any, whole: Any, wanted: Any) -> list[int]:
    """The first position of each wanted window, in the order of `wanted`."""
    if not len(wanted):
        return []
    may_be_wanted = np.zeros(1 << 16, dtype=bool)  # a small table by the high bits leaves only a few windows to compare
    may_be_wanted[wanted >> np.uint64(48)] = True
    among = np.flatnonzero(may_be_wanted[windows >> np.uint64(48)] & whole)
    among = among[np.isin(windows[among], wanted)]
    first: dict[int, int] = {}
    for position, window in zip(among.tolist(), windows[among].tolist(), strict=True):
        first.setdefault(window, position)
    return [first[window] for window in wanted.tolist()]


def grow_piece(seed: str, holders: Sequence[str]) -> str:
    """The longest string around the seed that nine tenths of the holders contain."""
    needed = 0.9 * len(holders)
    text = holders[0]
    start = text.index(seed)
    end = start + len(seed)

    def kept(piece: str) -> bool:
        return sum(piece in holder for holder in holders) >= needed

    end += count_kept(min(LONGEST, len(text) - end), lambda more: kept(text[start : end + more]))
    start -= count_kept(min(LONGEST, start), lambda more: kept(text[start - more : end]))
    return trim_to_words(text, start, end)


def trim_to_words(text: str, start: int, end: int) -> str:
    """The piece without partial words or numbers at its ends, or the whole piece if too little would remain."""
    first, last = start, end
    while first < last and start and text[start - 1].isalnum() and text[first].isalnum():
        first += 1
    while first < last and text[end : end + 1].isalnum() and text[last - 1].isalnum():
        last -= 1
    return text[first:last] if is_long_enough(text[first:last]) else text[start:end]


def is_long_enough(piece: str) -> bool:
    return sum(not character.isspace() for character in piece) >= SEED_CHARS - 2


def count_kept(most: int, kept: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which `kept` holds; `kept` is monotonic and holds for 0."""
    return bisect_left(range(1, most + 1), True, key=lambda more: not kept(more))


# -- answers -----------------------------------------------------------------------------------------------------------

PLAIN = str.maketrans("", "", " \t\r\n$,\\")


def simplify_answer(text: str) -> str:
    return text.translate(PLAIN).casefold().rstrip(".")


def is_same_answer(answer: str, reference: str) -> bool:
    """Whether two answers are equal up to spaces, case, $, thousands separators and a final full stop, or are the same number."""
    first, second = simplify_answer(answer), simplify_answer(reference)
    try:
        return first == second or float(first[:50]) == float(second[:50])
    except ValueError:
        return False


def find_places(word: str, text: str) -> Iterator[int]:
    """The positions of the word in the text, except inside longer words or numbers."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if not (start and text[start - 1].isalnum()) and not text[end : end + 1].isalnum():
            yield start
        start = text.find(word, start + 1)
