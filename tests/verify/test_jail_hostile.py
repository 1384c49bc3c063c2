"""Hostile programs in the jail: nothing rewarded, nothing left behind, nothing of the host touched.

A sample here; every program in both tiers, as root and as nobody, in the tests marked `prove`.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from hostile.controls import CONTROLS, NOTHING
from hostile.harness import SHORT, TIERS, USERS, Bounds, Report, all_hostile, run_elsewhere, why_not
from hostile.honest import HONEST
from hostile.programs import BEGINS_WITH, CATEGORIES, SOURCES, WITH_PACKAGES
from hostile.programs_a import HOSTILE
from hostile.programs_b import ASKED, NOT_PYTHON, SCRIPTS

SAMPLE = [
    "exit_in_call",
    "always_equal_number",
    "frames_everywhere_at_load",
    "exception_without_a_name",
    "read_all_objects",
    "malformed_tags",
    "hash_collisions_in_a_reply",
    "poison_for_the_next_run",
    "poison_of_an_earlier_run",
    "blocked_signals",
    "at_exit",
    "list_of_numbers",
    "pipe_buffers",
    "several_big_files",
    "deep_folders",
    "deep_folders_at_load",
    "stdout_flood",
    "deep_value",
    "fork",
    "raw_clone3",
    "canary_by_every_call",
    "canary_metadata",
    "signals_to_everyone",
    "interpreter_files",
    "daemon",
    "tcp",
    "abstract_socket",
    "environment",
    "secret_file",
    "inherited_descriptors",
    *(program.name for program in NOT_PYTHON),
]
"""All categories, the quick ones of each."""

here = functools.cache(why_not)
"""Asked once per process: the answer does not change, and it costs the start of an interpreter."""


def current_user() -> str:
    return "nobody" if here(TIERS[1], "root") == "not started as root" else "root"


def failures(reports: list[Report]) -> list[str]:
    """One line for each run in which the jail did not hold."""
    return [
        f"{report.name} ({report.way}, {report.end}): {'REWARDED; ' if report.rewarded else ''}{'; '.join(report.effects)}"
        for report in reports
        if report.rewarded or report.effects
    ]


def test_the_sets_cover_every_category() -> None:
    by_category = Counter(program.category for program in HOSTILE)
    assert len(HOSTILE) >= 200
    assert all(by_category[category] >= 10 for category in CATEGORIES), by_category
    assert {all_hostile()[name].category for name in SAMPLE} == set(CATEGORIES)


def test_every_source_is_a_program_and_every_program_a_source() -> None:
    """A file that no list names would never be run. Programs in pieces begin with a file of sources/shared."""
    programs = [program for program in all_hostile().values() if program not in NOT_PYTHON]
    wanted = {f"{program.category}/{program.name}.py" for program in programs} | {
        f"honest/{program.name}.py" for program in HONEST
    }
    begun = {
        line.removeprefix(BEGINS_WITH) for file in SOURCES.rglob("*.py") for line in file.read_text("utf-8").splitlines()[:1]
    }
    shared = {f"shared/{name}" for name in begun if name.endswith(".py")}
    assert {str(file.relative_to(SOURCES)) for file in SOURCES.rglob("*.*")} == wanted | shared
    assert {*ASKED, *SCRIPTS} <= {program.name for program in programs}


def test_every_word_of_the_sources_is_filled_in() -> None:
    """A misspelt @WORD@ would make an attack miss, and the jail look better than it is."""
    known = {
        "CANARY", "SECRET_FILE", "HOME", "SECRET_NAME", "SECRET_FD", "TRAINER", "PORT", "UDP_PORT", "ABSTRACT",
        "ABSTRACT_DATAGRAM", "UNIX_PATH", "HOST_PID", "MARKER", "KEY", "QUEUE", "MEMORY_MB", "FILES_MB", "PROJECT",
    }  # fmt: skip
    for program in all_hostile().values():
        words = {word for word in program.source.split("@")[1::2] if word.isupper()}
        assert words <= known, f"{program.name}: {words - known}"


def test_the_harness_sees_what_a_jail_lets_through() -> None:
    """Each trap, sprung by the host itself: reported, and under its own name."""
    if problem := here("landlock", current_user()):
        pytest.skip(f"the harness needs a jail to start with: {problem}")
    reports = run_elsewhere(
        [control.name for control in CONTROLS], tier="landlock", user=current_user(), bounds=Bounds(wall_s=0.5), kind="control"
    )
    assert [report.name for report in reports] == [control.name for control in CONTROLS]
    for control, report in zip(CONTROLS, reports, strict=True):
        if control is NOTHING:
            assert report.effects == ()
        else:
            assert any(effect.startswith(control.seen_as) for effect in report.effects), (control.name, report.effects)


@pytest.mark.parametrize("tier", TIERS)
def test_a_sample_of_hostile_programs(tier: str) -> None:
    if problem := here(tier, current_user()):
        pytest.skip(problem)
    reports = run_elsewhere(SAMPLE, tier=tier, user=current_user(), bounds=SHORT)
    assert {report.name for report in reports} == set(SAMPLE)
    assert not failures(reports), "\n".join(failures(reports))
    ends = {report.name: report.end for report in reports if report.way == "calls"}
    # On a busy machine the wall clock may come before the limit that was meant; nothing else may.
    assert ends["blocked_signals"] in ("cpu", "wall")
    assert ends["stdout_flood"] in ("output", "wall")
    assert ends["exit_in_call"] == "finished"  # SystemExit is an exception of that call


def run_around_packages(tier: str, user: str, layout: str) -> list[Report]:
    """The programs that reach for files around the import packages, in each way in which the jail shows the packages."""
    names = [name for name, program in all_hostile().items() if program.ways == WITH_PACKAGES]
    reports = run_elsewhere(names, tier=tier, user=user, bounds=Bounds(cpu_s=3.0, wall_s=10.0), layout=layout)
    assert [(report.name, report.way) for report in reports] == [(name, way) for name in names for way in WITH_PACKAGES]
    assert {report.end for report in reports} == {"finished"}
    return reports


@pytest.mark.parametrize("layout", ["checkout", "wheel"])
@pytest.mark.parametrize("tier", TIERS)
def test_nothing_around_the_import_packages_can_be_read(tier: str, layout: str) -> None:
    """No tests, recipes or reference answers of a checkout, or of a project with the wheel in its .venv."""
    if problem := here(tier, current_user()):
        pytest.skip(problem)
    assert failures(run_around_packages(tier, current_user(), layout)) == []


def test_the_programs_find_what_is_readable() -> None:
    """The control: the same files beside the installed packages, where the jail lets programs read."""
    if problem := here("landlock", current_user()):
        pytest.skip(problem)
    found = {report.name for report in run_around_packages("landlock", current_user(), "exposed") if report.effects}
    assert {"project_above_the_packages", "project_by_import"} <= found


@pytest.mark.prove
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("layout", ["checkout", "wheel"])
@pytest.mark.parametrize("tier", TIERS)
def test_nothing_around_the_import_packages_can_be_read_by_any_user(tier: str, layout: str, user: str) -> None:
    if problem := here(tier, user):
        pytest.skip(problem)
    assert failures(run_around_packages(tier, user, layout)) == []


@pytest.mark.prove
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("tier", TIERS)
def test_every_hostile_program(tier: str, user: str) -> None:
    if problem := here(tier, user):
        pytest.skip(problem)
    programs = all_hostile()
    reports = run_elsewhere(list(programs), tier=tier, user=user)
    assert {report.name for report in reports} == set(programs)
    assert not failures(reports), "\n".join(failures(reports))
