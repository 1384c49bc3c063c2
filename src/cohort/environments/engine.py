"""The engine of episodes: an engine that wraps an engine. The policy acts, the environment replies, until the episode ends.

Each episode goes on by itself; none waits for others. An engine with `takes_turns` continues completions while it samples others; for one
with `parallel_calls` every episode has its own calls; the others are called again and again with all episodes that can continue.

What the policy causes (a call that cannot be read, an unknown tool, a tool that raises) is text that it reads, and is counted. What the
environment causes (a time-out, a crash) ends the episode unscored.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cohort.base.threads import run_concurrently
from cohort.engine.protocol import Capabilities, Engine, OnFinish
from cohort.engine.requests import count_left
from cohort.environments.contract import HOOK
from cohort.environments.dialogue import Dialogue
from cohort.environments.hosts import Host, Message
from cohort.environments.registry import Environments, ends_with
from cohort.environments.tool_calls import ToolCall, find_calls
from cohort.types import Completion, Episode, NoiseKey, Request, Sampling, Turn
from cohort.types import Message as ChatMessage

if TYPE_CHECKING:
    from torch import Tensor

    from cohort.model.chat import ChatCodec

PARALLEL_EPISODES = 64
"""Episodes in progress at once, for an engine that is called for each."""


class EpisodeEngine(Engine):
    def __init__(self, engine: Engine, environments: Environments, codec: ChatCodec, scores_turns: bool = False) -> None:
        """scores_turns: whether `get_reward` is called after every turn, not only at the end."""
        self.engine, self.environments, self.codec, self.scores_turns = engine, environments, codec, scores_turns
        self.name = engine.name

    @property
    def slots(self) -> int:
        return self.engine.slots

    @slots.setter
    def slots(self, slots: int) -> None:
        self.engine.slots = slots

    @property
    def version(self) -> int:  # type: ignore[override]
        return self.engine.version

    @property
    def last(self) -> dict[str, float]:  # type: ignore[override]
        return self.engine.last

    @property
    def capabilities(self) -> Capabilities:
        known = self.engine.capabilities
        return replace(
            known,
            keyed_noise=known.keyed_noise and self.environments.is_deterministic,
            swaps_in_flight=False,
            takes_turns=False,
        )

    def choose_slots(self, longest: int) -> int:
        return self.engine.choose_slots(longest)

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.engine.sync(weights, version)

    def close(self) -> None:
        self.environments.close()
        self.engine.close()

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        call = EpisodeCall(self, requests, sampling, on_finish)
        try:
            if not requests:
                return []
            if self.engine.capabilities.takes_turns:
                self.engine.generate_turns(requests, sampling, noise, call)
            elif self.engine.capabilities.parallel_calls:
                self._generate_apart(call, requests, sampling, noise)
            else:
                self._generate_in_rounds(call, list(enumerate(requests)), sampling, noise)
            return call.list_completions()
        finally:
            call.abandon()

    def _generate_in_rounds(
        self, call: EpisodeCall, ready: list[tuple[int, Request]], sampling: Sampling, noise: NoiseKey
    ) -> None:
        while ready or call.pending:
            numbers = [number for number, _ in ready]
            for number, completion in zip(
                numbers, self.engine.generate([one for _, one in ready], sampling, noise) if ready else (), strict=True
            ):
                call.end_turn(number, completion)
            ready = [(number, request) for number, request in call.take(None) if request is not None]

    def _generate_apart(self, call: EpisodeCall, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey) -> None:
        todo = iter(range(len(requests)))  # shared by the threads: next() on it is atomic

        def work() -> None:
            for number in todo:
                alone = EpisodeCall(self, requests[number : number + 1], sampling, call.on_finish)
                try:
                    self._generate_in_rounds(alone, [(0, requests[number])], sampling, noise)
                    call.states[number].final = alone.list_completions()[0]
                finally:
                    alone.abandon()

        run_concurrently([work] * min(PARALLEL_EPISODES, len(requests)))


@dataclass
class EpisodeState:
    """One episode of a call."""

    request: Request
    row: dict[str, Any]
    dialogue: Dialogue
    number: int
    """Of the episode, among all of the process."""
    host: Host | None = None
    completion: Completion | None = None
    """Up to the end of the last turn."""
    turns: list[Turn] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    messages: list[ChatMessage] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    """Of the last turn."""
    seconds: float = 0.0
    end: str = ""
    """Why no turn can follow the last one; "": one can."""
    final: Completion | None = None

    @property
    def begun(self) -> int:
        """Tokens before the turn that is being sampled."""
        return len(self.request.prefix_ids)


class EpisodeCall:
    """The episodes of one call of `generate`; see engine/protocol.py:Turns."""

    def __init__(
        self, engine: EpisodeEngine, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None
    ) -> None:
        self.engine, self.environments, self.sampling, self.on_finish = engine, engine.environments, sampling, on_finish
        self.replies: queue.SimpleQueue[tuple[int, Mapping[str, Any]]] = queue.SimpleQueue()
        self.pending = 0
        self.states = [self._make_state(request) for request in requests]

    def _make_state(self, request: Request) -> EpisodeState:
        prompt = request.prompt
        row = {**prompt.columns, "prompt": prompt.content}
        return EpisodeState(
            request, row, self.environments.prepare(self.engine.codec, prompt.is_chat), next(self.environments.numbers)
        )

    def list_completions(self) -> list[Completion]:
        return [state.final for state in self.states if state.final is not None]

    def abandon(self) -> None:
        """End the workers if episodes are in progress, after an error or a signal."""
        if any(state.final is None and state.host is not None for state in self.states):
            self.environments.close()

    # -- a turn ends -----------------------------------------------------------------------------------------------------

    def end_turn(self, number: int, completion: Completion) -> None:
        state, config = self.states[number], self.environments.config
        state.completion, self.pending = completion, self.pending + 1
        ids = completion.token_ids[state.begun :]
        stops = set(self.sampling.stop_ids)
        said = ids[:-1] if ids and ids[-1] in stops else ids
        state.texts.append(self.engine.codec.decode(said))
        content, state.calls = state.texts[-1], []
        if state.dialogue.form is not None and completion.end == "stop":
            raw = self.engine.codec.tokenizer.decode(list(said), skip_special_tokens=False, clean_up_tokenization_spaces=False)
            content, state.calls = find_calls(raw, state.dialogue.form)
            content = content if state.calls else state.texts[-1]
        message: ChatMessage = {"role": "assistant", "content": content}
        if state.calls and state.dialogue.role == "tool":
            named = [{"type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in state.calls]
            message["tool_calls"] = named
        elif state.calls:
            message["content"] = state.texts[-1]
        state.messages.append(message)
        acts = completion.end == "stop" and (state.dialogue.form is None or bool(state.calls))
        full = completion.length >= self.sampling.max_completion_tokens
        state.end = (
            "tokens"
            if full or completion.end == "length"
            else "answer"
            if not acts
            else "turns"
            if len(state.turns) + 1 >= config.max_turns
            else ""
        )
        self._ask(number, state, acts)

    def _ask(self, number: int, state: EpisodeState, acts: bool) -> None:
        """Pass the turn to the environment."""
        config, env = self.environments.config, self.environments
        body: dict[str, Any] = {
            "id": state.number,
            "finish": bool(state.end),
            "score": self.engine.scores_turns,
            "text": None,
            "calls": [],
        }
        begins = state.host is None
        members: list[str] = []
        if state.host is None:
            state.host = env.choose_host(state.row)
            body["begin"] = env.begin(state.row)
        if acts and state.dialogue.form is None:
            body["text"] = state.texts[-1]
            members.append(HOOK)
        elif acts:
            body["calls"] = [[call.name, call.arguments] for call in state.calls if not call.problem]
            members += [call.name for call in state.calls]
        limit = min(config.step_timeout_s, max(0.001, config.episode_timeout_s - state.seconds))
        # The code that acts decides: around it, reset and get_reward may be sync.
        is_async = env.is_async(state.row, members or (["reset", "get_reward"] if begins else ["get_reward"]))
        on_reply: Callable[[Mapping[str, Any]], None] = lambda reply: self.replies.put((number, reply))  # noqa: E731
        state.host.submit(Message(body, is_async, limit, on_reply))

    # -- the environment replies -----------------------------------------------------------------------------------------

    def take(self, seconds: float | None) -> list[tuple[int, Request | None]]:
        self.environments.check()
        found: list[tuple[int, Request | None]] = []
        while self.pending:
            try:
                if found or seconds == 0.0:
                    number, reply = self.replies.get_nowait()
                else:
                    number, reply = self.replies.get(timeout=seconds if seconds is not None else 1.0)
            except queue.Empty:
                self.environments.check()
                if found or seconds is not None:
                    break
                continue
            self.pending -= 1
            found.append((number, self._continue(number, reply)))
        return found

    def _continue(self, number: int, reply: Mapping[str, Any]) -> Request | None:
        """The request that continues an episode after the reply, or None if it has ended."""
        state = self.states[number]
        assert state.completion is not None
        took = float(reply.get("seconds", 0.0))
        state.seconds += took
        observation = reply.get("observation")
        if "fault" not in reply and observation and not ends_with(state.row["prompt"], observation):
            reply = {"fault": "exception", "detail": self._explain_other_reset(state, observation)}
        if "fault" not in reply and state.seconds > self.environments.config.episode_timeout_s:
            reply = {
                "fault": "timeout",
                "detail": f"more than {self.environments.config.episode_timeout_s:g} s in all its turns",
            }
        if "fault" in reply:
            self._finish(state, Turn(len(state.completion.token_ids), len(state.calls), seconds=took), reply)
            return None
        given = iter([(str(text), mistake) if text is not None else (None, "") for text, mistake in reply["results"]])
        results: list[tuple[str, str | None, str]] = []
        if state.dialogue.form is None and reply["results"]:
            results = [("", *next(given))]
        for call in state.calls:
            if call.problem:
                results.append((call.name, str({"error": call.problem}), "syntax"))
            else:
                results.append((call.name, *next(given)))
        mistakes = tuple(mistake for _, _, mistake in results if mistake)
        turn = Turn(len(state.completion.token_ids), len(state.calls), mistakes, reward=reply.get("reward"), seconds=took)
        if reply.get("done"):
            state.end = state.end or "environment"
            self._finish(state, turn, reply)
            return None
        ids, read, cut = state.dialogue.encode(state.dialogue.make_messages([(name, text or "") for name, text, _ in results]))
        if not ids:
            detail = "its reply is empty, so there is nothing to read; return text, or None to end the episode"
            self._finish(state, turn, {"fault": "exception", "detail": detail})
            return None
        state.messages += read
        state.turns.append(replace(turn, cut=cut))
        whole = state.completion
        prefix = replace(
            whole,
            token_ids=(*whole.token_ids, *ids),
            sampling_logprobs=(*whole.sampling_logprobs, *(0.0,) * len(ids)),
            sampled_mask=(*whole.mask, *(False,) * len(ids)),
            versions=(*whole.versions, (whole.versions[-1][0], len(ids))) if whole.versions else (),
        )
        state.request = replace(state.request, prefix=prefix)
        assert count_left(state.request, self.sampling) > 0
        return state.request

    def _explain_other_reset(self, state: EpisodeState, observation: str) -> str:
        return (
            f"reset returned {observation[:80]!r}, and for the same row and seed another text before the run, which is in the prompt. Draw all "
            "randomness from `seed`, `random` or numpy.random, or return None from reset."
        )

    def _finish(self, state: EpisodeState, turn: Turn, reply: Mapping[str, Any]) -> None:
        assert state.completion is not None
        state.turns.append(turn)
        fault = str(reply.get("fault", ""))
        episode = Episode(
            self.environments.describe(self.environments.find_name(state.row)),
            tuple(state.turns),
            tuple(state.messages),
            "fault" if fault else state.end,  # type: ignore[arg-type]
            None if fault else reply.get("reward"),
            fault,
            str(reply.get("detail", "")),
            dict(reply.get("attributes", {})),
        )
        end = "length" if state.end == "tokens" and state.completion.end == "length" else "stop"
        state.final = replace(state.completion, end=end, text="\n".join(state.texts), episode=episode)  # type: ignore[arg-type]
        if self.engine.on_progress is not None and len(self.states) > 1:
            self.engine.on_progress(len(self.list_completions()) / len(self.states))
        if self.on_finish is not None:
            self.on_finish(replace(state.request, prefix=None), state.final)
