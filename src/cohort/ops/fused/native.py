"""The compiled part of decoding and training on a CPU (native/): never required.

A file that the package brought is taken where one fits; else it is compiled where a compiler is found (building.py). Wherever it
comes from, every process compares it with PyTorch, bit for bit, before it relies on it. Whatever goes wrong (no compiler, no
place to write, other bits) costs speed and nothing else: the PyTorch twin in cpu.py decodes, the modules of transformers
train, and the reason stands in the first lines of a run.

COHORT_NATIVE=0 switches it off.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cohort.errors import EngineError
from cohort.ops.fused.building import NoNative, build_library, find_cache_folder, find_prebuilt, read_source
from cohort.ops.noise import make_gumbel

SWITCH = "COHORT_NATIVE"
LANES = 8
"""Dimensions of a head that the kernel takes at once (LANES in common.h)."""
SUM_LANES = (16, 8, 4)
"""Columns in which PyTorch may add up a row: floats in the registers that it was built for."""


I64, POINTER = ctypes.c_int64, ctypes.c_void_p
NUMBERS = {"int64_t": I64, "double": ctypes.c_double}
POINTED_TO = {"float": torch.float32, "double": torch.float64, "int64_t": torch.int64}
"""Types of C."""
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "attend": (I64, POINTER, POINTER, POINTER, I64),
    "normalize": (None, POINTER, POINTER, I64),
    "uniforms": (None, POINTER, POINTER, I64, I64, POINTER),
    "decode_layers": (I64, POINTER),
    **dict.fromkeys(("add_norm_forward", "add_norm_backward", "rotary_forward", "rotary_backward"), (None, POINTER)),
    "swiglu_backward": (None, POINTER),
    **dict.fromkeys(("attention_forward", "attention_backward"), (None, POINTER, POINTER)),
}
"""What the functions of the library give, and take."""


@functools.cache
def read_structures() -> dict[str, type[Any]]:
    """The structs of the C sources, by name: what their fields are is said there alone. `dtypes`: of what their pointers point to."""
    text = re.sub(r"/\*.*?\*/", "", read_source().decode(), flags=re.DOTALL)
    found = {}
    for name, body in re.findall(r"^struct (\w+) \{(.*?)\};", text, re.DOTALL | re.MULTILINE):
        fields, dtypes = [], {}
        for declaration in filter(None, map(str.strip, body.split(";"))):
            kind = declaration.removeprefix("const ").split()[0]
            for part in declaration.split(","):
                field = part.split()[-1].lstrip("*")
                fields.append((field, POINTER if "*" in part else NUMBERS.get(kind, POINTER)))
                dtypes[field] = POINTED_TO.get(kind)
        found[name] = type(name, (ctypes.Structure,), {"_fields_": fields, "dtypes": dtypes})
    return found


def fill_structure(name: str, **fields: Any) -> Any:
    """A struct of the C sources. Tensors and arrays give their address, and live as long as the struct does."""
    kind: Any = read_structures()[name]

    def find_address(field: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            expected = kind.dtypes[field]
            if value.dtype != expected:  # the norms of a model may have another dtype than the rest
                raise EngineError(f"compiled code reads {field} in {expected}, not in {value.dtype}")
            return value.data_ptr()
        return value.ctypes.data if hasattr(value, "ctypes") else value

    structure = kind(**{field: find_address(field, value) for field, value in fields.items()})
    structure.kept = fields
    return structure


@dataclass(frozen=True)
class Borrowed:
    """Addresses of functions inside PyTorch: its matrix product, its exponential of sixteen floats, and how many threads a
    product of the calling thread takes."""

    product: int
    exponential: int
    threads: int


@dataclass(frozen=True)
class Native:
    """The kernel for one shape of heads. Calls release Python's lock: threads with rows of their own run side by side."""

    attend: Callable[..., int]
    """(rows, keys, values, window): turn, write down and attend, from `qkv` to `mixed`; a row outside of its slot, or -1."""
    normalize: Callable[..., None]
    """(rows, weight, with_delta): add `delta` to `hidden`, if asked, and give RMSNorm in `normed`."""
    uniforms: Callable[..., None]
    """(keys, positions, count, vocabulary, into): random numbers of ops/noise.py, with their sign turned."""
    sum_lanes: int
    """Columns in which it adds up a row; 0: PyTorch's order of adding is not known, and norms are left to it."""
    library: Any
    """The loaded library, for what training calls (cpu_training.py)."""
    decode_layers: Callable[..., int]
    """(stack): tokens through all layers, to `normed`; a row outside of its slot, or -1."""
    borrowed: Borrowed | None = None
    """What `decode_layers` needs of PyTorch; None: it has other functions, or they give other bits, and Python calls one
    operation after the other."""

    def make_gumbel(self, row_keys_B2: Tensor, positions_B: Tensor, vocab_size: int) -> Tensor:
        """noise.make_gumbel in a few calls instead of a hundred; the logarithms are PyTorch's, and so are the bits."""
        keys_B2, positions_B = row_keys_B2.contiguous(), positions_B.to(torch.int32).contiguous()
        uniform_BV = torch.empty(len(keys_B2), vocab_size)
        self.uniforms(keys_B2.data_ptr(), positions_B.data_ptr(), len(keys_B2), vocab_size, uniform_BV.data_ptr())
        return uniform_BV.log1p_().neg_().log_().neg_()


def load_library(head_dim: int, group: int, width: int) -> Native:
    """The kernel for these heads and this width of the residual stream; NoNative with the reason where there is none."""
    if os.environ.get(SWITCH, "1") == "0":
        raise NoNative(f"{SWITCH}=0")
    if head_dim % LANES:
        raise NoNative(f"heads of {head_dim} dimensions")
    found = find_library(head_dim, group, width, find_cache_folder(), os.environ.get("PATH", ""))
    if isinstance(found, str):
        raise NoNative(found)
    return found


@functools.lru_cache(maxsize=32)
def find_library(head_dim: int, group: int, width: int, folder: Path | None, path: str) -> Native | str:
    """What the package brought, else what is built; loaded and compared once per process and shape. Or the reasons why not."""
    reasons = []
    for find in (lambda: find_prebuilt(head_dim), lambda: build_library(head_dim, folder, path)):
        try:
            if file := find():
                return compare_library(bind_library(ctypes.CDLL(str(file))), head_dim, group, width)
        except NoNative as problem:
            reasons.append(str(problem))
        except (OSError, subprocess.SubprocessError, AttributeError) as problem:
            reasons.append(f"{type(problem).__name__}: {problem}")
    return "; ".join(reasons)


def bind_library(library: Any) -> Native:
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return Native(library.attend, library.normalize, library.uniforms, 0, library, library.decode_layers, borrow_functions())


def find_torch_library() -> str:
    return str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")


def borrow_functions() -> Borrowed | None:
    """Functions of the libraries that PyTorch was built with, where it shows them. Not part of its interface: a build may lack
    them, and what they give is compared before they are used."""
    try:
        library = ctypes.CDLL(find_torch_library())
        found = [library.sgemm_, library.Sleef_expf16_u10, library.MKL_Set_Num_Threads_Local]
    except (OSError, AttributeError):
        return None
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in found]
    return Borrowed(*(address or 0 for address in addresses)) if all(addresses) else None


# -- comparing ---------------------------------------------------------------------------------------------------------------


def compare_library(native: Native, head_dim: int, group: int, width: int) -> Native:
    """Run on made-up rows beside PyTorch. Attention must have its bits; norms are left to it where they do not."""
    generator = torch.Generator().manual_seed(0)
    count, kv_heads, length, window = 32, 2, 29, 7  # so many rows that another order of adding shows

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    qkv = noise(count, (group + 2) * kv_heads, head_dim)
    keys, values = noise(count, kv_heads, length, head_dim), noise(count, kv_heads, length, head_dim)
    positions, angles = torch.arange(count) % length, noise(length, head_dim // 2)
    turns = torch.cat([angles.cos(), angles.sin()], -1)
    hidden, delta, weight = noise(count, width), noise(count, width), noise(width)
    normed, mixed = torch.empty(count, width), torch.empty(count, kv_heads * group * head_dim)
    squares, scores = torch.empty(max(width, 2 * head_dim)), torch.empty(group, length + LANES, dtype=torch.float64)
    epsilon, scaling = 1e-5, head_dim**-0.5

    def fill_rows(hidden: Tensor, qkv: Tensor, sum_lanes: int) -> Any:
        tensors = {"hidden": hidden, "delta": delta, "normed": normed, "squares": squares, "qkv": qkv, "mixed": mixed}
        places = {"scores": scores, "turns": turns, "positions": positions}
        sizes = {"count": count, "width": width, "kv_heads": kv_heads, "group": group, "length": length, "sum_lanes": sum_lanes}
        return fill_structure("rows", **tensors, **places, **sizes, scaling=scaling, epsilon=epsilon)

    for seen in (length, window):
        expected = attend_plainly(qkv, keys, values, positions, turns, seen, scaling)
        own_keys, own_values, own_qkv = keys.clone(), values.clone(), qkv.clone()
        native.attend(
            ctypes.byref(fill_rows(hidden, own_qkv, 0)),
            own_keys.data_ptr(),
            own_values.data_ptr(),
            0 if seen == length else seen,
        )
        if not torch.equal(mixed, expected):
            raise NoNative("its attention has other bits than PyTorch's")
    noise_keys = torch.randint(-(2**31), 2**31, (count, 2), generator=generator).int()
    if not torch.equal(native.make_gumbel(noise_keys, positions, 50), make_gumbel(noise_keys, positions, 50)):
        raise NoNative("its noise has other bits than PyTorch's")
    added = hidden + delta
    expected_BH = added * torch.rsqrt((added * added).mean(-1, keepdim=True) + epsilon) * weight
    for sum_lanes in SUM_LANES:
        own_hidden = hidden.clone()
        native.normalize(ctypes.byref(fill_rows(own_hidden, qkv, sum_lanes)), weight.data_ptr(), 1)
        if torch.equal(own_hidden, added) and torch.equal(normed, expected_BH):
            return replace(native, sum_lanes=sum_lanes)
    return replace(native, borrowed=None)  # all layers in one call need norms


def attend_plainly(
    qkv: Tensor, keys: Tensor, values: Tensor, positions: Tensor, turns: Tensor, window: int, scaling: float
) -> Tensor:
    """What `attend` has to give, spelled out row by row."""
    kv_heads, dim = keys.shape[1], keys.shape[3]
    group = qkv.shape[1] // kv_heads - 2
    out = []
    for row, at in enumerate(positions.tolist()):
        turned, new_value = qkv[row, :-kv_heads], qkv[row, -kv_heads:]
        cosine, sine = turns[at].split(dim // 2)
        first, second = turned.split(dim // 2, -1)
        turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
        low = max(0, at - window + 1)
        key = torch.cat([keys[row, :, low:at], turned[-kv_heads:, None]], 1).double()
        value = torch.cat([values[row, :, low:at], new_value[:, None]], 1).double()
        query = turned[:-kv_heads].double().view(kv_heads, group, dim) * scaling
        out.append(((query @ key.transpose(1, 2)).softmax(-1) @ value).float().flatten())
    return torch.stack(out)
