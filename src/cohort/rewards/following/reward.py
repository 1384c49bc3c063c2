"""Following instructions: a list of them in a column, each checked by its checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cohort.rewards.following import shape, wording  # noqa: F401  (they register their checkers)
from cohort.rewards.following.table import has_word, read_instruction
from cohort.rewards.text import drop_thinking, text_of

MODES = ("all", "share")
MAX_CHARS = 250_000
"""A longer completion follows nothing."""
REPEATS = "combination:repeat_prompt"
RECORD = "json_record"

Checks = list[tuple[str, Callable[[str], bool]]]


def instructions(
    completions: Sequence[Any],
    instructions: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    mode: str = "all",
    log_verdict: Callable[..., None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 where the completion follows all of the row's `instructions`, else 0.0; with mode = "share", the share it follows.

    instructions   per row a list such as [{"id": "punctuation:no_comma"}, {"id": "json_record", "record": {"age": 4}}].
    prompts        a completion that begins with its prompt must follow them without that copy, too.

    Thoughts are not judged. A row whose instructions cannot be checked has no score (None).
    """
    check_arguments((), mode)
    scores: list[float | None] = []
    rows = zip(completions, instructions, [None] * len(completions) if prompts is None else prompts, strict=True)
    for row, (completion, entries, prompt) in enumerate(rows):
        score, word, detail = score_completion(text_of(completion), entries, prompt, mode)
        scores.append(score)
        if log_verdict is not None:
            log_verdict(row, word, detail)
    return scores


def score_completion(completion: str, entries: Any, prompt: Any, mode: str) -> tuple[float | None, str, str]:
    """(score, verdict, the instructions that were not followed or what is wrong with the row)."""
    try:
        checks = read_instructions(entries)
    except ValueError as problem:
        return None, "infrastructure", f"instructions: {problem}"
    if len(completion) > MAX_CHARS:
        return 0.0, "output", f"{len(completion)} characters, more than {MAX_CHARS}"
    text = drop_thinking(completion).replace("\r\n", "\n")
    if not text.strip():
        return 0.0, "no_answer", ""
    own = drop_prompt(text, prompt)
    missed = [name for name, check in checks if not is_followed(name, check, text, own)]
    score = 1 - len(missed) / len(checks) if mode == "share" else float(not missed)
    return score, "wrong" if missed else "right", ", ".join(missed)


def is_followed(name: str, check: Callable[[str], bool], text: str, own: str) -> bool:
    """Whether the text follows an instruction, and does without a copy of the prompt. A text without words follows none."""
    if not (has_word(own) or name == RECORD):
        return False
    return check(text) and (own == text or name == REPEATS or check(own))


def drop_prompt(text: str, prompt: Any) -> str:
    """The text without the copies of its prompt (of a chat, the last message) that it begins with."""
    asked = text_of(prompt).casefold().split() if prompt else []
    words, start = text.casefold().split(), 0
    while asked and words[start : start + len(asked)] == asked:
        start += len(asked)
    return [*text.split(maxsplit=start), ""][start] if start else text


def read_instructions(entries: Any) -> Checks:
    """The checks of a row; ValueError where it has none, or one that cannot be checked."""
    if isinstance(entries, str | dict) or not isinstance(entries, Sequence) or not entries:
        raise ValueError(f"a list with at least one instruction is expected, not {str(entries)[:100]!r}")
    return [read_instruction(entry) for entry in entries]


def find_unusable(instructions: Sequence[Any], **columns: Any) -> list[str | None]:
    """Per row, why its instructions cannot be checked, or None."""
    reasons: list[str | None] = []
    for entries in instructions:
        try:
            read_instructions(entries)
            reasons.append(None)
        except ValueError as problem:
            reasons.append(f"instructions: {problem}")
    return reasons


def check_arguments(columns: Sequence[str], mode: str = "all", **args: Any) -> None:
    if mode not in MODES:
        raise ValueError(f"mode = {mode!r}: 'all' or 'share' is expected")


instructions.reads = ("completions", "prompts", "instructions")  # type: ignore[attr-defined]
instructions.per_completion = True  # type: ignore[attr-defined]
instructions.unusable = find_unusable  # type: ignore[attr-defined]
instructions.check_arguments = check_arguments  # type: ignore[attr-defined]
