"""The pages of runs in any state, their downloads, and that nothing outside the given folders is read."""

from __future__ import annotations

import csv
import fcntl
import html
import io
import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.report.charts import Chart, Series, draw_chart, find_band, smooth_points
from cohort.observe.report.data import RunData
from cohort.observe.report.page import render_report
from cohort.recipe.file import build_recipe, dump_recipe
from cohort.tools.dashboard import pace
from cohort.tools.dashboard.app import make_app
from cohort.tools.dashboard.rendering import guard_cell
from cohort.tools.dashboard.run_index import RunIndex

OLD = Path(__file__).parents[2] / "data" / "runs_of_version_0"


def open_dashboard(*folders: Path) -> TestClient:
    return TestClient(make_app(RunIndex(folders)), base_url="http://127.0.0.1:8600")


def write_run(root: Path, name: str = "one", steps: int = 40, recipe: dict | None = None, **summary: object) -> Path:
    """A run folder with the files that run pages read."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(dump_recipe(build_recipe({"name": name, "train": {"num_steps": 50}, **(recipe or {})})))
    rows = [
        {
            "step": step,
            "reward/mean": 0.1 + step / 97,
            "reward/success": 0.1 + step / 101,
            "time/step": 1.5,
            "time/rollout": 1.0,
        }
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary:
        (folder / "summary.json").write_text(json.dumps({"steps": steps, "seconds": 90.0, **summary}))
    return folder


def text_of(page: str) -> str:
    """The visible text of a page."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))


def read_csv(client: TestClient, address: str) -> list[dict[str, str]]:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    return list(csv.DictReader(io.StringIO(answer.text)))


# -- the list ----------------------------------------------------------------------------------------------------------


def test_without_runs_the_page_shows_the_command(tmp_path):
    page = text_of(open_dashboard(tmp_path / "runs").get("/").text)
    assert "No runs yet" in page
    assert "cohort train" in page
    assert str(tmp_path) not in page


def test_the_list_shows_status_progress_and_scores(tmp_path):
    ends = {side: {"pass@1": {"value": value, "low": 0, "high": 1}} for side, value in (("before", 0.125), ("after", 0.75))}
    write_run(tmp_path, "done", 50, status="finished", eval=ends)
    write_run(tmp_path, "broke", 7, status="failed", error="out of memory")
    write_run(tmp_path / "compare" / "runs", "grpo", 3)
    client = open_dashboard(tmp_path)
    page = client.get("/").text
    told = text_of(page)
    assert "3 runs" in told
    assert "12.5 % → 75.0 % +62.5" in told
    assert "50 of 50 steps took 2 min" in told
    assert "failed" in told
    assert "7 of 50 steps" in told
    assert 'aria-label="reward 0.11 at step 1, 0.615 at step 50"' in page
    assert "compare/runs/grpo" in told
    assert client.get("/run/compare~runs~grpo").status_code == 200
    assert "1 run " in text_of(client.get("/?find=DONE").text)


def test_a_locked_run_is_running_and_a_silent_one_unfinished(tmp_path):
    folder = write_run(tmp_path, status="running")
    client = open_dashboard(tmp_path)
    lock = folder / "run.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for file in folder.iterdir():
            os.utime(file, (1e9, 1e9))
        assert "running" in text_of(client.get("/").text)
    assert "unfinished" in text_of(client.get("/compare?run=one").text)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')  # on another machine, perhaps: it writes
    assert "running" in text_of(client.get("/run/one").text)


def test_a_killed_run_does_not_stay_running(tmp_path, monkeypatch):
    folder = write_run(tmp_path, status="running")
    client = open_dashboard(tmp_path)
    addresses = ("/", "/run/one", "/compare?run=one")
    for address in addresses:
        assert "running" in text_of(client.get(address).text), address
    later = folder.stat().st_mtime + 7200.0  # nothing is written, and hours pass
    monkeypatch.setattr("cohort.observe.report.data.time.time", lambda: later)
    monkeypatch.setattr(pace, "AGED_S", 0.0)
    monkeypatch.setattr(pace, "SPARED", 0.0)
    for address in addresses:
        assert "unfinished" in text_of(client.get(address).text), address


def test_only_changes_beyond_noise_have_a_colour(tmp_path):
    wide, narrow = {"low": 0.3, "high": 0.6}, {"low": 0.7, "high": 0.9}
    ends = {"before": {"pass@1": {"value": 0.46, **wide}}, "after": {"pass@1": {"value": 0.51, **wide}}}
    write_run(tmp_path, "noise", status="finished", eval=ends)
    write_run(tmp_path, "gain", status="finished", eval=ends | {"after": {"pass@1": {"value": 0.8, **narrow}}})
    page = open_dashboard(tmp_path).get("/").text
    assert '<span class="same">+5.0</span>' in page
    assert '<span class="up">+34.0</span>' in page
    assert text_of(page).count("no clear change") == 1


def test_a_run_with_huge_numbers_does_not_affect_other_runs(tmp_path):
    write_run(tmp_path, "good")
    bad = write_run(tmp_path, "bad", status="finished")
    values = ["NaN", "Infinity", "-1e308", "1e308", "1" + "0" * 400, "-1" + "0" * 400, "true", "null", '"text"', "[1]"]
    names = ("reward/mean", "reward/success", "time/step", "time/rollout", "loss/total", "rollout/length_mean")
    lines = [
        ", ".join(f'"{name}": {values[(step + place) % len(values)]}' for place, name in enumerate(names))
        for step in range(1, 31)
    ]
    rows = "".join(f'{{"step": {step}, {line}}}\n' for step, line in enumerate(lines, 1))
    (bad / "metrics.jsonl").write_text(rows + '{"step": 1' + "0" * 400 + "}\n")
    client = open_dashboard(tmp_path)
    told = text_of(client.get("/").text)
    assert "2 runs" in told
    assert "good" in told
    for address in ("/run/bad", "/compare?run=bad&run=good"):
        page = client.get(address)
        assert page.status_code == 200, address
        assert "could not be created" not in page.text, address


def test_runs_with_equal_or_unsafe_names_can_all_be_opened(tmp_path):
    strange = ["a b", "<script>alert(1)</script>".replace("/", "|"), "ü%2e%2e", "a_b", "..x", "a?b#c", "nul\x01l"]
    for name in strange:
        write_run(tmp_path / "first", "x", 1).rename(tmp_path / "first" / name)
    write_run(tmp_path / "second", "a_b", 2)
    run_index = RunIndex([tmp_path / "first", tmp_path / "second"])
    names = [run.name for run in run_index.list_runs()]
    assert len(set(names)) == len(names) == len(strange)  # "..x" begins with a dot: hidden
    client = TestClient(make_app(run_index), base_url="http://127.0.0.1:8600")
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9_.~-]+", name)
        assert client.get(f"/run/{name}").status_code == 200
    assert "<script>alert" not in client.get("/").text


# -- one run -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["finished", "between_steps", "inside_a_step"])
def test_a_run_page_shows_what_the_report_shows(name):
    page = open_dashboard(OLD).get(f"/run/{name}").text
    assert "could not be created" not in page
    report = render_report(RunData(OLD / name))
    headings = re.findall(r"<h[23]>(.*?)</h[23]>", report)
    assert len(headings) > 10
    assert [heading for heading in headings if f">{heading}<" not in page] == []
    for table in re.findall(r"<tbody>.*?</tbody>", report, re.DOTALL):
        assert text_of(table) in text_of(page)


def test_failed_and_empty_runs_are_explained(tmp_path):
    write_run(
        tmp_path,
        "failed",
        3,
        status="failed",
        error="CUDA out of memory",
        failure={"type": "OutOfMemoryError", "where": "update"},
    )
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "recipe.toml").write_text("")
    client = open_dashboard(tmp_path)
    assert "OutOfMemoryError The run failed. CUDA out of memory" in text_of(client.get("/run/failed").text)
    failed = text_of(client.get("/run/failed").text)
    assert "The run failed after 3 finished steps." in failed
    assert "There is no training step yet." in text_of(client.get("/run/empty").text)
    write_run(tmp_path, "early", 0, status="failed", error="no such model")
    early = text_of(client.get("/run/early").text)
    assert "The run failed before the first step finished." in early
    assert "There is no training step yet." not in early


def test_the_list_shows_the_alarms_of_a_run_and_only_those(tmp_path):
    """Between thousands of other events, of which the list reads no sample."""
    quiet, loud = write_run(tmp_path, "quiet", status="finished"), write_run(tmp_path, "loud", status="finished")
    noise = [{"time": 1.0, "step": 1, "kind": "message", "text": "x" * 400}] * 3000
    alarm = {"time": 1.0, "step": 7, "kind": "finding", "level": "alarm", "name": "collapse", "what": "Entropy <collapsed>."}
    (loud / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [*noise, alarm, *noise]))
    (quiet / "events.jsonl").write_text(json.dumps(alarm | {"level": "warning"}) + "\n")
    page = open_dashboard(tmp_path).get("/").text
    assert re.findall(r'class="badge alarm" href="([^"]*)" title="([^"]*)">([^<]*)<', page) == [
        ("/run/loud", "Entropy &lt;collapsed&gt;.", "1 alarm")
    ]


def test_until_the_final_evaluation_a_run_has_one_line_per_set_and_no_dashes(tmp_path):
    folder = write_run(tmp_path, "one", status="running")
    measures = {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in ("pass@1", "pass@8", "maj@8", "greedy", "reward")}
    sets = {"held_out": measures | {"problems": 64}, "other": {"reward": measures["reward"], "problems": 64}}
    (folder / "evaluations.jsonl").write_text(json.dumps({"step": 0, "label": "before", "sets": sets}) + "\n")
    page = open_dashboard(tmp_path).get("/run/one").text
    table = text_of(page.split("Before training")[1].split("</table>")[0])
    assert "held-out problems pass@1 50.0 % [40.0, 60.0] other reward 0.500 [0.400, 0.600]" in table
    assert "Before and after" not in page


BROKEN = {
    "metrics.jsonl": b'{"step": 1, "reward/mean": 0.5}\n{"step": "x"}\n{"step": 2, "reward/mean": {"a": []}}\n['
    + b"[" * 5000
    + b'\n\x00\xff\n{"step": 3, "re',
    "evaluations.jsonl": b'{"step": 0, "label": "before", "sets": [1, 2]}\n{"step": 1, "sets": {"a": 3}}\nnull\n',
    "ranks.jsonl": b'{"step": 1, "ranks": {"a": 1}}\n{"ranks": [[1]]}\n',
    "events.jsonl": b'{"time": 1e400, "kind": ["x"]}\n{"kind": "finding", "step": 1, "text": {"a": 1}}\n{"time": "now"}\n',
    "summary.json": b'{"status": ["finished"], "steps": "many", "eval": [], "saving": 3}',
    "recipe.toml": b"[train]\nnum_steps = 'x'\n[algorithm]\nname = 3\n",
    "algorithm.json": b"{" * 100_000,
}


def test_broken_files_break_no_page_and_are_counted(tmp_path):
    folder = tmp_path / "one"
    (folder / "samples").mkdir(parents=True)
    for name, content in BROKEN.items():
        (folder / name).write_bytes(content)
    (folder / "samples" / "before.jsonl").write_bytes(b'{"prompt": [1, {"role": []}], "completions": "x"}\n')
    client = open_dashboard(tmp_path)
    for path in ("/", "/run/one", "/compare?run=one"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert str(tmp_path) not in answer.text
    told = text_of(client.get("/run/one").text)
    assert "metrics.jsonl: 2 broken lines skipped; the last line is incomplete." in told
    assert "evaluations.jsonl: 1 broken line skipped." in told


def test_a_page_never_imports_what_a_recipe_names(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\ndef function(*a, **k): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "runs", status="finished")
    text = (folder / "recipe.toml").read_text()
    text = re.sub(r"(?m)^(advantage|function|source) = .*$", r'\1 = "evil_module:function"', text)
    assert text.count("evil_module") > 2
    (folder / "recipe.toml").write_text(text)
    (folder / "algorithm.json").write_text(json.dumps({"advantage": {"name": "evil_module:function", "digest": "x"}}))
    client = open_dashboard(tmp_path / "runs")
    for path in ("/", "/run/one", "/compare?run=one"):
        assert client.get(path).status_code == 200
    assert not (tmp_path / "imported").exists()


def test_findings_are_marked_on_the_curves_and_listed(tmp_path):
    folder = write_run(tmp_path)
    events = [
        {"time": 1.0, "step": None, "kind": "message", "text": "hello <b>there</b>"},
        {"time": 2.0, "step": 12, "kind": "finding", "level": "alarm", "name": "copies", "text": "Groups hold copies."},
        {"time": 3.0, "step": 12, "kind": "finding", "level": "alarm", "name": "copies", "text": "Groups hold copies."},
        {"time": 4.0, "step": 30, "kind": "finding", "level": "warning", "name": "kl", "text": "KL rises."},
        {"time": 5.0, "step": 999, "kind": "finding", "level": "<i>", "name": "late", "text": "Of another run."},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    client = open_dashboard(tmp_path)
    page = client.get("/run/one").text
    chart = re.search(r"<figure[^>]*>(?:(?!</figure>).)*Reward and success.*?</figure>", page, re.DOTALL)[0]
    assert chart.count('class="flag alarm"') == 2  # a line and a shape, once
    assert "step 12: Groups hold copies." in chart
    assert chart.count('<polygon class="flag warning"') == 1
    assert "Of another run." not in chart
    assert [row["step"] for row in read_csv(client, "/csv/run/one?item=when-findings-arose")] == ["12", "30", "999"]
    assert "hello <b>there</b>" in html.unescape(page)
    assert "<b>there" not in page
    assert (
        "Groups hold copies."
        not in re.search(
            r"<figure[^>]*>(?:(?!</figure>).)*Reward and success.*?</figure>", client.get("/run/one?from=20").text, re.DOTALL
        )[0]
    )


def test_before_the_first_step_the_latest_progress_is_shown(tmp_path):
    folder = write_run(tmp_path, steps=0, status="running")
    events = [
        {"time": 10.0 + done, "step": None, "kind": "progress", "stage": "cold start", "done": done, "total": 2000}
        for done in range(99)
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    client = open_dashboard(tmp_path)
    assert "cold start, 98 of 2,000" in text_of(client.get("/").text)
    assert "Now: cold start, 98 of 2,000" in text_of(client.get("/run/one").text)
    assert [row["event"] for row in read_csv(client, "/csv/run/one?item=events")] == ["cold start, 98 of 2,000"]


# -- downloads ---------------------------------------------------------------------------------------------------------


def test_curve_downloads_have_the_unsmoothed_numbers(tmp_path):
    folder = write_run(tmp_path, steps=1500)
    rows = read_rows(folder / "metrics.jsonl")
    client = open_dashboard(tmp_path)
    for query in ("", "smooth=50&bands=yes&"):
        found = read_csv(client, f"/csv/run/one?{query}item=reward-and-success")
        assert [(int(line["step"]), float(line["reward"]), float(line["success"])) for line in found] == [
            (row["step"], row["reward/mean"], row["reward/success"]) for row in rows
        ]
    part = read_csv(client, "/csv/run/one?from=10&to=12&item=reward-and-success")
    assert [line["step"] for line in part] == ["10", "11", "12"]


def test_every_download_link_works(tmp_path):
    shutil.copytree(OLD / "finished", tmp_path / "a")
    shutil.copytree(OLD / "inside_a_step", tmp_path / "b")
    client = open_dashboard(tmp_path)
    for path in ("/run/a?smooth=5", "/compare?run=a&run=b"):
        links = [html.unescape(link) for link in re.findall(r'href="(/(?:csv|svg)/[^"]*)"', client.get(path).text)]
        assert len(links) == len(set(links)) > 10
        for link in links[:: 1 if path.startswith("/compare") else 4]:
            answer = client.get(link)
            assert answer.status_code == 200
            if link.startswith("/svg"):
                root = ElementTree.fromstring(answer.text)
                assert root.tag == "{http://www.w3.org/2000/svg}svg"
                assert len(list(root.iter())) > 10
            else:
                assert len(list(csv.reader(io.StringIO(answer.text)))) > 1
    assert client.get("/csv/run/a?item=nothing").status_code == 404
    assert client.get("/svg/run/a?item=before-and-after").status_code == 404
    assert client.get("/csv/run/nobody?item=x").status_code == 404


def test_spreadsheet_formulas_are_escaped(tmp_path):
    folder = write_run(tmp_path)
    event = {"time": 1.0, "step": 2, "kind": "message", "text": "=HYPERLINK('http://evil.example')"}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    found = read_csv(open_dashboard(tmp_path), "/csv/run/one?item=events")
    assert found[0]["event"] == "'=HYPERLINK('http://evil.example')"
    assert found[0]["step"] == "2"
    harmless = ["-4.76837e-07", "+5.1", "-0.5 %", "+51.2 [+40.6, +61.7] no clear change", "-inf", -1e-9, 3]
    assert [guard_cell(value) for value in harmless] == [repr(one) if isinstance(one, float) else one for one in harmless]
    for text in ("-2 +cmd|' /C calc'!A0", '+1 +HYPERLINK("http://evil.example")', "-1+2", "@SUM(1)", "+", "-e1", "\t=1"):
        assert guard_cell(text) == f"'{text}"


def test_every_drawing_downloads_as_csv(tmp_path):
    shutil.copytree(OLD / "finished", tmp_path / "a")
    client = open_dashboard(tmp_path)
    page = client.get("/run/a").text
    drawings = re.findall(r'href="/svg/run/a\?item=([^"]*)"', page)
    assert "rewards" in drawings
    assert set(drawings) <= set(re.findall(r'href="/csv/run/a\?item=([^"]*)"', page))
    bars = read_csv(client, "/csv/run/a?item=rewards")
    shares = [name for name in bars[0] if name not in ("from", "to")]
    assert [sum(float(bar[name]) for bar in bars) for name in shares] == pytest.approx([1.0, 1.0])


# -- several -----------------------------------------------------------------------------------------------------------


def test_recipe_differences_are_a_table(tmp_path):
    write_run(tmp_path, "a", recipe={"train": {"num_steps": 50, "group_size": 8}, "algorithm": {"name": "grpo"}})
    write_run(tmp_path, "b", recipe={"train": {"num_steps": 50, "group_size": 4}, "algorithm": {"name": "dr_grpo"}, "seed": 7})
    client = open_dashboard(tmp_path)
    found = {
        line["key"]: (line["a"], line["b"])
        for line in read_csv(client, "/csv/compare?run=a&run=b&item=differences-between-the-recipes")
    }
    assert found["train.group_size"] == ("8", "4")
    assert found["seed"] == ("0", "7")
    assert found["algorithm.name"] == ('"grpo"', '"dr_grpo"')
    assert "train.num_steps" not in found
    assert "name" not in found
    told = text_of(client.get("/compare?run=a&run=a").text)
    assert "One run. Choose another one" in told


def test_runs_are_chosen_by_the_address_and_limited_to_the_colours(tmp_path):
    for number in range(9):
        write_run(tmp_path, f"r{number}", 2)
    client = open_dashboard(tmp_path)
    assert "Choose runs" in client.get("/compare").text
    eight = "&".join(f"run=r{number}" for number in range(8))
    assert client.get(f"/compare?{eight}").status_code == 200
    refused = client.get(f"/compare?{eight}&run=r8")
    assert refused.status_code == 404
    assert "at most 8 runs" in refused.text
    assert client.get("/compare?run=r0&run=nobody").status_code == 404
    assert client.get("/compare?run=r0&smooth=x&bands=x").status_code == 200
    assert client.get("/compare?run=r0&from=1e9").status_code == 404


def test_a_moving_average_of_the_chosen_steps_and_its_interval_by_hand():
    points = [(float(step), float(value)) for step, value in enumerate([2, 4, 9, 1], 1)]
    assert [y for _, y in smooth_points(points, 2)] == [2, 3, 6.5, 5]
    low, high = find_band(points, 2)
    # of 4 and 9: mean 6.5, deviation 5/sqrt(2), so 1.96 * 2.5 to either side
    assert low[2][1] == pytest.approx(6.5 - 4.9)
    assert high[2][1] == pytest.approx(6.5 + 4.9)
    assert low[0][1] == high[0][1] == 2
    chart = Chart("x", "", (Series("a", points),), window=2, bands=True)
    marks = draw_chart(chart).marks
    assert [attributes["class"] for tag, attributes, _ in marks if tag in ("polyline", "polygon")] == [
        "line raw c0",
        "band c0",
        "line c0",
    ]
    plain = draw_chart(Chart("x", "", (Series("a", points),), window=1)).marks
    assert [attributes["class"] for tag, attributes, _ in plain if tag == "polyline"] == ["line c0"]


# -- live --------------------------------------------------------------------------------------------------------------


def test_sections_are_sent_again_only_after_a_change(tmp_path, monkeypatch):
    folder = write_run(tmp_path)
    client = open_dashboard(tmp_path)
    page = client.get("/run/one?smooth=5").text
    tag = html.unescape(re.search(r'data-live="([^"]*)"', page)[1])
    answer = client.get("/live/run/one?smooth=5", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.content) == (304, b"")
    assert float(answer.headers["x-wait"]) >= 2
    monkeypatch.setattr(pace, "SPARED", 0.0)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 41, "reward/mean": 0.9}) + "\n")
    answer = client.get("/live/run/one?smooth=5", headers={"If-None-Match": tag})
    assert answer.status_code == 200
    assert "41 of 50" in text_of(answer.text)
    assert "<html" not in answer.text
    again = client.get("/live/run/one?smooth=5", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    sections = re.findall(r'<section class="part" id="([^"]+)">', answer.text)
    assert len(sections) == len(set(sections)) > 8


# -- nothing from outside ----------------------------------------------------------------------------------------------


def test_links_that_lead_outside_are_not_followed(tmp_path):
    secret = write_run(tmp_path / "elsewhere", "secret", 4, recipe={"seed": 424242})
    (secret / "metrics.jsonl").write_text('{"step": 77, "reward/mean": 0.123456}\n')
    runs = tmp_path / "runs"
    mine = write_run(runs, "mine", 2)
    for name in ("metrics.jsonl", "summary.json", "recipe.toml", "events.jsonl", "ranks.jsonl", "algorithm.json"):
        (mine / name).unlink(missing_ok=True)
        (secret / name).touch()
    (mine / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    for name in ("evaluations.jsonl", "summary.json", "recipe.toml", "events.jsonl", "ranks.jsonl", "algorithm.json"):
        (mine / name).symlink_to(secret / name)
    (mine / "rollouts").symlink_to(secret)
    (mine / "samples").symlink_to(secret)
    (runs / "stolen").symlink_to(secret)
    (runs / "loop").symlink_to(runs)
    other = write_run(runs, "other", 1)
    (other / "metrics.jsonl").unlink()
    (other / "metrics.jsonl").symlink_to(secret / "metrics.jsonl")
    inner = write_run(runs, "inner", 1)
    (inner / "events.jsonl").symlink_to(mine / "metrics.jsonl")  # stays inside: followed
    client = open_dashboard(runs)
    listed = client.get("/").text
    assert "stolen" not in listed
    assert [run.title for run in RunIndex([runs]).list_runs()] == ["inner", "mine", "other"]
    for path in ("/run/mine", "/run/other", "/compare?run=mine&run=other"):
        page = client.get(path).text
        assert "0.1234" not in page
        assert "424242" not in page
    assert client.get("/run/stolen").status_code == 404
    assert ">Events<" in client.get("/run/inner").text


@pytest.mark.parametrize(
    "name",
    ["..", "../elsewhere", "%2e%2e", "..%2f..%2fetc", "....//", "one/../../x", "%00", "one%00", "~root", "/etc", "C:\\"],
)
def test_names_are_looked_up_and_never_used_as_paths(tmp_path, name):
    write_run(tmp_path / "runs", "one", 1)
    client = open_dashboard(tmp_path / "runs")
    for prefix in ("/run/", "/live/run/", "/csv/run/", "/svg/run/", "/static/", "/compare?run="):
        answer = client.get(f"{prefix}{name}")
        assert answer.status_code == 404 or name in ("..", "%2e%2e"), prefix
        assert str(tmp_path) not in answer.text
        assert "root:" not in answer.text
