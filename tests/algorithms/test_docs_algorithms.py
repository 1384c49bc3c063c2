"""docs/algorithms.md says what the code does: every name on it exists, its tables are the code's, its examples run.

Of all pages: links lead somewhere and commands are understood.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from cohort.algorithms.named import FIELDS, NAMED, PRESETS
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.describe import COLUMNS, list_cells
from doc_examples import examples_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cohort"
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
SECTIONS = re.split(r"^(?=##)", PROSE, flags=re.MULTILINE)
RULE = re.compile(r"\|?[\s:|-]+\|?")


def tables(text: str) -> list[list[list[str]]]:
    """Tables of a Markdown text as rows of cells, without their rules; backticks and links are taken off."""
    found: list[list[list[str]]] = []
    previous = ""
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            cells = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell) for cell in cells]
            if not previous.startswith("|"):
                found.append([])
            if not RULE.fullmatch(line):
                found[-1].append(cells)
        previous = line
    return found


def section(title: str) -> str:
    [text] = [part for part in SECTIONS if re.match(rf"#+ {re.escape(title)}\n", part)]
    return text


# -- names -------------------------------------------------------------------------------------------------------------


@cache
def defined(file: Path) -> frozenset[str]:
    """Functions, and methods as Class.method, of a Python file."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{child.name}" for child in node.body if isinstance(child, ast.FunctionDef)}
    return frozenset(names)


def files_of(text: str) -> list[Path]:
    """Files named in a text: paths from the root of the repository, or from src/cohort."""
    found = []
    for word in re.findall(r"`([\w/]+\.(?:py|sh))`|(?<=python )([\w/]+\.py)", text):
        name = word[0] or word[1]
        at_root = name.startswith(("tests/", "benchmarks/", "examples/"))
        found.append((ROOT if at_root else SOURCE) / name)
    return found


def test_every_file_exists():
    files = files_of(PROSE)
    assert [str(file) for file in files if not file.is_file()] == []
    assert len(set(files)) > 30
    assert (SOURCE / "rewards").is_dir()


def test_every_function_is_defined_in_a_file_that_its_section_names():
    count = 0
    for text in SECTIONS:
        known: set[str] = set().union(*(defined(file) for file in files_of(text) if file.suffix == ".py"))
        names = re.findall(r"`([A-Za-z_][\w.]*)\(\)`", text)
        assert [name for name in names if name not in known] == [], text.splitlines()[0]
        count += len(names)
    assert count > 30


def test_every_test_is_defined_in_a_file_that_its_section_names():
    count = 0
    for text in SECTIONS:
        files = [file for file in files_of(text) if "tests" in file.relative_to(ROOT).parts]
        known: set[str] = set().union(*(defined(file) for file in files))
        names = re.findall(r"`(test_\w+)`", text)
        assert [name for name in names if name not in known] == [], text.splitlines()[0]
        count += len(names)
    assert count > 5


# -- choices -----------------------------------------------------------------------------------------------------------


def test_the_table_of_algorithms_is_that_of_the_code():
    [table] = tables(section("The named algorithms"))
    assert table[0] == ["name", *COLUMNS]
    on_page = {row[0].strip("`"): [cell.strip("`") for cell in row[1:]] for row in table[1:]}
    assert on_page == {name: list_cells(AlgorithmConfig(name=name)) for name in PRESETS}
    assert list(on_page) == list(PRESETS)


def test_every_algorithm_has_a_section_with_its_paper():
    source = (SOURCE / "algorithms" / "named.py").read_text(encoding="utf-8")
    comments = re.findall(r'((?:    #.*\n)*)    "([\w+]+)": make_preset', source)
    assert [name for _, name in comments] == list(PRESETS)
    for comment, name in comments:
        text = section(f"`{name}`")
        for number in re.findall(r"arXiv (\d{4}\.\d{5})", comment):
            assert f"[arXiv {number}](https://arxiv.org/abs/{number})" in text, name


def words_of(name: str) -> tuple[Any, ...]:
    """What may stand behind a word of [algorithm] that is one of several."""
    kinds = {field: kind for kind, field in FIELDS.items()}
    return tuple(NAMED[kinds[name]]) if name in kinds else get_args(AlgorithmConfig.model_fields[name].annotation)


def test_every_choice_and_every_word_of_it_is_explained():
    for name in AlgorithmConfig.model_fields:
        assert name == "name" or re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", PROSE), name
        for word in words_of(name):
            if isinstance(word, str):
                assert re.search(rf'`(?:{name} = )?"?{word}"?`', PROSE), (name, word)
    # The tables of the choices hold each word once, and no other.
    for name, title in (
        ("advantage", "Advantages"),
        ("region", "Regions"),
        ("aggregation", "Aggregation"),
        ("data", "The frame"),
    ):
        words = [row[0].strip("`") for table in tables(section(title)) if table[0][0] == f"`{name}`" for row in table[1:]]
        assert sorted(words) == sorted(words_of(name)), name


def test_the_advantages_without_a_group_are_those_of_the_code():
    [names] = re.findall(r"`group_size = 1` works with (.*?);", PAGE)
    assert re.findall(r"`(\w+)`", names) == [
        name for name, choice in NAMED["advantage"].items() if not choice.traits.compares_group
    ]


# -- examples ----------------------------------------------------------------------------------------------------------


def test_the_examples_give_the_values_in_their_comments():
    """All blocks in one namespace, top to bottom; every expression with a comment behind it has that value."""
    checked = list(examples_of(PAGE))
    assert [code for code, value, expected in checked if value != expected] == []
    assert len(checked) == 14


@pytest.mark.parametrize("page", ["README.md", "docs/how-it-works.md"])
def test_the_length_of_the_loop_is_as_told(page):
    [told] = re.findall(r"(\d+) lines with its docstring", (ROOT / page).read_text(encoding="utf-8"))
    assert int(told) == len((SOURCE / "loop.py").read_text(encoding="utf-8").splitlines())


def test_the_readme_names_every_algorithm():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in PRESETS if f"`{name}`" not in text] == []
    assert "Twenty algorithms" in text
    assert len(PRESETS) == 20


def test_every_metric_named_on_a_page_is_one():
    known = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for page in ("algorithms.md", "troubleshooting.md", "compare.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        areas = "rollout|reward|reward_model|advantage|teacher|loss|critic|optim|eval|time|perf"
        names = re.findall(rf"`((?:{areas})/[\w<>/*]+)`", text)
        assert [name for name in names if f"`{name.rstrip('*')}" not in known] == [], page
