"""What `cohort doctor` under torchrun finds out about the processes: where they are, what they share, how fast they talk."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.text import write_count
from cohort.base.world import World
from cohort.errors import RankError
from cohort.observe.scaling import Link
from cohort.training.launch import name_ranks

if TYPE_CHECKING:
    from cohort.training.preflight import Check
    from cohort.training.run import Run


@contextmanager
def make_shared_folder(world: World, runs_folder: Path) -> Iterator[Path]:
    """An empty folder for a look, gone afterwards: beside the runs where several processes must see it, else anywhere."""
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
        world.agree(False)  # nobody takes it away while another still looks
    finally:
        if made:
            shutil.rmtree(made[0], ignore_errors=True)
            for path in made[1:]:
                with suppress(OSError):  # another run lives in it
                    path.rmdir()


def refuse_unseen(world: World, folder: Path) -> None:
    """All processes see the run folder of the main one, or the run cannot begin."""
    looks = world.gather([(f"rank {world.rank} on {platform.node()}", folder.is_dir())])
    blind = [who for who, sees in looks if not sees]
    if blind:
        raise RankError(
            f"runs_folder: {', '.join(blind)} does not see {folder.parent}, where rank 0 keeps the run. Put it on a disk that all hosts share."
        )


def check_processes(world: World, parts: Run) -> tuple[list[Check], Link]:
    """Where the ranks are, whether each has a device of its own, and how fast they talk."""
    import torch

    from cohort.parallel.link import measure_link
    from cohort.training.preflight import Check

    device = parts.policy.device
    card = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = world.gather([{"host": platform.node(), "card": card, "threads": torch.get_num_threads(), "cores": cores}])
    bandwidth, latency, meeting = measure_link(world, device)
    said = f"gradients travel at {bandwidth / 1e9:.3g} GB/s, a message takes {latency * 1e3:.2g} ms, a meeting {meeting * 1e3:.2g} ms"
    hosts = group_ranks(ranks, "host")
    where = "; ".join(f"{name_ranks(members)} on {host}" for host, members in hosts.items())
    checks = [
        Check("ok", "ranks", f"{write_count(world.size, 'rank')} with one recipe, code and data: {where}"),
        *(check_cards(ranks) if card else check_cores(ranks, hosts)),
        Check("ok", "link", said),
    ]
    return checks, Link(bandwidth, latency, meeting)


def group_ranks(ranks: Sequence[dict[str, Any]], what: str) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank, one in enumerate(ranks):
        groups.setdefault(one[what], []).append(rank)
    return groups


def check_cards(ranks: Sequence[dict[str, Any]]) -> Iterator[Check]:
    from cohort.training.preflight import Check

    shared = [members for members in group_ranks(ranks, "card").values() if len(members) > 1]
    for members in shared:
        text = (
            f"{name_ranks(members)} share a GPU of {ranks[members[0]]['host']}, and tell each other everything through the host"
        )
        yield Check("warning", "devices", f"{text}: start as many processes as it has GPUs (--nproc-per-node).")
    if not shared:
        yield Check("ok", "devices", "every rank has a GPU of its own")


def check_cores(ranks: Sequence[dict[str, Any]], hosts: dict[str, list[int]]) -> Iterator[Check]:
    from cohort.training.preflight import Check

    for host, members in hosts.items():
        threads, cores = sum(ranks[rank]["threads"] for rank in members), ranks[members[0]]["cores"]
        text = f"{host}: {write_count(threads, 'thread')} of {name_ranks(members)} on {write_count(cores, 'core')}"
        if threads > cores:
            yield Check("warning", "devices", f"{text}: they wait for each other. Start fewer, or lower OMP_NUM_THREADS.")
        else:
            yield Check("ok", "devices", text)


def join_checks(world: World, mine: list[Check]) -> list[Check]:
    """Those of the main process, and what another one found worse, with its rank."""
    from dataclasses import replace

    order = ("ok", "warning", "failure")
    own, *others = world.gather([mine])
    joined = list(own)
    for rank, theirs in enumerate(others, start=1):
        best = {check.name: max(order.index(one.level) for one in own if one.name == check.name) for check in own}
        for check in theirs:
            if order.index(check.level) > best.get(check.name, 0):
                joined.append(replace(check, text=f"rank {rank}: {check.text}"))
    return joined
