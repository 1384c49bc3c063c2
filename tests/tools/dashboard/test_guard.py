"""Which requests are allowed (hosts, methods, tokens), and the security headers of every response."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cohort.tools.dashboard.app import make_app
from cohort.tools.dashboard.run_index import RunIndex

RUNS = Path(__file__).parents[2] / "data" / "runs_of_version_0"


def open_dashboard(*folders: Path, **options: object) -> TestClient:
    return TestClient(make_app(RunIndex(folders), **options), base_url="http://127.0.0.1:8600", follow_redirects=False)


@pytest.fixture(scope="module")
def client():
    return open_dashboard(RUNS)


PATHS = ("/", "/run/finished", "/live/", "/run/nobody", "/nowhere", "/static/live.js", "/static/nothing.js")


@pytest.mark.parametrize("path", PATHS)
def test_every_response_has_the_security_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] in ("no-store", "no-cache")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", PATHS)
def test_only_get_and_head_are_allowed(client, method, path):
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8600", "127.0.0.1.evil.example", "10.0.0.7", "", "[::2]:80", "localhost.evil.example"],
)
def test_a_foreign_host_is_refused_whatever_the_method(client, method, host):
    assert client.request(method, "/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8600", "127.0.0.1", "localhost:9", "LOCALHOST", "[::1]:8600"])
def test_loopback_hosts_are_served(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


def test_an_address_that_is_too_long_is_refused(client):
    assert client.get("/?find=" + "x" * 5000).status_code == 414
    assert client.get("/?" + "&".join("a" * 80)).status_code == 414
    assert client.get("/" + "x" * 600).status_code == 414


def test_a_token_is_required_once_and_kept_in_a_cookie():
    client = open_dashboard(RUNS, token="secret", names={"box"})
    assert client.get("/").status_code == 401
    assert client.get("/run/finished").status_code == 401
    assert client.get("/static/live.js").status_code == 401
    assert client.get("/?token=secreT").status_code == 401
    assert client.get("/?token=").status_code == 401
    answer = client.get("/run/finished?smooth=9&token=secret")
    assert (answer.status_code, answer.headers["location"]) == (303, "/run/finished?smooth=9")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert client.get("/run/finished").status_code == 200
    assert client.get("/", headers={"host": "box:8600"}).status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421


def test_the_redirect_after_a_token_stays_on_this_host():
    client = open_dashboard(RUNS, token="secret")
    answer = client.get("http://127.0.0.1:8600//evil.example/?token=secret")
    assert answer.headers["location"].startswith("/evil.example")
