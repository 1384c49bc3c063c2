"""The run folder: the one place where a run lives, readable without this package.

runs/<name>/  recipe.toml · metrics.jsonl · evaluations.jsonl · events.jsonl · rollouts/ · samples/ · checkpoints/ · start/ · model/
              ranks.jsonl (of several ranks) · summary.json · report.html · algorithm.json (of functions of the user's own)
              prompts.jsonl, evaluate_on.SET.jsonl, base/ (rows and a model that were handed in from Python)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cohort.algorithms.named import Own, list_own
from cohort.algorithms.registry import BadChoice
from cohort.base.files import is_locked, lock_file, read_object, write_whole
from cohort.errors import CohortError, RunError
from cohort.model.chat import read_template
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.rollouts import write_rollouts
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.file import build_recipe, dump_recipe
from cohort.recipe.schema import PromptsConfig, Recipe
from cohort.recipe.user_functions import make_document, parse_own
from cohort.recipe.values import PYTHON_ROWS, Materials
from cohort.rewards.call import is_plain
from cohort.types import Rollout

MODEL_FILES = ("config.json", "adapter_config.json")
"""One of these makes a folder a model, or an adapter."""
SEEN_WITHIN_S = 10.0
"""In which another host sees what was just written to a folder they share."""
MAX_OWN_BYTES = 1 << 20
"""Of an algorithm.json that is read: three entries are a few kilobytes."""


class RunFolder:
    def __init__(self, root: Path):
        self.root = root = make_absolute(root)  # user code may change the current folder
        self.recipe_file = root / "recipe.toml"
        self.own_file = root / "algorithm.json"
        self.metrics_file = root / "metrics.jsonl"
        self.evaluations_file = root / "evaluations.jsonl"
        self.ranks_file = root / "ranks.jsonl"
        self.events_file = root / "events.jsonl"
        self.rollouts = root / "rollouts"
        self.index_file = self.rollouts / "index.bin"
        self.samples = root / "samples"
        self.checkpoints = root / "checkpoints"
        self.start = root / "start"
        self.model = root / "model"
        self.reward_model = root / "reward_model"
        self.summary_file = root / "summary.json"
        self.base = root / "base"
        self.owned = True
        """Whether this process writes here. Of the ranks of a run the main one does, and the others read."""
        self.made: list[Path] = []
        """The folder and those above it that this process has made for it."""
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, recipe: Recipe) -> RunFolder:
        """A new folder. A name that is taken is an error: a run is never overwritten."""
        name = check_name(recipe.name) if recipe.name else make_default_name(recipe)
        folder = cls(Path(recipe.runs_folder) / name)
        above = [path for path in folder.root.parents if not path.exists()]
        new = not (recipe.name and folder.root.exists())
        try:
            if not recipe.name:
                folder = cls(make_new_folder(folder.root))
            elif folder.has_earned():
                raise RunError(
                    f"{folder.root} exists. Resume it with `cohort resume {folder.root}`, or choose another name=..."
                )
            else:
                folder.root.mkdir(parents=True, exist_ok=True)
            folder.lock()
            folder.made = [folder.root, *above] if new else []
            for left in (folder.own_file, folder.events_file):  # by a start that failed at once
                left.unlink(missing_ok=True)
            write_whole(folder.recipe_file, dump_recipe(recipe))
        except OSError as problem:
            raise RunError(
                f"runs_folder: cannot make {folder.root} ({problem.strerror}); set runs_folder to one that can be written."
            ) from problem
        return folder

    @classmethod
    def watch(cls, root: str | Path) -> RunFolder:
        """The folder of a run that another process owns."""
        folder, until = cls(Path(root)), time.monotonic() + SEEN_WITHIN_S
        while not folder.recipe_file.is_file():
            if time.monotonic() > until:
                raise RunError(
                    f"runs_folder: {root} was made by the main rank and is not seen on {socket.gethostname()}. Set runs_folder to one that all "
                    "hosts share."
                )
            time.sleep(0.1)
        folder.owned = False
        return folder

    def discard(self) -> None:
        """Leave nothing of a start that was refused: the folder goes if this process made it and nothing is earned in it."""
        if self.made and not self.has_earned():
            shutil.rmtree(self.made[0], ignore_errors=True)
            for above in self.made[1:]:
                with contextlib.suppress(OSError):  # another run lives in it
                    above.rmdir()

    def has_earned(self) -> bool:
        """Whether anything would be lost with this folder. One left by a start that failed at once may be used again."""
        return any(path.exists() for path in (self.metrics_file, self.evaluations_file, self.checkpoints, self.model))

    @classmethod
    def open(cls, root: str | Path) -> RunFolder:
        folder = cls(Path(root))
        if not folder.recipe_file.is_file():
            raise RunError(f"{root} is not a run folder: it has no recipe.toml")
        return folder

    def recipe(self) -> Recipe:
        """With what algorithm.json says of the user's functions in it. Nothing of theirs is imported."""
        import tomllib

        try:
            recipe = self.use_kept_base(build_recipe(tomllib.loads(self.recipe_file.read_text(encoding="utf-8"))))
            return recipe.model_copy(update={"algorithm": recipe.algorithm.resolved(self.read_own_functions(recipe.algorithm))})
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise RunError(
                f"{self.recipe_file} cannot be read ({problem}); restore it from the recipe the run was started with."
            ) from problem

    def use_kept_base(self, recipe: Recipe) -> Recipe:
        """The recipe with the model that the run keeps itself, wherever the folder lies by now."""
        if not (self.base / MODEL_FILES[0]).is_file():
            return recipe
        return recipe.model_copy(update={"model": recipe.model.model_copy(update={"source": str(self.base.resolve())})})

    def read_own_functions(self, algorithm: AlgorithmConfig) -> Own:
        """The facts of the user's functions that the algorithm names, as far as algorithm.json has them. It is only data."""
        words = algorithm.model_dump()
        if not list_own(words) or not self.own_file.is_file():
            return {}
        try:
            if self.own_file.stat().st_size > MAX_OWN_BYTES:
                raise BadChoice(f"it is larger than {MAX_OWN_BYTES} bytes")
            return parse_own(json.loads(self.own_file.read_text(encoding="utf-8")), words)
        except (OSError, ValueError, RecursionError) as problem:
            raise RunError(f"{self.own_file} cannot be used ({problem}); restore it as the run wrote it.") from problem

    def keep_own_functions(self, algorithm: AlgorithmConfig) -> None:
        """Write down what is known of the user's functions, once they are resolved. Another source than before is refused."""
        if not algorithm.own:
            return
        if not self.own_file.is_file() and self.has_earned():
            raise RunError(
                f"{self.own_file} is missing, so nobody knows whether the run was started with these functions. Restore it, or "
                "start a new run."
            )
        for kind, before in self.read_own_functions(algorithm).items():
            now = algorithm.own[kind]
            if before.digest != now.digest:
                raise RunError(
                    f"algorithm.{kind}: the source of {now.name} is not the one the run was started with (then {before.digest}, now "
                    f"{now.digest}). Going on would train with a mixture: restore the file, or start a new run."
                )
        self.write_json(self.own_file, make_document(algorithm.own, algorithm.args))

    def lock(self) -> None:
        """Hold the folder for this process. The kernel lets go when the process ends, however it ends."""
        file = self.root / "run.lock"
        stream = lock_file(file)
        if stream is None:
            owner = file.read_text(encoding="utf-8").strip() or "unknown"
            raise RunError(
                f"{self.root} is in use by process {owner}. Two processes on one run would corrupt it; wait for it or stop it."
            )
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        self._lock = stream

    @property
    def is_in_use(self) -> bool:
        """Whether another process of this host trains the run now."""
        return is_locked(self.root / "run.lock")

    def has_model(self) -> bool:
        """Whether model/ was exported: a model, or with LoRA perhaps an adapter."""
        return any((self.model / name).is_file() for name in MODEL_FILES)

    def unlock(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        if self.owned:
            write_whole(path, json.dumps(document, indent=2))

    def rows_file(self, set_name: str = "") -> Path:
        """Where rows from Python are kept: the prompts, or an evaluation set."""
        return self.root / (f"evaluate_on.{check_name(set_name)}.jsonl" if set_name else "prompts.jsonl")

    def keep_rows(self, rows: Sequence[Mapping[str, Any]], set_name: str = "") -> bool:
        """Write rows handed in from Python into the folder, so that a resume needs nothing else. False: JSON would change them."""
        if not all(is_plain(dict(row)) for row in rows):
            return False
        if self.owned and not self.rows_file(set_name).is_file():
            write_whole(self.rows_file(set_name), "".join(json.dumps(row) + "\n" for row in rows))
        return True

    def read_kept_rows(self, recipe: Recipe, handed_in: Materials | None = None) -> Materials:
        """The rows that a run from Python keeps, but for those that are handed in again; none where the recipe names the source."""
        again = handed_in or Materials()
        sets = [name for name, config in recipe.evaluation.sets.items() if config.source == PYTHON_ROWS]
        prompts = recipe.prompts.source == PYTHON_ROWS and again.rows is None
        return Materials(
            self._read_rows("", "prompts") if prompts else None,
            sets={name: self._read_rows(name, "evaluate_on") for name in sets if name not in again.sets},
        )

    def _read_rows(self, set_name: str, word: str) -> list[dict[str, Any]]:
        file = self.rows_file(set_name)
        if not file.is_file():
            raise RunError(f"{word} came from Python and could not be kept with the run: use cohort.resume(run, {word}=rows).")
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def metrics(self) -> list[dict[str, Any]]:
        """The row of every finished step."""
        return read_rows(self.metrics_file)

    def rollouts_file(self, step: int) -> Path:
        """Every completion of the step; see observe/rollouts.py."""
        return self.rollouts / f"step-{step:06d}.parquet"

    def tokens_file(self, step: int) -> Path:
        """Single tokens of a few groups of the step; see observe/token_record.py."""
        return self.rollouts / f"step-{step:06d}.tokens.parquet"

    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation written so far."""
        return read_rows(self.evaluations_file)

    def evaluation(self, label: str, step: int) -> dict[str, Any] | None:
        """The one of that label and step, if it was written."""
        found = (row for row in self.evaluations() if row.get("label") == label and row.get("step") == step)
        return next((row for row in found if "sets" in row), None)

    def keep_baseline(self, document: Mapping[str, Any]) -> None:
        """Put the evaluation before training back to where it belongs, before all others."""
        others = [row for row in self.evaluations() if row.get("label") != "before"]
        if self.owned:
            write_whole(self.evaluations_file, "".join(json.dumps(row) + "\n" for row in (document, *others)))

    def read_summary(self) -> dict[str, Any]:
        return read_object(self.summary_file)

    def describe_ignored_edit(self, summary: Mapping[str, Any]) -> str:
        """What to say of a finished run whose recipe.toml asks for other steps than it has made; "" if it does not."""
        try:
            asked = self.recipe().train.num_steps
        except CohortError:  # nobody needs the recipe of a finished run
            return ""
        if asked == summary.get("steps", asked):
            return ""
        if summary.get("stopped"):
            return f"It {summary['stopped']}. A run that has stopped is not trained longer."
        start = "model.lora.adapter" if (self.model / "adapter_config.json").is_file() else "model.source"
        return (
            f"recipe.toml asks for {asked} steps, and the run has made {summary['steps']}: edits after the end are not used. "
            f"To train longer, start a new run from its model: {start}={self.model} cold_start.num_steps=0 name=NEW"
        )

    def write_samples(self, label: str, examples: Sequence[Mapping[str, Any]]) -> None:
        """The completions of the first problems, of the evaluation before or after."""
        if self.owned:
            self.samples.mkdir(exist_ok=True)
            text = "".join(json.dumps(example) + "\n" for example in examples)
            (self.samples / f"{label}.jsonl").write_text(text, encoding="utf-8")

    def write_rollouts(self, step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> None:
        if self.owned:
            write_rollouts(self.rollouts_file(step), step, rollouts, advantages_N)


def open_run_at(path: Path) -> RunFolder | None:
    """The run in that folder. One with a model's or an adapter's config is that, whatever else lies there."""
    is_run = (path / "recipe.toml").is_file() and not any((path / name).is_file() for name in MODEL_FILES)
    return RunFolder.open(path) if is_run else None


def make_new_folder(folder: Path) -> Path:
    """Make a folder that nobody has: of this name, or with a number behind it. Two processes never get the same one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        free = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        with contextlib.suppress(FileExistsError):
            free.mkdir()
            return free
    raise AssertionError("numbers do not end")


def read_known_functions(root: Path, recipe: Mapping[str, Any]) -> tuple[Own, str]:
    """(facts of the user's functions in a run's recipe, why they cannot be used). For those who watch: it never fails."""
    try:
        return RunFolder(root).read_own_functions(AlgorithmConfig.model_validate(recipe.get("algorithm", {}))), ""
    except ValueError:  # a recipe of another version
        return {}, ""
    except RunError as problem:
        return {}, str(problem)


def make_absolute(path: Path) -> Path:
    try:
        return path.absolute()
    except FileNotFoundError as problem:
        raise RunError(
            f"{path}: the current folder no longer exists; change to another one, or give an absolute path."
        ) from problem


def make_paths_absolute(recipe: Recipe) -> Recipe:
    """Sources that are local files or folders, by their full path: a run can then be resumed from any folder.

    Of a chat template the text itself: an edit of its file would change what the policy is asked in the middle of a run.
    """

    def resolve_source(source: str) -> str:
        return str(Path(source).resolve()) if source not in ("", "scratch", "smollm2") and Path(source).exists() else source

    def resolve_prompts(prompts: PromptsConfig) -> PromptsConfig:
        template = read_template(prompts.chat_template) if prompts.chat_template else ""
        return prompts.model_copy(update={"source": resolve_source(prompts.source), "chat_template": template})

    def resolve_servers(entry: str) -> str:
        return f"@{Path(entry[1:]).resolve()}" if entry.startswith("@") else entry

    cold, evaluation, lora = recipe.cold_start, recipe.evaluation, recipe.model.lora
    folder = recipe.vllm.folder
    changes = {
        "sampling": recipe.sampling.model_copy(update={"servers": [resolve_servers(one) for one in recipe.sampling.servers]}),
        "vllm": recipe.vllm.model_copy(update={"folder": str(Path(folder).resolve()) if folder else ""}),
        "model": recipe.model.model_copy(
            update={
                "source": resolve_source(recipe.model.source),
                "lora": lora.model_copy(update={"adapter": resolve_source(lora.adapter)}),
            }
        ),
        "prompts": resolve_prompts(recipe.prompts),
        "reward_model": recipe.reward_model.model_copy(update={"source": resolve_source(recipe.reward_model.source)}),
        "teacher": recipe.teacher.model_copy(update={"source": resolve_source(recipe.teacher.source)}),
        "cold_start": cold.model_copy(update={"source": cold.source if cold.source == "" else resolve_prompts(cold.source)}),
        "evaluation": evaluation.model_copy(
            update={"sets": {name: resolve_prompts(one) for name, one in evaluation.sets.items()}}
        ),
    }
    return recipe.model_copy(update=changes)


def check_name(name: str) -> str:
    """A run is a folder of its own inside runs_folder: a name that points elsewhere would write over what lies there."""
    if name in (".", "..") or any(character in name for character in "/\\\0"):
        raise RunError(f"name: {name!r} is a path; give one word for the folder, and set runs_folder to where runs belong.")
    return name


def make_default_name(recipe: Recipe) -> str:
    subject = recipe.prompts.source if recipe.model.source == "scratch" else recipe.model.source
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", subject.rsplit(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]).strip("-.")
    return f"{word or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"
