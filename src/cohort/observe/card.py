"""README.md of a model folder: a model card in the hub's format, written from the run folder. Imports no torch.

What a run or a recipe says is untrusted text: it is escaped in prose and tables, and fenced where it stands as it is. Folders of this
machine are named by their last part alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import tomli_w

from cohort.evaluation.estimators import UNCLEAR
from cohort.observe.report.data import RunData, as_dict, load_run, number

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)


def write_card(run_folder: Path, model: Path, weights: str = "its final model", checkpoint: str = "", name: str = "") -> None:
    """Write README.md into a model folder. checkpoint: whose weights these are; "": of the end of the run. name: a hub id."""
    adapter = (model / "adapter_config.json").is_file()
    text = card(load_run(run_folder), adapter, weights, checkpoint, name)
    (model / "README.md").write_text(text, encoding="utf-8")


def card(run: RunData, adapter: bool, weights: str, checkpoint: str, name: str) -> str:
    algorithm = as_dict(run.recipe.get("algorithm")).get("name") or "grpo"
    source, prompts = (str(as_dict(run.recipe.get(section)).get("source") or "") for section in ("model", "prompts"))
    figures = "\n".join(figure_lines(run, checkpoint))
    return f"""\
---
{front_matter(run, adapter, str(algorithm), source, prompts)}
---

# {plain(name or run.name)}

{plain(str(algorithm)).upper()} with Cohort from {described(source)}, on {described(prompts)}.
These are the weights of the run {plain(run.name)}: {plain(weights)}{after_steps(run, checkpoint)}.

## Figures

{figures}

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({json.dumps(name or "path/to/this/folder")})
tokenizer = AutoTokenizer.from_pretrained({json.dumps(name or "path/to/this/folder")})
```

## Train it again

Save the recipe as `recipe.toml`, put your own paths where it names files, then:

    pip install cohort-rl
    cohort train recipe.toml

{fenced(written_recipe(run.recipe))}
"""


# -- the top -----------------------------------------------------------------------------------------------------------


def front_matter(run: RunData, adapter: bool, algorithm: str, source: str, prompts: str) -> str:
    """YAML: every value is written as JSON, which is YAML too."""
    fields: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": "text-generation"}
    if HUB_ID.fullmatch(source):
        fields |= {"base_model": source, "base_model_relation": "adapter" if adapter else "finetune"}
    if HUB_ID.fullmatch(prompts):
        fields["datasets"] = [prompts]
    fields["tags"] = list(
        dict.fromkeys(["cohort", "reinforcement-learning", re.sub(r"[^a-z0-9]+", "-", algorithm.lower()).strip("-")])
    )
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())


def described(source: str) -> str:
    if source == "scratch":
        return "random weights"
    if source == "python:rows":
        return "rows handed in from Python"
    return plain(source if HUB_ID.fullmatch(source) else shortened(source))


def after_steps(run: RunData, checkpoint: str) -> str:
    steps = int(match[1]) if (match := re.match(r"step-(\d+)", checkpoint)) else 0 if checkpoint else run.steps
    return f", after {steps} step{'' if steps == 1 else 's'}"


# -- figures -----------------------------------------------------------------------------------------------------------


def figure_lines(run: RunData, checkpoint: str) -> Iterator[str]:
    """A table of the sets before training and at these weights, with the intervals; or that nobody measured them."""
    before, after = run.numbers("before"), measured_at(run, checkpoint)
    if not before and not after:
        yield "Nothing was evaluated."
        return
    if not after:
        yield "These weights were not evaluated by the run; the start was."
        yield ""
    yield "| problems | measure | before | these weights | change |"
    yield "|---|---|---|---|---|"
    for name in dict.fromkeys([*before, *after]):
        a, b = before.get(name, {}), after.get(name, {})
        problems = number((b or a).get("problems"))
        for what in (what for what in {**a, **b} if isinstance((b or a).get(what), Mapping) and not what.startswith("mean@")):
            share = what != "reward"
            cells = [cell(as_dict(side.get(what)), share) for side in (a, b)]
            change = paired(run, name, what) if not checkpoint else ""
            yield f"| {plain(name)}{f' ({problems:.0f})' if problems else ''} | {plain(what)} | {' | '.join(cells)} | {change} |"
    yield ""
    yield f"Brackets hold 95 % intervals over problems{'' if checkpoint else '; the change is paired, problem by problem'}."


def measured_at(run: RunData, checkpoint: str) -> dict[str, dict[str, Any]]:
    """The evaluation of exactly these weights. A checkpoint inside a step has other weights than those of the step before."""
    if not checkpoint:
        return run.numbers("after")
    step = re.fullmatch(r"step-(\d+)(\.0|-batch)?", checkpoint)
    for evaluation in reversed(run.evaluations):
        if step and evaluation.get("step") == int(step[1]):
            return {str(name): as_dict(values) for name, values in as_dict(evaluation.get("sets")).items()}
    return {}


def cell(entry: Mapping[str, Any], share: bool) -> str:
    value, low, high = (number(entry.get(key)) for key in ("value", "low", "high"))
    if value is None:
        return "–"
    scale, digits = (100, 1) if share else (1, 3)
    interval = "" if low is None or high is None else f" [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"
    return f"{scale * value:.{digits}f}{' %' if share else ''}{interval}"


def paired(run: RunData, name: str, what: str) -> str:
    change = run.change(name, what)
    if change is None:
        return ""
    interval = "" if change.low is None or change.high is None else f" [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    return f"{100 * change.difference:+.1f} points{interval}{', no clear change' if change.verdict == UNCLEAR else ''}"


# -- text --------------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """One line of text that Markdown and HTML leave alone."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", escape(" ".join(text.split()), quote=False))


def shortened(value: Any) -> Any:
    """Paths by their last part: where files lie on the machine of a run is nobody else's business."""
    if isinstance(value, Mapping):
        return {key: "(left out)" if hides(key, inner) else shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() and "\n" not in value else value


def hides(key: str, value: Any) -> bool:
    """A reward's arguments may hold what was never meant for others; the NAME of a variable (api_key_env) may stay."""
    return (
        isinstance(value, str) and bool(SECRET.search(key)) and not key.endswith(("_env", "_token", "_tokens")) and value != ""
    )


def written_recipe(recipe: Mapping[str, Any]) -> str:
    return tomli_w.dumps(shortened({key: value for key, value in recipe.items() if key not in ("name", "runs_folder")}))


def fenced(text: str) -> str:
    """A block of code that its own text cannot end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}toml\n{text.rstrip()}\n{fence}"
