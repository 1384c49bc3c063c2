"""The parts of `make prove`: everything is in exactly one of them, none is long, and each notes what came out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import figures  # noqa: E402
import prove  # noqa: E402

MAX_MINUTES = 40


def test_every_test_is_in_exactly_one_part():
    found = Counter(
        file
        for part in prove.PARTS.values()
        for path in prove.paths_of(part)
        for file in ([path] if path.is_file() else path.rglob("test_*.py"))
    )
    assert found == Counter(file for file in (ROOT / "tests").rglob("test_*.py") if "sources" not in file.parts)


def test_every_figure_is_in_exactly_one_part():
    assert Counter(name for part in prove.PARTS.values() for name in part.figures) == Counter(list(figures.FIGURES))


def test_no_part_is_long_or_empty():
    assert {name: part.minutes for name, part in prove.PARTS.items() if part.minutes > MAX_MINUTES} == {}
    assert all(part.tests or part.figures for part in prove.PARTS.values())


def test_the_family_is_cut_without_a_loss():
    def contenders(*chosen: str) -> list[str]:
        command = [ROOT / "benchmarks" / "family.sh", "out", "2", "echo", *chosen]
        words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return words[words.index("compare") + 1 : words.index("--seeds")]

    assert sorted(name for part in figures.FAMILY.values() for name in part) == sorted(contenders())
    assert contenders(*figures.FAMILY["family-2"]) == list(figures.FAMILY["family-2"])


TESTS = """
import pytest
@pytest.mark.prove
def test_right(): pass
@pytest.mark.prove
def test_wrong(): assert {right}
@pytest.mark.prove
def test_elsewhere(): pytest.skip("not here")
def test_quick(): assert False, "not marked"
"""


@pytest.mark.parametrize(("right", "met"), [(True, True), (False, True), (True, False)])
def test_a_part_notes_what_came_out(tmp_path, monkeypatch, right, met):
    (tmp_path / "tests" / "room").mkdir(parents=True)
    (tmp_path / "tests" / "room" / "test_it.py").write_text(TESTS.format(right=right), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    prove\n    gpu\n", encoding="utf-8")
    figure = figures.Figure("speed", "go", "3", "≥ 2", met)
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove, "PARTS", {"small": prove.Part(1, ("room",), ("speed",)), "other": prove.Part(2)})
    monkeypatch.setattr(prove, "FIGURES", {"speed": lambda settings: [figure]})
    settings = figures.Settings([0], tmp_path, [])
    assert prove.run_part("small", settings, tmp_path / "results") == (right and met)
    noted = json.loads((tmp_path / "results" / "small.json").read_text(encoding="utf-8"))
    assert noted["passed"] == (right and met)
    assert noted["tests"] == {
        "passed": 1 + right,
        "skipped": 1,
        "failed": [] if right else ["tests.room.test_it::test_wrong"],
    }
    assert noted["figures"] == [{"name": "speed", "command": "go", "value": "3", "target": "≥ 2", "passed": met}]
    assert noted["commit"] == "unknown"  # no checkout here
    assert noted["date"].endswith("+00:00")
    assert noted["machine"]["python"] == sys.version.split()[0]
    listed = prove.list_parts(tmp_path / "results").splitlines()
    assert f"{'passed' if right and met else 'FAILED'} {noted['date'][:10]} at unknown" in listed[2]
    assert "never noted" in listed[3]


def test_the_commit_is_named_with_what_differs_from_it(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    (tmp_path / "file").write_text("1", encoding="utf-8")
    git("add", ".")
    git("commit", "-qm", "x")
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "new.json").write_text("{}", encoding="utf-8")
    head = git("rev-parse", "--short=12", "HEAD").strip()
    assert prove.commit() == head
    (tmp_path / "file").write_text("2", encoding="utf-8")
    assert prove.commit() == f"{head} with changes"


def test_a_figure_that_cannot_be_made_is_a_miss_and_the_others_follow(tmp_path, monkeypatch):
    good = figures.Figure("good", "go", "1", "1", True)
    monkeypatch.setattr(prove, "FIGURES", {"bad": lambda settings: 1 / 0, "good": lambda settings: [good]})
    bad, second = prove.measure(["bad", "good"], figures.Settings([0], tmp_path, []))
    assert not bad.passed
    assert "ZeroDivisionError" in bad.value
    assert second is good
