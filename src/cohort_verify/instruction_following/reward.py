"""The reward `instructions`: each row lists its instructions, and each instruction has a checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cohort_verify.instruction_following.checkers import has_word, read_instruction
from cohort_verify.text import drop_thinking, text_of

MAX_CHARS = 250_000
"""A longer completion scores 0."""


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
        prompts        a completion that begins with a copy of its prompt must also follow them without the copy.

    <think> blocks are ignored. A row whose instructions are invalid has no score (None).
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
    """Return (score, verdict, the instructions not followed or the fault of the row)."""
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
    """Return whether the text follows an instruction, also without a copy of the prompt. A text without words follows none."""
    if not (has_word(own) or name == "json_record"):
        return False
    return check(text) and (own == text or name == "combination:repeat_prompt" or check(own))


def drop_prompt(text: str, prompt: Any) -> str:
    """Remove copies of the prompt (of a chat, its last message) from the beginning of the text."""
    asked = text_of(prompt).casefold().split() if prompt else []
    words, start = text.casefold().split(), 0
    while asked and words[start : start + len(asked)] == asked:
        start += len(asked)
    return [*text.split(maxsplit=start), ""][start] if start else text


def read_instructions(entries: Any) -> list[tuple[str, Callable[[str], bool]]]:
    """Return the checks of a row. Raises ValueError if there are none, or one is invalid."""
    if isinstance(entries, str | dict) or not isinstance(entries, Sequence) or not entries:
        raise ValueError(f"a list with at least one instruction is expected, not {str(entries)[:100]!r}")
    return [read_instruction(entry) for entry in entries]


def find_unusable(instructions: Sequence[Any], **columns: Any) -> list[str | None]:
    """Return for each row why its instructions are invalid, or None."""
    tried = [score_completion("", entries, None, "all") for entries in instructions]
    return [detail if word == "infrastructure" else None for _, word, detail in tried]


def check_arguments(columns: Sequence[str], mode: str = "all", **args: Any) -> None:
    if mode not in ("all", "share"):
        raise ValueError(f"mode = {mode!r}: 'all' or 'share' is expected")


instructions.reads = ("completions", "prompts", "instructions")  # type: ignore[attr-defined]
instructions.per_completion = True  # type: ignore[attr-defined]
instructions.unusable = find_unusable  # type: ignore[attr-defined]
instructions.check_arguments = check_arguments  # type: ignore[attr-defined]
