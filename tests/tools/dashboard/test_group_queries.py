"""Filters, orders, pages and search over the row index, against brute force over the parquet files themselves."""

import random
import time
from itertools import groupby

import numpy as np
import pytest
from made_runs import find_run, make_rollout, make_run

from cohort.errors import NotFound, RunError
from cohort.observe.rollouts import ROW, fill_rows, list_kept_steps, read_rollouts
from cohort.tools.dashboard import group_queries as queries
from cohort.tools.dashboard import groups_page, step_files
from cohort.tools.dashboard.step_files import find_step_file, read_step_rows


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    make_run(root)
    return find_run(root)


def read_all(run):
    """Every completion of the run, row by row, with its position in the step's file: the reference implementation of the index."""
    return [
        {**row, "row": place}
        for step in list_kept_steps(run.folder.rollouts)
        for place, row in enumerate(read_rollouts(run.folder.rollouts_file(step)))
    ]


def is_duplicate(rows, row):
    earlier = [one for one in rows if (one["step"], one["group"]) == (row["step"], row["group"]) and one["row"] < row["row"]]
    return any(one["completion"] == row["completion"] for one in earlier)


SLOW_FILTERS = {
    "all": lambda rows, row: True,
    "wrong_rewarded": lambda rows, row: row["success"] is False and row["reward"] > 0,
    "wrong": lambda rows, row: row["success"] is False,
    "truncated": lambda rows, row: row["end"] == "length",
    "duplicates": is_duplicate,
    "evidence": lambda rows, row: row["row"] % 11 == row["step"] % 11,
    "unscored": lambda rows, row: row["reward"] is None,
}


@pytest.mark.parametrize("name", queries.FILTERS)
@pytest.mark.parametrize("steps", [None, (3, 3), (2, 6)])
def test_a_filter_keeps_what_brute_force_over_the_files_keeps(made, name, steps):
    slow = read_all(made)
    wanted = [
        (row["step"], row["row"])
        for row in slow
        if SLOW_FILTERS[name](slow, row) and (not steps or steps[0] <= row["step"] <= steps[1])
    ]
    rows = queries.load_rows(made)[0]
    found = rows[queries.match_rows(rows, name, steps)]
    assert list(zip(found["step"].tolist(), found["row"].tolist(), strict=True)) == wanted
    assert queries.count_filters(rows, steps)[name] == len(wanted)
    assert name not in ("wrong_rewarded", "duplicates", "unscored", "truncated") or steps or wanted, (
        "the made run has some of each"
    )


@pytest.mark.parametrize("order", ["longest", "reward", "advantage"])
def test_pages_in_an_order_are_the_slices_of_the_whole_sorted_list(made, order):
    slow = read_all(made)
    key = {"longest": "length"}.get(order, order)
    whole = sorted(slow, key=lambda row: -np.inf if row[key] is None else row[key], reverse=True)
    rows = queries.load_rows(made)[0]
    matches = queries.match_rows(rows, "all", None)
    seen = []
    for page in range(1, 12):
        part = queries.list_places(rows, matches, order, False, page, 20)
        assert (part.total, part.pages) == (len(slow), -(-len(slow) // 20))
        if page <= part.pages:
            seen += [(int(rows["step"][place]), int(rows["row"][place])) for place in part.places]
    values = [next(row[key] for row in slow if (row["step"], row["row"]) == place) for place in seen]
    assert [value if value is not None else None for value in values] == [row[key] for row in whole]
    assert len(set(seen)) == len(slow)


def test_newest_first_is_the_reverse_of_oldest_first(made):
    rows = queries.load_rows(made)[0]
    matches = queries.match_rows(rows, "wrong", None)
    newest, oldest = (
        [place for page in range(1, 30) for place in queries.list_places(rows, matches, order, False, page, 13).places.tolist()]
        for order in ("newest", "oldest")
    )
    total = int(matches.sum())
    assert oldest[:total] == np.flatnonzero(matches).tolist()
    assert newest[:total] == oldest[:total][::-1]


@pytest.mark.parametrize("order", queries.ORDERS)
def test_groups_are_listed_once_and_sorted_by_their_first_match(made, order):
    slow = read_all(made)
    wrong = [row for row in slow if row["success"] is False]
    key = {"longest": "length", "newest": "step", "oldest": "step"}.get(order, order)
    best = {}
    for row in wrong:
        place = (row["step"], row["group"])
        best[place] = max(best.get(place, -np.inf), row[key])
    rows = queries.load_rows(made)[0]
    part = queries.list_places(rows, queries.match_rows(rows, "wrong", None), order, True, 1, 1000)
    found = [(int(one["step"][0]), int(one["group"][0])) for one in queries.split_groups(rows, part.places)]
    assert sorted(found) == sorted(best)
    values = [best[place] for place in found]
    assert values == sorted(values, reverse=order != "oldest")


def test_the_numbers_of_a_group_are_those_of_its_rows(made):
    slow = read_all(made)
    rows = queries.load_rows(made)[0]
    _, lines, _ = groups_page.tabulate_groups(made, queries.split_groups(rows, queries.find_group_starts(rows)))
    for line, (_, members) in zip(lines, groupby(slow, key=lambda row: (row["step"], row["group"])), strict=True):
        members = list(members)
        rewards = [row["reward"] for row in members if row["reward"] is not None]
        judged, cut = sum(row["success"] is not None for row in members), sum(row["end"] == "length" for row in members)
        assert [cell.text for cell in line if cell is not line[2]] == [
            str(members[0]["step"]),
            f"group {members[0]['group']}",
            f"{sum(row['success'] is True for row in members)} of {judged}" if judged else "not judged",
            f"{np.mean(rewards):.4g}" if rewards else "–",
            f"{np.std(rewards):.4g}" if rewards else "–",
            str(max(row["length"] for row in members)),
        ]
        assert line[2].text == groups_page.snip(members[0]["prompt"])
        assert line[6].note == (f"{cut} truncated" if cut else "")


@pytest.mark.parametrize(("text", "steps"), [("", None), ("12", (12, 12)), ("10-20", (10, 20))])
def test_steps_are_read_from_the_address(text, steps):
    assert queries.parse_steps(text) == steps


@pytest.mark.parametrize("text", ["x", "1-", "-3", "1-2-3", "٣", "1" * 12])
def test_an_invalid_step_is_refused(text):
    with pytest.raises(NotFound, match="step: "):
        queries.parse_steps(text)


# -- without an index, and with a damaged one --------------------------------------------------------------------------


def test_a_missing_or_empty_index_is_reported(tmp_path):
    folder = make_run(tmp_path, indexed=False)
    rows, note = queries.load_rows(find_run(tmp_path))
    assert len(rows) == 0
    assert "rollouts/index.bin) is missing or empty" in note
    folder.index_file.write_bytes(b"")
    assert "is missing or empty" in queries.load_rows(find_run(tmp_path))[1]
    for step in range(1, 9):
        folder.rollouts_file(step).unlink()
    assert "monitors.rollouts_every" in queries.load_rows(find_run(tmp_path))[1]


def test_a_torn_index_and_a_random_one_break_no_page(tmp_path):
    folder = make_run(tmp_path, steps=2)
    whole = folder.index_file.read_bytes()
    folder.index_file.write_bytes(whole + b"torn")
    assert queries.load_rows(find_run(tmp_path))[0].tobytes() == whole
    noise = np.random.default_rng(0).integers(0, 256, 41 * 5000, np.uint8).tobytes()
    folder.index_file.write_bytes(noise)
    rows = queries.load_rows(find_run(tmp_path))[0]
    assert len(rows) == 5000
    for order in queries.ORDERS:
        for by_groups in (False, True):
            with np.errstate(all="ignore"):
                part = queries.list_places(rows, queries.match_rows(rows, "all", None), order, by_groups, 3, 25)
            assert len(part.places) == 25


def test_only_the_newest_records_of_a_huge_index_are_read(tmp_path, monkeypatch):
    folder = make_run(tmp_path, steps=4)
    monkeypatch.setattr(queries, "MAX_RECORDS", 30)
    rows, note = queries.load_rows(find_run(tmp_path))
    whole = np.fromfile(folder.index_file, ROW)
    assert rows.tobytes() == whole[-30:].tobytes()
    assert f"first {len(whole) - 30} completions" in note


def test_a_link_out_of_the_runs_is_not_opened(tmp_path):
    folder = make_run(tmp_path / "inside", steps=2)
    elsewhere = tmp_path / "secret.parquet"
    folder.rollouts_file(1).rename(elsewhere)
    folder.rollouts_file(1).symlink_to(elsewhere)
    with pytest.raises(NotFound):
        find_step_file(find_run(tmp_path / "inside"), 1)


def test_rows_are_read_from_the_middle_of_a_file_and_others_are_not_decoded(made, monkeypatch):
    file = find_step_file(made, 5)
    slow = read_rollouts(file)
    assert read_step_rows(file, 7, 3) == slow[7:10]
    assert read_step_rows(file, 7, 3, ("prompt", "extracted")) == [
        {name: row[name] for name in ("prompt", "extracted")} for row in slow[7:10]
    ]
    assert read_step_rows(file, 22, 9) == slow[22:]
    monkeypatch.setattr(step_files, "BATCH_ROWS", 4)
    batches = [start for start, _ in step_files.iterate_batches(file, ("prompt",), 6, batch_rows=4)]
    assert batches == [0, 4]


def test_a_column_too_large_for_a_page_is_refused_by_name(made):
    with pytest.raises(RunError, match=r"its column group has .* MB") as problem:
        list(step_files.iterate_batches(find_step_file(made, 1), ("group", "completion_ids"), most_bytes=100))
    assert str(made.folder.root) not in str(problem.value)


def test_the_error_of_a_broken_file_contains_no_path(tmp_path):
    folder = make_run(tmp_path, steps=1)
    folder.rollouts_file(1).write_bytes(folder.rollouts_file(1).read_bytes()[:-200])
    with pytest.raises(RunError, match=r"rollouts/step-000001\.parquet cannot be read") as problem:
        read_step_rows(find_step_file(find_run(tmp_path), 1), 0, 1)
    assert str(tmp_path) not in str(problem.value)


# -- search ------------------------------------------------------------------------------------------------------------


def search_slowly(run, wanted):
    return [
        (row["step"], row["row"])
        for row in read_all(run)
        if any(wanted.lower() in str(row[name]).lower() for name in step_files.SEARCHED if row[name] is not None)
    ]


@pytest.mark.parametrize("wanted", ["seven", "ÜBERFALL", "what is 3", "</B>", "שלום", "\u200b", "(", "nowhere"])
@pytest.mark.parametrize("newest", [True, False])
def test_search_equals_brute_force_and_continues_where_it_stopped(made, wanted, newest):
    rows = queries.load_rows(made)[0]
    matches = queries.match_rows(rows, "all", None)
    found, start = [], None
    for _ in range(200):
        part = step_files.search_texts(made, rows, matches, wanted, newest=newest, start=start, most=7)
        assert len(part.places) <= 7
        found += part.places
        start = part.go_on
        if start is None:
            break
    places = [(int(rows["step"][place]), int(rows["row"][place])) for place in found]
    assert sorted(places) == search_slowly(made, wanted)
    assert places == sorted(places, reverse=newest)


def test_search_stops_at_its_time_limit_and_reports_what_it_read(made, monkeypatch):
    rows = queries.load_rows(made)[0]
    clock = iter(np.arange(0.0, 1000.0, 0.3))
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    part = step_files.search_texts(
        made, rows, queries.match_rows(rows, "all", None), "nowhere", newest=True, start=None, most=5, budget_s=0.7
    )
    assert part.steps_read == [8, 7, 6]
    assert part.rows_read == int((rows["step"] >= 6).sum())
    assert int(rows["step"][part.go_on]) == 5


def test_search_opens_only_steps_that_match_the_filter(made, monkeypatch):
    rows = queries.load_rows(made)[0]
    opened = []
    real = step_files.find_step_file
    monkeypatch.setattr(step_files, "find_step_file", lambda run, step: opened.append(step) or real(run, step))
    step_files.search_texts(made, rows, queries.match_rows(rows, "all", (3, 4)), "seven", newest=False, start=None, most=1000)
    assert opened == [3, 4]


def test_an_unreadable_step_is_reported_and_the_search_continues(tmp_path):
    folder = make_run(tmp_path, steps=3)
    folder.rollouts_file(2).write_bytes(b"PAR1 nothing of the kind PAR1")
    run = find_run(tmp_path)
    rows = queries.load_rows(run)[0]
    part = step_files.search_texts(
        run, rows, queries.match_rows(rows, "all", None), "what", newest=False, start=None, most=1000
    )
    assert {int(rows["step"][place]) for place in part.places} == {1, 3}
    assert len(part.unreadable) == 1
    assert "step-000002.parquet" in part.unreadable[0]


def make_records(count, rng):
    """Records of a long run, without files."""
    rows = np.zeros(count, ROW)
    rows["step"], rows["group"] = np.arange(count) // 128 + 1, np.arange(count) % 128 // 8
    rows["sample"], rows["row"] = np.arange(count) % 8, np.arange(count) % 128
    rows["prompt_index"] = (rows["step"] * 16 + rows["group"]) % 5000
    rows["reward"], rows["success"] = rng.random(count), rng.integers(-1, 2, count)
    rows["length"], rows["advantage"] = rng.integers(1, 4096, count), rng.normal(size=count)
    rows["flags"], rows["end"] = rng.integers(0, 8, count), rng.random(count) < 0.05
    return rows


def test_a_million_completions_are_filtered_and_sorted_in_two_seconds_of_cpu():
    rows = make_records(1_000_000, np.random.default_rng(0))
    began = time.process_time()
    queries.count_filters(rows, None)
    matches = queries.match_rows(rows, "wrong_rewarded", None)
    for by_groups in (False, True):
        part = queries.list_places(rows, matches, "longest", by_groups, 100, 25)
    queries.split_groups(rows, part.places)
    assert time.process_time() - began < 2.0


def test_the_duplicates_of_the_index_are_those_of_equal_tokens():
    rng = random.Random(0)
    rollouts = [make_rollout(rng, 1, 0, sample, 1, completion=text) for sample, text in enumerate(["a b", "a b", "c", "a b"])]
    rows = fill_rows({"group": [0] * 4, "step": [1] * 4}, [one.completion.token_ids for one in rollouts])
    assert queries.FILTERS["duplicates"][2](rows).tolist() == [False, True, False, True]


def test_a_list_opens_each_step_file_once(made, monkeypatch):
    opened = []
    real = groups_page.find_step_file
    monkeypatch.setattr(groups_page, "find_step_file", lambda run, step: opened.append(step) or real(run, step))
    rows = queries.load_rows(made)[0]
    _, lines, problems = groups_page.tabulate_completions(made, rows[rows["step"] >= 7][::-1])
    assert sorted(opened) == [7, 8]
    slow = [row for row in read_all(made) if row["step"] >= 7][::-1]
    assert [line[3].text for line in lines] == [groups_page.snip(row["completion"]) for row in slow]
    assert problems == []
