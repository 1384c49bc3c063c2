"""Questions put to a judge's endpoint: how often, how many at a time, and what its refusals mean."""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from cohort.base.http import FAILURES, Endpoint, Response, find_addresses, post
from cohort.base.text import make_printable
from cohort.rewards.entries import INFRASTRUCTURE
from cohort.rewards.learned.questions import NUMBER, NoVerdict, Question, VerdictForm

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
HOPELESS = 8
"""So many completions given up, and none answered: the endpoint is down, and the others are not tried in this call."""


@dataclass(frozen=True)
class JudgeReply:
    """What came of one completion."""

    score: float | None = None
    """From 0 to 1."""
    problem: str = ""
    word: str = INFRASTRUCTURE
    """The verdict in a word."""
    unreadable: bool = False
    """The judge answered, but not with a verdict."""
    attempts: int = 0
    answer: str = ""


class AttemptFailed(Exception):
    """An attempt failed. `again`: another may do better; `after_s`: not before so many seconds."""

    def __init__(self, problem: str, again: bool = True, after_s: float = 0.0) -> None:
        super().__init__(problem)
        self.again, self.after_s = again, after_s


@dataclass
class JudgeClient:
    """Asks one question at a time, again where that may help; what it learns of the server serves all questions."""

    endpoint: Endpoint
    request: Mapping[str, Any]
    """The fields that all requests have."""
    form: VerdictForm
    retries: int
    request_s: float
    wall_s: float
    requests: int = 0
    answered: int = 0
    given_up: int = 0
    last_problem: str = ""
    closed_until: float = 0.0
    """Before this time the server does not want to be asked by anyone."""
    chance: random.Random = field(default_factory=random.SystemRandom)
    """Of its own: the global generators belong to the run."""

    async def ask(self, question: Question) -> JudgeReply:
        if self.hopeless:
            problem = f"not asked: {self.given_up} completions had no answer, and no one had any. {self.last_problem}"
            return JudgeReply(problem=problem)
        deadline = time.monotonic() + self.wall_s
        attempts, reply = 0, JudgeReply(problem=self.last_problem or "the server asks everyone to wait")
        while attempts <= self.retries:
            pause = self.find_pause(attempts)
            if time.monotonic() + pause >= deadline:
                reply = replace(reply, problem=f"{reply.problem}; wall_s = {self.wall_s:g} s (timeout_s) is over")
                break
            await asyncio.sleep(pause)
            attempts += 1
            text, hint = "", ""
            try:
                text, hint = await self.try_question(question, deadline)
                self.answered += 1
                low, high = self.form.low, self.form.high
                score = (self.form.read_score(text, question.key) - low) / (high - low)
                return JudgeReply(score, word="scored", attempts=attempts, answer=text)
            except NoVerdict as problem:
                said = f"the judge's answer cannot be read: {problem}{hint}"
                twice, reply = reply.unreadable, JudgeReply(problem=said, unreadable=True, attempts=attempts, answer=text)
                if twice:  # at temperature 0 it says the same again
                    break
            except AttemptFailed as problem:
                reply = JudgeReply(problem=f"{self.judge_name}: {problem}", attempts=attempts)
                self.closed_until = max(self.closed_until, time.monotonic() + problem.after_s)
                if not problem.again or self.hopeless:
                    break
        self.given_up += not reply.unreadable
        self.last_problem = reply.problem
        return reply

    @property
    def judge_name(self) -> str:
        return f"judge at {self.endpoint.host}:{self.endpoint.port}"

    @property
    def hopeless(self) -> bool:
        return self.given_up >= HOPELESS and not self.answered

    def find_pause(self, attempts: int) -> float:
        """Twice as long each time, and never the same for all; never before the server is ready again."""
        backoff = min(FIRST_PAUSE_S * 2 ** (attempts - 1), LONGEST_PAUSE_S) * self.chance.uniform(0.5, 1.0) if attempts else 0.0
        return max(backoff, self.closed_until - time.monotonic())

    async def try_question(self, question: Question, deadline: float) -> tuple[str, str]:
        """(the judge's message, why it may hold no verdict); AttemptFailed where there is none."""
        self.requests += 1
        limit = min(self.request_s, deadline - time.monotonic())
        messages = [{"role": "user", "content": question.text}]
        request = {**self.request, "messages": messages, **self.form.write_response_format(question.key)}
        try:
            async with asyncio.timeout(limit):
                response = await post(self.endpoint, json.dumps(request).encode("utf-8", "replace"))
        except TimeoutError:
            raise AttemptFailed(f"no answer within {limit:.3g} s") from None
        except FAILURES as problem:
            raise AttemptFailed(self.endpoint.clean(f"{type(problem).__name__}: {problem}")) from None
        if response.status != 200:
            raise read_refusal(response, self.endpoint)
        text, cut_off = read_content(response)
        return self.endpoint.clean(text, None), " (it was cut off at max_tokens; raise that)" if cut_off else ""


async def ask_all(
    client: JudgeClient, questions: Mapping[int, Question], concurrency: int, take: Callable[[int, JudgeReply], None]
) -> None:
    """At most `concurrency` at a time, each reply handed on as it comes. A completion's time begins with its turn."""
    try:
        client.endpoint.addresses = find_addresses(client.endpoint, client.wall_s)
    except OSError as problem:
        for row in questions:
            take(row, JudgeReply(problem=f"{client.judge_name}: the host cannot be found ({problem})"))
        return
    todo = iter(questions.items())

    async def work() -> None:
        for row, question in todo:
            take(row, await client.ask(question))

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(questions)))))


def read_refusal(response: Response, endpoint: Endpoint) -> AttemptFailed:
    status = response.status
    after_s = read_retry_after(response.headers.get("retry-after", ""), time.time())
    if 300 <= status < 400:
        place = urlsplit(response.headers.get("location", ""))
        where = f" to the host {make_printable(place.hostname)!r}" if place.hostname else ""
        return AttemptFailed(
            f"status {status}, a redirect{where}, which is not followed; give the final address as endpoint", False
        )
    if status in (401, 403):  # some servers repeat the key in what they say
        return AttemptFailed(f"status {status}: the server does not accept the key (api_key_env), or there is none", False)
    said = endpoint.clean(read_error(response.body))
    again = status in (408, 409, 425, 429) or status >= 500
    return AttemptFailed(f"status {status}{f' ({said})' if said else ''}", again, after_s if again else 0.0)


def read_error(body: bytes) -> str:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", "") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def read_retry_after(value: str, now: float) -> float:
    """Seconds, or a date; 0 where it is neither."""
    value = value.strip()
    if NUMBER.fullmatch(value):
        return max(0.0, float(value))
    try:
        date = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    return max(0.0, date.timestamp() - now)


def read_content(response: Response) -> tuple[str, bool]:
    """(choices[0].message.content, whether it was cut off); anything else is not what an OpenAI-compatible server says."""
    try:
        choice = json.loads(response.body)["choices"][0]
        content = choice["message"]["content"]
        return content if isinstance(content, str) else "", choice.get("finish_reason") == "length"
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise AttemptFailed(
            "the response is not a chat completion in JSON; is endpoint the address of an OpenAI-compatible API?"
        ) from None
