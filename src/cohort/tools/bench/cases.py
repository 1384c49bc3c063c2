"""Named benchmarks with targets: what benchmarks/speed_cpu.py and benchmarks/speed_gpu.py are lists of."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cohort.errors import CohortError
from cohort.tools.bench.command import Options, run_bench

RESULTS = Path(__file__).resolve().parents[4] / "docs" / "results"


@dataclass(frozen=True)
class Target:
    """A figure that a result must reach: at least `low`, or at most `high`."""

    stage: str
    what: str
    """`ratio:PEER`, or a name under the stage's own figures or what is derived from them."""
    low: float | None = None
    high: float | None = None

    def value(self, document: Mapping[str, Any]) -> float | None:
        if self.what.startswith("ratio:"):
            found = document["ratios"][self.stage].get(self.what.removeprefix("ratio:"))
        else:
            figures = document["stages"][self.stage]["cohort"]
            found = figures["derived"].get(self.what, figures.get(self.what))
        return None if found is None else float(found)

    def met(self, document: Mapping[str, Any]) -> bool:
        value = self.value(document)
        return value is not None and (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def row(self, case: str, document: Mapping[str, Any]) -> str:
        value = self.value(document)
        shown = "not measured" if value is None else f"{value:,.4g}"
        wanted = f"≥ {self.low:,g}" if self.low is not None else f"≤ {self.high:,g}"
        verdict = "pass" if self.met(document) else "FAIL"
        return f"| {case} | {self.stage}: {self.what} | {shown} | {wanted} | {verdict} |"


@dataclass(frozen=True)
class Case:
    name: str
    """Of the result file."""
    words: tuple[str, ...]
    options: Options
    targets: tuple[Target, ...] = field(default=())


def run_cases(cases: Sequence[Case], description: str | None) -> int:
    """Run the cases that were asked for, write a JSON file each, and tell which targets were met."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in cases]
    parser.add_argument("--only", choices=names, action="append", help="this case only; may be repeated")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results; docs/results unless named")
    parser.add_argument("--peers", default="", help="other peers than each case names: auto, none, or names with commas")
    parser.add_argument("--vllm-python", default="", help="interpreter of another environment that has vLLM")
    parser.add_argument("--repeats", type=int, default=0, help="turns that count, instead of each case's own")
    parser.add_argument(
        "--set", dest="words", action="append", default=[], metavar="KEY=VALUE", help="word of the recipe, for all"
    )
    chosen = parser.parse_args()
    rows, missed = [], 0
    for case in cases:
        if chosen.only and case.name not in chosen.only:
            continue
        print(f"\n{case.name}", flush=True)
        options = replace(
            case.options,
            out=chosen.out / f"{case.name}.json",
            peers=chosen.peers or case.options.peers,
            vllm_python=chosen.vllm_python,
            repeats=chosen.repeats or case.options.repeats,
        )
        try:
            document = run_bench((*case.words, *chosen.words), options, lambda text: print(text, flush=True))
        except CohortError as problem:
            print(f"{case.name}: {problem}", file=sys.stderr, flush=True)
            missed += max(1, len(case.targets))
            continue
        for target in case.targets:
            rows.append(target.row(case.name, document))
            missed += not target.met(document)
    print("\n| case | figure | measured | target | verdict |\n|---|---|---|---|---|", *rows, sep="\n", flush=True)
    return 1 if missed else 0
