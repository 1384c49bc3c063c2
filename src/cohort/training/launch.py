"""Starts and ends a run on all of its ranks: the world, the checks that ranks match, the run folder. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.text import write_count
from cohort.base.world import ALONE, World
from cohort.errors import RankError
from cohort.observe.outcome import RunResult
from cohort.observe.run_folder import RunFolder
from cohort.recipe.schema import Recipe

if TYPE_CHECKING:
    from cohort.training.build import EncodedData
    from cohort.training.checkpoint import Found

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that torchrun sets for each process."""
LIBRARIES = ("torch", "transformers", "peft")
PACKAGES = (Path(__file__).parents[1], Path(__file__).parents[2] / "cohort_verify")
MOST_SHOWN = 6
LONGEST_SHOWN = 60


def find_world(read_limit: Callable[[], float]) -> World:
    """The ranks that torchrun started, or a World of one process. read_limit returns parallel.limit_s."""
    if not is_launched() and os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return ALONE
    if missing := [name for name in LAUNCHED if not os.environ.get(name)]:  # else each process would train by itself
        raise RankError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} in the environment, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set, so the processes cannot meet. torchrun sets all of them; unset WORLD_SIZE "
            "to train with one process."
        )
    # When a rank is lost, torch prints pages of C++ frames on the others; our error message follows.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from cohort.parallel.ranks import join_ranks

    return join_ranks(read_limit())


def leave_process_group() -> None:
    """Leave the default process group, which transformers' TrainingArguments joins under torchrun; a run makes its own."""
    from torch import distributed

    if is_launched() and distributed.is_initialized():
        distributed.destroy_process_group()


def is_launched() -> bool:
    return all(os.environ.get(name) for name in LAUNCHED)


def is_main_process() -> bool:
    """Whether this process prints messages, from the environment: known before the ranks have met."""
    return not is_launched() or os.environ["RANK"] == "0"


# -- checks that ranks match -------------------------------------------------------------------------------------------


def compare_ranks(world: World, list_facts: Callable[[], Mapping[str, Any]]) -> None:
    """Refuse ranks that were started with different recipes, code or data; the error names each difference."""
    if world.size == 1:  # the facts cost time: digests, and the import of torch
        return
    facts = world.gather([dict(list_facts())])
    names = dict.fromkeys(name for one in facts for name in one)
    differing = [name for name in names if len({repr(one.get(name)) for one in facts}) > 1]
    if not differing:
        return
    shown = []
    for name in differing[:MOST_SHOWN]:
        values: dict[str, list[int]] = {}
        for rank, one in enumerate(facts):
            values.setdefault(repr(one.get(name))[:LONGEST_SHOWN], []).append(rank)
        shown.append(f"{name} is " + " and ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in values.items()))
    more = f", and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else ""
    raise RankError(
        f"the ranks do not belong to one run: {'; '.join(shown)}{more}. Start all of them with the same recipe, code, data and library "
        "versions."
    )


def name_ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def list_launch_facts(recipe: Recipe) -> dict[str, Any]:
    """Facts that must be equal on all ranks before a run folder is created: recipe, code, library versions."""
    from cohort.training.resume_checks import flatten

    facts = dict(flatten(recipe.model_dump(mode="json")))
    facts |= {"the code of cohort": digest_code(), "Python": platform.python_version()}
    return facts | {library: find_version(library) for library in LIBRARIES}


def digest_code() -> str:
    code = hashlib.blake2b(digest_size=8)
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            code.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    return code.hexdigest()


def find_version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def list_run_facts(recipe: Recipe, model: Any, encoded: EncodedData, threads: int) -> dict[str, Any]:
    """Facts that must be equal on all ranks before training: prompts, starting weights, files. threads: 0 if they do not affect the bits."""
    from cohort.model.frozen import sample_weights
    from cohort.training.resume_checks import read_files

    facts: dict[str, Any] = {
        "prompts and demonstrations": encoded.digest(),
        "evaluation problems": encoded.evaluation_digests(),
        "the starting weights": sample_weights(model),
        "files": read_files(recipe, model),
        "the kind of device": model.device.type,
    }
    if threads:
        facts["threads per rank (OMP_NUM_THREADS; irrelevant with parallel.sums = 'fast')"] = threads
    return facts


def describe_ranks(world: World, device: Any, threads: int, exact: bool, saved_threads: int | None) -> Iterator[str]:
    """Console messages about the ranks, and about settings that change the bits. device: of this rank."""
    if world.launched:
        places = world.gather([(platform.node(), str(device))])
        hosts = len({host for host, _ in places})
        if shared := {place for place in places if places.count(place) > 1 and place[1].startswith("cuda")}:
            host, gpu = min(shared)
            yield f"warning: {places.count((host, gpu))} ranks share {gpu} on {host}: start one per GPU, and leave model.device at auto"
        where = "one host" if hosts == 1 else f"{hosts} hosts"
        kind = "in float64 and rounded once: equal bits on any number of ranks" if exact else "in float32"
        default = " (torchrun's choice unless OMP_NUM_THREADS is set)" if world.size > 1 and threads == 1 else ""
        counted = f"{write_count(world.size, 'rank')} on {where}, {write_count(threads, 'thread')} each"
        yield f"{counted}{default}; gradients are summed {kind}"
    if exact and saved_threads and saved_threads != threads:
        yield (
            f"warning: the run was started with {write_count(saved_threads, 'thread')} per rank and resumes with {threads}, so its numbers will "
            f"differ in the last bits. To avoid this, set OMP_NUM_THREADS={saved_threads}"
        )


def warn_of_batch_effects(world: World, exact: bool, name: str, steady: bool) -> Iterator[str]:
    """A warning for several ranks whose engine's log-probs depend on which completions are decoded together."""
    if world.size > 1 and exact and not steady:
        yield (
            f"warning: engine {name}: which completions are decoded together can change the last bits of a log-prob, and at a near-tie a "
            "token. Another number of ranks decodes other completions together, so it gives the same run only up to that"
        )


# -- run folder and end ------------------------------------------------------------------------------------------------


def lock_folder(root: str | Path) -> RunFolder:
    folder = RunFolder.open(root)
    folder.lock()
    return folder


def claim_folder(world: World, make: Callable[[], RunFolder]) -> RunFolder:
    """The run folder, created and owned by the main rank and visible to all."""
    made: list[RunFolder] = []

    def make_here() -> str:
        made.append(make())
        return str(made[0].root.resolve())

    root = world.on_main(make_here)

    def open_here() -> list[str]:
        if not made:
            made.append(RunFolder.watch(root))
        return []

    try:
        world.compute(open_here)
    except Exception:
        if world.is_main:
            made[0].discard()
            made[0].unlock()
        raise
    world.remember_run(root)
    return made[0]


def find_checkpoint(world: World, checkpoints: Path) -> Found | None:
    """The newest complete checkpoint. Only the main rank verifies its checksums: the others read the same files."""
    from cohort.training import checkpoint

    found: list[Found] = []

    def find_here() -> str:
        if checkpoint.list_checkpoints(checkpoints):
            found.append(checkpoint.latest(checkpoints))
        return found[0].folder.name if found else ""

    name = world.on_main(find_here)
    if name and not found:
        found.append(checkpoint.Found(checkpoints / name, checkpoint.load(checkpoints / name, verified=True), []))
    return found[0] if found else None


def share_result(world: World, result: RunResult) -> RunResult:
    """The main rank's result on every rank, so that a script branches the same way everywhere. Folders stay their own."""
    if world.size == 1:
        return result
    try:
        status, summary = world.on_main(lambda: (result.status, result.summary))
        return replace(result, status=status, summary=summary)
    except RankError:
        if not world.is_main:
            raise
        return result  # everything is saved, so a rank lost now does not matter


@contextmanager
def end_together(world: World) -> Iterator[None]:
    """Report an error of this process to the other ranks, so that none waits for it."""
    try:
        yield
    except BaseException as problem:
        world.fail(problem)
        raise
    finally:
        world.close()
