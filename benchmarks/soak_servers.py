"""A run of 200 steps on two vLLM servers under 20 random faults: it finishes, and no step is lost or trained twice.

    python benchmarks/soak_servers.py OUT [--steps 200] [--faults 20] [--seed 0] [--lag 1] [--push group]

Needs the environment of `make vllm`. Servers are killed or lose a worker, and are restarted; workers are stopped and continued; the
trainer is killed or terminated, and the run is resumed. The seed decides the faults and their steps. The run is the demo with a smaller
model. It is compared with the same run without faults: the steps in metrics.jsonl, the policy version that sampled each step's
completions, the updates in the last checkpoint, and the weights.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "vllm_servers"))

import serving  # noqa: E402

KINDS = ("server killed", "worker killed", "worker stopped", "trainer killed", "trainer told to end")
STOPPED_S = 9.0
"""Longer than vllm.limit_s below: a stopped worker counts as lost, and comes back."""
IDLE_S = 0.1
STUCK_S = 900.0
"""Without a step, after which the soak gives up."""
WORDS = (
    "column_addition",
    "model.scratch.hidden_size=64",
    "model.scratch.num_heads=2",
    "model.scratch.num_kv_heads=1",
    "model.scratch.intermediate_size=128",
    "model.scratch.num_layers=2",
    "cold_start.num_steps=40",
    "cold_start.until_success=1.0",
    "evaluation.samples=0",
    "prompts_per_step=4",
    "group_size=4",
    "optimizer.learning_rate=3e-4",
    "checkpoints.every_steps=5",
    "monitors.console=false",
    "vllm.limit_s=5",
    "vllm.wait_s=600",
)


@dataclass
class Soak:
    """Two servers and a trainer, and whatever befalls them."""

    out: Path
    words: list[str]
    draw: random.Random
    servers: list[serving.Server] = field(default_factory=list)
    trainer: subprocess.Popen[bytes] | None = None
    lives: int = 0
    started: int = 0
    happened: list[str] = field(default_factory=list)
    again: list[tuple[float, int]] = field(default_factory=list)
    """(when, pid) of stopped workers that go on."""

    def train(self, name: str) -> None:
        """Begin the run, or go on with it."""
        run = self.out / name
        begun = (run / "checkpoints").is_dir() or (run / "metrics.jsonl").is_file()
        addresses = ",".join(server.url for server in self.servers)
        words = ["resume", str(run)] if begun else ["train", *self.words, f"name={name}", f"sampling.servers={addresses}"]
        with (self.out / f"{name}.log").open("ab") as log:
            self.trainer = subprocess.Popen(
                [sys.executable, "-m", "cohort", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.lives += 1

    def start_server(self, port: int = 0) -> serving.Server:
        """Each life has its own log."""
        self.started += 1
        return serving.start_server(self.out / "servers" / str(self.started), self.words, port=port)

    def strike(self, kind: str, step: int) -> None:
        """One fault, where there is still somebody whom it can befall."""
        assert self.trainer is not None
        alive = [server for server in self.servers if server.list_workers()]
        if kind.startswith("trainer"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.trainer.pid, signal.SIGKILL if kind == "trainer killed" else signal.SIGTERM)
        elif alive:
            server = self.draw.choice(alive)
            if kind == "server killed":
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)
            else:
                for pid in server.list_workers():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL if kind == "worker killed" else signal.SIGSTOP)
                    self.again += [(time.monotonic() + STOPPED_S, pid)] if kind == "worker stopped" else []
        print(f"step {step}: {kind}", flush=True)
        self.happened.append(kind)

    def tend(self) -> None:
        """What a scheduler does: start again what has ended. And let stopped workers go on."""
        for number, server in enumerate(self.servers):
            if server.process.poll() is not None or is_dead_inside(server):
                server.end(signal.SIGKILL)
                port = int(server.url.rpartition(":")[2])
                self.servers[number] = self.start_server(port)
        for entry in [entry for entry in self.again if entry[0] <= time.monotonic()]:
            self.again.remove(entry)
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry[1], signal.SIGCONT)

    def run(self, name: str, faults: dict[int, list[str]]) -> int:
        """The whole run, with faults by step; the exit code of its last life."""
        self.train(name)
        due, seen, moved = sorted(faults), -1, time.monotonic()
        while True:
            assert self.trainer is not None
            ended, step = self.trainer.poll(), count_steps(self.out / name)
            if step != seen:
                seen, moved = step, time.monotonic()
            if time.monotonic() - moved > STUCK_S:
                os.killpg(self.trainer.pid, signal.SIGKILL)
                raise SystemExit(f"no step within {STUCK_S:g} s after step {step}; see {self.out / name}.log")
            if ended == 0:
                return 0
            if ended is not None:
                if ended not in (-signal.SIGKILL, 130):
                    return ended
                self.train(name)
            elif due and step >= due[0]:
                for kind in faults[due.pop(0)]:
                    self.strike(kind, step)
            self.tend()
            time.sleep(IDLE_S)


def is_dead_inside(server: serving.Server) -> bool:
    """Whether the server has served and lost its engine: its front-end process may still run, but does not answer."""
    if any("VLLM::" in serving.read_title(pid) for pid in server.list_below()):
        return False
    return "Application startup complete" in server.log.read_text(encoding="utf-8", errors="replace")


def count_steps(run: Path) -> int:
    with contextlib.suppress(OSError):
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def find_faults(run: Path, clean: Path, steps: int, lag: int) -> list[str]:
    """What is not as it must be; empty where nothing was lost and nothing done twice."""
    import pyarrow.parquet as parquet
    import torch
    from safetensors.torch import load_file

    found = []
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if [row["step"] for row in rows] != list(range(1, steps + 1)):
        found.append(f"the steps of metrics.jsonl are not 1 to {steps}: {Counter(row['step'] for row in rows).most_common(3)}")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    if (summary["status"], summary["steps"]) != ("finished", steps):
        found.append(f"the summary says {summary['status']} after {summary['steps']} steps")
    for file in sorted((run / "rollouts").glob("step-*[0-9].parquet")):
        table = parquet.read_table(file).to_pydict()
        for step, version in zip(table["step"], table["policy_version"], strict=True):
            if version != max(0, step - 1 - lag):
                found.append(f"step {step} was trained on completions of version {version}")
                break
    weights, others = (load_file(where / "model" / "model.safetensors") for where in (run, clean))
    if not all(torch.equal(value, others[name]) for name, value in weights.items()):
        found.append("the weights are not those of the run without faults")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--push", choices=("group", "files"), default="group")
    chosen = parser.parse_args()
    out: Path = chosen.out.resolve()
    out.mkdir(parents=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    draw = random.Random(chosen.seed)
    kinds = [KINDS[number % len(KINDS)] for number in range(chosen.faults)]
    draw.shuffle(kinds)
    faults: dict[int, list[str]] = {}
    for kind in kinds:
        faults.setdefault(draw.randrange(2, chosen.steps - 2), []).append(kind)
    words = [*WORDS, f"runs_folder={out}", f"num_steps={chosen.steps}", f"ahead.lag={chosen.lag}", f"vllm.push={chosen.push}"]
    soak, began = Soak(out, words, draw), time.monotonic()
    figures: dict[str, Any] = {"steps": chosen.steps, "seed": chosen.seed}
    try:
        soak.servers = [soak.start_server() for _ in range(2)]
        for server in soak.servers:
            server.wait_ready()
        code = soak.run("clean", {})
        figures["seconds without faults"] = round(time.monotonic() - began)
        began, soak.lives = time.monotonic(), 0
        code = code or soak.run("soak", faults)
        figures |= {
            "seconds": round(time.monotonic() - began),
            "lives of the trainer": soak.lives,
            "lives of the servers": soak.started,
        }
        figures |= {"faults": dict(sorted(Counter(soak.happened).items())), "exit code": code}
    finally:
        for server in soak.servers:
            server.end(signal.SIGKILL)
        if soak.trainer is not None and soak.trainer.poll() is None:
            os.killpg(soak.trainer.pid, signal.SIGKILL)
    figures["found"] = find_faults(out / "soak", out / "clean", chosen.steps, chosen.lag) if not code else [f"exit code {code}"]
    print(json.dumps(figures, indent=2))
    return 1 if figures["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
