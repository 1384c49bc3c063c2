r"""The rows and cells of \begin{...}...\end{...}: matrices, systems of equations, and equations that are only aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.rewards.math.levels import closes_at, is_sign, levels, split_at
from cohort.rewards.math.text import COMMAND, LETTERS, TEXT, Token

MATRICES = ("pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix", "array", "vmatrix", "cases", "dcases", "rcases")
ALIGNED = (
    "aligned",
    "align",
    "alignedat",
    "alignat",
    "flalign",
    "split",
    "gathered",
    "gather",
    "equation",
    "eqnarray",
    "multline",
)
TOGETHER = Token(TEXT, "and")


@dataclass(frozen=True)
class Environment:
    sort: str
    rows: list[list[list[Token]]]
    """Rows of cells of tokens."""


def environment_of(tokens: list[Token]) -> Environment | None:
    r"""The environment that the tokens are, also behind the lone brace of \left\{ ... \right."""
    if len(tokens) > 1 and tokens[0].kind == COMMAND and tokens[0].text == "{" and closes_at(tokens, 0) < 0:
        tokens = tokens[1:]
    if not (tokens[0].kind == COMMAND and tokens[0].text == "begin" and (end := closes_at(tokens, 0)) >= 0):
        return None
    sort, start = braced_name(tokens, 1)
    if sort not in (*MATRICES, *ALIGNED) or braced_name(tokens, end + 1) != (sort, len(tokens)):
        return None
    inside = tokens[start:end]
    if sort in ("array", "alignedat", "alignat") and inside and is_sign(inside[0], "{"):
        inside = inside[closes_at(inside, 0) + 1 :]
    deep = levels(inside)
    breaks = [p for p, token in enumerate(inside) if not deep[p] and token.kind == COMMAND and token.text == "\\"]
    rows = [
        split_at(row, [p for p, (t, d) in enumerate(zip(row, levels(row), strict=True)) if not d and is_sign(t, "&")])
        for row in split_at(inside, breaks)
        if row
    ]
    return Environment("cases" if sort in ("dcases", "rcases") else sort, rows)


def braced_name(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    r"""The name behind \begin or \end, without the star of align*, and the place after it."""
    inside = list(tokens[place : place + 4])
    if len(inside) == 4 and is_sign(inside[2], "*"):
        del inside[2]
        place += 1
    if len(inside) > 2 and is_sign(inside[0], "{") and inside[1].kind == LETTERS and is_sign(inside[2], "}"):
        return inside[1].text, place + 3
    return "", place


def one_line(environment: Environment, relations: frozenset[tuple[str, str]]) -> list[Token] | None:
    r"""The lines of what is aligned, a system or one equation as one answer, "and" between lines; None for a matrix.

    A line that begins with a sign of relation goes on with the line before it: x &= 2 + 3 \\ &= 5.
    """
    rows = [row for row in environment.rows if any(row)]
    cells = [cell for row in rows for cell in row]
    signs = [cell for row in rows for cell in row[1:] if cell and (cell[0].kind, cell[0].text) in relations]
    said = all(any((token.kind, token.text) in relations for token in cell) for cell in cells)
    aligned = environment.sort in ALIGNED or bool(signs)
    single = environment.sort == "array" and len(cells) == 1
    system = (
        environment.sort in ("array", "cases") and all(len(row) == 1 for row in rows) and (said or environment.sort == "cases")
    )
    if not rows or not (aligned or single or system):
        return None
    line: list[Token] = []
    for row in rows:
        tokens = [token for cell in row for token in cell]
        goes_on = (tokens[0].kind, tokens[0].text) in relations
        line += [*([TOGETHER] if line and not goes_on else []), *tokens]
    return line
