"""The run folder: the one place where a run lives, readable without this package.

runs/<name>/  recipe.toml · metrics.jsonl · evaluations.jsonl · rollouts/ · samples/ · checkpoints/ · start/ · model/
              summary.json · report.html
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cohort.config import Recipe, build_recipe, dump_recipe
from cohort.errors import RunError
from cohort.interrupts import deferred
from cohort.monitors.jsonl import read_rows
from cohort.types import Rollout


class RunFolder:
    def __init__(self, root: Path):
        self.root = root
        self.recipe_file = root / "recipe.toml"
        self.metrics_file = root / "metrics.jsonl"
        self.evaluations_file = root / "evaluations.jsonl"
        self.rollouts = root / "rollouts"
        self.samples = root / "samples"
        self.checkpoints = root / "checkpoints"
        self.start = root / "start"
        self.model = root / "model"
        self.summary_file = root / "summary.json"
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, recipe: Recipe) -> RunFolder:
        """A new folder. A name that is taken is an error: a run is never overwritten."""
        name = recipe.name or default_name(recipe)
        folder = cls(Path(recipe.runs_folder) / name)
        try:
            folder.root.mkdir(parents=True)
        except FileExistsError:
            raise RunError(
                f"{folder.root} exists. Resume it with `cohort resume {folder.root}`, or choose another name=..."
            ) from None
        folder.lock()
        folder.recipe_file.write_text(dump_recipe(recipe), encoding="utf-8")
        return folder

    @classmethod
    def open(cls, root: str | Path) -> RunFolder:
        folder = cls(Path(root))
        if not folder.recipe_file.is_file():
            raise RunError(f"{root} is not a run folder: it has no recipe.toml")
        return folder

    def recipe(self) -> Recipe:
        import tomllib

        return build_recipe(tomllib.loads(self.recipe_file.read_text(encoding="utf-8")))

    def lock(self) -> None:
        """Hold the folder for this process. The kernel lets go when the process ends, however it ends."""
        stream = (self.root / "run.lock").open("a+")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            owner = stream.read().strip() or "unknown"
            stream.close()
            raise RunError(
                f"{self.root} is in use by process {owner}. Two processes on one run would corrupt it; wait for it or stop it."
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        self._lock = stream

    def unlock(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        """Replace a JSON file in one move, so that a reader never sees half of it."""
        with deferred():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(document, indent=2), encoding="utf-8")
            temporary.replace(path)

    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation written so far."""
        return read_rows(self.evaluations_file)

    def read_summary(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.summary_file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def write_rollouts(self, step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> None:
        """Every completion with its reward parts, verdict, advantage, ids and log-probs, as one parquet file per step."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts = sorted({name for rollout in rollouts for name in rollout.outcome.parts})
        columns: dict[str, list[Any]] = {
            "step": [step] * len(rollouts),
            "group": [rollout.group for rollout in rollouts],
            "sample": [rollout.sample for rollout in rollouts],
            "policy_version": [rollout.policy_version for rollout in rollouts],
            "prompt_index": [rollout.prompt.index for rollout in rollouts],
            "prompt": [as_text(rollout.prompt.content) for rollout in rollouts],
            "completion": [rollout.completion.text for rollout in rollouts],
            "end": [rollout.completion.end for rollout in rollouts],
            "reward": [rollout.outcome.reward for rollout in rollouts],
            "success": [rollout.outcome.success for rollout in rollouts],
            "answer": [rollout.outcome.answer for rollout in rollouts],
            "advantage": list(advantages_N),
            "faults": [list(rollout.outcome.faults) for rollout in rollouts],
            "extras": [json.dumps(dict(rollout.outcome.extras), default=str) for rollout in rollouts],
            "prompt_ids": [list(rollout.prompt.token_ids) for rollout in rollouts],
            "completion_ids": [list(rollout.completion.token_ids) for rollout in rollouts],
            "sampling_logprobs": [list(rollout.completion.sampling_logprobs) for rollout in rollouts],
        }
        for name in parts:
            columns[f"reward/{name}"] = [rollout.outcome.parts.get(name) for rollout in rollouts]
        types = {
            "reward": pa.float64(),
            "success": pa.bool_(),
            "answer": pa.string(),
            "faults": pa.list_(pa.string()),
            "prompt_ids": pa.list_(pa.int32()),
            "completion_ids": pa.list_(pa.int32()),
            "sampling_logprobs": pa.list_(pa.float32()),
            **{f"reward/{name}": pa.float64() for name in parts},
        }
        table = pa.table({name: pa.array(values, type=types.get(name)) for name, values in columns.items()})
        self.rollouts.mkdir(exist_ok=True)
        with deferred():
            target = self.rollouts / f"step-{step:06d}.parquet"
            pq.write_table(table, target.with_suffix(".tmp"))
            target.with_suffix(".tmp").replace(target)


def default_name(recipe: Recipe) -> str:
    subject = recipe.prompts.source if recipe.model.source == "scratch" else recipe.model.source
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", subject.rsplit(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]).strip("-.")
    return f"{word or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def as_text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
