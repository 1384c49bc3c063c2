"""What a package index and a stranger's pip see: versions, links, dependencies. Building and installing: make release-check."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

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
make_links_absolute = load("setup.py").make_links_absolute


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


def list_imported() -> dict[str, list[str]]:
    """Top-level package -> the files of src that import it, in functions too; neither ours nor the standard library's."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "src" / "cohort").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {name.partition(".")[0] for name in names} - {"cohort", *sys.stdlib_module_names}:
                found.setdefault(normalise(name), []).append(str(file.relative_to(ROOT)))
    return found


def test_every_import_is_a_dependency_or_belongs_to_an_extra():
    extras = {normalise(name) for extra, names in PROJECT["optional-dependencies"].items() if extra != "dev" for name in names}
    named = {normalise(name) for name in PROJECT["dependencies"]} | extras | {*BROUGHT}
    assert {name: files for name, files in list_imported().items() if name not in named} == {}
    assert BROUGHT.keys() <= list_imported().keys()


def test_every_extra_is_named_to_whoever_lacks_it():
    """By the sentence of the error: `cohort-rl[...]`, or the monitors' own, which puts the name of the package there. dev and docs are for a checkout."""
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src" / "cohort").rglob("*.py"))
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
