"""The command `cohort dashboard`: output, addresses and refusals."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from cohort.errors import RunError
from cohort.tools.dashboard.command import bind_port, check_address, check_folders, run_dashboard
from cohort.tools.dashboard.run_index import RunIndex


@contextmanager
def start(folder, *words):
    """The process, and the first line that it prints."""
    command = [sys.executable, "-m", "cohort", "dashboard", "--port", "0", *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_it_prints_its_address_serves_it_and_stops_on_ctrl_c(tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "metrics.jsonl").write_text('{"step": 1}\n')
    with start(tmp_path) as (process, line):
        found = re.fullmatch(r"1 run at (http://127\.0\.0\.1:\d+/) +\(Ctrl-C to stop\)\n", line)
        assert found, line
        with urllib.request.urlopen(found[1]) as answer:
            assert b"one" in answer.read()
            assert "uvicorn" not in str(answer.headers)
        process.send_signal(2)
        process.wait()


def test_a_public_address_needs_the_flag_and_the_printed_token(tmp_path):
    with start(tmp_path, "--host", "0.0.0.0", "--public") as (_, line):
        assert "0.0.0.0" not in line
        port, token = re.search(r"http://[^/:]+:(\d+)/\?token=([\w-]{40,}) ", line).groups()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"http://127.0.0.1:{port}/?token={token}") as answer:
            assert (answer.status, answer.url) == (200, f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_a_public_address_is_refused_without_the_flag(host):
    with pytest.raises(RunError, match="Add --public to allow this"):
        check_address(host, public=False)
    assert check_address(host, public=True) is False


def test_a_loopback_address_needs_no_flag():
    assert check_address("127.0.0.1", public=False)
    assert check_address("localhost", public=False)
    for host in ("no such host", ""):
        with pytest.raises(RunError, match="not an address of this machine"):
            check_address(host, public=False)
    with pytest.raises(RunError, match="Give an address that they can reach"):
        check_address("127.0.0.1", public=True)


def test_a_port_in_use_is_refused_with_another_one_to_try():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            RunError, match=f"--port {port}: already in use. Try another one: cohort dashboard --port {port + 1}"
        ):
            bind_port("127.0.0.1", port)


def test_missing_folders_are_refused_except_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [str(folder) for folder in check_folders([])] == ["runs"]
    with pytest.raises(RunError, match="nowhere is not a folder"):
        check_folders([tmp_path / "nowhere"])


def test_a_missing_extra_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(RunError, match=r"needs uvicorn, which is not installed: pip install 'cohort-rl\[dashboard\]'"):
        run_dashboard([], "127.0.0.1", 8600, False)


def test_a_run_that_has_just_begun_has_a_page_at_once(tmp_path):
    run_index = RunIndex([tmp_path])
    assert run_index.list_runs() == []
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "recipe.toml").write_text("name = 'new'\n", encoding="utf-8")
    assert run_index.find("new").title == "new"
