"""The same scripted conversation here and in TRL's own loop, run live: equal ids, masks and messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from test_dialogue import HERMES, make_codec

import turns_tools
from cohort.engine.protocol import Capabilities, Engine
from cohort.engine.requests import join_prefix
from cohort.environments.engine import EpisodeEngine
from cohort.environments.registry import Environments
from cohort.environments.tool_calls import find_calls
from cohort.recipe.schema import EnvironmentConfig
from cohort.types import Completion, NoiseKey, Prompt, Request, Sampling

SCRIPT = [
    'I count.\n<tool_call>\n{"name": "increment", "arguments": {"step": 2}}\n</tool_call>',
    '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>\n'
    '<tool_call>\n{"name": "increment", "arguments": {"step": 3}}\n</tool_call>',
    '<tool_call>\n{"name": "async_add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    '<tool_call>\n{"name": "divide", "arguments": {}}\n</tool_call>',
    "Done: 5.",
]


class Scripted(Engine):
    """Writes the script, turn after turn."""

    name, slots, version = "scripted", 0, 0

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.turns, self.last = turns, {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(1, 4)

    def generate(self, requests, sampling, noise, on_finish=None) -> list[Completion]:
        return [self.write(request) for request in requests]

    def write(self, request: Request) -> Completion:
        done = sum(number in (self.turns[0][-1],) for number, ours in self.read(request) if ours)
        ids = tuple(self.turns[done])
        return join_prefix(request, Completion(ids, (-0.5,) * len(ids), "stop", ""), 0)

    @staticmethod
    def read(request: Request) -> list[tuple[int, bool]]:
        return list(zip(request.prefix.token_ids, request.prefix.mask, strict=True)) if request.prefix else []


def test_ids_masks_and_messages_equal_those_of_trl():
    module = pytest.importorskip("trl.trainer.grpo_trainer")
    codec = make_codec(HERMES)
    tokenizer = codec.tokenizer
    turns = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in SCRIPT]
    tools = [f"turns_tools:{name}" for name in ("multiply", "async_add")]
    environments = Environments(
        EnvironmentConfig(source="turns_tools:Increment", tools=tools, max_turns=9, workers=1, step_timeout_s=300.0)
    )
    row = environments.add_seeds([{"prompt": [{"role": "user", "content": "Count to five."}]}])[0]
    ids = environments.use_tools(codec, "").encode(row["prompt"])
    prompt = Prompt(0, row["prompt"], {"seed": row["seed"]}, ids)
    engine = EpisodeEngine(Scripted(turns), environments, codec)
    sampling = Sampling(1, 1.0, 1000, (tokenizer.eos_token_id,), max_reply_tokens=environments.config.max_reply_tokens)
    [ours] = engine.generate([Request(prompt, 0, 0)], sampling, NoiseKey(0, "train", 1))
    environments.close()

    def parse(text_ids):
        content, calls = find_calls(tokenizer.decode(text_ids[:-1]), "hermes")
        named = [{"type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in calls]
        return {"role": "assistant", "content": content, **({"tool_calls": named} if named else {})}

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    counter = turns_tools.Increment()
    counter.reset()
    script = iter(turns[1:])
    theirs = SimpleNamespace(
        max_tool_calling_iterations=8,
        _sync_tool_dicts=[{"increment": counter.increment, "multiply": turns_tools.multiply}],
        _async_tool_dicts=[{"async_add": turns_tools.async_add}],
        async_loop=loop,
        use_vllm=False,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=100_000)),
        max_completion_length=100_000,
        _is_vlm=False,
        tools=[],
        environment_factories=None,
        chat_template=None,
        chat_template_kwargs={},
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        _generate_single_turn=lambda *_, **__: ([next(script)], [[-0.5] * 1]),
    )
    theirs._get_tool_suffix_ids = lambda messages: module.GRPOTrainer._get_tool_suffix_ids(theirs, messages)
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "parse_response", lambda _, answer, **__: parse(answer))
    mask, completions, completion_ids, _, calls, failures, _ = module.GRPOTrainer._tool_call_loop(
        theirs, [list(row["prompt"])], [list(ids)], [list(turns[0])], [[parse(turns[0])]], None, None, {}
    )
    patch.undo()
    loop.call_soon_threadsafe(loop.stop)
    assert list(ours.token_ids) == completion_ids[0]
    assert list(map(int, ours.mask)) == mask[0]
    assert [dict(message) for message in ours.episode.messages] == completions[0]
    assert (sum(turn.calls for turn in ours.episode.turns), calls) == (5, 5)
    assert (sum(len(turn.mistakes) for turn in ours.episode.turns), failures) == (1, 1)
    assert (ours.episode.reward, ours.episode.attributes, counter.counter) == (5.0, {"counter": 5}, 5)
