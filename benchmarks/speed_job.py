"""The job of a measuring process: plain data, passed as JSON. No torch."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from speed_shapes import BenchShape
from speed_workload import Workload

from cohort.errors import RecipeError
from cohort.ops.flops import Dimensions
from cohort.recipe.file import assign, build_recipe, parse_value
from cohort.recipe.schema import Recipe

ROWS_FILE = "rows.jsonl"
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class BenchJob:
    """A stage to measure, its work, and its files."""

    stage: str
    """rollout, train or step."""
    folder: str
    """Scratch folder: the model's config and tokenizer, the rows, the run, the result."""
    shape: BenchShape
    workload: Workload
    device: str
    repeats: int
    slots: int
    """Completions decoded in parallel; 0: the engine chooses."""
    micro_rows: int
    """Rows of the full length in one forward-backward; the peers' batch size per device too."""
    overrides: tuple[str, ...] = ()
    """Recipe settings, key=value."""
    hf_generate: bool = False
    """rollout: transformers' generate takes turns with the engine."""
    rounds: int = 1
    """How often all engines are measured in turn, so that noise of the machine affects all of them."""
    peer_batch: int = 0
    """Batch size of a peer; 0: all completions."""
    requested: float = field(default_factory=time.time)
    """When the process was requested: "first step after ... seconds" counts from here."""

    @property
    def model(self) -> Path:
        return Path(self.folder) / "model"

    @property
    def rows_file(self) -> Path:
        return Path(self.folder) / ROWS_FILE

    @property
    def result_file(self) -> Path:
        return Path(self.folder) / f"{self.stage}.json"

    @property
    def trains_adapters(self) -> bool:
        """Whether the settings freeze the base model."""
        lora = self.make_recipe().model.lora
        return bool(lora.rank or lora.adapter)

    @property
    def steps(self) -> int:
        """Steps of a run: a warm-up and the measured ones."""
        return self.repeats + 1

    def make_recipe(self) -> Recipe:
        """The recipe of the run: GRPO without a reference, no evaluation, nothing saved. Overrides come last."""
        work = self.workload
        tree: dict[str, Any] = {
            "name": self.stage,
            "runs_folder": str(Path(self.folder) / "runs"),
            "model": {"source": str(self.model), "device": self.device},
            "prompts": {"source": str(self.rows_file), "shuffle": False, "max_prompt_tokens": work.prompt_tokens},
            "rewards": [{"function": "speed_workload:varied"}],
            "algorithm": {"name": "grpo", "kl_coef": 0.0},
            "sampling": {"max_completion_tokens": work.new, "slots": self.slots},
            "train": {
                "num_steps": self.steps,
                "prompts_per_step": work.prompts,
                "group_size": work.group,
                "micro_batch_tokens": self.micro_rows * (work.prompt_tokens + work.new),
            },
            "optimizer": {"learning_rate": LEARNING_RATE},
            "evaluation": {"samples": 0},
            "checkpoints": {"every_steps": 0, "best": False},
            "monitors": {"console": False, "rollouts_every": 0},
        }
        for override in self.overrides:
            key, separator, text = override.partition("=")
            if not separator:
                raise RecipeError(f"{override!r}: write a recipe setting as key=value; shape and sizes have options.")
            assign(tree, key.strip(), parse_value(text.strip()))
        recipe = build_recipe(tree)
        self._refuse_other_work(recipe)
        return recipe

    def _refuse_other_work(self, recipe: Recipe) -> None:
        """Raise RecipeError for settings that change the work, which would differ from that of the peers."""
        work, train = self.workload, recipe.train
        for word, found, planned, option in (
            ("train.group_size", train.group_size, work.group, "--group"),
            ("train.prompts_per_step", train.prompts_per_step, work.prompts, "--prompts"),
            ("train.num_steps", train.num_steps, self.steps, "--repeats"),
            ("sampling.max_completion_tokens", recipe.sampling.max_completion_tokens, work.new, "--new"),
            ("model.source", recipe.model.source, str(self.model), "the name of a shape"),
            ("model.device", recipe.model.device, self.device, "--device"),
        ):
            if found != planned:
                raise RecipeError(f"{word}: the workload has {planned}; use {option}, so that the peers do the same work.")

    def write(self) -> Path:
        path = Path(self.folder) / f"{self.stage}-job.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> BenchJob:
        fields = json.loads(path.read_text(encoding="utf-8"))
        shape = BenchShape(fields["shape"]["name"], Dimensions(**fields["shape"]["dimensions"]))
        return cls(
            **{**fields, "shape": shape, "workload": Workload(**fields["workload"]), "overrides": tuple(fields["overrides"])}
        )
