"""What a server must be before it samples for a run: new enough, long enough, and the very policy that is trained.

The last is tried, not asked for: a server that has been given the weights completes a prompt of tokens from the whole vocabulary,
once greedily and once at each temperature, and the policy scores what came. Another model, another vocabulary, log-probs of another
kind, another precision or old weights all show in that.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from cohort.base.keyed import keyed_permutation
from cohort.engine.sampling import find_mismatch_limit, sampling_mode
from cohort.engine.vllm.generation import GENERATE, AnswerReader, BadAnswer, OtherWeights, write_request
from cohort.engine.vllm.servers import TOKENS, Fleet, Server, ServerLost, ServerRefused
from cohort.errors import EngineError
from cohort.model.policy import Policy
from cohort.types import Completion, NoiseKey, Prompt, Request, Sampling

LEAST_VERSION = (0, 32)
ROUNDING = 100.0
"""How much further than our own engines another program's log-probs may be off in float32: 1e-3 in place of 1e-5. 5e-5 to 1e-4 were
seen on a model of 47 M with large logits, 6e-6 on small ones."""
PROBE_TOKENS = 12
OTHER_TEMPERATURE = 0.7
"""Beside the run's own: at 1 raw and processed log-probs are the same."""
START = "start it with `cohort serve`"


def check_server(fleet: Fleet, server: Server, longest: int) -> None:
    """Refuse a server that is too old for what is asked of it, or too short for this run's sequences. longest: 0 where not known."""
    version = str(ask_plainly(fleet, server, "/version").get("version", ""))
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})(?!\d)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST_VERSION:
        raise EngineError(
            f"{server.address} is vLLM {version[:40]!r}; 0.32 or newer is needed, for earlier ones do not say which weights sampled a token."
        )
    models = ask_plainly(fleet, server, "/v1/models").get("data") or [{}]
    if not isinstance(models, list) or not isinstance(models[0], dict):
        raise EngineError(f"{server.address}/v1/models: the answer is not what vLLM says there; {START}.")
    length = models[0].get("max_model_len")
    if isinstance(length, int) and longest > length:
        raise EngineError(
            f"{server.address} takes sequences of {length} tokens, and this run has some of {longest}. Start it with --max-model-len {longest} or more "
            "(`cohort serve` does), or lower sampling.max_completion_tokens."
        )
    if not TOKENS.search(fleet.read_metrics(server)):
        raise EngineError(
            f"{server.address}/metrics counts no tokens, so whether it still samples could not be told. Start it without --disable-log-stats."
        )


def ask_plainly(fleet: Fleet, server: Server, path: str) -> Any:
    """What every vLLM says of itself; EngineError where it will not, ServerLost where it cannot, as one that dies."""
    try:
        return ask(fleet, server, path)
    except ServerRefused as problem:
        if problem.status >= 500:
            raise ServerLost(str(problem)) from None
        raise EngineError(
            f"a server does not say what it is: {problem}; {START}, without --api-key and VLLM_API_KEY."
        ) from None


def ask(fleet: Fleet, server: Server, path: str, body: Any = None) -> Any:
    """One answer of one server: JSON with fields."""
    [said] = fleet.call_all([server], path, body).values()
    if isinstance(said, Exception):
        raise said
    if not isinstance(said, dict):
        raise ServerLost(f"{server.address}{path}: the answer is not what vLLM says there")
    return said


def prove_server(fleet: Fleet, server: Server, policy: Policy, reader: AnswerReader, model: str, version: int) -> None:
    """Compare what a server samples with the policy's own log-probs. Raises EngineError, and ServerLost."""
    limit = find_mismatch_limit(policy.model, ROUNDING)
    prompt = make_probe(reader.vocabulary, policy.longest)
    for temperature in dict.fromkeys((0.0, policy.temperature, OTHER_TEMPERATURE)):
        sampling = Sampling(1, temperature, PROBE_TOKENS, ())
        request = Request(prompt, 0, 0)
        try:
            answer = ask(fleet, server, GENERATE, write_request(request, sampling, NoiseKey(0, "preflight", 0), model))
            completion = reader.read(answer, request, PROBE_TOKENS, range(version, version + 1))
        except ServerRefused as problem:
            if problem.status >= 500:  # as one answers that dies
                raise ServerLost(str(problem)) from None
            raise EngineError(f"a server does not complete a prompt of the policy's vocabulary: {problem}; {START}") from None
        except (BadAnswer, OtherWeights) as problem:
            raise EngineError(f"{server.address}: its answer to a probe cannot be used: {problem}; {START}") from None
        compare_probe(server, policy, prompt, completion, temperature, limit)


def make_probe(vocabulary: int, longest: int) -> Prompt:
    """Tokens from the whole vocabulary, the last one included."""
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

    off = measure(logits_TV / (temperature or 1.0))
    behind = float((logits_TV.max(-1).values - logits_TV.gather(-1, ids_T1)[:, 0]).max())
    if off <= limit and (temperature or behind <= limit):
        return
    if temperature not in (0.0, 1.0) and measure(logits_TV) <= limit:
        raise EngineError(
            f"{server.address} gives log-probs as they are before the temperature, and training needs those after it. Start it with "
            "--logprobs-mode processed_logprobs (`cohort serve` does)."
        )
    raise EngineError(
        f"{server.address} is not the policy that is trained: on a probe at temperature {temperature:g} its log-probs are up to {off:.1e} off, the "
        f"limit is {limit:.0e}{f', and its greedy tokens are up to {behind:.1e} behind' if not temperature else ''}. It serves another model, "
        f"another precision (--dtype), or has not taken over the weights; {START}."
    )
