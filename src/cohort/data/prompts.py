"""Rows -> prompts -> an endless, seeded, resumable stream of prompts.

    rows = load_rows(config, seed)                          data/rows.py: file, hub, task, function, Python
    train, held_out = split_held_out(rows, 0.1, seed, ...)  by a hash of the content: duplicates stay together
    prompts, report = make_prompts(train, config, codec.encode)
    PromptStream(prompts, seed, shuffle=True).take(cursor, 32)

Unlike a usual data loader the stream has no state: prompt number n of a run is a pure function of (seed, n), so a checkpoint stores
one integer and resumes exactly. Nothing is truncated or skipped silently: prompts that are too long are left out, counted and
reported, and every other defect is an error that names the place and the fix. No torch.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.base.keyed import keyed_permutation, keyed_share
from cohort.base.text import write_count
from cohort.data.rows import Content, Row, list_columns, render
from cohort.environments.dialogue import Dialogue
from cohort.environments.tool_calls import find_calls
from cohort.errors import PromptError
from cohort.model.chat import ChatCodec
from cohort.recipe.schema import PromptsConfig
from cohort.types import Prompt

Identify = Callable[[Mapping[str, Any]], str]

# ---------------------------------------------------------------------------------------------------------------------
# Prompts
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptReport:
    """Numbers of rows and prompts. Lengths are in tokens."""

    rows: int
    kept: int
    too_long: int
    longest: int
    """Over all rows, including those left out: the max_prompt_tokens that would keep all of them."""
    mean_length: float
    """Over the prompts that were kept."""
    max_prompt_tokens: int
    with_unknown: int = 0
    """Prompts with the tokenizer's unknown token: the model cannot distinguish those characters."""

    def __str__(self) -> str:
        text = f"{write_count(self.kept, 'prompt')} of {write_count(round(self.mean_length), 'token')} on average, the longest {self.longest}"
        if self.too_long:
            text += (
                f"; {self.too_long} of {self.rows} left out because they are longer than max_prompt_tokens = {self.max_prompt_tokens} "
                f"(raise it to {self.longest} to keep all)"
            )
        if self.with_unknown:
            text += f"; {self.with_unknown} contain characters the tokenizer does not know"
        return text


def make_prompts(
    rows: Sequence[Mapping[str, Any]],
    config: PromptsConfig,
    encode: Callable[[Content], Sequence[int]],
    unknown_id: int | None = None,
    answer_column: str = "answer",
    identify: Identify = lambda row: "",
    encode_chat: Callable[[Content, Mapping[str, Any]], Sequence[int]] | None = None,
) -> tuple[list[Prompt], PromptReport]:
    """Render and encode every row; leave out and count prompts longer than max_prompt_tokens.

    identify(row): what an environment reads besides the prompt. encode_chat(messages, row): for chats that depend on their row.
    """
    prompts: list[Prompt] = []
    longest = with_unknown = 0
    for index, row in enumerate(rows):
        content = render(row, config, f"prompts, row {index}")
        by_row = encode_chat is not None and not isinstance(content, str)
        token_ids = tuple(encode_chat(content, row) if by_row and encode_chat else encode(content))
        if not token_ids:
            raise PromptError(f"prompts, row {index}: the prompt is empty")
        longest = max(longest, len(token_ids))
        if len(token_ids) > config.max_prompt_tokens:
            continue
        with_unknown += unknown_id is not None and unknown_id in token_ids
        columns = {name: value for name, value in row.items() if name != config.prompt_column}
        prompts.append(Prompt(index, content, columns, token_ids, answer_column, identify(row)))
    if not prompts:
        raise PromptError(
            f"prompts: all {len(rows)} prompts are longer than max_prompt_tokens = {config.max_prompt_tokens} tokens; "
            f"the longest has {longest}. Raise prompts.max_prompt_tokens"
            if rows
            else "prompts: no rows to make prompts from"
        )
    mean_length = sum(len(prompt.token_ids) for prompt in prompts) / len(prompts)
    too_long = len(rows) - len(prompts)
    return prompts, PromptReport(
        len(rows), len(prompts), too_long, longest, mean_length, config.max_prompt_tokens, with_unknown
    )


# ---------------------------------------------------------------------------------------------------------------------
# Held-out rows
# ---------------------------------------------------------------------------------------------------------------------


def make_content_key(content: Content) -> str:
    """A key that is equal for two prompts with the same question: the conversation without surrounding white space.

    System messages are ignored: with another instruction it is still the same question, and a model trained on it knows the
    answer. For the same reason a single user message equals its plain text.
    """
    if isinstance(content, str):
        return content.strip()
    messages = [[message["role"], str(message["content"]).strip()] for message in content]
    question = [[role, text] for role, text in messages if role != "system"]
    if len(question) == 1 and question[0][0] == "user":
        return question[0][1]
    return json.dumps(question or messages, ensure_ascii=False)  # only a system message: that is the question


def make_prompt_key(prompt: Prompt) -> str:
    """The content key of a prompt, with what an environment reads besides its text."""
    return join_identity(make_content_key(prompt.content), prompt.identity)


def join_identity(key: str, identity: str) -> str:
    return f"{key}\x1f{identity}" if identity else key


def split_held_out(
    rows: Sequence[Row],
    share: float,
    seed: int,
    prompt_column: str = "prompt",
    template: str = "",
    least: int = 16,
    identify: Identify = lambda row: "",
) -> tuple[list[Row], list[Row]]:
    """(train, held_out). Each prompt has a hash of the seed and its content in [0, 1); prompts below the share are held out.

    If that gives fewer than `least` prompts, or fewer than the share rounded up, the next smallest hashes are held out too, up to
    a third of the rows. Duplicates stay together. Without such additions, rows added to the source later do not move other rows.
    least 0: no additions.
    """
    if share <= 0:
        return list(rows), []
    keys = list_prompt_keys(rows, prompt_column, template, identify)
    copies = Counter(keys)
    positions = {key: hash_to_position(seed, key) for key in copies}
    if len(positions) < 2:
        raise PromptError(
            f"evaluation.held_out: the {len(rows)} rows contain {len(positions)} different prompt(s), too few to hold some "
            "out; add rows, name a set under [evaluation.sets], or set evaluation.held_out = 0"
        )
    ordered = sorted(positions, key=positions.__getitem__)
    # With few rows all can fall on one side; the nearest one then moves, so that neither side is empty.
    count = min(max(sum(position < share for position in positions.values()), 1), len(ordered) - 1)
    wanted = max(least, math.ceil(share * len(ordered))) if least else 0
    chosen = set(ordered[:count])
    taken = sum(copies[key] for key in chosen)
    for key in ordered[count:]:
        # A prompt with too many duplicates to fit is skipped; the search goes on.
        if len(chosen) < wanted and 3 * (taken + copies[key]) <= len(rows):
            chosen.add(key)
            taken += copies[key]
    train = [row for row, key in zip(rows, keys, strict=True) if key not in chosen]
    held_out = [row for row, key in zip(rows, keys, strict=True) if key in chosen]
    return train, held_out


def describe_split(
    train: Sequence[Row],
    held_out: Sequence[Row],
    share: float,
    seed: int,
    prompt_column: str = "prompt",
    template: str = "",
    identify: Identify = lambda row: "",
) -> str:
    """A sentence on how many prompts are held out, and how many of them only to reach the minimum."""
    trained, kept = (set(list_prompt_keys(rows, prompt_column, template, identify)) for rows in (train, held_out))
    added = sum(hash_to_position(seed, key) >= share for key in kept)
    text = f"{len(kept)} of {len(trained) + len(kept)} prompts are held out"
    if not added:
        return text
    return (
        f"{text}. Rows are split by hash (evaluation.held_out = {share:g}); {added} were added to have enough, and can move to training when "
        "rows are added. For a fixed set, name one under [evaluation.sets]"
    )


def list_prompt_keys(rows: Sequence[Row], prompt_column: str, template: str, identify: Identify = lambda row: "") -> list[str]:
    config = PromptsConfig.model_validate({"prompt_column": prompt_column, "template": template})
    keys = [make_content_key(render(row, config, f"prompts, row {index}")) for index, row in enumerate(rows)]
    return [join_identity(key, identify(row)) for key, row in zip(keys, rows, strict=True)]


def hash_to_position(seed: int, key: str) -> float:
    return keyed_share("held_out", seed, key)


def assert_disjoint(train_prompts: Iterable[Prompt], held_out_prompts: Iterable[Prompt], set_name: str) -> None:
    """Refuse an evaluation set that shares questions with training, because its score would measure memory."""
    seen = {make_prompt_key(prompt): prompt.index for prompt in train_prompts}
    shared = [prompt for prompt in held_out_prompts if make_prompt_key(prompt) in seen]
    if shared:
        example = shared[0]
        raise PromptError(
            f"evaluation set {set_name!r}: {len(shared)} of its prompts also occur in training, for example row {example.index} "
            f"(training row {seen[make_prompt_key(example)]}): {make_content_key(example.content)[:80]!r}. Remove them from one of the two"
        )


# ---------------------------------------------------------------------------------------------------------------------
# The stream
# ---------------------------------------------------------------------------------------------------------------------


class PromptStream:
    """The endless sequence of prompts of a run: epochs in different orders, each keyed by (seed, epoch).

    It has no state: `take(cursor, count)` is a pure function, and a checkpoint stores only the cursor.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, shuffle: bool = False) -> None:
        if not prompts:
            raise PromptError("prompts: the list is empty")
        self.prompts = list(prompts)
        self.seed = seed
        self.shuffle = shuffle
        self._orders: dict[int, list[int]] = {}

    def take(self, cursor: int, count: int) -> list[Prompt]:
        """Prompts number cursor to cursor + count - 1."""
        if cursor < 0 or count < 0:
            raise ValueError(f"cursor and count cannot be negative, got {cursor} and {count}")
        size = len(self.prompts)
        return [self.prompts[self._order(place // size)[place % size]] for place in range(cursor, cursor + count)]

    def freeze(self) -> PromptStream:
        """A copy of the stream that later calls of `record` do not change."""
        return self

    def epoch(self, cursor: int) -> float:
        """Epochs up to this cursor."""
        return cursor / len(self.prompts)

    def record(self, verdicts: Mapping[int, tuple[int, int]]) -> None:
        """Record prompt -> (successes, verdicts) of every group of a step. InformativeChoice uses it; this stream does not."""

    def metrics(self) -> dict[str, float]:
        return {}

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            size = len(self.prompts)
            order = keyed_permutation(size, "prompts", self.seed, epoch) if self.shuffle else list(range(size))
            # Except in tiny sets a step spans at most two epochs; older orders are cheap to compute again.
            self._orders = {known: kept for known, kept in self._orders.items() if known == epoch - 1}
            self._orders[epoch] = order
        return self._orders[epoch]


# ---------------------------------------------------------------------------------------------------------------------
# Completions in the rows: demonstrations and preference pairs
# ---------------------------------------------------------------------------------------------------------------------

CHOSEN, REJECTED = "chosen", "rejected"


@dataclass(frozen=True)
class WrittenRow:
    """A prompt and the completions in its row."""

    prompt: Prompt
    completions: tuple[tuple[int, ...], ...]
    """Token ids, best first; each continues the prompt's ids and ends with the stop token."""
    masks: tuple[tuple[bool, ...], ...] = ()
    """Which of these ids are trained on, if some are replies of an environment; (): all."""

    @property
    def longest(self) -> int:
        """Tokens of the prompt and its longest completion together."""
        return len(self.prompt.token_ids) + max(map(len, self.completions))


def make_demonstrations(
    prompts: Sequence[Prompt], codec: ChatCodec, column: str, stop_id: int, dialogues: Mapping[bool, Dialogue]
) -> list[WrittenRow]:
    """Prompts with one completion each: the text in the column, or a list of turns and replies.

    dialogues: of an environment, for texts and for chats.
    """
    return [
        encode_episode(prompt, prompt.columns[column], codec, stop_id, dialogues)
        if isinstance(prompt.columns.get(column), list)
        else encode_row(prompt, [read_demonstration(prompt, column)], codec, stop_id)
        for prompt in prompts
    ]


def encode_episode(
    prompt: Prompt, turns: Sequence[Any], codec: ChatCodec, stop_id: int, dialogues: Mapping[bool, Dialogue]
) -> WrittenRow:
    """A demonstration of several turns: the policy's texts and the replies to them take turns. Replies are not trained on."""
    place = f"cold_start.completion_column: row {prompt.index}"
    if prompt.is_chat not in dialogues:
        raise PromptError(
            f"{place} has a list, a demonstration of several turns, but there is no environment. Give text, or set environment.source."
        )
    if len(turns) % 2 == 0 or not all(isinstance(turn, str) for turn in turns):
        raise PromptError(
            f"{place}: a demonstration of several turns is a list of texts: turn, reply, turn, ..., and ends with a turn."
        )
    ids: list[int] = []
    mask: list[bool] = []
    for number, text in enumerate(turns):
        if number % 2:
            dialogue = dialogues[prompt.is_chat]
            calls = find_calls(turns[number - 1], dialogue.form)[1] if dialogue.form else []
            more = dialogue.encode(dialogue.make_messages([(calls[0].name if calls else "", text)]))[0]
        else:
            more = codec.encode_demonstration(prompt.content, text, stop_id)[1]
        ids += more
        mask += [number % 2 == 0] * len(more)
    return WrittenRow(prompt, (tuple(ids),), (tuple(mask),))


def make_pairs(prompts: Sequence[Prompt], codec: ChatCodec, stop_id: int) -> list[WrittenRow]:
    """Prompts with two completions each: the chosen and the rejected one."""
    pairs = []
    for prompt in prompts:
        pairs.append(encode_row(prompt, [read_preference(prompt, column) for column in (CHOSEN, REJECTED)], codec, stop_id))
        if len(set(pairs[-1].completions)) == 1:
            raise PromptError(f"row {prompt.index}: chosen and rejected are equal; remove the row.")
    return pairs


def encode_row(prompt: Prompt, texts: Sequence[str], codec: ChatCodec, stop_id: int) -> WrittenRow:
    """Encode the completions of a prompt. The prompt ids must be the same as in rollouts."""
    encoded = [codec.encode_demonstration(prompt.content, text, stop_id) for text in texts]
    for prompt_ids, _ in encoded:
        assert prompt_ids == prompt.token_ids, "a completion must continue the same prompt ids as in rollouts"
    return WrittenRow(prompt, tuple(completion_ids for _, completion_ids in encoded))


def read_demonstration(prompt: Prompt, column: str) -> str:
    if column not in prompt.columns:
        raise PromptError(
            f"cold_start.completion_column: row {prompt.index} has no column {column!r} for its demonstration "
            f"(it has {list_columns(prompt.columns)}). Add it, or name the column with the text."
        )
    return str(prompt.columns[column])


def read_preference(prompt: Prompt, column: str) -> str:
    value: Any = prompt.columns.get(column)
    if value is None:
        raise PromptError(
            f'algorithm.data: "pairs" trains on `chosen` and `rejected` completions, and row {prompt.index} has no column '
            f"{column!r} (it has {list_columns(prompt.columns)}). Add them, or build pairs from rollouts with algorithm.data = "
            '"start" (from the policy that the run starts from) or "policy" (from the current policy).'
        )
    if isinstance(value, list):
        last = value[-1] if value else None
        if not isinstance(last, dict) or last.get("role") != "assistant" or not isinstance(last.get("content"), str):
            raise PromptError(
                f"row {prompt.index}: `{column}` is a chat that does not end with an assistant message (as text)."
            )
        return str(last["content"])
    if not isinstance(value, str):
        raise PromptError(f"row {prompt.index}: `{column}` is {type(value).__name__}; give text, or a list of chat messages.")
    return value
