"""What a server is asked for, and what its answer must hold: nothing that a server says is believed unread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.base.keyed import keyed_hash
from cohort.base.text import make_printable
from cohort.types import Completion, End, NoiseKey, Request, Sampling

GENERATE = "/inference/v1/generate"
BYTES_PER_TOKEN = 512
"""Of an answer: a token is its id, its log-prob and what surrounds them, some hundred bytes."""
ROUNDED_UP = 1e-3
"""How far above 0 a log-prob may be rounded."""


class BadAnswer(Exception):
    """An answer that no server of this run gives."""


class OtherWeights(Exception):
    """An answer sampled by weights that this run has not pushed. `foreign`: another trainer has."""

    def __init__(self, said: str, foreign: bool) -> None:
        super().__init__(said)
        self.foreign = foreign


def write_label(token: str, version: int) -> str:
    """The name of pushed weights on a server: whose they are, and of which version."""
    return f"{token}.{version}"


def is_foreign(token: str, own: str) -> bool:
    """Whether this is the token of another trainer; a label that vLLM itself gives has none."""
    return token.partition("-")[0] not in ("", own.partition("-")[0])


def find_seed(noise: NoiseKey, request: Request) -> int:
    """One for each completion: the same on any server, and another where a completion goes on behind a prefix."""
    began = request.position + len(request.prefix_ids)
    return keyed_hash("vllm", noise.seed, noise.stream, noise.step, request.draw, request.sample, began) >> 8


def write_request(request: Request, sampling: Sampling, noise: NoiseKey, model: str) -> dict[str, Any]:
    """Every parameter that would else be filled in from the model's generation_config is stated."""
    sampling = sampling.for_sample(request.sample)
    parameters = {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": find_seed(noise, request),
        "max_tokens": sampling.max_completion_tokens - len(request.prefix_ids),
        "min_tokens": 0,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }
    body: dict[str, Any] = {"token_ids": list(request.context_ids), "sampling_params": parameters}
    return {**body, "model": model} if model else body


@dataclass(frozen=True)
class AnswerReader:
    """Reads answers of one call of `generate`."""

    token: str
    """Of the labels of this run's weights."""
    vocabulary: int
    stop_ids: Sequence[int]
    decode: Callable[[Sequence[int]], str]

    def read(self, answer: Any, request: Request, most_tokens: int, versions: range) -> Completion:
        """What was sampled behind the request's prefix, by which versions. Raises BadAnswer and OtherWeights."""
        try:
            [choice] = answer["choices"]
            ids = tuple(choice["token_ids"])
            entries, spans = choice["logprobs"]["content"], choice["weight_versions"]
            logprobs = tuple(float(entry["logprob"]) for entry in entries)
            named = [entry["token_id"] for entry in entries]
            reason = choice["finish_reason"]
            spans = [(str(span["version"]), span["start"], span["end"]) for span in spans]
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise BadAnswer("it is not a completion with log-probs and weight versions") from None
        if reason == "abort":
            raise BadAnswer("somebody aborted it")
        if not ids or len(ids) > most_tokens or not all(type(id) is int and 0 <= id < self.vocabulary for id in ids):
            raise BadAnswer(f"its {len(ids)} token ids are not 1 to {most_tokens} of a vocabulary of {self.vocabulary}")
        if named != list(ids) or not all(math.isfinite(value) and value <= ROUNDED_UP for value in logprobs):
            raise BadAnswer("its log-probs are not one finite number for each token")
        if any(id in self.stop_ids for id in ids[:-1]):
            raise BadAnswer("it goes on behind a stop token")
        end: End = "stop" if ids[-1] in self.stop_ids else "length"
        if end == "length" and len(ids) != most_tokens:
            raise BadAnswer(f"it ends after {len(ids)} tokens, without a stop token and short of {most_tokens}")
        spanned = self.read_spans(spans, len(ids), versions)
        return Completion(ids, logprobs, end, self.decode([*request.prefix_ids, *ids]), None, spanned)

    def read_spans(self, spans: Sequence[tuple[str, Any, Any]], count: int, versions: range) -> tuple[tuple[int, int], ...]:
        """(version, tokens) of each span; all of them by weights that this run pushed, and none older than when it was asked."""
        starts, edges = [start for _, start, _ in spans], [0, *(end for _, _, end in spans)]
        numbers = all(type(edge) is int for edge in (*starts, *edges))
        if not numbers or starts != edges[:-1] or edges[-1] != count or edges != sorted(set(edges)):
            raise BadAnswer(f"its spans of weight versions do not cover its {count} tokens")
        found: list[tuple[int, int]] = []
        for label, start, end in spans:
            token, _, version = label.rpartition(".")
            if token != self.token or not version.isdecimal() or len(version) > 18:
                raise OtherWeights(
                    f"it samples with weights labelled {make_printable(label[:60])!r}", is_foreign(token, self.token)
                )
            if int(version) not in versions:
                raise BadAnswer(f"version {version} sampled it, and it was asked of {versions.start} to {versions.stop - 1}")
            if found and int(version) < found[-1][0]:
                raise BadAnswer(f"version {version} sampled it after version {found[-1][0]}")
            found.append((int(version), end - start))
        return tuple(found)
