"""The host of episodes: random states, faults and mistakes, reuse of instances."""

from __future__ import annotations

import asyncio
import random

import numpy as np

from cohort.environments.episodes import EpisodeHost


def handle(host: EpisodeHost, **message):
    return asyncio.run(host.handle(message))


def begin(name: str, seed: int = 1, tools=(), **row):
    return {"environment": f"turns_tools:{name}" if name else "", "tools": list(tools), "args": {}, "row": row, "seed": seed}


def turn(number: int, text=None, calls=(), finish=False, score=False, **more):
    return {"id": number, "text": text, "calls": [list(call) for call in calls], "finish": finish, "score": score, **more}


def test_each_episode_has_its_own_random_state_and_the_processes_own_stays():
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()

    def play(host, numbers):
        replies = {number: [] for number in numbers}
        for number in numbers:
            reply = handle(host, **turn(number, "abc", begin=begin("Echo", seed=7)))
            replies[number].append(reply["results"])
        for number in numbers:
            replies[number].append(handle(host, **turn(number, "ab"))["results"])
        return replies

    together = play(EpisodeHost(), [1, 2])
    assert together[1] == together[2] == play(EpisodeHost(), [9])[9], "the same seed and turns give the same replies"
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


async def play_slowly(numbers):
    host = EpisodeHost()
    found = await asyncio.gather(
        *(host.handle(turn(number, "abcd", begin=begin("SlowEcho", seed=7)) | {"limit_s": 5.0}) for number in numbers)
    )
    return [one["results"] for one in found]


def test_async_environments_interleave_without_mixing_their_draws():
    assert asyncio.run(play_slowly([1, 2, 3])) == asyncio.run(play_slowly([1])) * 3


def test_tools_change_the_state_that_scores_and_mistakes_are_text():
    host = EpisodeHost()
    calls = [("increment", {"step": 2}), ("increment", {"step": "x"}), ("decrement", {}), ("multiply", {"a": 2, "b": 4})]
    reply = handle(host, **turn(1, calls=calls, score=True, begin=begin("Increment", tools=["turns_tools:multiply"])))
    (two, _), (bad, arguments), (none, unknown), (eight, _) = reply["results"]
    assert (two, eight, reply["reward"]) == ("2", "8", 2.0)
    assert (arguments, unknown) == ("arguments", "unknown_tool")
    assert bad == str({"error": "argument 'step': Input should be a valid integer, unable to parse string as an integer"})
    assert none == str({"error": "Tool decrement not found."})
    end = handle(host, **turn(1, finish=True))
    assert (end["done"], end["reward"], end["attributes"]) == (True, 2.0, {"counter": 2})
    instance = host.kinds[next(iter(host.kinds))].idle[0]
    handle(host, **turn(2, calls=[("increment", {"step": 1})], begin=begin("Increment", tools=["turns_tools:multiply"])))
    assert host.live[2].instance is instance
    assert instance.counter == 1, "reset, and reused"


def test_what_the_environment_causes_is_a_fault():
    host = EpisodeHost()
    raised = handle(host, **turn(1, "x", begin=begin("Hostile", how="raise")))
    assert raised["results"] == [[str({"error": "ValueError: a reply that raises"}), "raised"]]
    exited = handle(host, **turn(2, "x", begin=begin("Hostile", how="exit")))
    assert exited["results"][0][1] == "raised"
    nan = handle(host, **turn(3, "x", begin=begin("Hostile", how="nan")))
    assert nan["fault"] == "exception"
    assert "get_reward returned float 'nan'" in nan["detail"]
    broken = handle(host, **turn(4, "x", begin=begin("Hostile")))
    assert broken["fault"] == "exception"
    assert "missing 1 required positional argument: 'how'" in broken["detail"]
    assert host.live.keys() == {1, 2}
