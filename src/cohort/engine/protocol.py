"""The engine protocol: requests in, completions out, weights in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cohort.errors import EngineError
from cohort.types import Completion, NoiseKey, Request, Sampling

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from cohort.model.policy import Policy
    from cohort.recipe.sections import VllmConfig

OnFinish = Callable[[Request, Completion], None]


class Turns(Protocol):
    """Continues completions during a call of `generate`, while others are sampled (environments/engine.py).

    Requests are named by their number in the call.
    """

    @property
    def pending(self) -> int:
        """Turns that have ended and are not answered yet."""
        ...

    def end_turn(self, number: int, completion: Completion) -> None:
        """The policy's turn has ended; the completion so far, replies included."""
        ...

    def take(self, seconds: float | None) -> list[tuple[int, Request | None]]:
        """The answers that have arrived: the request that continues the completion after the reply, or None at its end.

        seconds: how long to wait if there are none; None: until the first one.
        """
        ...


@dataclass(frozen=True)
class Capabilities:
    """Properties of an engine. Callers check these and never the engine's name."""

    most_slots: int
    """Completions that it decodes in parallel on this device, unless the recipe sets fewer; 1: one by one."""
    cache_itemsize: int
    """Bytes per number of the keys and values on this device."""
    keyed_noise: bool = True
    """The same call gives the same completions again. If not, checkpoints save whole batches (training/state.py)."""
    steady: bool = False
    """The bits of a completion do not depend on what is decoded in parallel, so they are the same on any number of ranks."""
    shares_weights: bool = True
    """It reads the policy's own parameters, so no weights are sent."""
    own_kernels: bool = False
    """model.kernels has an effect on it."""
    takes_turns: bool = False
    """`generate` accepts `turns`: completions continue after a reply while others are sampled."""
    parallel_calls: bool = False
    """`generate` may be called by several threads at once."""
    swaps_in_flight: bool = False
    """Completions in progress continue with new weights after `sync`, and report which version sampled which tokens."""
    rounding: float = 1.0
    """Factor on the mismatch limit in float32, for engines that do not decode with the trainer's own formulas."""


@dataclass(frozen=True)
class RemoteSetup:
    """Settings of an engine on servers: the policy whose weights are sent, and where to."""

    policy: Policy
    servers: Sequence[str]
    settings: VllmConfig
    folder: Path | None
    """Folder for weights that are sent as files; None: a temporary one."""
    say: Callable[[str], None]
    """Prints messages about servers."""
    keep: bool = False
    """Keep a copy of the sent weights for servers that come back, because completions are sampled while the policy trains."""
    longest: int = 0
    """Maximum tokens of a prompt and its completion. Demonstrations, which are not sampled, may be longer."""


@dataclass(frozen=True)
class EngineSetup:
    """Arguments of an engine's constructor function (recipe/values.py)."""

    model: Any
    decode: Callable[[Sequence[int]], str]
    slots: int = 0
    kernels: str = "auto"
    cuda_graphs: bool = True
    decode_all: Callable[[Sequence[Sequence[int]]], list[str]] | None = None
    """Decodes many rows at once, for tokenizers where that is faster."""
    remote: RemoteSetup | None = None
    concurrent: bool = False
    """Whether another thread uses the device while this engine samples."""


class Engine(Protocol):
    """Samples completions from the policy.

    The contract, tested engine against engine:
    - one completion per request, in the order of the requests; `on_finish` is called with each completion as soon as it is
      known to be complete, in any order, before `generate` returns;
    - the prompt's token ids are used unchanged: nothing is re-tokenised, no BOS is added;
    - `sampling_logprobs` are float32 log-softmax of (logits / temperature) at the sampled token, over the full
      distribution (temperature 0: at temperature 1);
    - a completion ends with the first sampled id in `sampling.stop_ids` (end "stop") or after max_completion_tokens sampled ones ("length");
    - the noise of a token depends only on (seed, stream, step, draw, sample, position), where position is the request's
      position plus the token's index in the completion. Slots, batching and order change rollouts only at near-ties
      (for engines with `capabilities.keyed_noise`);
    - a request with a prefix is continued after it, and the prefix is part of the completion: its ids, log-probs, mask and
      versions are returned unchanged, and its sampled ids count against max_completion_tokens. A prefix that is already complete,
      because its last id is a sampled stop token or because it has the maximum length, is returned unchanged;
    - the weights are those of the policy at the time of the call, or those of the last `sync` for an engine with its own
      copy: no outdated cache survives an update.
    """

    name: str
    slots: int
    """Completions decoded in parallel; 0: the engine chooses, or has no slots."""
    version: int
    """Policy version of the weights."""
    last: dict[str, float]
    """Figures of the last call, for the metrics."""
    code: str = "modules"
    """What computes a token: "own kernels" or "own kernels in CUDA graphs" (GPU), "compiled code" or "plain PyTorch" (CPU), the
    "modules" of transformers, or "servers"."""
    on_progress: Callable[[float], None] | None = None
    """Called during `generate` with the share of the work that is done: of the tokens if every open completion ran to the limit."""

    @property
    def capabilities(self) -> Capabilities: ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, on_finish: OnFinish | None = None
    ) -> list[Completion]: ...

    def generate_turns(self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, turns: Turns) -> None:
        """As `generate`, for completions that `turns` receives and continues. Only with `capabilities.takes_turns`."""
        if not self.capabilities.takes_turns:
            raise EngineError(f"engine {self.name} does not continue completions during a call.")

    def choose_slots(self, longest: int) -> int:
        """How many completions of `longest` tokens, prompts included, to decode in parallel; 0 for an engine without slots."""
        return 0

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample with these weights from now on: the policy's own parameters by name, and their number of updates.

        Called before sampling whenever the policy may have changed. An engine that shares the weights only stores the version.
        """
        self.version = version

    def close(self) -> None:
        """Free everything except the policy's weights. `generate` may be called again."""
        return
