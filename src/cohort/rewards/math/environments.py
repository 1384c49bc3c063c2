r"""The rows and cells of \begin{...}...\end{...}: matrices, systems of equations, and equations that are only aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.rewards.math.tokens import LETTERS, RELATIONS, TEXT, Token, find_closing, split_by

MATRICES = ("pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix", "array", "vmatrix", "cases", "dcases", "rcases")
ALIGNED = frozenset({
    "aligned", "align", "alignedat", "alignat", "flalign", "split", "gathered", "gather", "equation", "eqnarray", "multline",
})  # fmt: skip
TOGETHER = Token(TEXT, "and")


@dataclass(frozen=True)
class Environment:
    sort: str
    rows: list[list[list[Token]]]
    """Rows of cells of tokens."""


def find_environment(tokens: list[Token]) -> Environment | None:
    r"""The environment that the tokens are, also behind the lone brace of \left\{ ... \right."""
    if len(tokens) > 1 and tokens[0].latex == r"\{" and find_closing(tokens, 0) < 0:
        tokens = tokens[1:]
    if tokens[0].latex != r"\begin" or (end := find_closing(tokens, 0)) < 0:
        return None
    sort, start = read_braced_name(tokens, 1)
    if sort not in (*MATRICES, *ALIGNED) or read_braced_name(tokens, end + 1) != (sort, len(tokens)):
        return None
    inside = tokens[start:end]
    if sort in ("array", "alignedat", "alignat") and inside and inside[0].latex == "{":
        inside = inside[find_closing(inside, 0) + 1 :]
    rows = [split_by(row, "&") for row in split_by(inside, "\\\\") if row]
    return Environment("cases" if sort in ("dcases", "rcases") else sort, rows)


def read_braced_name(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    r"""The name behind \begin or \end, without the star of align*, and the place after it."""
    inside = [token.latex for token in tokens[place : place + 4]]
    length = 4 if inside[2:3] == ["*"] else 3
    if inside[:1] == ["{"] and inside[length - 1 :][:1] == ["}"] and tokens[place + 1].kind == LETTERS:
        return inside[1], place + length
    return "", place


def join_lines(environment: Environment) -> list[Token] | None:
    r"""The lines of what is aligned, a system or one equation as one answer, "and" between lines; None for a matrix.

    A line that begins with a sign of relation goes on with the line before it: x &= 2 + 3 \\ &= 5.
    """
    sort, rows = environment.sort, [row for row in environment.rows if any(row)]
    cells = [cell for row in rows for cell in row]
    is_aligned = sort in ALIGNED or any(cell and cell[0].latex in RELATIONS for row in rows for cell in row[1:])
    are_relations = all(any(token.latex in RELATIONS for token in cell) for cell in cells)
    is_system = len(cells) == len(rows) and (sort == "cases" or (sort == "array" and (are_relations or len(cells) == 1)))
    if not rows or not (is_aligned or is_system):
        return None
    line: list[Token] = []
    for row in rows:
        tokens = [token for cell in row for token in cell]
        goes_on = not line or tokens[0].latex in RELATIONS
        line += [*([] if goes_on else [TOGETHER]), *tokens]
    return line
