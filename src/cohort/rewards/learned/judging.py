"""A language model as judge, behind an OpenAI-compatible endpoint.

    judge(completions, prompts, endpoint="http://localhost:8000/v1", model="a-judge", rubric="... {prompt} ... {completion}")

Two rules make it fit for training. **The completion never pays for the endpoint**: no connection, a refusal, a time-out,
nonsense from the server or an answer without a verdict leave the completion unscored, and are counted. And **what a
completion says is never a verdict**: it is fenced by a delimiter drawn anew for every completion, and the score is
read only from a verdict at the very end of the answer that carries a key drawn anew as well. A judge that quotes the completion,
or repeats the whole request, has said nothing. (A judge that is *talked into* a high score is beyond any parser: read
some of its answers, which are kept beside the rollouts.)

HTTP is spoken by cohort.base.http, over asyncio's streams: one connection per request, which ends when the request does. Next to the
seconds a judge thinks, a new connection costs nothing; in return nothing is shared between requests, a time limit closes the
socket and leaves no thread behind, redirects are not followed (they would carry the key elsewhere), and no byte is read beyond a
bound. A client library would do more than that, and be one more dependency. Proxies are not used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cohort.base.http import run_in_loop
from cohort.base.text import make_printable
from cohort.errors import RewardError
from cohort.rewards.learned.asking import JudgeClient, JudgeReply, ask_all
from cohort.rewards.learned.endpoint import read_endpoint
from cohort.rewards.learned.model import refuse_unknown
from cohort.rewards.learned.questions import Question, check_rubric, find_names, read_form
from cohort_verify.text import text_of

RUBRIC = """You grade an answer to a request.

Request:
{prompt}

Answer:
{completion}

Give a high score to an answer that is correct, complete and to the point, and a low one to an answer that is wrong."""

RESERVED_BODY = ("messages", "model", "n", "stream", "temperature", "max_tokens", "response_format")
LEAST = {
    "concurrency": 1, "retries": 0, "request_s": 0.001, "max_completion_chars": 1, "temperature": -1, "max_tokens": 0,
}  # fmt: skip
KEPT_CHARS = 2000
"""Of each answer, beside the rollouts."""


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
    """The judge's score of each completion, moved from `scale` to 0..1. None, and a fault of the verifier, without a verdict.

    endpoint        up to and without "/chat/completions".
    rubric          {prompt}, {completion} and every column by name, such as {answer}; {{word}} stands for {word} itself.
    marker          "": the verdict is a JSON object with the key of this completion and the score. Else, for judges with a
                    format of their own, the last line of the answer is this text and the score, as in "[RESULT] 4".
    response_format text, json_object or json_schema: what the server is asked to enforce.
    api_key_env     the NAME of the environment variable that holds the key; "": no key.
    temperature, max_tokens    left out of the request where negative, or 0; `body` adds further fields to it.
    retries         further attempts after one that failed, with growing pauses and as the server asks (Retry-After).
    request_s       seconds of one attempt; wall_s: of a completion, with all attempts and pauses.
    max_completion_chars    a longer completion scores 0 unread; so does an empty one.
    """
    refuse_unknown("judge", judge, columns, len(completions))
    check_texts(endpoint=endpoint, model=model, rubric=rubric, marker=marker)
    check_numbers(
        concurrency=concurrency,
        retries=retries,
        request_s=request_s,
        max_completion_chars=max_completion_chars,
        temperature=temperature,
        max_tokens=max_tokens,
    )
    columns = {name: column for name, column in columns.items() if isinstance(column, list | tuple)}
    check_rubric(rubric, columns)
    client = JudgeClient(
        read_endpoint(endpoint, api_key_env),
        read_request(model, temperature, max_tokens, body or {}),
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
            log_verdict(row, reply.word, reply.problem)

    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        text, values = text_of(completion), {name: column[row] for name, column in columns.items()}
        if unread := judge_unread(text, max_completion_chars, find_empty(rubric, values)):
            take_reply(row, unread)
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


def judge_unread(text: str, longest: int, empty: Sequence[str]) -> JudgeReply | None:
    """The verdict on a completion that the judge is not asked about; None where it is. `empty`: columns without a value."""
    if not text.strip():
        return JudgeReply(0.0, "the completion is empty", "no_answer")
    if len(text) > longest:
        return JudgeReply(0.0, f"{len(text)} characters, more than max_completion_chars = {longest}", "output")
    return JudgeReply(problem=f"rubric: the column {empty[0]!r} is empty in this row") if empty else None


def find_unusable_rows(rubric: str = RUBRIC, **columns: Any) -> list[str | None]:
    """Why a row can never be judged: a column that the rubric names is empty there."""
    columns = {name: column for name, column in columns.items() if isinstance(column, list)}
    check_rubric(rubric, columns)
    count = max(map(len, columns.values()), default=0)
    found = [find_empty(rubric, {name: column[row] for name, column in columns.items()}) for row in range(count)]
    return [f"the rubric needs the column {empty[0]!r}, which is empty" if empty else None for empty in found]


def find_empty(rubric: str, values: Mapping[str, Any]) -> list[str]:
    """The columns that the rubric names and a row has no value for."""
    return [name for name in find_names(rubric) if name in values and values[name] is None]


judge.supervised = True  # type: ignore[attr-defined]
judge.unusable = find_unusable_rows  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------------------
# Arguments
# ---------------------------------------------------------------------------------------------------------------------


def check_texts(**texts: Any) -> None:
    for name, text in texts.items():
        if not isinstance(text, str):
            raise RewardError(f"{name}: a text is expected. If it is a column of the rows, rename that, or set args.{name}.")


def check_numbers(**numbers: Any) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not number >= LEAST[name]:
            raise RewardError(f"{name}: {number!r} is not a number from {LEAST[name]} on.")


def read_request(model: str, temperature: float, max_tokens: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all requests have."""
    for name in body:
        if name in RESERVED_BODY:
            raise RewardError(f"body: {name!r} is an argument of its own, or cannot be set.")
    request = {"model": model, "stream": False, **body}
    if temperature >= 0:
        request["temperature"] = temperature
    if max_tokens > 0:
        request["max_tokens"] = max_tokens
    return request
