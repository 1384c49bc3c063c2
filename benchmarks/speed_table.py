"""Writes the table of docs/speed.md from result files: `python benchmarks/speed_table.py docs/results/*.json`.

It is between two markers and is never edited by hand: a test compares it with the files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speed_cases import compare_quoted
from speed_peers import NAMES
from speed_result import BENCHMARK

BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "speed.md"
NOTHING = "No figures are committed yet: `python benchmarks/speed_cpu.py` makes them."
STAGES = {"rollout": "rollouts", "train": "training", "step": "GRPO step"}


def table(documents: Sequence[Mapping[str, Any]]) -> str:
    """Markdown with one row per stage of each document: ours, every peer, the machine and the work."""
    documents = [document for document in documents if document.get("benchmark") == BENCHMARK]
    if not documents:
        return NOTHING
    lines, quoting = ["| | work | Cohort | peers |", "|---|---|---|---|"], False
    for document in documents:
        for stage in document["stages"]:
            beside = [*peers(stage, document), *quotes(stage, document)]
            quoting = quoting or bool(quotes(stage, document))
            lines.append(
                f"| {STAGES[stage]} | {work(stage, document)} | {ours(stage, document)} | {'; '.join(beside) or '–'} |"
            )
    lines += ["", footnote(documents, quoting)]
    return "\n".join(lines)


def work(stage: str, document: Mapping[str, Any]) -> str:
    settings, machine = document["settings"], document["machine"]
    load = settings["workload"]
    where = (
        machine["gpu"].removeprefix("NVIDIA ")
        if settings["device"].startswith("cuda")
        else f"{machine['threads']} CPU thread{'s' if machine['threads'] != 1 else ''}"
    )
    lengths = (
        f"{load['new']}" if load["lengths"] == "fixed" else f"≤ {load['new']} (mean {load['tokens'] / load['completions']:.0f})"
    )
    silent = f", 1 of {load['silent_every']} groups without signal" if load["silent_every"] else ""
    words = f", `{' '.join(settings['overrides'])}`" if settings["overrides"] else ""
    rows = settings["micro_rows"]
    micro = f", micro-batches of {rows} row{'s' if rows > 1 else ''}" if stage in ("train", "step") else ""
    return f"{where}, {settings['shape']['name']}, {load['prompts']} × {load['group']} × {lengths}{silent}{micro}{words}"


def ours(stage: str, document: Mapping[str, Any]) -> str:
    figures = document["stages"][stage]["cohort"]
    derived = figures["derived"]
    if stage == "step":
        peak = f", {figures['peak_bytes'] / 2**30:.1f} GiB" if figures.get("peak_bytes") else ""
        return f"**{derived['seconds']:.2f} s**{peak}"
    share = ""
    if "mfu" in derived:
        share = f", {100 * derived['mfu']:.0f} % MFU"
    elif "limit_share" in derived:
        share = f", {100 * derived['limit_share']:.0f} % of the limit"
    return f"**{rate(derived['tokens_per_second'])}**{share}"


def peers(stage: str, document: Mapping[str, Any]) -> list[str]:
    found = []
    for name, times in document["ratios"][stage].items():
        figures = document["stages"][stage][name]
        peak = f", {figures['peak_bytes'] / 2**30:.1f} GiB" if stage == "step" and figures.get("peak_bytes") else ""
        derived = figures["derived"]
        value = f"{derived['seconds']:.2f} s{peak}" if stage == "step" else rate(derived["tokens_per_second"])
        product, comma, how = NAMES[name].partition(",")
        version = f" {figures['version']}" if figures.get("version") else ""
        found.append(f"{product}{version}{comma}{how}: {value}, **{times:.1f}×**")
    return found


def quotes(stage: str, document: Mapping[str, Any]) -> list[str]:
    return [
        f"{quoted['label']}†: "
        + (rate(quoted["tokens_per_second"]) if quoted["tokens_per_second"] else f"{quoted['seconds']:.1f} s")
        + (f", {quoted['peak_gib']:.0f} GiB" if quoted["peak_gib"] else "")
        + f", {compare_quoted(quoted, document):.1f}×"
        for quoted in document.get("quoted", [])
        if quoted["stage"] == stage
    ]


def rate(tokens_per_second: float) -> str:
    if tokens_per_second >= 10_000:
        return f"{tokens_per_second / 1000:.0f}k tok/s"
    return f"{tokens_per_second / 1000:.1f}k tok/s" if tokens_per_second >= 1000 else f"{tokens_per_second:.0f} tok/s"


def footnote(documents: Sequence[Mapping[str, Any]], quoting: bool) -> str:
    days = sorted({document["made"] for document in documents})
    made = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    turns = [document["settings"]["repeats"] * document["settings"].get("rounds", 1) for document in documents]
    *most, last = (str(count) for count in sorted(set(turns)))
    repeats = f"{', '.join(most)} or {last}" if most else last
    text = (
        f"Medians of {repeats} after a warm-up, random weights, peers in the same run ({made}); "
        "prompts × group × tokens. How to read it: [below](#how-to-read-the-figures)."
    )
    return text + (" † Measured earlier on the same kind of machine, not in this run." if quoting else "")


def put_between(text: str, inner: str) -> str:
    """`text` with the part between the markers replaced."""
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"docs/speed.md has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{inner}\n{END}{after}"


def read(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(files)]


def main(arguments: Sequence[str]) -> int:
    PAGE.write_text(put_between(PAGE.read_text(encoding="utf-8"), table(read([Path(name) for name in arguments]))), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
