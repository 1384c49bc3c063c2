"""Makes the run folders beside this file. Only ever run with the code of version 0; see README.md."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomli_w

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[2] / "benchmarks"))
import fingerprint  # noqa: E402

COLD_UPDATES = 100
ONE_DIGIT = {"source": "task:column_addition", "args": {"digits": 1}, "max_prompt_tokens": 8}

BASE: dict[str, Any] = {
    "runs_folder": "runs",
    "model": {
        "kernels": "modules",  # needs no compiler, so the bits depend on less
        "scratch": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_layers": 1,
            "num_heads": 2,
            "num_kv_heads": 1,
            "max_positions": 32,
        },
    },
    "prompts": ONE_DIGIT,
    "cold_start": {"num_steps": COLD_UPDATES, "batch_size": 64, "warmup_steps": 2, "learning_rate": 2e-2},
    "rewards": [fingerprint.ANSWER],
    "algorithm": {"kl_coef": 0.02},
    "sampling": {"max_completion_tokens": 12, "slots": 8},
    "train": {"num_steps": 3, "prompts_per_step": 6, "group_size": 4, "minibatches_per_step": 2, "passes_per_step": 2},
    "optimizer": {"learning_rate": 1e-3},
    "evaluation": {
        "samples": 8,
        "max_problems": 16,
        "resamples": 100,
        "sets": {"held_out": {**ONE_DIGIT, "split": "held_out"}},
    },
    "checkpoints": {"every_steps": 1, "keep": 1, "best": False},
    "monitors": {"console": False},
}

RUNS: dict[str, dict[str, Any]] = {
    "finished": {},
    "inside_a_step": {
        "rewards": [fingerprint.ANSWER, fingerprint.STEPS],
        "algorithm": {
            "name": "grpo_process",
            "kl_coef": 0.02,
            "kl_target": 0.05,
            "reference_decay": 0.9,
            "prompt_choice": "informative",
        },
    },
    "between_steps": {"algorithm": {"name": "ppo", "kl_coef": 0.02}, "critic": {"learning_rate": 1e-3}},
}

STOPS = {"inside_a_step": (COLD_UPDATES + 6, signal.SIGTERM, 130), "between_steps": (COLD_UPDATES + 10, signal.SIGKILL, -9)}
"""At which call of `Tensor.backward` a run gets which signal, and how it then ends. PPO's critic calls it too."""


def main() -> None:
    expected: dict[str, Any] = {"machine": fingerprint.machine(threads=1), "code": fingerprint.code(), "runs": {}}
    with tempfile.TemporaryDirectory() as made:
        for name, words in RUNS.items():
            recipe, run = Path(made) / f"{name}.toml", Path(made) / "runs" / name
            recipe.write_text(tomli_w.dumps(fingerprint.merged(BASE, words)), encoding="utf-8")
            backward, number, code = STOPS.get(name, (0, 0, 0))
            fingerprint.command(["train", recipe, f"name={name}"], 1, expected=code, backward=backward, number=number)
            shutil.rmtree(HERE / name, ignore_errors=True)
            shutil.copytree(run, HERE / name, ignore=shutil.ignore_patterns("report.html", "run.lock"))
            if name in STOPS:
                fingerprint.command(["resume", run], 1)
                shutil.copyfile(run / "model" / "model.safetensors", HERE / f"{name}.safetensors")
            expected["runs"][name] = fingerprint.read_run(run)
            print(name, [path.name for path in (HERE / name / "checkpoints").iterdir()])
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
