"""Hashes of weights, metrics and rollouts of tiny runs, to compare the results of two commits bit by bit.

    python benchmarks/fingerprint.py new.json                           about two minutes on one core
    python benchmarks/fingerprint.py old.json --checkout OLD            the same runs with the code of another checkout
    python benchmarks/fingerprint.py --compare old.json new.json        list what differs; exit code 1 if anything does
    python benchmarks/fingerprint.py --compare old.json new.json --renamed names.json
    python benchmarks/fingerprint.py --compare-runs RUN RUN             compare two whole run folders

Only the command line and the files of a run folder are used, so the same file serves commits whose modules lie elsewhere. names.json
maps renamed metrics and rollout columns, {"old": "new"}; null for one that was removed. Every run has its own process with a fixed
number of threads. One run is stopped twice inside a step, first by SIGTERM (the checkpoint then holds the batch), then by SIGKILL; it must
end like the same run without a stop. The moment is a number of calls of `Tensor.backward`, which does not depend on where our functions are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from alternate import ROOT, use_checkout

Record = dict[str, Any]

SHOWN = 12
"""Differences printed for one run; more are counted."""

PROBLEMS = {"source": "task:column_addition", "args": {"digits": 1}, "max_prompt_tokens": 8}
ANSWER = {"function": "math_answer", "args": {"pattern": r">(\d+)\s*$"}}
STEPS = {"function": "fingerprint:score_lines"}
"""A process reward that is defined here, so that no commit has to know it by name."""
PAIRS = [{"prompt": f"{a}+{b}=", "chosen": f">{a + b}", "rejected": f">{a + b + 1}"} for a in range(4) for b in range(5)]
SCRATCH = {"hidden_size": 32, "intermediate_size": 48, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "max_positions": 32}

BASE: dict[str, dict[str, Any]] = {
    "model": {},
    "prompts": PROBLEMS,
    "algorithm": {"kl_coef": 0.02},
    "sampling": {"max_completion_tokens": 12},
    "train": {"num_steps": 3, "prompts_per_step": 6, "group_size": 4},
    "optimizer": {"learning_rate": 1e-3},
    "evaluation": {
        "samples": 8,
        "max_problems": 8,
        "resamples": 100,
        "sets": {"held_out": PROBLEMS | {"split": "held_out"}},
    },
    "checkpoints": {"every_steps": 1},
    "monitors": {"console": False},
}

COLD = {
    "model": {"scratch": SCRATCH},
    "cold_start": {"num_steps": 24, "batch_size": 64, "warmup_steps": 2, "learning_rate": 1.5e-2},
    "train": {"num_steps": 0},
}
"""A model that answers some of the problems: all other runs start from it, so that groups have a signal."""

TWICE_TWO = {"train": {"minibatches_per_step": 2, "passes_per_step": 2}}

CASES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"algorithm": {"name": "dr_grpo", "kl_coef": 0.0}},
    "dapo": {"algorithm": {"name": "dapo", "kl_coef": 0.0, "refill_rounds": 2}},
    "gspo": {"algorithm": {"name": "gspo", "kl_coef": 0.0}, **TWICE_TWO},
    "cispo": {"algorithm": {"name": "cispo", "kl_coef": 0.0}, **TWICE_TWO},
    "rloo": {"algorithm": {"name": "rloo"}},
    "reinforce++": {"algorithm": {"name": "reinforce++"}},
    "ppo": {"algorithm": {"name": "ppo"}, "critic": {"learning_rate": 1e-3}, **TWICE_TWO},
    "dpo of pairs": {
        "algorithm": {"name": "dpo", "kl_coef": 0.1},
        "prompts": {"source": "pairs.jsonl", "args": {}},
        "evaluation": {"samples": 0},  # some of the pairs are of problems that are held out elsewhere
    },
    "dpo of rollouts": {"algorithm": {"name": "dpo", "data": "start", "kl_coef": 0.1}},
    "process rewards": {"algorithm": {"name": "grpo_process"}, "rewards": [ANSWER, STEPS]},
    "online_rft": {"algorithm": {"name": "online_rft", "kl_coef": 0.0}},
    "sft": {"algorithm": {"name": "sft", "kl_coef": 0.0}},
    "LoRA": {"model": {"lora": {"rank": 4}}},
    "moving parts": {
        "algorithm": {
            "kl_target": 0.05,
            "reference_decay": 0.9,
            "prompt_choice": "informative",
            "mismatch_weight": "token_mask",
        },
        "optimizer": {"state_bits": 8, "schedule": "cosine"},
    },
    "reward model": {"reward_model": {"iterations": 2, "prompts": 16, "learning_rate": 1e-3}},
    "2 passes x 2 minibatches": TWICE_TWO,
}
STOPPED, TWIN = "2 passes x 2 minibatches, stopped twice", "2 passes x 2 minibatches"


def score_lines(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[list[tuple[int, float]]]:
    """Each line of a completion is a step: 1 if a digit of the prompt occurs in it."""
    return [list(find_steps(prompt, completion)) for prompt, completion in zip(prompts, completions, strict=True)]


def find_steps(prompt: str, completion: str) -> Iterator[tuple[int, float]]:
    end = 0
    for line in completion.splitlines(keepends=True):
        end += len(line)
        yield end, float(any(sign.isdigit() and sign in prompt for sign in line))


# -- making them -------------------------------------------------------------------------------------------------------


def make_fingerprints(checkout: Path, threads: int, only: Sequence[str] = ()) -> Record:
    """Run every case and read its files. Exits if a run that was stopped does not end like the same run without a stop."""
    import tomli_w

    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    environment = use_checkout(checkout) | counts | {"COLUMNS": "400"}
    with tempfile.TemporaryDirectory(prefix="fingerprint-") as made:
        folder = Path(made)
        (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS), encoding="utf-8")
        trees = {"cold": merged(BASE, {"rewards": [ANSWER]}, COLD)}
        for name, words in CASES.items():
            start = {"model": {"source": str(folder / "cold/model")}}
            trees[name] = merged(BASE, {"rewards": [ANSWER]}, start, words)
        trees[STOPPED] = trees[TWIN]
        runs: Record = {}
        for number, (name, tree) in enumerate(trees.items()):
            if only and name not in (*only, "cold"):
                continue
            run = folder / ("cold" if name == "cold" else f"run-{number}")
            recipe = folder / f"{run.name}.toml"
            recipe.write_text(tomli_w.dumps(tree), encoding="utf-8")
            begin = ["train", recipe, f"name={run.name}", f"runs_folder={folder}"]
            if name == STOPPED:
                stop_twice(begin, run, environment)
            else:
                command(begin, environment)
            runs[name] = read_run(run)
            print(f"{name:42} {runs[name]['weights'][:16]}", flush=True)
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    commit = subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"
    record = {"machine": machine(threads), "code": {"commit": commit}, "runs": runs}
    if TWIN in runs and STOPPED in runs and (found := list(run_differences(runs[TWIN], runs[STOPPED]))):
        raise SystemExit("the run that was stopped does not end like the run without a stop:\n" + "\n".join(shortened(found)))
    return record


def merged(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Sections joined key by key, later ones first; another algorithm or source replaces nothing that it does not name."""
    whole: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            both = isinstance(value, Mapping) and isinstance(whole.get(name), Mapping)
            whole[name] = {**whole[name], **value} if both else value
    return whole


def stop_twice(begin: Sequence[object], run: Path, environment: Mapping[str, str]) -> None:
    """Stop it with SIGTERM at the second update of step 2, kill it at the second of step 3, then let it finish."""
    command(begin, environment, expected=130, backward=6, number=signal.SIGTERM)
    if not (run / "checkpoints" / "step-1.1").is_dir():
        raise SystemExit(
            f"the run was not stopped inside a step: {sorted(path.name for path in (run / 'checkpoints').iterdir())}"
        )
    command(["resume", run], environment, expected=-signal.SIGKILL, backward=5, number=signal.SIGKILL)
    command(["resume", run], environment)


def command(
    words: Sequence[object], environment: Mapping[str, str], expected: int = 0, backward: int = 0, number: int = 0
) -> None:
    """`cohort WORDS` in its own process, which sends itself a signal at the given call of `Tensor.backward`."""
    child = [sys.executable, __file__, "--child", str(backward), str(int(number)), *map(str, words)]
    done = subprocess.run(child, env=environment, cwd=Path(str(words[1])).parent, capture_output=True, text=True)
    if done.returncode != expected:
        raise SystemExit(f"cohort {' '.join(map(str, words))} gave {done.returncode}:\n{done.stdout}{done.stderr}")


def be_child(backward: int, number: int, words: list[str]) -> None:
    from cohort.cli import app

    if backward:
        import torch

        original, calls = torch.Tensor.backward, 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == backward:
                os.kill(os.getpid(), number)
            return original(*args, **kwargs)

        torch.Tensor.backward = counted  # type: ignore[method-assign]
    app(words)


def machine(threads: int) -> dict[str, Any]:
    """Conditions besides the code that the bits may depend on."""
    import torch
    import transformers

    return {
        "cpu": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


# -- reading them ------------------------------------------------------------------------------------------------------


def read_run(run: Path) -> Record:
    """The content of a run folder without times: hashes of weights and rollouts, metrics and evaluations key by key."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {
        "weights": hash_weights(run / "model"),
        "start": hash_weights(run / "start"),
        "checkpoint": hash_weights(run / "checkpoints" / f"step-{summary['steps']}"),
        "metrics": [without_times(row) for row in rows_of(run / "metrics.jsonl")],
        "evaluations": [without_times(row) for row in rows_of(run / "evaluations.jsonl")],
        "eval": without_times(summary["eval"]),
        "status": summary["status"],
        "rollouts": hash_rollouts(run / "rollouts"),
    }


def hash_weights(folder: Path) -> str:
    """Of every tensor in the folder's safetensors files: names, dtypes, shapes and bytes, in the order of the names."""
    import torch
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return ""
    digest = hashlib.sha256()
    for file in files:
        for name, value in sorted(load_file(file).items()):
            digest.update(f"{file.stem} {name} {value.dtype} {tuple(value.shape)} ".encode())
            digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def hash_rollouts(folder: Path) -> dict[str, str]:
    """One hash per column, over all steps."""
    import pyarrow.parquet as pq

    digests: dict[str, Any] = {}
    for file in sorted(folder.glob("step-*[0-9].parquet")):
        for name, values in pq.read_table(file).to_pydict().items():
            digests.setdefault(name, hashlib.sha256()).update(json.dumps(values).encode())
    return {name: digest.hexdigest() for name, digest in digests.items()}


def rows_of(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def is_time(name: str) -> bool:
    return name.startswith(("time/", "perf/")) or name.endswith(("seconds", "_gib"))


def without_times(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {name: without_times(value) for name, value in node.items() if not is_time(name)}
    return [without_times(value) for value in node] if isinstance(node, list) else node


# -- comparing them ----------------------------------------------------------------------------------------------------


def compare_fingerprints(left: Record, right: Record) -> list[str]:
    """What differs, a line each; empty: the same bits."""
    found = [f"machine: {line}" for line in tree_differences(left["machine"], right["machine"])]
    for name in dict.fromkeys([*left["runs"], *right["runs"]]):
        if name not in left["runs"] or name not in right["runs"]:
            found.append(f"{name}: only in the {'second' if name in right['runs'] else 'first'}")
        else:
            found += shortened([f"{name}: {line}" for line in run_differences(left["runs"][name], right["runs"][name])])
    return found


def renamed(node: Any, names: Mapping[str, str | None], used: set[str]) -> Any:
    """`node` with every key by its new name, without the removed ones; `used` gets the names that occurred."""
    if isinstance(node, list):
        return [renamed(value, names, used) for value in node]
    if not isinstance(node, Mapping):
        return node
    used.update(names.keys() & node.keys())
    kept = {names.get(name, name): renamed(value, names, used) for name, value in node.items() if names.get(name, name)}
    if len(kept) < sum(bool(names.get(name, name)) for name in node):
        raise SystemExit(f"two names become one: {sorted(names.keys() & node.keys())}")
    return kept


def run_differences(left: Record, right: Record) -> Iterator[str]:
    yield from tree_differences({**left, "metrics": by_step(left)}, {**right, "metrics": by_step(right)})


def by_step(run: Record) -> dict[str, Any]:
    return {f"step {row.get('step')}": row for row in run["metrics"]}


def tree_differences(left: Any, right: Any, path: str = "") -> Iterator[str]:
    """Every leaf that is not the same, by its path, with both values."""
    if isinstance(left, list) and isinstance(right, list):
        left, right = dict(enumerate(left)), dict(enumerate(right))
    if not (isinstance(left, Mapping) and isinstance(right, Mapping)):
        if left != right:
            yield f"{path}: {left!r} became {right!r}"
        return
    for name in dict.fromkeys([*left, *right]):
        inner = f"{path} {name}".strip()
        if name in left and name in right:
            yield from tree_differences(left[name], right[name], inner)
        else:
            yield f"{inner}: only in the {'first' if name in left else 'second'} ({(left if name in left else right)[name]!r:.60})"


def shortened(lines: Sequence[str]) -> list[str]:
    return [*lines[:SHOWN], *([f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]


def tell(found: Iterable[str], same: str) -> int:
    lines = list(found)
    print("\n".join(lines) if lines else same)
    return int(bool(lines))


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        be_child(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", nargs="?", type=Path, help="where the fingerprints are written")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the code to run; default: this checkout")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], choices=[*CASES, STOPPED], help="this run; may be repeated")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="JSON")
    parser.add_argument("--renamed", type=Path, metavar="JSON", help="with --compare: new names, or null, of keys of the first")
    parser.add_argument("--compare-runs", nargs=2, type=Path, metavar="RUN")
    chosen = parser.parse_args()
    if chosen.compare:
        left, right = (json.loads(file.read_text(encoding="utf-8")) for file in chosen.compare)
        if chosen.renamed:
            names, used = json.loads(chosen.renamed.read_text(encoding="utf-8")), set[str]()
            left["runs"] = {run: renamed(found, names, used) for run, found in left["runs"].items()}
            if unused := sorted(names.keys() - used):
                raise SystemExit(f"{chosen.renamed}: {chosen.compare[0]} has no {', '.join(unused)}")
        return tell(compare_fingerprints(left, right), f"the same bits in {len(left['runs'])} runs")
    if chosen.compare_runs:
        left, right = (read_run(run) for run in chosen.compare_runs)
        steps, keys = len(left["metrics"]), len({name for row in left["metrics"] for name in row})
        return tell(
            shortened(list(run_differences(left, right))),
            f"the same bits: weights, {keys} metrics of {steps} steps, evaluations, rollouts",
        )
    if not chosen.output:
        parser.error("name a file for the fingerprints, or --compare, or --compare-runs")
    record = make_fingerprints(chosen.checkout.resolve(), chosen.threads, chosen.only)
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {chosen.output}: {len(record['runs'])} runs of {record['code']['commit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
