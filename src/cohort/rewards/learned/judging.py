"""A language model as judge, behind an OpenAI-compatible endpoint.

    judge(completions, prompts, endpoint="http://localhost:8000/v1", model="a-judge", rubric="... {prompt} ... {completion}")

Two rules make it fit for training. **Endpoint failures never cost a completion its score**: after a failed connection, a refusal, a
time-out, a malformed response or an answer without a verdict the completion is unscored, and counted. **Text of a completion is never a
verdict**: the completion is fenced by a random delimiter, and the score is read only from a verdict at the very end of the answer
that contains a random key. A judge that quotes the completion, or repeats the whole request, gives no verdict. (No parser detects a
judge that was *persuaded* to give a high score: read some of its answers, which are saved with the rollouts.)

cohort.base.http sends the requests over asyncio's streams, each on its own connection. A new connection costs nothing compared with the
seconds of a judge's answer; requests share no state, a time limit closes the socket and leaves no thread behind, redirects are not
followed (they could leak the key), and responses are read up to a limit. A client library would add a dependency. Proxies are not used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cohort.base.http import run_in_loop
from cohort.base.text import make_printable
from cohort.errors import RewardError
from cohort.rewards.learned.judge_client import (
    JudgeClient,
    JudgeReply,
    Question,
    ask_all,
    check_rubric,
    find_names,
    read_endpoint,
    read_form,
)
from cohort.rewards.learned.model import refuse_unknown
from cohort_verify.text import text_of

RUBRIC = """You grade an answer to a request.

Request:
{prompt}

Answer:
{completion}

Give a high score to an answer that is correct, complete and to the point, and a low one to an answer that is wrong."""

RESERVED_BODY = ("messages", "model", "n", "stream", "temperature", "max_tokens", "response_format")
KEPT_CHARS = 2000
"""Length of each answer that is saved with the rollouts."""


def judge(
    completions: Sequence[Any],
    prompts: Sequence[Any],
    endpoint: str,
    model: str,
    rubric: str = RUBRIC,
    scale: Sequence[float] = (0.0, 10.0),
    marker: str = "",
    response_format: str = "text",
    api_key_env: str = "",
    temperature: float = 0.0,
    max_tokens: int = 1024,
    body: Mapping[str, Any] | None = None,
    concurrency: int = 16,
    retries: int = 4,
    request_s: float = 60.0,
    max_completion_chars: int = 50_000,
    wall_s: float = 10.0,
    log_metric: Callable[[str, float], None] | None = None,
    log_verdict: Callable[..., None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """The judge's score of each completion, scaled from `scale` to 0..1. None, and a fault, for an answer without a verdict.

    endpoint        the URL without "/chat/completions".
    rubric          may contain {prompt}, {completion} and every column by name, such as {answer}; {{name}} stands for {name} itself.
    marker          "": the verdict is a JSON object with the key of this completion and the score. Otherwise, for judges with
                    their own format, the last line of the answer is this text and the score, as in "[RESULT] 4".
    response_format text, json_object or json_schema: the format that the server enforces.
    api_key_env     the NAME of the environment variable that contains the key; "": no key.
    temperature, max_tokens    omitted from the request if negative or 0, respectively; `body` adds further fields.
    retries         further attempts after a failed one, with exponential backoff and the server's Retry-After.
    request_s       seconds per attempt; wall_s: per completion, with all attempts and pauses.
    max_completion_chars    a longer completion scores 0 without being judged; so does an empty one.
    """
    refuse_unknown("judge", judge, columns, len(completions))
    for name, text in (("endpoint", endpoint), ("model", model), ("rubric", rubric), ("marker", marker)):
        if not isinstance(text, str):
            raise RewardError(f"{name}: expected a text. If it is a column of the rows, rename that, or set args.{name}.")
    for name, number, least in (
        ("concurrency", concurrency, 1),
        ("retries", retries, 0),
        ("request_s", request_s, 0.001),
        ("max_completion_chars", max_completion_chars, 1),
        ("temperature", temperature, -1),
        ("max_tokens", max_tokens, 0),
    ):
        if not isinstance(number, int | float) or not number >= least:
            raise RewardError(f"{name}: expected a number from {least} up, got {number!r}.")
    columns = {name: column for name, column in columns.items() if isinstance(column, list | tuple)}
    check_rubric(rubric, columns)
    client = JudgeClient(
        read_endpoint(endpoint, api_key_env),
        make_request(model, temperature, max_tokens, body or {}),
        read_form(scale, marker, response_format),
        retries,
        request_s,
        wall_s,
    )
    replies: dict[int, JudgeReply] = {}
    questions: dict[int, Question] = {}

    def take_reply(row: int, reply: JudgeReply) -> None:
        replies[row] = reply
        if log_verdict is not None:
            log_verdict(row, reply.verdict, reply.problem)

    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        text, values = text_of(completion), {name: column[row] for name, column in columns.items()}
        if not text.strip():
            take_reply(row, JudgeReply(0.0, "the completion is empty", "no_answer"))
        elif len(text) > max_completion_chars:
            problem = f"{len(text)} characters, more than max_completion_chars = {max_completion_chars}"
            take_reply(row, JudgeReply(0.0, problem, "output"))
        elif empty := find_empty(rubric, values):
            take_reply(row, JudgeReply(problem=f"rubric: the column {empty[0]!r} is empty in this row"))
        else:
            questions[row] = Question.write(rubric, prompt, text, values, client.form)
    if questions:
        turns = math.ceil(len(questions) / concurrency)
        run_in_loop(functools.partial(ask_all, client, questions, concurrency, take_reply), (turns + 1) * wall_s + 60)
    if log_metric is not None:
        asked = [replies[row] for row in questions]
        log_metric("unreadable", float(sum(reply.unreadable for reply in asked)))
        log_metric("unreachable", float(sum(reply.score is None and not reply.unreadable for reply in asked)))
        log_metric("requests", float(client.requests))
        log_metric("attempts_repeated", float(sum(max(reply.attempts - 1, 0) for reply in asked)))
        log_metric("lookalikes", float(sum(question.lookalikes for question in questions.values())))
    ordered = [replies[row] for row in range(len(completions))]
    if log_extra is not None:
        log_extra("judge_answer", [make_printable(reply.answer[-KEPT_CHARS:]) for reply in ordered])
    return [reply.score for reply in ordered]


def find_unusable_rows(rubric: str = RUBRIC, **columns: Any) -> list[str | None]:
    """By row: why it can never be judged, or None. A column that the rubric names is empty."""
    columns = {name: column for name, column in columns.items() if isinstance(column, list)}
    check_rubric(rubric, columns)
    count = max(map(len, columns.values()), default=0)
    found = [find_empty(rubric, {name: column[row] for name, column in columns.items()}) for row in range(count)]
    return [f"the rubric needs the column {empty[0]!r}, which is empty" if empty else None for empty in found]


def find_empty(rubric: str, values: Mapping[str, Any]) -> list[str]:
    """The columns that the rubric names and that are empty in a row."""
    return [name for name in find_names(rubric) if name in values and values[name] is None]


judge.supervised = True  # type: ignore[attr-defined]
judge.unusable = find_unusable_rows  # type: ignore[attr-defined]


def make_request(model: str, temperature: float, max_tokens: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all requests have in common."""
    for name in body:
        if name in RESERVED_BODY:
            raise RewardError(f"body: {name!r} has its own argument, or cannot be set.")
    request = {"model": model, "stream": False, **body}
    if temperature >= 0:
        request["temperature"] = temperature
    if max_tokens > 0:
        request["max_tokens"] = max_tokens
    return request
