"""`cohort audit`: its words; the work is done in cohort.tools.audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def audit(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="REWARD KEY=VALUE", help="A built-in reward, package.module:function or a recipe; then arguments."
        ),
    ],
    rows: Annotated[str | None, typer.Option(help="Rows to audit with: a file, or anything that prompts.source takes.")] = None,
    gold: Annotated[str | None, typer.Option(help="Column with the gold answer; `answer` unless named.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Column with the prompt; `prompt` unless named.")] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="PARAMETER=COLUMN: feed a parameter from another column; may be repeated."),
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="A form of completion that the reward reads, with {answer} in it.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="math, exact, code or shape; without it: by the reward and its rows.")
    ] = None,
    shape: Annotated[bool | None, typer.Option("--shape", help="It judges the shape alone and reads no gold.")] = None,
    threshold: Annotated[float | None, typer.Option(help="A score from here on is a success; 0.5 unless known.")] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", help="Seconds that one completion may take; 10 unless named.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Rows that are used; 8 of your own unless named.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write what was found as JSON.")] = None,
) -> int:
    """Attack a reward function before a policy does.

    \b
    cohort audit math_answer                            a built-in reward
    cohort audit my_rewards:correct --rows data.jsonl   your own, with your rows
    cohort audit my.toml                                every reward of a recipe

    Exit code 0: nothing found, 1: flaws found, 2: could not audit.
    """
    given = {option: value for option, value in locals().items() if option != "words" and value is not None}
    from cohort.tools.audit.command import run_audit

    return run_audit(words, **given)
