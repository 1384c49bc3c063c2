"""Honest programs in the jail: all must pass, in both tiers, as any user."""

from __future__ import annotations

import functools

import pytest

from cohort_verify.sandbox import Call, Limits, run_calls, run_script
from hostile.harness import TIERS, USERS, Bounds, run_elsewhere, why_not
from hostile.honest import HONEST

BOUNDS = Bounds(cpu_s=2.0, wall_s=10.0)
"""The sandbox's own defaults."""

here = functools.cache(why_not)


def current_user() -> str:
    return "nobody" if here(TIERS[1], "root") == "not started as root" else "root"


def run_honest(tier: str, user: str) -> None:
    if problem := here(tier, user):
        pytest.skip(problem)
    reports = run_elsewhere([program.name for program in HONEST], tier=tier, user=user, bounds=BOUNDS, kind="honest")
    assert len(reports) == len(HONEST)
    wrong = [
        f"{report.name}: {report.end} {report.detail} {report.effects}"
        for report in reports
        if not report.solved or report.effects
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("tier", TIERS)
def test_every_honest_program(tier: str) -> None:
    run_honest(tier, current_user())


@pytest.mark.prove
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("tier", TIERS)
def test_every_honest_program_as_every_user(tier: str, user: str) -> None:
    run_honest(tier, user)


@pytest.fixture(params=TIERS)
def jail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if problem := here(request.param, current_user()):
        pytest.skip(problem)
    monkeypatch.setenv("COHORT_JAIL", request.param)
    return str(request.param)


RAISING = """
class Custom(ValueError):
    pass
def solve(kind):
    if kind == "custom":
        raise Custom("odd \\ud800 text")
    if kind == "key":
        return {}["missing"]
    if kind == "exit":
        raise SystemExit(3)
    if kind == "chain":
        try:
            1 / 0
        except ZeroDivisionError as problem:
            raise RuntimeError("outer") from problem
    return object()
"""


def test_exceptions_are_part_of_the_answer(jail: str) -> None:
    kinds = ("custom", "key", "exit", "chain", "object")
    result = run_calls(RAISING, [Call("solve", (kind,)) for kind in kinds] + [Call("missing")], Limits())
    assert result.end == "finished"
    said = [(reply.raised, reply.detail) for reply in result.replies if reply is not None]
    assert said[0] == ("Custom", "odd \ud800 text")
    assert said[1] == ("KeyError", "'missing'")
    assert said[2] == ("SystemExit", "3")
    assert said[3] == ("RuntimeError", "outer")
    assert said[4][0] == "NotPlain"
    assert said[5][0] == "NameError"
    assert len(said) == 6


def test_output_that_is_no_text(jail: str) -> None:
    """Bytes that are no UTF-8 are kept as far as they can be read; a surrogate cannot be printed, which is the program's error."""
    result = run_script("import sys\nsys.stdout.buffer.write(b'a\\xffb\\n')\nsys.stdout.flush()\nprint('\\ud800')\n", "")
    assert result.stdout == "a\ufffdb\n"
    assert result.end == "exit"
    assert result.status == 1
    assert "UnicodeEncodeError" in result.stderr


def test_exit_status_and_errors_of_a_script(jail: str) -> None:
    result = run_script("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(7)\n", "")
    assert (result.stdout, result.stderr, result.end, result.status) == ("out\n", "err\n", "exit", 7)
    assert result.jail == jail


def test_the_host_knows_how_much_was_used(jail: str) -> None:
    program = "block = bytearray(b'x') * (100 * 2 ** 20)\nimport time\nwhile time.process_time() < 0.5: pass\ntime.sleep(0.3)\n"
    result = run_script(program, "", Limits(cpu_s=5))
    assert result.end == "finished"
    assert 100 < result.peak_mb < 140
    assert 0.3 < result.cpu_s < 0.8
    assert result.wall_s > 0.6
