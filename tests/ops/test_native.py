"""The compiled decode kernel: the bits of its PyTorch reference for every shape, and a loader that never fails a run."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fused_cpu import NOT_DONE_B, build, decode, prompts_and_rest

from cohort.engine import decoders, sample_groups
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.engine.scheduler import SlotState
from cohort.errors import EngineError
from cohort.ops.fused import building, cpu_native, native, training
from cohort.ops.fused.cpu import CpuDecoder, DecodeMemory, intra_op_threads
from cohort.ops.fused.cpu_native import NativeDecoder, NativeLane
from cohort.ops.fused.family import FusedModel, fuse
from cohort.ops.fused.native import LANES, NoNative, attend_plainly, fill_structure
from cohort.ops.noise import make_gumbel
from cohort.types import NoiseKey, Prompt, Sampling

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, building.COMPILERS)), reason="no C compiler on this machine")
NO_COMPILER = "no C compiler: install gcc, or pip install ziglang"
FAILING = "#!/bin/sh\ncase $1 in --version) echo 1;; *) echo 'cc: internal fault' >&2; exit 1;; esac\n"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Kernels from a cache of this module's own."""
    folder = tmp_path_factory.mktemp("cache") / "native"

    def load(head_dim: int, group: int, width: int) -> native.Native:
        found = native.find_library(head_dim, group, width, folder, os.environ["PATH"])
        assert isinstance(found, native.Native), found
        return found

    return load


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder, nothing that a package brought, and nothing remembered."""
    monkeypatch.setattr(building, "PREBUILT", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(native.SWITCH, raising=False)
    native.find_library.cache_clear()
    yield tmp_path / "cohort" / "native"
    native.find_library.cache_clear()


def native_decoder(kernels, fused: FusedModel, slots: int, length: int, memory: DecodeMemory | None = None) -> NativeDecoder:
    kernel = kernels(fused.head_dim, fused.query_heads // fused.kv_heads, fused.embedding.shape[1])
    return NativeDecoder(fused, slots, length, kernel, memory)


# -- the kernel ---------------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    ("head_dim", "group", "kv_heads"),
    [(8, 1, 3), (64, 2, 2), (128, 7, 2)]
    + [pytest.param(*shape, marks=pytest.mark.prove) for shape in ((16, 2, 2), (32, 7, 1), (64, 7, 1), (80, 2, 1))],
)
@pytest.mark.parametrize("window", [0, 1, 5])
def test_attention_has_the_bits_of_the_formula_over_ragged_rows(kernels, head_dim, group, kv_heads, window):
    """Rows of every length from 1 to 21; keys and values of other positions are NaN, so none of them is read."""
    kernel = kernels(head_dim, group, 64)
    count = length = 21
    torch.manual_seed(head_dim + group)
    qkv = 2 * torch.randn(count, (group + 2) * kv_heads, head_dim)
    keys, values = (torch.randn(count, kv_heads, length, head_dim) for _ in range(2))
    positions, turns = torch.randperm(count), torch.randn(length, head_dim)
    expected = attend_plainly(qkv, keys, values, positions, turns, window or length, head_dim**-0.5)
    at_T = torch.arange(length)
    unseen_BT = (at_T >= positions[:, None]) | (at_T <= positions[:, None] - (window or length))
    for cache in (keys, values):
        cache.masked_fill_(unseen_BT[:, None, :, None], torch.nan)
    squares, mixed = torch.empty(max(64, 2 * head_dim)), torch.empty_like(expected)
    scores = torch.empty(group, length + LANES, dtype=torch.float64)
    tensors = {"squares": squares, "qkv": qkv, "mixed": mixed, "scores": scores, "turns": turns, "positions": positions}
    sizes = {"count": count, "width": 64, "kv_heads": kv_heads, "group": group, "length": length, "sum_lanes": 8}
    rows = fill_structure("rows", **tensors, **sizes, scaling=head_dim**-0.5, epsilon=1e-6)
    new_values = qkv[:, -kv_heads:].clone()
    assert kernel.attend(ctypes.byref(rows), keys.data_ptr(), values.data_ptr(), window) == -1
    assert torch.equal(mixed, expected)
    own = torch.arange(count)
    assert torch.equal(values[own, :, positions], new_values)
    assert torch.equal(keys[own, :, positions], qkv[:, -2 * kv_heads : -kv_heads]), "turned in place, then written down"


@needs_compiler
@pytest.mark.parametrize("width", [8, 100, 128, 256, 560, 1000, 4096])
def test_norms_have_the_bits_of_pytorch(kernels, width):
    """Also at widths that fill no register, and at those whose sums PyTorch takes in blocks."""
    kernel = kernels(64, 2, width)
    assert kernel.sum_lanes in native.SUM_LANES
    torch.manual_seed(width)
    hidden, delta, weight = 3 * torch.randn(40, width), torch.randn(40, width), torch.randn(width)
    normed, squares, epsilon = torch.empty(40, width), torch.empty(max(width, 128)), 1e-6
    for with_delta in (1, 0):
        expected = hidden + delta if with_delta else hidden.clone()
        tensors = {"hidden": hidden, "delta": delta, "normed": normed, "squares": squares}
        rows = fill_structure("rows", **tensors, count=40, width=width, sum_lanes=kernel.sum_lanes, epsilon=epsilon)
        kernel.normalize(ctypes.byref(rows), weight.data_ptr(), with_delta)
        assert torch.equal(hidden, expected)
        assert torch.equal(normed, expected * torch.rsqrt(expected.pow(2).mean(-1, keepdim=True) + epsilon) * weight)


@needs_compiler
@pytest.mark.parametrize("vocabulary", [1, 64, 1003])
def test_noise_has_the_bits_of_noise_py(kernels, vocabulary):
    """Keys of the whole range, also rows picked out of a larger state."""
    keys_S2 = torch.randint(-(2**31), 2**31, (60, 2)).int()
    positions_S = torch.randint(0, 2**31, (60,)).int()
    for rows in (slice(0, 40), torch.tensor([7, 3, 59])):
        found_BV = kernels(32, 2, 64).make_gumbel(keys_S2[rows], positions_S[rows], vocabulary)
        assert torch.equal(found_BV, make_gumbel(keys_S2[rows], positions_S[rows], vocabulary))


@needs_compiler
def test_a_position_outside_of_its_slot_is_refused_before_anything_is_written(kernels):
    decoder = native_decoder(kernels, fuse(build("llama", num_hidden_layers=1)), 16, 8)
    decoder.cache.zero_()
    for position in (8, -1):
        positions_B = torch.zeros(16, dtype=torch.int64)
        positions_B[11] = position
        with pytest.raises(EngineError, match="row 11 is at a position outside of its 8"):
            decoder.step(torch.zeros(16, dtype=torch.int64), positions_B, NOT_DONE_B[:16], 8)
        assert not decoder.cache.any()


# -- the decoder --------------------------------------------------------------------------------------------------------------

FAMILIES = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"num_key_value_heads": 1}),
    ("llama", {"hidden_size": 32, "intermediate_size": 48}),
    ("llama", {"hidden_size": 112, "num_attention_heads": 7, "num_key_value_heads": 1}),
    ("llama", {"hidden_size": 32, "intermediate_size": 40}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
]


@needs_compiler
@pytest.mark.parametrize("whole_steps", [True, False])
@pytest.mark.parametrize(("family", "changes"), FAMILIES)
def test_it_has_the_trainers_bits_in_every_family(kernels, family, changes, whole_steps):
    model = build(family, num_hidden_layers=2, **changes)
    tokens_BT, prompt_B = prompts_and_rest(20, 32)
    memory = DecodeMemory()
    native_decoder(kernels, fuse(model), 20, 32, memory)
    memory.held.fill_(255)  # NaN wherever nothing was written
    decoder = native_decoder(kernels, fuse(model), 20, 32, memory)
    if whole_steps and not decoder.whole_steps:
        pytest.skip("this build of PyTorch shows no functions to borrow, or the norms of heads are PyTorch's")
    decoder.whole_steps = whole_steps
    found_BTH, expected_BTH = decode(decoder, model, tokens_BT, prompt_B, steps=24)
    assert torch.equal(found_BTH, expected_BTH)
    twin_BTH, _ = decode(CpuDecoder(fuse(model), 20, 32), model, tokens_BT, prompt_B, steps=24)
    assert torch.equal(found_BTH, twin_BTH)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 51])
def test_the_demos_model_has_the_trainers_bits_on_any_number_of_threads(kernels, rows):
    model = build("llama")
    tokens_BT, prompt_B = prompts_and_rest(rows, 24)
    for threads in (1, 3):
        with intra_op_threads(threads):
            decoder = native_decoder(kernels, fuse(model), rows, 24)
            decoder.least_rows = 16
            found_BTH, expected_BTH = decode(decoder, model, tokens_BT, prompt_B, steps=16)
            decoder.close()
        assert torch.equal(found_BTH, expected_BTH)


@needs_compiler
def test_norms_are_left_to_pytorch_where_its_order_is_not_known(kernels):
    model = build("llama", num_hidden_layers=2)
    tokens_BT, prompt_B = prompts_and_rest(17, 16)
    decoder = native_decoder(kernels, fuse(model), 17, 16)
    decoder.native, decoder.whole_steps = replace(decoder.native, normalize=None, sum_lanes=0), False
    found_BTH, expected_BTH = decode(decoder, model, tokens_BT, prompt_B, steps=8)
    assert torch.equal(found_BTH, expected_BTH)


borrows = pytest.mark.skipif(
    native.borrow_functions() is None or torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="this build of PyTorch shows no functions to borrow, or this processor has no vectors for them",
)


@needs_compiler
@borrows
def test_one_call_a_step_is_taken_where_it_can_be(kernels, monkeypatch):
    """By the shape of the model, and by what the borrowed functions give."""
    monkeypatch.setattr(cpu_native, "_whole_steps", {})
    assert native_decoder(kernels, fuse(build("llama")), 20, 16).whole_steps
    assert native_decoder(kernels, fuse(build("qwen2")), 20, 16).whole_steps, "biases"
    assert not native_decoder(kernels, fuse(build("qwen3")), 20, 16).whole_steps, "norms of heads"
    assert not native_decoder(kernels, fuse(build("llama", intermediate_size=100)), 20, 16).whole_steps, "vectors over two rows"
    fused = fuse(build("llama", intermediate_size=96))
    kernel = kernels(fused.head_dim, fused.query_heads // fused.kv_heads, fused.embedding.shape[1])
    assert kernel.borrowed is not None
    other = ctypes.cast(ctypes.CDLL(native.find_torch_library()).Sleef_cosf16_u10, ctypes.c_void_p).value
    wrong = replace(kernel, borrowed=replace(kernel.borrowed, exponential=other))
    assert not NativeDecoder(fused, 20, 16, wrong).whole_steps, "another function gives other bits"
    assert not NativeDecoder(fused, 20, 16, replace(kernel, borrowed=None)).whole_steps
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not native_decoder(kernels, fuse(build("llama", intermediate_size=48)), 20, 16).whole_steps, "another rest"
    assert native_decoder(kernels, fuse(build("llama")), 20, 16).whole_steps, "no rest"


@needs_compiler
@borrows
def test_a_call_that_computes_nothing_does_not_find_the_results_of_the_other_way(kernels, monkeypatch):
    """As the activation does on a processor without its vectors."""
    monkeypatch.setattr(cpu_native, "_whole_steps", {})
    fused = fuse(build("llama", num_hidden_layers=1))
    kernel = kernels(fused.head_dim, fused.query_heads // fused.kv_heads, fused.embedding.shape[1])
    assert not NativeDecoder(fused, 20, 16, replace(kernel, decode_layers=lambda _: -1)).whole_steps


@needs_compiler
@borrows
def test_rows_of_an_embedding_that_lie_apart_are_gathered_by_pytorch(kernels):
    """Also where a model of the same shape takes whole steps."""
    model = build("llama", num_hidden_layers=1)
    tokens_B, positions_B = torch.arange(16), torch.zeros(16, dtype=torch.int64)
    dense = native_decoder(kernels, fuse(model), 16, 8)
    expected_BH = dense.step(tokens_B, positions_B, NOT_DONE_B[:16], 1).clone()
    embedding = model.base_model.embed_tokens.weight
    embedding.data = embedding.detach().t().contiguous().t()
    apart = native_decoder(kernels, fuse(model), 16, 8)
    assert torch.equal(apart.step(tokens_B, positions_B, NOT_DONE_B[:16], 1), expected_BH)


@needs_compiler
@borrows
def test_whole_steps_are_for_threads_with_rows_of_their_own(kernels, monkeypatch):
    """Where threads share the products of a large layer instead, one call would leave all but one of them idle."""
    whole: list[int] = []
    monkeypatch.setattr(NativeDecoder, "run_whole", lambda self, lane, *_: whole.append(lane.rows.stop))
    with intra_op_threads(2):
        decoder = native_decoder(kernels, fuse(build("llama", num_hidden_layers=1)), 40, 8)
        decoder.whole_steps, decoder.least_rows = True, 20
        tokens_B = torch.zeros(40, dtype=torch.int64)
        for decoder.small, rows, expected in ((True, 16, [16]), (True, 40, [20, 40]), (False, 40, [20, 40]), (False, 16, [])):
            whole.clear()
            decoder.step(tokens_B[:rows], tokens_B[:rows], NOT_DONE_B[:rows], 1)
            assert sorted(whole) == expected
        decoder.close()


@needs_compiler
@borrows
def test_products_of_a_step_leave_the_threads_of_others_alone(kernels):
    decoder = native_decoder(kernels, fuse(build("llama", num_hidden_layers=1)), 20, 16)
    threads = ctypes.CDLL(native.find_torch_library()).MKL_Set_Num_Threads_Local
    before = threads(3)
    try:
        zeros_B = torch.zeros(20, dtype=torch.int64)
        decoder.run_whole(NativeLane(decoder, 0, slice(0, 20), 16), zeros_B, zeros_B)
        assert threads(3) == 3
    finally:
        threads(before)


@needs_compiler
def test_rows_move(kernels):
    model = build("llama", num_hidden_layers=2)
    tokens_BT, prompt_B = prompts_and_rest(20, 24)
    decoder = native_decoder(kernels, fuse(model), 20, 24)
    _, expected_BTH = decode(decoder, model, tokens_BT, prompt_B, steps=6)
    positions_B = prompt_B + 6
    decoder.move(torch.tensor([19]), torch.tensor([3]), int(positions_B[19]))
    owner_B = torch.arange(19)
    owner_B[3] = 19
    positions_B = positions_B[owner_B]
    found_BH = decoder.step(tokens_BT[owner_B, positions_B], positions_B, NOT_DONE_B[:19], int(positions_B.max()) + 1)
    alone = CpuDecoder(fuse(model), 20, 24)
    expected_BTH, _ = decode(alone, model, tokens_BT, prompt_B, steps=7)
    assert torch.equal(found_BH, expected_BTH[owner_B, 6])


# -- the engine ---------------------------------------------------------------------------------------------------------------


@needs_compiler
def test_rollouts_are_the_same_with_and_without(cache, monkeypatch):
    """More completions than slots and stops on the way; tokens and log-probs are equal bits."""
    model = build("llama")
    prompts = [Prompt(number, "", {}, tuple((3 * number + at) % 29 for at in range(2 + number))) for number in range(5)]
    sampling = Sampling(group_size=4, temperature=1.0, max_completion_tokens=12, stop_ids=(3, 5))

    def rollouts() -> tuple[str, object]:
        engine = LocalEngine(EngineSetup(model, lambda ids: "", slots=7))
        return engine.describe(), [sample_groups(engine, prompts, sampling, NoiseKey(0, "train", step)) for step in (1, 2)]

    how, found = rollouts()
    assert how == "fused products, native attention"
    monkeypatch.setenv(native.SWITCH, "0")
    how, expected = rollouts()
    assert how == "fused products, attention in PyTorch (COHORT_NATIVE=0)"
    assert found == expected


@needs_compiler
def test_the_engine_ends_its_threads_and_keeps_its_memory(cache):
    engine = LocalEngine(EngineSetup(build("llama", num_hidden_layers=1), lambda ids: "", slots=4))
    prompts = [Prompt(0, "", {}, (1, 2, 3))]
    sampling = Sampling(group_size=4, temperature=1.0, max_completion_tokens=8, stop_ids=())
    first = sample_groups(engine, prompts, sampling, NoiseKey(0, "train", 1))
    held = engine.memory.held.data_ptr()
    engine.memory.held.fill_(255)
    assert sample_groups(engine, prompts, sampling, NoiseKey(0, "train", 1)) == first
    assert engine.memory.held.data_ptr() == held


def test_one_thread_notes_few_logits_down_and_all_share_the_prefill(cache, monkeypatch):
    """Waking a thread for a logarithm of a few numbers takes longer than the logarithm; the number is put back."""
    model, seen = build("llama", num_hidden_layers=1), {}
    prompts = [Prompt(0, "", {}, (1, 2, 3))]
    sampling = Sampling(group_size=2, temperature=1.0, max_completion_tokens=3, stop_ids=())
    for few in (2**18, 1):
        monkeypatch.setattr(decoders, "LOGITS_TO_SHARE", few)
        engine = LocalEngine(EngineSetup(model, lambda ids: ""))
        with monkeypatch.context() as patched, intra_op_threads(3):
            for place, name in ((SlotState, "sample_tokens"), (training, "prefill")):
                patched.setattr(place, name, watched(getattr(place, name), name, seen))
            sample_groups(engine, prompts, sampling, NoiseKey(0, "train", 1))
            assert torch.get_num_threads() == 3
        assert seen == {"sample_tokens": 1 if few > 1 else 3, "prefill": 3}


def watched(function: Any, name: str, seen: dict[str, int]) -> Any:
    def watching(*args: Any, **named: Any) -> Any:
        seen[name] = torch.get_num_threads()
        return function(*args, **named)

    return watching


# -- the loader ---------------------------------------------------------------------------------------------------------------


def reason(head_dim: int = 32, group: int = 2, width: int = 64) -> str:
    with pytest.raises(NoNative) as caught:
        native.load_library(head_dim, group, width)
    return str(caught.value)


def script(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "cc").write_text(text)
    (folder / "cc").chmod(0o755)


def test_without_a_compiler_pytorch_decodes(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert reason() == NO_COMPILER
    assert not cache.exists()
    engine = LocalEngine(EngineSetup(build("llama", num_hidden_layers=1), lambda ids: ""))
    assert engine.describe() == f"fused products, attention in PyTorch ({NO_COMPILER})"
    prompts = [Prompt(0, "", {}, (1, 2, 3))]
    sampling = Sampling(group_size=2, temperature=1.0, max_completion_tokens=4, stop_ids=())
    assert [len(one.token_ids) for one in sample_groups(engine, prompts, sampling, NoiseKey(0, "train", 1))[0]] == [4, 4]


def test_a_failing_compiler_gives_the_reason_and_leaves_no_files(cache, tmp_path, monkeypatch):
    script(tmp_path / "bin", FAILING)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert reason() == f"the compiler {tmp_path / 'bin' / 'cc'} failed: cc: internal fault"
    assert list(cache.iterdir()) == []


def test_a_compiler_that_hangs_is_given_up(cache, tmp_path, monkeypatch):
    script(tmp_path / "bin", "#!/bin/sh\ncase $1 in --version) echo 1;; *) exec sleep 60;; esac\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(building, "COMPILE_SECONDS", 0.2)
    assert reason().startswith("TimeoutExpired")
    assert list(cache.iterdir()) == []


def test_a_compiler_that_makes_no_library_is_a_reason(cache, tmp_path, monkeypatch):
    """It writes something, and reports success."""
    script(tmp_path / "bin", '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo no library > "$2"; shift; done; exit 0\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert reason().startswith("OSError")


def test_a_folder_that_cannot_be_made_is_a_reason(tmp_path, cache, monkeypatch):
    (tmp_path / "cohort").write_text("a file in the way")
    if any(map(shutil.which, building.COMPILERS)):
        assert reason().split(":")[0] in ("NotADirectoryError", "FileExistsError")


def test_without_a_home_folder_pytorch_decodes(cache, monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert reason() == "no home folder"


def test_heads_that_the_kernel_does_not_take_are_a_reason(cache):
    assert reason(head_dim=20) == "heads of 20 dimensions"


@needs_compiler
def test_it_is_compiled_once_per_size_of_heads_and_source(cache, monkeypatch):
    native.load_library(32, 2, 64)
    (first,) = cache.iterdir()
    written = first.stat().st_mtime_ns
    native.find_library.cache_clear()
    native.load_library(32, 2, 128)
    native.load_library(32, 1, 64)
    assert [file.stat().st_mtime_ns for file in cache.iterdir()] == [written]
    native.load_library(16, 1, 64)
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr(building, "FLAGS", (*building.FLAGS, "-DOTHER"))  # as another source, compiler or processor would
    native.find_library.cache_clear()
    native.load_library(32, 2, 64)
    assert len(list(cache.iterdir())) == 3


@needs_compiler
@pytest.mark.parametrize("fault", ["group", "others", "link", "folder"])
def test_what_others_could_have_written_is_not_loaded(cache, tmp_path, fault):
    native.load_library(32, 2, 64)
    (library,) = cache.iterdir()
    native.find_library.cache_clear()
    if fault == "link":
        library.rename(tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
    else:
        (cache if fault == "folder" else library).chmod({"group": 0o720, "others": 0o702, "folder": 0o777}[fault])
    assert "is a link, belongs to another user or may be written by others" in reason()


@needs_compiler
def test_a_library_with_other_bits_is_not_used(cache, monkeypatch):
    """Stale or miscompiled: attention that lets go of a factor is noticed before its first use; other sums only cost norms."""
    monkeypatch.setattr(building, "FLAGS", (*building.FLAGS, "-DLEAST=(-1.0)"))
    source = building.read_source()
    monkeypatch.setattr(building, "read_source", lambda: source.replace(b"#define LEAST", b"#define UNUSED"))
    assert reason() == "its attention has other bits than PyTorch's"
    native.find_library.cache_clear()
    monkeypatch.setattr(building, "read_source", lambda: source.replace(b"#define STRANDS 4", b"#define STRANDS 2"))
    monkeypatch.setattr(building, "FLAGS", building.FLAGS[:-1])
    assert native.load_library(32, 2, 64).sum_lanes == 0


@pytest.mark.prove
@needs_compiler
def test_two_builders_at_once(cache):
    """As two processes would: each finds a whole library, its own or the other's, and no scrap is left."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: building.build_library(16, cache, os.environ["PATH"]), range(4)))
    assert found == [found[0]] * 4
    assert list(cache.iterdir()) == [found[0]]
    assert native.load_library(16, 2, 64).sum_lanes in native.SUM_LANES
