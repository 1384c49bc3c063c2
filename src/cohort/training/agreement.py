"""The ranks of a run: that they belong to one run, who owns its folder, and how they end. Imports no torch."""

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
"""What torchrun, and whoever starts processes as it does, tells each of them."""
LIBRARIES = ("torch", "transformers", "peft")
SOURCE = Path(__file__).parent.parent
MOST_SHOWN = 6
LONGEST_SHOWN = 60


def find_world(read_limit: Callable[[], float]) -> World:
    """Where torchrun has started this process: it and its siblings; else the process alone. read_limit gives parallel.limit_s."""
    if not is_launched():
        refuse_half_told()
        return ALONE
    # When a rank is lost, the others print pages of C++ frames as warnings; the error that follows says it in a sentence.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from cohort.parallel.ranks import join_ranks

    return join_ranks(read_limit())


def is_launched() -> bool:
    return all(os.environ.get(name) for name in LAUNCHED)


def refuse_half_told() -> None:
    """Processes that know that they are several and not where to meet would each train alone."""
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return
    missing = [name for name in LAUNCHED if not os.environ.get(name)]
    raise RankError(
        f"WORLD_SIZE={os.environ['WORLD_SIZE']} in the environment says that there are several processes, and {' and '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} not set, so they cannot meet. torchrun sets all of them; unset WORLD_SIZE to train with one."
    )


def speaks_to_people() -> bool:
    """Whether this process, of those that were launched together, is the one that people hear. Known before they have met."""
    return not is_launched() or os.environ["RANK"] == "0"


# -- one run, and not several ------------------------------------------------------------------------------------------


def compare_ranks(world: World, list_facts: Callable[[], Mapping[str, Any]]) -> None:
    """Refuse ranks that were started with different recipes, code or data, naming what differs and where."""
    if world.size == 1:  # nobody to compare with, and the facts cost: digests, and the import of torch
        return
    told = world.gather([dict(list_facts())])
    differing = [
        name for name in dict.fromkeys(name for one in told for name in one) if len({repr(one.get(name)) for one in told}) > 1
    ]
    if not differing:
        return
    shown = []
    for name in differing[:MOST_SHOWN]:
        values: dict[str, list[int]] = {}
        for rank, one in enumerate(told):
            values.setdefault(repr(one.get(name))[:LONGEST_SHOWN], []).append(rank)
        shown.append(f"{name} is " + " and ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in values.items()))
    more = f", and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else ""
    raise RankError(
        f"the ranks do not belong to one run: {'; '.join(shown)}{more}. Start all of them with the same recipe, code and data, on hosts "
        "with the same versions."
    )


def name_ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def list_launch_facts(recipe: Recipe) -> dict[str, Any]:
    """What must be the same before a run folder is made: the recipe word by word, the code, the libraries."""
    from cohort.training.read_again import flatten

    facts = dict(flatten(recipe.model_dump(mode="json")))
    facts |= {"the code of cohort": digest_code(), "Python": platform.python_version()}
    return facts | {library: find_version(library) for library in LIBRARIES}


def digest_code() -> str:
    code = hashlib.blake2b(digest_size=8)
    for file in sorted(SOURCE.rglob("*.py")):
        code.update(file.relative_to(SOURCE).as_posix().encode() + file.read_bytes())
    return code.hexdigest()


def find_version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def list_run_facts(recipe: Recipe, model: Any, encoded: EncodedData, threads: int) -> dict[str, Any]:
    """What must be the same before anything is trained: prompts, starting weights, files. threads: 0 where they do not decide about bits."""
    from cohort.model.frozen import sample_weights
    from cohort.training.read_again import read_files

    facts: dict[str, Any] = {
        "prompts and demonstrations": encoded.digest(),
        "evaluation problems": encoded.evaluation_digests(),
    }
    facts |= {"the starting weights": sample_weights(model), "files": read_files(recipe, model)}
    facts["the kind of device"] = model.device.type
    if threads:
        facts["threads per rank (OMP_NUM_THREADS; parallel.sums = 'fast' does not mind)"] = threads
    return facts


def describe_ranks(world: World, device: Any, threads: int, exact: bool, saved_threads: int | None) -> Iterator[str]:
    """What the first lines say of the processes, and of the bits that depend on them. device: of this one."""
    if world.launched:
        places = world.gather([(platform.node(), str(device))])
        hosts = len({host for host, _ in places})
        if shared := {place for place in places if places.count(place) > 1 and place[1].startswith("cuda")}:
            host, gpu = min(shared)
            yield f"warning: {places.count((host, gpu))} ranks share {gpu} on {host}: start one a GPU, and leave model.device at auto"
        where = "one host" if hosts == 1 else f"{hosts} hosts"
        kind = "in float64 and rounded once: the same bits on any number of ranks" if exact else "in float32"
        default = " (torchrun's choice unless OMP_NUM_THREADS is set)" if world.size > 1 and threads == 1 else ""
        counted = f"{write_count(world.size, 'rank')} on {where}, {write_count(threads, 'thread')} each"
        yield f"{counted}{default}; gradients are added {kind}"
    if exact and saved_threads and saved_threads != threads:
        yield (
            f"warning: the run was started with {write_count(saved_threads, 'thread')} a rank and goes on with {threads}: its numbers will differ in the last "
            f"bits. For the same ones, set OMP_NUM_THREADS={saved_threads}"
        )


def describe_company(world: World, exact: bool, name: str, steady: bool) -> Iterator[str]:
    """What several ranks mean for the bits of completions, where the engine of this name cannot keep them apart."""
    if world.size > 1 and exact and not steady:
        yield (
            f"warning: engine {name}: what is decoded side by side can change the last bits of a log-prob here, and at a near-tie a token. "
            "Ranks decode side by side what one process would not: the run is the same on another number of ranks only up to that"
        )


# -- its folder and its end --------------------------------------------------------------------------------------------


def lock_folder(root: str | Path) -> RunFolder:
    folder = RunFolder.open(root)
    folder.lock()
    return folder


def claim_folder(world: World, make: Callable[[], RunFolder]) -> RunFolder:
    """The run folder: made and owned by the main process, seen by all."""
    made: list[RunFolder] = []

    def make_here() -> str:
        made.append(make())
        return str(made[0].root.resolve())

    root = world.on_main(make_here)

    def look() -> list[str]:
        if not made:
            made.append(RunFolder.watch(root))
        return []

    try:
        world.compute(look)
    except Exception:
        if world.is_main:
            made[0].discard()
            made[0].unlock()
        raise
    world.remember_run(root)
    return made[0]


def find_checkpoint(world: World, checkpoints: Path) -> Found | None:
    """The newest whole checkpoint. The main process has read every byte of it: the others read the same, and need not."""
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
    """How the run went on the main rank, on every rank: a script that asks goes on the same way everywhere. Folders stay their own."""
    if world.size == 1:
        return result
    try:
        status, summary = world.on_main(lambda: (result.status, result.summary))
        return replace(result, status=status, summary=summary)
    except RankError:
        if not world.is_main:
            raise
        return result  # all is saved: a rank that is lost now is missed by nobody


@contextmanager
def end_together(world: World) -> Iterator[None]:
    """Whatever ends this process is told to the others, so that nobody waits for one who is gone."""
    try:
        yield
    except BaseException as problem:
        world.fail(problem)
        raise
    finally:
        world.close()
