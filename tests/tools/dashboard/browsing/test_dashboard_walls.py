"""Attacks on the dashboard over HTTP: path traversal, links in run folders, foreign hosts, methods other than GET."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from browsing.addresses import fill_each_parameter, fill_route, list_answers, list_examples, list_routes
from browsing.made_run import Words, make_run
from browsing.payloads import TRAVERSALS
from browsing.stage import Dashboard, start_dashboard

SECRET = "not-for-your-eyes-8f3a"
METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "CONNECT")
ASKED = (
    "/compare?run",
    "/data/lab/run?run",
    "/data/lab/group/run?run",
    "/?find",
    "/run/a/groups?find",
    "/run/a/groups?step",
    "/csv/run/a?item",
    "/svg/run/a?item",
)
"""Every word of a query that a run, a step or a file is looked up by."""
LINKED = (
    "recipe.toml",
    "metrics.jsonl",
    "evaluations.jsonl",
    "events.jsonl",
    "summary.json",
    "samples",
    "rollouts",
    "report.html",
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, and one beside it that nobody may see; links of every kind lead from the runs to it."""
    house = tmp_path_factory.mktemp("house")
    said = Words(
        prompt=lambda number: f"{SECRET} {number}", completion=lambda number, sample: SECRET, gold=lambda number: SECRET,
        extracted=lambda number, sample: SECRET, rewards=(SECRET,), metrics=(SECRET,), messages=(SECRET,), set_name=SECRET,
        recipe={"prompts": {"template": SECRET}},
    )  # fmt: skip
    outside = make_run(house / "outside", 4, words=said, status="failed", summary={"error": SECRET})
    (outside / "secret.txt").write_text(SECRET, encoding="utf-8")
    (outside / "report.html").write_text(SECRET, encoding="utf-8")
    make_run(house / "runs" / "a", 4)
    make_run(house / "runs" / "b", 4)
    (house / "runs" / "linked").symlink_to(outside)
    for name in LINKED:
        run = make_run(house / "runs" / f"link_{name}", 4)
        if (run / name).is_dir():
            (run / name).rename(house / f"away_{name}")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside / name)
    run = make_run(house / "runs" / "link_files", 4)
    for file in (run / "rollouts").iterdir():
        file.unlink()
        file.symlink_to(outside / "rollouts" / file.name)
    return house


@pytest.fixture(scope="module")
def walled(house: Path) -> Iterator[Dashboard]:
    dashboard = start_dashboard(house / "runs", house / "log")
    yield dashboard
    dashboard.stop()


def read_everything(house: Path) -> dict[str, str]:
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((house / "runs").rglob("*"))
        if file.is_file()
    }


def hold(house: Path, traversal: str) -> str:
    outside = str(house / "outside")
    return traversal.format(outside=outside, quoted=quote(outside, safe=""), inner=outside.lstrip("/"))


@pytest.mark.parametrize("number", range(len(TRAVERSALS)))
def test_no_address_leads_out_of_the_runs(walled, house, number):
    text = hold(house, TRAVERSALS[number])
    targets = [f"/{text}", f"//{text}", *(one for route in list_routes() for one in fill_each_parameter(route, text, name="a"))]
    targets += [f"{address}={text}" for address in ASKED]
    for target in targets:
        status, _, body = walled.ask(target)
        assert SECRET.encode() not in body, target
        assert status < 500, (target, body)
        # What somebody searches for is said to them again.
        assert "find=" in target or str(house).encode() not in body, target


def test_links_in_run_folders_lead_nowhere(walled, house):
    for name in ("linked", "link_files", *(f"link_{name}" for name in LINKED)):
        addresses = [one for one in list_examples(name=name, other="a", step="4") if not one.startswith("/lab")]
        for address in (*addresses, *(list_answers(name=name, step="4") if name in ("linked", "link_rollouts") else ())):
            status, _, body = walled.ask(address)
            assert SECRET.encode() not in body, address
            assert status < 500, (address, body)


def test_other_hosts_are_refused_whatever_the_method(walled):
    hosts = [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "169.254.169.254",
        "0.0.0.0",
        "",
    ]
    for method in ("GET", "HEAD", *METHODS):
        for host in hosts:
            for target in ("/", "/run/a", "/static/page.css", "/lab"):
                status, headers, body = walled.ask(target, method, [("Host", host)])
                assert 400 <= status < 500, (method, host, target, status)
                assert b"Cohort" not in body
                assert "access-control-allow-origin" not in headers
    assert walled.ask("/", headers=[("Host", "127.0.0.1"), ("Host", "evil.example")])[0] >= 400
    assert walled.ask("http://evil.example/", headers=[("Host", "evil.example")])[0] >= 400
    for host in (f"127.0.0.1:{walled.port}", f"localhost:{walled.port}", f"LOCALHOST:{walled.port}"):
        assert walled.ask("/", headers=[("Host", host)])[0] == 200


def test_other_origins_get_no_cors_headers(walled):
    for route in list_routes():
        target = fill_route(route, name="a", step="4", group="0", sample="0", index="0")
        _, headers, _ = walled.ask(target, headers=[("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")])
        assert not [name for name in headers if name.startswith("access-control")], target
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    upgrade = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "x" * 22 + "=="),
    ]
    assert walled.ask("/", headers=upgrade)[0] != 101


def test_nothing_can_be_changed(walled, house):
    before = read_everything(house)
    for route in list_routes():
        target = fill_route(route, name="a", step="4", group="0", sample="0", index="0")
        for method in METHODS:
            status, _, _ = walled.ask(
                target, method, [("Content-Type", "application/x-www-form-urlencoded")], b"_method=DELETE&x=1"
            )
            assert status in (400, 405), (method, target, status)
        walled.ask(target, headers=[("X-HTTP-Method-Override", "DELETE")])
    assert read_everything(house) == before


def test_every_page_forbids_foreign_content(walled):
    for target in ("/", "/run/a", "/nothing/here", "/lab"):
        _, headers, body = walled.ask(target)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert b" style=" not in body
        assert b"<style" not in body
        assert b"onclick" not in body
