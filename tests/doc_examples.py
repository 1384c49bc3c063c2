"""Examples of the documentation, run: an expression with a comment behind it must have that value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any


def examples_of(page: str) -> Iterator[tuple[str, Any, Any]]:
    """(code, its value, the value in the comment) of every expression, all blocks in one namespace, top to bottom."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        for statement in ast.parse(block).body:
            code = ast.get_source_segment(block, statement)
            assert code is not None
            assert statement.end_lineno is not None
            if isinstance(statement, ast.Expr):
                comment = block.splitlines()[statement.end_lineno - 1].partition("    # ")[2].strip()
                yield code, eval(code, names), ast.literal_eval(comment)
            else:
                exec(code, names)
