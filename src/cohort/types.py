"""The shared data types. Plain frozen data, no torch.

    prompts -> rollouts -> rewards -> advantages -> batch -> loss -> optimizer step

Example of one rollout of the demo task:

    prompt     = Prompt(index=3, content="12+34=", columns={"answer": "46"}, token_ids=(4, 5, 13, 6, 7, 14))
    completion = Completion(token_ids=(5, 13, 7, 2), sampling_logprobs=(-0.1, -0.7, 0.0, -0.2), end="stop", text="...")
    outcome    = Outcome(parts={"math_answer": 1.0}, reward=1.0, success=True, answer="46")
    Rollout(prompt, group=0, sample=0, completion, outcome, policy_version=0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Message = dict[str, Any]
"""One chat message, as transformers and TRL write it: {"role": "user", "content": "..."}."""

End = Literal["stop", "length"]
"""Why a completion ended: it sampled a stop token, or it ran into max_completion_tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, already turned into the token ids that the engine is given and the trainer scores."""

    index: int
    """Row number in its source: the identity of the prompt. Text is no identity, since sources hold duplicates."""
    content: str | list[Message]
    """Text, or chat messages. Reward functions are given exactly this as `prompts`."""
    columns: Mapping[str, Any]
    """The other columns of the row; reward functions receive them by name."""
    token_ids: tuple[int, ...]
    gold_column: str = "answer"
    """Which of the columns holds the right answer, where the rows have one."""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.content, str)

    @property
    def gold(self) -> Any:
        """The right answer; None where the row has none."""
        return self.columns.get(self.gold_column)


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy wrote. The ids are the sampled ones; nothing downstream ever tokenises the text again."""

    token_ids: tuple[int, ...]
    """The stop token, where one was sampled, is the last id."""
    sampling_logprobs: tuple[float, ...]
    """Log-probability of each id as the engine sampled it: at the sampling temperature, in float32."""
    end: End
    text: str
    """The ids decoded, special tokens left out."""
    sampled_mask: tuple[bool, ...] | None = None
    """Which ids the policy sampled itself. None means all of them; tool output in a later turn would be False."""
    versions: tuple[tuple[int, int], ...] = ()
    """(policy_version, number of ids) of each span, in order; () means all of them by the rollout's policy_version."""

    @property
    def mask(self) -> tuple[bool, ...]:
        return self.sampled_mask if self.sampled_mask is not None else (True,) * len(self.token_ids)

    @property
    def length(self) -> int:
        """Number of tokens the policy sampled."""
        return len(self.token_ids) if self.sampled_mask is None else sum(self.sampled_mask)


@dataclass(frozen=True, slots=True)
class Request:
    """One completion that an engine is asked for."""

    prompt: Prompt
    draw: int
    """Place of the prompt among those of the step, in evaluation a hash of its content; with `sample` it keys the noise."""
    sample: int
    """Place in the group."""
    prefix: Completion | None = None
    """What was sampled of it before, to be continued; its `end` is not read, and its `text` only where nothing is left to sample."""
    position: int = 0
    """Where in the noise of (draw, sample) the completion begins: in a later turn, behind the tokens of the turns before."""

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        return self.prefix.token_ids if self.prefix else ()

    @property
    def context_ids(self) -> tuple[int, ...]:
        """What the model reads before it samples."""
        return self.prompt.token_ids + self.prefix_ids


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the reward functions said of one completion."""

    parts: Mapping[str, float | None]
    """Value of each reward function before weighting. None: it abstained, or it failed on this completion."""
    reward: float | None
    """Weighted sum of the parts that spoke; never normalised. None: unscored, out of both sides of every mean."""
    success: bool | None
    """Whether the outcome part reached its threshold. None: the outcome part did not speak."""
    answer: str | None = None
    """What the outcome part extracted and compared; majority votes are counted on it."""
    faults: tuple[str, ...] = ()
    """`part:kind` of everything that went wrong, e.g. "math_answer:timeout". Each is counted in the metrics."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Columns a reward function logged through `log_extra`."""
    steps: tuple[tuple[int, float], ...] = ()
    """Process supervision: (characters of the completion up to the end of a step, weighted reward of the step), in order."""


UNSCORED = Outcome(parts={}, reward=None, success=None)


@dataclass(frozen=True, slots=True)
class Rollout:
    """prompt + completion + outcome + the version of the policy that sampled it."""

    prompt: Prompt
    group: int
    """Number of the group inside the step. Groups are told apart by this, never by prompt text."""
    sample: int
    completion: Completion
    outcome: Outcome
    policy_version: int
    """How many optimizer steps the policy had taken when it sampled this."""

    @property
    def versions(self) -> tuple[tuple[int, int], ...]:
        """(policy_version, number of ids) of each span of the completion."""
        return self.completion.versions or ((self.policy_version, len(self.completion.token_ids)),)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. temperature 0 means greedy (evaluation only)."""

    group_size: int
    temperature: float
    max_completion_tokens: int
    stop_ids: tuple[int, ...]
    top_p: float = 1.0
    top_k: int = 0
    """0: no cut. Cuts are for evaluation alone: in training they bias the ratio by the mass they keep."""
    with_greedy: bool = False
    """Evaluation only: each group has one more completion, its last, which is greedy."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def completions(self) -> int:
        """Completions of each prompt."""
        return self.group_size + self.with_greedy

    def for_sample(self, sample: int) -> Sampling:
        """How the completion at this place in its group is drawn. Cuts cannot change the most likely token: greedy has none."""
        if self.greedy or not self.with_greedy or sample < self.group_size:
            return self
        return replace(self, temperature=0.0, top_p=1.0, top_k=0)


NoiseStream = Literal["train", "evaluate", "preflight", "cold_start", "reward_model"]


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """What the randomness of one engine call depends on, together with (draw, sample, position) of each token.

    `draw` counts prompts within the step: a prompt drawn twice in one step is two draws with two noises.
    """

    seed: int
    stream: NoiseStream
    step: int
