"""Two hosts with a trainer and a vLLM server on each: the weights are the same on one or two hosts, repeated, and after a kill.

    sudo python benchmarks/two_hosts_vllm.py OUT [--steps 5] [--only lag-1] [KEY=VALUE ...]

Hosts are network namespaces (namespaces.py). A cold start makes a model; `cohort serve` starts a server of it on each host, and every run
pushes its weights to both. For ahead.lag 0 and 1 it trains one process on the first host; one rank on each host under torchrun, twice,
with parallel.shard none and full; and again with a rank killed (-9) and the run resumed, first the rank of the second host, then rank 0.
Prints the hash of the weights of each run and mean seconds of a step by stage and of a push; exits with 1 if two hashes of one lag
differ. Needs root, `ip` and the environment of `make vllm`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm_servers"))

import serving
from namespaces import Host, go_inside, make_hosts, write_launches

from cohort.base.processes import children_of

COLD = [
    "column_addition",
    "model.scratch.num_layers=2",
    "cold_start.num_steps=60",
    "cold_start.until_success=1.0",
    "num_steps=0",
    "evaluation.samples=0",
    "monitors.console=false",
]
WORDS = [
    "column_addition",
    "cold_start.num_steps=0",
    "model.kernels=modules",  # what a model that is shared out is trained with, so that the bits can be compared
    "evaluation.samples=0",
    "train.micro_batch_tokens=512",
    "prompts_per_step=8",
    "group_size=8",
    "checkpoints.every_steps=1",
    "parallel.limit_s=20",
    "sampling.engine=vllm",
    # What a hardly trained model does every other time, so that there is something to learn in every step.
    """rewards=[{function = "regex_format", args = {pattern = '.*[0-4]\\s*'}}]""",
]
STAGES = ("wait", "rollout", "reward", "update", "optimizer", "checkpoint", "step")
LIMIT_S = 600.0
PORT = 8000


@dataclass(frozen=True)
class Case:
    lag: int
    hosts: int
    shard: str = "none"
    again: bool = False
    kills: tuple[int, ...] = ()
    """Ranks that are killed, one after the other, each in the middle of what is left."""

    @property
    def name(self) -> str:
        ways = ["killed"] if self.kills else ["again"] if self.again else []
        return "-".join([f"lag-{self.lag}", "alone" if self.hosts == 1 else f"both-{self.shard}", *ways])


CASES = [
    Case(lag, *more)
    for lag in (1, 0)
    for more in ((1,), (2, "none"), (2, "none", True), (2, "full"), (2, "full", True))
] + [
    Case(1, 2, "none", kills=(1, 0)),
    Case(1, 2, "full", kills=(1, 0)),
    Case(0, 2, "none", kills=(1,)),
    Case(1, 1, kills=(0,)),
]  # fmt: skip


def train_case(case: Case, hosts: Sequence[Host], words: Sequence[str], runs: Path, steps: int) -> Path:
    """The folder of the finished run."""
    run = runs / case.name
    begin = ["train", *words, f"name={case.name}", f"ahead.lag={case.lag}", f"parallel.shard={case.shard}"]
    for turn, command in enumerate([begin, *(["resume", str(run)] for _ in case.kills)]):
        if case.hosts == 1:
            commands = [hosts[0].enter(sys.executable, "-m", "cohort", *command)]
        else:
            commands = write_launches(hosts, 29611 + turn, *command)
        victim = case.kills[turn] if turn < len(case.kills) else None
        run_launches(commands, run, steps, victim)
    return run


def run_launches(commands: Sequence[Sequence[str]], run: Path, steps: int, victim: int | None) -> None:
    """To their end: a good one, or that of a victim among the ranks, which is killed in the middle of the steps that are left."""
    logs = [run.parent / f"{run.name}-host-{place}.txt" for place in range(len(commands))]
    launched = []
    for command, log in zip(commands, logs, strict=True):
        with log.open("ab") as output:
            launched.append(subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"}))
    try:
        if victim is not None:
            done = len(read_rows(run))
            wait_for_steps(run, done + max(1, (steps - done) // 2), launched, logs)
            os.kill(find_rank(launched[victim].pid, alone=len(commands) == 1), signal.SIGKILL)
        codes = [process.wait(LIMIT_S) for process in launched]
    finally:
        for process in launched:
            process.kill()
    if (victim is None) == any(codes):
        said = "\n".join(log.read_text(encoding="utf-8", errors="replace")[-4000:] for log in logs)
        raise SystemExit(f"{run.name}: the processes ended with {codes}:\n{said}")


def wait_for_steps(run: Path, count: int, launched: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]) -> None:
    until = time.monotonic() + LIMIT_S
    while len(read_rows(run)) < count:
        if time.monotonic() > until or any(process.poll() is not None for process in launched):
            said = "\n".join(log.read_text(encoding="utf-8", errors="replace")[-4000:] for log in logs)
            raise SystemExit(f"{run.name}: it did not come to step {count}:\n{said}")
        time.sleep(0.02)


def find_rank(launcher: int, alone: bool) -> int:
    """The process that trains below this one."""
    if alone:
        return launcher
    [rank] = [pid for pid in children_of(launcher) if b"cohort" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return rank


def read_rows(run: Path) -> list[dict[str, float]]:
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    except (FileNotFoundError, ValueError):  # not there yet, or a line that is half written
        return []


def hash_weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()[:16]


def describe(run: Path) -> str:
    rows = read_rows(run)[1:]  # the first step holds what is only done once
    seconds = {stage: mean(row.get(f"time/{stage}", 0.0) for row in rows) for stage in STAGES}
    pushes = mean(row.get("servers/push_seconds", 0.0) for row in rows)
    ages = [row.get("ahead/staleness_max", 0.0) for row in rows]
    stages = ", ".join(f"{stage} {seconds[stage]:.2f}" for stage in STAGES if seconds[stage] >= 0.005)
    return f"{hash_weights(run)}  {stages}; push {pushes:.2f} s; {len(rows) + 1} steps, oldest {max(ages):g}"


def start_servers(hosts: Sequence[Host], folder: Path, words: Sequence[str], stack: ExitStack) -> None:
    """One on each host, ended with the stack."""
    started = []
    for host in hosts:
        server = serving.start_server(folder / host.card, words, address=host.address, port=PORT, enter=host.enter())
        stack.callback(server.end)
        started.append(server)
    for host, server in zip(hosts, started, strict=True):
        with go_inside(host):
            server.wait_ready()


def train_all(cases: Sequence[Case], out: Path, steps: int, more: Sequence[str]) -> Iterator[tuple[Case, Path]]:
    runs = out / "runs"
    command = [sys.executable, "-m", "cohort", "train", *COLD, "name=cold", f"runs_folder={runs}"]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    words = [*WORDS, f"model.source={runs / 'cold' / 'model'}", f"num_steps={steps}", f"runs_folder={runs}", *more]
    with make_hosts() as hosts, ExitStack() as stack:
        words.append("sampling.servers=" + ",".join(f"http://{host.address}:{PORT}" for host in hosts))
        start_servers(hosts, out / "servers", words, stack)
        for case in cases:
            yield case, train_case(case, hosts, words, runs, steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the runs and logs, which must not exist yet")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", default="", help="cases that begin so: lag-1, lag-0-both, ...")
    parser.add_argument("words", nargs="*", help="recipe settings, KEY=VALUE")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True)
    hashes: dict[int, set[str]] = {}
    cases = [case for case in CASES if case.name.startswith(options.only)]
    for case, run in train_all(cases, out, options.steps, options.words):
        print(f"{case.name:22} {describe(run)}", flush=True)
        hashes.setdefault(case.lag, set()).add(hash_weights(run))
    start = hash_weights(out / "runs" / "cold")
    equal = all(len(found) == 1 and start not in found for found in hashes.values())
    print(f"start {start}; " + ("by lag the same weights in every run" if equal else "WEIGHTS DIFFER"))
    return 0 if equal else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and namespaces are taken away then too
    sys.exit(main())
