"""A verifier of the demo task that fails on purpose, for benchmarks/faulty_rewards.py. Importable: it runs in the workers.

A hash of (completion, step) decides whether and how it fails, so that a completion has the same fault in a batch call, in a retry of
single completions, in any worker and in any run.

    raise    an exception
    hang     it never returns
    nan      the score is NaN
    length   one value too many is returned

A list of the wrong length cannot be attributed, so it costs every completion of its call. To lose only one completion, a completion
marked "length" makes a batch call raise, so that the runner retries one by one, and a call with that single completion returns two
values.

Faults are injected from the second step on, and only on training problems: held-out problems and the preflight are scored without
faults, so that pass@1 measures the policy. The call that decides a completion writes its fault to `log`, once per completion.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cohort.data.column_addition import find_split, read_numbers

ANSWER = re.compile(r">(\d+)\s*$")
FAULTS = {"raise": "exception", "hang": "timeout", "nan": "nan", "length": "length"}
"""Kind of injection -> kind under which the runner counts it."""


def flawed_answer(
    prompts: Sequence[str],
    completions: Sequence[str],
    answer: Sequence[str],
    trainer_state: Any,
    log: str = "",
    shares: Mapping[str, float] | None = None,
) -> list[float]:
    """1.0 where the number after the last > is the sum; `shares` of the completions fail instead, by kind."""
    step = trainer_state.global_step + 1
    kinds = [
        kind_of(text, step, shares or {}) if is_injected(prompt, step) else ""
        for prompt, text in zip(prompts, completions, strict=True)
    ]
    scores = [float(extract(text) == gold) for text, gold in zip(completions, answer, strict=True)]
    fatal = next((kind for kind in kinds if kind in ("raise", "hang", "length")), "")
    if len(completions) == 1 or not fatal:  # else every completion is retried in its own call
        for kind, text in zip(kinds, completions, strict=True):
            note(log, step, kind, text)
    if fatal == "hang":
        while True:
            time.sleep(60)
    if fatal == "raise" or (fatal == "length" and len(completions) > 1):
        raise ValueError(f"injected at step {step}")
    if fatal == "length":
        return [*scores, 0.0]
    return [float("nan") if kind == "nan" else score for kind, score in zip(kinds, scores, strict=True)]


def extract(text: str) -> str | None:
    found = ANSWER.search(text)
    return found[1] if found else None


flawed_answer.per_completion = True  # type: ignore[attr-defined]
flawed_answer.extract = extract  # type: ignore[attr-defined]


def is_injected(prompt: str, step: int) -> bool:
    return step > 1 and find_split(*read_numbers(prompt)) == "train"


def kind_of(text: str, step: int, shares: Mapping[str, float]) -> str:
    """The fault of this completion at this step; "" for none."""
    digest = hashlib.sha256(f"{step}\n{text}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    for kind, share in shares.items():
        if place < share:
            return kind
        place -= share
    return ""


def note(log: str, step: int, kind: str, text: str) -> None:
    """One line per fault. Appended with a single write, which several workers can do side by side."""
    if not log or not kind:
        return
    line = json.dumps({"step": step, "kind": kind, "completion": text}) + "\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
