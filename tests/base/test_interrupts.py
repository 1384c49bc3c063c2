"""Real signals sent to this very process: at once outside a critical section, at its end inside one."""

# ruff: noqa: PT012 (what runs before and after the signal inside the block is what is tested)

from __future__ import annotations

import os
import signal
import threading

import pytest

from cohort.base import interrupts
from cohort.base.interrupts import (
    PATIENCE_S,
    InterruptedAgain,
    allow_interrupts,
    defer_interrupts,
    handle_interrupts,
    pass_on,
    raise_when_free,
    read_pending,
)
from cohort.errors import Interrupted


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def safe_handlers():
    """Whatever goes wrong in a test, a late signal must not end the test run."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: None)  # ignored, it would stay ignored
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    assert interrupts._depth == 0


@pytest.fixture
def clock(monkeypatch):
    """What time it is for the handler: set by the test."""
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_outside_a_section_it_raises_at_once(number):
    passed = False
    with pytest.raises(Interrupted, match=signal.Signals(number).name), handle_interrupts():
        send(number)
        passed = True
    assert not passed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_inside_a_section_it_waits_for_the_end_and_keeps_its_name(number):
    done = []
    with pytest.raises(Interrupted, match=signal.Signals(number).name), handle_interrupts():
        with defer_interrupts():
            send(number)
            done.append("rest of the section")
        done.append("after the section")
    assert done == ["rest of the section"]


def test_nested_sections_wait_for_the_outermost():
    done = []
    with pytest.raises(Interrupted), handle_interrupts():
        with defer_interrupts():
            with defer_interrupts():
                send()
                done.append("inner")
            done.append("outer")
        done.append("after")
    assert done == ["inner", "outer"]


def test_interrupted_is_not_an_exception_that_user_code_can_swallow():
    with pytest.raises(Interrupted), handle_interrupts():
        try:
            send()
        except Exception:
            pytest.fail("swallowed")


def test_a_hangup_that_is_ignored_stays_ignored():
    """As under nohup, beside the signals that are asked with."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with pytest.raises(Interrupted, match="SIGTERM"), handle_interrupts():
        send(signal.SIGHUP)
        send()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_is_ignored_for_a_second_and_does_not_wait_after_it(clock, second):
    done = []
    with pytest.raises(InterruptedAgain, match=second.name), handle_interrupts(), defer_interrupts():
        send()
        for late in (0.005, 0.02, 0.99 * PATIENCE_S):
            clock[0] = 100.0 + late
            send(second)
            done.append(late)
        clock[0] = 100.0 + PATIENCE_S
        send(second)
        done.append("second")
    assert done == [0.005, 0.02, 0.99 * PATIENCE_S]


def test_after_a_second_signal_the_end_is_not_disturbed_by_the_first(clock):
    """What the first one left waiting is gone: the words about what was not saved are written in sections of their own."""
    written = []
    with handle_interrupts():
        with pytest.raises(InterruptedAgain), defer_interrupts():
            send()
            clock[0] += PATIENCE_S
            send()
        with defer_interrupts():
            send()  # within a second of the second
            written.append("summary")
        written.append("report")
    assert written == ["summary", "report"]


def test_a_second_signal_while_saving_after_the_first():
    """The save after Interrupted runs in a section of its own; only a second signal breaks it."""
    saved = []
    with handle_interrupts():
        try:
            send()
        except Interrupted:
            with defer_interrupts():
                saved.append("whole")
    assert saved == ["whole"]


def test_handlers_are_restored_however_it_ends():
    def mine(number, frame):
        pass

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, mine)
    with handle_interrupts():
        assert signal.getsignal(signal.SIGTERM) is not mine
    with pytest.raises(Interrupted), handle_interrupts():
        send()
    with pytest.raises(ValueError, match="problem"), handle_interrupts():
        raise ValueError("problem")
    assert [signal.getsignal(number) for number in numbers] == [mine] * 3


def test_a_signal_overtaken_by_an_error_does_not_come_up_later():
    """The error wins; afterwards sections outside of any run, and the next run, are quiet."""
    with pytest.raises(ValueError, match="disk full"), handle_interrupts(), defer_interrupts():
        send()
        raise ValueError("disk full")
    with defer_interrupts():
        pass
    with handle_interrupts(), defer_interrupts():
        pass


def test_each_run_starts_counting_anew():
    for _ in range(2):
        with pytest.raises(Interrupted), handle_interrupts():
            send()


def test_outside_the_main_thread_nothing_is_installed():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work():
        with handle_interrupts():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


# -- several processes of one run --------------------------------------------------------------------------------------


def test_where_others_wait_a_signal_is_noted_and_gives_up_only_what_may_be_given_up():
    done = []
    with handle_interrupts(joint=True):
        send()
        done.append("between")
        with pytest.raises(Interrupted, match="SIGTERM"), allow_interrupts():
            done.append("not begun")
        with defer_interrupts(), allow_interrupts():
            done.append("deferred")
        assert read_pending() == "SIGTERM"
        with pytest.raises(Interrupted, match="SIGTERM on rank 1"):
            raise_when_free("SIGTERM on rank 1")  # all know
        send()  # the launcher's, after the terminal's: everybody is ending already
        pass_on("SIGTERM on rank 1")
        assert read_pending() == ""
        with allow_interrupts():
            done.append("saving")
    assert done == ["between", "deferred", "saving"]


def test_where_no_work_is_done_apart_none_is_given_up():
    with handle_interrupts(joint=True, apart=False), allow_interrupts():
        send()
        assert read_pending() == "SIGTERM"


def test_a_signal_of_another_process_gives_up_work_that_waits():
    never = threading.Event()
    with handle_interrupts(joint=True):
        teller = threading.Timer(0.05, pass_on, ["SIGINT on rank 3"])
        teller.start()
        with pytest.raises(Interrupted, match="SIGINT on rank 3"), allow_interrupts():
            never.wait(60)
        teller.join()
        assert read_pending() == "SIGINT on rank 3"
    pass_on("SIGINT on rank 3")  # no run is there to end: the process is not killed
