"""The page of a completion's tokens, coloured by one number; a panel shows all numbers of the token under the pointer or cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cohort.base.text import write_percent
from cohort.errors import NotFound, RunError
from cohort.observe.report.data import as_dict, as_number
from cohort.observe.report.frame import Part
from cohort.observe.rollouts import read_tokens
from cohort.observe.terminal import describe_completion, write_question
from cohort.tools.dashboard.group_page import explain_missing_group
from cohort.tools.dashboard.group_queries import find_group_rows, load_rows
from cohort.tools.dashboard.groups_page import Linked, write_thousands
from cohort.tools.dashboard.run_index import RunIndex, ShownRun
from cohort.tools.dashboard.step_files import read_shown_rows
from cohort.tools.dashboard.token_values import (
    COLOURS,
    COLUMNS,
    MAX_TOKENS,
    TokenSheet,
    make_bands,
    place_in_bands,
    read_pieces,
    read_recorded,
    read_sampled,
    show_piece,
)
from cohort.tools.dashboard.view import Page, View

WINDOW = 10_000
"""Tokens on one page."""
TABLE_SIZE = 250
"""Table rows on one page."""
SHORT_PROMPT = 400
"""Characters up to which a prompt is unfolded."""


@dataclass(frozen=True)
class Opened:
    """A completion with the numbers of its tokens, and those of its group for the scale."""

    run: ShownRun
    step: int
    group: int
    sample: int
    row: Mapping[str, Any]
    sheet: TokenSheet
    special: frozenset[int]
    """Ids of special tokens."""
    group_sheets: Sequence[TokenSheet]
    samples: Sequence[int]
    """The completions of the group."""


def show_tokens(run_index: RunIndex, view: View) -> Page:
    """One completion, token by token."""
    opened = open_completion(run_index, view)
    sheet, run = opened.sheet, opened.run
    title = f"Tokens of completion {opened.sample}"
    group = f"{run.address}/group/{opened.step}/{opened.group}#sample-{opened.sample}"
    path = [(run.title, run.address), ("Groups", f"{run.address}/groups"), (f"Step {opened.step}, group {opened.group}", group)]
    path.append((f"Completion {opened.sample}", ""))
    sections: list[Part] = [
        ("place_head", path, title, f"{describe_completion(opened.row)}. {sheet.source}", " ".join(sheet.missing)),
        ("token_prompt", write_question(str(opened.row.get("prompt") or "")), SHORT_PROMPT, link_neighbours(opened, view)),
    ]
    if not len(sheet):
        return Page(title, [*sections, ("empty_card", "This completion has no tokens.")], styles=["groups.css"])
    colour = choose_colour(view, sheet)
    shown = view.choose("view", ("text", "table"))
    views = [(name, view.link(view=None if name == "text" else name, page=None), shown == name) for name in ("text", "table")]
    sections.append(("colour_bar", list_colours(view, sheet, colour), views))
    sections += show_table(opened, view) if shown == "table" else show_flow(opened, view, colour)
    sections.append(("facts", list_token_facts(sheet)))
    return Page(f"{run.title} · {title.lower()}", sections, scripts=["tokens.js"], styles=["groups.css"])


def list_token_values(run_index: RunIndex, view: View) -> dict[str, Any]:
    """The numbers of the tokens on a page, for its script."""
    opened = open_completion(run_index, view)
    sheet, (first, last) = opened.sheet, find_window(view, len(opened.sheet))
    columns = sheet.columns.values()
    return {
        "first": first,
        "total": len(sheet),
        "labels": [COLUMNS[name][0] for name in sheet.columns],
        # Six digits: the precision of the record's float32.
        "columns": [[float(f"{v:.6g}") if np.isfinite(v) else None for v in column[first:last].tolist()] for column in columns],
        "ids": sheet.token_ids[first:last],
        "pieces": [f"“{show_piece(piece).text}”" for piece in sheet.pieces[first:last]],
        "trained": sheet.mask[first:last],
    }


# -- reading -----------------------------------------------------------------------------------------------------------


def open_completion(run_index: RunIndex, view: View) -> Opened:
    run, step = run_index.find(view.params["name"]), view.read_number("step")
    group, sample = view.read_number("group"), view.read_number("sample")
    index, note = load_rows(run)
    members = find_group_rows(index, step, group)
    chosen = members[members["sample"] == sample]
    if not len(chosen):
        if len(members):
            raise NotFound(f"Group {group} of step {step} has completions 0 to {len(members) - 1}.")
        raise NotFound(explain_missing_group(index, note, step, group))
    samples, place = sorted(members["sample"].tolist()), int(chosen["row"][0])
    row = read_shown_rows(run, step, place, 1)[0]
    recorded, problem = read_record(run, step, group)
    if sample in recorded:
        _, special, _ = read_pieces(run, ())
        return Opened(run, step, group, sample, row, recorded[sample], special, list(recorded.values()), samples)
    tokens = read_shown_rows(run, step, place, 1, ("completion_ids", "sampling_logprobs", "advantage"))[0]
    pieces, special, unknown = read_pieces(run, (tokens.get("completion_ids") or ())[:MAX_TOKENS])
    every = as_number(as_dict(run.read_recipe().get("monitors")).get("tokens_every"))
    sheet = read_sampled(tokens, pieces, int(every or 0))
    sheet.missing.extend(filter(None, [problem, unknown]))
    return Opened(run, step, group, sample, row, sheet, special, [sheet], samples)


def read_record(run: ShownRun, step: int, group: int) -> tuple[dict[int, TokenSheet], str]:
    """The token record of a group by sample; {} if there is none, with a message if it cannot be read."""
    file = run.find_file(run.folder.tokens_file(step))
    if file is None:
        return {}, ""
    try:
        return {int(record["sample"]): read_recorded(record) for record in read_tokens(file, group)}, ""
    except (RunError, ValueError, TypeError, OverflowError):  # the file may hold anything instead of numbers
        return {}, f"rollouts/{file.name} cannot be read."


# -- the page ----------------------------------------------------------------------------------------------------------


def choose_colour(view: View, sheet: TokenSheet) -> str:
    known = [name for name in COLOURS if name in sheet.columns]
    wanted = view.read("colour")
    return wanted if wanted in known else next((name for name in ("coefficient", "advantage", "logprob") if name in known), "")


def link_neighbours(opened: Opened, view: View) -> list[tuple[str, str]]:
    """Links to the previous and next completion of the group."""
    place, folder = list(opened.samples).index(opened.sample), f"{opened.run.address}/tokens/{opened.step}/{opened.group}"
    found = []
    for word, at in (("previous completion", place - 1), ("next completion", place + 1)):
        exists = 0 <= at < len(opened.samples)
        found.append((word, view.link(f"{folder}/{opened.samples[at]}", colour=view.read("colour") or None) if exists else ""))
    return found


def list_colours(view: View, sheet: TokenSheet, chosen: str) -> list[dict[str, Any]]:
    """The columns that can colour tokens; unknown ones have no link."""
    return [
        {
            "label": COLUMNS[name][0],
            "about": COLUMNS[name][1],
            "current": name == chosen,
            "address": view.link(colour=name) if name in sheet.columns else "",
        }
        for name in COLOURS
    ]


def list_token_facts(sheet: TokenSheet) -> list[tuple[str, str]]:
    """Totals and means over the tokens."""
    columns, facts = sheet.columns, [("tokens", f"{len(sheet):,}")]
    if "logprob" in columns:
        facts.append(("probability, geometric mean", write_percent(float(np.exp(np.nanmean(columns["logprob"]))), 1)))
    if "entropy" in columns:
        facts.append(("mean entropy", f"{np.nanmean(columns['entropy']):.3g}"))
    if "kl" in columns:
        facts.append(("KL of the completion", f"{np.nansum(columns['kl']):.3g}"))
    if "ratio" in columns:
        facts.append(("ratios", f"{np.nanmin(columns['ratio']):.2f}–\u2060{np.nanmax(columns['ratio']):.2f}"))
    if "clipped" in columns:
        facts.append(("clipped", f"{int(np.nansum(np.abs(columns['clipped']))):,}"))
    untrained = len(sheet) - sum(sheet.mask)
    return [*facts, ("masked out of training", f"{untrained:,}")] if untrained else facts


def find_window(view: View, total: int) -> tuple[int, int]:
    """The tokens on the page: those around ?at if the completion is too long for one page."""
    at = view.read_number("at", 0, 0, max(total - 1, 0))
    first = at // WINDOW * WINDOW
    return first, min(first + WINDOW, total)


def show_flow(opened: Opened, view: View, colour: str) -> list[Part]:
    """The tokens as running text."""
    sheet, (first, last) = opened.sheet, find_window(view, len(opened.sheet))
    sections: list[Part] = []
    styles = ["none"] * (last - first)
    if colour:
        scaled = np.concatenate([one.columns[colour] for one in opened.group_sheets if colour in one.columns])
        styles, legend = place_in_bands(sheet.columns[colour][first:last], make_bands(colour, scaled))
        sampled = colour == "logprob" and sheet.columns["logprob"] is sheet.columns.get("sampling_logprob")
        about = COLUMNS["sampling_logprob" if sampled else colour][1]
        sections.append(("token_legend", COLUMNS[colour][0], about, legend))
    tokens = []
    for place in range(first, last):
        shown = show_piece(sheet.pieces[place], sheet.token_ids[place] in opened.special)
        kinds = [styles[place - first], shown.kind, "" if sheet.mask[place] else "off"]
        tokens.append((" ".join(filter(None, kinds)), shown.text, min(shown.breaks, 2)))
    at = view.read_number("at", first, first, last - 1)
    sections.append(("token_flow", tokens, first, at, f"/data{view.link()}"))
    if last - first < len(sheet):
        parts = [
            (f"{start + 1:,} to {min(start + WINDOW, len(sheet)):,}", view.link(at=start) if start != first else "")
            for start in range(0, len(sheet), WINDOW)
        ]
        sections.append(("turning", parts))
    return sections


def show_table(opened: Opened, view: View) -> list[Part]:
    """The tokens as a table: one page of rows, or all of them with ?page=all, which the download uses."""
    sheet, title, count = opened.sheet, "Token by token", write_thousands(len(opened.sheet), "token")
    if view.read("page") == "all":
        return [("linked_table", title, *tabulate_tokens(sheet, 0, len(sheet)), f"{count}.")]
    pages = -(-len(sheet) // TABLE_SIZE)
    page = min(view.read_number("page", 1, 1), pages)
    heads, lines = tabulate_tokens(sheet, (page - 1) * TABLE_SIZE, page * TABLE_SIZE)
    caption = f"{count}; page {page} of {pages}. The CSV file has all tokens."
    turns = [("previous", page - 1), ("next", page + 1)]
    links = [(word, view.link(page=number) if 1 <= number <= pages else "") for word, number in turns]
    files = [("CSV", f"/csv{view.link(view='table', page='all', item='token-by-token')}")]
    grid: Part = ("linked_table", title, heads, lines, caption, (), files)
    return [grid, ("turning", links)] if pages > 1 else [grid]


def tabulate_tokens(sheet: TokenSheet, first: int, last: int) -> tuple[list[str], list[list[Linked | str]]]:
    heads = ["position", "token", "id", *(COLUMNS[name][0] for name in sheet.columns)]
    lines: list[list[Linked | str]] = []
    for place in range(first, min(last, len(sheet))):
        numbers = ["–" if np.isnan(values[place]) else f"{float(values[place]):.6g}" for values in sheet.columns.values()]
        token = Linked(show_piece(sheet.pieces[place]).text, style="text piece", note="" if sheet.mask[place] else "masked")
        lines.append([str(place + 1), token, str(sheet.token_ids[place]), *numbers])
    return heads, lines
