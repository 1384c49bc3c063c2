"""The documentation: every page is in the order of the site, every link leads somewhere, every command is understood, every block runs."""

from __future__ import annotations

import ast
import json
import re
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import cohort
from cohort.recipe.file import load_recipe
from doc_examples import examples_of
from site_hooks import NOT_ON_THE_SITE, list_dead_pictures, on_page_markdown, rewrite_links
from site_pages import (
    DOCS,
    NEW,
    PAGES,
    ROOT,
    SITE,
    check_command,
    list_inline,
    list_lines,
    make_tiny_chat_model,
    make_tiny_train,
    read_blocks,
    read_prose,
)

CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
SECTIONS = ["Start", "How do I …", "Coming from TRL", "Understand", "Reference", "Results"]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- order -------------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_order_once_and_two_clicks_away():
    """A tab, then a line beside the page: no section holds another."""
    assert [title for section in CONFIG["nav"] for title in section] == SECTIONS
    sections = [value for section in CONFIG["nav"] for value in section.values()]
    entries = [entry for section in sections for entry in (section if isinstance(section, list) else [section])]
    paths = [entry if isinstance(entry, str) else next(iter(entry.values())) for entry in entries]
    assert all(isinstance(path, str) for path in paths)
    assert sorted(paths) == sorted(path.relative_to(DOCS).as_posix() for path in SITE)


def test_every_page_is_two_links_from_the_readme():
    """For those who read the repository and not the site."""
    near = {ROOT / "README.md"}
    for _ in range(2):
        near |= {file for page in near if page.suffix == ".md" for file, _ in list_targets(page)}
    assert [name(page) for page in SITE if page not in near] == []


def test_the_folders_that_are_left_out_are_those_that_links_are_led_around():
    assert set(CONFIG["exclude_docs"].split()) == {f"{folder}/" for folder in NOT_ON_THE_SITE}


def test_pages_for_newcomers_are_short():
    tables = re.compile(r"^\|.*\n", re.MULTILINE)
    long = {name(page): words for page in NEW if (words := len(tables.sub("", page.read_text(encoding="utf-8")).split())) > 900}
    assert long == {}


# -- links -------------------------------------------------------------------------------------------------------------


@cache
def list_targets(page: Path) -> list[tuple[Path, str]]:
    """(file, anchor) of every link of a page that stays in the repository."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", read_prose(page)):
        if not target.startswith(("https://", "http://")):
            path, _, anchor = target.partition("#")
            found.append(((page.parent / path).resolve() if path else page, anchor))
    return found


@cache
def list_anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them: lower case, spaces to hyphens, all but letters, digits, hyphens and underscores dropped."""
    titles = re.findall(r"^#+ (.*)$", read_prose(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for file, anchor in list_targets(page):
        assert file.exists(), file
        assert not anchor or anchor in list_anchors(file), (file, anchor)


def test_links_out_of_the_site_lead_to_the_repository_or_are_text():
    text = "[loop](../src/cohort/loop.py#L3) [recipe](recipe.md#train) [figures](results) ![x](../a.png)\n```text\n[a](../b.py)\n```\n"
    there = rewrite_links(text, "speed.md", "https://example.org/cohort")
    assert there.startswith("[loop](https://example.org/cohort/blob/main/src/cohort/loop.py) [recipe](recipe.md#train) ")
    assert "[figures](https://example.org/cohort/blob/main/docs/results)" in there
    assert rewrite_links(text, "speed.md", "") == text.replace("[loop](../src/cohort/loop.py#L3)", "loop").replace(
        "[figures](results)", "figures"
    )
    assert (
        rewrite_links("[x](../../examples/custom_algorithm.py) [y](../lora.md)", "how-to/own-algorithm.md", "")
        == "x [y](../lora.md)"
    )


def test_a_picture_that_does_not_exist_is_a_warning_and_so_an_error_of_a_strict_build(caplog):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/reading-a-report.md"))
    text = "![a](../report.png) ![b](../gone.png) <img alt='c' src=\"lost.svg\"> ![d](../../README.md)\n```text\n![e](x.png)\n```\n"
    assert list_dead_pictures(text, page.file.src_uri) == ["../gone.png", "lost.svg", "../../README.md"]
    on_page_markdown(text, page, None, None)
    assert [record.name.split(".")[0] for record in caplog.records if record.levelname == "WARNING"] == ["mkdocs"] * 3
    for file in [*DOCS.rglob("*.md")]:
        assert list_dead_pictures(file.read_text(encoding="utf-8"), file.relative_to(DOCS).as_posix()) == [], file


def test_the_captions_of_the_diagram_are_legible_on_its_own_background_in_both_schemes():
    """The page around a picture may be dark while the reader's system is light."""
    source = (DOCS / "data-flow.svg").read_text(encoding="utf-8")
    assert re.search(r'<rect class="paper" width="860" height="210"', source)
    light, dark = source.split("@media (prefers-color-scheme: dark)")

    def luminance(style: str, text: str) -> float:
        colour = re.search(rf"\.{style} {{ fill: #(\w{{6}})", text)[1]
        parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for text in (light, dark):
        dim, bright = sorted((luminance("paper", text), luminance("note", text)))
        assert (bright + 0.05) / (dim + 0.05) >= 4.5


def test_the_site_is_built_without_a_warning(tmp_path):
    """Where mkdocs is installed (`make site`): as strictly as it can, and no page asks another host for anything."""
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    built = list(tmp_path.rglob("*.html"))
    assert len(built) >= len(SITE) + 1
    for page in built:
        assert not re.findall(
            r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>", page.read_text(encoding="utf-8")
        )


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_understood(page, tmp_path, monkeypatch):
    """In a folder that holds what the page tells to write: a comparison imports functions of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_algorithm", raising=False)
    (tmp_path / "my_algorithm.py").write_text(
        "\n".join(read_blocks(DOCS / "how-to" / "own-algorithm.md", "python")), encoding="utf-8"
    )
    for line in [*list_lines(page), *(list_inline(page) if page in NEW or page.name == "README.md" else ())]:
        if "grup_size" not in line:  # a mistake that README shows; tests/test_readme.py reads the answer
            check_command(line)


def test_the_lines_of_pages_are_found():
    """The test above reads something."""
    counts = {name(page): len(list(list_lines(page))) for page in NEW}
    assert counts["docs/how-to/which-algorithm.md"] == 4
    assert sum(counts.values()) > 20


@pytest.mark.parametrize("line", ["cohort train grup_size=4", "cohort report --output x", "cohort look runs/a --wrongg"])
def test_a_command_that_is_wrong_is_not_understood(line):
    with pytest.raises(Exception, match=r"(?i)group_size|missing|no such option"):
        check_command(line)


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    return make_tiny_chat_model(tmp_path_factory.mktemp("model") / "tiny")


def run_blocks(blocks: list[str]) -> SimpleNamespace:
    """All of them in one namespace, top to bottom; an expression with a comment behind it has that value."""
    names: dict[str, Any] = {}
    checked = 0
    for block in blocks:
        for statement in ast.parse(block).body:
            code = ast.get_source_segment(block, statement)
            comment = block.splitlines()[statement.end_lineno - 1].partition("    # ")[2].strip()
            if isinstance(statement, ast.Expr) and comment:
                assert eval(code, names) == ast.literal_eval(comment), code
                checked += 1
            else:
                exec(compile(code, "page", "exec"), names)
    return SimpleNamespace(checked=checked, **names)


@pytest.mark.parametrize(
    ("page", "trained", "checked"),
    [
        ("how-to/own-data.md", 1, 0),
        ("how-to/own-reward.md", 0, 2),
        ("how-to/own-algorithm.md", 0, 0),
        ("how-to/chat-models.md", 1, 0),
        ("from-trl.md", 1, 0),
    ],
)
def test_the_blocks_of_a_page_run(page, trained, checked, chat_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(cohort, "train", make_tiny_train(chat_model, seen))
    found = run_blocks(read_blocks(DOCS / page, "python"))
    assert (len(seen), found.checked) == (trained, checked)
    if trained:
        assert found.run.status == "finished"


def test_pages_with_blocks_are_all_run():
    run = {"how-to/own-data.md", "how-to/own-reward.md", "how-to/own-algorithm.md", "how-to/chat-models.md", "from-trl.md"}
    run |= {"start/tutorial.md", "understand/grpo.md", "how-to/environments.md"}
    assert {page.relative_to(DOCS).as_posix() for page in NEW if read_blocks(page, "python")} == run


def test_environments_of_the_page_can_be_played(tmp_path, monkeypatch):
    import asyncio
    import importlib
    import sys

    from cohort.environments.episodes import EpisodeHost
    from cohort.environments.registry import Environments
    from cohort.recipe.schema import EnvironmentConfig

    counter, call, frozen = read_blocks(DOCS / "how-to" / "environments.md", "python")
    (tmp_path / "games.py").write_text(counter)
    monkeypatch.syspath_prepend(str(tmp_path))
    given: dict[str, Any] = {}
    monkeypatch.setattr(cohort, "train", lambda **named: given.update(named))
    exec(compile(call, "page", "exec"), {})
    environments = Environments(EnvironmentConfig(source=given["environment"], max_turns=given["max_turns"]))
    row = environments.add_seeds(given["prompts"])[0]
    host = EpisodeHost()
    message = {"id": 1, "text": None, "calls": [["increment", {"step": row["target"]}]], "finish": True, "score": False}
    reply = asyncio.run(host.handle({**message, "begin": environments.begin(row)}))
    assert (reply["results"], reply["reward"]) == ([[str(row["target"]), ""]], 1.0)
    assert environments.list_schemas("")[0]["function"]["description"] == "Increase the counter."
    world = SimpleNamespace(reset=lambda seed: (0, {}), step=lambda move: (move, 1.0, move == 3, False, {}))
    monkeypatch.setitem(sys.modules, "gymnasium", SimpleNamespace(make=lambda *_, **__: world))
    played = run_blocks([frozen]).Frozen()
    assert played.reset(seed=1).startswith("You are at 0")
    assert (played.step("down "), played.step("fly")[:5], played.step("up")) == ("You are at 1.\n", "Write", None)
    assert played.get_reward() == 2.0
    importlib.invalidate_caches()
    sys.modules.pop("games", None)


def test_own_choices_of_the_page_are_taken(tmp_path, monkeypatch):
    """By hand, on three rewards, and by the rules for functions of one's own."""
    import torch

    found = run_blocks(read_blocks(DOCS / "how-to" / "own-algorithm.md", "python"))
    rewards_PG = torch.tensor([[0.0, 0.5, 1.0]])
    assert found.median_centered(rewards_PG, rewards_PG >= 0).tolist() == [[-0.5, 0.0, 0.5]]
    tokens = SimpleNamespace(
        policy_logprobs_M=torch.tensor([0.0, 2.0]).log1p(), old_logprobs_M=torch.zeros(2), advantages_M=torch.ones(2)
    )
    assert found.soft_clip(tokens, clip_high=0.5).tolist() == pytest.approx([-1.0, -3.0 + 10 * 1.5**2])  # ratios 1 and 3


def test_the_notebook_runs_cell_by_cell(chat_model, tmp_path, monkeypatch, capsys):
    """Its cells, in their order, with one step instead of sixty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(cohort, "train", make_tiny_train(chat_model, seen))
    notebook = json.loads((DOCS / "start" / "tutorial.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    try:
        found = run_blocks(cells)
    finally:
        sys.modules.pop("my_advantage", None)
    assert cells == [block.strip() for block in read_blocks(DOCS / "start" / "tutorial.md", "python")]
    assert found.checked == 1
    assert [words["name"] for words in seen] == ["first", "second"]
    assert len(seen[0]["prompts"]) == 100
    assert (tmp_path / "runs" / "second" / "algorithm.json").exists()
    assert "3,8:" in capsys.readouterr().out


def test_own_values_of_recipes_on_pages_are_taken(tmp_path):
    """Blocks of TOML, each a recipe of its own."""
    blocks = [block for page in NEW for block in read_blocks(page, "toml")]
    assert len(blocks) == 3
    for block in blocks:
        (tmp_path / "my.toml").write_text(block, encoding="utf-8")
        load_recipe(tmp_path / "my.toml")


# -- GRPO in one page --------------------------------------------------------------------------------------------------

CITED = {
    "2024", "64",  # DeepSeekMath: its year, its group size
    "82.9", "88.2", "46.8", "51.7", "84.6", "88.8",  # its table: GSM8K, MATH, CMATH before and after
    "7", "0.04", "0.28", "0.001", "0.6", "4", "16",  # its model of 7B and beta; DAPO's upper clip; usual ranges
}  # fmt: skip


def test_every_number_of_grpo_in_one_page_is_computed_or_cited():
    page = (DOCS / "understand" / "grpo.md").read_text(encoding="utf-8")
    checked = list(examples_of(page))
    assert [code for code, value, expected in checked if value != expected] == []
    assert len(checked) == 14
    code = "\n".join(read_blocks(DOCS / "understand" / "grpo.md", "python"))
    known = CITED | {number.strip("-") for number in re.findall(r"\d+(?:\.\d+)?", code)} | {"13", "3", "5", "2", "1"}
    assert 3 + 5 * 2 == 13
    prose = re.sub(r"\]\([^)]*\)|`[^`]*`|^\d\. ", "", read_prose(DOCS / "understand" / "grpo.md"), flags=re.MULTILINE)
    told = {number.rstrip(".") for number in re.findall(r"\d+(?:\.\d+)?", prose)}
    assert {
        number for number in told if number not in known and f"{float(number):g}" not in {f"{float(each):g}" for each in known}
    } == set()


def test_its_advantages_are_those_that_train():
    import torch

    from cohort.algorithms.advantages import group_normalized

    found = run_blocks(read_blocks(DOCS / "understand" / "grpo.md", "python")[:2])
    for rewards in (found.six, found.eight):
        rewards_PG = torch.tensor([rewards], dtype=torch.float64)
        ours = group_normalized(rewards_PG, rewards_PG >= 0, std_ddof=0, std_epsilon=1e-6)
        assert ours[0].tolist() == pytest.approx(found.advantages(rewards), abs=0.006)


# -- TRL ---------------------------------------------------------------------------------------------------------------


def test_defaults_of_trl_as_they_are_written_here_are_taken():
    """The fourth column of the tables that name our words; that the tables are complete is tests/test_pages.py."""
    page = (DOCS / "from-trl.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| [^|]* \| `([^`|]+)` \|", page, re.MULTILINE)
    assert len(rows) > 30
    for option, words in rows:
        servers = ["sampling.servers=http://127.0.0.1:8000"] if option.startswith("vllm_server") else []
        assert load_recipe(overrides=[*words.split(), *servers]), option
