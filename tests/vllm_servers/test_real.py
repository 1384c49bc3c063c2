"""The vLLM engine against real vLLM servers: exactness, and its cost.

Each fixture starts servers of its own, half a minute each on two cores.
"""

from __future__ import annotations

import json
import threading
import time

import pytest
import serving
import torch
from test_engine import NOISE, make_requests, train

from cohort.engine.protocol import EngineSetup, RemoteSetup
from cohort.engine.vllm.engine import make_vllm
from cohort.errors import EngineError
from cohort.model import lora
from cohort.model.policy import Policy
from cohort.model.scratch import build_tokenizer
from cohort.recipe.schema import LoraConfig
from cohort.recipe.sections import VllmConfig
from cohort.types import Prompt, Sampling

pytestmark = pytest.mark.vllm

VOCABULARY = 256
SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCABULARY, "max_position_embeddings": 1024, "initializer_range": 0.1, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PROMPTS = [Prompt(place, "", {}, tuple(range(3 + place, 20 + place))) for place in range(6)]
LIMIT = 1e-4


def make_policy(temperature=0.7, rank=0, **changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))
    adapter = lora.start_adapter(model, LoraConfig(rank=rank), 0, "base", "") if rank else None
    return Policy(model, build_tokenizer("ab", model.config.vocab_size), temperature, adapter)


def connect(policy, urls, folder, push="group", **changes):
    settings = VllmConfig(push=push, limit_s=120, wait_s=0)  # where others are at work too
    remote = RemoteSetup(policy, urls, settings, folder / "weights", print, **changes)
    engine, _ = make_vllm(EngineSetup(policy.model, lambda ids: " ".join(map(str, ids)), remote=remote))
    return engine


def list_words(folder, *words):
    lengths = ["prompts.max_prompt_tokens=64", "sampling.max_completion_tokens=800"]
    return ["column_addition", f"model.source={folder}", f"runs_folder={folder.parent}", *lengths, *words]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Two servers of one model, one of them with two workers that share every matrix."""
    folder = tmp_path_factory.mktemp("served")
    make_policy().save(folder / "model")
    servers = []
    try:
        for more in ((), ("--tensor-parallel-size", "2")):
            servers.append(serving.start_server(folder, list_words(folder / "model"), more=more))
        yield [server.wait_ready() for server in servers]
    finally:
        for server in servers:
            server.end()


@torch.no_grad()
def compare(policy, completions, sampling, prompts=PROMPTS):
    """(largest difference of log-probs, tokens that are not the argmax, tokens)."""
    worst, other, count = 0.0, 0, 0
    for request, one in zip(make_requests(prompts, sampling.group_size), completions, strict=True):
        size = len(one.token_ids)
        logits_TV = policy.model(torch.tensor([[*request.prompt.token_ids, *one.token_ids]])).logits[0, -size - 1 : -1]
        ids_T = torch.tensor(one.token_ids)
        own_T = (logits_TV / (sampling.temperature or 1.0)).log_softmax(-1)[torch.arange(size), ids_T]
        worst = max(worst, float((own_T - torch.tensor(one.sampling_logprobs)).abs().max()))
        other, count = other + int((logits_TV.argmax(-1) != ids_T).sum()), count + size
    return worst, other, count


@pytest.mark.parametrize("which", [[0], [1], [0, 1]], ids=["one", "tensor parallel 2", "both"])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_after_every_push_greedy_is_the_argmax_and_log_probs_agree(served, tmp_path, which, temperature):
    policy = make_policy(temperature)
    engine = connect(policy, [served[place].url for place in which], tmp_path)
    for version in range(3):
        began = time.monotonic()
        engine.sync(policy.read_weights(), version)
        seconds = time.monotonic() - began
        greedy, sampled = Sampling(1, 0.0, 48, (2,)), Sampling(4, temperature, 48, (2,))
        for sampling in (greedy, sampled):
            completions = engine.generate(make_requests(PROMPTS, sampling.group_size), sampling, NOISE)
            worst, other, count = compare(policy, completions, sampling)
            print(
                f"version {version}, sync {seconds:.2f} s, T {sampling.temperature}: {count} tokens, log-probs {worst:.1e} off"
            )
            assert worst <= LIMIT
            assert all(one.versions == ((version, len(one.token_ids)),) for one in completions)
            if sampling.greedy:
                assert other == 0
        assert engine.generate(make_requests(PROMPTS, 4), sampled, NOISE) == completions
        train(policy)
    engine.close()


def test_more_prompts_than_one_batch_of_tokens_holds(served, tmp_path):
    """8,000 tokens of prompts at once: a prompt cut in two parts, of a request with a seed, crashes a server on a CPU."""
    prompts = [Prompt(place, "", {}, tuple(3 + (7 * place + n) % 250 for n in range(200))) for place in range(40)]
    policy, sampling = make_policy(), Sampling(1, 0.7, 8, (2,))
    engine = connect(policy, [served[0].url], tmp_path)
    engine.sync(policy.read_weights(), 0)
    worst, _, count = compare(policy, engine.generate(make_requests(prompts, 1), sampling, NOISE), sampling, prompts)
    assert count > 40
    assert worst <= LIMIT
    engine.close()


def test_what_is_under_way_goes_on_with_new_weights_and_says_from_where(served, tmp_path):
    policy, sampling = make_policy(), Sampling(2, 0.7, 600, ())
    engine, found = connect(policy, [served[0].url], tmp_path), []
    engine.sync(policy.read_weights(), 0)
    before = {name: value.clone() for name, value in policy.model.named_parameters()}
    requests = make_requests(PROMPTS, 2)
    thread = threading.Thread(target=lambda: found.extend(engine.generate(requests, sampling, NOISE)))
    thread.start()
    while not float(read_metric(served[0], "vllm:num_requests_running")):
        time.sleep(0.05)
    train(policy)
    engine.sync(policy.read_weights(), 1)
    thread.join()
    swapped = [one for one in found if len(one.versions) == 2]
    assert swapped
    assert {tuple(version for version, _ in one.versions) for one in swapped} == {(0, 1)}
    after = {name: value.clone() for name, value in policy.model.named_parameters()}
    for request, one in zip(requests, found, strict=True):
        assert sum(count for _, count in one.versions) == 600
        place = 0
        for version, count in one.versions:
            worst = score_part(policy, (before, after)[version], request, one, place, place + count)
            assert worst <= LIMIT, (version, place, count)
            place += count
    engine.close()


@torch.no_grad()
def score_part(policy, weights, request, one, first, last):
    for name, value in policy.model.named_parameters():
        value.copy_(weights[name])
    size = len(one.token_ids)
    logits_TV = policy.model(torch.tensor([[*request.prompt.token_ids, *one.token_ids]])).logits[0, -size - 1 : -1] / 0.7
    own_T = logits_TV.log_softmax(-1)[torch.arange(size), torch.tensor(one.token_ids)]
    return float((own_T - torch.tensor(one.sampling_logprobs))[first:last].abs().max())


def read_metric(server, name):
    import urllib.request

    text = urllib.request.urlopen(f"{server.url}/metrics", timeout=10).read().decode()
    return next(line.split()[-1] for line in text.splitlines() if line.startswith(name + "{"))


def test_another_model_is_a_sentence_and_the_server_lives(served, tmp_path):
    policy = make_policy(hidden_size=64, intermediate_size=128)
    with pytest.raises(EngineError, match=r"is not this server.s.*shape"):
        connect(policy, [served[0].url], tmp_path).sync(policy.read_weights(), 0)
    policy = make_policy(num_hidden_layers=4)
    with pytest.raises(EngineError, match=r"it also has model\.layers\.3"):
        connect(policy, [served[0].url], tmp_path).sync(policy.read_weights(), 0)
    assert served[0].ask("/is_paused") == {"is_paused": False}
    policy = make_policy()
    engine = connect(policy, [served[0].url], tmp_path)
    engine.sync(policy.read_weights(), 0)
    assert (
        compare(
            policy, engine.generate(make_requests(PROMPTS, 1), Sampling(1, 0.0, 24, (2,)), NOISE), Sampling(1, 0.0, 24, (2,))
        )[1]
        == 0
    )


def test_a_push_by_files_is_the_same_push(served, tmp_path):
    policy, sampling = make_policy(), Sampling(4, 0.7, 48, (2,))
    engine = connect(policy, [served[0].url], tmp_path, "files")
    for version in range(2):
        engine.sync(policy.read_weights(), version)
        completions = engine.generate(make_requests(PROMPTS, 4), sampling, NOISE)
        assert compare(policy, completions, sampling)[0] <= LIMIT
        train(policy)
    print(f"push by files {engine.push_seconds:.2f} s")
    engine.close()
    assert not any((tmp_path / "weights").glob("*"))


def test_an_adapter_that_is_loaded_hot_is_the_merged_push(tmp_path):
    base = make_policy(rank=4)
    lora.make_plain_model(base.model, merge=False).save_pretrained(tmp_path / "model")
    base.tokenizer.save_pretrained(tmp_path / "model")
    words = list_words(tmp_path / "model", "model.lora.rank=4", "vllm.push=adapter")
    more = ["--weight-transfer-config", json.dumps({"backend": "cohort"})]
    greedy, sampled = Sampling(1, 0.0, 48, (2,)), Sampling(4, 0.7, 48, (2,))
    with serving.serve_many(tmp_path, words, more=more) as [server]:
        policy = make_policy(rank=4)
        hot = connect(policy, [server.url], tmp_path, "adapter")
        found = {}
        for version in range(2):
            hot.sync(policy.read_weights(), version)
            found[version] = [hot.generate(make_requests(PROMPTS, one.group_size), one, NOISE) for one in (greedy, sampled)]
            for completions, sampling in zip(found[version], (greedy, sampled), strict=True):
                worst, other, _ = compare(policy, completions, sampling)
                assert worst <= LIMIT
                assert not sampling.greedy or other == 0
            print(f"adapter pushed in {hot.push_seconds:.2f} s, log-probs {worst:.1e} off")
            with torch.no_grad():
                for value in policy.list_own_parameters().values():
                    value += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(version))
        with torch.no_grad():  # the weights of version 1 again
            for value in policy.list_own_parameters().values():
                value -= 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
        merged = connect(policy, [server.url], tmp_path)
        merged.sync(policy.read_weights(), 1)
        for completions, hot_ones in zip(
            [merged.generate(make_requests(PROMPTS, one.group_size), one, NOISE) for one in (greedy, sampled)],
            found[1],
            strict=True,
        ):
            assert [one.token_ids for one in completions] == [one.token_ids for one in hot_ones]
            for one, other in zip(completions, hot_ones, strict=True):
                assert max(abs(a - b) for a, b in zip(one.sampling_logprobs, other.sampling_logprobs, strict=True)) <= LIMIT


def test_raw_log_probs_are_refused_by_name(tmp_path):
    policy = make_policy(1.0)
    policy.save(tmp_path / "model")
    more = ["--logprobs-mode", "raw_logprobs"]
    with serving.serve_many(tmp_path, list_words(tmp_path / "model"), more=more) as [server]:
        with pytest.raises(EngineError, match=r"before the temperature.*--logprobs-mode processed_logprobs"):
            connect(policy, [server.url], tmp_path).sync(policy.read_weights(), 0)
        assert server.ask("/is_paused") == {"is_paused": False}


@pytest.mark.prove
def test_a_push_of_47_million_weights(tmp_path):
    """Seconds are printed and depend on the machine: half a second on an idle one."""
    wide = {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    policy = make_policy(**wide, vocab_size=8192, initializer_range=0.02, head_dim=64)
    policy.save(tmp_path / "model")
    with serving.serve_many(tmp_path, list_words(tmp_path / "model")) as [server]:
        for push in ("group", "files"):
            engine = connect(policy, [server.url], tmp_path, push)
            taken = []
            for version in range(6):
                began = time.monotonic()
                engine.sync(policy.read_weights(), version)
                taken.append(time.monotonic() - began)
                with torch.no_grad():
                    for value in policy.model.parameters():
                        value *= 1.001
            count = sum(value.numel() for value in policy.model.parameters())
            print(
                f"push of {count / 1e6:.1f} M float32 by {push}: {', '.join(f'{one:.2f}' for one in taken[1:])} s after the first ({taken[0]:.2f} s)"
            )
            engine.close()
        engine = connect(policy, [server.url], tmp_path)
        engine.sync(policy.read_weights(), 9)
        sampling = Sampling(1, 0.0, 32, (2,))
        worst, other, _ = compare(policy, engine.generate(make_requests(PROMPTS, 1), sampling, NOISE), sampling)
        assert worst <= LIMIT
        assert other == 0
