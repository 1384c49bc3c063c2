"""Programs run on another machine: the same three runs over HTTP. Expected values stay here; only values come back.

The other side is `python -m cohort.sandbox.serve`, or anything that speaks the same two lines: POST /run with
{"job", "program", ..., "limits"} gives the fields of the result, values in the tagged form of values.py. What goes wrong on
the way is "infrastructure", never a verdict on the program.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cohort.base.http import FAILURES, HEADER_WORD, Endpoint, post_and_wait
from cohort.sandbox.limits import ENDS, FLOOD_BYTES, Limits
from cohort.sandbox.results import CallsResult, CheckResult, ChecksResult, Reply, Run, ScriptResult

R = TypeVar("R", bound=Run)

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


def run_remotely(kind: type[R], backend: str, limits: Limits, count: int = 0, **request: Any) -> R:
    """The result of a run over there. `count`: so many replies or checks must come back, or nothing is known of any."""
    document, problem = ask_server(backend, request, limits)
    empty: dict[type[Run], dict[str, Any]] = {CallsResult: {"replies": ()}, ChecksResult: {"checks": ()}}
    fields = empty.get(kind, {})
    try:
        if kind is CallsResult:
            fields["replies"] = tuple(None if one is None else Reply.read(**one) for one in document.get("replies") or [])
        elif kind is ChecksResult:
            fields["checks"] = tuple(read_check(**one) for one in document.get("checks") or [])
    except TypeError as unreadable:
        problem = f"a reply that makes no sense ({unreadable})"
    for name, items in fields.items():
        if not problem and len(items) != count:
            problem = f"{len(items)} {name} for the {count} that were asked for"
        if problem:
            fields[name] = (None if kind is CallsResult else CheckResult(False, problem),) * count
    if kind is ScriptResult and isinstance(document.get("status"), int):
        fields["status"] = document["status"]
    return kind(**read_fields(document, problem), **fields)


def read_check(passed: Any, detail: Any) -> CheckResult:
    if not isinstance(passed, bool | None):
        raise TypeError("a check that is neither right nor wrong")
    return CheckResult(passed, str(detail))


def ask_server(backend: str, document: Mapping[str, Any], limits: Limits) -> tuple[dict[str, Any], str]:
    """(the answer, what went wrong)."""
    try:
        server = Endpoint.parse(backend, "/run", key_word=TOKEN_VARIABLE, example="http://sandbox-host:8088")
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


def read_fields(document: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """The fields of Run, whatever the other side has left out."""
    readers: dict[str, Callable[[Any], Any]] = {"str": str, "bool": bool, "float": read_number}
    fields = {field.name: readers[str(field.type)](document.get(field.name, "")) for field in dataclasses.fields(Run)}
    if not problem and fields["end"] not in ENDS:
        problem = f"an end called {fields['end'][:50]!r}"
    if problem:
        fields |= {"end": "infrastructure", "detail": problem}
    return {**fields, "jail": fields["jail"] or "remote"}


def read_number(value: Any) -> float:
    return float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**53) else 0.0
