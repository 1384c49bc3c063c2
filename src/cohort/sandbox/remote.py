"""Programs run on another machine: the same three runs over HTTP. Expected values stay here; only values come back.

The other side is `python -m cohort.sandbox.serve`, or anything that speaks the same two lines: POST /run with
{"job", "program", ..., "limits"} gives the fields of the result, values in the tagged form of values.py. What goes wrong on
the way is "infrastructure", never a verdict on the program.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cohort.base.http import FAILURES, HEADER_WORD, Endpoint, post_and_wait
from cohort.sandbox.limits import ENDS, FLOOD_BYTES, Limits
from cohort.sandbox.values import NotPlain, rebuild, tagged

if TYPE_CHECKING:
    from cohort.sandbox.program import Call, CallsResult, ChecksResult, Reply, ScriptResult

TOKEN_VARIABLE = "COHORT_SANDBOX_TOKEN"
"""Sent as a bearer token where it is set. Never written anywhere."""
FILE_VARIABLE = "COHORT_SANDBOX_TOKEN_FILE"
"""A file that holds it, where the environment should not."""
PATIENCE_S = 600.0
"""For the network and the other side's queue, on top of the program's own limit. Waiting in line is no one's fault."""
MAX_BODY_BYTES = 2 * FLOOD_BYTES


def read_token() -> str:
    """The word that server and trainer share; empty where there is none."""
    place, token = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE, "")
    if not token and (place := os.environ.get(FILE_VARIABLE, "")):
        with open(place, encoding="utf-8") as file:
            token = file.read().strip()
        if not token:
            raise ValueError(f"{FILE_VARIABLE}: {place} is empty; it should hold the token")
    if not HEADER_WORD.fullmatch(token):
        raise ValueError(f"{place}: a token is one word of plain letters, digits and signs, without spaces")
    return token


def remote_calls(backend: str, program: str, calls: Sequence[Call], limits: Limits, packages: bool) -> CallsResult:
    from cohort.sandbox.program import CallsResult

    asked = [[call.function, tagged(list(call.args), 0), tagged(dict(call.kwargs), 0)] for call in calls]
    document, problem = ask(backend, {"job": "calls", "program": program, "calls": asked, "packages": packages}, limits)
    replies: list[Reply | None] = []
    try:
        for reply in document.get("replies") or []:
            replies.append(None if reply is None else sent_reply(reply))
    except (KeyError, TypeError) as unreadable:
        problem = f"a reply that makes no sense ({unreadable})"
    if not problem and len(replies) != len(calls):
        problem = f"{len(replies)} replies for {len(calls)} calls"
    return CallsResult(**fields_of(document, problem), replies=(None,) * len(calls) if problem else tuple(replies))


def sent_reply(reply: Mapping[str, Any]) -> Reply:
    """One reply as it was sent. A value that cannot be rebuilt is the program's doing here as it is without a network."""
    from cohort.sandbox.program import Reply

    try:
        return Reply(rebuild(reply["value"]), str(reply["raised"]), str(reply["detail"]), str(reply["base"]))
    except NotPlain as problem:
        return Reply(raised="NotPlain", detail=str(problem), base="Exception")


def remote_script(backend: str, program: str, stdin: str, limits: Limits, packages: bool) -> ScriptResult:
    from cohort.sandbox.program import ScriptResult

    document, problem = ask(backend, {"job": "script", "program": program, "stdin": stdin, "packages": packages}, limits)
    status = document.get("status")
    return ScriptResult(**fields_of(document, problem), status=status if isinstance(status, int) else None)


def remote_checks(
    backend: str, program: str, checks: Sequence[str], proxies: Sequence[str], setup: str, limits: Limits, packages: bool
) -> ChecksResult:
    from cohort.sandbox.program import CheckResult, ChecksResult

    asked = {"job": "checks", "program": program, "checks": list(checks), "proxies": list(proxies), "setup": setup}
    document, problem = ask(backend, {**asked, "packages": packages}, limits)
    results = [
        CheckResult(check.get("passed"), str(check.get("detail", "")))
        for check in document.get("checks") or []
        if isinstance(check, dict) and check.get("passed") in (True, False, None)
    ]
    if not problem and len(results) != len(checks):
        problem = f"{len(results)} results for {len(checks)} checks"
    return ChecksResult(
        **fields_of(document, problem), checks=(CheckResult(False, problem),) * len(checks) if problem else tuple(results)
    )


def ask(backend: str, document: Mapping[str, Any], limits: Limits) -> tuple[dict[str, Any], str]:
    """(the answer, what went wrong)."""
    try:
        server = Endpoint.parse(backend, "/run", key_word=TOKEN_VARIABLE)
    except ValueError as problem:
        raise ValueError(f"backend: {problem}") from None
    server.key, server.max_bytes = read_token(), MAX_BODY_BYTES
    try:
        body = json.dumps({**document, "limits": dataclasses.asdict(limits)}).encode()
        response = post_and_wait(server, body, 2 * limits.wall_s + PATIENCE_S)
        if response.status != 200:
            said = server.clean(response.body.decode(errors="replace"), 300)
            return {}, f"{server.host} answered {response.status}: {said}"
        answer = json.loads(response.body)
    except (*FAILURES, RecursionError) as problem:
        return {}, server.clean(f"{server.host} could not be asked: {type(problem).__name__}: {problem}", 300)
    return (answer, "") if isinstance(answer, dict) else ({}, f"{server.host} answered no object")


def fields_of(document: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """The fields of Run, whatever the other side has left out."""

    def text(name: str) -> str:
        return str(document.get(name, ""))

    def number(name: str) -> float:
        value = document.get(name, 0.0)
        return float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**53) else 0.0

    end = text("end")
    if not problem and end not in ENDS:
        problem = f"an end called {end[:50]!r}"
    return {
        "end": "infrastructure" if problem else end,
        "detail": problem or text("detail"),
        "stdout": text("stdout"),
        "stderr": text("stderr"),
        "truncated": bool(document.get("truncated")),
        "cpu_s": number("cpu_s"),
        "wall_s": number("wall_s"),
        "peak_mb": number("peak_mb"),
        "jail": text("jail") or "remote",
    }
