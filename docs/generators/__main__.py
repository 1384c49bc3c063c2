"""Writes the pages of docs/ that come from the code, or says which are not current.

python docs/generators                   writes all of them
python docs/generators recipe.md         writes those that are named
python docs/generators --check           writes none, and ends with 1 where one is not current
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import api_page
import commands_page
import gym_page
import house
import metrics_page
import notebook_page
import recipe_page
import rewards_page
import trl_page
from pages import DOCS, read_page

PAGES: dict[str, Callable[[], str]] = {
    "recipe.md": recipe_page.make_page,
    "metrics.md": metrics_page.make_page,
    "rewards.md": rewards_page.make_page,
    "gym-tasks.md": gym_page.make_page,
    "api.md": api_page.make_page,
    "commands.md": commands_page.make_page,
    "from-trl.md": trl_page.make_page,
    "start/tutorial.ipynb": notebook_page.make_page,
    "house.svg": house.draw_house,
    "how-it-works.md": house.make_page,
}


def main(words: list[str]) -> int:
    names = [word for word in words if word != "--check"] or list(PAGES)
    texts = {name: PAGES[name]() for name in names}
    changed = [name for name, text in texts.items() if read_page(name) != text]
    if "--check" not in words:
        for name in changed:
            (DOCS / name).write_text(texts[name], encoding="utf-8")
    print(f"{'not current' if '--check' in words else 'wrote'}: {', '.join(changed) or 'nothing, all are current'}")
    return int("--check" in words and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
