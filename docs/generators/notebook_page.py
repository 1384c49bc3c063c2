"""docs/start/tutorial.ipynb: the tutorial as a notebook, its Python as cells that run, the rest as text."""

from __future__ import annotations

import json
import re
from typing import Any

from pages import read_page

BLOCK = re.compile(r"```python\n(.*?)```\n", re.DOTALL)


def make_page() -> str:
    """The text of docs/start/tutorial.ipynb."""
    pieces = BLOCK.split(read_page("start/tutorial.md"))  # text and code in turn
    cells = [make_cell(number, piece.strip()) for number, piece in enumerate(pieces) if piece.strip()]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return (
        json.dumps(
            {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5},
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def make_cell(number: int, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    if number % 2:
        return {"cell_type": "code", "execution_count": None, "outputs": [], **cell}
    return {"cell_type": "markdown", **cell}
