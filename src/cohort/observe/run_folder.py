"""The run folder: holds everything about a run, in formats readable without this package.

runs/<name>/  recipe.toml · metrics.jsonl · evaluations.jsonl · events.jsonl · rollouts/ · samples/ · checkpoints/ · start/ · model/
              ranks.jsonl (with several ranks) · summary.json · report.html · algorithm.json (with user-defined functions)
              prompts.jsonl, evaluate_on.SET.jsonl, base/ (rows and a model passed from Python)
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cohort.algorithms.named import Own, list_own
from cohort.algorithms.registry import BadChoice
from cohort.base.files import UNWRITABLE, is_locked, lock_file, read_object, write_whole
from cohort.errors import CohortError, RunError
from cohort.model.chat import read_template
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.rollouts import is_intact, list_token_steps, write_rollouts
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.file import build_recipe, dump_recipe
from cohort.recipe.schema import PromptsConfig, Recipe
from cohort.recipe.user_functions import make_document, parse_own
from cohort.recipe.values import PYTHON_ROWS, Materials
from cohort.rewards.call import is_plain
from cohort.types import Rollout

MODEL_FILES = ("config.json", "adapter_config.json")
"""A folder with one of these files is a model or an adapter."""
SEEN_WITHIN_S = 10.0
"""How long a new file may take to appear on another host that shares the folder."""
MAX_OWN_BYTES = 1 << 20
"""Size limit for algorithm.json; three entries take a few kilobytes."""
LONGEST_NAME = 200
"""Bytes of a run's name: file systems take 255, and the names of temporary files are longer."""
MOST_SHOWN = 8
"""Steps that a warning lists individually."""


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
        """Whether this process writes here. Only the main rank does; other ranks read."""
        self.made: list[Path] = []
        """The folder and the parent folders that this process created for it."""
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, recipe: Recipe) -> RunFolder:
        """Create a folder for a new run. An existing name is an error: a run is never overwritten."""
        name = check_name(recipe.name) if recipe.name else make_default_name(recipe)
        folder = cls(Path(recipe.runs_folder) / name)
        above = [path for path in folder.root.parents if not path.exists()]
        new = not (recipe.name and folder.root.exists())
        try:
            if not recipe.name:
                folder = cls(make_new_folder(folder.root))
            elif folder.has_results():
                raise RunError(
                    f"{folder.root} exists. Resume it with `cohort resume {folder.root}`, or choose another name=..."
                )
            else:
                folder.root.mkdir(parents=True, exist_ok=True)
            folder.lock()
            folder.made = [folder.root, *above] if new else []
            for left in (folder.own_file, folder.events_file):  # from a start that failed immediately
                left.unlink(missing_ok=True)
            write_whole(folder.recipe_file, dump_recipe(recipe))
        except OSError as problem:
            raise RunError(
                f"runs_folder: cannot create {folder.root} ({problem.strerror}); set runs_folder to a writable folder."
            ) from problem
        return folder

    @classmethod
    def watch(cls, root: str | Path) -> RunFolder:
        """The folder of a run that another process owns; waits until it appears on this host."""
        folder, until = cls(Path(root)), time.monotonic() + SEEN_WITHIN_S
        while not folder.recipe_file.is_file():
            if time.monotonic() > until:
                raise RunError(
                    f"runs_folder: the main rank created {root}, but it does not exist on {socket.gethostname()}. Set runs_folder to a folder "
                    "that all hosts share."
                )
            time.sleep(0.1)
        folder.owned = False
        return folder

    def discard(self) -> None:
        """Delete the folder after a refused start, if this process created it and it holds no results."""
        if self.made and not self.has_results():
            shutil.rmtree(self.made[0], ignore_errors=True)
            for above in self.made[1:]:
                with contextlib.suppress(OSError):  # holds another run
                    above.rmdir()

    def has_results(self) -> bool:
        """Whether deleting this folder would lose results. A folder left by a failed start has none and can be reused."""
        return any(path.exists() for path in (self.metrics_file, self.evaluations_file, self.checkpoints, self.model))

    @classmethod
    def open(cls, root: str | Path) -> RunFolder:
        """The folder of an existing run; a RunError if it is not one."""
        folder = cls(Path(root))
        if not folder.recipe_file.is_file():
            raise RunError(f"{root} is not a run folder: it has no recipe.toml")
        return folder

    def recipe(self) -> Recipe:
        """The recipe, with the facts about user-defined functions from algorithm.json. Imports no user code."""
        import tomllib

        try:
            recipe = self.use_kept_base(build_recipe(tomllib.loads(self.recipe_file.read_text(encoding="utf-8"))))
            return recipe.model_copy(update={"algorithm": recipe.algorithm.resolved(self.read_own_functions(recipe.algorithm))})
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise RunError(
                f"{self.recipe_file} cannot be read ({problem}); restore it from the recipe that started the run."
            ) from problem

    def use_kept_base(self, recipe: Recipe) -> Recipe:
        """The recipe with model.source set to the copy in base/, if the run has one; the folder may have moved."""
        if not (self.base / MODEL_FILES[0]).is_file():
            return recipe
        return replace_setting(recipe, "model.source", str(self.base.resolve()))

    def read_own_functions(self, algorithm: AlgorithmConfig) -> Own:
        """What algorithm.json says about the user-defined functions of the algorithm; data only, no code."""
        words = algorithm.model_dump()
        if not list_own(words) or not self.own_file.is_file():
            return {}
        try:
            if self.own_file.stat().st_size > MAX_OWN_BYTES:
                raise BadChoice(f"it is larger than {MAX_OWN_BYTES} bytes")
            return parse_own(json.loads(self.own_file.read_text(encoding="utf-8")), words)
        except (OSError, ValueError, RecursionError) as problem:
            raise RunError(f"{self.own_file} cannot be used ({problem}); restore the file that the run wrote.") from problem

    def keep_own_functions(self, algorithm: AlgorithmConfig) -> None:
        """Write algorithm.json after resolving user-defined functions; refuses functions whose source has changed."""
        if not algorithm.own:
            return
        if not self.own_file.is_file() and self.has_results():
            raise RunError(
                f"{self.own_file} is missing, so Cohort cannot check that the run was started with these functions. Restore the file or start "
                "a new run."
            )
        for kind, before in self.read_own_functions(algorithm).items():
            now = algorithm.own[kind]
            if before.digest != now.digest:
                raise RunError(
                    f"algorithm.{kind}: the source of {now.name} has changed since the run was started (digest then {before.digest}, now "
                    f"{now.digest}). Resuming would mix two algorithms: restore the file or start a new run."
                )
        self.write_json(self.own_file, make_document(algorithm.own, algorithm.args))

    def lock(self) -> None:
        """Lock the folder for this process. The kernel releases the lock when the process ends, even after a crash."""
        file = self.root / "run.lock"
        try:
            stream = lock_file(file)
        except OSError as problem:
            if problem.errno not in UNWRITABLE or not self.recipe_file.is_file():  # a new folder: `create` explains it
                raise
            raise RunError(
                f"{self.root} cannot be written ({problem.strerror}), and a run writes into its folder. Make it writable, or resume a copy: "
                f"cp -r {self.root} COPY, then cohort resume COPY"
            ) from problem
        if stream is None:
            owner = file.read_text(encoding="utf-8").strip() or "unknown"
            raise RunError(
                f"{self.root} is in use by process {owner}. Two processes would corrupt the run; wait for that process or stop it."
            )
        stream.truncate(0)
        stream.write(f"{os.getpid()} on {socket.gethostname()}")
        stream.flush()
        self._lock = stream

    @property
    def is_in_use(self) -> bool:
        """Whether another process on this host is training the run."""
        return is_locked(self.root / "run.lock")

    def has_model(self) -> bool:
        """Whether model/ holds the exported model, or an adapter."""
        return any((self.model / name).is_file() for name in MODEL_FILES)

    def unlock(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        if self.owned:
            write_whole(path, json.dumps(document, indent=2))

    def rows_file(self, set_name: str = "") -> Path:
        """The file for rows passed from Python: the prompts, or an evaluation set."""
        return self.root / (f"evaluate_on.{check_name(set_name)}.jsonl" if set_name else "prompts.jsonl")

    def keep_rows(self, rows: Sequence[Mapping[str, Any]], set_name: str = "") -> bool:
        """Save rows passed from Python, so that a resume needs nothing else. False if JSON would change them."""
        if not all(is_plain(dict(row)) for row in rows):
            return False
        if self.owned and not self.rows_file(set_name).is_file():
            write_whole(self.rows_file(set_name), "".join(json.dumps(row) + "\n" for row in rows))
        return True

    def read_kept_rows(self, recipe: Recipe, handed_in: Materials | None = None) -> Materials:
        """The saved rows of a run started from Python, except those passed again."""
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
            raise RunError(f"{word} came from Python and could not be saved with the run: use cohort.resume(run, {word}=rows).")
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics row of every finished step."""
        return read_rows(self.metrics_file)

    def rollouts_file(self, step: int) -> Path:
        """The file with every completion of the step; see observe/rollouts.py."""
        return self.rollouts / f"step-{step:06d}.parquet"

    def tokens_file(self, step: int) -> Path:
        """The file with single tokens of a few groups of the step; see observe/rollouts.py."""
        return self.rollouts / f"step-{step:06d}.tokens.parquet"

    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation of the run."""
        return read_rows(self.evaluations_file)

    def evaluation(self, label: str, step: int) -> dict[str, Any] | None:
        """The evaluation with this label and step; None if there is none."""
        found = (row for row in self.evaluations() if row.get("label") == label and row.get("step") == step)
        return next((row for row in found if "sets" in row), None)

    def keep_baseline(self, document: Mapping[str, Any]) -> None:
        """Restore the evaluation before training as the first row of evaluations.jsonl."""
        others = [row for row in self.evaluations() if row.get("label") != "before"]
        if self.owned:
            write_whole(self.evaluations_file, "".join(json.dumps(row) + "\n" for row in (document, *others)))

    def read_summary(self) -> dict[str, Any]:
        return read_object(self.summary_file)

    def describe_ignored_edit(self, summary: Mapping[str, Any]) -> str:
        """A notice if recipe.toml of a finished run was edited to a different number of steps; otherwise ""."""
        try:
            asked = self.recipe().train.num_steps
        except CohortError:  # a finished run does not need its recipe
            return ""
        if asked == summary.get("steps", asked):
            return ""
        if summary.get("stopped"):
            return f"It {summary['stopped']}. A stopped run cannot be extended."
        start = "model.lora.adapter" if (self.model / "adapter_config.json").is_file() else "model.source"
        return (
            f"recipe.toml asks for {asked} steps, but the run finished after {summary['steps']}: edits to a finished run have no effect. "
            f"To train longer, start a new run from its model: {start}={self.model} cold_start.num_steps=0 name=NEW"
        )

    def write_samples(self, label: str, examples: Sequence[Mapping[str, Any]]) -> None:
        """Write completions of the first problems from the evaluation before or after training."""
        if self.owned:
            self.samples.mkdir(exist_ok=True)
            text = "".join(json.dumps(example) + "\n" for example in examples)
            (self.samples / f"{label}.jsonl").write_text(text, encoding="utf-8")

    def write_rollouts(self, step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> None:
        if self.owned:
            write_rollouts(self.rollouts_file(step), step, rollouts, advantages_N)


def open_run_at(path: Path) -> RunFolder | None:
    """The run in this folder; None if it is not a run, or holds a model or an adapter."""
    is_run = (path / "recipe.toml").is_file() and not any((path / name).is_file() for name in MODEL_FILES)
    return RunFolder.open(path) if is_run else None


def make_new_folder(folder: Path) -> Path:
    """Create a new folder of this name, or with a number appended. Two processes never get the same folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        free = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        with contextlib.suppress(FileExistsError):
            free.mkdir()
            return free
    raise AssertionError("unreachable")


def read_known_functions(root: Path, recipe: Mapping[str, Any]) -> tuple[Own, str]:
    """(facts about the user-defined functions in a run's recipe, why they cannot be used). For observers: never fails."""
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
    """The recipe with absolute paths for local files and folders, so that a run can be resumed from any folder.

    A chat template is replaced by its text: editing its file would change the prompts in the middle of a run.
    """

    def resolve(source: str) -> str:
        return str(Path(source).resolve()) if source not in ("", "scratch", "smollm2") and Path(source).exists() else source

    def resolve_prompts(prompts: PromptsConfig) -> PromptsConfig:
        template = read_template(prompts.chat_template) if prompts.chat_template else ""
        return prompts.model_copy(update={"source": resolve(prompts.source), "chat_template": template})

    cold, folder = recipe.cold_start.source, recipe.vllm.folder
    for path, value in {
        "sampling.servers": [f"@{Path(one[1:]).resolve()}" if one.startswith("@") else one for one in recipe.sampling.servers],
        "vllm.folder": str(Path(folder).resolve()) if folder else "",
        "model.source": resolve(recipe.model.source),
        "model.lora.adapter": resolve(recipe.model.lora.adapter),
        "prompts": resolve_prompts(recipe.prompts),
        "reward_model.source": resolve(recipe.reward_model.source),
        "teacher.source": resolve(recipe.teacher.source),
        "cold_start.source": cold if cold == "" else resolve_prompts(cold),
        "evaluation.sets": {name: resolve_prompts(one) for name, one in recipe.evaluation.sets.items()},
    }.items():
        recipe = replace_setting(recipe, path, value)
    return recipe


def replace_setting(section: Any, path: str, value: Any) -> Any:
    """A copy of a recipe, or of a section of it, with another value for the setting at a dotted path."""
    name, _, rest = path.partition(".")
    return section.model_copy(update={name: replace_setting(getattr(section, name), rest, value) if rest else value})


def check_name(name: str) -> str:
    """The name of a run's folder inside runs_folder. A path is refused: it could overwrite something elsewhere."""
    if name in (".", "..") or any(character in name for character in "/\\\0"):
        raise RunError(f"name: {name!r} is a path; give a plain folder name, and set runs_folder for the location.")
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise RunError(f"name: {name[:20]!r}... has {len(os.fsencode(name))} bytes; give at most {LONGEST_NAME}.")
    return name


def make_default_name(recipe: Recipe) -> str:
    subject = recipe.prompts.source if recipe.model.source == "scratch" else recipe.model.source
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", subject.rsplit(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]).strip("-.")
    return f"{word or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"


# -- lost records ------------------------------------------------------------------------------------------------------


def find_losses(folder: RunFolder, recipe: Recipe, done: int) -> Iterator[str]:
    """A warning for each kind of record of the first `done` steps that is missing or damaged. Resuming does not need these files."""
    written = list_steps(folder.metrics())
    if lost := [step for step in range(1, done + 1) if step not in written]:
        yield f"metrics.jsonl has no row for {name_steps(lost)}: charts and findings skip them"
    every = recipe.evaluation.every_steps if recipe.evaluation.samples else 0
    measured = list_steps(row for row in folder.evaluations() if row.get("label") == "during")
    last = min(done, recipe.train.num_steps - 1)
    if every and (lost := [step for step in range(every, last + 1, every) if step not in measured]):
        yield f"evaluations.jsonl has no evaluation for {name_steps(lost)}: the report skips them"
    every = recipe.monitors.rollouts_every
    kept = range(every, done + 1, every) if every else ()
    if lost := [step for step in kept if not is_intact(folder.rollouts_file(step), step)]:
        yield f"rollouts/ has no intact file for {name_steps(lost)}: these completions are lost; training is not affected"
    recorded = [step for step in list_token_steps(folder.rollouts) if step <= done]
    if lost := [step for step in recorded if not is_intact(folder.tokens_file(step), step)]:
        yield f"rollouts/ has no intact token file for {name_steps(lost)}: these token records are lost; training is not affected"
    if any(row.get("label") == "before" for row in folder.evaluations()) and not has_rows(folder.samples / "before.jsonl"):
        yield "samples/before.jsonl is lost or damaged: the report lacks completions from before training"


def has_rows(file: Path) -> bool:
    """Whether every line of a JSONL file can be read."""
    return file.is_file() and len(read_rows(file)) == len(file.read_bytes().splitlines()) > 0


def list_steps(rows: Iterable[Mapping[str, Any]]) -> set[Any]:
    return {row.get("step") for row in rows}


def name_steps(steps: list[int]) -> str:
    """step 3; steps 3, 4, 9 and 12 more"""
    shown = ", ".join(map(str, steps[:MOST_SHOWN]))
    more = f" and {len(steps) - MOST_SHOWN} more" if len(steps) > MOST_SHOWN else ""
    return f"step{'' if len(steps) == 1 else 's'} {shown}{more}"
