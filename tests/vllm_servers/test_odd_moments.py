"""Servers, signals and updates at unusual moments: between a push and its check, inside the waiting loop, repeatedly."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest
from stub import GENERATE, run_stubs
from test_engine import SAMPLING, connect, make_policy, sample, train

from cohort.base.interrupts import handle_interrupts
from cohort.engine import build_engine
from cohort.engine.protocol import EngineSetup, RemoteSetup
from cohort.engine.vllm import engine as engine_module
from cohort.engine.vllm import generation
from cohort.engine.vllm import servers as servers_module
from cohort.engine.vllm.checks import PROBE_TOKENS
from cohort.errors import EngineError, Interrupted
from cohort.recipe.sections import VllmConfig


@pytest.fixture(autouse=True)
def lose_no_time(monkeypatch):
    monkeypatch.setattr(servers_module, "DYING_S", 0.1)
    monkeypatch.setattr(engine_module, "WAIT_STEP_S", 0.05)


def is_probe(body):
    return body["sampling_params"]["max_tokens"] == PROBE_TOKENS


def send_once(sent):
    if not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_in_a_callback_of_the_loop_ends_the_asking(tmp_path, monkeypatch):
    """asyncio swallows exceptions of its callbacks, so a signal there would be lost."""
    policy, end, sent = make_policy(), asyncio.StreamReaderProtocol.connection_lost, []

    def lose(protocol, problem):
        end(protocol, problem)
        send_once(sent)

    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], [], tmp_path)
        engine.sync(policy.read_weights(), 0)
        monkeypatch.setattr(asyncio.StreamReaderProtocol, "connection_lost", lose)
        with handle_interrupts(), pytest.raises(Interrupted, match="SIGTERM"):
            sample(engine)
    assert sent


def test_a_signal_in_the_watch_over_a_server_ends_the_asking(tmp_path, monkeypatch):
    policy, sent = make_policy(), []

    class Signals:
        def findall(self, text):
            send_once(sent)
            return []

    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], [], tmp_path)
        engine.sync(policy.read_weights(), 0)
        monkeypatch.setattr(generation, "WAITING", Signals())
        stub.faults[GENERATE] = lambda body: time.sleep(0.6)  # until the watch has looked
        with handle_interrupts(), pytest.raises(Interrupted, match="SIGTERM"):
            sample(engine)
    assert sent


def test_a_server_that_is_proven_while_the_policy_is_trained_is_not_refused(tmp_path):
    """A batch is sampled ahead in a separate thread: an update may come between a server's reply and the comparison."""
    policy = make_policy()
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], [], tmp_path, "group", wait_s=5, keep=True)
        engine.sync(policy.read_weights(), 0)
        expected, trained = sample(engine), []
        stub.label = "default"  # as if it were started anew

        def update(body):
            if is_probe(body) and not trained:
                trained.append(True)
                train(policy)

        stub.faults[GENERATE] = update
        assert sample(engine) == expected
        assert trained
        assert not engine.fleet.servers[0].proven
        engine.sync(policy.read_weights(), 1)
        assert engine.fleet.servers[0].proven


def test_a_prompt_that_loses_its_server_again_and_again_is_an_error(tmp_path):
    """As with a prompt that crashes every server, or an address that leads to several servers with different weights."""
    policy = make_policy()
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], [], tmp_path, wait_s=60)
        engine.sync(policy.read_weights(), 0)
        give = stub.do_inference_v1_generate

        def answer(body):
            said = give(body)
            if not is_probe(body):
                said["choices"][0]["weight_versions"][0]["version"] = "default"
            return said

        stub.do_inference_v1_generate = answer
        with pytest.raises(EngineError, match=rf"were lost .* times.*{stub.url} was restarted"):
            sample(engine)


def test_a_server_that_counts_no_tokens_is_refused(tmp_path):
    """A stall could not be detected: after some time it would count as hanging in any case."""
    policy = make_policy()
    with run_stubs(policy.model) as [stub]:
        stub.do_metrics = lambda body: "python_info 1.0\n"
        engine = connect(policy, [stub], [], tmp_path)
        with pytest.raises(EngineError, match=r"/metrics.*--disable-log-stats"):
            engine.sync(policy.read_weights(), 0)


def test_versions_within_a_completion_go_forward(tmp_path):
    policy = make_policy()
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], [], tmp_path)
        engine.sync(policy.read_weights(), 0)
        token = engine.token

        def turn_round(answer):
            choice = answer["choices"][0]
            count = len(choice["token_ids"])
            choice["weight_versions"] = [
                {"version": f"{token}.1", "start": 0, "end": 1},
                {"version": f"{token}.0", "start": 1, "end": count},
            ]
            return answer

        engine.version = 1  # being pushed
        stub.change = turn_round
        with pytest.raises(EngineError, match="version 0 sampled tokens after version 1"):
            sample(engine, replace(SAMPLING, stop_ids=()))


@pytest.mark.parametrize(
    ("servers", "words"), [(["@nowhere.txt"], "cannot be read"), (["http://a:1", "http://a:1/"], "listed twice")]
)
def test_server_errors_do_not_suggest_another_engine(servers, words):
    policy = make_policy()
    remote = RemoteSetup(policy, servers, VllmConfig(), None, print)
    with pytest.raises(EngineError, match=rf"^sampling\.servers: .*{words}") as problem:
        build_engine("vllm", EngineSetup(policy.model, str, remote=remote))
    assert '"hf"' not in str(problem.value)
