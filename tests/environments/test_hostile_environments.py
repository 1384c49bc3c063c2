"""Hostile episodes: none hangs, none is trained on wrongly, and the counts are exact."""

from __future__ import annotations

from collections import Counter

import pytest
from test_episode_engine import encode, make_policy, sampling_of

from cohort.engine import make_requests
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.environments.engine import EpisodeEngine
from cohort.environments.registry import Environments
from cohort.recipe.schema import EnvironmentConfig
from cohort.types import NoiseKey

QUICK = ("raise", "exit", "large", "control", "markers", "nan", "fine")
TAKEN_ALONG = ("another episode of its worker", "the worker process ended", "the worker process was ended")


@pytest.mark.parametrize(
    ("rows", "killers"),
    [(14, 0), (28, 3), pytest.param(250, 0, marks=pytest.mark.prove), pytest.param(250, 12, marks=pytest.mark.prove)],
)
def test_hostile_episodes(rows, killers):
    """killers: rows that hang or end their worker, which takes its other episodes along."""
    policy = make_policy()
    environments = Environments(
        EnvironmentConfig(
            source="turns_tools:Hostile",
            max_turns=2,
            max_observation_tokens=64,
            workers=4,
            step_timeout_s=3.0,
            episode_timeout_s=900.0,
        )
    )
    kinds = [QUICK[number % len(QUICK)] for number in range(rows - killers)]
    kinds += ["hang" if number == 0 else "die" for number in range(killers)]
    prompts = encode(environments, policy, [{"prompt": f"ab{number % 7}?", "how": how} for number, how in enumerate(kinds)])
    sampling = sampling_of(policy, environments)
    engine = EpisodeEngine(LocalEngine(EngineSetup(policy.model, policy.codec.decode, 16)), environments, policy.codec)
    found = engine.generate(make_requests(prompts, 4), sampling, NoiseKey(3, "train", 1))
    environments.close()
    assert len(found) == 4 * rows
    special = {policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id}
    counts: Counter[str] = Counter()
    for how, completion in zip([how for how in kinds for _ in range(4)], found, strict=True):
        episode = completion.episode
        assert len(completion.token_ids) == len(completion.sampling_logprobs) == len(completion.mask)
        assert completion.length <= sampling.max_completion_tokens
        read = [number for number, ours in zip(completion.token_ids, completion.mask, strict=True) if not ours]
        assert len(read) <= 64
        assert not special & {*read}, "a reply cannot end or pad"
        assert (episode.reward is None) == bool(episode.fault) == (episode.end == "fault")
        if episode.end == "tokens":  # the turn was cut, so the environment did not act
            counts["cut"] += 1
            continue
        if how in ("hang", "die", "nan"):
            assert episode.fault
        elif episode.fault:
            assert any(text in episode.detail for text in TAKEN_ALONG), episode.detail
            counts["taken along"] += 1
            continue
        assert episode.turns[0].mistakes == (("raised",) if how in ("raise", "exit") else ())
        assert episode.turns[0].cut == (how == "large" and len(episode.turns) > 1)
        counts[how] += 1
    assert sum(counts.values()) == 4 * rows
    if not killers:
        assert counts["taken along"] == 0
        assert all(counts[how] for how in QUICK), counts
