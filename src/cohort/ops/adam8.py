"""AdamW with both moments in 8 bits: 2.03 bytes per parameter instead of 8.

Values are encoded in blocks of 256 with one float32 scale, the largest magnitude of the block. Differences from the usual 8-bit
optimizers:

- The codes are roots: the first moment is +-(code / 127)^2 and the second (code / 255)^4 of the scale. Relative precision then
  falls slowly with the size of a value, and needs no table.
- Rounding is stochastic. A second moment changes by a thousandth per step while its codes are a sixtieth apart, so with rounding to
  nearest it could get stuck. Stochastic rounding keeps its expectation (tested). The draws are keyed by (tensor, step, element), so a
  resumed run repeats them.
- A step cannot explode. A second moment above 0 never gets the code 0, and |m| is limited to the largest multiple of sqrt(v)
  that exact moments can have (Cauchy and Schwarz), so rounding cannot make a step larger than AdamW's largest.

One tensor is decoded at a time: on CUDA inside one kernel, elsewhere in pieces.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.errors import CheckpointError
from cohort.ops.fused import has_kernels
from cohort.ops.noise import MULTIPLY_1, MULTIPLY_2, SPREAD_INDEX, shift_right
from cohort.recipe.schema import OptimizerConfig

BLOCK = 256
SMALLEST = 4096
"""Smaller tensors keep float32 moments. Norms and biases are few, and each of their values affects a whole layer."""
PIECES = {"cpu": 1 << 16}
LARGE_PIECE = 1 << 24
"""Elements decoded at a time without the kernel, a multiple of BLOCK: sized for a CPU's cache, or 1.3 GB on other devices."""
FIRST_LEVELS, SECOND_LEVELS = 127, 255
ROUNDING_SLACK = 1.0 + 1e-5
"""More than any float32 rounding of the bound, so that exact moments are never cut."""
LARGEST, LARGEST_EXPONENT = 3e38, 700.0
"""Stands for no bound. Finite in float32, because 0 times infinity is not 0."""


@dataclass(frozen=True)
class Rule:
    """The numbers of one update of one tensor."""

    rate: float
    decay: float
    beta1: float
    beta2: float
    epsilon: float
    correction1: float
    """1 - beta1^t."""
    correction2_root: float
    """sqrt(1 - beta2^t)."""
    bound: float
    """Largest |m| / sqrt(v) that exact moments can have after t steps."""


def make_rule(step: int, rate: float, decay: float, beta1: float, beta2: float, epsilon: float) -> Rule:
    """Return the rule of a tensor's update number `step`, from 1."""
    bound = (1.0 - beta1) * math.sqrt(sum_geometric(beta1 * beta1, beta2, step) / (1.0 - beta2)) * ROUNDING_SLACK
    return Rule(rate, decay, beta1, beta2, epsilon, 1.0 - beta1**step, math.sqrt(1.0 - beta2**step), min(bound, LARGEST))


def sum_geometric(above: float, below: float, terms: int) -> float:
    """Return the sum of (above / below)^k for k < terms: the Cauchy-Schwarz bound of m = sum a_k g_k by v = sum b_k g_k^2."""
    if above == 0.0:
        return 1.0
    ratio = above / below if below else math.inf
    if ratio == 1.0:
        return float(terms)
    if ratio > 1.0 and terms * math.log(ratio) > LARGEST_EXPONENT:
        return math.inf
    return (1.0 - ratio**terms) / (1.0 - ratio)


@dataclass
class Moments:
    """Both moments of one tensor of N elements in K = ceil(N / 256) blocks."""

    first_codes: Tensor
    """[N] int8."""
    first_scales: Tensor
    """[K] float32."""
    second_codes: Tensor
    """[N] uint8; 0 exactly where the moment is 0."""
    second_scales: Tensor
    step: int = 0
    """Updates taken."""

    @classmethod
    def zeros(cls, like: Tensor) -> Moments:
        size, blocks, device = like.numel(), -(-like.numel() // BLOCK), like.device
        return cls(
            torch.zeros(size, dtype=torch.int8, device=device),
            torch.zeros(blocks, dtype=torch.float32, device=device),
            torch.zeros(size, dtype=torch.uint8, device=device),
            torch.zeros(blocks, dtype=torch.float32, device=device),
        )

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in MOMENT_TENSORS}


MOMENT_TENSORS = ("first_codes", "first_scales", "second_codes", "second_scales")


# -- codes -------------------------------------------------------------------------------------------------------------


def encode_first(values_KE: Tensor, uniform_KE: Tensor) -> tuple[Tensor, Tensor]:
    """Encode signed values, one block per row. `uniform` in [0, 1) selects the upper or lower code. Returns (codes, scales)."""
    scales_K = values_KE.abs().amax(1)
    share_KE = values_KE.abs() / choose_divisor(scales_K)
    low_KE = (share_KE.sqrt() * FIRST_LEVELS).floor_().clamp_(max=FIRST_LEVELS - 1)
    # (low + 1)^2 - low^2 = 2 low + 1.
    chance_KE = (share_KE * FIRST_LEVELS**2 - low_KE * low_KE) / (2.0 * low_KE + 1.0)
    codes_KE = low_KE + (uniform_KE < chance_KE)
    return torch.where(values_KE < 0, -codes_KE, codes_KE).to(torch.int8), scales_K


def decode_first(codes_KE: Tensor, scales_K: Tensor) -> Tensor:
    root_KE = codes_KE.float() * (1.0 / FIRST_LEVELS)
    return root_KE * root_KE.abs() * scales_K[:, None]


def encode_second(values_KE: Tensor, uniform_KE: Tensor) -> tuple[Tensor, Tensor]:
    """Encode values >= 0. Values above 0 keep a code above 0. Returns (codes, scales)."""
    scales_K = values_KE.amax(1)
    share_KE = values_KE / choose_divisor(scales_K)
    low_KE = (share_KE.sqrt().sqrt_() * SECOND_LEVELS).floor_().clamp_(max=SECOND_LEVELS - 1)
    bottom_KE, top_KE = raise_to_fourth(low_KE), raise_to_fourth(low_KE + 1.0)
    chance_KE = (share_KE - bottom_KE) / (top_KE - bottom_KE)
    codes_KE = torch.maximum(low_KE + (uniform_KE < chance_KE), (values_KE > 0).float())
    return codes_KE.to(torch.uint8), scales_K


def decode_second(codes_KE: Tensor, scales_K: Tensor) -> Tensor:
    return raise_to_fourth(codes_KE.float()) * scales_K[:, None]


def raise_to_fourth(codes: Tensor) -> Tensor:
    root = codes * (1.0 / SECOND_LEVELS)
    square = root * root
    return square * square


def choose_divisor(scales_K: Tensor) -> Tensor:
    """Return the scales with 0, of a block of zeros, replaced by 1."""
    return torch.where(scales_K > 0, scales_K, 1.0)[:, None]


# -- keyed rounding ----------------------------------------------------------------------------------------------------


def make_rounding_key(name: str, step: int) -> tuple[int, int]:
    """Return two signed 32-bit words for one update of one tensor."""
    digest = hashlib.blake2b(f"adam8|{name}|{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def draw_uniforms(key: tuple[int, int], start: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two 16-bit numbers in [0, 1) for every element from `start` on, with the hash of ops/noise.py."""
    bits = torch.arange(start, start + size, device=device).to(torch.int32) * SPREAD_INDEX ^ key[0]
    bits = (bits ^ shift_right(bits, 16)) * MULTIPLY_1 + key[1]
    bits = (bits ^ shift_right(bits, 15)) * MULTIPLY_2
    bits = bits ^ shift_right(bits, 16)
    return (bits & 0xFFFF).float() * 2.0**-16, shift_right(bits, 16).float() * 2.0**-16


# -- one update --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def update_pieces(master: Tensor, gradient: Tensor, moments: Moments, rule: Rule, key: tuple[int, int]) -> None:
    """The kernel's reference implementation in PyTorch: any device, any size, in place, piece by piece."""
    master_N, gradient_N = master.view(-1), gradient.reshape(-1)
    length = PIECES.get(master.device.type, LARGE_PIECE)
    for start in range(0, master_N.numel(), length):
        piece = slice(start, min(start + length, master_N.numel()))
        blocks = slice(start // BLOCK, -(-piece.stop // BLOCK))
        size = piece.stop - start
        missing = -size % BLOCK

        def rows(values_N: Tensor, missing: int = missing) -> Tensor:
            values_N = torch.nn.functional.pad(values_N, (0, missing)) if missing else values_N
            return values_N.view(-1, BLOCK)

        gradient_KE = rows(gradient_N[piece].float())
        first_KE = decode_first(rows(moments.first_codes[piece]), moments.first_scales[blocks])
        second_KE = decode_second(rows(moments.second_codes[piece]), moments.second_scales[blocks])
        first_KE = first_KE * rule.beta1 + gradient_KE * (1.0 - rule.beta1)
        second_KE = second_KE * rule.beta2 + gradient_KE * gradient_KE * (1.0 - rule.beta2)
        root_KE = second_KE.sqrt()
        limit_KE = root_KE * rule.bound
        first_KE = torch.minimum(torch.maximum(first_KE, -limit_KE), limit_KE)
        change_KE = first_KE / (root_KE * (1.0 / rule.correction2_root) + rule.epsilon)
        master_KE = rows(master_N[piece]) * (1.0 - rule.rate * rule.decay) - change_KE * (rule.rate / rule.correction1)
        master_N[piece] = master_KE.view(-1)[:size]
        uniforms = draw_uniforms(key, start, size + missing, master.device)
        codes_KE, scales_K = encode_first(first_KE, uniforms[0].view(-1, BLOCK))
        moments.first_codes[piece], moments.first_scales[blocks] = codes_KE.view(-1)[:size], scales_K
        codes_KE, scales_K = encode_second(second_KE, uniforms[1].view(-1, BLOCK))
        moments.second_codes[piece], moments.second_scales[blocks] = codes_KE.view(-1)[:size], scales_K


class Adam8:
    """AdamW over named float32 tensors with two moments of 8 bits. Updates the tensors in place."""

    def __init__(self, masters: Mapping[str, Tensor], config: OptimizerConfig):
        self.masters = dict(masters)
        self.config = config
        self.moments: dict[str, Moments] = {}
        """Created at a tensor's first gradient, as in torch's optimizers."""

    def step(self, rate: float) -> None:
        for name, master in self.masters.items():
            if master.grad is None:
                continue
            moments = self.moments.setdefault(name, Moments.zeros(master))
            moments.step += 1
            config = self.config
            decay = config.weight_decay if master.dim() >= 2 else 0.0
            rule = make_rule(moments.step, rate, decay, config.beta1, config.beta2, config.epsilon)
            key = make_rounding_key(name, moments.step)
            if has_kernels(master.device):
                from cohort.ops.fused.kernels_adam8 import update_fused

                update_fused(master, master.grad.contiguous(), moments, rule, key)
            else:
                update_pieces(master, master.grad, moments, rule, key)

    def state(self) -> dict[str, Tensor]:
        """Return codes, scales and step counts by parameter name."""
        tensors: dict[str, Tensor] = {}
        for name, moments in self.moments.items():
            tensors |= {f"{name}|{kind}": tensor for kind, tensor in moments.tensors().items()}
            tensors[f"{name}|step"] = torch.tensor([moments.step])
        return tensors

    def load(self, name: str, parts: Mapping[str, Tensor]) -> None:
        """Load the moments of one parameter, as returned by `state`."""
        master = self.masters[name]
        if set(parts) != {*MOMENT_TENSORS, "step"}:
            raise CheckpointError(
                f"the checkpoint holds no 8-bit moments for {name} but {', '.join(sorted(parts))}: it was written with "
                "another optimizer.state_bits. Resume with the value the run was started with (32 is the default)."
            )
        moments = Moments.zeros(master)
        for kind, empty in moments.tensors().items():
            given = parts[kind]
            if given.dtype != empty.dtype or given.shape != empty.shape:
                raise CheckpointError(
                    f"{name}: {kind} in the checkpoint is {given.dtype} {tuple(given.shape)}, and {empty.dtype} "
                    f"{tuple(empty.shape)} is needed; the checkpoint belongs to another model."
                )
            empty.copy_(given)
        moments.step = int(parts["step"])
        self.moments[name] = moments
