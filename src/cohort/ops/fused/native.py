"""Loads the compiled code for decoding and training on a CPU (native/), which is optional.

A file from the wheel is used if one fits; otherwise it is compiled if there is a compiler (building.py). Every process compares
it with PyTorch bit for bit before using it. Any failure (no compiler, no writable folder, other bits) only costs speed: cpu.py
decodes with PyTorch, the modules of transformers train, and the first lines of a run print the reason.

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
"""Head dimensions per vector (LANES in common.h)."""
SUM_LANES = (16, 8, 4)
"""Numbers of columns in which PyTorch may sum a row: floats per register of its build."""


I64, POINTER = ctypes.c_int64, ctypes.c_void_p
NUMBERS = {"int64_t": I64, "double": ctypes.c_double}
POINTED_TO = {"float": torch.float32, "double": torch.float64, "int64_t": torch.int64}
"""C types."""
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "attend": (I64, POINTER, POINTER, POINTER, I64),
    "normalize": (None, POINTER, POINTER, I64),
    "uniforms": (None, POINTER, POINTER, I64, I64, POINTER),
    "decode_layers": (I64, POINTER),
    **dict.fromkeys(("add_norm_forward", "add_norm_backward", "rotary_forward", "rotary_backward"), (None, POINTER)),
    "swiglu_backward": (None, POINTER),
    **dict.fromkeys(("attention_forward", "attention_backward"), (None, POINTER, POINTER)),
}
"""Result and arguments of the library's functions."""


@functools.cache
def read_structures() -> dict[str, type[Any]]:
    """Return the structs of the C sources by name; the sources alone define their fields. `dtypes`: types of the pointers'
    targets.
    """
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
    """Fill a struct of the C sources. It stores the addresses of tensors and arrays, and keeps them alive."""
    kind: Any = read_structures()[name]

    def find_address(field: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            expected = kind.dtypes[field]
            if value.dtype != expected:  # a model's norms may have another dtype
                raise EngineError(f"compiled code reads {field} in {expected}, not in {value.dtype}")
            return value.data_ptr()
        return value.ctypes.data if hasattr(value, "ctypes") else value

    structure = kind(**{field: find_address(field, value) for field, value in fields.items()})
    structure.kept = fields
    return structure


@dataclass(frozen=True)
class Borrowed:
    """Addresses of functions inside PyTorch: its matrix product, its exponential of sixteen floats, and the setter of the
    calling thread's number of threads.
    """

    product: int
    exponential: int
    threads: int


@dataclass(frozen=True)
class Native:
    """The compiled functions for one head shape. They release the GIL, so threads with their own rows run in parallel."""

    attend: Callable[..., int]
    """(rows, keys, values, window): rotate, store and attend, from `qkv` to `mixed`. Returns a row outside its slot, or -1."""
    normalize: Callable[..., None]
    """(rows, weight, with_delta): add `delta` to `hidden` if asked, and write its RMSNorm to `normed`."""
    uniforms: Callable[..., None]
    """(keys, positions, count, vocabulary, into): the negated random numbers of ops/noise.py."""
    sum_lanes: int
    """Columns in which it sums a row; 0: PyTorch's order of summing is unknown, and PyTorch computes the norms."""
    library: Any
    """The loaded library, for training (cpu_training.py)."""
    decode_layers: Callable[..., int]
    """(stack): take tokens through all layers, to `normed`. Returns a row outside its slot, or -1."""
    borrowed: Borrowed | None = None
    """PyTorch's functions for `decode_layers`. None if they are missing or give other bits; Python then calls one operation at
    a time."""

    def make_gumbel(self, row_keys_B2: Tensor, positions_B: Tensor, vocab_size: int) -> Tensor:
        """Compute noise.make_gumbel in a few calls instead of a hundred. The logarithms are PyTorch's, so the bits are equal."""
        keys_B2, positions_B = row_keys_B2.contiguous(), positions_B.to(torch.int32).contiguous()
        uniform_BV = torch.empty(len(keys_B2), vocab_size)
        self.uniforms(keys_B2.data_ptr(), positions_B.data_ptr(), len(keys_B2), vocab_size, uniform_BV.data_ptr())
        return uniform_BV.log1p_().neg_().log_().neg_()


def load_library(head_dim: int, group: int, width: int) -> Native:
    """Return the functions for these heads and this hidden size. Raises NoNative with the reason if there are none."""
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
    """Load the wheel's file or build one, and compare it; once per process and shape. Returns the reasons if that fails."""
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
    """Return functions of the libraries that PyTorch was built with, if they are exported. They are not part of its interface,
    so a build may lack them, and their results are compared before use.
    """
    try:
        library = ctypes.CDLL(find_torch_library())
        found = [library.sgemm_, library.Sleef_expf16_u10, library.MKL_Set_Num_Threads_Local]
    except (OSError, AttributeError):
        return None
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in found]
    return Borrowed(*(address or 0 for address in addresses)) if all(addresses) else None


# -- comparing ---------------------------------------------------------------------------------------------------------------


def compare_library(native: Native, head_dim: int, group: int, width: int) -> Native:
    """Compare with PyTorch on random rows. Attention must have the same bits; norms are left to PyTorch if they differ."""
    generator = torch.Generator().manual_seed(0)
    count, kv_heads, length, window = 32, 2, 29, 7  # enough rows to reveal another order of summing

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
    return replace(native, borrowed=None)  # decode_layers needs the norms


def attend_plainly(
    qkv: Tensor, keys: Tensor, values: Tensor, positions: Tensor, turns: Tensor, window: int, scaling: float
) -> Tensor:
    """Compute the expected result of `attend`, row by row."""
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
