"""Episodes: the same rollouts whatever is decoded beside them, exact ids and masks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import turns_tools
from cohort.data.prompts import make_prompts
from cohort.engine import make_requests
from cohort.engine import scheduler as scheduling
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.environments.engine import EpisodeEngine
from cohort.environments.registry import Environments
from cohort.model.policy import Policy
from cohort.model.scratch import build_scratch
from cohort.recipe.schema import EnvironmentConfig, PromptsConfig, ScratchConfig
from cohort.types import Completion, NoiseKey, Prompt, Sampling

TRAIN = NoiseKey(5, "train", 3)
SCRATCH = ScratchConfig(
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    max_positions=512,
    characters=turns_tools.ALPHABET,
)


def make_policy() -> Policy:
    model, tokenizer = build_scratch(SCRATCH, [turns_tools.ALPHABET], 0)
    return Policy(model, tokenizer, 1.0)


def make_environments(source: str, **settings) -> Environments:
    return Environments(
        EnvironmentConfig(
            source=f"turns_tools:{source}", max_observation_tokens=64, workers=2, step_timeout_s=300.0, **settings
        )
    )


def encode(environments: Environments, policy: Policy, rows: list[dict]) -> list[Prompt]:
    seeded = environments.add_seeds(rows)
    prompts, _ = make_prompts(seeded, PromptsConfig(), policy.codec.encode, identify=environments.identify)
    environments.prepare(policy.codec, is_chat=False)
    return prompts


def sampling_of(policy: Policy, environments: Environments, **changes) -> Sampling:
    # Many stops: some turns end with their first token, which comes from the prompt and not from a step.
    stops = (policy.tokenizer.eos_token_id, *policy.tokenizer.convert_tokens_to_ids([*".,=0123"]))
    return Sampling(4, 1.0, 40, stops, max_reply_tokens=environments.config.max_reply_tokens, **changes)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy()


@pytest.fixture(scope="module")
def played(policy: Policy) -> Iterator[tuple]:
    environments = make_environments("Echo", max_turns=4)
    prompts = encode(environments, policy, [{"prompt": f"ab{number}?"} for number in range(8)])
    yield environments, prompts, sampling_of(policy, environments)
    environments.close()


def play(policy, environments, prompts, sampling, slots, kind=LocalEngine) -> list[Completion]:
    inner = kind(EngineSetup(policy.model, policy.codec.decode, slots))
    engine = EpisodeEngine(inner, environments, policy.codec)
    return engine.generate(make_requests(prompts, sampling.group_size), sampling, TRAIN)


def test_slots_parking_and_the_order_of_replies_change_no_bit(policy, played, monkeypatch):
    environments, prompts, sampling = played
    whole = play(policy, environments, prompts, sampling, 64)
    assert len({one.token_ids for one in whole}) > 20
    assert {len(one.episode.turns) for one in whole} >= {1, 2, 4}
    for slots in (1, 7):
        assert play(policy, environments, prompts, sampling, slots) == whole
    monkeypatch.setattr(scheduling, "READ_TOKENS", 0)  # every reply is read in a prefill
    assert play(policy, environments, prompts, sampling, 7) == whole
    monkeypatch.setattr(scheduling, "READ_TOKENS", 1000)  # every reply is read token by token
    monkeypatch.setattr(scheduling, "HOLD_S", 1e9)  # rows always keep their slot
    assert play(policy, environments, prompts, sampling, 7) == whole
    monkeypatch.setattr(scheduling, "HOLD_S", 0.0)  # rows never keep it while others wait
    assert play(policy, environments, prompts, sampling, 7) == whole
    slow = make_environments("SlowEcho", max_turns=4)
    found = play(policy, slow, encode(slow, policy, [{"prompt": f"ab{number}?"} for number in range(12)]), sampling, 7)
    slow.close()
    assert [one.episode.messages for one in found] != [one.episode.messages for one in whole]  # one draw more for each reply
