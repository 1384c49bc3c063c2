"""Workers and threads: time limits, crashes, and what they take along."""

from __future__ import annotations

import queue
import threading

import pytest
from test_episodes import begin, turn

from cohort.environments import hosts
from cohort.environments.hosts import Message, ThreadHost, WorkerHost
from cohort.errors import EnvironmentFailed


def ask(host, body, is_async=False, limit_s=60.0):
    replies = queue.SimpleQueue()
    host.submit(Message(body, is_async, limit_s, replies.put))
    return replies


@pytest.fixture
def worker():
    host = WorkerHost()
    yield host
    host.close()
    assert host.worker is None


def test_a_call_that_hangs_or_dies_takes_only_the_episodes_of_its_worker(worker):
    assert ask(worker, turn(1, "a", begin=begin("Echo", seed=3))).get()["results"]
    hung = ask(worker, turn(2, "x", begin=begin("Hostile", how="hang")), limit_s=0.5)
    later = ask(worker, turn(3, "a", begin=begin("Echo", seed=3)))  # begins in the next worker
    assert hung.get()["fault"] == "timeout"
    assert later.get()["results"]
    lost = ask(worker, turn(1, "a")).get()
    assert (lost["fault"], "another episode of its worker" in lost["detail"]) == ("crash", True)
    died = ask(worker, turn(4, "x", begin=begin("Hostile", how="die"))).get()
    assert (died["fault"], "exit status 7" in died["detail"]) == ("crash", True)


class Waits:
    """Cannot be imported by name where it is defined in a function; hangs until it is let go."""

    release = threading.Event()

    def reset(self, how: str) -> None:
        self.how = how

    def step(self, text: str) -> str:
        if self.how == "hang":
            Waits.release.wait(60)
        return "ok"


def test_a_thread_that_hangs_is_abandoned_with_its_episode_and_eight_end_the_run():
    host = ThreadHost(lambda spec: Waits)
    assert ask(host, turn(1, "a", begin=begin("Waits", how="works"))).get()["results"] == [["ok", ""]]
    for number in range(hosts.MOST_ABANDONED):
        host.check()
        hung = ask(host, turn(10 + number, "a", begin=begin("Waits", how="hang")), limit_s=0.1)
        assert hung.get()["fault"] == "timeout"
        if number < hosts.MOST_ABANDONED - 1:
            assert ask(host, turn(1, "a")).get()["results"] == [["ok", ""]], "another episode goes on in a new thread"
    with pytest.raises(EnvironmentFailed, match="8 calls of environments did not return"):
        host.check()
    Waits.release.set()
    host.close()
