"""The engine protocol: requests in, completions out, weights in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cohort.types import Completion, NoiseKey, Request, Sampling

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from cohort.model.policy import Policy
    from cohort.recipe.sections import VllmConfig

OnFinish = Callable[[Request, Completion], None]


@dataclass(frozen=True)
class Capabilities:
    """What a caller must know of an engine, and asks for here instead of asking which engine it is."""

    most_slots: int
    """Completions that it decodes side by side in the memory of this device, where nobody asks for fewer; 1: one by one."""
    cache_itemsize: int
    """Bytes of each number among the keys and values that it keeps on this device."""
    keyed_noise: bool = True
    """The same call gives the same completions again. Where it does not, a batch is saved whole (training/state.py)."""
    steady: bool = False
    """A completion has the same bits whatever is decoded beside it on this device: so it has on any number of ranks."""
    shares_weights: bool = True
    """It reads the policy's own parameters: there is nothing to send."""
    own_kernels: bool = False
    """model.kernels acts on it."""
    swaps_in_flight: bool = False
    """Completions that are under way go on with new weights when it is given some, and say which tokens are of which version."""
    rounding: float = 1.0
    """How much further than an engine that decodes with the trainer's own formulas its log-probs may be off, in float32."""


@dataclass(frozen=True)
class RemoteSetup:
    """What an engine elsewhere is made from, beside a model: whose weights to send, and where to."""

    policy: Policy
    servers: Sequence[str]
    settings: VllmConfig
    folder: Path | None
    """For weights that travel as files; None: one that lasts as long as the engine."""
    say: Callable[[str], None]
    """Tells people what happens to servers."""
    keep: bool = False
    """Whether completions are sampled while the policy trains: weights that were sent must be had again for a server that comes back."""
    longest: int = 0
    """Tokens that a prompt and its completion may have; demonstrations, which nobody samples, may be longer."""


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is made from (recipe/values.py)."""

    model: Any
    decode: Callable[[Sequence[int]], str]
    slots: int = 0
    kernels: str = "auto"
    cuda_graphs: bool = True
    decode_all: Callable[[Sequence[Sequence[int]]], list[str]] | None = None
    """Many rows at once, where the tokenizer is faster that way."""
    remote: RemoteSetup | None = None


class Engine(Protocol):
    """Samples completions from the policy.

    Contract, the same for every engine and tested engine against engine:
    - one completion per request, in the order of the requests; `on_finish` is told of each as soon as the engine knows it to
      be whole, in whatever order that comes about, and before `generate` returns;
    - the prompt's token ids are used as they are: nothing is re-tokenised, no BOS is added;
    - `sampling_logprobs` are float32 log-softmax of (logits / temperature) at the sampled token, over the full
      distribution (temperature 0: at temperature 1);
    - a completion ends with the first sampled id in `sampling.stop_ids` (end "stop") or after max_completion_tokens ("length");
    - the noise of a token depends only on (seed, stream, step, draw, sample, position), where position is the request's
      position plus the token's place in the completion: slots, batching and order change rollouts only at near-ties
      (`capabilities.keyed_noise` says whether this holds);
    - a request with a prefix is continued after it, and the prefix is part of the completion: its ids, log-probs, mask and
      versions are handed back as they came, and count against max_completion_tokens. A prefix that is whole already, because
      its last id is a sampled stop or because it is as long as a completion may be, is handed back as it is;
    - the weights used are those the policy has at the time of the call, or those of the last `sync` where the engine keeps a
      copy: no stale cache survives an update.
    """

    name: str
    slots: int
    """Completions decoded side by side; 0: the engine chooses, or has no such notion."""

    @property
    def capabilities(self) -> Capabilities: ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, on_finish: OnFinish | None = None
    ) -> list[Completion]: ...

    def choose_slots(self, longest: int) -> int:
        """How many completions of `longest` tokens, prompts included, to decode side by side; 0: it has no such notion."""
        ...

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample with these weights of the policy from now on: its own parameters by name, and how many updates they have had.

        Called before sampling whenever the policy may have changed. An engine that shares the weights has them already: it
        notes the version and nothing else.
        """
        ...

    def close(self) -> None:
        """Give back what the engine holds besides the policy's weights. It may be asked to generate again."""
        ...
