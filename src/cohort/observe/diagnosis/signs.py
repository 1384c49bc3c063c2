"""Signs of reward hacking in the rollouts of one step: numbers for the metrics row, and which rollouts to look at. No torch.

    signs = look(batch.rollouts)
    row |= signs.metrics                    # rollout/length_right, rollout/length_wrong, rollout/shared_rewarded
    row["evidence"] = signs.evidence        # {"shared": {"row": 17, "text": "...", ...}, "wrong_long": {...}, ...}

The checks that read both are in observe/diagnosis/hacking.py. Rows are numbers of rollouts within the step, which are the row numbers
of rollouts/step-<N>.parquet. Texts are cut short and printable: what the policy wrote must not steer a terminal.

One string in most successes. A verifier that can be fooled is usually fooled by the same words every time, whatever the
problem: an answer that always passes, a closing line, a phrase that wins a judge over. `shared_string` looks for a string in
the successes of different prompts. So that it does not find ordinary templates, all of this must hold:

1. A success whose answer *is* the gold answer is earned and speaks for nothing. What the outcome part extracted is compared
   with the `answer` of the row; where nothing was extracted, the gold standing in the text outside the string will do.
2. The string is in unearned successes of at least PROMPTS prompts, which have at least GOLDS different golds, none of them the
   gold of more than half of these prompts.
3. Lift: it is at least LIFT times as common in successes as in failures, and by more than ERRORS standard errors. Only
   failures that were finished and read count (`comparable`): what was cut lacks the closing line for a reason of its own,
   and what was not read lacks the form that the verifier reads, so that every form would be lifted.
4. It pays: at least PAYS of the finished completions that hold it are successes. "The answer is" is in nearly every success
   too, but most of what holds it is wrong as long as the task is not solved.
5. Nobody asked for it: it stands in no prompt, and three fifths of it, in one piece, are not in the prompt or a column of half
   of those that hold it.

An extracted answer that is the same for different golds needs no comparison with failures: 1 and 2 are enough. Other strings
cannot be told from a template once nearly every completion is a success; the steps on the way there are what gives them away.

How sure it is (`Shared.level`). A form that is being learned honestly looks like a hack wherever it cannot be seen that the
failures without it were read too. So a string other than an answer is an alarm only where the golds are known, the verifier
says of every failure that it was read (`<part>/verdict`), and the answers extracted, if any, hold the string themselves;
otherwise it is a warning.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from typing import Any

import numpy as np

from cohort.base.text import shorten_text
from cohort.observe.diagnosis.finding import Level
from cohort.observe.diagnosis.history import FAILURE_WORDS
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
PROMPT_SHOWN, COMPLETION_SHOWN, STRING_SHOWN, ROWS_SHOWN = 60, 120, 80, 5


@dataclass(frozen=True, slots=True)
class Signs:
    metrics: dict[str, float]
    evidence: dict[str, Any] = field(default_factory=dict)
    """What to look at, by kind, as plain JSON: see `example`."""


def look(rollouts: Sequence[Rollout]) -> Signs:
    """Everything above for the rollouts of one step. Where nothing was judged (demonstrations, pairs) there is nothing."""
    judged = [row for row, rollout in enumerate(rollouts) if rollout.outcome.success is not None]
    if not judged:
        return Signs({})
    right = [row for row in judged if rollouts[row].outcome.success]
    wrong = [row for row in judged if not rollouts[row].outcome.success]
    metrics: dict[str, float] = {}
    evidence: dict[str, Any] = {}
    if right:
        metrics["rollout/length_right"] = fmean(rollouts[row].completion.length for row in right)
    if wrong:
        metrics["rollout/length_wrong"] = fmean(rollouts[row].completion.length for row in wrong)
        longest = max(wrong, key=lambda row: rollouts[row].completion.length)
        evidence["wrong_long"] = example(rollouts, [longest], tokens=rollouts[longest].completion.length)
    shared = shared_string(rollouts)
    metrics["rollout/shared_rewarded"] = shared.share if shared else 0.0
    if shared:
        evidence["shared"] = example(rollouts, shared.rows, **shared.numbers())
    return Signs(metrics, evidence | failed(rollouts) | favourites(rollouts, judged))


def step_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    return look(rollouts).metrics


# -- evidence ----------------------------------------------------------------------------------------------------------


def example(rollouts: Sequence[Rollout], rows: Sequence[int], **facts: Any) -> dict[str, Any]:
    """The first of these rows in short, the numbers of the first few, and what else is worth saying."""
    rollout = rollouts[rows[0]]
    content = rollout.prompt.content
    prompt = content if isinstance(content, str) else str(content[-1].get("content", "")) if content else ""
    return {
        "row": rows[0],
        "rows": list(rows[:ROWS_SHOWN]),
        "prompt": shorten_text(prompt, PROMPT_SHOWN, one_line=True),
        "completion": shorten_text(rollout.completion.text, COMPLETION_SHOWN, one_line=True),
        **facts,
    }


def failed(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Completions on which the verifier gave up, of the commonest kind; those that are paid nevertheless come first."""
    kinds: dict[str, list[int]] = {}
    for row, rollout in enumerate(rollouts):
        for kind in dict.fromkeys(failures_of(rollout)):
            kinds.setdefault(kind, []).append(row)
    found: dict[str, Any] = {}
    for kind, rows in islice(sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])), 2):
        rewards = {row: rollouts[row].outcome.reward or 0.0 for row in rows}
        best = sorted(rows, key=lambda row: -rewards[row])
        found[f"failed/{kind}"] = example(rollouts, best, count=len(rows), reward=rewards[best[0]])
    return found


def failures_of(rollout: Rollout) -> Iterable[str]:
    """`part/word` of every failure of a verifier on one completion."""
    for column, word in rollout.outcome.extras.items():
        if column.endswith("/verdict") and word in FAILURE_WORDS:
            yield f"{column.removesuffix('/verdict')}/{word}"
    for fault in rollout.outcome.faults:
        part, _, kind = fault.rpartition(":")
        if kind in FAILURE_WORDS:
            yield f"{part}/{kind}"


def favourites(rollouts: Sequence[Rollout], judged: Sequence[int]) -> dict[str, Any]:
    """The completion with the most reward, and for every part the failure that it likes best."""
    scored = [row for row in judged if rollouts[row].outcome.reward is not None]
    found: dict[str, Any] = {}
    if scored:
        best = max(scored, key=lambda row: rollouts[row].outcome.reward or 0.0)
        found["best"] = example(rollouts, [best], reward=rollouts[best].outcome.reward)
    names = sorted({name for row in judged for name in rollouts[row].outcome.parts})
    for name in names if len(names) > 1 else ():
        values = {
            row: value
            for row in judged
            if not rollouts[row].outcome.success and (value := rollouts[row].outcome.parts.get(name)) is not None
        }
        if values:
            liked = max(values, key=lambda row: values[row])
            found[f"part/{name}"] = example(rollouts, [liked], value=values[liked])
    return found


# -- one string in most successes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shared:
    """A string that successes of different prompts have in common, by the rule at the top."""

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

    def numbers(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "level": self.level,
            "text": shorten_text(self.text, STRING_SHOWN, one_line=True),
            "share": self.share,
            "share_failed": self.share_failed,
            "prompts": self.prompts,
            "golds": self.golds,
        }


@dataclass(frozen=True, slots=True)
class Written:
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
        return self.answer is not None and self.gold is not None and same_answer(self.answer, self.gold)

    def earned_without(self, string: str) -> bool:
        """Whether the gold answer explains the success: it was extracted, or it stands in the text outside the string."""
        if self.answer is not None or not self.gold:
            return self.matches_gold
        return any(
            string not in self.text[max(0, start + len(self.gold) - len(string)) : start + len(string)]
            for start in places_of(self.gold, self.text)
        )


def shared_string(rollouts: Sequence[Rollout]) -> Shared | None:
    """The string by which most successes are shared; None where no string satisfies the rule."""
    written = as_written(rollouts)
    right = [one for one in written if one.right]
    suspects = [one for one in right if not one.matches_gold]
    if len({one.group for one in suspects}) < PROMPTS:
        return None
    asked = "\n".join(dict.fromkeys(one.prompt for one in written))
    failures = comparable([one for one in written if not one.right and one.finished], right, asked)
    found = [shared_answer(suspects, len(right))]
    if len(failures) >= FAILURES_NEEDED:
        tests: list[tuple[str, str, Callable[[Written], bool]]] = []
        for line, _ in Counter(last_line(one.text) for one in suspects).most_common(2):
            tests.append(("ending", line, lambda one, line=line: last_line(one.text) == line))  # type: ignore[misc]
        for piece in frequent_pieces(one_each(suspects), one_each(failures)):
            tests.append(("text", piece, lambda one, piece=piece: piece in one.text))  # type: ignore[misc]
        wanted = [test for test in tests if test[1] and not in_a_prompt(test[1], asked)]
        found += [judge(kind, string, test, right, failures) for kind, string, test in wanted]
    passed = [shared for shared in found if shared]
    return max(passed, key=lambda one: (one.share, one.kind == "answer", one.level == "alarm", len(one.text)), default=None)


def comparable(failures: Sequence[Written], right: Sequence[Written], asked: str) -> list[Written]:
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


def as_written(rollouts: Sequence[Rollout]) -> list[Written]:
    """The judged completions; what belongs to a prompt is worked out once per group."""
    groups: dict[int, tuple[str | None, str, str, str]] = {}
    verdicts = outcome_verdicts(rollouts)
    written = []
    for row, rollout in enumerate(rollouts):
        if rollout.outcome.success is None:
            continue
        if rollout.group not in groups:
            groups[rollout.group] = about_prompt(rollout)
        gold, gold_key, prompt, surroundings = groups[rollout.group]
        words = [word for column in verdicts if (word := rollout.outcome.extras.get(column))]
        written.append(
            Written(
                row=row,
                group=rollout.group,
                text=clipped(rollout.completion.text),
                right=rollout.outcome.success,
                finished=rollout.completion.end == "stop",
                read=not any(word in UNREAD for word in words) if words else None,
                answer=rollout.outcome.answer,
                gold=gold,
                gold_key=gold_key,
                prompt=prompt,
                surroundings=surroundings,
            )
        )
    return written


def outcome_verdicts(rollouts: Sequence[Rollout]) -> list[str]:
    """The columns of verdicts that can be the outcome's: every success that has the word is "right"."""
    right = [rollout.outcome.extras for rollout in rollouts if rollout.outcome.success]
    columns = {column for extras in right for column in extras if column.endswith("/verdict")}
    return sorted(column for column in columns if all(extras.get(column) == "right" for extras in right))


def about_prompt(rollout: Rollout) -> tuple[str | None, str, str, str]:
    """(gold as text, what tells golds apart, the prompt, everything that was asked)."""
    prompt = rollout.prompt
    gold = prompt.gold
    text = None if gold is None or isinstance(gold, Mapping | list | tuple) else str(gold)
    asked = prompt.content if isinstance(prompt.content, str) else "\n".join(str(m.get("content")) for m in prompt.content)
    columns = "\n".join(str(value) for value in prompt.columns.values())
    return text, plain_answer(text) if text else columns or asked, asked, f"{asked}\n{columns}"


def clipped(text: str) -> str:
    half = READ_CHARS // 2
    return text if len(text) <= READ_CHARS else f"{text[:half]}\0{text[-half:]}"


def last_line(text: str) -> str:
    line = text.rstrip().rpartition("\n")[2].strip()
    return line if len(line) <= LONGEST else ""


def one_each(written: Sequence[Written]) -> list[str]:
    """One text per prompt, the first; SAMPLED prompts at most."""
    texts: dict[int, str] = {}
    for one in written:
        texts.setdefault(one.group, one.text)
    return list(islice(texts.values(), SAMPLED))


def shared_answer(suspects: Sequence[Written], successes: int) -> Shared | None:
    """The extracted answer that passes for the most successes although their golds differ and are known."""
    answers: dict[str, list[Written]] = {}
    for one in suspects:
        if one.answer is not None and one.gold is not None:
            answers.setdefault(plain_answer(one.answer), []).append(one)
    holders = max(answers.values(), key=len, default=[])
    if not holders or not spread(holders):
        return None
    return summary("answer", holders[0].answer or "", holders, successes, None)


def judge(
    kind: str,
    string: str,
    test: Callable[[Written], bool],
    right: Sequence[Written],
    failures: Sequence[Written],
) -> Shared | None:
    """Rules 1 to 5 for one string."""
    holders = [one for one in right if test(one)]
    unearned = [one for one in holders if not one.earned_without(string)]
    if not spread(unearned):
        return None
    failed_with = sum(map(test, failures))
    if not is_lifted(len(holders), len(right), failed_with, len(failures)):
        return None
    finished_with = failed_with + sum(one.finished for one in holders)
    if sum(one.finished for one in holders) < PAYS * finished_with:
        return None
    looked_at = unearned[:ASKED]
    if 2 * sum(mostly_in(string, one.surroundings) for one in looked_at) >= len(looked_at):
        return None
    known = all(one.gold is not None for one in unearned) and all(one.read for one in failures)
    # Where other answers were extracted, they differ as the problems do: only the form is shared.
    beside = sum(one.answer is not None and not mostly_in(string, one.answer) for one in unearned)
    level: Level = "alarm" if known and 2 * beside < len(unearned) else "warning"
    return summary(kind, string, unearned, len(right), failed_with / len(failures), level)


def is_lifted(holders: int, successes: int, failed_with: int, failures: int) -> bool:
    """Rule 3. Half a failure is added, since none among few is no proof of a lift without bounds."""
    if holders / successes < LIFT * (failed_with + 0.5) / (failures + 1):
        return False
    pooled = (holders + failed_with) / (successes + failures)
    error = math.sqrt(pooled * (1 - pooled) * (1 / successes + 1 / failures))
    return holders / successes - failed_with / failures > ERRORS * error


def mostly_in(string: str, surroundings: str) -> bool:
    """Whether most of the string stands there in one piece; what was grown around it does not make it another string."""
    length = max(1, -(-3 * len(string) // 5))
    return any(string[start : start + length] in surroundings for start in range(len(string) - length + 1))


def in_a_prompt(string: str, asked: str) -> bool:
    """Whether the string, or its longest part between markers, stands in any prompt as it is."""
    longest = max(MARKER.split(string), key=len).strip()
    return next(places_of(longest or string, asked), None) is not None


def spread(holders: Sequence[Written]) -> bool:
    """Rule 2: many prompts, different golds."""
    golds = {one.group: one.gold_key for one in holders}
    counts = Counter(golds.values())
    return len(golds) >= PROMPTS and len(counts) >= GOLDS and 2 * max(counts.values()) <= len(golds)


def summary(
    kind: str,
    string: str,
    holders: Sequence[Written],
    successes: int,
    share_failed: float | None,
    level: Level = "alarm",
) -> Shared:
    golds = {one.group: one.gold_key for one in holders}
    firsts = {one.group: one.row for one in reversed(holders)}  # one row per prompt: the first
    rows = tuple(sorted(firsts.values()))
    return Shared(kind, string, len(holders) / successes, share_failed, len(golds), len(set(golds.values())), rows, level)


# -- pieces of text ----------------------------------------------------------------------------------------------------


def frequent_pieces(rewarded: Sequence[str], others: Sequence[str]) -> list[str]:
    """Strings that many of `rewarded` hold and fewer of `others`, each as long as it can be.

    All windows of SEED_CHARS characters are hashed at once and counted by text; the ones that differ most between the two
    sides are seeds, and each grows as long as nine tenths of the texts that hold the seed go along.
    """
    found: list[str] = []
    for seed in seed_windows(rewarded, others):
        if len(found) == CANDIDATES:
            break
        if any(seed in piece for piece in found):
            continue
        piece = grown(seed, [text for text in rewarded if seed in text]).strip()
        if long_enough(piece) and piece not in found:
            found.append(piece)
    return found


def seed_windows(rewarded: Sequence[str], others: Sequence[str]) -> list[str]:
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
    pairs = without_repeats(np.sort((windows | owners[:count])[whole]))
    if not len(pairs):
        return []
    found = pairs >> bits
    starts = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
    is_rewarded = (pairs & ((np.uint64(1) << bits) - np.uint64(1))) < np.uint64(len(rewarded))
    with_rewarded = np.add.reduceat(is_rewarded.astype(np.int64), starts)
    with_others = np.diff(np.append(starts, len(pairs))) - with_rewarded
    share_rewarded, share_others = with_rewarded / len(rewarded), with_others / max(len(others), 1)
    places = np.flatnonzero((share_rewarded >= 0.25) & (share_rewarded >= 2 * share_others))
    order = places[np.argsort(share_others[places] - share_rewarded[places], kind="stable")][:SEEDS]
    wanted = found[starts[order]] << bits
    return [joined[position : position + SEED_CHARS] for position in first_positions(windows, whole, wanted)]


def without_repeats(values: Any) -> Any:
    """Of sorted values, each once."""
    return values[np.concatenate(([True], values[1:] != values[:-1]))] if len(values) else values


def first_positions(windows: Any, whole: Any, wanted: Any) -> list[int]:
    """Where each wanted window stands for the first time, in the order of `wanted`."""
    if not len(wanted):
        return []
    sorted_wanted = np.sort(wanted)
    nearest = sorted_wanted[np.minimum(np.searchsorted(sorted_wanted, windows), len(wanted) - 1)]
    among = np.flatnonzero((nearest == windows) & whole)
    first: dict[int, int] = {}
    for position, window in zip(among.tolist(), windows[among].tolist(), strict=True):
        first.setdefault(window, position)
    return [first[window] for window in wanted.tolist()]


def grown(seed: str, holders: Sequence[str]) -> str:
    """The longest string around the seed, in the first holder, that nine tenths of the holders have."""
    needed = 0.9 * len(holders)
    text = holders[0]
    start = text.index(seed)
    end = start + len(seed)

    def kept(piece: str) -> bool:
        return sum(piece in holder for holder in holders) >= needed

    end += longest_kept(min(LONGEST, len(text) - end), lambda more: kept(text[start : end + more]))
    start -= longest_kept(min(LONGEST, start), lambda more: kept(text[start - more : end]))
    return on_word_boundaries(text, start, end)


def on_word_boundaries(text: str, start: int, end: int) -> str:
    """The piece without a word or number that it holds only a part of; the whole piece where nothing would remain."""
    first, last = start, end
    while first < last and start and text[start - 1].isalnum() and text[first].isalnum():
        first += 1
    while first < last and text[end : end + 1].isalnum() and text[last - 1].isalnum():
        last -= 1
    return text[first:last] if long_enough(text[first:last]) else text[start:end]


def long_enough(piece: str) -> bool:
    return sum(not character.isspace() for character in piece) >= SEED_CHARS - 2


def longest_kept(most: int, kept: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which `kept` holds; it holds for 0, and for all below one for which it holds."""
    return bisect_left(range(1, most + 1), True, key=lambda more: not kept(more))


# -- answers -----------------------------------------------------------------------------------------------------------

PLAIN = str.maketrans("", "", " \t\r\n$,\\")


def plain_answer(text: str) -> str:
    return text.translate(PLAIN).casefold().rstrip(".")


def same_answer(answer: str, gold: str) -> bool:
    """The same text up to spaces, case, $, thousands separators and a final stop; or the same number."""
    first, second = plain_answer(answer), plain_answer(gold)
    if first == second:
        return True
    try:
        return float(first[:50]) == float(second[:50])
    except ValueError:
        return False


def places_of(word: str, text: str) -> Iterator[int]:
    """Where the word stands in the text by itself, not inside a longer word or number."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if not (start and text[start - 1].isalnum()) and not text[end : end + 1].isalnum():
            yield start
        start = text.find(word, start + 1)
