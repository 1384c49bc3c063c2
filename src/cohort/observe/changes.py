"""What two evaluations say of each other, in words: "rose" and "fell" only where a paired test says so. No torch.

The report, the console and comparisons take their words from here, so that none claims what another does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.evaluation.estimators import UNCLEAR, PairedDifference


def read_change(plain: Any) -> PairedDifference | None:
    """A stored difference; None where there is none, or it is not one."""
    try:
        return PairedDifference.from_json(plain) if plain else None
    except (KeyError, TypeError):
        return None


def describe_change(name: str, what: str, before: float, after: float, change: PairedDifference | None) -> tuple[str, str]:
    """(one sentence anybody understands, how sure it is).

    The difference is that of the problems both have; the same as after - before where all are common.
    """
    ends = f"from {percent(before)} to {percent(after)}"
    points = f"{100 * (after - before if change is None else change.difference):+.1f} points"
    if change is None:
        return f"{what} on {spoken(name)} went {ends}.", f"A change of {points}; no problem can be paired, so it is not tested"
    if change.verdict == UNCLEAR:
        sentence = f"{what} on {spoken(name)} went {ends}: no clear change, nothing that the evaluation can tell from noise."
    else:
        sentence = f"{what} on {spoken(name)} {change.verdict} {ends}."
    return sentence, f"A change of {points} ({change.sureness})"


def changes_in_words(evaluated: Mapping[str, Any]) -> list[str]:
    """One line per set that was evaluated before and after: what became of pass@1, and how sure that is."""
    lines = []
    for name, sides in (evaluated.get("sets") or {}).items():
        before, after = (((sides.get(side) or {}).get("pass@1") or {}).get("value") for side in ("before", "after"))
        if before is not None and after is not None:
            change = read_change(((evaluated.get("change") or {}).get(name) or {}).get("pass@1"))
            lines.append("{} {}.".format(*describe_change(name, "pass@1", before, after, change)))
    return lines


def change_style(change: PairedDifference | None, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """up or down, the colours of a change, where it is clear: by the paired test, or, untested, by intervals that do not meet."""
    if change is not None:
        return {"rose": "up", "fell": "down"}.get(change.verdict, "")
    low, high, later_low, later_high = (side.get(end) for side in (before, after) for end in ("low", "high"))
    if low is None or high is None or later_low is None or later_high is None:
        return ""
    return "up" if later_low > high else "down" if later_high < low else ""


def spoken(name: str) -> str:
    return "held-out problems" if name in ("held_out", "held-out", "held-out problems") else name


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
