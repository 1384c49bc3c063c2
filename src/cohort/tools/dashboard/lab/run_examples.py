"""Examples for the stations from one of the user's runs. All values come from the files of that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cohort.algorithms.named import NAMED
from cohort.errors import CohortError, NotFound
from cohort.observe.monitors.jsonl import make_strict
from cohort.observe.report.data import as_dict, as_number
from cohort.observe.rollouts import Rows, list_token_steps, read_tokens
from cohort.tools.dashboard.group_queries import find_group_starts, load_rows
from cohort.tools.dashboard.lab.advantages import LARGEST
from cohort.tools.dashboard.lab.stations import MOST_COMPLETIONS
from cohort.tools.dashboard.lab.updates import configure_region
from cohort.tools.dashboard.reader import sample_rows
from cohort.tools.dashboard.run_index import RunIndex, ShownRun
from cohort.tools.dashboard.view import View, write_address

MOST_RUNS = 200
"""Runs in the menu."""
RECENT_GROUPS = 256
"""The number of groups, counted from the newest, that shares are computed from."""
ALL_EQUAL = "No saved group of this run has rewards that differ."
Example = dict[str, Any]
"""sentence; set: settings for the station; links: (label, address); table: heads and rows."""


def find_example(run_index: RunIndex, view: View) -> Example:
    """An example for the station in the path, from the run in the address or the run with the newest completions."""
    if view.params["station"] not in FINDERS:
        raise NotFound("The lab has no such station.")
    return answer_for_run(run_index, view, FINDERS[view.params["station"]], "sentence")


def answer_for_run(
    run_index: RunIndex, view: View, answer: Callable[[ShownRun], Example], error_key: str, recorded: bool = False
) -> Example:
    """The answer for a run, with the menu of runs; an error message under `error_key`.

    The run is the one in the address, else the one with the newest completions (recorded: if possible one with recorded tokens).
    """

    def rank(run: ShownRun) -> tuple[bool, float]:
        rollouts = run.folder.rollouts
        has_tokens = recorded and bool(list_token_steps(rollouts))
        return has_tokens, rollouts.stat().st_mtime if rollouts.is_dir() else 0.0

    runs = run_index.list_runs()[:MOST_RUNS]
    if not runs:
        return {"runs": [], error_key: "There are no runs yet. Start one with cohort train, and it appears here."}
    run = run_index.find(view.read("run")) if view.read("run") else max(runs, key=rank)
    menu: Example = {"runs": [[one.name, one.title] for one in runs], "run": run.name}
    try:
        return menu | make_strict(answer(run))
    except CohortError as problem:
        return menu | {error_key: str(problem)}
    except Exception as problem:  # files of unknown origin may hold anything
        return menu | {error_key: f"The files of this run are damaged ({type(problem).__name__})."}


# -- groups ----------------------------------------------------------------------------------------------------------------


def list_informative_groups(run: ShownRun) -> Iterator[Rows]:
    """The records of groups whose rewards differ, newest first."""
    rows, _ = load_rows(run)
    starts = find_group_starts(rows)
    if not len(rows):
        return
    rewards = rows["reward"]
    low = np.minimum.reduceat(np.where(np.isnan(rewards), np.inf, rewards), starts)
    high = np.maximum.reduceat(np.where(np.isnan(rewards), -np.inf, rewards), starts)
    ends = np.append(starts[1:], len(rows))
    for place in np.flatnonzero((low < high) & (ends - starts <= MOST_COMPLETIONS))[::-1]:
        yield rows[starts[place] : ends[place]]


def find_informative_groups(run: ShownRun) -> list[Rows]:
    """The newest group whose rewards differ, and the next one of the same size if there is one."""
    groups = list_informative_groups(run)
    first = next(groups, None)
    if first is None:
        raise NotFound(ALL_EQUAL)
    second = next((one for one in groups if len(one) == len(first)), None)
    return [first] if second is None else [first, second]


def read_rewards(group: Rows) -> list[float]:
    return [float(reward) for reward in group["reward"] if not np.isnan(reward)]


def name_group(run: ShownRun, group: Rows) -> tuple[str, str]:
    """("step 12, group 3", its address)."""
    step, number = int(group[0]["step"]), int(group[0]["group"])
    return f"step {step}, group {number}", write_address(f"{run.address}/group/{step}/{number}")


def show_group_example(run: ShownRun) -> Example:
    group = find_informative_groups(run)[0]
    name, address = name_group(run, group)
    rewards = read_rewards(group)
    return {
        "sentence": f"The rewards of {name}: {', '.join(f'{reward:.3g}' for reward in rewards)}.",
        "set": {"rewards": ",".join(f"{reward:.6g}" for reward in rewards)},
        "links": [("show the completions", address)],
    }


def show_baselines_example(run: ShownRun) -> Example:
    found, example = find_informative_groups(run), show_group_example(run)
    example["set"]["show"] = "grpo,critic,lite_ppo"
    for other in found[1:]:
        right = sum(reward >= 0.5 for reward in read_rewards(other))
        example["set"]["other"] = str(right)
        example["sentence"] += f" In {name_group(run, other)[0]}, {right} of {len(other)} completions were right."
    return example


def show_difficulty_example(run: ShownRun) -> Example:
    rows, _ = load_rows(run)
    starts = find_group_starts(rows)[-RECENT_GROUPS:]
    if not len(starts) or (rows["success"] < 0).all():
        raise NotFound("No saved completion of this run was judged right or wrong.")
    sizes = np.diff(np.append(starts, len(rows)))
    right = np.add.reduceat((rows["success"] == 1).astype(np.int64), starts)
    useful = int(((right > 0) & (right < sizes)).sum())
    none, every = int((right == 0).sum()), int((right == sizes).sum())
    size, rate = int(np.median(sizes)), float(right.sum() / sizes.sum())
    return {
        "sentence": f"Of the latest {len(starts)} groups of {size} (from step {int(rows[starts[0]]['step'])} on), {useful} had right and wrong "
        f"completions, {none} were all wrong and {every} all right. {100 * rate:.0f} % of the completions were right. Because prompts differ in "
        "difficulty, more groups are wasted than this single rate suggests.",
        "set": {"p": f"{rate:.2f}", "group_size": str(min(LARGEST, max(2, size)))},
        "links": [("show groups", write_address(f"{run.address}/groups"))],
    }


def show_length_example(run: ShownRun) -> Example:
    groups = [group for group, _ in zip(list_informative_groups(run), range(2), strict=False)]
    if not groups:
        raise NotFound(ALL_EQUAL)
    longest = as_number(as_dict(run.read_recipe().get("sampling")).get("max_completion_tokens"))
    lengths = [int(length) for group in groups for length in (group["length"].min(), group["length"].max())]
    links = [name_group(run, group) for group in groups]
    names = " and ".join(name for name, _ in links)
    limit = {"longest": str(int(longest))} if longest else {}
    return {
        "sentence": f"Tokens of the shortest and the longest completion of {names}: {', '.join(map(str, lengths))}.",
        "set": {"lengths": ",".join(str(max(1, length)) for length in lengths), **limit},
        "links": links,
    }


# -- updates ---------------------------------------------------------------------------------------------------------------


def show_update_example(run: ShownRun) -> Example:
    file = run.find_file(run.folder.metrics_file)
    for row in reversed(sample_rows(file) if file else []):
        loss, norm, step = (as_number(row.get(name)) for name in ("loss/policy", "optim/grad_norm", "step"))
        if loss is not None and norm is not None and step is not None:
            return {
                "sentence": f"At step {step:.0f} the policy loss was {loss:.2g} and the gradient norm {norm:.3g}: the loss does not show "
                "how much the policy learns.",
                "links": [("show the curves", write_address(run.address))],
            }
    raise NotFound("The run has not written a loss and gradient norm yet.")


def read_step_tokens(run: ShownRun, step: int) -> list[dict[str, Any]]:
    """The token record of a step, [] if there is none; raises NotFound without a local path if it cannot be read."""
    file = run.find_file(run.folder.tokens_file(step))
    try:
        return read_tokens(file) if file else []
    except CohortError:
        raise NotFound(f"rollouts/{run.folder.tokens_file(step).name} cannot be read.") from None


def read_recorded(run: ShownRun) -> tuple[int, list[dict[str, Any]]]:
    """(step, its token record) of the newest record with a completion that was part of an update."""
    for step in reversed(list_token_steps(run.folder.rollouts)):
        rows = [row for row in read_step_tokens(run, step) if row["policy_logprob"] is not None]
        if rows:
            return step, rows
    raise NotFound("This run has recorded no tokens (monitors.tokens_every).")


def join_columns(rows: Sequence[dict[str, Any]], *names: str) -> tuple[dict[str, list[float]], list[int]]:
    """(values of the trained tokens that have all these columns, the completion of each)."""
    columns: dict[str, list[float]] = {name: [] for name in names}
    places: list[int] = []
    for place, row in enumerate(rows):
        lists = [row[name] for name in names]
        if any(values is None for values in lists):
            continue
        for values in zip(*lists, strict=True):
            if all(value is not None for value in values):
                places.append(place)
                for name, value in zip(names, values, strict=True):
                    columns[name].append(float(value))
    return columns, places


def show_clip_example(run: ShownRun) -> Example:
    """How many tokens of a recorded step each region silences."""
    import torch

    from cohort.algorithms.regions import Tokens

    step, rows = read_recorded(run)
    rows = [row | {"old_logprob": row["old_logprob"] or row["policy_logprob"]} for row in rows]
    columns, places = join_columns(rows, "policy_logprob", "old_logprob", "sampling_logprob", "advantage")
    if not places:
        raise NotFound(f"No recorded token of step {step} was sampled and part of an update.")
    policy_M, old_M, sampling_M, advantages_M = (torch.tensor(values, dtype=torch.float64) for values in columns.values())
    _, row_M = torch.tensor(places).unique(return_inverse=True)
    pushed_M = advantages_M != 0
    table = []
    for name, region in NAMED["region"].items():
        if region.traits.preference:
            table.append([name, "–", "compares two completions, not a token with its old probability"])
            continue
        settings = configure_region(region, {}).read_parameters(region)
        leaf_M = policy_M.clone().requires_grad_()
        tokens = Tokens(leaf_M, old_M, sampling_M, advantages_M, row_M, int(row_M.max()) + 1)
        slope_M = torch.autograd.grad(region.call(settings, tokens=tokens).loss_M.sum(), leaf_M)[0]
        silent = int(((slope_M == 0) & pushed_M).sum())
        used = ", ".join(f"{key} {value:g}" for key, value in settings.items())
        table.append([name, f"{silent} of {int(pushed_M.sum())}", used])
    ratio = (policy_M - old_M).exp()
    updates = " and ".join(sorted({f"{row['update']} of {row['updates']}" for row in rows}))
    first = " In the first update of a step every ratio is 1, so nothing is silenced." if bool((ratio == 1).all()) else ""
    return {
        "sentence": f"Step {step}, update {updates}: {len(places)} recorded tokens with ratios from {float(ratio.min()):.3g} to "
        f"{float(ratio.max()):.3g}.{first}",
        "table": {"heads": ["region", "silenced", "settings"], "rows": table},
        "set": {"ratio": f"{float(ratio[pushed_M].max() if bool(pushed_M.any()) else ratio.max()):.3g}"},
        "links": [],
    }


def show_kl_example(run: ShownRun) -> Example:
    """The estimators on recorded tokens."""
    import torch

    step, rows = read_recorded(run)
    columns, places = join_columns(rows, "policy_logprob", "ref_logprob")
    if not places:
        raise NotFound("This run has no reference, so it has no KL (algorithm.kl_coef, monitors.kl).")
    policy_M, ref_M = (torch.tensor(values, dtype=torch.float64) for values in columns.values())
    table = []
    for name, choice in NAMED["kl"].items():
        values_M = choice.call({}, policy_logprobs_M=policy_M, ref_logprobs_M=ref_M)
        mean, std = float(values_M.mean()), float(values_M.std(correction=0))
        table.append([name, f"{mean:.4g}", f"{std:.4g}", f"{float(values_M.min()):.3g}"])
    return {
        "sentence": f"Step {step}: mean and std of the estimators over {len(places)} recorded tokens.",
        "table": {"heads": ["estimator", "mean", "std", "minimum"], "rows": table},
        "links": [("show the curves", write_address(run.address))],
    }


FINDERS: dict[str, Callable[[ShownRun], Example]] = {
    "group": show_group_example,
    "baselines": show_baselines_example,
    "pushed": show_update_example,
    "clip": show_clip_example,
    "difficulty": show_difficulty_example,
    "length": show_length_example,
    "kl": show_kl_example,
}
"""By station, except `run`."""
