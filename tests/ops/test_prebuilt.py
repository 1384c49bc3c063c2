"""Compiled files of a wheel: chosen by processor, preferred to a compiler, with the bits of local compilation."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from test_cpu_training import LAYOUTS, noise
from test_fused_cpu import build
from test_native import NO_COMPILER, needs_compiler, reason, script

from cohort.engine import sample_groups
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.ops.fused import building, native
from cohort.ops.fused.building import LEVELS, V3, V4, find_level, find_prebuilt
from cohort.ops.fused.cpu_training import NativeOperations
from cohort.ops.fused.functions import Heads, NormInputs, Rotary
from cohort.types import NoiseKey, Prompt, Sampling

DIM = 32
PATH = os.environ["PATH"]
OWN_LEVEL = find_level(os.uname().machine, building.read_processor_flags())
needs_level = pytest.mark.skipif(OWN_LEVEL is None, reason="a wheel brings nothing for this processor")


@pytest.fixture(scope="module")
def brought(tmp_path_factory) -> Path:
    """What a wheel would bring, for one size of heads."""
    folder = tmp_path_factory.mktemp("package") / "prebuilt"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "PREBUILT_DIMS", (DIM,))
        made = [*building.compile_prebuilt(folder)]
    assert sorted(made) == sorted(folder.iterdir())
    assert [file.name.rpartition("-")[0] for file in made] == [f"{level}-{DIM}" for level in LEVELS[os.uname().machine]]
    return folder


@pytest.fixture
def package(brought, tmp_path, monkeypatch) -> Path:
    """An installed wheel, on a machine without a compiler, with an empty cache."""
    folder = tmp_path / "prebuilt"
    shutil.copytree(brought, folder)
    monkeypatch.setattr(building, "PREBUILT", folder)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv(native.SWITCH, raising=False)
    native.find_library.cache_clear()
    yield folder
    native.find_library.cache_clear()


def find_file() -> Path:
    found = find_prebuilt(DIM)
    assert found is not None
    return found


# -- choosing ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "flags", "level"),
    [
        ("x86_64", V4 | {"amx_tile"}, "x86-64-v4"),
        ("x86_64", V3, "x86-64-v3"),
        ("x86_64", V4 - {"avx512vl"}, "x86-64-v3"),
        ("x86_64", V4 - {"fma"}, None),
        ("x86_64", {"sse2", "avx"}, None),
        ("x86_64", set(), None),
        ("aarch64", {"fp", "asimd", "sve"}, "armv8-a"),
        ("riscv64", {"v"}, None),
    ],
)
def test_the_best_level_that_a_processor_runs(machine, flags, level):
    assert find_level(machine, flags) == level


def test_flags_are_those_that_the_system_shows(monkeypatch):
    for text, flags in (
        ("flags\t\t: fpu avx2 fma\nbogomips\t: 1\n", {"fpu", "avx2", "fma"}),
        ("Features\t: fp asimd\nCPU part\t: 0xd0c\n", {"fp", "asimd"}),
        ("", set()),
    ):
        monkeypatch.setattr(Path, "read_text", lambda *_, text=text, **__: text)
        assert building.read_processor_flags() == flags


def test_setup_can_load_it_without_torch():
    """setup.py takes it out of its package: nothing but the standard library, also in functions."""
    tree = ast.parse(Path(building.__file__).read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names if name} <= sys.stdlib_module_names


def test_the_page_names_what_a_wheel_brings():
    page = (Path(__file__).parents[2] / "docs" / "platforms.md").read_text(encoding="utf-8")
    *others, last = map(str, building.PREBUILT_DIMS)
    assert f"heads of {', '.join(others)} or {last} dimensions" in page
    assert [level for found in LEVELS.values() for level in found if f"`{level}`" not in page] == []


# -- what it gives ------------------------------------------------------------------------------------------------------------


@needs_compiler
@needs_level
def test_without_compiler_home_and_cache_it_samples_and_trains(package, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: Path("/proc/nowhere"))
    package.chmod(0o555)
    found = native.load_library(DIM, 2, 128)
    assert Path(found.library._name) == find_file()
    NativeOperations(found).compare(Heads(4, 2, DIM), 128)
    engine = LocalEngine(EngineSetup(build("llama", num_hidden_layers=1), lambda ids: ""))
    assert engine.describe() == "fused products, native attention"


@needs_compiler
@needs_level
@pytest.mark.parametrize("level", [level for found in LEVELS.values() for level in found])
def test_it_has_the_bits_of_what_is_compiled_here(package, tmp_path, monkeypatch, level):
    """Forward, gradients and whole rollouts: a run may move from one to the other."""
    own = building.read_processor_flags()
    if not LEVELS[os.uname().machine].get(level, {"other"}) <= own:
        pytest.skip("another processor's")
    monkeypatch.setattr(building, "read_processor_flags", lambda: LEVELS[os.uname().machine][level])
    brought = native.load_library(DIM, 2, 128)
    assert level in brought.library._name
    monkeypatch.setattr(building, "PREBUILT", tmp_path / "none")
    monkeypatch.setenv("PATH", PATH)
    built = native.find_library(DIM, 2, 128, tmp_path / "cache", PATH)
    assert isinstance(built, native.Native), built
    assert "prebuilt" not in built.library._name
    for found, expected in zip(run_operations(brought), run_operations(built), strict=True):
        assert torch.equal(found, expected)
    assert run_rollouts(brought) == run_rollouts(built)


def run_operations(kernel: native.Native) -> list[torch.Tensor]:
    torch.manual_seed(0)
    operations, heads, layout = NativeOperations(kernel), Heads(4, 2, DIM), LAYOUTS["prompts"]
    rows = layout.num_tokens
    rotary = Rotary(noise(rows, DIM // 2), noise(rows, DIM // 2), heads)
    leaves = [noise(rows, count, DIM).requires_grad_() for count in (heads.query, heads.kv, heads.kv)]
    attended = operations.attend(layout, *leaves, DIM**-0.5)
    inputs = NormInputs(noise(rows, 100), noise(rows), noise(100))
    results = [
        attended.detach(),
        *torch.autograd.grad((attended * noise(*attended.shape)).sum(), leaves),
        *operations.add_norm_forward(noise(rows, 100), noise(rows, 100), noise(100), 1e-5),
        *operations.add_norm_backward(noise(rows, 100), noise(rows, 100), inputs, True, True),
        *operations.rotary_forward(noise(rows, heads.width), rotary),
        *operations.rotary_backward([noise(*leaf.shape) for leaf in leaves], None, rotary, True, False),
        *operations.swiglu_backward(noise(rows, 100), noise(rows, 200), True),
    ]
    return [result for result in results if result is not None]


def run_rollouts(kernel: native.Native) -> object:
    engine = LocalEngine(EngineSetup(build("llama"), lambda ids: "", slots=7))
    engine.compiled = NativeOperations(kernel)
    prompts = [Prompt(number, "", {}, tuple((3 * number + at) % 29 for at in range(2 + number))) for number in range(5)]
    sampling = Sampling(group_size=4, temperature=1.0, max_completion_tokens=12, stop_ids=(3, 5))
    return sample_groups(engine, prompts, sampling, NoiseKey(0, "train", 1))


# -- the order ------------------------------------------------------------------------------------------------------------------


@needs_compiler
@needs_level
def test_no_compiler_is_called_where_a_file_fits(package, tmp_path, monkeypatch):
    called = tmp_path / "called"
    script(tmp_path / "bin", f"#!/bin/sh\necho > {called}\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert Path(native.load_library(DIM, 2, 64).library._name) == find_file()
    assert not called.exists()
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv(native.SWITCH, "0")
    assert reason() == "COHORT_NATIVE=0"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:20_000])


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@needs_compiler
@needs_level
@pytest.mark.parametrize("harm", [cut, flip_bit])
def test_a_damaged_file_is_not_loaded_and_a_compiler_takes_its_place(package, tmp_path, monkeypatch, harm):
    """Half a library would end the process where it is loaded."""
    file = find_file()
    harm(file)
    assert reason(DIM) == f"{file} is damaged; install cohort-rl again; {NO_COMPILER}"
    monkeypatch.setenv("PATH", PATH)
    assert Path(native.load_library(DIM, 2, 64).library._name).parent == tmp_path / "cache" / "cohort" / "native"


@needs_compiler
@needs_level
def test_a_file_of_another_version_of_the_source_is_not_loaded(package, monkeypatch):
    """Its structs may have other fields."""
    source = building.read_source()
    monkeypatch.setattr(building, "read_source", lambda: source + b"\n")
    assert "is damaged" in reason(DIM)


@needs_compiler
@needs_level
def test_files_that_another_version_left_behind_are_passed_over(package):
    file = find_file()
    for digit in "0f":
        (package / f"{OWN_LEVEL}-{DIM}-{digit * 32}.so").write_bytes(b"of another version")
    assert Path(native.load_library(DIM, 2, 64).library._name) == file


@needs_compiler
@needs_level
def test_what_is_not_covered_is_named_and_compiled_where_it_can_be(package, monkeypatch):
    assert reason(40) == f"nothing is prebuilt for heads of 40 dimensions; {NO_COMPILER}"
    monkeypatch.setattr(building, "read_processor_flags", lambda: {"sse2"})
    assert reason(DIM) == f"nothing is prebuilt for this processor; {NO_COMPILER}"
    monkeypatch.setenv("PATH", PATH)
    for head_dim in (40, DIM):
        assert "prebuilt" not in native.load_library(head_dim, 2, 64).library._name


@needs_compiler
@needs_level
def test_a_file_with_other_bits_or_another_systems_is_not_used(package, monkeypatch):
    """A miscompiled one loads and is found out; one that needs a C library that is not here does not load."""
    file, source = find_file(), building.read_source()
    wrong = source.replace(b"#define LEAST (-700.0)", b"#define LEAST (-1.0)")
    flags = (*building.FLAGS, f"-march={OWN_LEVEL}", f"-DHEAD_DIM={DIM}")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", PATH)
        building.compile_into(building.find_compiler(PATH), flags, wrong, file)
    file = file.rename(file.with_name(building.name_prebuilt(OWN_LEVEL, DIM, file.read_bytes())))
    assert reason(DIM) == f"its attention has other bits than PyTorch's; {NO_COMPILER}"
    content = file.read_bytes().replace(b"libc.so.6\0", b"libc.so.9\0")
    file.unlink()
    (package / building.name_prebuilt(OWN_LEVEL, DIM, content)).write_bytes(content)
    native.find_library.cache_clear()
    assert reason(DIM).startswith("OSError: libc.so.9")


# -- the compiler of PyPI -------------------------------------------------------------------------------------------------------


@needs_compiler
def test_a_compiler_that_pip_installed_is_the_last_resort(tmp_path, monkeypatch):
    """As `python -m ziglang cc`; here it hands on to the one that is installed."""
    [real] = building.find_compiler(PATH)
    place = tmp_path / "site" / "ziglang"
    place.mkdir(parents=True)
    (place / "__main__.py").write_text(f"import os, sys\nos.execv({real!r}, [{real!r}, *sys.argv[2:]])\n")
    (place / "__init__.py").touch()
    monkeypatch.syspath_prepend(place.parent)
    monkeypatch.setenv("PYTHONPATH", f"{place.parent}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(building, "PREBUILT", tmp_path / "none")
    assert building.find_compiler(PATH) == [real]
    folder = tmp_path / "cache"
    found = native.find_library(DIM, 2, 64, folder, str(tmp_path / "empty"))
    assert isinstance(found, native.Native), found
    assert Path(found.library._name).parent == folder
    assert building.find_compiler("") == [sys.executable, "-m", "ziglang", "cc"]
