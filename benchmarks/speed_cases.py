"""Runs the named benchmarks of speed_cpu.py and speed_gpu.py, checks their targets and adds figures measured earlier."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from speed import Options, run_bench
from speed_result import refuse_unwritable, write_result

from cohort.errors import CohortError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


@dataclass(frozen=True)
class SpeedTarget:
    """A target for a figure: at least `low`, or at most `high`."""

    stage: str
    what: str
    """`ratio:PEER`, or the name of a measured or derived figure of the stage."""
    low: float | None = None
    high: float | None = None

    def find_value(self, document: Mapping[str, Any]) -> float | None:
        if self.what.startswith("ratio:"):
            found = document["ratios"][self.stage].get(self.what.removeprefix("ratio:"))
        else:
            figures = document["stages"][self.stage]["cohort"]
            found = figures["derived"].get(self.what, figures.get(self.what))
        return None if found is None else float(found)

    def is_met(self, document: Mapping[str, Any]) -> bool:
        value = self.find_value(document)
        return value is not None and (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def make_row(self, case: str, document: Mapping[str, Any]) -> str:
        value = self.find_value(document)
        shown = "not measured" if value is None else f"{value:,.4g}"
        wanted = f"≥ {self.low:,g}" if self.low is not None else f"≤ {self.high:,g}"
        verdict = "pass" if self.is_met(document) else "FAIL"
        return f"| {case} | {self.stage}: {self.what} | {shown} | {wanted} | {verdict} |"


@dataclass(frozen=True)
class SpeedCase:
    """A named benchmark: arguments and options of speed.py, and targets."""

    name: str
    """Also of the result file."""
    words: tuple[str, ...]
    options: Options
    targets: tuple[SpeedTarget, ...] = field(default=())


FAST = {
    "cuda": {"sampling": "own kernels in CUDA graphs", "training": "own kernels"},
    "cpu": {"sampling": "compiled code", "training": "compiled code"},
}
"""The code that the cases are about (describe_paths in training/stages.py)."""


def check_paths(case: str, document: Mapping[str, Any]) -> tuple[list[str], int]:
    """(rows, number of wrong paths): a rate says nothing about code that did not run."""
    wanted, rows, wrong = FAST["cuda" if document["settings"]["device"].startswith("cuda") else "cpu"], [], 0
    for stage, engines in document["stages"].items():
        for work, found in engines["cohort"]["paths"].items():
            ran = found["code"] == wanted[work]
            wrong += not ran
            text = found["code"] if ran else f"{found['code']}: {found['choice']}"
            rows.append(f"| {case} | {stage}: {work} | {text} | {wanted[work]} | {'pass' if ran else 'FAIL'} |")
    return rows, wrong


@dataclass(frozen=True)
class Quoted:
    """A figure measured earlier on the same kind of machine, shown if the peer cannot be installed."""

    peer: str
    label: str
    stage: str
    gpu: str
    shape: str
    prompts: int
    group: int
    prompt_tokens: int
    new: int
    tokens_per_second: float = 0.0
    seconds: float = 0.0
    peak_gib: float = 0.0

    def fits(self, document: Mapping[str, Any]) -> bool:
        """Whether the document has the same work on the same kind of machine, without adapters and without this peer."""
        settings = document["settings"]
        work = settings["workload"]
        sizes = {name: getattr(self, name) for name in ("prompts", "group", "prompt_tokens", "new")}
        adapters = any(word.startswith("model.lora.") for word in settings["overrides"])
        return (
            sizes.items() <= work.items()
            and work["lengths"] == "fixed"
            and settings["shape"]["name"] == self.shape
            and document["machine"]["gpu"].startswith(self.gpu)
            and not adapters
            and self.stage in document["stages"]
            and self.peer not in document["stages"][self.stage]
        )


H200 = ("NVIDIA H200", "0.5b", 32, 8, 128, 512)
H200_7B = ("NVIDIA H200", "7b", 32, 8, 128, 256)
QUOTED = (
    Quoted("vllm", "vLLM 0.25.1, in process", "rollout", *H200, tokens_per_second=36_000),
    Quoted("vllm_logprobs", "vLLM 0.25.1 as started by default, with log-probs", "rollout", *H200, tokens_per_second=16_800),
    Quoted("vllm_logprobs", "vLLM 0.25.1, in process, with log-probs", "rollout", *H200_7B, tokens_per_second=22_400),
    Quoted("trl_vllm", "TRL 1.16, vLLM rollouts", "step", *H200, seconds=10.2, peak_gib=61),
)


def compare_quoted(quoted: Mapping[str, Any], document: Mapping[str, Any]) -> float:
    """How many times faster ours is than the quoted figure."""
    ours = document["stages"][quoted["stage"]]["cohort"]["derived"]
    if quoted["tokens_per_second"]:
        return float(ours["tokens_per_second"] / quoted["tokens_per_second"])
    return float(quoted["seconds"] / ours["seconds"])


def read_revision() -> str:
    """The commit of this checkout, with a + if files were changed; "" outside a checkout."""
    try:
        found = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain", "-uno"], capture_output=True, text=True)
    except OSError:
        return ""
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "") if found.returncode == 0 else ""


def add_origin(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its commit and the quoted figures that fit its settings."""
    quoted = [asdict(figure) for figure in QUOTED if figure.fits(document)]
    return {**document, "revision": read_revision(), "quoted": quoted}


def say(text: str) -> None:
    """Print a line without buffering."""
    print(text, flush=True)


def run_cases(cases: Sequence[SpeedCase], description: str | None) -> int:
    """Run the chosen cases, write a JSON file each, and print which targets were met."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in cases]
    parser.add_argument("--only", choices=names, action="append", help="run only this case; may be repeated")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results (default: docs/results)")
    parser.add_argument("--peers", default="", help="instead of each case's peers: auto, none, or comma-separated names")
    parser.add_argument("--vllm-python", default="", help="Python of another environment that has vLLM")
    parser.add_argument("--repeats", type=int, default=0, help="measured repetitions, instead of each case's own")
    parser.add_argument(
        "--set", dest="words", action="append", default=[], metavar="KEY=VALUE", help="recipe setting, for all cases"
    )
    chosen = parser.parse_args()
    rows, missed = [], 0
    for case in cases:
        if chosen.only and case.name not in chosen.only:
            continue
        print(f"\n{case.name}", flush=True)
        options = replace(
            case.options,
            peers=chosen.peers or case.options.peers,
            vllm_python=chosen.vllm_python,
            repeats=chosen.repeats or case.options.repeats,
        )
        file = chosen.out / f"{case.name}.json"
        try:
            refuse_unwritable(file)
            document = add_origin(run_bench((*case.words, *chosen.words), options, say))
            write_result(document, file, say)
        except CohortError as problem:
            print(f"{case.name}: {problem}", file=sys.stderr, flush=True)
            missed += max(1, len(case.targets))
            continue
        paths, wrong = check_paths(case.name, document)
        rows += paths
        missed += wrong
        for target in case.targets:
            rows.append(target.make_row(case.name, document))
            missed += not target.is_met(document)
    print("\n| case | figure | measured | target | verdict |\n|---|---|---|---|---|", *rows, sep="\n", flush=True)
    return 1 if missed else 0
