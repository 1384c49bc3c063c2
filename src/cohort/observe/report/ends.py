"""How a run ended and what comes next: the error of a failed one, the recipe, commands to type. Every text is escaped."""

from __future__ import annotations

from cohort.observe.report.data import RunData, as_dict
from cohort.observe.report.frame import text


def failure(run: RunData) -> str:
    """Why a failed run ended: the kind of error, its words, where it arose, and what to do."""
    message = run.summary.get("error")
    if run.status != "failed" or not message:
        return ""
    where = as_dict(run.summary.get("failure"))
    kind, place = where.get("type") or "error", where.get("where")
    code = f" in {place}" if place else ""
    arose = (
        f"It arose{code} after {run.steps} finished steps."
        if run.steps
        else f"It arose{code} before the first step was finished."
    )
    if (run.folder / "checkpoints").is_dir():
        fix = f"What was earned is saved: mend the cause, then go on with: cohort resume {place_of(run)}"
    else:
        fix = "Nothing had been earned yet: mend the cause and start again; the name may be used again."
    return (
        f'<div class="findings failed"><div class="card finding alarm"><p><span class="level">{text(kind)}</span>'
        f"<strong>The run failed.</strong></p><pre>{text(message)}</pre>"
        f'<p class="caption">{text(arose)}</p><p class="fix">{text(fix)}</p></div></div>'
    )


def place_of(run: RunData) -> str:
    """The folder as it is typed where the run was made; no path of this machine."""
    return f"{run.folder.resolve().parent.name}/{run.name}"


def recipe(run: RunData) -> str:
    if not run.recipe_text:
        return ""
    return (
        '<h2>Recipe</h2><details class="card"><summary>Everything the run depends on, every default written out</summary>'
        f"<pre>{text(run.recipe_text)}</pre></details>"
    )


def next_steps(run: RunData) -> str:
    folder = place_of(run)
    steps = []
    if run.status != "finished":
        steps.append(("Go on where it stopped", f"cohort resume {folder}"))
    steps.append(("Measure it again", f"cohort evaluate {folder}"))
    if run.status == "finished":
        load = f'AutoModelForCausalLM.from_pretrained("{folder}/model")'
        steps.append(("Use the model", load))
        steps.append(("Publish it, or another checkpoint", f"cohort export {folder} OUT --checkpoint best"))
    steps.append(("Write this page again", f"cohort report {folder}"))
    items = "".join(f"<dt>{text(what)}</dt><dd><code>{text(how)}</code></dd>" for what, how in steps)
    return (
        f'<h2>Next</h2><div class="card"><dl>{items}</dl></div><p class="caption">metrics.jsonl holds every number on this page, '
        "rollouts/ every completion with its reward and advantage; docs/metrics.md explains each metric.</p>"
    )
