"""docs/api.md: the Python API, written from signatures and docstrings. tests/test_exported_members.py holds the page to them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from typing import Any

import cohort
from cohort import errors
from cohort.observe.monitors.base import METHODS, Monitor

INTRODUCTION = """\
# The Python API

<!-- Written by `make docs` from the signatures and docstrings; edit there. -->

```python
import cohort

rows = [{"prompt": "What is 2 + 3?", "answer": "5"}, ...]          # or a DataFrame, a datasets.Dataset, "rows.jsonl"

def correct(completions, answer, **columns):
    return [float(text.strip().endswith(gold)) for text, gold in zip(completions, answer)]

run = cohort.train("Qwen/Qwen2.5-0.5B-Instruct", rows, [correct], evaluate_on=test_rows, group_size=8, num_steps=200)
run                                            # RunResult(finished, 200 steps, pass@1 before -> after, /.../runs/...)
run.model                                      # the folder of the trained model; loads with transformers
cohort.evaluate(run, other_rows, samples=16)   # the same measures and intervals as the command
cohort.train(run, harder_rows, [correct])      # continues from the trained model
```

Keywords that are not in a signature are keys of the [recipe](recipe.md). Errors are `CohortError`s; the message names the field, the
fault and the fix. A run writes everything into its folder, which the [command line](../README.md) reads too.
"""

ELSEWHERE = {
    "Recipe": "All settings of a run, as returned by `load_recipe`. Sections and keys: [recipe.md](recipe.md).",
    "rewards": "The built-in rewards as functions, `cohort.rewards.math_answer(completions, answer)`: [rewards.md](rewards.md).",
}
"""Names with a page of their own."""


def make_page() -> str:
    """The text of docs/api.md."""
    functions = [name for name in cohort.__all__ if inspect.isfunction(getattr(cohort, name))]
    classes = [name for name in cohort.__all__ if name not in functions and name not in ELSEWHERE and name != "CohortError"]
    parts = [INTRODUCTION, "## Functions\n"]
    parts += [describe_function(name, getattr(cohort, name)) for name in sorted(functions, key=in_order_of_use)]
    parts.append("## What they give and take\n")
    parts += [describe_class(name, getattr(cohort, name)) for name in classes]
    parts += [f"### `cohort.{name}`\n\n{words}\n" for name, words in ELSEWHERE.items()]
    parts += ["## A monitor of your own\n", describe_monitor(), "## Errors\n", describe_errors()]
    return "\n".join(parts)


def in_order_of_use(name: str) -> int:
    order = ("train", "resume", "evaluate", "load_recipe")
    return order.index(name) if name in order else len(order)


def describe_function(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    lines = [f"    {parameter}," for parameter in written_parameters(signature)]
    returned = str(signature.return_annotation)
    code = f"cohort.{name}(\n" + "\n".join(lines) + f"\n) -> {returned}"
    return f"### `cohort.{name}`\n\n```python\n{code}\n```\n\n{with_list(function, set(signature.parameters))}\n"


def written_parameters(signature: inspect.Signature) -> list[str]:
    written, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            written.append("*")
            starred = True
        written.append(write_parameter(parameter))
    return written


def write_parameter(parameter: inspect.Parameter) -> str:
    """As it is typed: annotations without the quotes that a postponed one has, and none that says nothing."""
    kind = parameter.annotation if isinstance(parameter.annotation, str) else inspect.formatannotation(parameter.annotation)
    star = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
    named = f"{star}{parameter.name}" + ("" if kind == "Any" else f": {kind}")
    if parameter.default is parameter.empty:
        return named
    return f"{named}{'=' if kind == 'Any' else ' = '}{parameter.default!r}"


def with_list(documented: Any, names: set[str]) -> str:
    """The docstring, with a list where it explains words one by one: a line that begins with names and a colon."""
    lines: list[str] = []
    for line in textwrap.dedent("    " + (documented.__doc__ or "")).strip().splitlines():
        plain = line.strip()
        match = re.match(r"(\w+(?:, \w+)*): ", plain)
        if match and set(match[1].split(", ")) <= names:
            words = ", ".join(f"`{word}`" for word in match[1].split(", "))
            lines.append(f"- {words}: {plain[match.end() :]}")
        elif plain and lines and lines[-1].startswith(("- ", "  ")):
            lines.append(f"  {plain}")
        else:
            lines.append(plain)
    return "\n".join(lines)


def describe_class(name: str, kind: type) -> str:
    rows = [f"- `{field.name}`: `{field.type}`{said(kind, field.name)}" for field in dataclasses.fields(kind)]
    for member, value in vars(kind).items():
        if member.startswith("_") or (not isinstance(value, property | staticmethod) and not inspect.isfunction(value)):
            continue
        function: Any = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if function.__doc__:
            rows.append(f"- `{member}{'' if isinstance(value, property) else '()'}`: {first_paragraph(function)}")
    return f"### `cohort.{name}`\n\n{first_paragraph(kind)}\n\n" + "\n".join(rows) + "\n"


def said(kind: type, field: str) -> str:
    """The text that stands below a field in the source."""
    (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if isinstance(node, ast.ClassDef))
    for statement, below in itertools.pairwise(body):
        named = isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == field
        if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            return f". {' '.join(str(below.value.value).split())}"
    return ""


def describe_monitor() -> str:
    methods = "\n".join(
        f"- `{name}{plain_signature(getattr(Monitor, name))}`: {first_paragraph(getattr(Monitor, name))}" for name in METHODS
    )
    return (
        "An object with any of these methods, handed to `cohort.train(monitors=[...])`, or a class that a recipe names "
        '(`monitors.also = ["package.module:Class"]`). What it raises is reported once and never stops a run. '
        "[examples/mlflow_monitor.py](../examples/mlflow_monitor.py) is one for MLflow; built in are `tensorboard`, `wandb` and "
        f'`trackio` (`monitors={{"also": ["trackio"]}}`).\n\n{methods}\n'
    )


def plain_signature(function: Any) -> str:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return f"({', '.join(map(write_parameter, parameters))})"


def describe_errors() -> str:
    rows = [f"- `{name}`: {first_paragraph(kind)}" for name, kind in vars(errors).items() if inspect.isclass(kind)]
    return "In `cohort.errors`; all but `Interrupted` derive from `CohortError`.\n\n" + "\n".join(rows) + "\n"


def first_paragraph(documented: Any) -> str:
    return " ".join((documented.__doc__ or "").strip().split("\n\n")[0].split())
