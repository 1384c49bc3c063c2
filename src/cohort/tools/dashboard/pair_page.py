"""Two runs side by side at the same prompt, and whether their noise is the same; the first token in which two completions part is marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.base.text import shorten_text
from cohort.errors import NotFound
from cohort.observe.look import describe_completion, find_expected, write_question
from cohort.observe.report.frame import Part
from cohort.tools.dashboard.group_page import explain_no_group
from cohort.tools.dashboard.group_queries import GroupNumbers, find_group_rows, load_rows, match_pairs
from cohort.tools.dashboard.listing import VERDICTS, Linked, Texts, snip, write_number, write_signed
from cohort.tools.dashboard.pair_queries import Parting, compare_conditions, describe_noise, find_parting
from cohort.tools.dashboard.run_settings import read_recipe
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.step_files import read_shown_rows
from cohort.tools.dashboard.view import Page, View

BRIEF = 1600
"""Characters of a completion on either side, from a little before where they part."""
BEFORE = 500
"""Of them, characters before that."""
COLUMNS = (
    "step", "group", "sample", "policy_version", "prompt_index", "prompt", "completion", "end", "length", "reward", "success",
    "extracted", "gold", "advantage", "faults", "prompt_ids", "completion_ids",
)  # fmt: skip


def show_pair(shelf: Shelf, view: View) -> Page:
    """Two runs at one group, or the groups that both have."""
    if not view.read("a") or not view.read("b"):
        raise NotFound("a, b: name two runs, as in /pair?a=RUN&b=RUN")
    a, b = shelf.find(view.read("a")), shelf.find(view.read("b"))
    if not view.read("step"):
        return list_pairs(a, b)
    step, group = view.read_number("step"), view.read_number("group")
    rows_a, rows_b = read_side(a, step, group), read_side(b, step, group)
    conditions = compare_conditions(read_recipe(a), read_recipe(b), rows_a[0], rows_b[0])
    same, sentence = describe_noise(conditions)
    path = [
        (a.title, a.address),
        (b.title, b.address),
        ("All pairs", view.link("/pair", a=a.name, b=b.name)),
        (f"Step {step}, group {group}", ""),
    ]
    pairs = make_pairs(a, b, rows_a, rows_b, same)
    asked = [(write_question(str(rows[0].get("prompt") or "")), find_expected(rows[0])) for rows in (rows_a, rows_b)]
    sections: list[Part] = [
        (
            "place_head",
            path,
            f"{a.title} and {b.title} at step {step}, group {group}",
            describe_sides(a, b, rows_a, rows_b, pairs),
        ),
        ("noise_card", same, sentence, conditions, (a.title, b.title)),
        ("pair_prompt", asked if asked[0] != asked[1] else asked[:1], (a.title, b.title)),
        (
            "pair_cards",
            [pair for pair in pairs if not pair["same"]],
            [pair for pair in pairs if pair["same"]],
            (a.title, b.title),
        ),
    ]
    return Page(f"{a.title} and {b.title} · step {step}, group {group}", sections, styles=["groups.css"])


def read_side(run: ShownRun, step: int, group: int) -> list[dict[str, Any]]:
    """The completions of a group with their token ids."""
    loaded = load_rows(run, step)
    members = find_group_rows(loaded.rows, step, group)
    if not len(members):
        raise NotFound(f"{run.title}: {explain_no_group(loaded, step, group)}")
    first, last = int(members["row"].min()), int(members["row"].max())
    return read_shown_rows(run, step, first, last - first + 1, COLUMNS)


def describe_sides(
    a: ShownRun,
    b: ShownRun,
    rows_a: Sequence[Mapping[str, Any]],
    rows_b: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
) -> str:
    words = []
    for run, rows in ((a, rows_a), (b, rows_b)):
        right = sum(row.get("success") is True for row in rows)
        words.append(f"{run.title}: {right} of {len(rows)} right")
    alike = sum(pair["same"] for pair in pairs)
    return f"{'; '.join(words)}. {alike} of {len(pairs)} completions are the same, token by token."


def make_pairs(
    a: ShownRun, b: ShownRun, rows_a: Sequence[Mapping[str, Any]], rows_b: Sequence[Mapping[str, Any]], same_noise: bool
) -> list[dict[str, Any]]:
    """The completions of both runs by their place in the group: the noise of a place is the same in both."""
    by_sample = [{int(row["sample"]): row for row in rows} for rows in (rows_a, rows_b)]
    pairs = []
    for sample in sorted({*by_sample[0], *by_sample[1]}):
        row_a, row_b = by_sample[0].get(sample), by_sample[1].get(sample)
        parting = find_parting(row_a, row_b) if row_a and row_b else None
        sides = [make_side(run, row, parting) for run, row in ((a, row_a), (b, row_b))]
        same = parting is not None and parting.token is None
        pairs.append({"sample": sample, "sentence": describe_parting(parting, same_noise), "sides": sides, "same": same})
    return pairs


def describe_parting(parting: Parting | None, same_noise: bool) -> str:
    if parting is None:
        return "Only one of the runs has it."
    if parting.token is None:
        return "The same tokens in both."
    if parting.cut:
        return f"The same up to token {parting.token}, where one is cut at its max_completion_tokens."
    why = "here the policies weigh the next token differently" if same_noise else "chance or the policy"
    return f"They part at token {parting.token + 1}: {why}."


def make_side(run: ShownRun, row: Mapping[str, Any] | None, parting: Parting | None) -> dict[str, Any] | None:
    """One completion, its text in two: what both begin with, and what is its own."""
    if row is None:
        return None
    text = str(row.get("completion") or "")
    split = parting.characters if parting and parting.token is not None else len(text)
    shared, own = text[:split], text[split:]
    if len(shared) > BEFORE and own:
        shared = f"… {len(shared) - BEFORE:,} characters before …\n{shared[-BEFORE:]}"
    style, sign, _ = VERDICTS[-1 if row.get("success") is None else int(row["success"])]
    ended = parting is not None and parting.token is not None and not own
    return {
        "style": style,
        "sign": sign,
        "about": describe_completion(row),
        "shared": shorten_text(shared, BRIEF) if not own else shared,
        "own": shorten_text(own, BRIEF) or ("(it ends here)" if ended else ""),
        "advantage": write_signed(None if row.get("advantage") is None else float(row["advantage"])),
        "tokens": f"{run.address}/tokens/{row['step']}/{row['group']}/{row['sample']}"
        + (f"?at={parting.token}" if parting and parting.token is not None else ""),
    }


# -- all pairs ---------------------------------------------------------------------------------------------------------


def list_pairs(a: ShownRun, b: ShownRun) -> Page:
    """The groups of two runs at the same step, place and prompt."""
    loaded_a, loaded_b = load_rows(a), load_rows(b)
    pairs, total = match_pairs(loaded_a.rows, loaded_b.rows)
    path = [(a.title, a.address), (b.title, b.address), ("All pairs", "")]
    sentence = f"{total:,} groups have the same prompt at the same step and place."
    note = " ".join(dict.fromkeys(filter(None, [loaded_a.note, loaded_b.note])))
    sections: list[Part] = [("place_head", path, f"{a.title} and {b.title}", sentence, note)]
    if pairs:
        heads = [
            "step",
            "group",
            "prompt",
            f"right in {a.title}",
            f"right in {b.title}",
            f"reward in {a.title}",
            f"reward in {b.title}",
            "difference",
        ]
        texts = Texts(a, [(left.step, left.first_row) for left, _ in pairs], ("prompt",))
        lines = [tabulate_pair(a, b, left, right, texts) for left, right in pairs]
        shown = (
            f"The {len(pairs)} with the largest difference of mean rewards."
            if total > len(pairs)
            else "The largest difference of mean rewards first."
        )
        sections.append(("linked_table", "The same prompts", heads, lines, shown, texts.problems))
    else:
        sections.append(
            (
                "told_small",
                "There is nothing to compare.",
                ["Two runs draw the same prompts where their prompts and their seed are the same."],
            )
        )
    return Page(f"{a.title} and {b.title}", sections, styles=["groups.css"])


def tabulate_pair(a: ShownRun, b: ShownRun, left: GroupNumbers, right: GroupNumbers, texts: Texts) -> list[Linked]:
    link = f"/pair?a={a.name}&b={b.name}&step={left.step}&group={left.group}"
    return [
        Linked(str(left.step)),
        Linked(f"group {left.group}", link=link),
        Linked(
            snip(write_question(str(texts.read(left.step, left.first_row).get("prompt") or ""))),
            style="text brief",
        ),
        *(Linked(f"{one.right} of {one.judged}" if one.judged else "not judged") for one in (left, right)),
        Linked(write_number(left.mean)),
        Linked(write_number(right.mean)),
        Linked(write_signed(right.mean - left.mean)),
    ]
