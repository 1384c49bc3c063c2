"""Log-probs and entropies: own backward equals autograd, chunks change nothing, memory is flat, bits are log_softmax's."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cohort.model.packing import pack
from cohort.ops import logprobs
from cohort.ops.logprobs import LinearHead, Sizes, linear_logprobs, token_logprobs
from conftest import ragged_examples, tiny_policy

M, H, V = 13, 6, 11
SIZES = (Sizes(1, 1), Sizes(1, 4), Sizes(5, 5), Sizes(5, 10), Sizes(2, 12), Sizes(12, 12), Sizes(64, 64))


def inputs(seed: int = 0, dtype: torch.dtype = torch.float64, shape: tuple[int, int, int] = (M, H, V)) -> tuple[Any, ...]:
    """hidden, weight, bias, ids; weights large enough for a softcap of 3 and a temperature to matter."""
    tokens, width, vocabulary = shape
    generator = torch.Generator().manual_seed(seed)
    hidden_MH = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight_VH = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    bias_V = torch.randn(vocabulary, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden_MH, weight_VH, bias_V, torch.randint(0, vocabulary, (tokens,), generator=generator)


def textbook(hidden, weight, bias, token_ids, scale, softcap, temperature):
    """Autograd through plain log_softmax, written once more and without chunks."""
    logits_MV = hidden @ weight.T * scale if bias is None else (hidden @ weight.T + bias) * scale
    if softcap:
        logits_MV = torch.tanh(logits_MV / softcap) * softcap
    logprobs_MV = torch.log_softmax(logits_MV / temperature, -1)
    return logprobs_MV[torch.arange(len(token_ids)), token_ids], -(logprobs_MV.exp() * logprobs_MV).sum(-1)


def loss_of(logprobs_M, entropy_M, entropy_gradient: bool):
    coefficients_M = torch.linspace(-1, 2, len(logprobs_M), dtype=logprobs_M.dtype)
    loss = (logprobs_M * coefficients_M).sum()
    return loss + 0.3 * (entropy_M * coefficients_M.flip(0)).sum() if entropy_gradient else loss


def largest_difference(left, right) -> float:
    return max((a - b).abs().max().item() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("width", [H, V + 3])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("trained", ["hidden weight bias", "hidden", "weight", "bias", "hidden bias"])
def test_values_and_gradients_equal_autograd(sizes, trained, width):
    """All combinations of temperature, scale, soft-cap, bias and entropy gradient, in float64, V above and below H."""
    choices = itertools.product((1.0, 0.7), (1.0, 0.25), (0.0, 3.0), (False, True), (False, True))
    for temperature, scale, softcap, has_bias, entropy_gradient in choices:
        if "bias" in trained and not has_bias:
            continue
        hidden_MH, weight_VH, bias_V, token_ids_M = inputs(shape=(M, width, V))
        bias_V = bias_V if has_bias else None
        named = {"hidden": hidden_MH, "weight": weight_VH, "bias": bias_V}
        for name, tensor in named.items():
            if tensor is not None:
                tensor.requires_grad_(name in trained)
        wanted = [named[name] for name in trained.split()]
        expected = textbook(hidden_MH, weight_VH, bias_V, token_ids_M, scale, softcap, temperature)
        head = LinearHead(weight_VH, bias_V, scale, softcap)
        ours = linear_logprobs(
            hidden_MH, token_ids_M, head, temperature=temperature, entropy_gradient=entropy_gradient, sizes=sizes
        )
        assert ours[1].requires_grad == entropy_gradient
        assert largest_difference([t.detach() for t in ours], [t.detach() for t in expected]) <= 1e-12
        gradients = [torch.autograd.grad(loss_of(*pair, entropy_gradient), wanted) for pair in (ours, expected)]
        assert all(gradient.abs().max() > 1e-3 for gradient in gradients[0])
        assert largest_difference(*gradients) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grad", [False, True])
def test_bits_are_those_of_log_softmax(dtype, grad):
    """The engine's log-probs are compared bitwise with these: same operations in the same order, chunk by chunk."""
    for shape in ((1, 6, 11), (5, 16, 17), (64, 256, 64), (50, 64, 1003)):
        hidden_MH, weight_VH, bias_V, token_ids_M = inputs(shape[0], dtype, shape)
        for scale, softcap, temperature, rows in ((1.0, 0.0, 1.0, 1000), (0.125, 5.0, 0.7, 7)):
            parts = logprobs.LinearHead(weight_VH, bias_V, scale, softcap)

            def logits(hidden, weight=weight_VH, bias=bias_V, scale=scale, softcap=softcap):
                product = logprobs.run_steadily(lambda padded: torch.nn.functional.linear(padded, weight, bias), hidden)
                return torch.tanh(product * scale / softcap) * softcap if softcap else product * scale

            with torch.set_grad_enabled(grad):
                ours = linear_logprobs(hidden_MH, token_ids_M, parts, temperature=temperature, sizes=Sizes(rows, rows))
                plain = token_logprobs(
                    hidden_MH, token_ids_M, logits, vocabulary=shape[2], temperature=temperature, chunk_elements=rows * shape[2]
                )
            assert torch.equal(ours[0], plain[0])
            assert torch.equal(ours[1], plain[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("width", [H, V + 3])
def test_rows_made_again_have_the_same_bits_as_rows_that_were_kept(dtype, softcap, width):
    """A second walk through the graph finds nothing kept; sizes of blocks decide what is kept and must not show either."""
    hidden_MH, weight_VH, bias_V, token_ids_M = inputs(0, dtype, (M, width, V))
    head = LinearHead(weight_VH, bias_V, 0.5, softcap)
    results = []
    for sizes in (Sizes(5, 15), Sizes(5, 5)):
        ours = linear_logprobs(hidden_MH, token_ids_M, head, temperature=0.7, sizes=sizes)
        loss = loss_of(*ours, False)
        for _ in range(2):
            results.append(torch.autograd.grad(loss, [hidden_MH, weight_VH, bias_V], retain_graph=True))
    for first, second in (results[:2], results[2:]):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    tolerance = 1e-13 if dtype == torch.float64 else 1e-5
    assert largest_difference(results[0], results[2]) <= tolerance


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_the_backward_makes_logits_again_only_where_it_must(entropy_gradient, monkeypatch):
    """Products with the head's weight per token: once where the head is frozen or one block holds all, else once more."""
    rows = {"projected": 0}
    original = logprobs.project

    def counted(hidden, weight, bias):
        rows["projected"] += hidden.shape[0]
        return original(hidden, weight, bias)

    monkeypatch.setattr(logprobs, "project", counted)
    expected = {("frozen", 5): M, ("trained", 5): 2 * M - 5, ("trained", 10): 2 * M - 10, ("trained", 15): M}
    for (kind, block), count in expected.items():
        hidden_MH, weight_VH, _, token_ids_M = inputs()
        weight_VH.requires_grad_(kind == "trained")
        rows["projected"] = 0
        ours = linear_logprobs(
            hidden_MH, token_ids_M, LinearHead(weight_VH), temperature=1.0, entropy_gradient=entropy_gradient, sizes=Sizes(5, block)
        )  # fmt: skip
        assert rows["projected"] == M
        loss_of(*ours, entropy_gradient).backward()
        assert rows["projected"] == (2 * M if entropy_gradient else count)


class Watch(TorchDispatchMode):
    """The largest tensor, in elements, that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


@pytest.mark.parametrize(("trained", "entropy_gradient"), [(True, False), (True, True), (False, False), (False, True)])
def test_memory_is_flat_in_vocabulary_times_tokens(trained, entropy_gradient, monkeypatch):
    """No tensor is larger than a chunk, hidden states or the weight, whatever the number of tokens and the vocabulary."""
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 4096)
    for tokens, vocabulary in ((300, 256), (300, 1024), (1200, 1024)):
        hidden_MH, weight_VH, _, token_ids_M = inputs(0, torch.float32, (tokens, 2, vocabulary))
        weight_VH.requires_grad_(trained)
        with Watch() as watch:
            ours = linear_logprobs(
                hidden_MH, token_ids_M, LinearHead(weight_VH), temperature=1.0, entropy_gradient=entropy_gradient
            )
            loss_of(*ours, entropy_gradient).backward()
        bound = max(4096, 16 * vocabulary)  # never fewer than the 16 rows of a steady product
        assert 4096 <= watch.largest <= bound
        assert 10 * bound < tokens * vocabulary or tokens * vocabulary < 100_000


def test_generic_path_holds_one_chunk_at_a_time():
    for tokens in (300, 1200):
        hidden_MH, weight_VH, _, token_ids_M = inputs(0, torch.float32, (tokens, 2, 256))
        with Watch() as watch:
            ours = token_logprobs(
                hidden_MH, token_ids_M, lambda rows, weight=weight_VH: rows @ weight.T, vocabulary=256, temperature=1.0, chunk_elements=4096
            )  # fmt: skip
            loss_of(*ours, False).backward()
        assert watch.largest == 4096


def test_sizes_on_a_cpu_are_a_constant_number_of_logits():
    for vocabulary in (64, 151_936):
        chunk, block = logprobs.plan_sizes(vocabulary, torch.float32, torch.device("cpu"))
        assert chunk == block
        assert 0.9 * logprobs.CHUNK_ELEMENTS < chunk * vocabulary <= logprobs.CHUNK_ELEMENTS
    assert logprobs.plan_sizes(1 << 30, torch.float32, torch.device("cpu")) == (1, 1)


def test_sizes_on_a_gpu_bound_chunk_and_block(monkeypatch):
    """139 GiB: 2,048 tokens of a vocabulary of 152k at a time, blocks of whole chunks below a sixteenth of the memory."""
    total = 139 << 30
    properties = type("Properties", (), {"total_memory": total})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    chunk, block = logprobs.plan_sizes(151_936, torch.bfloat16, torch.device("cuda:0"))
    assert (chunk, block % chunk) == (2048, 0)
    assert block >= 16_384
    assert 4 * chunk * 151_936 <= logprobs.CUDA_CHUNK_BYTES
    assert 2 * block * 151_936 <= total / 16 < 2 * (block + chunk) * 151_936
    properties.total_memory = 8 << 30
    assert logprobs.plan_sizes(151_936, torch.bfloat16, torch.device("cuda:0")) == (2048, 2048)


def test_no_tokens_give_no_numbers_and_zero_gradients():
    hidden_MH, weight_VH, bias_V, token_ids_M = inputs(shape=(0, H, V))
    for trained in (True, False):
        weight_VH.requires_grad_(trained)
        bias_V.requires_grad_(trained)
        ours = linear_logprobs(hidden_MH, token_ids_M, LinearHead(weight_VH, bias_V), temperature=1.0)
        assert ours[0].shape == ours[1].shape == (0,)
        wanted = [hidden_MH, weight_VH, bias_V] if trained else [hidden_MH]
        assert all(not gradient.any() for gradient in torch.autograd.grad(ours[0].sum(), wanted))


def test_a_frozen_head_in_bfloat16_keeps_gradients_to_its_rounding(plain_bfloat16):
    """Also for tokens with probability near one, where onehot - p would cancel if p were rounded before."""
    hidden_MH, weight_VH, _, token_ids_M = inputs(dtype=torch.bfloat16, shape=(32, 16, 50))
    with torch.no_grad():
        weight_VH.mul_(3)
        token_ids_M[::2] = (hidden_MH @ weight_VH.T).argmax(-1)[::2]
    exact = hidden_MH.detach().double().requires_grad_()
    expected = textbook(exact, weight_VH.detach().double(), None, token_ids_M, 1.0, 0.0, 1.0)
    (wanted_MH,) = torch.autograd.grad(expected[0].sum(), exact)
    for trained in (False, True):
        weight_VH.requires_grad_(trained)
        ours = linear_logprobs(hidden_MH, token_ids_M, LinearHead(weight_VH), temperature=1.0, sizes=Sizes(16, 16))
        (found_MH,) = torch.autograd.grad(ours[0].sum(), hidden_MH)
        assert found_MH.dtype == torch.bfloat16
        # Logits are rounded to bfloat16 by a CPU's product: half a unit of 2^-8 of logits near 30 is 6 % of a probability.
        scale_M1 = wanted_MH.abs().amax(-1, keepdim=True)
        assert ((found_MH.double() - wanted_MH).abs() / scale_M1.clamp(min=1e-2)).max() < 0.15


@pytest.mark.parametrize("rows", [1, 2, 5, 12])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_generic_chunks_equal_the_whole_in_value_and_gradient(rows, entropy_gradient):
    results = []
    for chunk_elements in (rows * V, 1 << 20):
        hidden_MH, weight_VH, _, token_ids_M = inputs()
        ours = token_logprobs(
            hidden_MH, token_ids_M, lambda hidden, weight=weight_VH: hidden @ weight.T, vocabulary=V, temperature=0.7,
            entropy_gradient=entropy_gradient, chunk_elements=chunk_elements,
        )  # fmt: skip
        loss_of(*ours, entropy_gradient).backward()
        results.append((ours[0].detach(), ours[1].detach(), hidden_MH.grad, weight_VH.grad))
    assert largest_difference(*results) <= 1e-12


def test_without_gradients_chunks_give_the_same_numbers():
    hidden_MH, weight_VH, bias_V, token_ids_M = inputs()
    with torch.no_grad():
        whole = linear_logprobs(hidden_MH, token_ids_M, LinearHead(weight_VH, bias_V), temperature=1.0)
        for sizes in SIZES:
            chunked = linear_logprobs(hidden_MH, token_ids_M, LinearHead(weight_VH, bias_V), temperature=1.0, sizes=sizes)
            assert largest_difference(chunked, whole) <= 1e-14
            assert not chunked[0].requires_grad


def test_temperature_divides_the_logits_and_not_the_logprobs():
    """Two tokens with logits 0 and 2 at temperature 2: softmax(0, 1), so log sigmoid(1) and not log sigmoid(2) / 2."""
    weight_VH = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    logprobs_M, entropy_M = linear_logprobs(
        torch.eye(2, dtype=torch.float64)[:1], torch.tensor([1]), LinearHead(weight_VH), temperature=2.0
    )
    p = 1 / (1 + math.exp(-1))
    assert logprobs_M.item() == pytest.approx(math.log(p), abs=1e-15)
    assert logprobs_M.item() != pytest.approx(-math.log(1 + math.exp(-2)) / 2, abs=1e-3)
    assert entropy_M.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-15)


def test_entropy_has_a_gradient_only_if_requested():
    """The gradient of the entropy of softmax(z) is -p (log p + H); off means no gradient at all."""
    logits_V = torch.tensor([[0.3, -1.0, 2.0, 0.1]], dtype=torch.float64, requires_grad=True)
    head = LinearHead(torch.eye(4, dtype=torch.float64))
    _, off = linear_logprobs(logits_V, torch.tensor([0]), head, temperature=1.0)
    assert not off.requires_grad
    _, on = linear_logprobs(logits_V, torch.tensor([0]), head, temperature=1.0, entropy_gradient=True)
    on.sum().backward()
    logprobs_V = torch.log_softmax(logits_V.detach(), -1)
    expected = -logprobs_V.exp() * (logprobs_V + on.item())
    assert (logits_V.grad - expected).abs().max().item() < 1e-15
    assert off.item() == on.item()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_policy_scores_the_right_tokens_under_padding(temperature):
    """compute_logprobs on padded rows equals log softmax of the model's own forward on each row by itself, token by token."""
    policy = tiny_policy(temperature=temperature)
    examples = ragged_examples(policy)
    scored = policy.score_examples(examples, micro_batch_tokens=40)
    largest = 0.0
    for example, logprobs_T in zip(examples, scored, strict=True):
        token_ids = torch.tensor([example.prompt_ids + example.completion_ids])
        with torch.no_grad():
            logprobs_TV = torch.log_softmax(policy.model(input_ids=token_ids, use_cache=False).logits[0] / temperature, -1)
        for place, token in enumerate(example.completion_ids):
            expected = logprobs_TV[len(example.prompt_ids) + place - 1, token].item()
            largest = max(largest, abs(logprobs_T[place].item() - expected))
    assert largest < 1e-13
    assert max(float(logprobs_T.max()) for logprobs_T in scored) <= 0.0


def test_low_precision_logits_are_scored_in_float32(plain_bfloat16):
    policy = tiny_policy(dtype=torch.bfloat16)
    examples = ragged_examples(policy, dtype=torch.float32)
    micro = pack(
        examples, aggregation="token_mean", max_completion_tokens=8, micro_batch_tokens=1000, skip_zero_advantage=False
    ).micro_batches[0]
    scores = policy.compute_logprobs(micro)
    assert scores.logprobs_M.dtype == scores.entropy_M.dtype == torch.float32
    hidden = policy.backbone(micro.layout)[micro.before.index_N]
    logits_MV = policy.split.projection(hidden).float()
    assert torch.equal(scores.logprobs_M, torch.log_softmax(logits_MV, -1).gather(1, micro.token_ids_M[:, None]).squeeze(1))
