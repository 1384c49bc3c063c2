"""README.md of a model folder: a Hugging Face model card, written from the run folder. Imports no torch.

Text from a run or a recipe is untrusted: it is escaped in prose and tables and fenced in code blocks. Of local paths only the last part
is shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import tomli_w
from markupsafe import Markup

from cohort.base.text import write_count
from cohort.evaluation.estimators import UNCLEAR
from cohort.observe.outcome import write_difference
from cohort.observe.report.data import RunData, as_dict, as_number
from cohort.observe.report.frame import make_environment
from cohort.observe.report.page import list_measures, make_interval_cell

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)


def write_card(run_folder: Path, model: Path, weights: str = "its final model", checkpoint: str = "", name: str = "") -> None:
    """Write README.md into a model folder. checkpoint: the source of the weights; "": the end of the run. name: a hub id."""
    adapter = (model / "adapter_config.json").is_file()
    text = render_card(RunData(run_folder), adapter, weights, checkpoint, name)
    (model / "README.md").write_text(text, encoding="utf-8")


def render_card(run: RunData, adapter: bool, weights: str, checkpoint: str, name: str) -> str:
    algorithm = str(run.find_setting("algorithm", "name") or "grpo")
    source, prompts = (str(run.find_setting(section, "source") or "") for section in ("model", "prompts"))
    before, after = run.find_numbers("before"), find_numbers_of(run, checkpoint)
    recipe = hide_paths({key: value for key, value in run.recipe.items() if key not in ("name", "runs_folder")})
    steps = int(match[1]) if (match := re.match(r"step-(\d+)", checkpoint)) else 0 if checkpoint else run.steps
    return (
        make_environment()
        .get_template("card.j2")
        .render(
            front=Markup(write_front_matter(adapter, algorithm, source, prompts)),
            title=escape_markdown(name or run.name),
            algorithm=escape_markdown(algorithm.upper()),
            source=name_source(source),
            prompts=name_source(prompts),
            run=escape_markdown(run.name),
            weights=escape_markdown(f"{weights}, after {write_count(steps, 'step')}"),
            rows=list(list_rows(run, checkpoint, before, after)),
            measured=bool(after),
            paired="" if checkpoint else "; the change is paired, problem by problem",
            place=Markup(json.dumps(name or "path/to/this/folder")),
            recipe=Markup(fence_text(tomli_w.dumps(recipe))),
        )
        + "\n"
    )


def write_front_matter(adapter: bool, algorithm: str, source: str, prompts: str) -> str:
    """The YAML front matter, with values as JSON, which is valid YAML."""
    fields: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": "text-generation"}
    if HUB_ID.fullmatch(source):
        fields |= {"base_model": source, "base_model_relation": "adapter" if adapter else "finetune"}
    if HUB_ID.fullmatch(prompts):
        fields["datasets"] = [prompts]
    fields["tags"] = list(
        dict.fromkeys(["cohort", "reinforcement-learning", re.sub(r"[^a-z0-9]+", "-", algorithm.lower()).strip("-")])
    )
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())


def name_source(source: str) -> Markup:
    known = {"scratch": "random weights", "python:rows": "rows passed from Python"}
    return escape_markdown(known.get(source) or (source if HUB_ID.fullmatch(source) else hide_paths(source)))


# -- figures -----------------------------------------------------------------------------------------------------------


Numbers = Mapping[str, Mapping[str, Any]]


def list_rows(run: RunData, checkpoint: str, before: Numbers, after: Numbers) -> Iterator[list[Markup]]:
    """The table of results before training and for these weights, with intervals."""
    for name in dict.fromkeys([*before, *after]):
        a, b = before.get(name, {}), after.get(name, {})
        problems = as_number((b or a).get("problems"))
        for what in (what for what in list_measures(a, b) if not b or what in b):  # evaluations during training measure less
            found = [make_interval_cell(as_dict(side.get(what)), what != "reward") for side in (a, b)]
            sides = [f"{cell.text} {cell.small}".strip() for cell in found]
            # Our own brackets need no escaping.
            cells = [*map(Markup, sides), Markup("" if checkpoint else describe_difference(run, name, what))]
            yield [escape_markdown(f"{name}{f' ({problems:.0f})' if problems else ''}"), escape_markdown(what), *cells]


def find_numbers_of(run: RunData, checkpoint: str) -> Numbers:
    """The evaluation of exactly these weights; a checkpoint inside a step has different weights from the previous step."""
    if not checkpoint:
        return run.find_numbers("after")
    step = re.fullmatch(r"step-(\d+)(\.0|-batch)?", checkpoint)
    return run.find_numbers("", int(step[1])) if step else {}


def describe_difference(run: RunData, name: str, what: str) -> str:
    change = run.find_change(name, what)
    if change is None:
        return ""
    points, interval = write_difference(change)
    return f"{points} points {interval}".strip() + (f", {UNCLEAR}" if change.verdict == UNCLEAR else "")


# -- text --------------------------------------------------------------------------------------------------------------


def escape_markdown(text: str) -> Markup:
    """The text as one line, escaped for Markdown and HTML."""
    return Markup(re.sub(r"([\\`*_\[\]|#])", r"\\\1", escape(" ".join(text.split()), quote=False)))


def hide_paths(value: Any) -> Any:
    """The value with absolute paths reduced to their last part and secrets removed."""
    if isinstance(value, Mapping):
        return {key: "(left out)" if is_secret(key, inner) else hide_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hide_paths(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() and "\n" not in value else value


def is_secret(key: str, value: Any) -> bool:
    """Whether a setting may be a secret, as a reward's arguments may be; the name of a variable (api_key_env) is not."""
    named = bool(SECRET.search(key)) and not key.endswith(("_env", "_token", "_tokens"))
    return named and isinstance(value, str) and value != ""


def fence_text(text: str) -> str:
    """The text as a code block with a fence longer than any in the text."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}toml\n{text.rstrip()}\n{fence}"
