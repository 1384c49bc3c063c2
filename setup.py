"""The long description of the package: README.md with absolute links. Everything else stands in pyproject.toml.

A package index shows the text and has none of the files that it points to. The address is `Repository` of [project.urls], the
files are those of the version's tag.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(
    r"""(?P<image>!)?(?P<text>\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\])\((?P<path>[^)\s]+)\)|(?P<tag>(?:src|href)=")(?P<file>[^"]+)"""
)
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|#|//")


def make_links_absolute(text: str, repository: str, version: str) -> str:
    """Every link to a file of the repository with its address; pictures with that of the bare file."""

    def find_address(path: str, is_image: bool) -> str:
        return (
            path
            if ABSOLUTE.match(path)
            else f"{repository}/{'raw' if is_image else 'blob'}/v{version}/{path.removeprefix('./')}"
        )

    def replace(match: re.Match[str]) -> str:
        if match["tag"]:
            return match["tag"] + find_address(match["file"], match["tag"].startswith("src"))
        inner = LINK.sub(replace, match["text"][1:-1])  # a picture may itself be the text of a link
        return f"{match['image'] or ''}[{inner}]({find_address(match['path'], bool(match['image']))})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)  # every second one is code
    return "".join(part if place % 2 else LINK.sub(replace, part) for place, part in enumerate(parts))


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=make_links_absolute(readme, project["urls"]["Repository"], project["version"]),
        long_description_content_type="text/markdown",
    )
