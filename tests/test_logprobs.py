"""Log-probs and entropies: chunks change nothing, temperature divides logits, entropy carries a gradient only when asked."""

from __future__ import annotations

import math

import pytest
import torch

from cohort.algorithms.logprobs import token_logprobs
from cohort.batching import pack
from conftest import ragged_examples, tiny_policy

M, H, V = 13, 6, 11


def inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden_MH = torch.randn(M, H, generator=generator, dtype=torch.float64, requires_grad=True)
    weight_VH = torch.randn(V, H, generator=generator, dtype=torch.float64, requires_grad=True)
    token_ids_M = torch.randint(0, V, (M,), generator=generator)
    return hidden_MH, weight_VH, token_ids_M


@pytest.mark.parametrize("rows", [1, 2, 5, 12])
@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_equals_whole_in_value_and_gradient(rows, entropy_gradient, temperature):
    results = []
    for chunk_elements in (rows * V, 1 << 20):
        hidden_MH, weight_VH, token_ids_M = inputs()
        logprobs_M, entropy_M = token_logprobs(
            hidden_MH, token_ids_M, lambda hidden, weight=weight_VH: hidden @ weight.T, vocabulary=V, temperature=temperature,
            entropy_gradient=entropy_gradient, chunk_elements=chunk_elements,
        )  # fmt: skip
        coefficients_M = torch.linspace(-1, 2, M, dtype=torch.float64)
        loss = (logprobs_M * coefficients_M).sum()
        if entropy_gradient:
            loss = loss + 0.3 * (entropy_M * coefficients_M).sum()
        loss.backward()
        results.append((logprobs_M.detach(), entropy_M.detach(), hidden_MH.grad, weight_VH.grad))
    for chunked, whole in zip(*results, strict=True):
        assert (chunked - whole).abs().max().item() <= 1e-12


def test_without_gradients_chunks_give_the_same_numbers():
    hidden_MH, weight_VH, token_ids_M = inputs()
    with torch.no_grad():
        chunked = token_logprobs(
            hidden_MH, token_ids_M, lambda hidden: hidden @ weight_VH.T, vocabulary=V, temperature=1.0, chunk_elements=3 * V
        )
        whole = token_logprobs(hidden_MH, token_ids_M, lambda hidden: hidden @ weight_VH.T, vocabulary=V, temperature=1.0)
    assert (chunked[0] - whole[0]).abs().max() <= 1e-14
    assert (chunked[1] - whole[1]).abs().max() <= 1e-14


def test_temperature_divides_the_logits_and_not_the_logprobs():
    """Two tokens with logits 0 and 2 at temperature 2: softmax(0, 1), so log sigmoid(1) and not log sigmoid(2) / 2."""
    logprobs_M, entropy_M = token_logprobs(
        torch.eye(2, dtype=torch.float64)[:1], torch.tensor([1]), lambda hidden: hidden @ torch.tensor([[0.0, 2.0], [0, 0]], dtype=torch.float64),
        vocabulary=2, temperature=2.0,
    )  # fmt: skip
    p = 1 / (1 + math.exp(-1))
    assert logprobs_M.item() == pytest.approx(math.log(p), abs=1e-15)
    assert logprobs_M.item() != pytest.approx(-math.log(1 + math.exp(-2)) / 2, abs=1e-3)
    assert entropy_M.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-15)


def test_entropy_has_a_gradient_only_when_asked():
    """The gradient of the entropy of softmax(z) is -p (log p + H); off means no gradient at all."""
    logits_V = torch.tensor([[0.3, -1.0, 2.0, 0.1]], dtype=torch.float64, requires_grad=True)
    _, off = token_logprobs(logits_V, torch.tensor([0]), lambda hidden: hidden * 1.0, vocabulary=4, temperature=1.0)
    assert not off.requires_grad
    _, on = token_logprobs(
        logits_V, torch.tensor([0]), lambda hidden: hidden * 1.0, vocabulary=4, temperature=1.0, entropy_gradient=True
    )
    on.sum().backward()
    logprobs_V = torch.log_softmax(logits_V.detach(), -1)
    expected = -logprobs_V.exp() * (logprobs_V + on.item())
    assert (logits_V.grad - expected).abs().max().item() < 1e-15
    assert off.item() == on.item()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_policy_scores_the_right_tokens_under_padding(temperature):
    """compute_logprobs on padded rows equals log softmax of the model's own forward on each row alone, token by token."""
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
    hidden = policy.split.backbone(input_ids=micro.token_ids_BT, use_cache=False).last_hidden_state[
        micro.row_M, micro.position_M - 1
    ]
    logits_MV = policy.split.projection(hidden).float()
    assert torch.equal(scores.logprobs_M, torch.log_softmax(logits_MV, -1).gather(1, micro.token_ids_M[:, None]).squeeze(1))
