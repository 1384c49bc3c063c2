"""The kernels of a decode step against plain torch, run by Triton's interpreter on the CPU."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from transformers import AutoModelForCausalLM

import interpreter
from cohort.engine.decoders import prove_decoder, prove_local
from cohort.engine.scheduler import SlotState
from cohort.ops.fused import kernels_decode as kernels
from cohort.ops.fused.family import fuse
from cohort.ops.fused.kernels_decode import FusedDecoder
from cohort.ops.noise import make_gumbel, make_row_key
from cohort.types import NoiseKey, Sampling

pytestmark = interpreter.needs_interpreter

KEY = NoiseKey(seed=0, stream="train", step=1)


def rms(value, weight, epsilon=1e-6):
    return weight * (value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + epsilon))


def test_add_norm():
    torch.manual_seed(0)
    hidden, delta, weight = torch.randn(5, 24), torch.randn(5, 24), torch.randn(24)
    updated = hidden.clone()
    normed = kernels.add_norm(updated, delta, weight, 1e-6)
    assert torch.equal(updated, hidden + delta)
    assert torch.allclose(normed, rms(hidden + delta, weight), atol=1e-6)
    assert torch.allclose(kernels.add_norm(updated, None, weight, 1e-6), rms(hidden + delta, weight), atol=1e-6)
    assert torch.equal(updated, hidden + delta)


def test_gated():
    torch.manual_seed(0)
    gate_up = torch.randn(3, 2 * 1500)
    assert torch.allclose(kernels.apply_swiglu(gate_up), F.silu(gate_up[:, :1500]) * gate_up[:, 1500:], atol=1e-6)


@pytest.mark.parametrize("normed", [False, True])
def test_rotate_and_store(normed):
    torch.manual_seed(0)
    rows, heads, kv_heads, dim, length = 3, 3, 2, 8, 20
    qkv, positions = torch.randn(rows, (heads + 2 * kv_heads) * dim), torch.tensor([3, 0, 7])
    angles = torch.arange(length)[:, None] / 100 ** (torch.arange(0, dim, 2) / dim)
    keys, values = torch.zeros(2, rows, kv_heads, length, dim).unbind(0)
    norms = (torch.randn(dim), torch.randn(dim)) if normed else None
    query = kernels.rotate_and_store(qkv, positions, angles.cos(), angles.sin(), norms, 1e-6, keys, values, heads)

    def turned(flat, weight):
        heads_first = flat.view(rows, -1, dim)
        if weight is not None:
            heads_first = rms(heads_first, weight)
        angle = torch.cat([angles, angles], -1)[positions][:, None]
        half = torch.cat([-heads_first[..., dim // 2 :], heads_first[..., : dim // 2]], -1)
        return heads_first * angle.cos() + half * angle.sin()

    split = qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    at = torch.arange(rows)
    assert torch.allclose(query, turned(split[0], norms and norms[0]), atol=1e-5)
    assert torch.allclose(keys[at, :, positions], turned(split[1], norms and norms[1]), atol=1e-5)
    assert torch.equal(values[at, :, positions], split[2].view(rows, kv_heads, dim))
    assert int((values != 0).any(-1).sum()) == rows * kv_heads, "nothing else may be written"


@pytest.mark.parametrize(
    ("rows", "kv_heads", "group", "dim", "length", "window", "softcap"),
    [(3, 2, 7, 16, 200, None, 0.0), (3, 2, 3, 24, 200, 5, 0.0), (3, 1, 4, 64, 700, None, 5.0), (140, 2, 1, 16, 70, None, 0.0)],
)
def test_attend(rows, kv_heads, group, dim, length, window, softcap):
    """One program or several splits a row; windows, soft-caps, odd head sizes; a finished row reads nothing."""
    torch.manual_seed(0)
    query = torch.randn(rows, kv_heads * group, dim)
    keys, values = torch.randn(2, rows + 2, kv_heads, length, dim).unbind(0)
    positions = torch.randint(0, length, (rows,))
    done = torch.zeros(rows, dtype=torch.int32)
    done[1] = 1
    found = kernels.attend(query, keys, values, positions, done, 0.3, window, softcap)

    scores = torch.einsum("bkgd,bktd->bkgt", query.view(rows, kv_heads, group, dim), keys[:rows]) * 0.3
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    seen = torch.arange(length) <= positions[:, None]
    if window:
        seen &= torch.arange(length) > positions[:, None] - window
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    expected = torch.einsum("bkgt,bktd->bkgd", weights, values[:rows]).reshape(query.shape)
    expected[1] = 0
    assert torch.allclose(found, expected, atol=2e-6)


def test_few_rows_are_split_and_many_are_not():
    assert kernels.choose_splits(256, 2, 640) == 1
    assert kernels.choose_splits(16, 2, 640) == 16
    assert kernels.choose_splits(1, 2, 100) == 2, "no more splits than blocks of keys"


def make_state(rows, completions, width, stop_ids=()):
    state = SlotState(rows, completions, Sampling(1, 1.0, width, stop_ids), torch.device("cpu"), width)
    state.start_call([make_row_key(KEY, number, 0) for number in range(completions)], [width] * completions)
    return state


@pytest.mark.parametrize("temperature", [0.7, 0.0])
@pytest.mark.parametrize("vocabulary", [50, 40_000])
def test_sample_equals_its_reference(temperature, vocabulary):
    """Tokens, log-probs, counts, positions and ends of the kernel are those of the sampler that every engine uses."""
    torch.manual_seed(0)
    states = [make_state(6, 9, 4, stop_ids=(3, 7)) for _ in range(2)]
    rows = torch.tensor([0, 5, 2, 3])
    for state in states:
        state.limits_N[6] = 2
        begun = torch.tensor([0, 0, 0, 0, 0, 1], dtype=torch.int32)  # the last row goes on after a token
        state.admit(torch.arange(6), torch.tensor([8, 7, 6, 5, 4, 3], dtype=torch.int32), torch.arange(10, 16), begun)
        state.done_S[3] = 1
    sampling = Sampling(1, temperature, 4, (3, 7))
    ours, expected = states
    for step in range(3):
        logits = 3 * torch.randn(4, vocabulary)
        ours._sample_with_kernels(rows, logits, sampling, advance=step > 0)
        expected._sample_in_torch(rows, logits, sampling, advance=step > 0)
        assert ours.token_ids_NT[:9].tolist() == expected.token_ids_NT[:9].tolist()
        assert torch.allclose(ours.logprobs_NT[:9], expected.logprobs_NT[:9], atol=1e-5)
        for name in ("counts_S", "positions_S", "done_S"):
            assert getattr(ours, name).tolist() == getattr(expected, name).tolist(), name
    assert ours.done_S[2] == 1, "the limit of its completion was reached"
    assert ours.counts_S[3] == 0, "a row that is done samples nothing"


def test_noise_is_the_noise_of_every_engine():
    """With equal logits the winner is the largest noise, so the kernel must make the very same noise."""
    for count in range(4):
        state = make_state(1, 1, 8)
        counts = torch.tensor([count], dtype=torch.int32)
        state.admit(torch.tensor([0]), torch.tensor([0], dtype=torch.int32), torch.tensor([1]), counts)
        state._sample_with_kernels(slice(0, 1), torch.zeros(1, 30_000), Sampling(1, 1.0, 8, ()), advance=True)
        expected = make_gumbel(state.keys_S2[:1], torch.tensor([count]), 30_000).argmax()
        assert state.token_ids_NT[0, count] == expected


def test_broken_logits_show():
    state = make_state(1, 1, 2)
    nothing = torch.tensor([0], dtype=torch.int32)
    state.admit(torch.tensor([0]), nothing, torch.tensor([1]), nothing)
    state._sample_with_kernels(slice(0, 1), torch.full((1, 20), torch.nan), Sampling(1, 1.0, 2, ()), advance=True)
    assert not torch.isfinite(state.logprobs_NT[0, 0])


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral"])
def test_whole_step_is_the_model(family):
    """The proof that the engine itself runs: prefill, load, three steps of ragged rows against the plain forward."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    sizes |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2}
    window = {"sliding_window": 6} if family == "Mistral" else {}
    model = AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**sizes, **window)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    local, fused = prove_local(model), fuse(model)
    prove_decoder(model, local, lambda slots, length: FusedDecoder(fused, slots, length))
    # The proof can fail: a fused tensor that is no longer the model's is noticed.
    model.base_model.layers[0].self_attn.q_proj.weight.data = -model.base_model.layers[0].self_attn.q_proj.weight.data
    with pytest.raises(Exception, match="differ from its plain forward"):
        prove_decoder(model, local, lambda slots, length: FusedDecoder(fused, slots, length))
    assert not fused.is_current()
