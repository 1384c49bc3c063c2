"""The tokens of a completion, coloured by one of their numbers; the others are told of the token under the pointer or the cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cohort.base.text import write_percent
from cohort.errors import NotFound, RunError
from cohort.observe.report.data import as_dict
from cohort.observe.report.frame import Part
from cohort.observe.rollouts import read_tokens
from cohort.observe.terminal import describe_completion, write_question
from cohort.tools.dashboard.group_page import explain_no_group
from cohort.tools.dashboard.group_queries import find_group_rows, load_rows
from cohort.tools.dashboard.listing import Linked, write_thousands
from cohort.tools.dashboard.run_settings import read_recipe
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.step_files import read_shown_rows
from cohort.tools.dashboard.token_texts import read_pieces, show_piece
from cohort.tools.dashboard.token_values import (
    COLOURS,
    COLUMNS,
    MAX_TOKENS,
    TokenSheet,
    make_bands,
    place_in_bands,
    read_recorded,
    read_sampled,
)
from cohort.tools.dashboard.view import Page, View

WINDOW = 10_000
"""Tokens on one page."""
TABLE_SIZE = 250
"""Lines of the table on one page."""
SHORT_PROMPT = 400
"""Characters of a prompt that is shown at once."""


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
    """Ids of the model's own marks."""
    group_sheets: Sequence[TokenSheet]
    others: Sequence[int]
    """The completions of the group, by their places."""


def show_tokens(shelf: Shelf, view: View) -> Page:
    """One completion, token by token."""
    opened = open_completion(shelf, view)
    sheet, run = opened.sheet, opened.run
    title = f"Tokens of completion {opened.sample}"
    path = [
        (run.title, run.address),
        ("Groups", f"{run.address}/groups"),
        (
            f"Step {opened.step}, group {opened.group}",
            f"{run.address}/group/{opened.step}/{opened.group}#sample-{opened.sample}",
        ),
        (f"Completion {opened.sample}", ""),
    ]
    sections: list[Part] = [
        ("place_head", path, title, f"{describe_completion(opened.row)}. {sheet.source}", " ".join(sheet.missing)),
        ("token_prompt", write_question(str(opened.row.get("prompt") or "")), SHORT_PROMPT, list_neighbours(opened, view)),
    ]
    if not len(sheet):
        return Page(title, [*sections, ("told_small", "The completion has no tokens.")], styles=["groups.css"])
    colour = choose_colour(view, sheet)
    shown = view.choose("view", ("text", "table"))
    sections.append(("colour_bar", list_colours(view, sheet, colour), list_views(view, shown)))
    sections += show_table(opened, view) if shown == "table" else show_flow(opened, view, colour)
    sections.append(("facts", list_token_facts(sheet)))
    return Page(f"{run.title} · {title.lower()}", sections, scripts=["tokens.js"], styles=["groups.css"])


def give_tokens(shelf: Shelf, view: View) -> dict[str, Any]:
    """The numbers of the tokens on a page, for its script."""
    opened = open_completion(shelf, view)
    sheet, (first, last) = opened.sheet, find_window(view, len(opened.sheet))
    return {
        "first": first,
        "total": len(sheet),
        "labels": [COLUMNS[name].label for name in sheet.columns],
        "columns": [[round_value(value) for value in values[first:last].tolist()] for values in sheet.columns.values()],
        "ids": sheet.token_ids[first:last],
        "pieces": [write_plain(piece) for piece in sheet.pieces[first:last]],
        "trained": sheet.mask[first:last],
    }


def round_value(value: float) -> float | None:
    """Six digits: what a float32 of the record has."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def write_plain(piece: str) -> str:
    """A token in quotation marks, with nothing in it that cannot be seen."""
    return f"“{show_piece(piece).text}”"


# -- reading -----------------------------------------------------------------------------------------------------------


def open_completion(shelf: Shelf, view: View) -> Opened:
    run, step = shelf.find(view.words["name"]), view.read_number("step")
    group, sample = view.read_number("group"), view.read_number("sample")
    loaded = load_rows(run, step)
    members = find_group_rows(loaded.rows, step, group)
    chosen = members[members["sample"] == sample]
    if not len(chosen):
        kept = (
            f"Group {group} of step {step} has completions 0 to {len(members) - 1}."
            if len(members)
            else explain_no_group(loaded, step, group)
        )
        raise NotFound(kept)
    others = sorted(members["sample"].tolist())
    found = read_shown_rows(run, step, int(chosen["row"][0]), 1)
    recorded, problem = read_record(run, step, group)
    if sample in recorded:
        _, special, _ = read_pieces(run, ())
        return Opened(run, step, group, sample, found[0], recorded[sample], special, list(recorded.values()), others)
    tokens = read_shown_rows(run, step, int(chosen["row"][0]), 1, ("completion_ids", "sampling_logprobs", "advantage"))
    pieces, special, unknown = read_pieces(run, (tokens[0].get("completion_ids") or ())[:MAX_TOKENS])
    every = as_dict(read_recipe(run).get("monitors")).get("tokens_every")
    sheet = read_sampled(tokens[0], pieces, every)
    sheet.missing.extend(filter(None, [problem, unknown]))
    return Opened(run, step, group, sample, found[0], sheet, special, [sheet], others)


def read_record(run: ShownRun, step: int, group: int) -> tuple[dict[int, TokenSheet], str]:
    """The token record of a group by sample; {} where there is none, with a sentence where there is one that cannot be read."""
    file = run.find_file(run.folder.tokens_file(step))
    if file is None:
        return {}, ""
    try:
        return {int(record["sample"]): read_recorded(record) for record in read_tokens(file, group)}, ""
    except (RunError, ValueError, TypeError, OverflowError):  # whatever a stranger's file holds in place of numbers
        return {}, f"rollouts/{file.name} cannot be read."


# -- the page ----------------------------------------------------------------------------------------------------------


def choose_colour(view: View, sheet: TokenSheet) -> str:
    known = [name for name in COLOURS if name in sheet.columns]
    asked = view.read("colour")
    return asked if asked in known else next((name for name in ("coefficient", "advantage", "logprob") if name in known), "")


def list_neighbours(opened: Opened, view: View) -> list[tuple[str, str]]:
    """Links to the completions of the group before and after this one."""
    place, folder = list(opened.others).index(opened.sample), f"{opened.run.address}/tokens/{opened.step}/{opened.group}"
    found = []
    for word, at in (("previous completion", place - 1), ("next completion", place + 1)):
        there = 0 <= at < len(opened.others)
        found.append((word, view.link(f"{folder}/{opened.others[at]}", colour=view.read("colour") or None) if there else ""))
    return found


def list_colours(view: View, sheet: TokenSheet, chosen: str) -> list[dict[str, Any]]:
    """What tokens can be coloured by; those that are not known are named without a link."""
    return [
        {
            "label": COLUMNS[name].label,
            "about": COLUMNS[name].about,
            "current": name == chosen,
            "address": view.link(colour=name) if name in sheet.columns else "",
        }
        for name in COLOURS
    ]


def list_views(view: View, shown: str) -> list[tuple[str, str, bool]]:
    return [
        ("text", view.link(view=None, page=None), shown == "text"),
        ("table", view.link(view="table", page=None), shown == "table"),
    ]


def list_token_facts(sheet: TokenSheet) -> list[tuple[str, str]]:
    """What the tokens say together."""
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
    return [*facts, ("not trained on", f"{untrained:,}")] if untrained else facts


def find_window(view: View, total: int) -> tuple[int, int]:
    """The tokens of the page: those around ?at, where the completion is too long for one."""
    at = view.read_number("at", 0, 0, max(total - 1, 0))
    first = at // WINDOW * WINDOW
    return first, min(first + WINDOW, total)


def show_flow(opened: Opened, view: View, colour: str) -> list[Part]:
    """The tokens one after the other, as text."""
    sheet, (first, last) = opened.sheet, find_window(view, len(opened.sheet))
    sections: list[Part] = []
    styles = ["none"] * (last - first)
    if colour:
        everyone = [one.columns[colour] for one in opened.group_sheets if colour in one.columns]
        banding = make_bands(colour, np.concatenate(everyone))
        styles, legend = place_in_bands(sheet.columns[colour][first:last], banding)
        whole = colour == "logprob" and sheet.columns["logprob"] is sheet.columns.get("sampling_logprob")
        about = COLUMNS["sampling_logprob" if whole else colour].about
        sections.append(
            ("token_legend", COLUMNS[colour].label, about, [(band.style, band.label, count) for band, count in legend])
        )
    tokens = []
    for place in range(first, last):
        token_id = sheet.token_ids[place]
        shown = show_piece(sheet.pieces[place], token_id in opened.special)
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
    """The tokens as lines of a table: a page of them, or with ?page=all every one, as the file to download has them."""
    sheet, title = opened.sheet, "Token by token"
    if view.read("page") == "all":
        return [("linked_table", title, *tabulate_tokens(sheet, 0, len(sheet)), f"{write_thousands(len(sheet), 'token')}.")]
    pages = -(-len(sheet) // TABLE_SIZE)
    page = min(view.read_number("page", 1, 1), pages)
    heads, lines = tabulate_tokens(sheet, (page - 1) * TABLE_SIZE, page * TABLE_SIZE)
    caption = f"{write_thousands(len(sheet), 'token')}; page {page} of {pages}. The file holds all of them."
    turns = [("previous", page - 1), ("next", page + 1)]
    links = [(word, view.link(page=number) if 1 <= number <= pages else "") for word, number in turns]
    files = [("CSV", f"/csv{view.link(view='table', page='all', item='token-by-token')}")]
    grid: Part = ("linked_grid", title, heads, lines, caption, (), files)
    return [grid, ("turning", links)] if pages > 1 else [grid]


def tabulate_tokens(sheet: TokenSheet, first: int, last: int) -> tuple[list[str], list[list[Linked | str]]]:
    heads = ["place", "token", "id", *(COLUMNS[name].label for name in sheet.columns)]
    lines: list[list[Linked | str]] = []
    for place in range(first, min(last, len(sheet))):
        numbers = [write_exact(values[place]) for values in sheet.columns.values()]
        trained = "" if sheet.mask[place] else "not trained on"
        token = Linked(show_piece(sheet.pieces[place]).text, style="text piece", note=trained)
        lines.append([str(place + 1), token, str(sheet.token_ids[place]), *numbers])
    return heads, lines


def write_exact(value: float) -> str:
    return "–" if np.isnan(value) else f"{float(value):.6g}"
