"""Tiny runs, real processes that can be killed anywhere, and the comparison of two run folders bit by bit.

Run as a script it is a small fork server: it imports torch once, then forks one process per request, which executes the
real command line. A kill test then costs the run and not the import of torch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COHORT = str(Path(sys.executable).with_name("cohort"))
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "400", "TOKENIZERS_PARALLELISM": "false"}

PROBLEMS = {"source": "task:column_addition", "args": {"digits": 1}, "max_prompt_tokens": 8}

TINY: dict[str, Any] = {
    "model": {
        "scratch": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_layers": 2,
            "num_heads": 2,
            "num_kv_heads": 1,
            "max_positions": 32,
        }
    },
    "prompts": PROBLEMS,
    "rewards": [{"function": "math_answer", "args": {"pattern": r">(\d+)\s*$"}}],
    "cold_start": {"num_steps": 24, "batch_size": 64, "warmup_steps": 2, "learning_rate": 1.5e-2},
    "sampling": {"max_completion_tokens": 12},
    "algorithm": {"kl_coef": 0.02},
    "train": {"num_steps": 5, "prompts_per_step": 6, "group_size": 4, "minibatches_per_step": 3, "passes_per_step": 2},
    "optimizer": {"learning_rate": 1e-3},
    "evaluation": {
        "samples": 8,
        "max_problems": 8,
        "every_problems": 4,
        "every_steps": 2,
        "resamples": 100,
        "sets": {"held_out": PROBLEMS | {"split": "held_out"}},
    },
    "checkpoints": {"every_steps": 2},
    "monitors": {"console": False},
}
"""About two seconds: cold start, several minibatches and passes, KL to a reference, evaluation on the way."""


def tree(**overrides: Any) -> dict[str, Any]:
    """TINY with dotted overrides, as plain data: tree(**{"train.num_steps": 3})."""
    from cohort.recipe.file import assign

    copy = json.loads(json.dumps(TINY))
    for key, value in overrides.items():
        assign(copy, key, value)
    return copy


def tiny(runs: Path, name: str = "run", **overrides: Any) -> Any:
    """The recipe of a tiny run that will land in runs/name."""
    from cohort.recipe.file import build_recipe

    return build_recipe(tree(**overrides) | {"runs_folder": str(runs), "name": name})


def write_recipe(file: Path, **overrides: Any) -> Path:
    import tomli_w

    file.write_text(tomli_w.dumps(tree(**overrides)), encoding="utf-8")
    return file


def train_tiny(runs: Path, name: str = "run", **overrides: Any) -> Any:
    """A tiny run in this process."""
    from cohort.session import start

    return start(tiny(runs, name, **overrides))


def rows_of(run: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Strict: every line must be a whole JSON object, and every metric of a step one that the table of metrics explains."""
    from cohort.observe.metrics import find_metric

    rows = [json.loads(line) for line in (run / file).read_text(encoding="utf-8").splitlines()]
    if file == "metrics.jsonl":
        unexplained = {name for row in rows for name in row if name not in ("step", "evidence") and find_metric(name) is None}
        assert not unexplained, f"no row in METRICS (observe/metrics.py) explains {sorted(unexplained)}"
    return rows


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


# -- comparing runs ----------------------------------------------------------------------------------------------------


def is_timing(name: str) -> bool:
    return name.startswith(("time/", "perf/")) or name.endswith("seconds") or name == "peak_memory_gib"


def without_timing(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {name: without_timing(value) for name, value in node.items() if not is_timing(name)}
    return [without_timing(value) for value in node] if isinstance(node, list) else node


def bits(file: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    import torch
    from safetensors.torch import load_file

    return {
        name: (str(value.dtype), tuple(value.shape), value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        for name, value in load_file(file).items()
    }


def differences(run: Path, expected: Path) -> list[str]:
    """What of a finished run is not exactly as in the other one; times aside. Empty: bitwise equal."""
    import pyarrow.parquet as pq

    found = []
    last = f"step-{summary_of(expected)['steps']}"
    saved = sorted(path.name for path in (expected / "checkpoints" / last).glob("*.safetensors"))
    if sorted(path.name for path in (run / "checkpoints" / last).glob("*.safetensors")) != saved:
        return [f"files in checkpoints/{last}"]
    weights = ["model/model.safetensors", *(f"checkpoints/{last}/{name}" for name in saved)]
    if (expected / "start").is_dir():
        weights.append("start/model.safetensors")
    found += [file for file in weights if bits(run / file) != bits(expected / file)]
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        if (expected / file).exists() and without_timing(rows_of(run, file)) != without_timing(rows_of(expected, file)):
            found.append(file)
    for file in ("samples/before.jsonl", "samples/after.jsonl"):
        if (expected / file).exists() and (run / file).read_bytes() != (expected / file).read_bytes():
            found.append(file)
    names = sorted(path.name for path in (expected / "rollouts").iterdir())
    if sorted(path.name for path in (run / "rollouts").iterdir()) != names:
        found.append("names in rollouts/")
    found += [
        name for name in names if not pq.read_table(run / "rollouts" / name).equals(pq.read_table(expected / "rollouts" / name))
    ]
    if without_timing(summary_of(run)) != without_timing(summary_of(expected)):
        found.append("summary.json")
    found += [f"leftover {path}" for path in leftovers(run)]
    return found


def leftovers(run: Path) -> list[Path]:
    return [path for path in run.rglob("*") if path.name.startswith(".") or path.suffix in (".tmp", ".old")]


def cpu_of_children() -> float:
    """CPU seconds of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- processes that die ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trap:
    """At the n-th call of a function the process sends itself a signal."""

    target: str
    """"module:attribute.path" as looked up by the code under test."""
    call: int = 1
    signal: int = signal.SIGKILL
    after: bool = False
    """Once the call has returned, instead of before it begins."""

    def set(self) -> None:
        module, _, path = self.target.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        original, calls = getattr(owner, name), 0

        def trapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.call and not self.after:
                os.kill(os.getpid(), self.signal)
            result = original(*args, **kwargs)
            if calls == self.call and self.after:
                os.kill(os.getpid(), self.signal)
            return result

        setattr(owner, name, trapped)


@dataclass
class Child:
    """A process that runs the command line."""

    server: ForkServer
    pid: int
    log: Path
    started: float = field(default_factory=time.monotonic)

    def wait(self, timeout: float = 300.0) -> int:
        """Exit code; negative: the signal that ended it."""
        code = self.server.ask({"wait": self.pid, "timeout": timeout})["code"]
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            raise TimeoutError(f"still running after {timeout} s:\n{self.output}")
        return int(code)

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait_for(self, condition: Any, timeout: float = 300.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"waited too long:\n{self.output}"
            time.sleep(0.005)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


class ForkServer:
    """Starts `cohort ARGUMENTS` in a fork of a process that has torch imported already."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.count = 0
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ONE_THREAD, cwd=folder, text=True
        )

    def run(self, *arguments: object, traps: Sequence[Trap] = ()) -> Child:
        self.count += 1
        log = self.folder / f"log-{self.count}.txt"
        words = [str(argument) for argument in arguments]
        reply = self.ask({"run": words, "log": str(log), "traps": [asdict(trap) for trap in traps]})
        return Child(self, reply["pid"], log)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@contextlib.contextmanager
def fork_server(folder: Path) -> Iterator[ForkServer]:
    server = ForkServer(folder)
    try:
        yield server
    finally:
        server.close()


def serve() -> None:
    """One request per line on stdin, one reply per line on stdout."""
    import torch

    torch.set_num_threads(1)
    for module in (
        "transformers.models.llama.modeling_llama",
        "cohort.session",
        "cohort.loop",
        "cohort.training.build",
        "cohort.training.preflight",
    ):
        importlib.import_module(module)
    for module in (
        "cohort.engine.local",
        "cohort.training.cold_start",
        "cohort.observe.report",
        "cohort.cli",
        "pyarrow.parquet",
        "pandas",  # pyarrow imports it with the first table: two thirds of what a short run costs
    ):
        importlib.import_module(module)
    children: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            pid = os.fork()
            if pid == 0:
                become(request)
            children[pid] = os.pidfd_open(pid)
            print(json.dumps({"pid": pid}), flush=True)
        else:
            ready, _, _ = select.select([children[request["wait"]]], [], [], request["timeout"])
            code = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]) if ready else None
            print(json.dumps({"code": code}), flush=True)


def become(request: Mapping[str, Any]) -> None:
    """The forked process: its own process group and output, then the command line as a person would call it."""
    os.setpgid(0, 0)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code: Any = 0
    try:
        from cohort.cli import app

        for trap in request["traps"]:
            Trap(**trap).set()
        app(request["run"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99  # nothing but SystemExit may leave the command line
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)


# -- rewards that tests name by import ---------------------------------------------------------------------------------


def digit_share(completions: list[str], **columns: Any) -> list[float]:
    """A reward that random weights can satisfy in part, so that groups have a signal."""
    return [sum(character.isdigit() for character in text) / (1 + len(text)) for text in completions]


def always_wrong(completions: list[str], **columns: Any) -> list[float]:
    return [0.0 for _ in completions]


def always_right(completions: list[str], **columns: Any) -> list[float]:
    return [1.0 for _ in completions]


def always_broken(completions: list[str], **columns: Any) -> list[float]:
    raise ValueError("the verifier lost its dictionary")


def broken_until_mended(completions: list[str], mended: str, answer: list[str], **columns: Any) -> list[float]:
    """Fails from step 3 on until the file named `mended` exists."""
    state = columns["trainer_state"]
    if state.global_step >= 2 and not Path(mended).exists():
        raise ValueError("the verifier lost its dictionary")
    return [float(text.strip().endswith(f">{gold}")) for text, gold in zip(completions, answer, strict=True)]


if __name__ == "__main__":
    serve()
