"""`cohort doctor RECIPE`: runs and prints every preflight check.

Under torchrun all ranks check together: they compare what they were started with, measure the link between them, and rank 0 prints
what any of them found.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.text import make_printable, write_count
from cohort.base.world import World
from cohort.errors import EngineError, RankError
from cohort.observe.run_folder import RunFolder
from cohort.recipe.rules import list_warnings
from cohort.recipe.schema import Recipe
from cohort.rewards.runner import RewardRunner
from cohort.training import launch
from cohort.training.launch import name_ranks

if TYPE_CHECKING:
    from cohort.training.build import EncodedData
    from cohort.training.preflight import Check
    from cohort.training.run import Run

STYLES = {"ok": "green", "skip": "cyan", "warning": "yellow", "failure": "bold red"}


def run_doctor(recipe: Recipe, ranks: int = 0) -> bool:
    """Print all checks; True if none failed. ranks: also predict memory on this many."""
    started = time.monotonic()
    world = launch.find_world(lambda: recipe.parallel.limit_s)
    with launch.end_together(world):
        try:
            checks = run_checks(world, recipe, ranks)
        except RankError as problem:
            from cohort.training.preflight import Check

            checks = [Check("failure", "ranks", str(problem))]
        # The others wait for the printing: a launcher ends all processes once the first has left with a failure.
        world.on_main(lambda: print_checks(checks, time.monotonic() - started))
    return not any(check.level == "failure" for check in checks)


def run_checks(world: World, recipe: Recipe, ranks: int) -> list[Check]:
    launch.compare_ranks(world, lambda: launch.list_launch_facts(recipe))
    with (
        make_shared_folder(world, Path(recipe.runs_folder)) as scratch,
        RewardRunner.for_run(recipe) as rewards,
    ):
        from cohort.observe.monitors import drop_monitors, find_monitor_problems
        from cohort.session import Session
        from cohort.training.preflight import Check, check_own_functions, run_cheap_checks, run_trial_checks

        rewards.world = world
        shared = recipe.parallel.shard == "full" and not world.launched
        whole = recipe.parallel.model_copy(update={"shard": "none", "offload": False}) if shared else recipe.parallel
        checked = drop_monitors(recipe).model_copy(update={"parallel": whole})
        session = Session(RunFolder(scratch), checked, rewards, None, world)
        parts, _, encoded = session.assemble()
        parts = replace(parts, recipe=parts.recipe.model_copy(update={"parallel": recipe.parallel}))
        checks = check_processes(world, parts) if world.size > 1 else []
        if shared:
            text = 'parallel.shard = "full" needs ranks started by torchrun; this single process checks with the whole model.'
            checks = [Check("warning", "ranks", text)]
        checks += [Check("warning", "recipe", warning) for warning in list_warnings(session.recipe)]
        checks += [Check("failure", "monitors", problem) for problem in find_monitor_problems(recipe)]
        checks += check_ahead(parts, max(ranks, world.size))
        checks += run_cheap_checks(parts, encoded)
        # Rollouts would only hit what has already failed, and their error would hide the checks.
        if not world.agree(any(check.level == "failure" for check in checks)):
            checks += [*run_trial_checks(parts, encoded), *check_own_functions(parts)]
        if ranks:
            checks += check_memory_on_ranks(parts, encoded, ranks)
        return join_checks(world, checks)


def check_memory_on_ranks(parts: Run, encoded: EncodedData, ranks: int) -> list[Check]:
    """Predicted memory of a rank: in detail on `ranks` ranks, and the peak on 1, 2, 4 and so on."""
    from cohort.training.preflight import Check, check_memory, check_teacher, estimate_rank

    _, teacher = check_teacher(parts, encoded)
    numbers = sorted({2**power for power in range(ranks.bit_length())} | {ranks})
    peaks = [f"{estimate_rank(parts, encoded, teacher, number).peak / 2**30:.1f} GiB on {number}" for number in numbers]
    by_ranks = Check("ok", "memory by ranks", f"peak per rank: {', '.join(peaks)}")
    return [check_memory(parts, encoded, teacher, ranks), by_ranks] if ranks != parts.world.size else [by_ranks]


def check_ahead(parts: Run, ranks: int) -> list[Check]:
    """A failure if this many ranks cannot sample ahead with the recipe's engine."""
    from cohort.training.build import refuse_ahead
    from cohort.training.preflight import Check

    try:
        refuse_ahead(parts.recipe, parts.engine, ranks <= 1 and parts.recipe.parallel.shard == "none")
    except EngineError as problem:
        return [Check("failure", "ahead", str(problem))]
    return []


def print_checks(checks: list[Check], seconds: float) -> None:
    from rich.console import Console
    from rich.text import Text

    from cohort.observe.terminal import print_whole

    console = Console(highlight=False)
    for check in checks:
        mark = check.level.upper() if check.level == "failure" else check.level
        line = Text.assemble((f"{mark:7}", STYLES[check.level]), f" {check.name:16} {make_printable(check.text)}")
        print_whole(console, line, indent=25)
    failed = sum(check.level == "failure" for check in checks)
    warned = sum(check.level == "warning" for check in checks)
    verdict = f"Ready to train, with {write_count(warned, 'warning')}" if warned else "Ready to train"
    if failed:
        verdict = f"{write_count(failed, 'check')} failed; do not trust a training run yet"
    print_whole(console, f"{verdict} ({seconds:.0f} s)")
    print_whole(console, "`cohort audit RECIPE` tests the rewards themselves for exploits.")


# -- several ranks -----------------------------------------------------------------------------------------------------


@contextmanager
def make_shared_folder(world: World, runs_folder: Path) -> Iterator[Path]:
    """An empty temporary folder: next to the runs if several processes must see it, else anywhere."""
    if world.size == 1:
        with tempfile.TemporaryDirectory(prefix="cohort-doctor-") as scratch:
            yield Path(scratch)
        return
    made: list[Path] = []

    def make() -> str:
        made.extend(path for path in (runs_folder, *runs_folder.parents) if not path.exists())
        runs_folder.mkdir(parents=True, exist_ok=True)
        made.insert(0, Path(tempfile.mkdtemp(prefix="cohort-doctor-", dir=runs_folder.resolve())))
        return str(made[0])

    folder = Path(world.on_main(make))
    try:
        refuse_unseen(world, folder)
        yield folder
        world.agree(False)  # all ranks are done before the folder is removed
    finally:
        if made:
            shutil.rmtree(made[0], ignore_errors=True)
            for path in made[1:]:
                with suppress(OSError):  # another run is in it
                    path.rmdir()


def refuse_unseen(world: World, folder: Path) -> None:
    """Raise RankError unless all ranks see the run folder of rank 0."""
    looks = world.gather([(f"rank {world.rank} on {platform.node()}", folder.is_dir())])
    blind = [who for who, sees in looks if not sees]
    if blind:
        raise RankError(
            f"runs_folder: {', '.join(blind)} cannot see {folder.parent}, where rank 0 keeps the run. Use a disk that all hosts share."
        )


def check_processes(world: World, parts: Run) -> list[Check]:
    """The host and device of each rank, and the speed of the link between them."""
    import torch

    from cohort.parallel.link_speed import measure_link
    from cohort.training.preflight import Check

    device = parts.policy.device
    card = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = world.gather([{"host": platform.node(), "card": card, "threads": torch.get_num_threads(), "cores": cores}])
    bandwidth, latency, meeting = measure_link(world, device)
    link = (
        f"gradients {bandwidth / 1e9:.3g} GB/s, message latency {latency * 1e3:.2g} ms, synchronisation {meeting * 1e3:.2g} ms"
    )
    hosts = group_ranks(ranks, "host")
    where = "; ".join(f"{name_ranks(members)} on {host}" for host, members in hosts.items())
    return [
        Check("ok", "ranks", f"{write_count(world.size, 'rank')} with the same recipe, code and data: {where}"),
        *(check_cards(ranks) if card else check_cores(ranks, hosts)),
        Check("ok", "link", link),
    ]


def group_ranks(ranks: Sequence[dict[str, Any]], key: str) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank, one in enumerate(ranks):
        groups.setdefault(one[key], []).append(rank)
    return groups


def check_cards(ranks: Sequence[dict[str, Any]]) -> Iterator[Check]:
    """A warning for each GPU that several ranks share."""
    from cohort.training.preflight import Check

    shared = [members for members in group_ranks(ranks, "card").values() if len(members) > 1]
    for members in shared:
        text = f"{name_ranks(members)} share a GPU of {ranks[members[0]]['host']} and exchange all data through the host"
        yield Check("warning", "devices", f"{text}: start one process per GPU (--nproc-per-node).")
    if not shared:
        yield Check("ok", "devices", "every rank has its own GPU")


def check_cores(ranks: Sequence[dict[str, Any]], hosts: dict[str, list[int]]) -> Iterator[Check]:
    """A warning for each host whose ranks have more threads than it has cores."""
    from cohort.training.preflight import Check

    for host, members in hosts.items():
        threads, cores = sum(ranks[rank]["threads"] for rank in members), ranks[members[0]]["cores"]
        text = f"{host}: {write_count(threads, 'thread')} of {name_ranks(members)} on {write_count(cores, 'core')}"
        if threads > cores:
            yield Check("warning", "devices", f"{text}: they wait for each other. Start fewer, or lower OMP_NUM_THREADS.")
        else:
            yield Check("ok", "devices", text)


def join_checks(world: World, mine: list[Check]) -> list[Check]:
    """The checks of rank 0, and those of other ranks that came out worse."""
    order = tuple(STYLES)
    own, *others = world.gather([mine])
    joined = list(own)
    for rank, theirs in enumerate(others, start=1):
        worst = {check.name: max(order.index(one.level) for one in own if one.name == check.name) for check in own}
        for check in theirs:
            if order.index(check.level) > worst.get(check.name, 0):
                joined.append(replace(check, text=f"rank {rank}: {check.text}"))
    return joined
