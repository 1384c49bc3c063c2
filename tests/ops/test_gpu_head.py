"""The loss head on a GPU at the size of a 0.5B model: numbers against float32 autograd, bits, memory and time."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from cohort.model.head import SplitModel
from cohort.ops import logprobs
from cohort.ops.fused import kernels_head
from cohort.ops.logprobs import Curve, LinearHead, Sizes, linear_logprobs

pytestmark = pytest.mark.gpu

H, V = 896, 151_936
PEAK_FLOPS = 790e12
"""What a large bfloat16 product reaches on an H200."""
CURVES = [Curve(1.0, 0.0, 1.0), Curve(0.5, 0.0, 0.7), Curve(1.0, 30.0, 1.0)]


def inputs(tokens: int, spread: float = 0.1, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """Logits of a standard deviation of 3 at spread 0.1; every other token is the likeliest, the rest are random."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    hidden_MH = torch.randn(tokens, H, device="cuda", generator=generator).to(dtype)
    weight_VH = (spread * torch.randn(V, H, device="cuda", generator=generator)).to(dtype)
    bias_V = torch.randn(V, device="cuda", generator=generator).to(dtype)
    token_ids_M = torch.randint(0, V, (tokens,), device="cuda", generator=generator)
    token_ids_M[::2] = torch.cat([(rows @ weight_VH.t()).argmax(-1) for rows in hidden_MH[::2].split(256)])
    return hidden_MH, weight_VH, bias_V, token_ids_M


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Distance as a share of the whole, by norm."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture(autouse=True)
def full_float32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_values_and_gradients_against_float32_autograd(curve, entropy_gradient, trained):
    """The same bfloat16 numbers multiplied in float32: values agree to float32, gradients to the rounding of bfloat16."""
    tokens = 700
    hidden_MH, weight_VH, bias_V, token_ids_M = inputs(tokens)
    coefficients_M = torch.linspace(-1, 2, tokens, device="cuda")
    results = []
    for exact in (True, False):
        dtype = torch.float32 if exact else torch.bfloat16
        hidden = hidden_MH.to(dtype).requires_grad_()
        weight, bias = (t.to(dtype).clone().requires_grad_(trained) for t in (weight_VH, bias_V))
        if exact:
            logits_MV = (hidden @ weight.T + bias) * curve.scale
            if curve.softcap:
                logits_MV = torch.tanh(logits_MV / curve.softcap) * curve.softcap
            logprobs_MV = torch.log_softmax(logits_MV / curve.temperature, -1)
            logprobs_M = logprobs_MV.gather(1, token_ids_M[:, None])[:, 0]
            entropy_M = -(logprobs_MV.exp() * logprobs_MV).sum(-1)
            del logits_MV, logprobs_MV
        else:
            logprobs_M, entropy_M = linear_logprobs(
                hidden, token_ids_M, LinearHead(weight, bias, curve.scale, curve.softcap),
                temperature=curve.temperature, entropy_gradient=entropy_gradient, sizes=Sizes(128, 256),
            )  # fmt: skip
        loss = (logprobs_M * coefficients_M).sum()
        if entropy_gradient:
            loss = loss + 0.3 * (entropy_M * coefficients_M.flip(0)).sum()
        gradients = torch.autograd.grad(loss, [t for t in (hidden, weight, bias) if t.requires_grad])
        results.append((logprobs_M.detach(), entropy_M.detach(), gradients))
    (expected_M, expected_entropy_M, expected), (found_M, found_entropy_M, found) = results
    assert (found_M - expected_M).abs().max() <= 5e-5
    assert (found_entropy_M - expected_entropy_M).abs().max() <= 1e-4
    assert (found_M <= 0).all()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        assert relative(ours, theirs) <= 1e-2


def test_gradients_do_not_depend_on_chunks_or_on_what_is_kept():
    """Kept and made again bit by bit; other chunks and blocks to the rounding of bfloat16; two runs bit by bit."""
    hidden_MH, weight_VH, bias_V, token_ids_M = inputs(1100)
    coefficients_M = torch.linspace(-1, 2, 1100, device="cuda")
    leaves = [t.requires_grad_() for t in (hidden_MH, weight_VH, bias_V)]
    results = {}
    for sizes in (Sizes(256, 2048), Sizes(256, 256), Sizes(100, 300), Sizes(256, 2048)):
        ours = linear_logprobs(hidden_MH, token_ids_M, LinearHead(weight_VH, bias_V), temperature=1.0, sizes=sizes)
        loss = (ours[0] * coefficients_M).sum()
        kept = torch.autograd.grad(loss, leaves, retain_graph=True)
        again = torch.autograd.grad(loss, leaves)
        assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
        if sizes in results:
            assert all(torch.equal(a, b) for a, b in zip(kept, results[sizes], strict=True))
        results[sizes] = kept
    first = results[Sizes(256, 2048)]
    for other in results.values():
        for ours, theirs in zip(other, first, strict=True):
            assert relative(ours, theirs) <= 5e-3


@pytest.mark.parametrize("curve", CURVES)
def test_kernels_against_their_references_in_float64(curve):
    generator = torch.Generator(device="cuda").manual_seed(0)
    logits_CV = 4 * torch.randn(64, V, device="cuda", generator=generator)
    token_ids_C = torch.randint(0, V, (64,), device="cuda", generator=generator)
    token_ids_C[::2] = logits_CV[::2].argmax(-1)
    weights = torch.randn(2, 64, device="cuda", generator=generator)
    expected_CV = torch.empty(64, V, device="cuda", dtype=torch.float64)
    found_CV = torch.empty(64, V, device="cuda")
    expected = logprobs.score(logits_CV.double(), token_ids_C, curve, expected_CV)
    found = kernels_head.score(logits_CV, token_ids_C, curve, found_CV)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5
    assert (found_CV - expected_CV).abs().max() <= 1e-5
    assert relative(found_CV, expected_CV) <= 1e-5
    doubled = (weights[0].double(), weights[1].double())
    logprobs.differentiate(logits_CV.double(), token_ids_C, expected, curve, expected_CV, doubled)
    kernels_head.differentiate(logits_CV, token_ids_C, found, curve, found_CV, (weights[0], weights[1]))
    assert relative(found_CV, expected_CV) <= 1e-5


def test_the_samplers_logits_are_those_of_the_trainer():
    """Not rounded to bfloat16 in between, and log-probs from them are the trainer's."""
    hidden_MH, weight_VH, _, token_ids_M = inputs(300)
    projection = torch.nn.Linear(H, V, bias=False, device="meta")
    projection.weight = torch.nn.Parameter(weight_VH)
    parts = SplitModel(torch.nn.Identity(), projection, 0.0, 1.0)
    with torch.no_grad():
        logits_MV = parts.logits(hidden_MH[:, None])[:, 0]
        exact_MV = hidden_MH.double() @ weight_VH.double().T
        assert logits_MV.dtype == torch.float32
        assert (logits_MV - exact_MV).abs().max() <= 1e-4
        sampled_M = torch.log_softmax(logits_MV, -1).gather(1, token_ids_M[:, None])[:, 0]
        scored_M, _ = parts.token_logprobs(hidden_MH, token_ids_M, temperature=1.0)
    assert (sampled_M - scored_M).abs().max() <= 2e-5
    trained_M, _ = parts.token_logprobs(hidden_MH, token_ids_M, temperature=1.0)
    assert (trained_M.detach() - scored_M).abs().max() <= 1e-5


@pytest.mark.parametrize("addition", [False, True])
def test_the_sum_over_blocks_is_kept_in_float32(addition, monkeypatch):
    """With the addition inside the product, where this build of torch has it, and with one of its own."""
    available = logprobs._adds_in_place(torch.device("cuda", torch.cuda.current_device()), torch.bfloat16)
    print(f"\naddmm with a float32 sum: {available}")
    monkeypatch.setattr(logprobs, "_adds_in_place", lambda device, dtype: addition and available)
    generator = torch.Generator(device="cuda").manual_seed(0)
    rows = torch.randn(64, 512, 256, device="cuda", generator=generator).bfloat16()
    hidden = torch.randn(64, 512, 128, device="cuda", generator=generator).bfloat16()
    total = logprobs._WeightGradient(torch.empty(256, 128, device="cuda", dtype=torch.float32), single=False)
    for block in range(64):
        total.add(rows[block], hidden[block])
    expected = torch.einsum("bkv,bkh->vh", rows.double(), hidden.double())
    assert relative(total.total(), expected) <= 1e-5


def test_memory_is_a_chunk_and_a_block(monkeypatch):
    monkeypatch.setattr(logprobs, "CUDA_BLOCK_SHARE", torch.cuda.get_device_properties(0).total_memory // (2 << 30))
    peaks = []
    for tokens in (4096, 16_384):
        hidden_MH, weight_VH, _, token_ids_M = inputs(tokens)
        weight_VH.requires_grad_()
        hidden_MH.requires_grad_()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        linear_logprobs(hidden_MH, token_ids_M, LinearHead(weight_VH), temperature=1.0)[0].sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    print(f"\npeak of the head at 4,096 and 16,384 tokens: {peaks[0] / 2**30:.2f} and {peaks[1] / 2**30:.2f} GiB")
    weight_bytes = V * H * 4
    assert peaks[1] <= logprobs.CUDA_CHUNK_BYTES + (2 << 30) + 2 * weight_bytes + 8 * 16_384 * H
    assert peaks[1] <= 2 * peaks[0]  # four times as many tokens


def seconds(function, repeats: int = 5) -> float:
    """Median of what the device took, by its own events: the host may be busy."""
    for _ in range(2):
        function()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return sorted(times)[repeats // 2]


def test_time_of_forward_and_backward():
    """Printed beside the limit of the products alone; the bounds below only catch a path that is not the fast one."""
    tokens = 16_384
    hidden_MH, weight_VH, _, token_ids_M = inputs(tokens)
    coefficients_M = torch.linspace(-1, 2, tokens, device="cuda")
    product = 2 * tokens * V * H / PEAK_FLOPS

    def run(trained: bool, entropy_gradient: bool, sizes: Sizes | None) -> None:
        hidden, weight = hidden_MH.detach().requires_grad_(), weight_VH.detach().requires_grad_(trained)
        ours = linear_logprobs(
            hidden, token_ids_M, LinearHead(weight), temperature=1.0, entropy_gradient=entropy_gradient, sizes=sizes
        )
        loss = (ours[0] * coefficients_M).sum() + (0.01 * ours[1].sum() if entropy_gradient else 0.0)
        loss.backward()

    def forward_only() -> None:
        with torch.no_grad():
            linear_logprobs(hidden_MH, token_ids_M, LinearHead(weight_VH), temperature=1.0)

    print(
        f"\n{tokens} tokens, plan {logprobs.plan_sizes(V, torch.bfloat16, hidden_MH.device)}; one product {product * 1e3:.2f} ms"
    )
    cases = {
        "scoring (1 product)": (forward_only, 1),
        "frozen head (2 products)": (lambda: run(False, False, None), 2),
        "trained, all kept (3 products)": (lambda: run(True, False, None), 3),
        "trained, chunks of 4096": (lambda: run(True, False, Sizes(4096, 16_384)), 3),
        "trained, chunks of 1024": (lambda: run(True, False, Sizes(1024, 16_384)), 3),
        "trained, blocks of 4096 (3.75 products)": (lambda: run(True, False, Sizes(2048, 4096)), 3.75),
        "entropy gradient (4 products)": (lambda: run(True, True, None), 4),
    }
    for name, (function, products) in cases.items():
        took = seconds(function)
        of_four = 8 * tokens * V * H / PEAK_FLOPS / took
        print(
            f"{name}: {took * 1e3:.2f} ms, {products * product / took:.0%} of its own products; 8MVH limit / time {of_four:.0%}"
        )
        assert took <= 4 * products * product
    logits_CV = torch.randn(2048, V, device="cuda")
    gradient_CV = torch.empty(2048, V, device="cuda", dtype=torch.bfloat16)
    ids_C, curve = token_ids_M[:2048].clone(), Curve(1.0, 0.0, 1.0)
    scored = kernels_head.score(logits_CV, ids_C, curve)
    for name, function, width in (
        ("score", lambda: kernels_head.score(logits_CV, ids_C, curve), 4),
        ("score and gradient", lambda: kernels_head.score(logits_CV, ids_C, curve, gradient_CV), 10),
        ("gradient", lambda: kernels_head.differentiate(logits_CV, ids_C, scored, curve, gradient_CV), 6),
    ):
        took = seconds(function)
        print(f"kernel {name}: {took * 1e3:.3f} ms per 2,048 tokens, {width * logits_CV.numel() / took / 1e12:.2f} TB/s")
