"""The kernels of the loss head under Triton's interpreter, on the CPU, against plain torch."""

from __future__ import annotations

import pytest
import torch

import interpreter
from cohort.ops import logprobs
from cohort.ops.fused import kernels_head
from cohort.ops.logprobs import ChunkScores, Curve, LinearHead, Sizes, linear_logprobs

pytestmark = interpreter.needs_interpreter

CURVES = [Curve(1.0, 0.0, 1.0), Curve(0.25, 0.0, 0.7), Curve(1.0, 5.0, 1.0), Curve(0.5, 3.0, 1.3)]
# Below one block, one block exactly, and several with a rest: lanes that read nothing, and lanes that read twice or thrice.
VOCABULARIES = [5, 64, 64 * 3 + 17]

# A unit in the last place: the interpreter cuts digits off where a GPU rounds.
BFLOAT16 = 2**-7


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(kernels_head, "BLOCK", 64)


def inputs(vocabulary: int, rows: int = 4, spread: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(vocabulary)
    logits_CV = spread * torch.randn(rows, vocabulary, generator=generator)
    return logits_CV, torch.randint(0, vocabulary, (rows,), generator=generator)


def exact(logits_CV: torch.Tensor, token_ids_C: torch.Tensor, curve: Curve) -> tuple[ChunkScores, torch.Tensor]:
    """The reference in float64."""
    gradient_CV = torch.empty_like(logits_CV, dtype=torch.float64)
    return logprobs.score(logits_CV.double(), token_ids_C, curve, gradient_CV), gradient_CV


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("curve", CURVES)
def test_scores_and_gradient_equal_the_reference(vocabulary, curve):
    logits_CV, token_ids_C = inputs(vocabulary)
    expected, expected_CV = exact(logits_CV, token_ids_C, curve)
    plain = kernels_head.score(logits_CV, token_ids_C, curve)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, BFLOAT16)):
        # Rows of a wider buffer: the stride is not the vocabulary.
        gradient_CV = torch.full((len(logits_CV), vocabulary + 3), 7.0, dtype=dtype)
        found = kernels_head.score(logits_CV, token_ids_C, curve, gradient_CV[:, :vocabulary])
        for ours, same, theirs in zip(found, plain, expected, strict=True):
            assert torch.equal(ours, same)
            assert_close(ours, theirs)
        assert_close(gradient_CV[:, :vocabulary], expected_CV, tolerance)
        assert (gradient_CV[:, vocabulary:] == 7.0).all()
    assert expected_CV.abs().max() > 0.1


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("curve", CURVES)
def test_gradients_made_again_equal_those_kept_bit_by_bit(vocabulary, curve):
    logits_CV, token_ids_C = inputs(vocabulary)
    for dtype in (torch.float32, torch.bfloat16):
        kept_CV, again_CV = (torch.empty_like(logits_CV, dtype=dtype) for _ in range(2))
        scored = kernels_head.score(logits_CV, token_ids_C, curve, kept_CV)
        kernels_head.differentiate(logits_CV, token_ids_C, scored, curve, again_CV)
        assert torch.equal(kept_CV, again_CV)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("curve", CURVES)
def test_weighted_gradient_equals_the_reference(vocabulary, curve):
    logits_CV, token_ids_C = inputs(vocabulary)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(2, len(logits_CV), generator=generator)
    expected, _ = exact(logits_CV, token_ids_C, curve)
    expected_CV = torch.empty_like(logits_CV, dtype=torch.float64)
    doubled = (weights[0].double(), weights[1].double())
    logprobs.differentiate(logits_CV.double(), token_ids_C, expected, curve, expected_CV, doubled)
    scored = kernels_head.score(logits_CV, token_ids_C, curve)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, BFLOAT16)):
        found_CV = torch.empty_like(logits_CV, dtype=dtype)
        kernels_head.differentiate(logits_CV, token_ids_C, scored, curve, found_CV, (weights[0], weights[1]))
        assert_close(found_CV, expected_CV, tolerance)


def test_large_logits_neither_overflow_nor_cancel():
    """Logits near 1e4 and a nearly certain token: log-prob and entropy keep their digits, as in log_softmax."""
    logits_CV = torch.full((2, 200), -1e4)
    logits_CV[0, 150], logits_CV[0, 3] = 1e4, 1e4 - 12
    logits_CV[1] = torch.linspace(9000, 9001, 200)
    token_ids_C = torch.tensor([150, 0])
    curve = Curve(1.0, 0.0, 1.0)
    expected, _ = exact(logits_CV, token_ids_C, curve)
    found = kernels_head.score(logits_CV, token_ids_C, curve)
    p = 1 / (1 + torch.tensor(12.0, dtype=torch.float64).exp())
    assert expected.entropy_C[0].item() == pytest.approx(-(p * p.log() + (1 - p) * (1 - p).log()).item(), rel=1e-9)
    assert found.logprobs_C[0].item() == pytest.approx(expected.logprobs_C[0].item(), rel=1e-2)
    assert found.entropy_C[0].item() == pytest.approx(expected.entropy_C[0].item(), rel=1e-2)
    assert_close(found.logprobs_C, expected.logprobs_C, 1e-6)
    assert_close(found.entropy_C, expected.entropy_C, 1e-6)


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("curve", [CURVES[0], CURVES[3]])
def test_the_whole_head_on_kernels_equals_the_whole_head_in_torch(entropy_gradient, trained, curve, monkeypatch):
    """Values and gradients of hidden states, weight and bias, in chunks and blocks, kernels against torch in float64."""
    generator = torch.Generator().manual_seed(0)
    hidden_MH, weight_VH = torch.randn(11, 6, generator=generator), torch.randn(150, 6, generator=generator)
    bias_V, token_ids_M = torch.randn(150, generator=generator), torch.randint(0, 150, (11,), generator=generator)
    coefficients_M = torch.linspace(-1, 2, 11)
    results = []
    for dtype, kernels in ((torch.float64, False), (torch.float32, True)):
        if kernels:
            monkeypatch.setattr(logprobs, "_choose_passes", lambda logits: (kernels_head.score, kernels_head.differentiate))
        leaves = [hidden_MH.to(dtype).requires_grad_(), *(t.to(dtype).requires_grad_(trained) for t in (weight_VH, bias_V))]
        ours = linear_logprobs(
            leaves[0],
            token_ids_M,
            LinearHead(leaves[1], leaves[2], curve.scale, curve.softcap),
            temperature=curve.temperature,
            entropy_gradient=entropy_gradient,
            sizes=Sizes(3, 6),
        )
        loss = (ours[0] * coefficients_M).sum()
        if entropy_gradient:
            loss = loss + 0.3 * (ours[1] * coefficients_M.flip(0)).sum()
        gradients = torch.autograd.grad(loss, [leaf for leaf in leaves if leaf.requires_grad])
        results.append([*(t.detach() for t in ours), *gradients])
    for expected, found in zip(*results, strict=True):
        assert_close(found, expected)


def test_no_rows_and_wrong_layouts():
    curve = CURVES[0]
    empty = kernels_head.score(torch.empty(0, 9), torch.empty(0, dtype=torch.long), curve)
    assert empty.logprobs_C.shape == (0,)
    logits_CV, token_ids_C = inputs(9)
    with pytest.raises(ValueError, match="contiguous float32"):
        kernels_head.score(logits_CV.double(), token_ids_C, curve)
    with pytest.raises(ValueError, match="contiguous float32"):
        kernels_head.score(logits_CV.t(), token_ids_C, curve)
    with pytest.raises(ValueError, match="gradient rows"):
        kernels_head.score(logits_CV, token_ids_C, curve, torch.empty(4, 8))
