"""Keyed Gumbel noise: randomness that is looked up, not consumed.

The textbook sampler draws from a generator, so a token depends on how many numbers were drawn before it: on the batch
size, on the order of the prompts, on which rows had already finished. Here the noise of a token is a pure function of
(seed, stream, step, draw, sample, position, vocabulary index), and the sampled token is argmax(logits / temperature +
Gumbel noise), which is an exact draw from the softmax. Every engine, slot count and order then meets the same noise.

Two stages: the host hashes what names a completion into two 32-bit words (`make_row_key`); the device turns words, position
and vocabulary index into noise with int32 wrap-around arithmetic (`make_gumbel`). Integers come out the same on CPU and CUDA;
only the last bit of the two logarithms may differ. No generator, no branch on a value: it can be compiled or captured.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from cohort.types import NoiseKey

# Multipliers of the lowbias32 finaliser (Chris Wellons' search for integer hashes, bias 0.17), as signed int32.
MULTIPLY_1 = 0x7FEB352D
MULTIPLY_2 = 0x846CA68B - (1 << 32)
# Odd constants that spread consecutive positions and vocabulary indices over all 32 bits (2^32 / golden ratio; MurmurHash3).
SPREAD_POSITION = 0x9E3779B9 - (1 << 32)
SPREAD_INDEX = 0x85EBCA6B - (1 << 32)

LARGEST_UNIFORM = 1.0 - 2.0**-24
"""The float32 below 1: log1p(-u) stays finite."""


def make_row_key(noise: NoiseKey, draw: int, sample: int) -> tuple[int, int]:
    """Two signed 32-bit words that name one completion."""
    name = f"{noise.seed}|{noise.stream}|{noise.step}|{draw}|{sample}".encode()
    digest = hashlib.blake2b(name, digest_size=8).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift: torch's >> repeats the sign bit, the mask takes the copies away."""
    return (bits >> by) & ((1 << (32 - by)) - 1)


def mix_bits(bits: Tensor) -> Tensor:
    """lowbias32: each input bit flips each output bit about half of the time."""
    bits = (bits ^ shift_right(bits, 16)) * MULTIPLY_1
    bits = (bits ^ shift_right(bits, 15)) * MULTIPLY_2
    return bits ^ shift_right(bits, 16)


def make_random_bits(row_keys_B2: Tensor, positions_B: Tensor, vocab_size: int) -> Tensor:
    """Hash [B, V] int32 of (row key, position, vocabulary index).

    Each (key, position) is two words. With one word, all rows would be permutations of a single sequence of 2^32 values;
    the second word enters between the two multiplications, so rows differ by more than where they start.
    """
    first_B, second_B = row_keys_B2[:, 0], row_keys_B2[:, 1]
    spread_B = positions_B.to(torch.int32) * SPREAD_POSITION
    outer_B = mix_bits(mix_bits(spread_B + first_B) ^ second_B)
    inner_B = mix_bits(mix_bits(spread_B ^ second_B) + first_B)
    index_V = torch.arange(vocab_size, dtype=torch.int32, device=row_keys_B2.device) * SPREAD_INDEX
    bits_BV = index_V[None] ^ outer_B[:, None]
    bits_BV = (bits_BV ^ shift_right(bits_BV, 16)) * MULTIPLY_1 + inner_B[:, None]
    bits_BV = (bits_BV ^ shift_right(bits_BV, 15)) * MULTIPLY_2
    return bits_BV ^ shift_right(bits_BV, 16)


def make_gumbel(row_keys_B2: Tensor, positions_B: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [B, V] float32 for the token at `positions_B` of the completions `row_keys_B2` (int32).

    The largest values win, so those need the precision: g = -log(E) with E = -log1p(-u) exponential, where a large g is
    a small u, and floats are densest at 0. (With the usual -log(-log(u)) the winners would sit at u near 1, where
    float32 has 24 bits and infinities.) u is (31 random bits + 1/2) / 2^31: never 0, and never above LARGEST_UNIFORM.
    """
    bits_BV = make_random_bits(row_keys_B2, positions_B, vocab_size) & 0x7FFFFFFF
    uniform_BV = ((bits_BV.float() + 0.5) * 2.0**-31).clamp_(max=LARGEST_UNIFORM)
    return uniform_BV.neg_().log1p_().neg_().log_().neg_()
