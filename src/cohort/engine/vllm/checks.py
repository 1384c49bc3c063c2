"""Checks of a server before it samples for a run: its version, its sequence length and its weights.

The weights are tested. Once they are pushed, the server completes a prompt of tokens from the whole vocabulary, greedily and at
each temperature, and the policy scores the result. Another model, vocabulary, kind of log-probs or precision, and outdated weights, all
show up as differences.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from cohort.base.keyed import keyed_permutation
from cohort.engine.sampling import find_mismatch_limit, sampling_mode
from cohort.engine.vllm.generation import GENERATE, BadReply, OtherWeights, ReplyReader, write_request
from cohort.engine.vllm.servers import TOKENS, Fleet, Server, ServerLost, ServerRefused
from cohort.errors import EngineError
from cohort.model.policy import Policy
from cohort.types import Completion, NoiseKey, Prompt, Request, Sampling

LEAST_VERSION = (0, 32)
ROUNDING = 100.0
"""Factor on the mismatch limit in float32, since another program computes the log-probs: 1e-3 instead of 1e-5. Measured: 5e-5 to 1e-4 on
a model of 47M with large logits, 6e-6 on small ones."""
PROBE_TOKENS = 12
OTHER_TEMPERATURE = 0.7
"""Tested besides the run's own: at temperature 1, raw and processed log-probs are the same."""
START = "start it with `cohort serve`"


def check_server(fleet: Fleet, server: Server, longest: int) -> None:
    """Raise EngineError if a server is too old, or its sequences are shorter than `longest` tokens (0: unknown)."""
    version = str(query(fleet, server, "/version").get("version", ""))
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})(?!\d)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST_VERSION:
        raise EngineError(
            f"{server.address} runs vLLM {version[:40]!r}, but 0.32 or newer is needed: older versions do not report which weights "
            "sampled a token."
        )
    models = query(fleet, server, "/v1/models").get("data") or [{}]
    if not isinstance(models, list) or not isinstance(models[0], dict):
        raise EngineError(f"{server.address}/v1/models: the response is not that of a vLLM server; {START}.")
    length = models[0].get("max_model_len")
    if isinstance(length, int) and longest > length:
        raise EngineError(
            f"{server.address} is limited to sequences of {length} tokens, but this run needs {longest}. Start it with --max-model-len "
            f"{longest} or more (`cohort serve` does), or lower sampling.max_completion_tokens."
        )
    if not TOKENS.search(fleet.read_metrics(server)):
        raise EngineError(
            f"{server.address}/metrics does not count tokens, so a stalled server could not be detected. Start it without "
            "--disable-log-stats."
        )


def query(fleet: Fleet, server: Server, path: str) -> Any:
    """The reply to a GET. Raises EngineError if the server refuses, and ServerLost for errors such as those of a dying server."""
    try:
        return call_one(fleet, server, path)
    except ServerRefused as problem:
        if problem.status >= 500:
            raise ServerLost(str(problem)) from None
        raise EngineError(f"a server cannot be checked: {problem}; {START}, without --api-key and VLLM_API_KEY.") from None


def call_one(fleet: Fleet, server: Server, path: str, body: Any = None) -> Any:
    """The reply of one server: a JSON object."""
    [reply] = fleet.call_all([server], path, body).values()
    if isinstance(reply, Exception):
        raise reply
    if not isinstance(reply, dict):
        raise ServerLost(f"{server.address}{path}: the response is not that of a vLLM server")
    return reply


def prove_server(fleet: Fleet, server: Server, policy: Policy, reader: ReplyReader, model: str, version: int) -> None:
    """Compare the log-probs of a server with the policy's own. Raises EngineError and ServerLost."""
    limit = find_mismatch_limit(policy.model, ROUNDING)
    prompt = make_probe(reader.vocabulary, policy.longest)
    for temperature in dict.fromkeys((0.0, policy.temperature, OTHER_TEMPERATURE)):
        sampling = Sampling(1, temperature, PROBE_TOKENS, ())
        request = Request(prompt, 0, 0)
        try:
            reply = call_one(fleet, server, GENERATE, write_request(request, sampling, NoiseKey(0, "preflight", 0), model))
            completion = reader.read(reply, request, PROBE_TOKENS, range(version, version + 1))
        except ServerRefused as problem:
            if problem.status >= 500:  # as from a dying server
                raise ServerLost(str(problem)) from None
            raise EngineError(f"a server cannot complete a prompt of the policy's vocabulary: {problem}; {START}") from None
        except (BadReply, OtherWeights) as problem:
            raise EngineError(f"{server.address}: unusable reply to a test prompt: {problem}; {START}") from None
        compare_probe(server, policy, prompt, completion, temperature, limit)


def make_probe(vocabulary: int, longest: int) -> Prompt:
    """A prompt with tokens from the whole vocabulary, including the last one."""
    length = max(1, min(24, vocabulary, (longest or 64) - PROBE_TOKENS))
    spread = [vocabulary * place // length for place in keyed_permutation(length, "probe")]
    return Prompt(0, "", {}, (*spread[:-1], vocabulary - 1))


@torch.no_grad()
def compare_probe(
    server: Server, policy: Policy, prompt: Prompt, completion: Completion, temperature: float, limit: float
) -> None:
    count = len(completion.token_ids)
    ids_1T = torch.tensor([[*prompt.token_ids, *completion.token_ids]], device=policy.device)
    with sampling_mode(policy.model):
        logits_TV = policy.model(input_ids=ids_1T, use_cache=False).logits[0, -count - 1 : -1].float().cpu()
    ids_T1 = torch.tensor(completion.token_ids)[:, None]
    theirs_T = torch.tensor(completion.sampling_logprobs)

    def measure(logits_TV: Tensor) -> float:
        return float((logits_TV.log_softmax(-1).gather(-1, ids_T1)[:, 0] - theirs_T).abs().max())

    difference = measure(logits_TV / (temperature or 1.0))
    behind = float((logits_TV.max(-1).values - logits_TV.gather(-1, ids_T1)[:, 0]).max())
    if difference <= limit and (temperature or behind <= limit):
        return
    if temperature not in (0.0, 1.0) and measure(logits_TV) <= limit:
        raise EngineError(
            f"{server.address} returns log-probs from before the temperature, but training needs those after it. Start it with "
            "--logprobs-mode processed_logprobs (`cohort serve` does)."
        )
    greedy = f", and the logits of its greedy tokens are up to {behind:.1e} below the largest" if not temperature else ""
    raise EngineError(
        f"{server.address} does not compute the trained policy: its log-probs on a test prompt at temperature {temperature:g} differ by up to "
        f"{difference:.1e} (limit {limit:.0e}){greedy}. It serves another model or another precision (--dtype), or did not load the "
        f"pushed weights; {START}."
    )
