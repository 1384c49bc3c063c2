"""The shared data types: frozen dataclasses, without torch.

    prompts -> rollouts -> rewards -> advantages -> batch -> loss -> optimizer step

Example of one rollout of column addition:

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
"""One chat message in the format of transformers and TRL: {"role": "user", "content": "..."}."""

End = Literal["stop", "length"]
"""Why a completion ended: at a stop token, or at max_completion_tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, with the token ids that engine and trainer use."""

    index: int
    """Row number in its source, which identifies the prompt; its text does not, because sources contain duplicates."""
    content: str | list[Message]
    """Text, or chat messages. Reward functions receive it as `prompts`."""
    columns: Mapping[str, Any]
    """The other columns of the row; reward functions receive them by name."""
    token_ids: tuple[int, ...]
    answer_column: str = "answer"
    """The column with the reference answer."""
    identity: str = ""
    """What an environment reads besides the prompt: two prompts with the same text are then two problems."""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.content, str)

    @property
    def reference_answer(self) -> Any:
        """The reference answer, or None."""
        return self.columns.get(self.answer_column)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of an episode: what the policy wrote, and how the environment took it."""

    end: int
    """Tokens of the completion up to the end of what the policy wrote; the reply follows."""
    calls: int = 0
    """Tool calls in it."""
    mistakes: tuple[str, ...] = ()
    """Faults of its calls: "syntax", "unknown_tool", "arguments" or "raised". The reply told the policy."""
    cut: bool = False
    """Whether the reply was cut at max_observation_tokens."""
    reward: float | None = None
    """What `get_reward` returned after the turn, if every turn is scored."""
    seconds: float = field(default=0.0, compare=False)
    """Between the end of the turn and the reply."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The environment's side of a completion of several turns."""

    environment: str
    """Its name: the class, or "tools"."""
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]
    """The turns and their replies; reward functions receive them as the completion of a chat."""
    end: Literal["answer", "environment", "turns", "tokens", "fault"]
    """Why it ended: a turn without a call, the environment's decision, max_turns, max_completion_tokens, or a fault of the environment."""
    reward: float | None = None
    """What `get_reward` returned at the end."""
    fault: str = ""
    """A fault of the environment, which leaves the episode unscored: "timeout", "crash" or "exception"."""
    detail: str = ""
    """The fault as a message."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Plain attributes of the environment at the end."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The policy's output. The ids are the sampled ones; the text is never tokenised again.

    In an episode of several turns the replies of the environment are among the ids, and `sampled_mask` tells them apart.
    """

    token_ids: tuple[int, ...]
    """Including the stop token, if one was sampled."""
    sampling_logprobs: tuple[float, ...]
    """Log-probability of each id in the engine, at the sampling temperature, in float32."""
    end: End
    text: str
    """The decoded ids, without special tokens. Of an episode: what the policy wrote, one turn per paragraph."""
    sampled_mask: tuple[bool, ...] | None = None
    """Which ids the policy sampled; None: all of them. Replies of an environment are False."""
    versions: tuple[tuple[int, int], ...] = ()
    """(policy_version, number of ids) of each span, in order; (): all ids have the rollout's policy_version."""
    episode: Episode | None = None
    """Its turns, if the policy acted in an environment."""

    @property
    def mask(self) -> tuple[bool, ...]:
        return self.sampled_mask if self.sampled_mask is not None else (True,) * len(self.token_ids)

    @property
    def length(self) -> int:
        """Number of tokens the policy sampled."""
        return len(self.token_ids) if self.sampled_mask is None else sum(self.sampled_mask)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to an engine for one completion."""

    prompt: Prompt
    draw: int
    """Number of the prompt within the step; in evaluation a hash of its content. With `sample` it keys the noise."""
    sample: int
    """Number within the group."""
    prefix: Completion | None = None
    """The part that was sampled already, to be continued. `end` is not read; `text` is read only if nothing is left to sample."""
    position: int = 0
    """Offset of the completion in the noise of (draw, sample): in a later turn, the number of tokens of earlier turns."""

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        return self.prefix.token_ids if self.prefix else ()

    @property
    def context_ids(self) -> tuple[int, ...]:
        """The ids that the model reads before it samples."""
        return self.prompt.token_ids + self.prefix_ids


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the reward functions for one completion."""

    parts: Mapping[str, float | None]
    """Unweighted value of each reward function. None: it abstained, or failed on this completion."""
    reward: float | None
    """Weighted sum of the parts with a value; never normalised. None: unscored, and excluded from every mean."""
    success: bool | None
    """Whether the outcome part reached its threshold. None: it has no value."""
    answer: str | None = None
    """The answer that the outcome part extracted and compared; majority votes count it."""
    faults: tuple[str, ...] = ()
    """`part:kind` of every failure, e.g. "math_answer:timeout". Metrics count them."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Columns that a reward function logged with `log_extra`."""
    steps: tuple[tuple[int, float], ...] = ()
    """Process supervision: (number of characters up to the end of the step, weighted reward of the step), in order."""


UNSCORED = Outcome(parts={}, reward=None, success=None)


@dataclass(frozen=True, slots=True)
class Rollout:
    """prompt + completion + outcome + version of the policy that sampled it."""

    prompt: Prompt
    group: int
    """Number of the group within the step, which identifies it; prompt text does not."""
    sample: int
    completion: Completion
    outcome: Outcome
    policy_version: int
    """Optimizer steps that the policy had taken when it sampled this."""

    @property
    def versions(self) -> tuple[tuple[int, int], ...]:
        """(policy_version, number of ids) of each span of the completion."""
        return self.completion.versions or ((self.policy_version, len(self.completion.token_ids)),)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings. temperature 0 means greedy (evaluation only)."""

    group_size: int
    temperature: float
    max_completion_tokens: int
    """Tokens that the policy may sample."""
    stop_ids: tuple[int, ...]
    top_p: float = 1.0
    top_k: int = 0
    """0: off. top_p and top_k are for evaluation only: in training they bias the ratio by the mass they keep."""
    with_greedy: bool = False
    """Evaluation only: each group has an additional, greedy completion at its end."""
    max_reply_tokens: int = 0
    """Tokens that an environment may add to a completion, in all its replies."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def longest_completion(self) -> int:
        """The largest number of tokens of a completion, replies of an environment included."""
        return self.max_completion_tokens + self.max_reply_tokens

    @property
    def completions(self) -> int:
        """Completions per prompt."""
        return self.group_size + self.with_greedy

    def for_sample(self, sample: int) -> Sampling:
        """The settings for the completion with this number in its group. Greedy needs no cut: top_p and top_k keep the likeliest token."""
        if self.greedy or not self.with_greedy or sample < self.group_size:
            return self
        return replace(self, temperature=0.0, top_p=1.0, top_k=0)


NoiseStream = Literal["train", "evaluate", "preflight", "cold_start", "reward_model"]


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Keys the randomness of one engine call, together with (draw, sample, position) of each token.

    `draw` counts prompts within the step: a prompt that is drawn twice in one step gets two noises.
    """

    seed: int
    stream: NoiseStream
    step: int
