"""Completions in a report: the same problems before and after, side by side. Every text from the run is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.observe.report.data import RunData, as_dict, number
from cohort.observe.report.frame import text

COMPLETIONS_SHOWN = 3
"""Completions per side of a problem: enough to see whether the policy is consistent."""


def completions(run: RunData) -> str:
    """The same problems before and after, side by side."""

    def key(row: Mapping[str, Any]) -> tuple[str, str]:
        return str(row.get("set") or ""), prompt_text(row.get("prompt"))

    pairs: dict[tuple[str, str], list[Mapping[str, Any] | None]] = {}
    for side, rows in enumerate((run.samples_before, run.samples_after)):
        for row in rows:
            pairs.setdefault(key(row), [None, None])[side] = row
    if not pairs:
        return ""
    cards = "".join(problem_card(name, prompt, before, after) for (name, prompt), (before, after) in pairs.items())
    return f"<h2>The same problems, before and after</h2>{cards}"


def problem_card(name: str, prompt: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    answer = (before or after or {}).get("answer")
    gold = f" · expected answer: {text(answer)}" if answer is not None else ""
    sides = "".join(side_of(title, row) for title, row in (("before", before), ("after", after)))
    return (
        f'<article class="card problem"><p class="meta">{text(name)}{gold}</p><pre class="prompt">{text(prompt)}</pre>'
        f'<div class="sides">{sides}</div></article>'
    )


def side_of(title: str, row: Mapping[str, Any] | None) -> str:
    if row is None:
        return f'<div><h4>{title}</h4><p class="none">not sampled</p></div>'
    said = row.get("completions")
    said = [as_dict(one) for one in said] if isinstance(said, Sequence) and not isinstance(said, str) else []
    right = sum(one.get("success") is True for one in said)
    more = f", {COMPLETIONS_SHOWN} shown" if len(said) > COMPLETIONS_SHOWN else ""
    count = f"{title}: {right} of {len(said)} right{more}" if said else title
    return f"<div><h4>{count}</h4>{''.join(completion_card(one) for one in said[:COMPLETIONS_SHOWN])}</div>"


def completion_card(one: Mapping[str, Any]) -> str:
    success, reward = one.get("success"), number(one.get("reward"))
    style, word = {True: ("right", "✓ right"), False: ("wrong", "✗ wrong")}.get(success, ("", "no verdict"))  # type: ignore[arg-type]
    scored = f" · reward {reward:g}" if reward is not None else ""
    return (
        f'<div class="said"><p class="mark {style}">{word}{scored}</p><pre>{text(one.get("text", "")) or "(empty)"}</pre></div>'
    )


def prompt_text(prompt: Any) -> str:
    """Plain text as it is; chat messages as "role: content" blocks."""
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        return "\n\n".join(f"{as_dict(m).get('role', '?')}: {as_dict(m).get('content', '')}" for m in prompt)
    return "" if prompt is None else str(prompt)
