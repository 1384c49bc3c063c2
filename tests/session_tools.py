"""Tiny runs, real processes that can be killed anywhere, and the comparison of two run folders bit by bit.

Run as a script it is a small fork server: it imports torch once, then forks one process per request, which executes the
real command line. A kill test then costs the run and not the import of torch.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    "monitors": {"console": False, "tokens_every": 2},
}
"""About two seconds: cold start, several minibatches and passes, KL to a reference, evaluation on the way."""

FAST: dict[str, Any] = {
    "cold_start.num_steps": 0,
    "evaluation.samples": 0,
    "train.num_steps": 2,
    "train.minibatches_per_step": 1,
    "train.passes_per_step": 1,
}
"""Random weights, no evaluation: half a second."""


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


def run_with(reward: Any, runs: Any, name: str = "run", **overrides: Any) -> Any:
    """A fast run with a reward function of the test, as `cohort.train` would pass it."""
    from cohort.recipe.values import Materials
    from cohort.session import start

    recipe = tiny(runs, name, **FAST | {"rewards": [{"function": "python:reward", "name": "reward"}]} | overrides)
    return start(recipe, Materials(None, {"python:reward": reward}))


def stop_at(patch: Any, step: int) -> None:
    """Interrupt runs when this step is finished, as SIGTERM does."""
    from cohort.errors import Interrupted
    from cohort.training.state import TrainState

    original = TrainState.finish_step

    def stopped(self: Any) -> None:
        original(self)
        if self.step == step:
            raise Interrupted("SIGTERM")

    patch.setattr(TrainState, "finish_step", stopped)


def prove_others(values: Iterable[str], *kept: str) -> list[Any]:
    """Parameters of a test: those kept are the sample of `make test`, the others are run by `make prove`."""
    import pytest

    values = list(values)
    assert {*kept} <= {*values}, {*kept} - {*values}
    return [value if value in kept else pytest.param(value, marks=pytest.mark.prove) for value in values]


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
    return name.startswith(("time/", "perf/", "ranks/")) or name.endswith("seconds") or name in ("peak_memory_gib", "saving")


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
    weights += [f"start/{path.name}" for path in (expected / "start").glob("*.safetensors")]  # of an adapter, with LoRA
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
    if not {"index.bin", "step-000001.tokens.parquet"} <= {*names}:
        found.append("what is recorded beside the rollouts")
    for name in names:
        one, other = run / "rollouts" / name, expected / "rollouts" / name
        tables = name.endswith(".parquet")
        if not (pq.read_table(one).equals(pq.read_table(other)) if tables else one.read_bytes() == other.read_bytes()):
            found.append(name)
    if list_found(run) != list_found(expected):
        found.append("findings in events.jsonl")
    summaries = [{**without_timing(summary_of(one)), "ranks": None, "paths": None} for one in (run, expected)]
    if summaries[0] != summaries[1]:
        found.append("summary.json")
    found += [f"leftover {path}" for path in leftovers(run)]
    return found


def list_found(run: Path) -> list[dict[str, Any]]:
    """Findings as they were told; those about seconds and ranks aside, which differ from machine to machine."""
    rows = rows_of(run, "events.jsonl") if (run / "events.jsonl").exists() else []
    told = [{name: value for name, value in row.items() if name != "time"} for row in rows if row["kind"] == "finding"]
    return [one for one in told if not one["name"].startswith(("slow_", "rank_", "ahead_"))]


def leftovers(run: Path) -> list[Path]:
    return [path for path in run.rglob("*") if path.name.startswith(".") or path.suffix in (".tmp", ".old")]


def cpu_of_children() -> float:
    """CPU seconds of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- processes that die ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trap:
    """At the n-th call of a function the process sends itself a signal, or does what `do` says."""

    target: str
    """"module:attribute.path" as looked up by the code under test."""
    call: int = 1
    signal: int = signal.SIGKILL
    after: bool = False
    """Once the call has returned, instead of before it begins."""
    do: str = ""
    """Instead of the signal: "sleep 20", "exit" (as sys.exit), "leave" (as os._exit), "hide FOLDER" (from this process alone), "threads 2" (of torch), "give TEXT"
    (instead of every call from here on), else the words of a RuntimeError."""

    def spring(self) -> None:
        if not self.do:
            os.kill(os.getpid(), self.signal)
        elif self.do.startswith("sleep "):
            time.sleep(float(self.do.removeprefix("sleep ")))
        elif self.do.startswith("hide "):
            hide_folder(self.do.removeprefix("hide "))
        elif self.do.startswith("threads "):
            import torch

            torch.set_num_threads(int(self.do.removeprefix("threads ")))
        elif self.do == "exit":
            sys.exit(3)
        elif self.do == "leave":
            os._exit(3)
        else:
            raise RuntimeError(self.do)

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
            if calls >= self.call and self.do.startswith("give "):
                return self.do.removeprefix("give ")
            if calls == self.call and not self.after:
                self.spring()
            result = original(*args, **kwargs)
            if calls == self.call and self.after:
                self.spring()
            return result

        setattr(owner, name, trapped)


def hide_folder(folder: str) -> None:
    """Another file system in the place of the folder, in this process and its children alone. For root."""
    import ctypes

    libc, new_mounts, private = ctypes.CDLL(None, use_errno=True), 0x20000, 0x44000
    assert libc.unshare(new_mounts) == 0
    assert libc.mount(b"none", b"/", None, private, None) == 0
    assert libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, None) == 0


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


@functools.cache
def start_forking(script: str) -> subprocess.Popen[str]:
    """The process that forks, one for all tests of a worker: to import torch takes seconds. It ends with the worker."""
    process = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ONE_THREAD, cwd="/", text=True
    )
    assert process.stdin is not None
    atexit.register(process.stdin.close)
    return process


class ForkServer:
    """Starts `cohort ARGUMENTS` in a folder, in a fork of a process that has torch imported already."""

    def __init__(self, folder: Path, script: str = __file__):
        self.folder = folder
        self.count = 0
        self.process = start_forking(script)

    def run(self, *arguments: object, traps: Sequence[Trap] = (), env: Mapping[str, str] | None = None) -> Child:
        """traps: where the process sends itself a signal; env: what its environment says beside that of the tests."""
        self.count += 1
        log = self.folder / f"log-{self.count}.txt"
        words = [str(argument) for argument in arguments]
        request = {
            "run": words,
            "cwd": str(self.folder),
            "log": str(log),
            "traps": [asdict(trap) for trap in traps],
            "env": dict(env or {}),
        }
        reply = self.ask(request)
        return Child(self, reply["pid"], log)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextlib.contextmanager
def fork_server(folder: Path) -> Iterator[ForkServer]:
    yield ForkServer(folder)


def serve(become: Callable[[Mapping[str, Any]], None]) -> None:
    """One request per line on stdin, one reply per line on stdout. become: what a forked process does; it does not return."""
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
        "cohort.observe.report.page",
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
            if ready:
                os.close(children.pop(request["wait"]))
            print(json.dumps({"code": code}), flush=True)


def become(request: Mapping[str, Any]) -> None:
    """The forked process: its own process group and output, then the command line as a person would call it."""
    stand_alone(request)
    os._exit(run_command(request["run"], request["traps"]))


def stand_alone(request: Mapping[str, Any]) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    os.chdir(request["cwd"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["env"])


def run_command(words: Sequence[str], traps: Sequence[Mapping[str, Any]]) -> int:
    """`cohort WORDS` with these traps set; its exit code."""
    notes = note_updates() if "NOTES" in os.environ else {}
    code: Any = 0
    try:
        from cohort.cli import app

        for trap in traps:
            Trap(**trap).set()
        app(list(words))
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99  # nothing but SystemExit may leave the command line
    if notes:
        import torch.distributed

        notes |= {"modules": sorted(sys.modules), "process_group": torch.distributed.is_initialized()}
        Path(os.environ["NOTES"]).write_text(json.dumps(notes), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 1 if code else 0


def note_updates() -> dict[str, Any]:
    """How many micro-batches each update has from now on, by the function that trains."""
    from cohort.model.packing import Minibatch

    original, counts = Minibatch.deal, {"update_policy": [], "supervised_update": []}

    def deal(self: Any, world: Any) -> Any:
        counts.get(sys._getframe(1).f_code.co_name, []).append(len(self.micro_batches))
        return original(self, world)

    Minibatch.deal = deal  # type: ignore[method-assign]
    return {"micro_batches": counts}


# -- rewards that tests name by import ---------------------------------------------------------------------------------


def only_boxed(completions: list[str], answer: list[Any], **columns: Any) -> list[float]:
    """1 where the last box holds the gold. It stands here because a worker imports the module of a reward: this one is light."""
    found = [re.findall(r"\\boxed\{(.*?)\}", text) for text in completions]
    return [float(boxes[-1:] == [str(gold)]) for boxes, gold in zip(found, answer, strict=True)]


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
    serve(become)
