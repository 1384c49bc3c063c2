"""`cohort doctor` under torchrun: the checks of several ranks. Real processes: tests/parallel/test_look_together.py."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.base.world import ALONE, World
from cohort.errors import RankError
from cohort.tools import doctor
from cohort.training.preflight import Check


class Scripted(World):
    """Rank 0 of several, with given answers of the others."""

    launched = True

    def __init__(self, *others: Any):
        self.others, self.size = others, 1 + len(others)

    def gather(self, mine: Any) -> list[Any]:
        return [*mine, *self.others]


def rank(host: str, card: str = "", threads: int = 1, cores: int = 2) -> dict[str, Any]:
    return {"host": host, "card": card, "threads": threads, "cores": cores}


def test_two_ranks_on_one_gpu_are_named():
    found = list(doctor.check_cards([rank("a", "GPU-1"), rank("a", "GPU-2"), rank("b", "GPU-3"), rank("b", "GPU-3")]))
    assert [(check.level, check.name) for check in found] == [("warning", "devices")]
    assert "ranks 2, 3 share a GPU of b" in found[0].text
    (fine,) = doctor.check_cards([rank("a", "GPU-1"), rank("a", "GPU-2")])
    assert fine.level == "ok"


def test_more_threads_than_cores_are_named_by_host():
    ranks = [rank("a", threads=2), rank("a", threads=1), rank("b", threads=2)]
    first, second = doctor.check_cores(ranks, doctor.group_ranks(ranks, "host"))
    assert (first.level, second.level) == ("warning", "ok")
    assert "a: 3 threads of ranks 0, 1 on 2 cores" in first.text
    assert second.text == "b: 2 threads of rank 2 on 2 cores"


def test_worse_checks_of_other_ranks_are_added():
    own = [Check("ok", "memory", "it fits"), Check("warning", "answers", "few")]
    theirs = [Check("warning", "memory", "it does not fit"), Check("warning", "answers", "few")]
    joined = doctor.join_checks(Scripted(own, theirs), own)
    assert joined == [*own, Check("warning", "memory", "rank 2: it does not fit")]
    assert doctor.join_checks(ALONE, own) == own


def test_a_folder_that_a_rank_cannot_see_is_refused(tmp_path):
    doctor.refuse_unseen(Scripted(("rank 1 on b", True)), tmp_path)
    with pytest.raises(RankError, match=r"runs_folder: rank 1 on b cannot see .* Use a disk that all hosts share"):
        doctor.refuse_unseen(Scripted(("rank 1 on b", False)), tmp_path)


def test_the_shared_folder_is_removed(tmp_path):
    runs = tmp_path / "new" / "runs"
    with doctor.make_shared_folder(Scripted(("rank 1 on b", True)), runs) as folder:
        assert folder.parent == runs
    assert not (tmp_path / "new").exists()
    runs.mkdir(parents=True)
    (runs / "mine").mkdir()
    with doctor.make_shared_folder(Scripted(("rank 1 on b", True)), runs) as folder:
        (folder / "model").mkdir()
    assert list(runs.iterdir()) == [runs / "mine"]
    with doctor.make_shared_folder(ALONE, runs) as folder:
        assert runs not in folder.parents
