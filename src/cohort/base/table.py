"""A table on the console: every command writes its own with this one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cohort.base.text import make_printable

if TYPE_CHECKING:
    from rich.table import Table


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, gap: int = 2) -> Table:
    """For `console.print`. The first `texts` columns stand at the left and may be wrapped; numbers follow, at the right and whole.

    Cells are text and never markup: names of sets, runs and files may hold brackets, or what would steer a terminal.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for place, head in enumerate(heads):
        table.add_column(Text(make_printable(head)), justify="left" if place < texts else "right", no_wrap=place >= texts)
    for cells in rows:
        table.add_row(*(Text(make_printable(cell)) for cell in cells))
    return table
