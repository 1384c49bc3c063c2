"""What a package index and a stranger's pip see: versions, links, dependencies. Building and installing: make release-check."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from cohort.ops.fused import building

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BROUGHT = {"triton": "torch's builds for CUDA bring it, and nothing imports it without"}
"""Imported, and named neither as a dependency nor as an extra."""


def load(path: str):
    specification = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


check = load(".ci/release_check.py")
setup = load("setup.py")
make_links_absolute = setup.make_links_absolute


def normalise(name: str) -> str:
    return re.match(r"[\w.-]+", name)[0].lower().replace("_", "-")


# -- versions and words ------------------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere(tmp_path):
    assert set(check.find_versions().values()) == {PROJECT["version"]}
    for file in check.find_versions():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text(encoding="utf-8"), encoding="utf-8")
    citation = tmp_path / "CITATION.cff"
    citation.write_text(citation.read_text().replace(f"version: {PROJECT['version']}", "version: 9.9.9"))
    assert check.find_versions(tmp_path)["CITATION.cff"] == "9.9.9"


def test_the_citation_and_the_templates_are_what_their_readers_expect():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format requires
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        template = yaml.safe_load(file.read_text(encoding="utf-8"))
        if file.name != "config.yml":
            assert {"name", "description", "body"} <= template.keys()
            assert all({"type", "attributes"} <= part.keys() for part in template["body"])


def test_a_placeholder_is_left_for_a_person_wherever_it_stands(tmp_path):
    """Every file that names the reserved domain is one that the check reads."""
    listed = [*ROOT.glob("*.*"), *(ROOT / ".github").rglob("*.yml"), *(ROOT / "src").rglob("*.py")]
    naming = {str(file.relative_to(ROOT)) for file in listed if file.is_file() and b"cohort-rl.example" in file.read_bytes()}
    said = {sentence.partition(":")[0] for sentence in check.find_placeholders() if ".example" in sentence}
    assert naming == said


# -- the long description ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "absolute"),
    [
        ("[a](docs/a.md#b)", "[a](R/blob/v1/docs/a.md#b)"),
        ("![a](docs/a.png)", "![a](R/raw/v1/docs/a.png)"),
        ("[![a](docs/a.png)](docs/a.md)", "[![a](R/raw/v1/docs/a.png)](R/blob/v1/docs/a.md)"),
        ("[a](https://b.org) [c](#d) [e](mailto:f@g.org)", "[a](https://b.org) [c](#d) [e](mailto:f@g.org)"),
        ('<img src="docs/a.png" width="9"> <a href="LICENSE">', '<img src="R/raw/v1/docs/a.png" width="9"> <a href="R/blob/v1/LICENSE">'),
        ("```\nrows[i](x)\n``` [`loop.py`](./src/loop.py)", "```\nrows[i](x)\n``` [`loop.py`](R/blob/v1/src/loop.py)"),
    ],
)  # fmt: skip
def test_links_become_absolute(text, absolute):
    assert make_links_absolute(text, "R", "1") == absolute


def test_every_link_of_the_long_description_is_an_address_of_a_file_that_exists():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = check.find_relative_links(readme)
    repository, tag = PROJECT["urls"]["Repository"], f"v{PROJECT['version']}"
    text = make_links_absolute(readme, repository, PROJECT["version"])
    assert check.find_relative_links(text) == []
    ours = re.findall(rf"{re.escape(repository)}/(?:blob|raw)/{re.escape(tag)}/([^)\s\"#]+)", text)
    assert len(ours) == len(relative) > 0
    assert [file for file in ours if not (ROOT / file).exists()] == []


# -- what must be installed --------------------------------------------------------------------------------------------


@functools.cache
def list_imported() -> dict[str, list[str]]:
    """Top-level package -> the files of src that import it, in functions too; neither ours nor the standard library's."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {name.partition(".")[0] for name in names} - {"cohort", "cohort_verify", *sys.stdlib_module_names}:
                found.setdefault(normalise(name), []).append(str(file.relative_to(ROOT)))
    return found


def test_every_import_is_a_dependency_or_belongs_to_an_extra():
    extras = {normalise(name) for extra, names in PROJECT["optional-dependencies"].items() if extra != "dev" for name in names}
    named = {normalise(name) for name in PROJECT["dependencies"]} | extras | {*BROUGHT}
    assert {name: files for name, files in list_imported().items() if name not in named} == {}
    assert BROUGHT.keys() <= list_imported().keys()


def test_every_extra_is_named_to_whoever_lacks_it():
    """By the sentence of the error: `cohort-rl[...]`, or the monitors' own, which puts the name of the package there. dev and docs are for a checkout."""
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    told = set(re.findall(r"cohort-rl\[(\w+)\]", source))
    from cohort.observe.monitors import MONITORS

    assert set(PROJECT["optional-dependencies"]) - {"dev", "docs"} <= told | {*MONITORS}
    assert "cohort-rl[{package}]" in source


def test_the_pythons_that_are_named_are_those_that_are_allowed():
    named = sorted(re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"])))
    assert f">={named[0]}" == PROJECT["requires-python"]
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    assert f"{', '.join(named[:-1])} and {named[-1]}." in page


def test_a_file_that_is_missing_and_a_link_that_leads_nowhere_are_named(tmp_path, monkeypatch):
    """A wheel and a source distribution with one file each, of two that are tracked."""
    monkeypatch.setattr(check, "list_tracked", lambda: {"README.md", "src/cohort/here.py", "src/cohort/gone.toml", "recipes"})
    wheel, source, file = tmp_path / "a.whl", tmp_path / "a.tar.gz", tmp_path / "here.py"
    file.touch()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("cohort/here.py", "")
        archive.writestr("cohort_rl-1.dist-info/METADATA", "Name: cohort-rl\n\n[a](https://b.org) [c](docs/c.md)\n")
    with tarfile.open(source, "w:gz") as archive:
        archive.add(file, "cohort_rl-1/src/cohort/here.py")
    assert [*check.check_files(wheel, source)] == [
        "the source distribution lacks README.md, src/cohort/gone.toml: see MANIFEST.in",
        "the wheel lacks cohort/gone.toml: see [tool.setuptools.package-data]",
        "the long description has relative links: docs/c.md; see setup.py",
    ]


# -- compiled code in the wheel ----------------------------------------------------------------------------------------


def test_a_wheel_without_compiled_code_or_for_newer_systems_than_torch_is_named(tmp_path):
    def make_wheel(name: str, libraries: list[str]) -> Path:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for library in libraries:
                archive.writestr(f"cohort/ops/fused/native/prebuilt/{library}-0a.so", "")
        return tmp_path / name

    levels = building.LEVELS.get(platform.machine(), {})
    libraries = [f"{level}-{dim}" for level in levels for dim in building.PREBUILT_DIMS]
    assert [*check.check_compiled(make_wheel("a-py3-none-manylinux_2_27_x86_64.whl", libraries))] == []
    if libraries:
        [lacks] = check.check_compiled(make_wheel("b-py3-none-manylinux_2_28_x86_64.whl", libraries[1:]))
        assert libraries[0] in lacks
        [lacks, no_tag] = check.check_compiled(make_wheel("c-py3-none-any.whl", []))
        assert lacks.startswith("the wheel brings no compiled code instead of ")
        assert no_tag.startswith("c-py3-none-any.whl is not for manylinux_2_28")
        [newer] = check.check_compiled(make_wheel("d-py3-none-manylinux_2_34_x86_64.whl", libraries))
        assert newer.startswith("d-py3-none-manylinux_2_34")


@pytest.mark.parametrize(
    ("contents", "system"),
    [
        ((b"libm\0GLIBC_2.9\0GLIBC_2.27\0", b"GLIBC_2.2.5\0GLIBC_2.14\0"), "manylinux_2_27"),
        ((b"libc.musl-x86_64.so.1\0",), "linux"),
    ],
)
def test_the_tag_of_a_wheel_is_that_of_the_newest_symbol(tmp_path, contents, system):
    files = [tmp_path / str(number) for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    assert setup.find_platform(files) == f"{system}_{platform.machine()}"


@pytest.mark.parametrize("compiler", [None, "no program", "works"])
def test_a_wheel_is_for_every_machine_where_nothing_could_be_compiled(tmp_path, compiler):
    """Built out of a small copy of the sources; a stale library of an earlier build is not taken along."""
    works = compiler == "works"
    if works and not any(map(shutil.which, building.COMPILERS)):
        pytest.skip("no C compiler on this machine")
    tree = tmp_path / "tree"
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        tree.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree)
    fused = Path("cohort/ops/fused")
    shutil.copytree(ROOT / "src" / fused, tree / "src" / fused, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("cohort", "cohort/ops"):
        (tree / "src" / folder / "__init__.py").touch()
    few = re.sub(r"^PREBUILT_DIMS = .*", "PREBUILT_DIMS = (16,)", Path(building.__file__).read_text(), flags=re.MULTILINE)
    (tree / "src" / fused / "building.py").write_text(few)
    stale = tree / "build" / "lib" / fused / "native" / "prebuilt" / "x86-64-v4-8-0a.so"
    stale.parent.mkdir(parents=True)
    stale.touch()
    path = os.environ["PATH"] if works else str(tmp_path / "bin")
    if compiler == "no program":
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "cc").write_text("of another machine")
        (tmp_path / "bin" / "cc").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel"], cwd=tree, capture_output=True, text=True, check=True,
        env=os.environ | {"PATH": path},
    )  # fmt: skip
    [wheel] = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = sorted(Path(name).name.rpartition("-")[0] for name in archive.namelist() if name.endswith(".so"))
        [said] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/WHEEL")]
    levels = building.LEVELS.get(platform.machine(), {}) if works else {}
    assert libraries == sorted(f"{level}-16" for level in levels)
    assert f"Root-Is-Purelib: {'false' if levels else 'true'}" in said
    assert wheel.name.endswith(f"_{platform.machine()}.whl" if levels else "-py3-none-any.whl")
    assert ("nothing is compiled for this wheel: " in done.stdout) == (not works)
