"""The local engine on CUDA: own kernels and graphs against the modules of transformers, and both against the reference engine."""

import gc
import math
import random
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from cohort.engine import local as local_engine
from cohort.engine import make_requests, regroup, sample_groups
from cohort.engine.hf import HFEngine
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.model import lora
from cohort.recipe.schema import LoraConfig
from cohort.types import NoiseKey, Prompt, Sampling

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

TRAIN = NoiseKey(seed=3, stream="train", step=1)
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 3000, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {"Llama": {}, "Qwen2": {}, "Qwen3": {}, "Mistral": {"sliding_window": 6}, "Gemma": {"num_key_value_heads": 1}}


def make_model(family="Llama", dtype=torch.float32):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model.to("cuda", dtype)


def make_prompts(count, longest=14):
    rng = random.Random(0)
    return [Prompt(at, "", {}, tuple(rng.randrange(3, 3000) for _ in range(rng.randint(1, longest)))) for at in range(count)]


def text_of(token_ids):
    return " ".join(map(str, token_ids))


def sampling(**changes):
    return Sampling(
        **{"group_size": 4, "temperature": 1.0, "max_completion_tokens": 24, "stop_ids": tuple(range(2, 130)), **changes}
    )


def flat(groups):
    return [completion for group in groups for completion in group]


def share_equal(ours, theirs):
    pairs = list(zip(flat(ours), flat(theirs), strict=True))
    for one, other in pairs:
        if one.token_ids == other.token_ids:
            assert one.end == other.end
            assert one.sampling_logprobs == pytest.approx(other.sampling_logprobs, abs=1e-4)
    return sum(one.token_ids == other.token_ids for one, other in pairs) / len(pairs)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_to_decode_gives_the_tokens_of_the_slow_engine(family, temperature):
    """float32, few slots and many completions, so that rows finish, are refilled and move; near-ties may diverge."""
    model, prompts, wanted = make_model(family), make_prompts(20), sampling(temperature=temperature)
    slow = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    assert len({len(completion.token_ids) for completion in flat(slow)}) > 5, "lengths must be ragged to prove anything"
    ways = {
        "kernels": LocalEngine(EngineSetup(model, text_of, 24)),
        "kernels, no graphs": LocalEngine(EngineSetup(model, text_of, 24, cuda_graphs=False)),
        "modules": LocalEngine(EngineSetup(model, text_of, 24, kernels="modules")),
    }
    assert (ways["kernels"].fused is None) == (family == "Gemma")
    for name, engine in ways.items():
        for _ in range(2):  # the second call goes through kept slots and graphs
            share = share_equal(sample_groups(engine, prompts, wanted, TRAIN), slow)
            print(f"{family}, temperature {temperature}, {name}: {share:.1%} identical")
            assert share >= 0.97


def test_slots_and_calls_change_nothing():
    model, prompts, wanted = make_model("Qwen2"), make_prompts(30), sampling(group_size=3)
    whole = sample_groups(LocalEngine(EngineSetup(model, text_of, 0)), prompts, wanted, TRAIN)
    for slots in (1, 7, 64):
        assert (
            share_equal(sample_groups(LocalEngine(EngineSetup(model, text_of, slots)), prompts, wanted, TRAIN), whole) >= 0.97
        )


def test_planned_limits_and_one_token_completions():
    model, prompts = make_model(), make_prompts(10)
    limits = [[1 + (7 * prompt + sample) % 20 for sample in range(4)] for prompt in range(10)]
    wanted = sampling(stop_ids=())
    requests = make_requests(prompts, wanted.group_size)
    flat = LocalEngine(EngineSetup(model, text_of, 8)).generate(
        requests, wanted, TRAIN, limits=[limit for group in limits for limit in group]
    )
    groups = regroup(flat, len(prompts), wanted.group_size)
    assert [[len(completion.token_ids) for completion in group] for group in groups] == limits


def test_graphs_see_an_update_of_the_weights():
    model, prompts, wanted = make_model(), make_prompts(8), sampling(stop_ids=())
    engine = LocalEngine(EngineSetup(model, text_of, 0))
    before = sample_groups(engine, prompts, wanted, TRAIN)
    assert sample_groups(engine, prompts, wanted, TRAIN) == before, "the same call gives the same bits"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    after = sample_groups(engine, prompts, wanted, TRAIN)
    assert after != before
    assert share_equal(after, sample_groups(LocalEngine(EngineSetup(model, text_of, 0)), prompts, wanted, TRAIN)) == 1.0
    # New storage for a parameter: the fused tensor and the graphs are made anew.
    weight = model.base_model.layers[0].self_attn.q_proj.weight
    weight.data = (-weight.data).clone()
    moved = sample_groups(engine, prompts, wanted, TRAIN)
    assert moved != after
    assert (
        share_equal(
            moved, sample_groups(LocalEngine(EngineSetup(model, text_of, 0, kernels="modules")), prompts, wanted, TRAIN)
        )
        >= 0.97
    )


@pytest.mark.parametrize("settings", [{"rank": 4}, {"rank": 16, "targets": ["q_proj", "down_proj"]}])
def test_adapters_are_sampled_by_own_kernels_and_graphs_see_their_updates(settings):
    model, prompts, wanted = make_model("Qwen2"), make_prompts(8), sampling(stop_ids=())
    lora.start_adapter(model, LoraConfig(**settings), 0)
    engine = LocalEngine(EngineSetup(model, text_of, 0, kernels="fused"))
    seen = []
    for _ in range(3):
        with torch.no_grad():
            for parameter in lora.adapter_parameters(model).values():
                parameter.add_(0.1 * torch.randn_like(parameter))
        seen.append(sample_groups(engine, prompts, wanted, TRAIN))
        modules = LocalEngine(EngineSetup(model, text_of, 0, kernels="modules"))
        assert share_equal(seen[-1], sample_groups(modules, prompts, wanted, TRAIN)) >= 0.97
    assert engine.last["graphs"] > 0
    assert seen[0] != seen[1] != seen[2]
    lora.switch_adapters(model, False)
    plain = sample_groups(engine, prompts, wanted, TRAIN)
    assert plain != seen[2]
    lora.switch_adapters(model, True)
    assert share_equal(sample_groups(engine, prompts, wanted, TRAIN), seen[2]) == 1.0


def test_bfloat16_logprobs_are_those_of_the_plain_forward():
    model, prompts = make_model("Qwen2", torch.bfloat16), make_prompts(16)
    groups = sample_groups(LocalEngine(EngineSetup(model, text_of, 0)), prompts, sampling(stop_ids=()), TRAIN)
    gaps = []
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]], device="cuda")
            with torch.no_grad():
                logprobs = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
            first = len(prompt.token_ids) - 1
            for at, (token, found) in enumerate(zip(completion.token_ids, completion.sampling_logprobs, strict=True)):
                gaps.append(abs(float(logprobs[first + at, token]) - found))
    mean = math.fsum(gaps) / len(gaps)
    print(f"bfloat16: mean |log-prob difference| {mean:.2e}, largest {max(gaps):.2e}")
    assert mean <= 5e-2  # weights ten times larger than any trained model's: rounding is too


def test_top_p_is_sampled_in_plain_torch_and_still_captured():
    model, prompts = make_model(), make_prompts(6)
    wanted = sampling(stop_ids=(), top_p=0.5)
    slow = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    assert share_equal(sample_groups(LocalEngine(EngineSetup(model, text_of, 5)), prompts, wanted, TRAIN), slow) >= 0.9


@pytest.mark.parametrize("graphs", [True, False])
def test_experts_decode_whether_or_not_their_steps_can_be_captured(graphs):
    """If routing makes the host wait, steps are launched one by one; the tokens are the same."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    model, prompts, wanted = AutoModelForCausalLM.from_config(config).eval().to("cuda"), make_prompts(12), sampling()
    slow = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    engine = LocalEngine(EngineSetup(model, text_of, 16, cuda_graphs=graphs))
    for _ in range(2):
        assert share_equal(sample_groups(engine, prompts, wanted, TRAIN), slow) >= 0.95
    print(f"experts: {engine.last['graphs']:.0f} graphs")
    assert torch.cuda.get_sync_debug_mode() == 0


def test_calls_of_many_sizes_share_their_graphs():
    """Refills of a batch have another number of completions each time."""
    model, wanted = make_model(), sampling(stop_ids=(), group_size=1)
    engine = LocalEngine(EngineSetup(model, text_of, 64))
    for count in (64, *range(1, 64, 3)):
        sample_groups(engine, make_prompts(count), wanted, TRAIN)
    assert engine.last["graphs"] <= 9  # 1, 2, 4, 8, 16, 24, 32, 48, 64


def test_a_workspace_that_is_not_kept_leaves_no_memory_behind(monkeypatch):
    monkeypatch.setattr(local_engine, "KEPT_SHARE", 0.0)
    model = make_model()
    engine = LocalEngine(EngineSetup(model, text_of, 64))
    sample_groups(engine, make_prompts(4), sampling(), TRAIN)  # libraries allocate what they keep
    gc.collect()
    held = torch.cuda.memory_allocated()
    gc.disable()
    try:
        for _ in range(3):
            sample_groups(engine, make_prompts(60), sampling(), TRAIN)
            # Less than the keys and values of the slots.
            assert torch.cuda.memory_allocated() - held < 2 * 2 * 60 * 2 * 16 * 38 * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("graphs", [False, True])
def test_completions_continued_from_their_own_prefix(graphs):
    """Half of each completion, run as a prompt: other sums than in decoding, so near-ties may diverge."""
    model, prompts, wanted = make_model(), make_prompts(16), sampling(group_size=4)
    engine, requests = LocalEngine(EngineSetup(model, text_of, 24, cuda_graphs=graphs)), make_requests(prompts, 4)
    whole, seen = engine.generate(requests, wanted, TRAIN), []
    halves = [
        replace(request, prefix=replace(one, token_ids=one.token_ids[:half], sampling_logprobs=one.sampling_logprobs[:half]))
        for request, one, half in (
            (request, one, len(one.token_ids) // 2) for request, one in zip(requests, whole, strict=True)
        )
    ]
    found = engine.generate(halves, wanted, TRAIN, lambda request, completion: seen.append(completion))
    assert sorted(map(repr, seen)) == sorted(map(repr, found))
    equal = [ours.token_ids == theirs.token_ids for ours, theirs in zip(found, whole, strict=True)]
    assert sum(equal) >= 0.95 * len(equal)
    assert engine.generate(requests, wanted, TRAIN) == whole, "the workspace serves the next call"
