"""Where the checks run, and the words they use: Place, Failure, Skip, require, @setup and @check."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).with_name("inside.py")
COMMAND_S = 900
"""No command of a check takes longer."""
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES", "TERM", "FORCE_COLOR")

TASK = 'source = "task:column_addition", args = { digits = 1 }, max_prompt_tokens = 8'
TINY = f"""
model.scratch = {{ hidden_size = 32, intermediate_size = 48, num_layers = 2, num_heads = 2, num_kv_heads = 1, max_positions = 64 }}
prompts = {{ {TASK} }}
rewards = [{{ function = "math_answer", args = {{ pattern = '>(\\d+)\\s*$' }} }}]
cold_start = {{ num_steps = 24, batch_size = 64, warmup_steps = 2, learning_rate = 1.5e-2 }}
sampling.max_completion_tokens = 12
algorithm.kl_coef = 0.02
train = {{ num_steps = 8, prompts_per_step = 6, group_size = 4, minibatches_per_step = 3, passes_per_step = 2 }}
optimizer.learning_rate = 1e-3
checkpoints.every_steps = 1

[evaluation]
samples = 8
max_problems = 32
resamples = 100
sets.held_out = {{ {TASK}, split = "held_out" }}
sets.two_digits = {{ {TASK.replace("digits = 1", "digits = 2")} }}
"""
"""A few seconds: a cold start, several minibatches and passes, KL to a reference, a checkpoint after every step."""


class Failure(Exception):
    """The product does not do what the check asks."""


class Skip(Exception):
    """The check cannot be made here, and why."""


def require(true: object, otherwise: str) -> None:
    if not true:
        raise Failure(otherwise)


class Place:
    """A clone, an environment with the wheels, a folder for files, and what several checks share."""

    def __init__(self, work: Path, commit: str, environment: Path | None) -> None:
        self.work, self.commit = work, commit
        self.clone, self.wheels = work / "clone", work / "wheels"
        self.given = environment is not None
        self.environment = (environment or work / "environment").absolute()
        self.output = ""
        """What the commands of the current check printed."""

    def folder(self, name: str) -> Path:
        made = self.work / "checks" / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def variables(self, changed: Mapping[str, str] | None = None) -> dict[str, str]:
        """A shell with the environment activated, without the checkout's paths, a terminal or the hub."""
        kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        kept |= {"PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(self.environment)}
        return kept | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | dict(changed or {})

    def run(self, *words: object, cwd: Path, expected: int = 0, **changed: str) -> str:
        """What the command printed on both streams; another exit status than the expected one is a failure."""
        command = [str(word) for word in words]
        try:
            done = subprocess.run(
                command, cwd=cwd, env=self.variables(changed), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", timeout=COMMAND_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as problem:
            raise Failure(f"{shlex.join(command)[:100]} was still running after {COMMAND_S} s") from problem
        self.output += f"$ {shlex.join(command)}\n{done.stdout}"
        if done.returncode != expected:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            raise Failure(f"{shlex.join(command)[:100]} exited with {done.returncode}: {' | '.join(lines[-2:])[-300:]}")
        return done.stdout

    def ask_inside(self, function: str, *words: object, cwd: Path) -> Any:
        """A function of inside.py, run in the environment; its answer is the last line that it prints. A text: why it cannot run here."""
        answer = json.loads(self.run("python", INSIDE, function, *words, cwd=cwd).splitlines()[-1])
        if isinstance(answer, str):
            raise Skip(answer)
        return answer

    @contextmanager
    def start(self, *words: str, cwd: Path, **changed: str) -> Iterator[subprocess.Popen[str]]:
        """A command in a separate session; on leaving, it and its workers are killed."""
        process = subprocess.Popen(
            words, cwd=cwd, env=self.variables(changed), start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    @cached_property
    def chat_model(self) -> Path:
        """A random chat model of a few thousand parameters, in the format of the hub."""
        folder = self.folder("chat-model")
        self.ask_inside("make_model", folder, cwd=folder)
        return folder

    @cached_property
    def finished(self) -> Path:
        """A tiny run that nothing interrupted, in one process with one thread, which checks read and compare with."""
        folder = self.folder("finished")
        (folder / "tiny.toml").write_text(TINY, encoding="utf-8")
        self.run("cohort", "train", "tiny.toml", "name=uninterrupted", cwd=folder, OMP_NUM_THREADS="1")
        return folder / "runs" / "uninterrupted"


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def hash_weights(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()[:16]


Check = Callable[[Place], str]
SETUP: dict[str, Check] = {}
"""Nothing else can run without these."""
CHECKS: dict[str, Check] = {}


def setup(function: Check) -> Check:
    SETUP[function.__name__] = function
    return function


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def run_checks(place: Place, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The result of each check as soon as it is known. Once a step of the set-up has failed, the others are skipped."""
    broken = ""
    for name, function in [*SETUP.items(), *((name, CHECKS[name]) for name in names)]:
        started, used, place.output, verdict = time.monotonic(), os.times(), "", "ok"
        try:
            if broken:
                raise Skip(f"{broken} failed")
            figure = function(place)
        except Skip as reason:
            verdict, figure = "skip", str(reason)
        except Exception as problem:
            verdict, figure = "FAIL", str(problem) if isinstance(problem, Failure) else repr(problem)
            broken = name if name in SETUP else broken
        seconds, now = round(time.monotonic() - started, 1), os.times()
        cpu_seconds = round(now.children_user - used.children_user + now.children_system - used.children_system, 1)
        result = {
            "check": name,
            "verdict": verdict,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "figure": " ".join(figure.split()),
        }
        yield result | ({"output": place.output[-4000:]} if verdict == "FAIL" else {})
