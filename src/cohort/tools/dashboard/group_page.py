"""The page of one group: a card for each completion, largest advantage first, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cohort.base.text import shorten_text
from cohort.errors import NotFound
from cohort.observe.report.frame import Part
from cohort.observe.rollouts import DUPLICATE, EVIDENCE, WRONG_REWARDED, Rows, find_parts, write_transcript
from cohort.observe.terminal import describe_group, find_expected, write_question
from cohort.tools.dashboard.group_queries import find_group_rows, find_neighbours, load_rows
from cohort.tools.dashboard.groups_page import VERDICTS, Linked, write_number, write_signed
from cohort.tools.dashboard.run_index import RunIndex, ShownRun
from cohort.tools.dashboard.step_files import find_recorded_groups, read_shown_rows
from cohort.tools.dashboard.view import Page, View, write_address

BRIEF = 2400
"""Characters of a completion on a card; ?text=full shows the whole text."""


def show_group(run_index: RunIndex, view: View) -> Page:
    """The completions of a group, largest advantage first."""
    run, step, group = run_index.find(view.params["name"]), view.read_number("step"), view.read_number("group")
    index, note = load_rows(run)
    members = find_group_rows(index, step, group)
    if not len(members):
        raise NotFound(explain_missing_group(index, note, step, group))
    rows, findings = read_group(run, members), list_findings(run_index, run, step)
    full = view.read("text") == "full"
    title = f"Step {step}, group {group}"
    path = [
        (run.title, run.address),
        ("Groups", f"{run.address}/groups"),
        (f"Step {step}", f"{run.address}/groups?step={step}"),
        (f"Group {group}", ""),
    ]
    recorded = group in find_recorded_groups(run, step)
    caption = "Token data is recorded for this group." if recorded else "No token data is recorded for this group."
    sections: list[Part] = [
        ("place_head", path, title, describe_group(rows).partition(": ")[2] + "."),
        ("group_prompt", make_prompt_card(run, rows[0], members), link_neighbours(run, index, step, group)),
        ("facts", list_facts(rows)),
        ("completion_cards", make_cards(run, rows, members, findings, full), view.link(text="full") if not full else ""),
        ("linked_table", "The group as a table", *tabulate_group(run, rows, members), caption),
    ]
    return Page(f"{run.title} · {title.lower()}", sections, styles=["groups.css"])


def explain_missing_group(index: Rows, note: str, step: int, group: int) -> str:
    of_step = index["group"][index["step"] == step]
    if not len(of_step):
        return note or f"The completions of step {step} are not saved in this run."
    return f"Step {step} has groups {of_step.min()} to {of_step.max()}, but no group {group}."


def read_group(run: ShownRun, members: Rows) -> list[dict[str, Any]]:
    """The rows of a group from the step file, in the order of the records."""
    numbers = members["row"].astype(int)
    first, last = int(numbers.min()), int(numbers.max())
    rows = read_shown_rows(run, int(members["step"][0]), first, last - first + 1)
    return [rows[number - first] for number in numbers.tolist()]


def link_neighbours(run: ShownRun, index: Rows, step: int, group: int) -> list[tuple[str, str]]:
    """Links to the previous and next group and step."""
    found = []
    for word, values, here in (("group", index["group"][index["step"] == step], group), ("step", index["step"], step)):
        for direction, other in zip(("previous", "next"), find_neighbours(values, here), strict=True):
            goal = (step, other) if word == "group" else (other, group)
            found.append((f"{direction} {word}", "" if other is None else f"{run.address}/group/{goal[0]}/{goal[1]}"))
    return found


def make_prompt_card(run: ShownRun, row: Mapping[str, Any], members: Rows) -> dict[str, Any]:
    index, step, group = (str(int(members[name][0])) for name in ("prompt_index", "step", "group"))
    return {
        "prompt": write_question(str(row.get("prompt") or "")),
        "expected": list(find_expected(row)),
        "index": index,
        "lab": write_address("/lab/run", [("run", run.name), ("step", step), ("group", group)]),
    }


def list_facts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    rewards = np.array([row["reward"] for row in rows if row.get("reward") is not None], np.float64)
    lengths = [int(row["length"]) for row in rows if row.get("length") is not None]
    versions = sorted(int(row["policy_version"]) for row in rows if row.get("policy_version") is not None)
    facts = [("completions", str(len(rows)))]
    if len(rewards):
        facts += [("mean reward", write_number(float(rewards.mean()))), ("std of rewards", write_number(float(rewards.std())))]
        facts.append(("learning signal", "yes" if len(set(rewards.tolist())) > 1 else "none: rewards are equal"))
    if lengths:
        facts.append(("tokens", f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else str(lengths[0])))
    if versions:
        facts.append(("policy version", " to ".join(str(one) for one in dict.fromkeys([versions[0], versions[-1]]))))
    return facts


def list_findings(run_index: RunIndex, run: ShownRun, step: int) -> dict[int, list[str]]:
    """Row of the step -> the findings in events.jsonl that name it as evidence."""
    file = run.find_file(run.folder.events_file)
    found: dict[int, list[str]] = {}
    for event in run_index.reader.look(file).rows if file else ():
        places = event.get("rows") if event.get("kind") == "finding" else None
        for place in places if isinstance(places, list) else ():
            if isinstance(place, list) and len(place) == 2 and place[0] == step and isinstance(place[1], int):
                found.setdefault(place[1], []).append(str(event.get("what") or event.get("name") or ""))
    return found


def tabulate_group(
    run: ShownRun, rows: Sequence[Mapping[str, Any]], members: Rows
) -> tuple[list[str], list[list[Linked | str]]]:
    """The completions in the order of sampling."""
    parts = list(dict.fromkeys(name for row in rows for name in find_parts(row)))
    lines: list[list[Linked | str]] = []
    for row, record in zip(rows, members, strict=True):
        sample, values = int(record["sample"]), find_parts(row)
        style, sign, word = VERDICTS.get(int(record["success"]), VERDICTS[-1])
        address = f"{run.address}/tokens/{record['step']}/{record['group']}/{sample}"
        numbers = [row.get("reward"), *(values.get(name) for name in parts), row.get("advantage"), row.get("length")]
        extracted = shorten_text(str(row.get("extracted") or ""), 80, one_line=True)
        line: list[Linked | str] = [Linked(f"completion {sample}", link=address), Linked(word, signs=((style, sign, word),))]
        line += ["–" if number is None else f"{number:.6g}" for number in numbers]
        lines.append([*line, Linked(extracted, style="text brief"), str(row.get("end"))])
    return ["completion", "verdict", "reward", *parts, "advantage", "tokens", "answer", "end"], lines


def make_cards(
    run: ShownRun, rows: Sequence[Mapping[str, Any]], members: Rows, findings: Mapping[int, Sequence[str]], full: bool
) -> list[dict[str, Any]]:
    advantages = [-np.inf if row.get("advantage") is None else float(row["advantage"]) for row in rows]
    largest = max((abs(one) for one in advantages if np.isfinite(one)), default=0.0)
    cards = []
    first_with: dict[str, int] = {}
    for row, record in zip(rows, members, strict=True):
        sample = int(record["sample"])
        first = first_with.setdefault(str(row.get("completion")), sample)
        card = make_card(run, row, record, first if first != sample else None, largest, full)
        cards.append(card | {"findings": findings.get(int(record["row"]), ())})
    return [cards[place] for place in sorted(range(len(rows)), key=lambda place: (-advantages[place], place))]


def make_card(
    run: ShownRun, row: Mapping[str, Any], record: Any, earlier: int | None, largest: float, full: bool
) -> dict[str, Any]:
    """The values of a completion for the template. earlier: the first completion with the same text."""
    step, group, sample, flags = (int(record[name]) for name in ("step", "group", "sample", "flags"))
    style, sign, word = VERDICTS.get(int(record["success"]), VERDICTS[-1])
    advantage, text = row.get("advantage"), write_transcript(row)
    parts = find_parts(row)
    only_reward = len(parts) == 1 and next(iter(parts.values())) == row.get("reward")
    chips = [
        (flags & WRONG_REWARDED, "warn", "wrong but rewarded"),
        (record["end"] == 1, "warn", "cut at max_completion_tokens"),
        (flags & DUPLICATE, "", "duplicate" if earlier is None else f"same text as completion {earlier}"),
        (flags & EVIDENCE, "warn", "evidence of a finding"),
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
        "parts": [(name, "none" if value is None else write_number(value)) for name, value in parts.items() if not only_reward],
        "extracted": None if row.get("extracted") is None else shorten_text(str(row["extracted"]), 200),
        "reference_answer": None if row.get("reference_answer") is None else shorten_text(str(row["reference_answer"]), 200),
        "length": row.get("length"),
        "end": "truncated" if record["end"] else "complete",
        "chips": [(kind, label) for shown, kind, label in chips if shown]
        + [("warn", f"fault {one}") for one in row.get("faults") or ()],
        "text": text if full else shorten_text(text, BRIEF),
        "shortened": not full and len(text) > BRIEF,
        "tokens": f"{run.address}/tokens/{step}/{group}/{sample}",
    }
