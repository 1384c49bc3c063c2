"""Programs run by another process over HTTP: the same results, and a server that nobody can hold up or make run wild."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, fields, replace

import pytest

from cohort.sandbox import Call, Limits, Reply, run_calls, run_checks, run_script, serve
from cohort.sandbox.remote import FILE_VARIABLE, TOKEN_VARIABLE
from cohort.sandbox.serve import CEILING, Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the jail is Linux's")


@pytest.fixture
def server():
    server = Server(("127.0.0.1", 0), runs=1)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def backend(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_a_remote_run_gives_what_a_local_one_gives(backend):
    program = "def f(x): return {'a': (x, 1.5)}\ndef g(): raise KeyError('k')"
    calls = [Call("f", ([1, 2],)), Call("g"), Call("none")]
    here, there = run_calls(program, calls), run_calls(program, calls, backend=backend)
    assert there.replies == here.replies
    assert (there.end, there.jail) == (here.end, here.jail)
    script = run_script("print(input())", "ab\n", backend=backend)
    assert (script.stdout, script.end, script.status) == ("ab\n", "finished", 0)
    checks = run_checks(program, ["assert f(1)['a'] == (1, 1.5)", "assert f(1) is None"], ["f"], backend=backend)
    assert [check.passed for check in checks.checks] == [True, False]
    assert run_calls("while True: pass", [Call("f")], Limits(cpu_s=0.2, wall_s=20), backend=backend).end == "cpu"


def test_a_remote_that_fails_says_nothing_about_the_program(backend, monkeypatch):
    assert run_calls("def f(): return 1", [Call("f")], backend="http://127.0.0.1:9").end == "infrastructure"
    monkeypatch.setattr("cohort.sandbox.serve.run_job", lambda document, ceiling: {"end": "finished", "replies": []})
    odd = run_calls("def f(): return 1", [Call("f")], backend=backend)
    assert (odd.end, odd.replies) == ("infrastructure", (None,))
    with pytest.raises(ValueError, match=r'backend: .*is not like "http://sandbox-host:8088"'):
        run_calls("def f(): return 1", [Call("f")], backend="ftp://x")


@pytest.mark.parametrize("said", [5, [5], ["word"], [{}], {"value": 1}])
def test_replies_that_make_no_sense_are_nobodys_verdict(said, backend, monkeypatch):
    monkeypatch.setattr(serve, "run_job", lambda document, ceiling: {"end": "finished", "replies": said, "checks": said})
    calls = run_calls("def f(): return 1", [Call("f")] * 2, backend=backend)
    assert (calls.end, calls.replies) == ("infrastructure", (None, None))
    checks = run_checks("def f(): return 1", ["assert f() == 1"], ["f"], backend=backend)
    assert (checks.end, [check.passed for check in checks.checks]) == ("infrastructure", [False])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 11\r\n\r\nword-secret", "answered 302: [key]"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}", "the response is larger than"),
        ("HTTP/1.1 200 OK\r\n\r\n[]", "answered no object"),
        ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n{}", "compressed, which was not asked for"),
        ("word-secret\r\n", "is not HTTP"),
    ],
)
def test_the_client_follows_no_redirect_reads_no_flood_and_repeats_no_token(answer, words, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "word-secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def act():
            connection = listening.accept()[0]
            connection.recv(100_000)
            connection.sendall(answer.encode())
            connection.close()

        threading.Thread(target=act, daemon=True).start()
        result = run_script("print(1)", "", backend=f"http://127.0.0.1:{listening.getsockname()[1]}")
    assert (result.end, words in result.detail, "secret" in result.detail) == ("infrastructure", True, False), result.detail


def post(server, body="{}", **headers):
    """(status, text) of a request with these lines in its head."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request("POST", "/run", body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def begin(server, body, size):
    """A connection on which a request of that size was announced and this much of it sent."""
    connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
    connection.sendall(f"POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n{body}".encode())
    return connection


def test_every_limit_that_a_client_can_name_has_a_ceiling(server, monkeypatch):
    monkeypatch.setattr(serve, "run_script", lambda *_, **__: pytest.fail("it was run"))
    names = [field.name for field in fields(Limits)]
    assert {"files_mb", "output_kb", "threads"} < set(names)
    for field, asked in [(name, most) for name in names for most in (getattr(CEILING, name) + 1, 1e300)]:
        limits = asdict(replace(Limits(), **{field: asked}))
        status, text = post(server, json.dumps({"job": "script", "program": "1", "stdin": "", "limits": limits}))
        assert (status, f"limits.{field}: at most {getattr(CEILING, field):g} here" in text) == (400, True)


def test_what_a_reward_asks_for_is_below_the_ceiling(backend):
    """The defaults, and the longest output that a test may expect."""
    assert run_script("print(1)", "", replace(Limits(), output_kb=4_000_000 * 4 // 1024 + 1), backend=backend).end == "finished"


def test_a_server_with_a_token_answers_only_who_has_it(monkeypatch, tmp_path):
    monkeypatch.setenv(TOKEN_VARIABLE, "right")
    server = Server(("127.0.0.1", 0), runs=1)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    backend = f"http://127.0.0.1:{server.server_port}"
    try:
        assert run_script("print(1)", "", backend=backend).end == "finished"
        monkeypatch.delenv(TOKEN_VARIABLE)
        (tmp_path / "token").write_text("right\n")
        monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "token"))
        assert run_script("print(1)", "", backend=backend).end == "finished"
        (tmp_path / "token").write_text("wrong\n")
        refused = run_script("print(1)", "", backend=backend)
        assert (refused.end, "401" in refused.detail, "right" in refused.detail) == ("infrastructure", True, False)
        for given in ("", "right", "Bearer", "Bearer righ", "Bearer rightt", "bearer right", "Basic right"):
            assert post(server, Authorization=given)[0] == 401
        assert post(server, Authorization="Bearer right")[0] == 400
        (tmp_path / "token").write_text(" \n")
        with pytest.raises(ValueError, match="token is empty; it should hold the token"):
            run_script("print(1)", "", backend=backend)
    finally:
        server.shutdown()
        server.server_close()


def test_another_address_than_this_machines_needs_a_token(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(serve.ThreadingHTTPServer, "__init__", lambda *_: pytest.fail("it listens"))
    for host in ("0.0.0.0", "", "::", "192.0.2.1", "0"):
        with pytest.raises(ValueError, match=f"--host .*a token is needed. Set {TOKEN_VARIABLE}"):
            Server((host, 0))
    command = [sys.executable, "-m", "cohort.sandbox.serve", "--host", "0.0.0.0", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, TOKEN_VARIABLE: ""}, timeout=60)
    assert (ended.returncode, "a token is needed" in ended.stderr, "Traceback" in ended.stderr) == (2, True, False)


def test_a_web_page_cannot_reach_it_under_another_name(server):
    for host in ("evil.example", "evil.example:8088", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "127.0.0.2"):
        status, text = post(server, Host=host)
        assert (status, "is no name of this server" in text) == (421, True), host
    assert post(server, Host="evil.example")[1].count("--name evil.example") == 1
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", f"127.0.0.1:{server.server_port}", "[::1]:80"):
        assert post(server, Host=host)[0] == 400, host
    server.names.add("sandbox.example")
    assert post(server, Host="sandbox.example:8088")[0] == 400
    assert post(server, Origin="http://evil.example")[0] == 403


def test_a_body_is_read_in_a_slot_and_within_a_limit(server, monkeypatch, capfd):
    server.slots.acquire()
    waiting = begin(server, "{]", 2)
    assert post(server, Host="evil.example")[0] == 421  # others are heard meanwhile
    assert not select.select([waiting], [], [], 0.2)[0]
    server.slots.release()
    assert b" 400 " in waiting.recv(1000)
    waiting.close()
    for size in ("0", "-1", "+5", "1e3", str(2**40), "9" * 5000, "\u0664"):
        assert post(server, **{"Content-Length": size} if size.isascii() else {})[0] in (400, 413)
    monkeypatch.setattr(serve, "BODY_LIMIT_S", 0.2)
    slow = begin(server, "{", 1000)
    limits = asdict(Limits())
    assert post(server, json.dumps({"job": "script", "program": "print(1)", "stdin": "", "limits": limits}))[0] == 200
    assert slow.recv(1000) == b""
    slow.close()
    monkeypatch.setattr(serve, "BODY_LIMIT_S", 60.0)
    begin(server, "{", 1000).close()  # hangs up half-way
    begun = threading.Event()
    monkeypatch.setattr(serve, "run_job", lambda *_: begun.wait(60) and {"stdout": "x" * 10_000_000})
    begin(server, "{}", 2).close()  # hangs up before the answer
    begun.set()
    assert post(server)[0] == 200
    assert capfd.readouterr().err == ""


def test_an_answer_too_large_to_be_sent_is_the_programs_doing(server, backend, monkeypatch):
    monkeypatch.setattr(serve, "MAX_BODY_BYTES", 2000)
    result = run_calls("def f(): return 'x' * 3000", [Call("f"), Call("f")], backend=backend)
    assert (result.end, result.replies) == ("output", (None, None))
    checks = run_checks("def f(): raise ValueError('x' * 3000)", ["assert f()"] * 3, ["f"], backend=backend)
    assert (checks.end, [check.passed for check in checks.checks]) == ("output", [False] * 3)
    assert Reply.read(["s", ["l"]]).raised == "NotPlain"


def job(**fields):
    """A script that prints 1, as a request, with these fields changed."""
    return {"job": "script", "program": "print(1)", "stdin": "", "packages": False, "limits": asdict(Limits()), **fields}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        *[
            (job(limits={"cpu_s": value}), "cpu_s must be a number above 0")
            for value in (True, False, None, "5", float("nan"), 10**400)
        ],
        *[(job(limits={"threads": value}), "threads must be a whole number above 0") for value in (True, 0.5, -1, 10**400)],
        *[(job(limits={name: 0.5}), f"{name} must be a whole number") for name in ("memory_mb", "output_kb", "files_mb")],
        (job(limits={"disk_mb": 5}), "limits: disk_mb is no limit"),
        (job(limits=None), "limits: dict is expected, got NoneType"),
        (job(program=5), "program: str is expected, got int"),
        (job(program=None), "program: str is expected, got NoneType"),
        (job(stdin=["1"]), "stdin: str is expected, got list"),
        (job(packages="no"), "packages: bool is expected, got str"),
        (job(threads=4), "threads: no field of the job 'script'"),
        ({"job": "script"}, "program: missing; limits: missing; stdin: missing"),
        (job(job=["script"]), "job: calls, script, checks are the jobs here"),
        ({"job": "calls", "program": "", "limits": {}, "calls": [["f"]]}, "calls: lists of a name"),
        ({"job": "checks", "program": "", "limits": {}, "checks": [1], "proxies": [], "setup": ""}, "texts are expected"),
        ([job()], "a JSON object, got list"),
    ],
)
def test_a_request_that_is_not_exactly_a_job_is_refused_in_words(body, words, monkeypatch):
    for name in ("run_script", "run_calls", "run_checks"):
        monkeypatch.setattr(serve, name, lambda *_, **__: pytest.fail("it was run"))
    with pytest.raises(ValueError, match=re.escape(words)):
        serve.run_job(json.loads(json.dumps(body)))


def test_a_whole_number_written_as_a_float_is_one():
    assert Limits(memory_mb=256.0, output_kb=64.0) == Limits(memory_mb=256, output_kb=64)  # type: ignore[arg-type]
    assert type(Limits(output_kb=64.0).output_kb) is int  # type: ignore[arg-type]


def test_a_head_with_two_meanings_is_refused(server):
    body = json.dumps(job())
    for lines, status in (
        (f"Content-Length: {len(body)}\r\nContent-Length: 5", b" 400 "),
        (f"Content-Length: {len(body)}\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b", b" 400 "),
        (f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked", b" 411 "),
        ("Transfer-Encoding: chunked", b" 411 "),
    ):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
            connection.sendall(f"POST /run HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n{body}".encode())
            assert status in connection.recv(1000), lines
    for host in ("evil@localhost", "localhost/evil", "localhost#evil"):
        assert post(server, body, Host=host)[0] == 421, host


def test_clients_that_stall_or_have_hung_up_keep_no_slot(server, monkeypatch):
    stalled = [begin(server, "{", 1000) for _ in range(3)]  # and there is one slot
    assert post(server, json.dumps(job()))[0] == 200
    for connection in stalled:
        connection.close()
    asked = []
    monkeypatch.setattr(serve, "run_job", lambda document, _: asked.append(document) or {})
    server.slots.acquire()
    begin(server, '["gone"]', 8).close()
    time.sleep(0.1)
    server.slots.release()
    assert (post(server, '["here"]')[0], asked) == (200, [["here"]])


def test_the_command_line_says_what_is_wrong_and_ends_without_a_traceback(capsys):
    for words, said in ((["--port", "99999"], "--port: a number from 0"), (["--runs", "-1"], "--runs: 1 or more")):
        with pytest.raises(SystemExit) as ended:
            serve.main(words)
        assert (ended.value.code, said in capsys.readouterr().err) == (2, True)
    process = subprocess.Popen(
        [sys.executable, "-m", "cohort.sandbox.serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "jail: http" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 130)
