"""The table of faults in docs/scale.md, one test per row, against real servers: nothing is lost, and no server stays paused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import fault_tools as tools
import pytest
import serving

from cohort.engine.vllm import engine, weights
from cohort.errors import EngineError
from cohort.types import Completion

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def kept_pair(tmp_path_factory) -> Iterator[tools.Pair]:
    folder = tmp_path_factory.mktemp("servers")
    words = [*tools.WORDS, f"runs_folder={folder}"]
    with serving.serve_many(folder, words, 2) as servers:
        yield tools.Pair(folder, words, servers)  # what it starts again takes the place of what ended in this very list


@pytest.fixture
def pair(kept_pair) -> tools.Pair:
    kept_pair.revive()
    return kept_pair


def same_tokens(one: list[Completion], other: list[Completion]) -> bool:
    return [completion.token_ids for completion in one] == [completion.token_ids for completion in other]


def find_closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_absent_at_the_start():
    """No server listens: the error names the address, the waiting time and the fix."""
    address = f"http://127.0.0.1:{find_closed_port()}"
    trainer = tools.Trainer([address], wait_s=1.0)
    with pytest.raises(EngineError, match=rf"{address}.*nothing is listening there.*vllm\.wait_s.*cohort serve"):
        trainer.sync()


def test_one_of_two_absent_at_the_start(pair):
    """The reachable server does the work of both, and the other one is named."""
    absent = f"http://127.0.0.1:{find_closed_port()}"
    trainer = tools.Trainer([pair.urls[0], absent])
    trainer.sync()
    completions = trainer.generate(tokens=20)
    assert trainer.check_policy(completions) < 1e-4
    assert [line for line in trainer.said if absent in line]
    assert trainer.engine.last["servers/ready"] == 1


def test_hangs_while_it_samples(pair):
    """Stopped workers: /health still returns 200, but the label of the weights does not come. The other server takes over."""
    trainer = tools.Trainer(pair.urls)
    trainer.sync()
    expected = trainer.generate()
    _, second = pair.servers
    with tools.once_busy(second, lambda: second.signal_workers(signal.SIGSTOP)) as happened:
        completions = trainer.generate()
        assert happened
    with urllib.request.urlopen(f"{second.url}/health", timeout=10) as answer:
        assert answer.status == 200
    assert same_tokens(completions, expected)
    assert trainer.engine.last["servers/moved"] > 0
    assert [line for line in trainer.said if "lost a server" in line and second.url in line]
    # It is pushed past while it hangs, and given the newest weights once it goes on: never used with the old ones.
    trainer.step()
    assert trainer.check_policy(trainer.generate(tokens=20)) < 1e-4
    second.signal_workers(signal.SIGCONT)
    second.wait_ready()
    trainer.step()
    completions = trainer.generate(tokens=20)
    assert trainer.engine.last["servers/ready"] == 2
    assert trainer.check_policy(completions) < 1e-4
    assert {span for completion in completions for span in completion.versions} == {(2, 20)}
    assert tools.read_label(second) == trainer.engine.label
    assert not any(map(tools.is_paused, pair.servers))


def test_dies_while_it_samples_and_comes_back(pair):
    """One of two: its groups continue on the other with the same seeds. It comes back with its original weights and gets the run's."""
    trainer = tools.Trainer(pair.urls)
    trainer.step()
    expected = trainer.generate()
    _, second = pair.servers
    with tools.once_busy(second, lambda: second.signal_workers(signal.SIGKILL)) as happened:
        completions = trainer.generate()
        assert happened
    assert same_tokens(completions, expected)
    assert trainer.engine.last["servers/ready"] == 1
    trainer.step()
    assert not tools.is_paused(pair.servers[0])
    pair.revive()
    back = pair.servers[1]
    assert tools.read_label(back) == "default"  # it has forgotten everything
    trainer.step()
    completions = trainer.generate(tokens=20)
    assert trainer.engine.last["servers/ready"] == 2
    assert trainer.check_policy(completions) < 1e-4
    assert tools.read_label(back) == trainer.engine.label
    assert any("responds again" in line for line in trainer.said)


def test_dies_in_a_push(pair, monkeypatch):
    """The other server has half of the weights: it gets all of them before it continues, and does not stay paused."""
    trainer = tools.Trainer(pair.urls)
    trainer.sync()
    send, second = weights.transfer.send_bucket, pair.servers[1]

    def kill_and_send(*arguments: object) -> None:
        monkeypatch.setattr(weights.transfer, "send_bucket", send)
        second.signal_workers(signal.SIGKILL)
        send(*arguments)

    monkeypatch.setattr(weights.transfer, "send_bucket", kill_and_send)
    trainer.step()
    first = pair.servers[0]
    assert not tools.is_paused(first)
    assert tools.read_label(first) == trainer.engine.label
    assert trainer.check_policy(trainer.generate(tokens=20)) < 1e-4
    assert trainer.engine.last["servers/ready"] == 1
    trainer.step()
    assert trainer.check_policy(trainer.generate(tokens=20)) < 1e-4


def test_hangs_in_a_push(pair, monkeypatch):
    trainer = tools.Trainer(pair.urls)
    trainer.sync()
    send, second = weights.transfer.send_bucket, pair.servers[1]

    def stop_and_send(*arguments: object) -> None:
        monkeypatch.setattr(weights.transfer, "send_bucket", send)
        second.signal_workers(signal.SIGSTOP)
        send(*arguments)

    monkeypatch.setattr(weights.transfer, "send_bucket", stop_and_send)
    trainer.step()
    first = pair.servers[0]
    assert not tools.is_paused(first)
    assert trainer.check_policy(trainer.generate(tokens=20)) < 1e-4
    assert trainer.engine.last["servers/ready"] == 1
    second.signal_workers(signal.SIGCONT)
    second.wait_ready()
    trainer.step()
    assert trainer.check_policy(trainer.generate(tokens=20)) < 1e-4
    assert trainer.engine.last["servers/ready"] == 2
    assert not any(map(tools.is_paused, pair.servers))


def test_none_is_left_and_one_comes_back(pair):
    """The run waits and continues with the first server that comes back, in the middle of a step, with the weights of that step."""
    trainer = tools.Trainer(pair.urls, wait_s=serving.READY_S)
    trainer.step()
    expected = trainer.generate()

    def end_both() -> None:
        pair.servers[1].end(signal.SIGKILL)
        pair.servers[0].end(signal.SIGKILL)
        pair.start_again(0)

    with tools.once_busy(pair.servers[1], end_both) as happened:
        completions = trainer.generate()
        assert happened
    assert same_tokens(completions, expected)
    assert any("waiting up to" in line for line in trainer.said)
    assert {span for completion in completions for span in completion.versions} == {(1, 600)}


DIES_IN_A_PUSH = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
import fault_tools
from cohort.engine.vllm import weights
trainer = fault_tools.Trainer({urls!r})
trainer.sync()
def die(*arguments): os.kill(os.getpid(), signal.SIGKILL)
weights.transfer.send_bucket = die
trainer.step()
"""


def test_the_trainer_dies_in_a_push_and_starts_again(pair):
    """It leaves servers paused in the middle of an update. The next trainer begins with a push, which repairs them."""
    code = DIES_IN_A_PUSH.format(tests=str(Path(__file__).parent), urls=pair.urls)
    ended = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    assert any(map(tools.is_paused, pair.servers))
    trainer = tools.Trainer(pair.urls, wait_s=120)
    trainer.sync()
    completions = trainer.generate(tokens=20)
    assert trainer.check_policy(completions) < 1e-4
    assert trainer.engine.last["servers/ready"] == 2
    assert not any(map(tools.is_paused, pair.servers))


def test_another_trainer_pushes_to_the_same_server(pair, monkeypatch):
    """Detected by the label of the weights in each completion, and by polling before that."""
    one = tools.Trainer(pair.urls[:1])
    monkeypatch.setattr(engine, "PROCESS", "f00f00f00f00")  # two engines of one process take turns, and are one trainer
    other = tools.Trainer(pair.urls[:1])
    one.sync()
    one.generate(tokens=20)
    other.step()
    with pytest.raises(EngineError, match="Another trainer uses this server"):
        one.generate(tokens=20)
    with pytest.raises(EngineError, match="Another trainer uses this server"):
        one.sync()
    assert other.check_policy(other.generate(tokens=20)) < 1e-4  # whoever pushed last is not disturbed


def test_a_slow_network_with_losses(pair):
    """Slow replies and broken connections: repeated requests give the same completions, and no server counts as lost."""
    expected = tools.Trainer(pair.urls[:1])
    expected.sync()
    wanted = expected.generate(tokens=600)
    network = tools.Network(int(pair.urls[0].rpartition(":")[2]), delay_s=0.02, bytes_per_s=100_000)
    try:
        trainer = tools.Trainer([network.url])
        trainer.sync()
        with tools.once_busy(pair.servers[0], network.cut) as happened:
            completions = trainer.generate(tokens=600)
            assert happened
    finally:
        network.close()
    assert same_tokens(completions, wanted)
    assert trainer.engine.last["servers/lost"] == 0
