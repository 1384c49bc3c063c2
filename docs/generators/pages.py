"""What the generators of pages share: where a page lies, a row of a table, and a part of a page between two marks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def read_page(name: str) -> str:
    """The text of docs/NAME as it is; "" where there is none yet."""
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def format_row(*cells: str) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def replace_between(page: str, begin: str, end: str, text: str) -> str:
    """The page with the text between its two marks made anew; what stands around them is kept."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}{end}{rest.partition(end)[2]}"
