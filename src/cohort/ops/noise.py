"""Keyed Gumbel noise: the same key always gives the same noise.

The textbook sampler draws from a generator, so a token depends on how many numbers were drawn before: on the batch size, the
order of prompts, and which rows had finished. Here the noise of a token is a pure function of (seed, stream, step, draw,
sample, position, vocabulary index). The sampled token is argmax(logits / temperature + Gumbel noise), which is an exact draw
from the softmax. So every engine, slot count and order uses the same noise.

There are two stages. The host hashes the identity of a completion into two 32-bit words (`make_row_key`). The device turns
words, position and vocabulary index into noise with int32 wrap-around arithmetic (`make_gumbel`). The integers are equal on CPU
and CUDA; only the last bit of the two logarithms may differ. There is no generator and no branch on a value, so it can be
compiled or captured.
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
"""The largest float32 below 1, so that log1p(-u) is finite."""


def make_row_key(noise: NoiseKey, draw: int, sample: int) -> tuple[int, int]:
    """Return two signed 32-bit words that identify a completion."""
    name = f"{noise.seed}|{noise.stream}|{noise.step}|{draw}|{sample}".encode()
    digest = hashlib.blake2b(name, digest_size=8).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def shift_right(bits: Tensor, by: int) -> Tensor:
    """Shift logically: torch's >> repeats the sign bit, and the mask removes the copies."""
    return (bits >> by) & ((1 << (32 - by)) - 1)


def mix_bits(bits: Tensor) -> Tensor:
    """Apply lowbias32, in which each input bit flips each output bit about half of the time."""
    bits = (bits ^ shift_right(bits, 16)) * MULTIPLY_1
    bits = (bits ^ shift_right(bits, 15)) * MULTIPLY_2
    return bits ^ shift_right(bits, 16)


def make_random_bits(row_keys_B2: Tensor, positions_B: Tensor, vocab_size: int) -> Tensor:
    """Hash (row key, position, vocabulary index) into [B, V] int32.

    Each (key, position) gives two words. With one word all rows would be permutations of a single sequence of 2^32 values. The
    second word enters between the two multiplications, so rows differ in more than their starting point.
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
    """Return standard Gumbel noise [B, V] float32 for the tokens at `positions_B` of the completions `row_keys_B2` (int32).

    The largest values win, so they need the precision: g = -log(E) with E = -log1p(-u) exponential. A large g is a small u, and
    floats are densest at 0. With the usual -log(-log(u)) the winners would have u near 1, where float32 has 24 bits and
    infinities. u is (31 random bits + 1/2) / 2^31: never 0, and at most LARGEST_UNIFORM.
    """
    bits_BV = make_random_bits(row_keys_B2, positions_B, vocab_size) & 0x7FFFFFFF
    uniform_BV = ((bits_BV.float() + 0.5) * 2.0**-31).clamp_(max=LARGEST_UNIFORM)
    return uniform_BV.neg_().log1p_().neg_().log_().neg_()
