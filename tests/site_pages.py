"""What the tests of the documentation share: its pages, the commands on them, and a `cohort.train` that is small enough to run them."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cohort
from cohort.cli import app
from cohort.model.scratch import build_scratch
from cohort.recipe.file import find_recipe, list_built_in, load_recipe, split_arguments
from cohort.recipe.schema import ScratchConfig
from cohort.tools.compare.contenders import find_contenders
from commands_page import list_commands

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NEW = [
    DOCS / "index.md",
    DOCS / "from-trl.md",
    *sorted(path for folder in ("start", "how-to", "understand") for path in (DOCS / folder).glob("*.md")),
]
"""Pages for those who are new: short, and every block on them runs."""
SITE = sorted(path for path in DOCS.rglob("*.md") if not {"generators", "results"} & set(path.relative_to(DOCS).parts[:-1]))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *SITE]
PAGES += sorted((ROOT / "src" / "cohort" / "recipe" / "built_in").glob("*/README.md"))
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
SHAPE = {"hidden_size": 16, "intermediate_size": 24, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
TINY = {
    "num_steps": 1,
    "prompts_per_step": 2,
    "group_size": 2,
    "evaluation.samples": 2,
    "evaluation.resamples": 100,
    "evaluation.max_problems": 2,
    "monitors.console": False,
    "max_completion_tokens": 4,
}


FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def read_blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    return [block[3] for block in FENCE.finditer(page.read_text(encoding="utf-8")) if block[2] in languages]


def read_prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


# -- commands ----------------------------------------------------------------------------------------------------------


def list_lines(page: Path) -> Iterator[str]:
    """Command lines of `cohort` in the blocks of a page, without what is remarked behind them."""
    blocks = [*read_blocks(page, "bash", "text", ""), *re.findall(r"(?:^    .*\n)+", read_prose(page), re.MULTILINE)]
    for line in re.sub(r"\\\n\s*", "", "\n".join(blocks)).splitlines():
        found = re.match(r"(?:[A-Z_]+=\S+ )*(?:torchrun (?:--?[\w-]+(?: [\w.:-]+)? )+-m )?(cohort \S.*)", line.strip())
        if found:
            yield re.split(r"\s{2,}|\s#", re.sub(r"\$\([^)]*\)", "X", found[1]))[0].strip()


def list_inline(page: Path) -> Iterator[str]:
    """Commands inside sentences."""
    return (" ".join(found.split()) for found in re.findall(r"`(cohort [a-z][^`]*)`", read_prose(page)))


def check_command(line: str) -> None:
    """The command as the command line reads it, to the point where something would run; files of one's own aside."""
    if "..." in line or "[" in line:  # a form, not a command
        return
    _, name, *words = shlex.split(line)
    if not words:
        assert name in list_commands(), line
        return
    with list_commands()[name].make_context(name, list(words)) as context:
        given: dict[str, Any] = context.params
    if name == "compare":
        if ".toml" not in line:
            find_contenders(given["arguments"], given["recipe"])
    elif name in ("train", "doctor", "serve"):
        recipe, overrides = split_arguments((given["arguments"] or [])[: words.index("--") if "--" in words else None])
        find_recipe(recipe, overrides) if not recipe or recipe in list_built_in() else load_recipe(None, overrides)
    elif name == "evaluate":
        load_recipe(None, given["set_"] or [])


# -- a small run -------------------------------------------------------------------------------------------------------


def make_tiny_chat_model(folder: Path) -> Path:
    """A chat model of a few thousand parameters, in the format of the hub."""
    net, tokenizer = build_scratch(ScratchConfig(**SHAPE, max_positions=256, characters=string.printable), (), 0)
    tokenizer.chat_template = TEMPLATE
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tiny_train(chat_model: Path, seen: list[dict[str, Any]]) -> Callable[..., cohort.RunResult]:
    """`cohort.train` with a tiny model and one step; the words of the page are held against the recipe as they stand."""
    train = cohort.train

    def train_tiny(model: str, prompts: Any, rewards: Any, name: str = "", **words: Any) -> cohort.RunResult:
        load_recipe(values=words)
        seen.append({"model": model, "prompts": prompts, "rewards": rewards, "name": name, **words})
        if model == "scratch":
            tiny: dict[str, Any] = {f"model.scratch.{key}": value for key, value in SHAPE.items()}
        else:
            model, tiny = str(chat_model), {}
        kept = {key: value for key, value in words.items() if key not in TINY and key != "evaluation"}
        return train(model, prompts, rewards, name=name, **kept, **TINY, **tiny)

    return train_tiny


def run_tiny(words: list[str]) -> int:
    """A command of the page in this process; of `cohort train` with a tiny demo and one step."""
    tiny = [f"{key}={str(value).lower()}" for key, value in TINY.items()] + [f"model.scratch.{k}={v}" for k, v in SHAPE.items()]
    tiny += [
        "cold_start.num_steps=2",
        "cold_start.until_success=1",
        "prompts.limit=64",
        "evaluation.sets={}",
        "evaluation.every_steps=0",
    ]
    try:
        app([*words, *tiny] if words[0] == "train" else words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
