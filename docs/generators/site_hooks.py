"""A hook for mkdocs: rewrites links that lead out of docs/, and refuses pictures that do not exist.

A page of docs/ may link to a file of the repository: a reader of the checkout follows it. The site has no such file, so the link goes
to the repository that pyproject.toml names under [project.urls], and is plain text where it names none.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
PICTURE = re.compile(r"""!\[[^\]]*\]\(([^)\s]+)|<img\b[^>]*?\bsrc=["']?([^"'\s>]+)""")
LOG = logging.getLogger("mkdocs.hooks.site")
NOT_ON_THE_SITE = ("generators", "results")
"""Folders of docs/ that mkdocs.yml leaves out."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    for picture in list_dead_pictures(markdown, page.file.src_uri):
        LOG.warning("%s: the picture %s does not exist in docs/", page.file.src_uri, picture)  # with --strict an error
    return rewrite_links(markdown, page.file.src_uri, find_repository())


def list_dead_pictures(markdown: str, page: str) -> list[str]:
    """The pictures of a page, in Markdown or HTML, that are not files of the site."""
    text = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    targets = [first or second for first, second in PICTURE.findall(text)]
    places = {target: Path(os.path.normpath((DOCS / page).parent / target)) for target in targets}
    return [target for target, place in places.items() if not (place.is_file() and place.is_relative_to(DOCS))]


def find_repository() -> str:
    """The address of the repository; "" where pyproject.toml names none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls = {name.lower(): address for name, address in project.get("urls", {}).items()}
    return str(next((urls[name] for name in ("repository", "source", "homepage") if name in urls), "")).rstrip("/")


def rewrite_links(markdown: str, page: str, repository: str) -> str:
    """The page with links out of the site led to the repository; code is left as it is."""

    def lead(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        if "://" in target or target.startswith(("#", "mailto:")):
            return link[0]
        path = Path(os.path.normpath((DOCS / page).parent / target.partition("#")[0]))
        inside = path.is_relative_to(DOCS) and path.relative_to(DOCS).parts[:1] not in [(name,) for name in NOT_ON_THE_SITE]
        if inside:
            return link[0]
        place = path.relative_to(ROOT).as_posix()
        return f"[{text}]({repository}/blob/main/{place})" if repository else text

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in parts)
