"""The vLLM engine against stub servers that respond, hang, die, give wrong replies and come back."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stub import GENERATE, Refusal, StubServer, run_stubs

from cohort.engine import make_requests
from cohort.engine.protocol import EngineSetup, RemoteSetup
from cohort.engine.vllm import engine as engine_module
from cohort.engine.vllm import generation, transfer
from cohort.engine.vllm import servers as servers_module
from cohort.engine.vllm.engine import make_vllm
from cohort.engine.vllm.generation import write_request
from cohort.engine.vllm.servers import read_error
from cohort.errors import EngineError
from cohort.model.policy import Policy
from cohort.model.scratch import build_tokenizer
from cohort.recipe.sections import VllmConfig
from cohort.types import Completion, NoiseKey, Prompt, Request, Sampling

ROOT = Path(__file__).parents[2]
VOCABULARY = 48
NOISE = NoiseKey(seed=3, stream="train", step=2)
SAMPLING = Sampling(group_size=3, temperature=0.7, max_completion_tokens=6, stop_ids=(2,))
PROMPTS = [Prompt(2 * place, "", {}, tuple(range(3 + place, 8 + place))) for place in range(4)]


def make_policy(seed=0, temperature=0.7, **changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": VOCABULARY,
    }
    config = LlamaConfig(**sizes, max_position_embeddings=64, initializer_range=0.4, tie_word_embeddings=False, **changes)
    return Policy(LlamaForCausalLM(config), build_tokenizer("ab", VOCABULARY), temperature)


@pytest.fixture(autouse=True)
def die_quickly(monkeypatch):
    monkeypatch.setattr(servers_module, "DYING_S", 0.4)


@pytest.fixture
def policy():
    return make_policy()


@pytest.fixture
def said():
    return []


def connect(policy, stubs, said, tmp_path, push="files", wait_s=0.0, limit_s=1.0, slots=0, keep=False):
    settings = VllmConfig(push=push, limit_s=limit_s, wait_s=wait_s)
    remote = RemoteSetup(policy, [stub.url for stub in stubs], settings, tmp_path / "weights", said.append, keep)
    engine, _ = make_vllm(EngineSetup(policy.model, lambda ids: " ".join(map(str, ids)), slots, remote=remote))
    return engine


def train(policy):
    with torch.no_grad():
        for value in policy.model.parameters():
            value += 0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(5))


def sample(engine, sampling=SAMPLING, noise=NOISE):
    return engine.generate(make_requests(PROMPTS, sampling.group_size), sampling, noise)


@torch.no_grad()
def measure_mismatch(policy, completions, sampling=SAMPLING):
    worst = 0.0
    for request, completion in zip(make_requests(PROMPTS, sampling.group_size), completions, strict=True):
        count = len(completion.token_ids)
        logits_TV = policy.model(torch.tensor([[*request.prompt.token_ids, *completion.token_ids]])).logits[0, -count - 1 : -1]
        logprobs_TV = (logits_TV / (sampling.temperature or 1.0)).log_softmax(-1)
        own_T = logprobs_TV[torch.arange(count), torch.tensor(completion.token_ids)]
        worst = max(worst, float((own_T - torch.tensor(completion.sampling_logprobs)).abs().max()))
    return worst


# -- completions -------------------------------------------------------------------------------------------------------


def test_completions_are_the_policys_and_record_their_versions(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        for version in (0, 4):
            engine.sync(policy.read_weights(), version)
            completions = sample(engine)
            assert measure_mismatch(policy, completions) < 1e-5
            assert all(one.versions == ((version, len(one.token_ids)),) for one in completions)
            assert all((one.end == "stop") == (one.token_ids[-1] == 2) for one in completions)
            train(policy)
        assert completions[0].text == " ".join(map(str, completions[0].token_ids))
        assert sample(engine, replace(SAMPLING, temperature=0.0, group_size=1)) == sample(
            engine, replace(SAMPLING, temperature=0.0, group_size=1), replace(NOISE, step=9)
        )


def test_a_seed_belongs_to_a_completion_and_a_group_to_a_server(policy, said, tmp_path):
    with run_stubs(policy.model, 2) as stubs:
        engine = connect(policy, stubs, said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        for stub in stubs:
            stub.calls.clear()
        first = sample(engine)
        asked = [body for stub in stubs for body in stub.list_asked()]
        seeds = [body["sampling_params"]["seed"] for body in asked]
        assert len(set(seeds)) == len(PROMPTS) * SAMPLING.group_size
        for number, stub in enumerate(stubs):
            theirs = {tuple(body["token_ids"]) for body in stub.list_asked()}
            assert theirs == {prompt.token_ids for prompt in PROMPTS[number::2]}
        assert sample(engine) == first
        assert sample(engine, noise=replace(NOISE, step=3)) != first


def test_every_parameter_with_a_default_of_the_model_is_set(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        sample(engine, replace(SAMPLING, top_p=0.9, top_k=5))
        told = stub.list_asked()[-1]["sampling_params"]
    expected = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 6}
    assert told.items() >= expected.items()
    assert told.items() >= {"stop_token_ids": [2], "ignore_eos": True, "logprobs": 0, "min_tokens": 0}.items()


def test_a_prefix_is_continued_with_its_own_noise(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        engine.sync(policy.read_weights(), 7)
        begun = Completion((5, 6), (-1.0, -2.0), "length", "", None, ((6, 2),))
        done = Completion((5, 2), (-1.0, -2.0), "length", "5 2")
        requests = [Request(PROMPTS[0], 0, 0, begun), Request(PROMPTS[0], 0, 1, done), Request(PROMPTS[0], 0, 0)]
        told = []
        went_on, whole, fresh = engine.generate(requests, SAMPLING, NOISE, lambda request, one: told.append(request))
        bodies = stub.list_asked()[-2:]
    assert went_on.token_ids[:2] == (5, 6)
    assert len(went_on.token_ids) <= 6
    assert went_on.versions == ((6, 2), (7, len(went_on.token_ids) - 2))
    assert whole == replace(done, end="stop")
    assert fresh.versions == ((7, len(fresh.token_ids)),)
    assert {len(body["token_ids"]) for body in bodies} == {5, 7}
    assert len({body["sampling_params"]["seed"] for body in bodies}) == 2
    assert sorted(map(requests.index, told)) == [0, 1, 2]


def test_no_more_requests_than_slots_run_at_once(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path, slots=2)
        engine.sync(policy.read_weights(), 0)
        under_way, most = [0], [0]
        make = stub.do_inference_v1_generate

        def count(body):
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            time.sleep(0.02)
            under_way[0] -= 1
            return make(body)

        stub.do_inference_v1_generate = count
        sample(engine)
    assert most[0] == 2


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("push", ["files", "group"])
def test_new_weights_are_pushed_between_pause_and_resume(policy, said, tmp_path, push):
    with run_stubs(policy.model, 2) as stubs:
        engine = connect(policy, stubs, said, tmp_path, push)
        engine.sync(policy.read_weights(), 0)
        pushes = [stub.list_paths().count("/resume") for stub in stubs]
        engine.sync(policy.read_weights(), 0)
        assert [stub.list_paths().count("/resume") for stub in stubs] == pushes == [1, 1]
        train(policy)
        engine.sync(policy.read_weights(), 0)  # a cold start moves weights and counts no version
        for stub in stubs:
            paths = stub.list_paths()
            assert paths.count("/pause?mode=keep") == paths.count("/resume") == 2
            assert not stub.paused
            for name, value in policy.model.named_parameters():
                assert torch.equal(dict(stub.model.named_parameters())[name], value)
        assert measure_mismatch(policy, sample(engine)) < 1e-5


@pytest.mark.parametrize("path", ["/update_weights", "/finish_weight_update", "/start_weight_update"])
def test_a_server_that_fails_in_a_push_leaves_the_other_complete_and_resumed(policy, said, tmp_path, path):
    with run_stubs(policy.model, 2) as [first, second]:
        engine = connect(policy, [first, second], said, tmp_path, "group")
        engine.sync(policy.read_weights(), 0)
        train(policy)

        def die(body):
            threading.Thread(target=second.die).start()
            time.sleep(0.3)
            raise Refusal(500, "dead")

        second.faults[path] = die
        engine.sync(policy.read_weights(), 1)
        assert [server.ready for server in engine.fleet.servers] == [True, False]
        assert not first.paused
        completions = sample(engine)
        assert measure_mismatch(policy, completions) < 1e-5
        assert {one.versions[0][0] for one in completions} == {1}
        assert any("lost a server" in sentence and second.url in sentence for sentence in said)


def test_an_impossible_push_is_an_error_and_resumes_the_server(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        stub.faults["/collective_rpc"] = lambda body: (_ for _ in ()).throw(Refusal(500, "no such file"))
        with pytest.raises(EngineError, match=r"no server is left.*no such file"):
            engine.sync(policy.read_weights(), 0)
        assert not stub.paused


def test_a_session_that_a_dead_trainer_left_open_is_ended(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        stub.open = True
        engine = connect(policy, [stub], said, tmp_path, "group")
        engine.sync(policy.read_weights(), 0)
        assert measure_mismatch(policy, sample(engine)) < 1e-5


def test_another_model_is_refused_before_anything_is_touched(policy, said, tmp_path):
    other = make_policy(attention_bias=True)
    with run_stubs(other.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path, "group")
        with pytest.raises(EngineError, match=r"it lacks model\.layers\.0\.self_attn\.q_proj\.bias"):
            engine.sync(policy.read_weights(), 0)
        assert not stub.paused
        assert "/start_weight_update" not in stub.list_paths()


def test_two_policies_of_one_run_take_turns_on_the_same_servers(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        ours = connect(policy, [stub], said, tmp_path)
        other = make_policy(seed=1)
        theirs = connect(other, [stub], said, tmp_path)
        for _ in range(2):
            for engine, own in ((ours, policy), (theirs, other)):
                engine.sync(own.read_weights(), 3)  # the same version of other weights
                assert measure_mismatch(own, sample(engine)) < 1e-5
        assert stub.list_paths().count("/resume") == 4


def test_another_trainer_is_detected_before_a_push(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        stub.label = "0123456789ab-1.4"
        with pytest.raises(EngineError, match="Another trainer uses this server"):
            engine.sync(policy.read_weights(), 1)


def test_several_threads_generate_while_another_pushes(policy, said, tmp_path):
    with run_stubs(policy.model, 2) as stubs:
        engine = connect(policy, stubs, said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        found = []

        def ask(step):
            found.extend(sample(engine, noise=replace(NOISE, step=step)))

        threads = [threading.Thread(target=ask, args=(step,)) for step in range(3)]
        for thread in threads:
            thread.start()
        train(policy)
        engine.sync(policy.read_weights(), 1)
        for thread in threads:
            thread.join()
    assert len(found) == 3 * len(PROMPTS) * SAMPLING.group_size
    assert {version for one in found for version, _ in one.versions} <= {0, 1}


# -- servers that are lost ---------------------------------------------------------------------------------------------


def test_requests_of_a_dying_server_give_the_same_completions_elsewhere(policy, said, tmp_path):
    with run_stubs(policy.model, 2) as [first, second]:
        engine = connect(policy, [first, second], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        expected = sample(engine)

        def die(body):
            second.faults.clear()
            second.die()

        second.faults[GENERATE] = die
        assert sample(engine) == expected
        assert engine.last["servers/lost"] == 1
        assert engine.last["servers/moved"] >= 1
        assert engine.last["servers/ready"] == 1
        assert sum("lost a server" in sentence for sentence in said) == 1


def test_a_server_that_hangs_is_lost_though_its_port_is_open(policy, said, tmp_path):
    with run_stubs(policy.model, 2) as [first, second]:
        engine = connect(policy, [first, second], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        expected, stuck = sample(engine), threading.Event()
        for path in (GENERATE, "/weight_info", "/pause?mode=keep", "/resume"):
            second.faults[path] = lambda body: stuck.wait(30)
        try:
            assert sample(engine) == expected
            engine.sync(policy.read_weights(), 0)
            assert [server.ready for server in engine.fleet.servers] == [True, False]
            assert any("no response within" in sentence for sentence in said)
        finally:
            stuck.set()
        second.faults.clear()
        engine.sync(policy.read_weights(), 0)  # it goes on: pushed to, then used
        assert [server.ready for server in engine.fleet.servers] == [True, True]


def test_a_server_that_samples_nothing_is_lost_though_it_reports_its_label(policy, said, tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "STALLED", 0.1)
    monkeypatch.setattr(generation, "POLL_EVERY_S", 0.1)
    with run_stubs(policy.model, 2) as [first, second]:
        engine = connect(policy, [first, second], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        second.paused = True  # by somebody else, who went away
        assert len(sample(engine)) == 12
        second.paused = False
    assert any("has sampled no token for" in sentence for sentence in said)


def test_a_server_that_hangs_is_detected_despite_unreadable_metrics(policy, said, tmp_path):
    """Values that are not numbers are ignored: they must not end the monitoring of the server."""
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        seen, hang = threading.Event(), threading.Event()

        def show(body):
            seen.set()
            return "vllm:num_requests_waiting 1.e+.e\nvllm:generation_tokens_total ....\n"

        stub.do_metrics = show
        stub.faults[GENERATE] = lambda body: hang.wait(30)
        stub.faults["/weight_info"] = lambda body: seen.is_set() and hang.wait(30)
        with pytest.raises(EngineError, match="no response within 1 s"):
            sample(engine)
        hang.set()


def test_a_server_that_comes_back_gets_the_weights_before_it_is_used(policy, said, tmp_path):
    with run_stubs(policy.model, 2) as [first, second]:
        engine = connect(policy, [first, second], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        second.die()
        train(policy)
        engine.sync(policy.read_weights(), 1)
        assert [server.ready for server in engine.fleet.servers] == [True, False]
        again = StubServer(policy.model, second.port)
        engine.sync(policy.read_weights(), 1)
        assert [server.ready for server in engine.fleet.servers] == [True, True]
        completions = sample(engine)
        assert again.list_asked()
        again.die()
    assert measure_mismatch(policy, completions) < 1e-5
    assert any("responds again" in sentence for sentence in said)


def test_a_server_that_was_restarted_is_not_trusted(policy, said, tmp_path):
    with run_stubs(policy.model, 2) as [first, second]:
        engine = connect(policy, [first, second], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        expected = sample(engine)
        second.label = "default"
        for value in second.model.parameters():
            value.data.zero_()
        assert sample(engine) == expected
        assert any("was restarted" in sentence for sentence in said)


def test_without_servers_the_run_continues_with_the_first_that_comes_back(policy, said, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "WAIT_STEP_S", 0.05)
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path, wait_s=20)
        engine.sync(policy.read_weights(), 0)
        expected, born = sample(engine), []

        def die(body):
            stub.faults.clear()
            stub.die()
            threading.Timer(0.3, lambda: born.append(StubServer(policy.model, stub.port))).start()

        stub.faults[GENERATE] = die
        assert sample(engine) == expected
        assert len(set(born[0].list_paths())) > 5  # looked into and proven anew
        born[0].die()
    assert any("waiting up to 20 s" in sentence for sentence in said)


@pytest.mark.parametrize(("push", "keep"), [("group", False), ("group", True), ("files", False)])
def test_a_server_that_comes_back_while_the_policy_trains_is_given_what_it_needs_or_nothing(
    policy, said, tmp_path, monkeypatch, push, keep
):
    """As when a batch is sampled ahead: only a copy still has its weights."""
    monkeypatch.setattr(engine_module, "WAIT_STEP_S", 0.05)
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path, push, wait_s=0.2, keep=keep)
        engine.sync(policy.read_weights(), 0)
        expected = sample(engine)
        stub.label = "default"  # as if it were started anew
        for value in stub.model.parameters():
            value.data.zero_()
        train(policy)
        if not keep and push == "group":
            with pytest.raises(EngineError, match=r"no server is left: .*has been trained since.*cohort resume"):
                sample(engine)
            return
        assert sample(engine) == expected
        assert not engine.fleet.servers[0].proven  # nobody could score its probe
        engine.sync(policy.read_weights(), 1)
        assert engine.fleet.servers[0].proven
        assert measure_mismatch(policy, sample(engine)) < 1e-5


def test_unreachable_servers_are_named(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        stub.die()
        engine = connect(policy, [stub], said, tmp_path)
        with pytest.raises(EngineError, match=rf"{stub.url}.*nothing is listening there.*vllm\.wait_s"):
            engine.sync(policy.read_weights(), 0)


# -- servers that are not what they should be --------------------------------------------------------------------------


def refuse_version(stub):
    stub.version = "0.31.4"


def refuse_length(stub):
    stub.length = 20


def say_models(answer):
    return lambda stub: setattr(stub, "do_v1_models", lambda body: answer)


def say_version(version):
    return lambda stub: setattr(stub, "version", version)


def refuse_models(stub):
    """As a server with an API key."""

    def refuse(body):
        raise Refusal(401, "Unauthorized")

    stub.faults["/v1/models"] = refuse


def fail_version(stub):
    """As a server whose workers have died."""

    def fail(body):
        raise Refusal(500, "the engine is dead")

    stub.faults["/version"] = fail


def refuse_raw(stub):
    stub.raw = True


def keep_old_weights(stub):
    stub.do_collective_rpc = lambda body: {}


def add_noise(stub):
    make = stub.do_inference_v1_generate

    def answer(body):
        said = make(body)
        for entry in said["choices"][0]["logprobs"]["content"]:
            entry["logprob"] -= 5e-3  # as of another precision
        return said

    stub.do_inference_v1_generate = answer


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (refuse_version, r"vLLM '0\.31\.4', but 0\.32 or newer"),
        (refuse_length, r"20 tokens, but this run needs 40.*--max-model-len 40"),
        (say_models({"data": {"max_model_len": 64}}), "is not that of a vLLM server"),
        (say_models({"data": ["policy"]}), "is not that of a vLLM server"),
        (say_version("0." + "9" * 5000), r"vLLM '0\.9+'"),
        (say_version(""), "vLLM '', but 0.32 or newer"),
        (refuse_models, "status 401: Unauthorized.*without --api-key"),
        (
            fail_version,
            r"no server is left: .*status 500: the engine is dead.*vllm\.wait_s.*No server was ready since this command began",
        ),
        (refuse_raw, "--logprobs-mode processed_logprobs"),
        (keep_old_weights, "does not compute the trained policy"),
        (add_noise, r"does not compute the trained policy.*up to 5\.0e-03 \(limit 1e-03\)"),
    ],
)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_an_unsuitable_server_is_refused_by_name(said, tmp_path, spoil, words, temperature):
    policy = make_policy(temperature=temperature)
    policy.longest = 40
    with run_stubs(policy.model) as [stub]:
        spoil(stub)
        with pytest.raises(EngineError, match=words) as problem:
            connect(policy, [stub], said, tmp_path).sync(policy.read_weights(), 0)
        assert stub.url in str(problem.value)
        assert not stub.paused


def test_a_server_that_fails_at_the_probe_is_lost_and_the_others_continue(policy, said, tmp_path):
    with run_stubs(policy.model, 2) as [first, second]:

        def fail(body):
            raise Refusal(503, "the engine is dead")

        first.faults[GENERATE] = fail
        engine = connect(policy, [first, second], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        assert [server.ready for server in engine.fleet.servers] == [False, True]
        assert measure_mismatch(policy, sample(engine)) < 1e-5
    assert any("status 503: the engine is dead" in sentence for sentence in said)


def test_servers_need_no_room_for_demonstrations(policy, said, tmp_path):
    """A run with a demonstration of 40 tokens, and rollouts of at most 20."""
    policy.longest = 40
    with run_stubs(policy.model) as [stub]:
        stub.length = 20
        settings = VllmConfig(push="files", limit_s=1.0, wait_s=0.0)
        for longest in (20, 21):
            remote = RemoteSetup(policy, [stub.url], settings, tmp_path / "weights", said.append, longest=longest)
            engine, _ = make_vllm(EngineSetup(policy.model, str, remote=remote))
            if longest <= stub.length:
                engine.sync(policy.read_weights(), 0)
            else:
                with pytest.raises(EngineError, match="20 tokens, but this run needs 21"):
                    engine.sync(policy.read_weights(), 0)


def spoil(**changes):
    def change(answer):
        answer["choices"][0] |= changes
        return answer

    return change


def drop_token(answer):
    answer["choices"][0]["logprobs"]["content"].pop()
    return answer


def shift_span(answer):
    answer["choices"][0]["weight_versions"][0]["end"] -= 1
    return answer


def span(version, start, end):
    return {"version": version, "start": start, "end": end}


def label_as(label):
    def change(answer):
        answer["choices"][0]["weight_versions"][0]["version"] = label
        return answer

    return change


def make_infinite(answer):
    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = math.nan
    return answer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answer: b"\xff{", "is not JSON"),
        (lambda answer: b"[" * 100_000, "is not JSON"),
        (lambda answer: b"1" * 5_000_000, "larger than"),
        (lambda answer: {"choices": []}, "not a completion"),
        (lambda answer: {"choices": [None]}, "not a completion"),
        (spoil(token_ids=[VOCABULARY]), "token ids"),
        (spoil(token_ids=[1] * 7), "7 token ids are not 1 to 6"),
        (spoil(token_ids=[]), "token ids"),
        (spoil(token_ids=[True]), "token ids"),
        (spoil(finish_reason="abort"), "aborted"),
        (drop_token, "log-probs"),
        (make_infinite, "log-probs"),
        (shift_span, "spans"),
        (spoil(weight_versions=None), "not a completion"),
        (spoil(weight_versions=[span("0", 0, None), span("0", None, 6)]), "spans"),
        (spoil(weight_versions=[span("0", 0, [3]), span("0", [3], 6)]), "spans"),
        (spoil(weight_versions=[span("0", 0, 2.5), span("0", 2.5, 6)]), "spans"),
        (spoil(logprobs={"content": [{"token_id": 1, "logprob": -(10**400)}]}), "not a completion"),
        (label_as("0123456789ab-1.4"), "Another trainer uses this server"),
    ],
)
def test_an_invalid_reply_is_an_error_that_names_the_server(policy, said, tmp_path, change, words):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        engine.sync(policy.read_weights(), 0)
        stub.change = change
        with pytest.raises(EngineError, match=words) as problem:
            sample(engine, replace(SAMPLING, group_size=1, stop_ids=()))
        assert stub.url in str(problem.value)


def test_an_unexpected_version_is_an_error(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        engine.sync(policy.read_weights(), 3)
        stub.change = label_as(f"{engine.token}.2")
        with pytest.raises(EngineError, match="version 2 sampled it; expected 3 to 3"):
            sample(engine)


def test_a_refused_request_is_not_repeated(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        engine = connect(policy, [stub], said, tmp_path)
        engine.sync(policy.read_weights(), 0)

        def refuse(body):
            raise Refusal(400, "that is too long")

        stub.faults[GENERATE] = refuse
        asked = len(stub.list_asked())
        with pytest.raises(EngineError, match="that is too long"):
            engine.generate(make_requests(PROMPTS[:1], 1), SAMPLING, NOISE)
        assert len(stub.list_asked()) == asked + 1


def test_nothing_is_sampled_before_the_first_sync(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub], pytest.raises(EngineError, match="no weights yet"):
        sample(connect(policy, [stub], said, tmp_path))


def test_mixtures_of_experts_must_be_pushed_as_files(said, tmp_path):
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    model = MixtralForCausalLM(MixtralConfig(**sizes, vocab_size=VOCABULARY, num_local_experts=2, max_position_embeddings=64))
    policy = Policy(model, build_tokenizer("ab", VOCABULARY), 1.0)
    with run_stubs(make_policy().model) as [stub], pytest.raises(EngineError, match='push = "files"'):
        connect(policy, [stub], said, tmp_path, "group")


# -- the plugin --------------------------------------------------------------------------------------------------------


def test_trainer_and_plugin_have_the_same_transfer_code():
    plugin = ROOT / "packages" / "cohort-vllm" / "cohort_vllm"
    assert (plugin / "transfer.py").read_bytes() == Path(transfer.__file__).read_bytes()
    for file in plugin.glob("*.py"):
        assert "import cohort\n" not in file.read_text()
        assert "from cohort." not in file.read_text()


def test_buckets_hold_neighbours_of_one_dtype_up_to_their_size():
    entries = [
        ("a", "float32", [4]),
        ("b", "float32", [2, 2]),
        ("c", "bfloat16", [1]),
        ("d", "bfloat16", [100]),
        ("e", "bfloat16", [1]),
    ]
    names = [[name for name, _, _ in bucket] for bucket in transfer.fill_buckets(entries, 32)]
    assert names == [["a", "b"], ["c"], ["d"], ["e"]]


def test_capabilities_of_the_engine(policy, said, tmp_path):
    with run_stubs(policy.model) as [stub]:
        able = connect(policy, [stub], said, tmp_path).capabilities
    assert (able.shares_weights, able.keyed_noise, able.swaps_in_flight) == (False, False, True)


def test_a_greedy_completion_is_asked_for_beside_sampled_ones():
    """One call, three requests: temperature 0 without cuts for the last of the group."""
    wanted = replace(SAMPLING, group_size=2, top_p=0.9, top_k=4, with_greedy=True)
    requests = make_requests(PROMPTS[:1], wanted.completions)
    asked = [write_request(request, wanted, NOISE, "")["sampling_params"] for request in requests]
    found = [(one["temperature"], one["top_p"], one["top_k"]) for one in asked]
    assert found == [(0.7, 0.9, 4), (0.7, 0.9, 4), (0.0, 1.0, 0)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            b"<!DOCTYPE html><html><head><title> 404 Not\n Found </title>",
            "a web page (404 Not Found), so another program listens there",
        ),
        (b"<html>" + b"x" * 5000, "a web page, so another program"),
        (b'{"error": {"message": "too long"}}', "too long"),
        (b"plain words", "plain words"),
    ],
)
def test_a_web_page_is_not_printed_inside_an_error(body, said):
    assert read_error(body).startswith(said)
