"""One string in most successes: what gives away a verifier that can be fooled. No torch.

Such a verifier is usually fooled by the same words every time, whatever the problem: an answer that always passes, a closing
line, a phrase that wins a judge over. `find_shared_string` looks for a string in the successes of different prompts. So that it
does not find ordinary templates, five rules must hold, and how sure it is of a find depends on what is known of the failures:
the rules by their numbers, with the reasons for each, are in docs/hacking-alarms.md under "The rules".
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
"""Different prompts whose successes must hold a string."""
GOLDS = 3
LIFT = 3.0
ERRORS = 4.0
"""Standard errors between the two shares: thousands of strings are looked at, and some differ by chance."""
PAYS = 0.8
FAILURES_NEEDED = 8
"""Finished failures, below which a lift cannot be measured."""

UNREAD = ("no_answer", "unparsed")
"""Verdicts on a failure in which the verifier found nothing to compare, or could not read what it found."""
FORM_SHARE = 0.9
"""Successes that hold a marker which a prompt names: from here on, failures without it did not do what was asked."""
MARKER = re.compile(r"```\w*|</?\w+>|\\boxed\{|####")

SAMPLED = 48
"""Successes, and failures, of different prompts in which a string is looked for; it is then counted in all of them."""
READ_CHARS = 1200
"""Characters read of a completion, half from its beginning and half from its end."""
SEED_CHARS = 6
LONGEST = 200
ASKED = 16
"""Successes that are held against what they were asked for."""
SEEDS, CANDIDATES = 200, 6


@dataclass(frozen=True, slots=True)
class SharedString:
    """A string that successes of different prompts have in common, by the rules."""

    kind: str
    """answer: what was extracted; ending: the last line; text: anywhere."""
    text: str
    share: float
    """Unearned successes that hold it ÷ all successes."""
    share_failed: float | None
    """Failures, finished and read, that hold it ÷ all of them; None for an answer, where it does not matter."""
    prompts: int
    golds: int
    rows: tuple[int, ...]
    level: Level = "alarm"
    """warning: it may be the form that the reward asks for."""


@dataclass(frozen=True, slots=True)
class JudgedText:
    """One judged completion, as far as strings are concerned."""

    row: int
    group: int
    text: str
    right: bool
    finished: bool
    read: bool | None
    """Whether the verifier says that it read an answer or ran a program; None where it gives no word."""
    answer: str | None
    gold: str | None
    """The gold answer as text; None where the row has none."""
    gold_key: str
    """What tells the golds of two prompts apart, whatever form they have."""
    prompt: str
    surroundings: str
    """Prompt and columns: what the policy was asked for."""

    @property
    def matches_gold(self) -> bool:
        return self.answer is not None and self.gold is not None and is_same_answer(self.answer, self.gold)

    def holds(self, kind: str, string: str) -> bool:
        return read_last_line(self.text) == string if kind == "ending" else string in self.text

    def earned_without(self, string: str) -> bool:
        """Whether the gold answer explains the success: it was extracted, or it stands in the text outside the string."""
        if self.answer is not None or not self.gold:
            return self.matches_gold
        return any(
            string not in self.text[max(0, start + len(self.gold) - len(string)) : start + len(string)]
            for start in find_places(self.gold, self.text)
        )


def find_shared_string(rollouts: Sequence[Rollout]) -> SharedString | None:
    """The string by which most successes are shared; None where no string satisfies the rule."""
    right = read_completions([(row, one) for row, one in enumerate(rollouts) if one.outcome.success], rollouts)
    suspects = [one for one in right if not one.matches_gold]
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
    """The failures that had what the verifier reads and were wrong all the same: only these can show that a string pays.

    Out are those of which the verifier says that it read nothing, those without an answer where successes have one, and
    those without a marker (a code fence, a tag, a box) that a prompt names and nearly every success holds.
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
    """Judged completions, with their rows among the rollouts of the step; what belongs to a prompt is worked out once per group."""
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
    """The columns of verdicts that can be the outcome's: every success that has the word is "right"."""
    right = [rollout.outcome.extras for rollout in rollouts if rollout.outcome.success]
    columns = {column for extras in right for column in extras if column.endswith("/verdict")}
    return sorted(column for column in columns if all(extras.get(column) == "right" for extras in right))


def read_prompt(rollout: Rollout) -> dict[str, Any]:
    """Gold and texts of the prompt, as fields of JudgedText."""
    prompt, gold = rollout.prompt, rollout.prompt.reference_answer
    text = None if gold is None or isinstance(gold, Mapping | list | tuple) else str(gold)
    asked = prompt.content if isinstance(prompt.content, str) else "\n".join(str(m.get("content")) for m in prompt.content)
    columns = "\n".join(str(value) for value in prompt.columns.values())
    key = simplify_answer(text) if text else columns or asked
    return {"gold": text, "gold_key": key, "prompt": asked, "surroundings": f"{asked}\n{columns}"}


def clip_text(text: str) -> str:
    half = READ_CHARS // 2
    return text if len(text) <= READ_CHARS else f"{text[:half]}\0{text[-half:]}"


def read_last_line(text: str) -> str:
    line = text.rstrip().rpartition("\n")[2].strip()
    return line if len(line) <= LONGEST else ""


def sample_texts(written: Sequence[JudgedText]) -> list[str]:
    """One text per prompt, the first; SAMPLED prompts at most."""
    texts: dict[int, str] = {}
    for one in written:
        texts.setdefault(one.group, one.text)
    return list(islice(texts.values(), SAMPLED))


def find_shared_answer(suspects: Sequence[JudgedText], successes: int) -> SharedString | None:
    """The extracted answer that passes for the most successes although their golds differ and are known."""
    answers: dict[str, list[JudgedText]] = {}
    for one in suspects:
        if one.answer is not None and one.gold is not None:
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
    known = all(one.gold is not None for one in unearned) and all(one.read for one in failures)
    # Where other answers were extracted, they differ as the problems do: only the form is shared.
    beside = sum(one.answer is not None and not is_mostly_in(string, one.answer) for one in unearned)
    level: Level = "alarm" if known and 2 * beside < len(unearned) else "warning"
    return make_shared(kind, string, unearned, len(right), failed_with / len(failures), level)


def is_lifted(holders: int, successes: int, failed_with: int, failures: int) -> bool:
    """Rule 3. Half a failure is added, since none among few is no proof of a lift without bounds."""
    if holders / successes < LIFT * (failed_with + 0.5) / (failures + 1):
        return False
    pooled = (holders + failed_with) / (successes + failures)
    error = math.sqrt(pooled * (1 - pooled) * (1 / successes + 1 / failures))
    return holders / successes - failed_with / failures > ERRORS * error


def is_mostly_in(string: str, surroundings: str) -> bool:
    """Whether most of the string stands there in one piece; what was grown around it does not make it another string."""
    length = max(1, -(-3 * len(string) // 5))
    return any(string[start : start + length] in surroundings for start in range(len(string) - length + 1))


def is_in_prompt(string: str, asked: str) -> bool:
    """Whether the string, or its longest part between markers, stands in any prompt as it is."""
    longest = max(MARKER.split(string), key=len).strip()
    return next(find_places(longest or string, asked), None) is not None


def is_spread(holders: Sequence[JudgedText]) -> bool:
    """Rule 2: many prompts, different golds."""
    golds = {one.group: one.gold_key for one in holders}
    counts = Counter(golds.values())
    return len(golds) >= PROMPTS and len(counts) >= GOLDS and 2 * max(counts.values()) <= len(golds)


def make_shared(
    kind: str, string: str, holders: Sequence[JudgedText], successes: int, share_failed: float | None, level: Level = "alarm"
) -> SharedString:
    golds = {one.group: one.gold_key for one in holders}
    firsts = {one.group: one.row for one in reversed(holders)}  # one row per prompt: the first
    rows = tuple(sorted(firsts.values()))
    return SharedString(kind, string, len(holders) / successes, share_failed, len(golds), len(set(golds.values())), rows, level)


# -- pieces of text ----------------------------------------------------------------------------------------------------


def find_frequent_pieces(rewarded: Sequence[str], others: Sequence[str]) -> list[str]:
    """Strings that many of `rewarded` hold and fewer of `others`, each as long as it can be.

    All windows of SEED_CHARS characters are hashed at once and counted by text; the ones that differ most between the two
    sides are seeds, and each grows as long as nine tenths of the texts that hold the seed go along.
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
    """Windows in a quarter of `rewarded` at least, and twice as common there as in `others`; the most telling first."""
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
    """Where each wanted window stands for the first time, in the order of `wanted`."""
    if not len(wanted):
        return []
    may_be_wanted = np.zeros(1 << 16, dtype=bool)  # by the high bits: a look into a small table leaves a handful to compare
    may_be_wanted[wanted >> np.uint64(48)] = True
    among = np.flatnonzero(may_be_wanted[windows >> np.uint64(48)] & whole)
    among = among[np.isin(windows[among], wanted)]
    first: dict[int, int] = {}
    for position, window in zip(among.tolist(), windows[among].tolist(), strict=True):
        first.setdefault(window, position)
    return [first[window] for window in wanted.tolist()]


def grow_piece(seed: str, holders: Sequence[str]) -> str:
    """The longest string around the seed, in the first holder, that nine tenths of the holders have."""
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
    """The piece without a word or number that it holds only a part of; the whole piece where nothing would remain."""
    first, last = start, end
    while first < last and start and text[start - 1].isalnum() and text[first].isalnum():
        first += 1
    while first < last and text[end : end + 1].isalnum() and text[last - 1].isalnum():
        last -= 1
    return text[first:last] if is_long_enough(text[first:last]) else text[start:end]


def is_long_enough(piece: str) -> bool:
    return sum(not character.isspace() for character in piece) >= SEED_CHARS - 2


def count_kept(most: int, kept: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which `kept` holds; it holds for 0, and for all below one for which it holds."""
    return bisect_left(range(1, most + 1), True, key=lambda more: not kept(more))


# -- answers -----------------------------------------------------------------------------------------------------------

PLAIN = str.maketrans("", "", " \t\r\n$,\\")


def simplify_answer(text: str) -> str:
    return text.translate(PLAIN).casefold().rstrip(".")


def is_same_answer(answer: str, gold: str) -> bool:
    """The same text up to spaces, case, $, thousands separators and a final stop; or the same number."""
    first, second = simplify_answer(answer), simplify_answer(gold)
    try:
        return first == second or float(first[:50]) == float(second[:50])
    except ValueError:
        return False


def find_places(word: str, text: str) -> Iterator[int]:
    """Where the word stands in the text by itself, not inside a longer word or number."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if not (start and text[start - 1].isalnum()) and not text[end : end + 1].isalnum():
            yield start
        start = text.find(word, start + 1)
