"""One group as cards: every completion with its reward, its advantage and what was extracted, the largest advantage first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cohort.base.text import shorten_text
from cohort.errors import NotFound
from cohort.observe.report.frame import Part
from cohort.observe.rollouts import DUPLICATE, EVIDENCE, WRONG_REWARDED, Rows, find_parts, list_kept_steps
from cohort.observe.terminal import describe_group, find_expected, write_question
from cohort.tools.dashboard.group_queries import RunRows, find_beside, find_group_rows, load_rows
from cohort.tools.dashboard.listing import VERDICTS, Linked, write_number, write_signed
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.step_files import find_recorded_groups, read_shown_rows
from cohort.tools.dashboard.view import Page, View, write_address

BRIEF = 2400
"""Characters of a completion on a card; ?text=full shows all of it."""


def show_group(shelf: Shelf, view: View) -> Page:
    """The completions of a group as cards, the largest advantage first."""
    run, step, group = shelf.find(view.words["name"]), view.read_number("step"), view.read_number("group")
    loaded = load_rows(run, step)
    members = find_group_rows(loaded.rows, step, group)
    if not len(members):
        raise NotFound(explain_no_group(loaded, step, group))
    rows, named = read_group(run, members), find_named_rows(shelf, run, step)
    full = view.read("text") == "full"
    title = f"Step {step}, group {group}"
    path = [
        (run.title, run.address),
        ("Groups", f"{run.address}/groups"),
        (f"Step {step}", f"{run.address}/groups?step={step}"),
        (f"Group {group}", ""),
    ]
    sections: list[Part] = [
        ("place_head", path, title, describe_group(rows).partition(": ")[2] + "."),
        ("group_prompt", make_prompt_card(run, rows[0], members), find_neighbours(run, loaded.rows, step, group)),
        ("facts", list_facts(rows)),
        ("completion_cards", make_cards(run, rows, members, named, full), view.link(text="full") if not full else ""),
        ("linked_table", "The group in numbers", *tabulate_group(run, rows, members), describe_record(run, step, group)),
    ]
    return Page(f"{run.title} · {title.lower()}", sections, styles=["groups.css"])


def explain_no_group(loaded: RunRows, step: int, group: int) -> str:
    of_step = loaded.rows["group"][loaded.rows["step"] == step]
    if not len(of_step):
        return loaded.note or f"The completions of step {step} are not kept in this run."
    return f"Step {step} has groups {of_step.min()} to {of_step.max()}, and no group {group}."


def read_group(run: ShownRun, members: Rows) -> list[dict[str, Any]]:
    """The rows of a group in the step's file, in the order of the records."""
    numbers = members["row"].astype(int)
    first, last = int(numbers.min()), int(numbers.max())
    rows = read_shown_rows(run, int(members["step"][0]), first, last - first + 1)
    return [rows[number - first] for number in numbers.tolist()]


def find_neighbours(run: ShownRun, rows: Rows, step: int, group: int) -> list[tuple[str, str]]:
    """Links to the groups beside this one, and to the steps before and after."""
    steps = rows["step"]
    if steps[0] == steps[-1]:  # perhaps of a run without an index
        steps = np.array(list_kept_steps(run.folder.rollouts))
    found = []
    for word, values, here in (("group", rows["group"][rows["step"] == step], group), ("step", steps, step)):
        for direction, other in zip(("previous", "next"), find_beside(values, here), strict=True):
            goal = (step, other) if word == "group" else (other, group)
            found.append((f"{direction} {word}", "" if other is None else f"{run.address}/group/{goal[0]}/{goal[1]}"))
    return found


def make_prompt_card(run: ShownRun, row: Mapping[str, Any], members: Rows) -> dict[str, Any]:
    index, step, group = (str(int(members[name][0])) for name in ("prompt_index", "step", "group"))
    expected = [(name, value) for name, value in find_expected(row)]
    return {
        "prompt": write_question(str(row.get("prompt") or "")),
        "expected": expected,
        "index": index,
        "links": [
            (
                "this group under every algorithm",
                write_address("/lab/run", [("run", run.name), ("step", step), ("group", group)]),
            ),
        ],
    }


def list_facts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    rewards = np.array([row["reward"] for row in rows if row.get("reward") is not None], np.float64)
    lengths = [int(row["length"]) for row in rows if row.get("length") is not None]
    versions = sorted(int(row["policy_version"]) for row in rows if row.get("policy_version") is not None)
    facts = [("completions", str(len(rows)))]
    if len(rewards):
        facts += [
            ("mean reward", write_number(float(rewards.mean()))),
            ("standard deviation", write_number(float(rewards.std()))),
        ]
        facts.append(("does it teach?", "yes" if len(set(rewards.tolist())) > 1 else "no, all equal"))
    if lengths:
        facts.append(("tokens", f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else str(lengths[0])))
    if versions:
        facts.append(("policy version", " to ".join(str(one) for one in dict.fromkeys([versions[0], versions[-1]]))))
    return facts


def find_named_rows(shelf: Shelf, run: ShownRun, step: int) -> dict[int, list[str]]:
    """Row of the step -> what the findings say that name it as their evidence, as far as events.jsonl holds them."""
    file = run.find_file(run.folder.events_file)
    found: dict[int, list[str]] = {}
    for event in shelf.reader.look(file).rows if file else ():
        places = event.get("rows") if event.get("kind") == "finding" else None
        for place in places if isinstance(places, list) else ():
            if isinstance(place, list) and len(place) == 2 and place[0] == step and isinstance(place[1], int):
                found.setdefault(place[1], []).append(str(event.get("what") or event.get("name") or ""))
    return found


def describe_record(run: ShownRun, step: int, group: int) -> str:
    if group in find_recorded_groups(run, step):
        return "Single tokens of this group are recorded: see the links of its completions."
    return "Single tokens of this group are not recorded; their pages show what the step's own file has."


def tabulate_group(
    run: ShownRun, rows: Sequence[Mapping[str, Any]], members: Rows
) -> tuple[list[str], list[list[Linked | str]]]:
    """The completions in the order in which they were sampled."""
    parts = list(dict.fromkeys(name for row in rows for name in find_parts(row)))
    lines: list[list[Linked | str]] = []
    for row, record in zip(rows, members, strict=True):
        sample, values = int(record["sample"]), find_parts(row)
        style, sign, word = VERDICTS.get(int(record["success"]), VERDICTS[-1])
        address = f"{run.address}/tokens/{record['step']}/{record['group']}/{sample}"
        numbers = [row.get("reward"), *(values.get(name) for name in parts), row.get("advantage"), row.get("length")]
        line: list[Linked | str] = [Linked(f"completion {sample}", link=address), Linked(word, signs=((style, sign, word),))]
        line += ["–" if number is None else f"{number:.6g}" for number in numbers]
        line += [
            Linked(shorten_text(str(row.get("extracted") or ""), 80, one_line=True), style="text brief"),
            str(row.get("end")),
        ]
        lines.append(line)
    return ["completion", "verdict", "reward", *parts, "advantage", "tokens", "extracted", "end"], lines


def make_cards(
    run: ShownRun, rows: Sequence[Mapping[str, Any]], members: Rows, named: Mapping[int, Sequence[str]], full: bool
) -> list[dict[str, Any]]:
    advantages = [-np.inf if row.get("advantage") is None else float(row["advantage"]) for row in rows]
    largest = max((abs(one) for one in advantages if np.isfinite(one)), default=0.0)
    order = sorted(range(len(rows)), key=lambda place: (-advantages[place], place))
    earlier = find_earlier(rows)
    cards = [make_card(run, rows[place], members[place], earlier[place], largest, full) for place in order]
    return [card | {"findings": named.get(int(members["row"][place]), ())} for card, place in zip(cards, order, strict=True)]


def find_earlier(rows: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """Of each completion the first one before it with the same text; None where there is none."""
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        text = str(row.get("completion"))
        found.append(seen.get(text))
        seen.setdefault(text, int(row["sample"]))
    return found


def make_card(
    run: ShownRun, row: Mapping[str, Any], record: Any, earlier: int | None, largest: float, full: bool
) -> dict[str, Any]:
    """A completion as the template takes it."""
    step, group, sample, flags = (int(record[name]) for name in ("step", "group", "sample", "flags"))
    style, sign, word = VERDICTS.get(int(record["success"]), VERDICTS[-1])
    advantage, text = row.get("advantage"), str(row.get("completion") or "")
    parts = find_parts(row)
    alone = len(parts) == 1 and next(iter(parts.values())) == row.get("reward")
    chips = [
        (flags & WRONG_REWARDED, "warn", "wrong but rewarded"),
        (record["end"] == 1, "warn", "cut at max_completion_tokens"),
        (flags & DUPLICATE, "", "duplicate" if earlier is None else f"same text as {earlier}"),
        (flags & EVIDENCE, "warn", "a finding's evidence"),
    ]
    return {
        "sample": sample,
        "style": style,
        "sign": sign,
        "word": word,
        "reward": "no score" if row.get("reward") is None else write_number(float(row["reward"])),
        "advantage": write_signed(None if advantage is None else float(advantage)),
        "side": "up" if (advantage or 0) > 0 else "down" if (advantage or 0) < 0 else "level",
        "share": 50 * abs(float(advantage or 0)) / largest if largest else 0.0,
        "parts": [] if alone else [(name, "none" if value is None else write_number(value)) for name, value in parts.items()],
        "extracted": None if row.get("extracted") is None else shorten_text(str(row["extracted"]), 200),
        "gold": None if row.get("gold") is None else shorten_text(str(row["gold"]), 200),
        "length": row.get("length"),
        "end": "stopped by itself" if record["end"] == 0 else "cut",
        "chips": [(kind, label) for there, kind, label in chips if there]
        + [("warn", f"fault {one}") for one in row.get("faults") or ()],
        "text": text if full else shorten_text(text, BRIEF),
        "shortened": not full and len(text) > BRIEF,
        "tokens": f"{run.address}/tokens/{step}/{group}/{sample}",
    }
