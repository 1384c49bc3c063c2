"""The same in your run: what a station is about, found in a run on the shelf. Every number is of that run's own files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cohort.algorithms.named import NAMED
from cohort.errors import CohortError, NotFound
from cohort.observe.monitors.jsonl import make_strict
from cohort.observe.report.data import as_dict, as_number
from cohort.observe.rollouts import list_token_steps, read_tokens
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.tools.dashboard.group_queries import find_group_starts, load_rows
from cohort.tools.dashboard.lab.answers import MOST_COMPLETIONS
from cohort.tools.dashboard.lab.clipping import choose_words
from cohort.tools.dashboard.lab.difficulty import LARGEST
from cohort.tools.dashboard.reader import sample_rows
from cohort.tools.dashboard.run_settings import read_recipe
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.view import View, write_address

MOST_RUNS = 200
"""Runs that are offered."""
RECENT_GROUPS = 256
"""The newest groups, of which shares are counted."""
ALL_EQUAL = "No group of this run that is kept has rewards that differ."
Same = dict[str, Any]
"""sentence: what there is; set: words for this station's address; links: (label, address); table: heads and rows."""


def find_same(shelf: Shelf, view: View) -> Same:
    """What the station that the path names shows in the run of the address, or in the newest that has completions."""
    if view.words["station"] not in FINDERS:
        raise NotFound("There is no such station in the lab.")
    runs = shelf.list_runs()[:MOST_RUNS]
    if not runs:
        return {"runs": [], "sentence": "There is no run on the shelf yet: cohort train makes one, and it appears here."}
    run = shelf.find(view.read("run")) if view.read("run") else max(runs, key=find_time)
    found: Same = {"runs": [[one.name, one.title] for one in runs], "run": run.name}
    try:
        return found | make_strict(FINDERS[view.words["station"]](run))
    except CohortError as problem:
        return found | {"sentence": str(problem)}
    except Exception as problem:  # a stranger's files may hold anything
        return found | {"sentence": f"The files of this run are not as a run writes them ({type(problem).__name__})."}


def find_time(run: ShownRun) -> float:
    """When completions were last written; 0 where there are none."""
    try:
        return run.folder.rollouts.stat().st_mtime
    except OSError:
        return 0.0


# -- groups ----------------------------------------------------------------------------------------------------------------


def list_telling(run: ShownRun, most: int = MOST_COMPLETIONS) -> Iterator[Any]:
    """The records of groups whose rewards differ, the newest first."""
    rows = load_rows(run).rows
    starts = find_group_starts(rows)
    if not len(rows):
        return
    rewards = rows["reward"]
    low = np.minimum.reduceat(np.where(np.isnan(rewards), np.inf, rewards), starts)
    high = np.maximum.reduceat(np.where(np.isnan(rewards), -np.inf, rewards), starts)
    ends = np.append(starts[1:], len(rows))
    for place in np.flatnonzero((low < high) & (ends - starts <= most))[::-1]:
        yield rows[starts[place] : ends[place]]


def find_telling(run: ShownRun) -> Any:
    group = next(list_telling(run), None)
    if group is None:
        raise NotFound(ALL_EQUAL)
    return group


def read_rewards(group: Any) -> list[float]:
    """Of the completions that have one."""
    return [float(reward) for reward in group["reward"] if not np.isnan(reward)]


def write_list(values: Sequence[float]) -> str:
    return ",".join(f"{value:.6g}" for value in values)


def name_group(run: ShownRun, group: Any) -> tuple[str, str]:
    """("step 12, group 3", its address)."""
    step, number = int(group[0]["step"]), int(group[0]["group"])
    return f"step {step}, group {number}", write_address(f"{run.address}/group/{step}/{number}")


def same_group(run: ShownRun) -> Same:
    group = find_telling(run)
    name, address = name_group(run, group)
    rewards = read_rewards(group)
    return {
        "sentence": f"In {name} the rewards were {', '.join(f'{reward:.3g}' for reward in rewards)}.",
        "set": {"rewards": write_list(rewards)},
        "links": [("look at the completions", address)],
    }


def same_baselines(run: ShownRun) -> Same:
    groups = list_telling(run)
    group = next(groups, None)
    if group is None:
        raise NotFound(ALL_EQUAL)
    second = next((one for one in groups if len(one) == len(group)), None)
    name, address = name_group(run, group)
    rewards = read_rewards(group)
    chosen = {"rewards": write_list(rewards), "show": "grpo,critic,lite_ppo"}
    beside = ""
    if second is not None:
        chosen["other"] = str(sum(reward >= 0.5 for reward in read_rewards(second)))
        beside = f" Beside it {chosen['other']} of {len(second)} of {name_group(run, second)[0]} were right."
    return {
        "sentence": f"In {name} the rewards were {', '.join(f'{reward:.3g}' for reward in rewards)}.{beside}",
        "set": chosen,
        "links": [("look at the completions", address)],
    }


def same_difficulty(run: ShownRun) -> Same:
    rows = load_rows(run).rows
    starts = find_group_starts(rows)[-RECENT_GROUPS:]
    if not len(starts) or (rows["success"] < 0).all():
        raise NotFound("No completion of this run that is kept was judged right or wrong.")
    sizes = np.diff(np.append(starts, len(rows)))
    right = np.add.reduceat((rows["success"] == 1).astype(np.int64), starts)
    count = len(starts)
    useful = int(((right > 0) & (right < sizes)).sum())
    none, every = int((right == 0).sum()), int((right == sizes).sum())
    size = int(np.median(sizes))
    rate = float(right.sum() / sizes.sum())
    step = int(rows[starts[0]]["step"])
    return {
        "sentence": f"Of its newest {count} groups of {size} (from step {step} on) {useful} taught something, {none} were all wrong and {every} all "
        f"right; {rate:.0%} of the completions were right. Prompts differ, so that more groups are wasted than one rate for all would say.",
        "set": {"p": f"{rate:.2f}", "group_size": str(min(LARGEST, max(2, size)))},
        "links": [("look at groups", write_address(f"{run.address}/groups"))],
    }


def same_length(run: ShownRun) -> Same:
    groups = [group for group, _ in zip(list_telling(run), range(2), strict=False)]
    if not groups:
        raise NotFound(ALL_EQUAL)
    longest = read_setting(run, "sampling", "max_completion_tokens")
    lengths = [int(length) for group in groups for length in (group["length"].min(), group["length"].max())]
    names = " and ".join(name_group(run, group)[0] for group in groups)
    return {
        "sentence": f"The shortest and the longest completion of {names}: {', '.join(map(str, lengths))} tokens.",
        "set": {
            "lengths": ",".join(str(max(1, length)) for length in lengths),
            **({"longest": str(longest)} if longest else {}),
        },
        "links": [(name, address) for name, address in (name_group(run, group) for group in groups)],
    }


def read_setting(run: ShownRun, section: str, key: str) -> int | None:
    """A whole number of the run's recipe; None where it has none."""
    value = as_number(as_dict(read_recipe(run).get(section)).get(key))
    return int(value) if value else None


# -- updates ---------------------------------------------------------------------------------------------------------------


def same_pushed(run: ShownRun) -> Same:
    file = run.find_file(run.folder.metrics_file)
    for row in reversed(sample_rows(file) if file else []):
        loss, norm, step = (as_number(row.get(name)) for name in ("loss/policy", "optim/grad_norm", "step"))
        if loss is not None and norm is not None and step is not None:
            return {
                "sentence": f"At step {step:.0f} the policy's loss was {loss:.2g}, and the norm of the gradient {norm:.3g}: the loss of a group says "
                "nothing about how much is learned.",
                "links": [("the run's curves", write_address(run.address))],
            }
    raise NotFound("The run has written no loss and gradient norm yet.")


def read_kept_tokens(run: ShownRun, step: int) -> list[dict[str, Any]]:
    """The token record of a step; none where there is none. NotFound, without a path of this machine, where it cannot be read."""
    file = run.find_file(run.folder.tokens_file(step))
    try:
        return read_tokens(file) if file else []
    except CohortError:
        raise NotFound(f"rollouts/{run.folder.tokens_file(step).name} cannot be read.") from None


def read_recorded(run: ShownRun) -> tuple[int, list[dict[str, Any]]]:
    """(step, its token record): the newest record with a completion that an update has read."""
    for step in reversed(list_token_steps(run.folder.rollouts)):
        rows = [row for row in read_kept_tokens(run, step) if row["policy_logprob"] is not None]
        if rows:
            return step, rows
    raise NotFound("This run has recorded no single tokens; monitors.tokens_every records them.")


def join_columns(rows: Sequence[dict[str, Any]], *names: str) -> tuple[dict[str, list[float]], list[int]]:
    """(values of the trained tokens that have all of these, the completion of each)."""
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


def same_clip(run: ShownRun) -> Same:
    """Which tokens of a real step every region silences."""
    import torch

    from cohort.algorithms.regions import Tokens

    step, rows = read_recorded(run)
    rows = [row | {"old_logprob": row["old_logprob"] or row["policy_logprob"]} for row in rows]
    columns, places = join_columns(rows, "policy_logprob", "old_logprob", "sampling_logprob", "advantage")
    if not places:
        raise NotFound(f"Of step {step} no token was sampled and read by an update.")
    policy_M, old_M, sampling_M, advantages_M = (torch.tensor(values, dtype=torch.float64) for values in columns.values())
    _, row_M = torch.tensor(places).unique(return_inverse=True)
    pushed_M = advantages_M != 0
    table = []
    for name, region in NAMED["region"].items():
        if region.traits.preference:
            table.append([name, "–", "compares two completions of a group, not a token with its past"])
            continue
        words: AlgorithmConfig = choose_words(region, {})
        leaf_M = policy_M.clone().requires_grad_()
        tokens = Tokens(leaf_M, old_M, sampling_M, advantages_M, row_M, int(row_M.max()) + 1)
        surrogate = region.call(words.tell(region), tokens=tokens)
        slope_M = torch.autograd.grad(surrogate.loss_M.sum(), leaf_M)[0]
        silent = int(((slope_M == 0) & pushed_M).sum())
        told = ", ".join(f"{word} {value:g}" for word, value in words.tell(region).items())
        table.append([name, f"{silent} of {int(pushed_M.sum())}", told])
    ratio = (policy_M - old_M).exp()
    updates = sorted({f"{row['update']} of {row['updates']}" for row in rows})
    first = " In the first update of a step every ratio is 1, and nothing is silenced." if bool((ratio == 1).all()) else ""
    return {
        "sentence": f"Step {step}, update {' and '.join(updates)}: {len(places)} recorded tokens with ratios from {float(ratio.min()):.3g} to "
        f"{float(ratio.max()):.3g}.{first}",
        "table": {"heads": ["region", "silenced", "told"], "rows": table},
        "set": {"ratio": f"{float(ratio[pushed_M].max() if bool(pushed_M.any()) else ratio.max()):.3g}"},
        "links": [],
    }


def same_kl(run: ShownRun) -> Same:
    """The estimators on recorded tokens."""
    import torch

    step, rows = read_recorded(run)
    columns, places = join_columns(rows, "policy_logprob", "ref_logprob")
    if not places:
        raise NotFound("This run compares with no reference, so it has no KL (algorithm.kl_coef, monitors.kl).")
    policy_M, ref_M = (torch.tensor(values, dtype=torch.float64) for values in columns.values())
    table = []
    for name, choice in NAMED["kl"].items():
        values_M = choice.call({}, policy_logprobs_M=policy_M, ref_logprobs_M=ref_M)
        table.append(
            [name, f"{float(values_M.mean()):.4g}", f"{float(values_M.std(correction=0)):.4g}", f"{float(values_M.min()):.3g}"]
        )
    return {
        "sentence": f"Step {step}, {len(places)} recorded tokens: the estimators' means per token, and how far single tokens scatter.",
        "table": {"heads": ["estimator", "mean", "std of one token", "smallest"], "rows": table},
        "links": [("the run's curves", write_address(run.address))],
    }


FINDERS: dict[str, Callable[[ShownRun], Same]] = {
    "group": same_group,
    "baselines": same_baselines,
    "pushed": same_pushed,
    "clip": same_clip,
    "difficulty": same_difficulty,
    "length": same_length,
    "kl": same_kl,
}
"""By the names of stations.toml, but for that of a run, which is one already."""
