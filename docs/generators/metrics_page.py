"""docs/metrics.md: every metric a run writes, from the table of cohort.observe.metrics."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.observe.metrics import AREAS, METRICS


def make_page() -> str:
    """The text of docs/metrics.md."""
    return "\n".join(write_lines()) + "\n"


def write_lines() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "<!-- Written by `make docs` from src/cohort/observe/metrics.py; edit there. -->"
    yield ""
    yield 'Every step appends one JSON object to `metrics.jsonl` in the run folder: `{"step": 12, "reward/mean": 0.41, ...}`.'
    yield "A value that does not exist in a step is absent; a value that was not finite is `null`. Shares lie between 0 and 1."
    yield "`evidence`, where a row has it, holds no number: it names rollouts for the [hacking alarms](hacking-alarms.md)."
    yield ""
    yield "Short of time? Watch five: `reward/success`, `advantage/useful_groups`, `rollout/truncated`, `loss/kl_per_completion`"
    yield "and `eval/<set>/pass@1`. The loss is not among them: exactly on-policy it is 0 by construction."
    for area, about in AREAS.items():
        yield ""
        yield f"## {area}/"
        yield ""
        yield about
        yield ""
        yield "| metric | unit | formula | healthy | a bad value means |"
        yield "|---|---|---|---|---|"
        for metric in METRICS:
            if metric.area == area:
                cells = (f"`{metric.name}`", metric.unit, metric.formula, metric.healthy, metric.bad)
                yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
