"""Engine against engine: the fast engine must give the same as the reference engine, or refuse with the reason."""

import gc
import math
import random
import subprocess
import sys
import weakref
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from scipy import stats
from transformers import AutoModelForCausalLM

from cohort.engine import build_engine, graphs, make_requests, sample_groups, slot_engine, stop_ids
from cohort.engine import local as local_engine_module
from cohort.engine import scheduler as decoding
from cohort.engine.cached import CachedEngine
from cohort.engine.decoders import prove_local
from cohort.engine.hf import HFEngine
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.engine.sampling import choose_tokens, cut_candidates, find_mismatch_limit
from cohort.errors import EngineError, ModelError
from cohort.model.architecture import hold_frequencies
from cohort.model.backbone import explain_not_own_attention
from cohort.model.head import split
from cohort.ops import cached_attention
from cohort.ops.products import STEADY_ROWS
from cohort.types import NoiseKey, Prompt, Sampling

VOCAB = 64
TRAIN = NoiseKey(seed=3, stream="train", step=1)
NEAR_TIE = 1e-5
ALL = pytest.mark.parametrize("kind", [LocalEngine, CachedEngine, HFEngine])

# A large init spreads the logits, so that greedy does not repeat one token and near-ties are rare; tied embeddings
# would make a random model repeat its input.
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": VOCAB, "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma": {"num_key_value_heads": 1},
    "Gemma2": {"sliding_window": 5, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    "Gemma3Text": {"sliding_window": 5, "num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
    "Mistral": {"sliding_window": 6},
}


def make_model(family="Llama", seed=0, **changes):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **FAMILIES.get(family, {}), **changes})
    # Some versions of transformers drop the soft-cap of the scores in their fused path; spelled out, all honour it.
    attention = {"attn_implementation": "eager"} if family == "Gemma2" else {}
    model = AutoModelForCausalLM.from_config(config, **attention).eval()
    # Norm weights start at 1 everywhere; a layer that swapped two of them would go unnoticed.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


def make_prompts(count, seed=0, longest=14):
    rng = random.Random(seed)
    return [
        Prompt(index, "", {}, tuple(rng.randrange(3, VOCAB) for _ in range(rng.randint(1, longest)))) for index in range(count)
    ]


def text_of(token_ids):
    return " ".join(map(str, token_ids))


def flat(groups):
    return [completion for group in groups for completion in group]


def sampling(**changes):
    return Sampling(**{"group_size": 1, "temperature": 1.0, "max_completion_tokens": 12, "stop_ids": (2, 5, 6), **changes})


def plain_logits(model, prompt, completion):
    """Float32 logits [T, V] of each completion token, from one plain forward."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt.token_ids, *completion.token_ids]]), use_cache=False).logits[0].float()
    return logits[len(prompt.token_ids) - 1 : -1]


def compare_greedy(model, prompts, wanted, slots):
    """Number of prompts whose greedy completions differ; each must have a near-tie where they diverge."""
    fast, slow = LocalEngine(EngineSetup(model, text_of, slots)), HFEngine(EngineSetup(model, text_of))
    different = 0
    for prompt, (ours,), (theirs,) in zip(
        prompts, sample_groups(fast, prompts, wanted, TRAIN), sample_groups(slow, prompts, wanted, TRAIN), strict=True
    ):
        if ours.token_ids == theirs.token_ids:
            assert (ours.end, ours.text) == (theirs.end, theirs.text)
            assert np.allclose(ours.sampling_logprobs, theirs.sampling_logprobs, atol=1e-5)
            continue
        different += 1
        parted = next(at for at, pair in enumerate(zip(ours.token_ids, theirs.token_ids, strict=False)) if pair[0] != pair[1])
        top = plain_logits(model, prompt, theirs)[parted].topk(2).values
        assert top[0] - top[1] < NEAR_TIE, f"prompt {prompt.index} parts at {parted} without a near-tie"
    return different


# ---------------------------------------------------------------------------------------------------------------------
# The fast engine is the slow engine
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.prove)])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_token_identical(family, count):
    model, prompts = make_model(family), make_prompts(count)
    assert explain_not_own_attention(model, split(model)) is None
    wanted = sampling(temperature=0.0, max_completion_tokens=8 if count == 40 else 24)
    different = compare_greedy(model, prompts, wanted, slots=16)
    print(f"{family}: {count - different} of {count} greedy completions identical, {different} parted at a near-tie")
    assert different <= count // 40
    completions = [
        group[0].token_ids for group in sample_groups(LocalEngine(EngineSetup(model, text_of, 16)), prompts, wanted, TRAIN)
    ]
    assert len(set(completions)) > count // 2, "degenerate model: the comparison would prove nothing"


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Gemma3Text"])
def test_sampled_rollouts_are_the_same_in_both_engines(family):
    model, prompts = make_model(family), make_prompts(6)
    wanted = sampling(group_size=3, max_completion_tokens=10)
    fast = sample_groups(LocalEngine(EngineSetup(model, text_of, slots=5)), prompts, wanted, TRAIN, first_draw=4)
    slow = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN, first_draw=4)
    for ours, theirs in zip(flat(fast), flat(slow), strict=True):
        assert (ours.token_ids, ours.end, ours.text) == (theirs.token_ids, theirs.end, theirs.text)
        assert np.allclose(ours.sampling_logprobs, theirs.sampling_logprobs, atol=1e-5)


MIXTURES = {
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2Moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}


@pytest.mark.parametrize("kind", [LocalEngine, CachedEngine])
@pytest.mark.parametrize("family", MIXTURES)
def test_a_mixture_of_experts_is_sampled_as_it_is_scored(family, kind):
    """A token's experts depend only on its own state, not on the batch: at most 2e-6 nats in float32, and no other token."""
    model, prompts = make_model(family, **MIXTURES[family]), make_prompts(6)
    wanted = sampling(group_size=3, max_completion_tokens=10)
    ours = sample_groups(kind(EngineSetup(model, text_of, slots=5)), prompts, wanted, TRAIN)
    theirs = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    assert [one.token_ids for one in flat(ours)] == [one.token_ids for one in flat(theirs)]
    mismatch = 0.0
    for prompt, group in zip(prompts, ours, strict=True):
        for one in group:
            plain_TV = plain_logits(model, prompt, one).log_softmax(-1)
            plain_T = plain_TV.gather(-1, torch.tensor(one.token_ids)[:, None])[:, 0]
            mismatch = max(mismatch, float((plain_T - torch.tensor(one.sampling_logprobs)).abs().max()))
    print(f"{family}, {kind.name}: mismatch {mismatch:.1e} nats")
    assert mismatch < 5e-6
    assert len(set(chosen_experts(model, prompts[0]))) == 4, "a router that takes one expert for everything would prove nothing"


def chosen_experts(model, prompt):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt.token_ids * 8]), output_router_logits=True, use_cache=False).router_logits
    return torch.cat([one.topk(2).indices.flatten() for one in logits]).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward_at_that_temperature(family, temperature):
    model, prompts = make_model(family), make_prompts(8)
    groups = sample_groups(
        LocalEngine(EngineSetup(model, text_of, slots=7)), prompts, sampling(group_size=2, temperature=temperature), TRAIN
    )
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            logprobs_TV = (plain_logits(model, prompt, completion) / temperature).log_softmax(-1)
            expected = logprobs_TV.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            assert torch.tensor(completion.sampling_logprobs).sub(expected).abs().max() <= 1e-5


def test_the_reference_engine_may_round_as_much_as_a_real_model_does():
    text = SimpleNamespace(num_hidden_layers=30, hidden_size=576)  # SmolLM2
    real = SimpleNamespace(
        dtype=torch.float32, device=torch.device("cpu"), config=SimpleNamespace(get_text_config=lambda: text)
    )
    limit = find_mismatch_limit(real, HFEngine(EngineSetup(make_model(), text_of)).capabilities.rounding)
    assert limit > 4.2e-5  # the largest difference measured
    assert limit / 10 > 4.9e-6  # the mean


def test_greedy_logprobs_are_at_temperature_one():
    model, prompts = make_model(), make_prompts(3)
    for engine in (LocalEngine(EngineSetup(model, text_of)), HFEngine(EngineSetup(model, text_of))):
        for prompt, (completion,) in zip(
            prompts, sample_groups(engine, prompts, sampling(temperature=0.0), TRAIN), strict=True
        ):
            expected = plain_logits(model, prompt, completion).log_softmax(-1).max(-1).values
            assert torch.allclose(torch.tensor(completion.sampling_logprobs), expected, atol=1e-5)


@ALL
@pytest.mark.parametrize("cuts", [{}, {"top_k": 5, "top_p": 0.8}])
def test_a_greedy_completion_among_sampled_ones_equals_that_of_a_greedy_call(kind, cuts):
    """Token for token; on the local engine bit for bit, and so are the sampled ones. 3 slots, so that greedy rows move."""
    model, prompts = make_model(), make_prompts(9)
    engine = kind(EngineSetup(model, text_of, slots=3))
    wanted = sampling(group_size=2, temperature=0.7, **cuts)
    together = sample_groups(engine, prompts, replace(wanted, with_greedy=True), TRAIN)
    apart = [sample_groups(engine, prompts, one, TRAIN) for one in (wanted, sampling(temperature=0.0))]
    assert [len(group) for group in together] == [3] * 9
    expected = [[*sampled, *greedy] for sampled, greedy in zip(*apart, strict=True)]
    assert [one.token_ids for one in flat(together)] == [one.token_ids for one in flat(expected)]
    worst = max(
        abs(a - b)
        for ours, theirs in zip(flat(together), flat(expected), strict=True)
        for a, b in zip(ours.sampling_logprobs, theirs.sampling_logprobs, strict=True)
    )
    assert worst <= (1e-5 if kind is CachedEngine else 0.0)
    assert any(group[0].token_ids != group[2].token_ids for group in together)


def test_slot_count_and_order_do_not_matter():
    model, prompts = make_model("Qwen2"), make_prompts(20)
    wanted = sampling(group_size=4, max_completion_tokens=16)
    by_slots = {
        slots: sample_groups(LocalEngine(EngineSetup(model, text_of, slots)), prompts, wanted, TRAIN) for slots in (1, 7, 64)
    }
    ids = {slots: [[c.token_ids for c in group] for group in groups] for slots, groups in by_slots.items()}
    assert ids[1] == ids[7] == ids[64]

    # The same draw wherever it stands: each prompt alone, in another order, with its own first_draw.
    engine = LocalEngine(EngineSetup(model, text_of, 7))
    for draw in random.Random(0).sample(range(20), 20):
        (group,) = sample_groups(engine, [prompts[draw]], wanted, TRAIN, first_draw=draw)
        assert [completion.token_ids for completion in group] == ids[7][draw]
    lengths = [len(token_ids) for group in ids[7] for token_ids in group]
    assert min(lengths) == 1, "some completion should be over with its first token"
    assert max(lengths) == 16
    assert len(set(lengths)) > 5


def test_the_order_of_the_prompts_changes_nothing_but_the_order():
    """Greedy has no noise, so here a whole shuffled call can be compared."""
    model, prompts = make_model(), make_prompts(30)
    wanted, order = sampling(temperature=0.0), random.Random(1).sample(range(30), 30)
    straight = sample_groups(LocalEngine(EngineSetup(model, text_of, 5)), prompts, wanted, TRAIN)
    shuffled = sample_groups(LocalEngine(EngineSetup(model, text_of, 5)), [prompts[at] for at in order], wanted, TRAIN)
    assert [group[0].token_ids for group in shuffled] == [straight[at][0].token_ids for at in order]


def test_small_prefills_change_nothing(monkeypatch):
    """Prompts that come in several prefilled batches, with groups left waiting for a slot."""
    model, prompts = make_model(), make_prompts(12)
    wanted = sampling(group_size=3)
    whole = sample_groups(LocalEngine(EngineSetup(model, text_of, 4)), prompts, wanted, TRAIN)
    monkeypatch.setitem(decoding.PREFILL_TOKENS, "cpu", 20)
    pieces = sample_groups(LocalEngine(EngineSetup(model, text_of, 4)), prompts, wanted, TRAIN)
    assert [[c.token_ids for c in group] for group in pieces] == [[c.token_ids for c in group] for group in whole]


def test_a_prompt_drawn_twice_and_other_keys_give_other_completions():
    model, (prompt,) = make_model(), make_prompts(1, seed=5)
    engine, wanted = LocalEngine(EngineSetup(model, text_of, 8)), sampling(group_size=4, stop_ids=())
    first, second = sample_groups(engine, [prompt, prompt], wanted, TRAIN)
    others = [sample_groups(engine, [prompt], wanted, key)[0] for key in (NoiseKey(3, "evaluate", 1), NoiseKey(3, "train", 2))]
    everything = [completion.token_ids for group in (first, second, *others) for completion in group]
    assert len(set(everything)) == len(everything) == 16


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_frequencies_agree_with_the_softmax(temperature):
    model, prompts = make_model(initializer_range=0.15), make_prompts(2, seed=2)
    wanted = sampling(group_size=3000, temperature=temperature, max_completion_tokens=1)
    groups = sample_groups(LocalEngine(EngineSetup(model, text_of, slots=512)), prompts, wanted, TRAIN)
    for prompt, group in zip(prompts, groups, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt.token_ids])).logits[0, -1].double()
        expected = (logits / temperature).softmax(-1).numpy() * len(group)
        observed = np.bincount([completion.token_ids[0] for completion in group], minlength=VOCAB)
        rare = expected < 5
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
        assert stats.chisquare(observed, expected).pvalue > 1e-4


# ---------------------------------------------------------------------------------------------------------------------
# The shared sampler
# ---------------------------------------------------------------------------------------------------------------------


def test_next_tokens_by_hand():
    logits_BV = torch.tensor([[0.0, math.log(3.0)], [math.log(3.0), 0.0]])
    ids, logprobs = choose_tokens(logits_BV, sampling(temperature=0.0), None)
    assert ids.tolist() == [1, 0]
    assert logprobs.tolist() == pytest.approx([math.log(0.75)] * 2)
    # At temperature 1/2 the odds are squared: 9 to 1. Noise of 10 on token 0 of row 0 turns it.
    ids, logprobs = choose_tokens(logits_BV, sampling(temperature=0.5), torch.tensor([[10.0, 0.0], [0.0, 0.0]]))
    assert ids.tolist() == [0, 0]
    assert logprobs.tolist() == pytest.approx([math.log(0.1), math.log(0.9)])


def test_cuts_keep_the_right_candidates_and_do_not_change_logprobs():
    probs = torch.tensor([[0.1, 0.5, 0.05, 0.35]])
    kept = lambda **cuts: torch.isfinite(cut_candidates(probs.log(), **{"top_k": 0, "top_p": 1.0, **cuts}))[0].tolist()  # noqa: E731
    assert kept() == [True] * 4
    assert kept(top_k=2) == [False, True, False, True]
    assert kept(top_k=9) == [True] * 4
    assert kept(top_p=0.4) == [False, True, False, False]
    assert kept(top_p=0.6) == [False, True, False, True]
    assert kept(top_p=0.9) == [True, True, False, True]
    assert kept(top_k=3, top_p=0.5) == [False, True, False, False]  # 0.5 / 0.95 of what top_k left reaches 0.5
    noise = torch.tensor([[50.0, 0.0, 0.0, 0.0]])
    ids, logprobs = choose_tokens(probs.log(), sampling(top_k=2), noise)
    assert ids.tolist() == [1]
    assert logprobs.exp().tolist() == pytest.approx([0.5]), "the log-prob is that of the full distribution"


def test_top_k_is_honoured_by_both_engines():
    model, prompts = make_model(), make_prompts(4)
    wanted = sampling(group_size=2, top_k=2, max_completion_tokens=6, temperature=1.3)
    fast = sample_groups(LocalEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    slow = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    for prompt, ours, theirs in zip(prompts, fast, slow, strict=True):
        assert [c.token_ids for c in ours] == [c.token_ids for c in theirs]
        for completion in ours:
            top_T2 = plain_logits(model, prompt, completion).topk(2).indices
            assert (top_T2 == torch.tensor(completion.token_ids)[:, None]).any(-1).all()


# ---------------------------------------------------------------------------------------------------------------------
# Ends
# ---------------------------------------------------------------------------------------------------------------------


@ALL
def test_ends(kind):
    model, prompts = make_model(), make_prompts(10)
    engine = kind(EngineSetup(model, text_of))
    free = sample_groups(engine, prompts, sampling(group_size=2, stop_ids=()), TRAIN)
    assert {(c.end, c.length) for group in free for c in group} == {("length", 12)}
    stops = {completion.token_ids[4] for group in free for completion in group[:1]}
    stopped = sample_groups(engine, prompts, sampling(group_size=2, stop_ids=tuple(stops)), TRAIN)
    for before, after in zip(flat(free), flat(stopped), strict=True):
        first = next((at for at, token in enumerate(before.token_ids) if token in stops), None)
        assert after.end == ("length" if first is None else "stop")
        assert after.token_ids == before.token_ids[: 12 if first is None else first + 1]
        assert len(after.sampling_logprobs) == after.length
        assert after.text == text_of(after.token_ids)
        assert all(after.mask)
    assert {c.end for group in stopped for c in group} == {"stop", "length"} or len(stops) > 5


def test_padding_is_no_token():
    """pad == eos == 0, and prompts that contain this id: nothing may be inferred from ids."""
    model = make_model(pad_token_id=0, eos_token_id=0)
    prompts = [Prompt(at, "", {}, ids) for at, ids in enumerate([(0,), (0, 0, 7, 0), (9, 8, 0), (4, 5, 6, 7, 8, 9, 10)])]
    wanted = sampling(group_size=3, stop_ids=(0,), temperature=1.5)
    fast = sample_groups(LocalEngine(EngineSetup(model, text_of, 5)), prompts, wanted, TRAIN)
    slow = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    assert [[c.token_ids for c in group] for group in fast] == [[c.token_ids for c in group] for group in slow]


def test_one_token_and_no_prompts():
    model, prompts = make_model(), make_prompts(5)
    for engine in (LocalEngine(EngineSetup(model, text_of, 2)), HFEngine(EngineSetup(model, text_of))):
        assert sample_groups(engine, [], sampling(), TRAIN) == []
        groups = sample_groups(engine, prompts, sampling(group_size=2, max_completion_tokens=1), TRAIN)
        assert [[c.length for c in group] for group in groups] == [[1, 1]] * 5


@pytest.mark.parametrize("slots", [1, 3, 20])
@pytest.mark.parametrize("kernels", ["auto", "modules"])
@pytest.mark.parametrize("longest", [1, 12])
def test_delayed_checks_change_nothing(monkeypatch, kernels, slots, longest):
    """The scheduler as on a GPU: several steps between checks, finished rows in a step, buckets of rows."""

    class Elsewhere(decoding.Decoding):
        def __init__(self, *args):
            super().__init__(*args)
            self.device = SimpleNamespace(type="elsewhere")

    monkeypatch.setitem(decoding.PREFILL_TOKENS, "elsewhere", 40)
    model, prompts = make_model("Qwen2"), make_prompts(9)
    wanted = sampling(group_size=2, max_completion_tokens=longest, stop_ids=tuple(range(2, 8)))
    plain = LocalEngine(EngineSetup(model, text_of, slots, kernels=kernels))
    expected = sample_groups(plain, prompts, wanted, TRAIN)
    monkeypatch.setattr(slot_engine, "Decoding", Elsewhere)
    engine = LocalEngine(EngineSetup(model, text_of, slots, kernels=kernels))
    found = sample_groups(engine, prompts, wanted, TRAIN)
    assert [c.token_ids for c in flat(found)] == [c.token_ids for c in flat(expected)]
    assert [c.end for c in flat(found)] == [c.end for c in flat(expected)]
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert np.allclose(one.sampling_logprobs, other.sampling_logprobs, atol=1e-5)
    if longest > 1:
        assert engine.last["checks"] < plain.last["checks"]


def test_rows_are_copied_in_parts_of_bounded_size(monkeypatch):
    model, prompts, wanted = make_model(), make_prompts(12), sampling(group_size=3)
    expected = sample_groups(LocalEngine(EngineSetup(model, text_of, 7, kernels="modules")), prompts, wanted, TRAIN)
    selected, select = [], torch.Tensor.index_select

    def counting(tensor, dim, index):
        selected.append(len(index) if tensor.dim() == 6 else 0)
        return select(tensor, dim, index)

    monkeypatch.setattr(cached_attention, "BYTES_AT_ONCE", 1)
    monkeypatch.setattr(torch.Tensor, "index_select", counting)
    assert sample_groups(LocalEngine(EngineSetup(model, text_of, 7, kernels="modules")), prompts, wanted, TRAIN) == expected
    assert max(selected) == 1


def test_occupancy_is_the_share_of_slots_that_decode():
    """Two completions of 5 and 9 tokens, of which the first comes from the prompt: 4 + 8 of 2 x 8."""
    engine = LocalEngine(EngineSetup(make_model(), text_of, 2))
    engine.generate(make_requests(make_prompts(1), 2), sampling(group_size=2, stop_ids=()), TRAIN, limits=[5, 9])
    assert engine.last["decode_steps"] == 8
    assert engine.last["occupancy"] == 12 / 16


@pytest.mark.parametrize("limits", [[3, 3], [3, 0, 3, 3]])
def test_a_limit_for_every_completion(limits):
    with pytest.raises(EngineError, match="limits: expected 4 values of at least 1"):
        LocalEngine(EngineSetup(make_model(), text_of, 2)).generate(
            make_requests(make_prompts(2), 2), sampling(), TRAIN, limits=limits
        )


class EagerSteps:
    """What graphs.GraphedSteps does, without graphs."""

    def __init__(self, detect_waits=True):
        self.step, self.graphs = None, {}

    def run(self, rows, times):
        for _ in range(times):
            self.step(rows)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_holds_the_cache_once_a_call_is_over(monkeypatch, fails):
    """A reference cycle keeps memory from training until the garbage collector runs."""
    monkeypatch.setattr(local_engine_module, "GraphedSteps", EagerSteps)
    engine = LocalEngine(EngineSetup(make_model(), text_of, 4))
    engine.cuda_graphs = True
    made, make = [], engine._make_workspace
    monkeypatch.setattr(engine, "_make_workspace", lambda *args: made.append(make(*args)) or made[-1])
    if fails:
        monkeypatch.setattr(decoding.Decoding, "find_finished", lambda self, look: 1 // 0)
    gc.disable()
    try:
        if fails:
            with pytest.raises(ZeroDivisionError):
                sample_groups(engine, make_prompts(3), sampling(), TRAIN)
        else:
            sample_groups(engine, make_prompts(3), sampling(), TRAIN)
        cache = weakref.ref(made[0].decoder)
        made.clear()
        assert cache() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("captured", [{}, {1: None}])
def test_a_concurrent_engine_tries_graphs_before_other_work_starts(monkeypatch, captured):
    """Later the check for waits would also report those of other threads."""

    class TrialSteps(EagerSteps):
        def __init__(self, detect_waits=True):
            super().__init__(detect_waits)
            self.graphs = captured

    monkeypatch.setattr(local_engine_module, "GraphedSteps", TrialSteps)
    monkeypatch.setattr(local_engine_module, "has_kernels", lambda device: True)
    engine = LocalEngine(EngineSetup(make_model(), text_of, 4, concurrent=True))
    assert (engine.cuda_graphs, engine.detects_waits, engine.workspace) == (bool(captured), False, None)
    alone = LocalEngine(EngineSetup(make_model(), text_of, 4))
    assert (alone.cuda_graphs, alone.detects_waits, alone.last) == (True, True, {})


# ---------------------------------------------------------------------------------------------------------------------
# The policy as it is now, and left as it was
# ---------------------------------------------------------------------------------------------------------------------


def test_a_weight_update_is_seen_by_the_next_call():
    model, prompts = make_model(), make_prompts(6)
    engine, wanted = LocalEngine(EngineSetup(model, text_of, 4)), sampling(group_size=2)
    before = sample_groups(engine, prompts, wanted, TRAIN)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    after = sample_groups(engine, prompts, wanted, TRAIN)
    slow = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    ids = [[[c.token_ids for c in group] for group in groups] for groups in (before, after, slow)]
    assert ids[1] != ids[0]
    assert ids[1] == ids[2]


@ALL
def test_dropout_is_off_while_sampling_and_modes_come_back(kind):
    model, prompts = make_model("Llama", attention_dropout=0.5), make_prompts(4)
    wanted = sampling(group_size=2)
    quiet = sample_groups(kind(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    model.train()
    model.model.layers[0].eval()  # a frozen part keeps its own mode
    modes = {name: module.training for name, module in model.named_modules()}
    noisy = sample_groups(kind(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    assert noisy == quiet
    assert {name: module.training for name, module in model.named_modules()} == modes
    loss = model(input_ids=torch.tensor([[3, 4, 5]]), labels=torch.tensor([[3, 4, 5]])).loss
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_everything_is_put_back_after_an_exception():
    model = make_model().train()
    engine = LocalEngine(EngineSetup(model, lambda ids: 1 // 0))
    with pytest.raises(ZeroDivisionError):
        sample_groups(engine, make_prompts(2), sampling(), TRAIN)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert torch.is_grad_enabled()


@ALL
def test_the_generation_config_is_ignored(kind):
    model, prompts = make_model(), make_prompts(5)
    wanted = sampling(group_size=4)
    before = sample_groups(kind(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    for name, value in {"temperature": 0.01, "top_k": 1, "do_sample": False, "max_new_tokens": 2, "eos_token_id": 7}.items():
        setattr(model.generation_config, name, value)
    assert sample_groups(kind(EngineSetup(model, text_of)), prompts, wanted, TRAIN) == before
    assert all(len({completion.token_ids for completion in group}) > 1 for group in before)


def test_gradient_checkpointing_does_not_switch_the_cache_off():
    model, prompts = make_model(), make_prompts(5)
    wanted = sampling(group_size=2)
    before = sample_groups(LocalEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    model.gradient_checkpointing_enable()
    model.train()
    fed = []
    hook = model.model.layers[0].register_forward_pre_hook(lambda module, args: fed.append(args[0].shape[:2].numel()))
    engine = LocalEngine(EngineSetup(model, text_of))
    fed.clear()
    assert sample_groups(engine, prompts, wanted, TRAIN) == before
    hook.remove()
    # Tokens through the layers: each prompt once, padded, then one token per row and step (with rows that keep it steady).
    longest = max(completion.length for group in before for completion in group)
    assert fed == [len(prompts) * max(len(prompt.token_ids) for prompt in prompts)] + [STEADY_ROWS] * (longest - 1)


def test_bfloat16_logprobs_are_close_and_dtype_is_kept():
    model, prompts = make_model(initializer_range=0.05).bfloat16(), make_prompts(6)
    # Without oneDNN: some virtual machines advertise bfloat16 instructions that end the process when executed.
    with torch.backends.mkldnn.flags(enabled=False):
        groups = sample_groups(LocalEngine(EngineSetup(model, text_of, 5)), prompts, sampling(group_size=2), TRAIN)
        for prompt, group in zip(prompts, groups, strict=True):
            for completion in group:
                expected = plain_logits(model, prompt, completion).log_softmax(-1)
                expected = expected.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
                assert torch.tensor(completion.sampling_logprobs).sub(expected).abs().max() < 0.05
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("family", FAMILIES)
def test_cuda_agrees_with_the_slow_engine(family):
    model, prompts = make_model(family).cuda(), make_prompts(8)
    wanted = sampling(group_size=2)
    fast = sample_groups(LocalEngine(EngineSetup(model, text_of, 5)), prompts, wanted, TRAIN)
    slow = sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN)
    same = [ours.token_ids == theirs.token_ids for ours, theirs in zip(flat(fast), flat(slow), strict=True)]
    assert sum(same) >= 15
    half = sample_groups(LocalEngine(EngineSetup(model.bfloat16(), text_of)), prompts, wanted, TRAIN)
    assert all(math.isfinite(logprob) for group in half for c in group for logprob in c.sampling_logprobs)


# ---------------------------------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------------------------------

REFUSED = {
    "Mamba": ("linear_attention", {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}),
    "GptOss": ("attention sinks", {"num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": None}),
    "Bloom": ("attention function from outside", {"n_layer": 1, "n_head": 2, "hidden_size": 16}),
    "OPT": ("single length", {"ffn_dim": 32, "word_embed_proj_dim": 32}),
    "DeepseekV3": (
        "latent attention",
        {
            "num_hidden_layers": 1,
            "num_key_value_heads": 4,
            "n_routed_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 1,
        },
    ),
    "Llama4Text": ("chunked_attention", {"num_local_experts": 2}),
}


def why_not_local(model) -> str:
    """Why the engine refuses a model; "" if it serves it. Training must make the same decision about our attention."""
    try:
        own = explain_not_own_attention(model, split(model))
    except ModelError as problem:  # such a model never becomes a policy
        own = str(problem)
    try:
        prove_local(model)
    except EngineError as problem:
        assert own, "training would read with our attention what the engine refuses"
        return str(problem)
    assert own is None
    return ""


@pytest.mark.parametrize("family", REFUSED)
def test_what_is_not_exact_is_refused_by_name_and_auto_falls_back(family):
    reason, changes = REFUSED[family]
    torch.manual_seed(0)
    sizes = {**{key: SIZES[key] for key in SIZES if key not in ("head_dim", "initializer_range")}, **changes}
    config = getattr(transformers, f"{family}Config")(**{key: value for key, value in sizes.items() if value is not None})
    # Some versions of transformers drop the soft-cap of the scores in their fused path; spelled out, all honour it.
    attention = {"attn_implementation": "eager"} if family == "Gemma2" else {}
    model = AutoModelForCausalLM.from_config(config, **attention).eval()
    attention = model.config._attn_implementation
    assert reason in why_not_local(model)
    with pytest.raises(EngineError, match=reason):
        build_engine("local", EngineSetup(model, text_of))
    engine, sentence = build_engine("auto", EngineSetup(model, text_of))
    assert engine.name == "cached"
    assert reason in sentence
    assert type(model).__name__ in sentence
    assert model.config._attn_implementation == attention
    (group,) = sample_groups(engine, make_prompts(1), sampling(group_size=2, max_completion_tokens=2), TRAIN)
    assert len(group) == 2


def test_the_proof_finds_a_forward_that_the_cache_does_not_reproduce():
    """Position ids ignored by the rotary table: only the run shows it, not the config."""
    model = make_model()
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, torch.arange(position_ids.shape[1]).expand_as(position_ids))
    assert "differ from its plain forward" in why_not_local(model)


def test_a_window_that_is_only_in_the_mask_is_refused():
    """The proof is much shorter than 4096 tokens, so the layers must ask for the window of the config."""
    model = make_model("Mistral", sliding_window=4096)
    assert why_not_local(model) == ""
    for layer in model.model.layers:
        layer.self_attn.config = transformers.MistralConfig(**{**SIZES, "sliding_window": None})
        layer.self_attn.config._attn_implementation = "sdpa"
    assert "sliding window of 4096" in why_not_local(model)


def test_build_engine_names_the_engine():
    model = make_model()
    for name, expected in (("auto", "local"), ("local", "local"), ("hf", "hf")):
        engine, sentence = build_engine(name, EngineSetup(model, text_of))
        assert engine.name == expected
        assert f"engine {expected}" in sentence
    with pytest.raises(EngineError, match=r"sampling\.engine"):
        build_engine("vllm", EngineSetup(model, text_of))


@ALL
def test_requests_that_cannot_be_served(kind):
    engine, prompts = kind(EngineSetup(make_model(), text_of)), make_prompts(2, longest=3)
    with pytest.raises(EngineError, match=r"has 3 tokens.*is 62: together 65.*64 positions.*prompts\.max_prompt_tokens"):
        sample_groups(engine, [Prompt(0, "", {}, (3, 4, 5))], sampling(max_completion_tokens=62), TRAIN)
    with pytest.raises(EngineError, match="prompt 9 has no tokens"):
        sample_groups(engine, [*prompts, Prompt(9, "", {}, ())], sampling(), TRAIN)
    with pytest.raises(EngineError, match="temperature"):
        sample_groups(engine, prompts, sampling(temperature=-1.0), TRAIN)


@ALL
def test_non_finite_logits_are_an_error(kind):
    model = make_model()
    engine = kind(EngineSetup(model, text_of))
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(EngineError, match="NaN or infinite: the weights of the model are broken"):
        sample_groups(engine, make_prompts(2), sampling(), TRAIN)
    engine.version = 3
    with pytest.raises(EngineError, match=r"infinite after 3 optimizer steps: optimizer\.learning_rate is too high"):
        sample_groups(engine, make_prompts(2), sampling(), TRAIN)


@pytest.mark.parametrize("kernels", ["auto", "modules"])
def test_slots_are_chosen_from_free_memory(monkeypatch, kernels):
    engine = LocalEngine(EngineSetup(make_model(), text_of, kernels=kernels))
    element = 4 if engine.compiled else 8  # float64 on a CPU, unless compiled attention widens float32 as it reads
    kv_bytes = 2 * 40 * element * 2 * (2 * 8)  # keys and values, 40 tokens, 2 layers, 2 kv heads of 8
    decoder = engine._make_workspace(40, 1, sampling(), 40).decoder
    held = decoder.cache.blocks.keys[0] if kernels == "modules" else decoder.decoder.cache
    assert held.element_size() == element
    slot_bytes = kv_bytes + 4 * 6 * VOCAB
    monkeypatch.setattr(slot_engine, "measure_free_memory", lambda device: int(2 * slot_bytes * 10.5))
    assert engine.fit_slots(40, completions=1000) == 10
    assert engine.fit_slots(40, completions=3) == 3
    monkeypatch.setattr(slot_engine, "measure_free_memory", lambda device: 2**40)
    assert engine.fit_slots(40, completions=10_000) == 512
    monkeypatch.setattr(slot_engine, "measure_free_memory", lambda device: slot_bytes)
    with pytest.raises(EngineError, match=r"not even one slot.*sampling\.max_completion_tokens"):
        sample_groups(engine, make_prompts(1), sampling(max_completion_tokens=40), TRAIN)


def test_requested_slots_that_no_longer_fit_are_reduced(monkeypatch):
    """A run chooses its slots at the start; optimizer states and a reference are allocated later."""
    model, prompts, wanted = make_model(), make_prompts(6), sampling(group_size=2)
    engine = LocalEngine(EngineSetup(model, text_of, 12))
    expected = sample_groups(engine, prompts, wanted, TRAIN)
    assert engine.last["slots"] == 12
    longest = max(len(prompt.token_ids) for prompt in prompts) + wanted.max_completion_tokens
    slot_bytes = 2 * longest * engine.cache_dtype.itemsize * 2 * (2 * 8) + 4 * 6 * VOCAB
    monkeypatch.setattr(slot_engine, "measure_free_memory", lambda device: int(slot_bytes * 5.5))
    assert sample_groups(engine, prompts, wanted, TRAIN) == expected
    assert engine.last["slots"] == 5
    monkeypatch.setattr(slot_engine, "measure_free_memory", lambda device: slot_bytes // 2)
    with pytest.raises(EngineError, match="not even one slot"):
        sample_groups(engine, prompts, wanted, TRAIN)


def test_a_kept_workspace_serves_only_calls_that_fit():
    wanted = sampling()
    kept = decoding.Workspace(None, None, None, 8, 8, 64, 20, wanted, ("here",))
    assert kept.can_serve(8, 64, 20, wanted, ("here",))
    assert kept.can_serve(8, 10, 2, wanted, ("here",)), "a refill with fewer completions"
    assert not kept.can_serve(4, 64, 20, wanted, ("here",)), "another number of slots was asked for since"
    assert not kept.can_serve(8, 65, 20, wanted, ("here",))
    assert not kept.can_serve(8, 64, 21, wanted, ("here",))
    assert not kept.can_serve(8, 64, 20, sampling(temperature=0.5), ("here",))
    assert not kept.can_serve(8, 64, 20, wanted, ("elsewhere",))


def test_own_kernels_that_do_not_run_here_are_a_reason(monkeypatch):
    def broken(*args):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(local_engine_module, "make_fused_decoder", broken)
    engine = LocalEngine(EngineSetup(make_model(), text_of))
    assert "out of resource" in engine.describe()
    with pytest.raises(ModelError, match=r'model.kernels = "fused" is not possible: .*out of resource'):
        LocalEngine(EngineSetup(make_model(), text_of, kernels="fused"))


def pretend_graphs(monkeypatch):
    """A fake torch.cuda for graphs.py: a capture takes no step, a replay takes one."""

    @contextmanager
    def nothing(*args, **kwargs):
        yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    modes, capturing = ["default"], []

    @contextmanager
    def graph(captured, pool, capture_error_mode):
        capturing.append(captured)
        yield
        capturing.pop()

    for name, value in {
        "graph_pool_handle": lambda: None, "current_stream": lambda: stream, "stream": nothing,
        "CUDAGraph": lambda: SimpleNamespace(replay=None), "graph": graph,
        "get_sync_debug_mode": lambda: modes[-1], "set_sync_debug_mode": modes.append,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(graphs, "find_side_stream", lambda: stream)
    return modes, capturing


@pytest.mark.parametrize("waits", [0, 1, 99])
def test_steps_that_make_the_host_wait_are_not_captured(monkeypatch, waits):
    """The requested number of steps is taken, captured or not."""
    modes, capturing = pretend_graphs(monkeypatch)
    steps, taken, left = graphs.GraphedSteps(), [], [waits]

    def step(rows):
        if capturing:
            assert not left[0], "a step that waits must not be captured"
            capturing[-1].replay = lambda: taken.append(("replayed", rows))
            return
        if modes[-1] == "error" and left[0]:
            left[0] -= 1
            raise RuntimeError("called a synchronizing CUDA operation")
        taken.append(("taken", rows))

    steps.step = step
    for rows, times in ((4, 3), (4, 1), (8, 1), (8, 2)):
        before = len(taken)
        steps.run(rows, times)
        assert taken[before:] == [(kind, rows) for kind, _ in taken[before:]]
        assert len(taken) - before == times
    assert set(steps.graphs) == ({4, 8} if waits < 2 else set())
    assert modes[-1] == "default"


def test_another_error_of_a_first_step_is_not_hidden(monkeypatch):
    modes, _ = pretend_graphs(monkeypatch)
    steps = graphs.GraphedSteps()
    steps.step = lambda rows: (_ for _ in ()).throw(RuntimeError("an illegal memory access"))
    with pytest.raises(RuntimeError, match="illegal"):
        steps.run(4, 2)
    assert modes[-1] == "default"


def test_rotary_frequencies_that_depend_on_length_limit_the_cache():
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 24,
        "short_factor": [1.0] * 4, "long_factor": [3.0] * 4,
    }  # fmt: skip
    model = make_model("Phi3", rope_parameters=rope, original_max_position_embeddings=24)
    prompts = make_prompts(6, longest=10)
    assert compare_greedy(model, prompts, sampling(temperature=0.0, max_completion_tokens=14), slots=3) == 0
    long = sampling(group_size=2, max_completion_tokens=30)
    with pytest.raises(EngineError, match="beyond 24"):
        sample_groups(LocalEngine(EngineSetup(model, text_of)), prompts, long, TRAIN)
    # Held still for the longest sequence of a run, every engine and the trainer see one policy, on both sides of 24 tokens.
    assert "beyond 24 tokens, and this run reaches 40" in hold_frequencies(model, 40)
    slow = flat(sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, long, TRAIN))
    lengths = {len(prompt.token_ids) + len(one.token_ids) for prompt, one in zip(prompts * 2, slow, strict=True)}
    assert min(lengths) <= 24 < max(lengths)
    for kind in (LocalEngine, CachedEngine):
        fast = flat(sample_groups(kind(EngineSetup(model, text_of, 5)), prompts, long, TRAIN))
        assert [one.token_ids for one in fast] == [one.token_ids for one in slow]
    with pytest.raises(EngineError, match="beyond 40"):
        sample_groups(LocalEngine(EngineSetup(model, text_of)), prompts, sampling(max_completion_tokens=40), TRAIN)


# ---------------------------------------------------------------------------------------------------------------------
# Stop ids
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [
        "[UNK]",
        "<s>",
        "</s>",
        "<|user|>",
        "<|end|>",
        "<|endoftext|>",
        "hello",
        "?",
        "cohort",
        "-",
        "assistant",
        "content",
        "a",
    ]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", bos_token="<s>", eos_token="</s>")
    made.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|end|>", "<|endoftext|>"]})
    return made


def test_stop_ids_unite_all_sources(tokenizer):
    model = make_model()
    model.generation_config.eos_token_id = 5
    assert stop_ids(model, tokenizer, []) == (2, 5)
    model.generation_config.eos_token_id = [7, 5]
    assert stop_ids(model, tokenizer, ["hello"]) == (2, 5, 6, 7)
    model.generation_config.eos_token_id = [-1]  # as some checkpoints say that there is none
    assert stop_ids(model, tokenizer, []) == (2,)
    tokenizer.eos_token = None
    assert stop_ids(model, tokenizer, []) == ()


def test_stop_ids_know_the_end_of_turn_of_the_chat_template(tokenizer):
    """Phi-3.5: the config says <|endoftext|>, the template ends every turn with <|end|>."""
    model = make_model()
    model.generation_config.eos_token_id = 5
    tokenizer.chat_template = "{% for message in messages %}<|user|>{{ message['content'] }}<|end|>\n{% endfor %}<|endoftext|>"
    assert stop_ids(model, tokenizer, []) == (2, 4, 5)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} </s>{% endfor %}"
    assert stop_ids(model, tokenizer, []) == (2, 5)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\nUser: {% endfor %}"
    assert stop_ids(model, tokenizer, []) == (2, 5)
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert stop_ids(model, tokenizer, []) == (2, 5)


def test_a_stop_of_several_tokens_is_refused(tokenizer):
    with pytest.raises(EngineError, match=r"sampling\.stop: 'hello \?' is 2 tokens"):
        stop_ids(make_model(), tokenizer, ["hello ?"])


def test_importing_the_package_is_light():
    code = "import sys, cohort.engine; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
