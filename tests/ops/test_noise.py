"""Keyed Gumbel noise: the right distribution, dependence only on its key, finite everywhere."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from cohort.ops.noise import make_gumbel, make_random_bits, make_row_key, mix_bits, shift_right
from cohort.types import NoiseKey

TRAIN = NoiseKey(seed=0, stream="train", step=1)


def keys(count: int, noise: NoiseKey = TRAIN, sample: int = 0) -> torch.Tensor:
    return torch.tensor([make_row_key(noise, draw, sample) for draw in range(count)], dtype=torch.int32)


def bits_of(row_keys_B2: torch.Tensor, position: int, vocab_size: int) -> np.ndarray:
    positions_B = torch.full((len(row_keys_B2),), position)
    return make_random_bits(row_keys_B2, positions_B, vocab_size).numpy().astype(np.int64) & 0xFFFFFFFF


def uniforms(row_keys_B2: torch.Tensor, position: int, vocab_size: int) -> np.ndarray:
    return (bits_of(row_keys_B2, position, vocab_size) + 0.5) / 2**32


def test_the_hash_is_the_published_one_bit_for_bit():
    """lowbias32 in exact Python integers; torch's int32 must wrap and shift the same way."""

    def lowbias32(x: int) -> int:
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ (x >> 16)

    values = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF, 123456789]
    signed = torch.tensor([value - (1 << 32) if value >> 31 else value for value in values], dtype=torch.int32)
    assert [value & 0xFFFFFFFF for value in mix_bits(signed).tolist()] == [lowbias32(value) for value in values]
    assert shift_right(signed, 16).tolist() == [value >> 16 for value in values]


def test_row_keys_are_stable_and_32_bit():
    """Pinned: another key would silently change every run that is resumed."""
    assert make_row_key(NoiseKey(7, "train", 3), draw=2, sample=1) == (1732795515, -310146381)
    words = [word for draw in range(500) for word in make_row_key(TRAIN, draw, 0)]
    assert min(words) >= -(2**31)
    assert max(words) < 2**31
    assert min(words) < 0 < max(words)


def test_every_part_of_the_key_counts_and_none_collides():
    names = itertools.product((0, 1, 12), ("train", "evaluate", "preflight", "cold_start"), (1, 2, 11), range(12), range(12))
    made = [make_row_key(NoiseKey(seed, stream, step), draw, sample) for seed, stream, step, draw, sample in names]
    assert len(set(made)) == len(made) == 3 * 4 * 3 * 12 * 12


def test_noise_is_a_pure_function_of_key_and_position():
    row_keys_B2, positions_B = keys(6), torch.arange(6)
    together = make_gumbel(row_keys_B2, positions_B, 33)
    alone = torch.cat([make_gumbel(row_keys_B2[at : at + 1], positions_B[at : at + 1], 33) for at in range(6)])
    assert torch.equal(together, alone)
    wider = make_gumbel(row_keys_B2, positions_B, 100)
    assert torch.equal(wider[:, :33], together), "the noise of an index must not depend on the size of the vocabulary"


def test_uniformity_in_bins_and_in_every_bit():
    values = uniforms(keys(200), 5, 1000).ravel()
    assert stats.chisquare(np.histogram(values, 256, (0, 1))[0]).pvalue > 1e-4
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    bits = bits_of(keys(200), 5, 1000).ravel()
    for bit in range(32):
        ones = int(((bits >> bit) & 1).sum())
        assert abs(ones - len(bits) / 2) < 4.5 * math.sqrt(len(bits)) / 2, f"bit {bit}"


def test_gumbel_distribution_and_its_winning_tail():
    noise = torch.cat([make_gumbel(keys(100), torch.full((100,), position), 4000) for position in range(5)]).flatten().numpy()
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-4
    # The tail that wins: P(g > x) = 1 - exp(-exp(-x)); 2 million draws, so about 90 above 10.
    for threshold in (5.0, 8.0, 10.0):
        expected = -math.expm1(-math.exp(-threshold)) * len(noise)
        assert abs((noise > threshold).sum() - expected) < 5 * math.sqrt(expected)
    # Large values must not fall on a coarse grid, as they would with -log(-log(u)) at u near 1.
    top = noise[noise > 8.0]
    assert len(np.unique(top)) > 0.98 * len(top)


@pytest.mark.parametrize("lag", [1, 2, 16, 256])
def test_neighbouring_vocabulary_indices_are_independent(lag):
    values = uniforms(keys(100), 0, 2000)
    check_independent(values[:, :-lag].ravel(), values[:, lag:].ravel())


def check_independent(first: np.ndarray, second: np.ndarray) -> None:
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(len(first))
    table = np.histogram2d(first, second, 16, ((0, 1), (0, 1)))[0]
    assert stats.chisquare(table.ravel()).pvalue > 1e-4
    assert (first == second).mean() < 1e-3


@pytest.mark.parametrize(
    ("other", "position"),
    [
        (keys(100), 1),
        (keys(100), 4096),
        (keys(101)[1:], 0),
        (keys(100, sample=1), 0),
        (keys(100, NoiseKey(1, "train", 1)), 0),
        (keys(100, NoiseKey(0, "evaluate", 1)), 0),
        (keys(100, NoiseKey(0, "train", 2)), 0),
    ],
    ids=["position", "far position", "draw", "sample", "seed", "stream", "step"],
)
def test_noises_of_different_keys_are_independent(other, position):
    check_independent(uniforms(keys(100), 0, 2000).ravel(), uniforms(other, position, 2000).ravel())


def test_adjacent_raw_keys_are_independent_too():
    """The device hash must not lean on blake2b: keys that differ in one bit of either word are as good as any."""
    base = keys(50)
    for word in (0, 1):
        for bit in (0, 13, 31):
            flipped = base.clone()
            flipped[:, word] ^= -(2**31) if bit == 31 else 1 << bit
            check_independent(uniforms(base, 3, 2000).ravel(), uniforms(flipped, 3, 2000).ravel())


def test_collisions_are_as_rare_as_chance():
    values = np.concatenate([bits_of(keys(100), position, 500).ravel() for position in range(4)])
    expected = len(values) ** 2 / 2 / 2**32
    assert len(values) - len(np.unique(values)) < expected + 6 * math.sqrt(expected)


def test_finite_for_every_uniform_and_extreme_keys():
    extreme = torch.tensor([[0, 0], [-1, -1], [2**31 - 1, -(2**31)], [-(2**31), 2**31 - 1]], dtype=torch.int32)
    for position in (0, 1, 2**31 - 1):
        noise = make_gumbel(extreme, torch.full((4,), position), 150_000)
        assert noise.dtype == torch.float32
        assert torch.isfinite(noise).all()
    # The two ends of the 31-bit uniform, through the same arithmetic.
    for bits in (0, 2**31 - 1):
        uniform = min((float(np.float32(bits)) + 0.5) * 2.0**-31, 1.0 - 2.0**-24)
        assert math.isfinite(-math.log(-math.log1p(-uniform)))


def test_argmax_of_logits_plus_noise_is_a_draw_from_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -4.0, 0.5, -0.5])
    draws = torch.cat([(logits + make_gumbel(keys(2000), torch.full((2000,), at), 7)).argmax(-1) for at in range(20)])
    observed = np.bincount(draws.numpy(), minlength=7)
    assert stats.chisquare(observed, logits.double().softmax(0).numpy() * len(draws)).pvalue > 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_same_bits_on_cuda():
    row_keys_B2, positions_B = keys(64), torch.arange(64)
    on_cpu = make_random_bits(row_keys_B2, positions_B, 5000)
    assert torch.equal(on_cpu, make_random_bits(row_keys_B2.cuda(), positions_B.cuda(), 5000).cpu())
    difference = make_gumbel(row_keys_B2, positions_B, 5000) - make_gumbel(row_keys_B2.cuda(), positions_B.cuda(), 5000).cpu()
    assert difference.abs().max() < 1e-5
