"""Episodes in progress: instances of environments, and the calls of their methods. In a worker process, or in a thread of the trainer.

Episodes interleave, so each has its own state of `random` and of numpy's global generator: it is put in place around every piece of
the environment's code and taken away after it. Sync methods therefore run one at a time; async ones interleave where they wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from cohort.base.importing import load_function
from cohort.environments.contract import HOOK, BadArguments, EnvironmentTraits, ToolSignature, check_annotations, read_traits
from cohort.rewards.call import format_problem, is_plain, read_value
from cohort_verify.text import shorten
from cohort_verify.workers import HEADER_BYTES, frame_message

MOST_ATTRIBUTE_CHARS = 20_000
"""An attribute with a longer JSON text is not passed to reward functions."""
MOST_REPLY_CHARS = 2_000_000
ERROR_CHARS = 300


class RandomStates:
    """The state of `random` and of numpy's global generator in one episode."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.saved: dict[str, Any] = {}
        self.outside: dict[str, Any] | None = None
        self.abandoned = False
        """Whether its code still runs in a thread that was abandoned: the states are no longer its own."""

    def enter(self) -> None:
        self.outside = read_states()
        random.seed(self.seed) if "random" not in self.saved else random.setstate(self.saved["random"])
        if numpy := sys.modules.get("numpy"):
            if "numpy" in self.saved:
                numpy.random.set_state(self.saved["numpy"])
            else:
                numpy.random.seed(self.seed % 2**32)

    def leave(self) -> None:
        if self.abandoned or self.outside is None:
            return
        self.saved = read_states()
        write_states(self.outside)
        self.outside = None

    def abandon(self) -> None:
        """Restore the states of the process while code of the episode still runs."""
        self.abandoned = True
        if self.outside is not None:
            write_states(self.outside)


def read_states() -> dict[str, Any]:
    found: dict[str, Any] = {"random": random.getstate()}
    if numpy := sys.modules.get("numpy"):
        found["numpy"] = numpy.random.get_state()
    return found


def write_states(states: Mapping[str, Any]) -> None:
    random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


class Guarded:
    """Awaits an awaitable with the episode's random states in place whenever its code runs."""

    def __init__(self, awaited: Awaitable[Any], states: RandomStates) -> None:
        self.awaited, self.states = awaited, states

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.awaited.__await__()
        problem: BaseException | None = None
        while True:
            self.states.enter()
            try:
                waits_for = steps.throw(problem) if problem is not None else next(steps)
            except StopIteration as ended:
                return ended.value
            finally:
                self.states.leave()
            problem = None
            try:
                yield waits_for
            except BaseException as raised:  # a cancellation
                problem = raised


@dataclass
class Kind:
    """An environment class with its tools, or tools alone."""

    make: Callable[[], Any] | None
    traits: EnvironmentTraits | None
    signatures: dict[str, ToolSignature]
    functions: dict[str, Callable[..., Any]]
    """Stateless tools."""
    idle: list[Any] = field(default_factory=list)
    """Instances that may be reused."""


@dataclass
class Live:
    kind: Kind
    instance: Any
    states: RandomStates


class EpisodeHost:
    """Handles messages, each about one episode. Faults of an environment are part of the reply; nothing is raised."""

    def __init__(self, load: Callable[[str], Any] = load_function) -> None:
        self.load = load
        self.kinds: dict[str, Kind] = {}
        self.live: dict[int, Live] = {}

    async def handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a message. With `limit_s`, an async environment that takes longer is cancelled."""
        number, limit_s = message["id"], message.get("limit_s")
        try:
            work = self._answer(message)
            reply = await (asyncio.wait_for(work, limit_s) if limit_s else work)
        except TimeoutError as problem:
            late = limit_s is not None and not str(problem)
            reply = {"fault": "timeout", "detail": f"no answer within {limit_s:g} s"} if late else describe_fault(problem)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as problem:  # sys.exit() in an environment is a fault too
            reply = describe_fault(problem)
        if "fault" in reply:
            self.live.pop(number, None)
        return {"id": number, **reply}

    async def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        number, reply = message["id"], {}
        if message.get("begin"):
            reply["observation"] = await self._begin(number, message["begin"])
        if message.get("drop"):
            self._release(number)
            return reply
        live = self.live[number]
        done = bool(message["finish"])
        if message["text"] is not None:
            text, mistake = await self._step(live, message["text"])
            reply |= {"results": [[text, mistake]]}
            done = done or text is None
        else:
            reply["results"] = [[*await self._call(live, *call)] for call in message["calls"]]
        scores = live.kind.traits is not None and live.kind.traits.has_reward
        if scores and (done or message["score"]):
            value = await self._run(live, live.instance.get_reward)
            number_found, problem = read_value(value)
            if problem or number_found is None:
                detail = f"get_reward returned {type(value).__name__} {str(value)[:80]!r}; return a finite number"
                return {"fault": "exception", "detail": detail}
            reply["reward"] = number_found
        if done:
            reply |= {"done": True, "attributes": read_attributes(live.instance)}
            self._release(number)
        return reply

    async def _begin(self, number: int, begin: Mapping[str, Any]) -> Any:
        kind = self._find_kind(begin)
        states = RandomStates(begin["seed"])
        live = Live(kind, None, states)
        if kind.make is not None:
            assert kind.traits is not None
            self.live[number] = live
            states.enter()
            try:
                live.instance = kind.idle.pop() if kind.idle else kind.make()
            finally:
                states.leave()
            row, reads = {**begin["row"], "seed": begin["seed"]}, kind.traits.reads
            chosen = {name: value for name, value in row.items() if reads is None or name in reads}
            observation = await self._run(live, live.instance.reset, **chosen)
            if observation is not None and not isinstance(observation, str):
                raise TypeError(f"reset returned {type(observation).__name__}; return text or None")
            return observation
        self.live[number] = live
        return None

    def _find_kind(self, begin: Mapping[str, Any]) -> Kind:
        key = json.dumps([begin["environment"], begin["tools"]])
        if key not in self.kinds:
            functions = {spec.rpartition(":")[2].rpartition(".")[2]: self.load(spec) for spec in begin["tools"]}
            signatures = {}
            for name, function in functions.items():
                check_annotations(function, name)
                signatures[name] = ToolSignature(function)
            make, traits = None, None
            if begin["environment"]:
                made, arguments = self.load(begin["environment"]), dict(begin["args"])
                traits = read_traits(made, begin["environment"])
                signatures |= {name: ToolSignature(method, 1) for name, method in traits.tools.items()}
                make = lambda: made(**arguments)  # noqa: E731
            self.kinds[key] = Kind(make, traits, signatures, functions)
        return self.kinds[key]

    async def _step(self, live: Live, text: str) -> tuple[str | None, str]:
        try:
            found = await self._run(live, getattr(live.instance, HOOK), text)
        except Exception as problem:
            return write_error(f"{type(problem).__name__}: {problem}"), "raised"
        return (found if found is None else str(found)[:MOST_REPLY_CHARS]), ""

    async def _call(self, live: Live, name: str, arguments: Any) -> tuple[str, str]:
        """(the result as text, the mistake of the call)."""
        signature = live.kind.signatures.get(name)
        if signature is None:
            return write_error(f"Tool {name[:60]} not found."), "unknown_tool"
        try:
            checked = signature.check(arguments)
        except BadArguments as problem:
            return write_error(str(problem)), "arguments"
        function = live.kind.functions.get(name) or getattr(live.instance, name)
        try:
            return str(await self._run(live, function, **checked))[:MOST_REPLY_CHARS], ""
        except Exception as problem:
            return write_error(str(problem)), "raised"

    async def _run(self, live: Live, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            live.states.enter()
            try:
                found = function(*values, **named)
            finally:
                live.states.leave()
            return await Guarded(found, live.states) if isinstance(found, Awaitable) else found
        except (SystemExit, KeyboardInterrupt) as problem:  # would end the event loop
            raise RuntimeError(f"{type(problem).__name__}: {problem}") from problem

    def _release(self, number: int) -> None:
        live = self.live.pop(number)
        if live.instance is not None:
            live.kind.idle.append(live.instance)


def describe_fault(problem: BaseException) -> dict[str, str]:
    return {"fault": "exception", "detail": shorten(format_problem(problem))}


def write_error(text: str) -> str:
    """The result of a call that failed; as in TRL."""
    return str({"error": text[:ERROR_CHARS]})


def read_attributes(instance: Any) -> dict[str, Any]:
    """The public attributes of an instance that JSON can carry."""
    found = {}
    for name, value in getattr(instance, "__dict__", {}).items():
        with contextlib.suppress(Exception):
            if not name.startswith("_") and is_plain(value) and len(json.dumps(value)) <= MOST_ATTRIBUTE_CHARS:
                found[name] = value
    return found


# -- in a worker process -----------------------------------------------------------------------------------------------


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Handle messages until the trainer closes the pipe. Replies come in any order."""
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401  (an environment that imports it later would read an unseeded generator first)
    loop, host = asyncio.new_event_loop(), EpisodeHost()
    tasks: set[asyncio.Task[None]] = set()

    async def answer(message: dict[str, Any]) -> None:
        body = json.dumps(await host.handle(message)).encode()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        replies.write(frame_message(body))
        replies.flush()

    def begin(message: dict[str, Any]) -> None:
        task = loop.create_task(answer(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        for message in read_messages(requests):
            loop.call_soon_threadsafe(begin, message)
        loop.call_soon_threadsafe(loop.stop)

    threading.Thread(target=read, daemon=True, name="messages").start()
    loop.run_forever()


def read_messages(requests: BinaryIO) -> Iterator[dict[str, Any]]:
    while header := requests.read(HEADER_BYTES):
        length = int.from_bytes(header, "big")
        body = requests.read(length)
        if len(body) != length:
            return
        yield json.loads(body)
