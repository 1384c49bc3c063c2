r"""A learned process reward: a model that gives the probability of being right for every step of a completion.

    process_reward_model(completions=["2+2=4\n4*3=13"], prompts=["(2+2)*3="], model="path or hub id")
        ->  [[(6, 0.97), (12, 0.08)]]          (position of the step's last character, probability)

There are two kinds of models, chosen by `style`:

    token_classification   a label per token. Each step is tokenised on its own and ended with the separator, as TRL trains these
                           models, and the label is read at the separator's last token.
    marker                 a causal language model. A marker follows each step, and the probability is that of the "good" token
                           against the "bad" token after the marker (Math-Shepherd).

Positions come from cohort.rewards.steps.split_steps, in characters of the original text, never from tokens: the model's input differs
from that text (added markers, removed control tokens).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from cohort.errors import RewardError
from cohort.rewards.learned.model import (
    NOWHERE,
    Encoded,
    LoadedModel,
    ModelCall,
    check_choice,
    count_tokens_before,
    find_label,
    load_model,
    refuse_unknown,
    render_messages,
    tokenize,
)
from cohort.rewards.steps import Step, split_steps
from cohort_verify.text import text_of

STYLES = {"token_classification": "AutoModelForTokenClassification", "marker": "AutoModelForCausalLM"}

StepRewards = list[tuple[int, float]]


def process_reward_model(
    completions: Sequence[Any],
    prompts: Sequence[Any],
    model: str,
    style: str = "token_classification",
    revision: str = "",
    device: str = "auto",
    dtype: str = "auto",
    step_separator: str = "\n",
    step_heading: str = "",
    between: str = "",
    head: str | int = "auto",
    marker: str = " ки",
    good: str = "+",
    bad: str = "-",
    max_tokens: int = 0,
    overlong: str = "cut",
    batch_tokens: int = 16384,
    wall_s: float = 10.0,
    log_metric: Callable[[str, float], None] | None = None,
    log_verdict: Callable[..., None] | None = None,
    **columns: Any,
) -> list[StepRewards | None]:
    """(position, probability of being right) for every step. An empty list, for no steps, is worth 0.

    step_separator  ends a step; step_heading (such as "Step"), if set, begins one instead if a number and ":" or "." follow.
    between         text between a text prompt and the completion in the model's input.
    head            token_classification: the label of a right step, by index or name; auto: the only one, or the second of two.
    marker, good, bad    marker: the text after each step, and the two tokens that are compared there.
    max_tokens, overlong, batch_tokens, wall_s    as for reward_model.
    """
    refuse_unknown("process_reward_model", process_reward_model, columns, len(completions))
    check_choice("style", style, tuple(STYLES))
    loaded = load_model(STYLES[style], model, revision, device, dtype)
    reading = ModelCall(loaded, max_tokens, overlong, batch_tokens, wall_s, log_metric, log_verdict)
    reader: Labels | Markers
    if style == "marker":
        reader = Markers(loaded, marker, good, bad)
    else:
        reader = Labels(loaded, head, "" if step_heading else step_separator)
    ends: list[list[int]] = []
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        text = text_of(completion)
        steps = find_steps(text, step_separator, step_heading)
        ends.append([step.end for step in steps])
        encoded = reader.encode(prompt, between, cut_pieces(text, steps), reading) if steps else None
        if steps and encoded is None:
            reading.report_fault(
                row, f"the marker {marker!r} is not tokenised separately from the text of a step; choose another marker"
            )
        reading.add(encoded)
    scored = reading.score(lambda inputs, rows: reader.read(inputs, [encoded.read_at for encoded in rows]))
    return [
        [] if not found else None if values is None else list(zip(found, values, strict=True))
        for found, values in zip(ends, scored, strict=True)
    ]


process_reward_model.reads = ("completions", "prompts", "log_metric", "log_verdict")  # type: ignore[attr-defined]
process_reward_model.supervised = True  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------------------------------------------------


def find_steps(text: str, separator: str, heading: str) -> list[Step]:
    """The steps of a text. Separator and heading are literal: a user's regular expression may never finish on a hostile text, and
    nothing can stop it in the trainer."""
    if not heading:
        return split_steps(text, separator)
    return split_steps(text, pattern=rf"(?={re.escape(heading)} ?\d{{1,4}}[:.])")


def cut_pieces(text: str, steps: Sequence[Step]) -> list[tuple[str, str]]:
    """(the step's text, the separator and empty lines after it) for each step, without white space before the first one."""
    start = 0
    pieces = []
    for step in steps:
        written = text[start : step.end]
        said = written.find(step.text) + len(step.text)
        pieces.append((step.text, written[said:]))
        start = step.end
    return pieces


# ---------------------------------------------------------------------------------------------------------------------
# A label per token
# ---------------------------------------------------------------------------------------------------------------------


class Labels:
    """Reads the probability of one label at the token that ends a step."""

    def __init__(self, loaded: LoadedModel, head: str | int, closing: str) -> None:
        self.loaded = loaded
        self.label = 1 if head == "auto" and len(loaded.labels) == 2 else find_label(loaded, head)
        self.closing_ids = self.ids(closing) if closing else []

    def ids(self, text: str) -> list[int]:
        return list(self.loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def encode(self, prompt: Any, between: str, pieces: Sequence[tuple[str, str]], reading: ModelCall) -> Encoded:
        from cohort.model.chat import ChatCodec

        tokenizer = self.loaded.tokenizer
        prompt_ids = list(ChatCodec(tokenizer).encode(prompt + between if isinstance(prompt, str) else prompt))
        kept = int(bool(prompt_ids) and prompt_ids[0] in (tokenizer.bos_token_id, tokenizer.cls_token_id))
        token_ids, read_at = list(prompt_ids), []
        for said, _ in pieces:
            said_ids = self.ids(reading.clean(said))
            token_ids += said_ids + self.closing_ids
            read_at.append(len(token_ids) - 1 if said_ids else NOWHERE)
        return Encoded(tuple(token_ids), None, (kept, len(prompt_ids)), tuple(read_at))

    def read(self, inputs: dict[str, Any], places: Sequence[Sequence[int]]) -> list[list[float]]:
        logits_BTL = self.loaded.model(**inputs).logits.float()
        single = logits_BTL.shape[-1] == 1
        right_BT = logits_BTL[..., 0].sigmoid() if single else logits_BTL.softmax(dim=-1)[..., self.label]
        return pick_values(right_BT.tolist(), places)


# ---------------------------------------------------------------------------------------------------------------------
# A marker after each step
# ---------------------------------------------------------------------------------------------------------------------


class Markers:
    """Reads, at a marker written after each step, the probability of the good token against the bad one."""

    def __init__(self, loaded: LoadedModel, marker: str, good: str, bad: str) -> None:
        self.loaded, self.marker = loaded, marker
        if not marker or marker[-1].isspace():
            raise RewardError(f"marker: {marker!r} must end in a visible character, or it would merge with the text after it.")
        if not loaded.tokenizer.is_fast:
            raise RewardError(f"model: {loaded.source!r} has a slow tokenizer, which cannot locate the markers.")
        self.candidates = [self.token("good", good), self.token("bad", bad)]
        if self.candidates[0] == self.candidates[1]:
            raise RewardError(f"good and bad: {good!r} and {bad!r} are the same token of {loaded.source!r}.")
        # If the model supports it, logits are computed only at the markers.
        self.keeps = "logits_to_keep" in inspect.signature(loaded.model.forward).parameters

    def token(self, name: str, text: str) -> int:
        found = self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(found) != 1 or found[0] == self.loaded.tokenizer.unk_token_id:
            raise RewardError(f"{name}: {text!r} is not one token of {self.loaded.source!r} (ids {list(found)}).")
        return int(found[0])

    def encode(self, prompt: Any, between: str, pieces: Sequence[tuple[str, str]], reading: ModelCall) -> Encoded | None:
        """The input as one text, tokenised at once, as these models are trained. None: a marker merges with the text next to it.

        Markers in the completion itself are removed: they would look like the end of a step.
        """
        tokenizer = self.loaded.tokenizer
        if isinstance(prompt, str):
            text = prompt + between
        else:
            text = render_messages(tokenizer, prompt, add_generation_prompt=True)
        seam = len(text)
        spans: list[tuple[int, int]] = []
        visible: list[bool] = []
        for said, after in pieces:
            clean = reading.clean(said, self.marker.strip())
            visible.append(bool(clean.strip()))
            text += clean
            if visible[-1]:
                spans.append((len(text), len(text) + len(self.marker)))
                text += self.marker
            text += after
        found = tokenize(tokenizer, text, add_special_tokens=isinstance(prompt, str))
        ids, offsets, special = found["input_ids"], found["offset_mapping"], found["special_tokens_mask"]
        tokens = find_tokens(offsets, special, spans)
        if tokens is None:
            return None
        following = iter(tokens)
        read_at = [next(following) if seen else NOWHERE for seen in visible]
        first = next((index for index, mask in enumerate(special) if not mask), 0)
        first += int(ids[first : first + 1] == [tokenizer.bos_token_id])
        return Encoded(tuple(ids), None, (first, count_tokens_before(found, seam, first)), tuple(read_at))

    def read(self, inputs: dict[str, Any], places: Sequence[Sequence[int]]) -> list[list[float]]:
        import torch

        model = self.loaded.model
        kept = sorted({place for found in places for place in found if place != NOWHERE})
        if not kept:
            return [[0.0] * len(found) for found in places]
        if self.keeps:
            keep_K = torch.tensor(kept, device=model.device)
            logits_BKV = model(**inputs, logits_to_keep=keep_K, use_cache=False).logits
        else:
            logits_BKV = model(**inputs, use_cache=False).logits[:, kept]
        good_BK, bad_BK = logits_BKV[..., self.candidates].float().unbind(-1)
        column = {place: index for index, place in enumerate(kept)} | {NOWHERE: NOWHERE}
        return pick_values((good_BK - bad_BK).sigmoid().tolist(), [[column[place] for place in found] for found in places])


def pick_values(values_BT: Sequence[Sequence[float]], places: Sequence[Sequence[int]]) -> list[list[float]]:
    """The values at these places of each row. A step that is empty for the model is worth 0: it must not get the score of the step
    before it."""
    return [
        [0.0 if place == NOWHERE else values_T[place] for place in found]
        for values_T, found in zip(values_BT, places, strict=True)
    ]


def find_tokens(
    offsets: Sequence[tuple[int, int]], special: Sequence[int], spans: Sequence[tuple[int, int]]
) -> list[int] | None:
    """The last token of each span of characters; None if a token crosses the border of a span.

    A character of several bytes may be several tokens with the same offsets: the last one counts.
    """
    found: list[int] = []
    index = 0
    for start, end in spans:
        last = -1
        while index < len(offsets) and (special[index] or offsets[index][0] < end):
            if not special[index] and offsets[index][1] > start:
                last = index
            index += 1
        if last < 0 or offsets[last][0] < start or offsets[last][1] != end:
            return None
        found.append(last)
    return found
