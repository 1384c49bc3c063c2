"""Broken and incomplete files: pages work and report the number of skipped lines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from browsing.addresses import list_answers, list_examples
from browsing.damage import BAD_LINES, LINES, ODD_LINES, ODD_TABLES, WHOLE, WHOLE_FILES, add_lines, damage_file, damage_tables
from browsing.made_run import make_run
from browsing.stage import Dashboard, start_dashboard

FILES = (*WHOLE_FILES, *LINES)
AGAIN = 3
"""How often each bad line stands in a file."""


def name_run(file: str, kind: str) -> str:
    return f"{file}.{kind}".replace("/", "-").replace(" ", "_")


def copy_run(runs: Path, name: str) -> Path:
    return Path(shutil.copytree(runs / "second", runs / name))


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A dashboard of runs that are damaged in one way each."""
    folder = tmp_path_factory.mktemp("ward")
    runs = folder / "runs"
    make_run(runs / "second", 8)
    for kind, content in WHOLE.items():
        everything = copy_run(runs, name_run("all", kind))
        for file in WHOLE_FILES:
            damage_file(everything, file, content)
    for file in LINES:
        add_lines(copy_run(runs, name_run(file, "bad")) / file, [*BAD_LINES.values()] * AGAIN)
        add_lines(copy_run(runs, name_run(file, "odd")) / file, [*ODD_LINES.values()])
        with (copy_run(runs, name_run(file, "torn")) / file).open("ab") as stream:
            stream.write(BAD_LINES["half of a line"])
    dashboard = start_dashboard(runs, folder / "log")
    yield dashboard
    dashboard.stop()


def read_page(dashboard: Dashboard, address: str) -> str:
    status, _, body = dashboard.ask(address)
    assert str(dashboard.log.parent).encode() not in body, f"{address} tells where the runs lie"
    assert status < 500, (address, status, dashboard.log.read_text(encoding="utf-8", errors="replace")[-2000:])
    return body.decode()


def read_pages(dashboard: Dashboard, name: str, *more: str) -> None:
    """Every page about a run, and more; nothing of it may fail."""
    for address in (*list_examples(name=name, step="4"), *more):
        if not address.startswith("/lab"):  # these pages are about no run
            read_page(dashboard, address)


@pytest.mark.parametrize("kind", WHOLE)
def test_pages_work_with_damaged_runs(ward, kind):
    read_pages(ward, name_run("all", kind))


@pytest.mark.prove
@pytest.mark.parametrize("file", FILES)
def test_pages_work_with_one_damaged_file(tmp_path, file):
    """One file at a time: what is broken elsewhere hides nothing."""
    make_run(tmp_path / "runs" / "second", 8)
    for kind, content in WHOLE.items():
        damage_file(copy_run(tmp_path / "runs", name_run(file, kind)), file, content)
    dashboard = start_dashboard(tmp_path / "runs", tmp_path / "log")
    try:
        for kind in WHOLE:
            read_pages(dashboard, name_run(file, kind), *list_answers(name=name_run(file, kind), step="4"))
    finally:
        dashboard.stop()


@pytest.mark.parametrize("file", LINES)
def test_skipped_lines_are_counted(ward, file):
    read_pages(ward, name_run(file, "bad"))
    said = read_page(ward, f"/run/{name_run(file, 'bad')}")
    assert f"{Path(file).name}: {AGAIN * len(BAD_LINES)} broken lines skipped" in said
    said = read_page(ward, f"/run/{name_run(file, 'torn')}")
    assert f"{Path(file).name}: the last line is incomplete" in said


@pytest.mark.parametrize("file", LINES)
def test_pages_work_with_damaged_lines(ward, file):
    read_pages(ward, name_run(file, "odd"))


@pytest.mark.prove
@pytest.mark.parametrize("tokens", [False, True], ids=["completions", "tokens"])
def test_pages_work_with_damaged_tables(tmp_path, tokens):
    """With an index of the completions, and without."""
    make_run(tmp_path / "runs" / "second", 8)
    names = []
    for kind in ODD_TABLES:
        for index in (True, False):
            names.append(name_run(kind, "index" if index else "alone"))
            run = copy_run(tmp_path / "runs", names[-1])
            damage_tables(run, kind, tokens)
            if not index:
                (run / "rollouts" / "index.bin").unlink()
    dashboard = start_dashboard(tmp_path / "runs", tmp_path / "log")
    try:
        for name in names:
            read_pages(dashboard, name, *list_answers(name=name, step="4"))
    finally:
        dashboard.stop()
