"""A learned outcome reward: any transformers sequence-classification model, with its own tokenizer and chat template.

    reward_model(completions=["4"], prompts=["2+2="], model="path or hub id")   ->   [0.73]

It differs from a simple implementation in four ways. A completion's score does not depend on its batch: rows are right-padded, masked,
and pooled at a token that is never padding, even if the model has no padding token. Too long an input loses the beginning of its
prompt, never a token of the completion, and is counted. Control tokens that a completion spells out ("<|im_end|>") are removed;
otherwise it could end its turn and write praise as the user. And no code of the model is executed: safetensors only, no code from
the hub.

It runs in the trainer's process: the function is `supervised`, and torch is imported at the first call.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.errors import ModelError, RewardError
from cohort.rewards.call import OFFERED
from cohort_verify.text import text_of

TEMPLATES = ("auto", "chat", "plain", "pair")
OVERLONG = ("cut", "refuse")
OUTPUTS = ("score", "probability")
DTYPES = ("auto", "float32", "bfloat16", "float16")
NO_LIMIT = 10**9
"""Tokenizers without a maximum length report a very large number."""
NOWHERE = -1
SEAM = "\ue000"
"""A private-use character in place of the completion, to find its position in a rendered chat template."""
SHORTEST_CONTROL = 3
"""Special tokens with fewer characters (an exclamation mark as padding) are ordinary text in a completion."""
REMEMBER_FAILURE_S = 60.0
"""Time before a failed load is tried again, so that not every completion of the step repeats it."""


def reward_model(
    completions: Sequence[Any],
    prompts: Sequence[Any],
    model: str,
    revision: str = "",
    device: str = "auto",
    dtype: str = "auto",
    template: str = "auto",
    end_token: bool = False,
    head: str | int = "auto",
    output: str = "score",
    max_tokens: int = 0,
    overlong: str = "cut",
    batch_tokens: int = 16384,
    wall_s: float = 10.0,
    log_metric: Callable[[str, float], None] | None = None,
    log_verdict: Callable[..., None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """The model's score of each completion. None, and a fault, if it cannot give one.

    template   format of the input. auto: the tokenizer's chat template for chats, plain for text. chat: a text prompt is one user
               turn. plain: prompt and completion as one text. pair: as a pair of texts, for encoders.
    end_token  end the input with the tokenizer's end token, for models that were trained to be read there.
    head       the label of a good completion, by index or name; auto: the model's only label.
    output     score: the logit of a single label, or the log-odds of one of several. probability: 0 to 1.
    max_tokens longest input, prompt and completion together; 0: the model's maximum. A longer input loses the beginning of its prompt
               (overlong = "cut") or is unscored ("refuse"). A completion that is too long without its prompt is unscored.
    wall_s     seconds per completion; completions that are not scored when the time for all of them is over are unscored.
    """
    refuse_unknown("reward_model", reward_model, columns, len(completions))
    check_choice("template", template, TEMPLATES)
    check_choice("output", output, OUTPUTS)
    loaded = load_model("AutoModelForSequenceClassification", model, revision, device, dtype)
    read_score = make_score_reader(loaded, head, output)
    reading = ModelCall(loaded, max_tokens, overlong, batch_tokens, wall_s, log_metric, log_verdict)
    for prompt, completion in zip(prompts, completions, strict=True):
        text = reading.clean(text_of(completion))
        reading.add(encode(loaded.tokenizer, prompt, text, template, end_token, reading.limit))

    def read(inputs: dict[str, Any], rows: Sequence[Encoded]) -> list[list[float]]:
        values: list[list[float]] = read_score(loaded.model(**inputs).logits.float())[:, None].tolist()
        return values

    return [None if values is None else values[0] for values in reading.score(read)]


reward_model.reads = ("completions", "prompts", "log_metric", "log_verdict")  # type: ignore[attr-defined]
reward_model.supervised = True  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------------------
# Arguments and reports
# ---------------------------------------------------------------------------------------------------------------------


def refuse_unknown(name: str, function: Callable[..., Any], columns: Mapping[str, Any], count: int) -> None:
    """Raise RewardError for keyword arguments that are not columns, which have one entry per completion."""
    for key, value in columns.items():
        if key in OFFERED or (isinstance(value, list | tuple) and len(value) == count):
            continue
        code = function.__code__
        known = [known for known in code.co_varnames[: code.co_argcount] if known not in OFFERED]
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else f". Arguments: {', '.join(known)}."
        raise RewardError(f"{name}: {key!r} is neither an argument nor a column of {count} values{hint}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise RewardError(f"{name}: {value!r} is not one of {', '.join(choices)}.")


# ---------------------------------------------------------------------------------------------------------------------
# Loading
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode with its tokenizer. One thread at a time uses it."""

    source: str
    model: Any
    tokenizer: Any
    window: int
    """Its maximum input in tokens; NO_LIMIT if unknown."""
    pad: int | None
    """The padding token that the model pools by; None: it has none, and each batch uses an ordinary token."""
    special_tokens: tuple[str, ...]
    lock: threading.Lock

    @property
    def labels(self) -> list[str]:
        config = self.model.config
        return [str(config.id2label.get(index, index)) for index in range(config.num_labels)]


_lock = threading.Lock()
_models: dict[tuple[str, ...], LoadedModel] = {}
_failures: dict[tuple[str, ...], tuple[float, ModelError]] = {}


def load_model(kind: str, source: str, revision: str, device: str, dtype: str) -> LoadedModel:
    """This process's only copy of the model. Calls from other threads wait while the first one loads it."""
    if not isinstance(source, str) or not source:
        raise RewardError("model: give the folder or the hub id of the model.")
    check_choice("dtype", dtype, DTYPES)
    key = (kind, source, revision, device, dtype)
    with _lock:
        if key not in _models:
            when, problem = _failures.get(key, (0.0, None))
            if problem is not None and time.monotonic() - when < REMEMBER_FAILURE_S:
                raise ModelError(str(problem))
            try:
                _models[key] = _load(*key)
            except ModelError as failed:
                _failures[key] = (time.monotonic(), failed)
                raise
        return _models[key]


def _load(kind: str, source: str, revision: str, device_name: str, dtype_name: str) -> LoadedModel:
    import torch

    from cohort.model import loading

    device = loading.find_device(device_name, "device")
    if device.type == "cpu" and dtype_name in ("bfloat16", "float16"):
        raise ModelError(f'dtype: {dtype_name} on a CPU is slow, and on some CPUs ends the process; use "float32".')
    dtype: Any = getattr(torch, dtype_name) if dtype_name != "auto" else torch.float32 if device.type == "cpu" else "auto"
    model, tokenizer = loading.load_pretrained(
        source, revision, dtype, device=device, field="model", kind=kind, safetensors_only=True
    )
    model.eval().requires_grad_(False)
    keep_head_precise(model)
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    special = tuple(token for token in {*added, *tokenizer.all_special_tokens} if len(token) >= SHORTEST_CONTROL)
    pad = model.config.get_text_config().pad_token_id
    return LoadedModel(source, model, tokenizer, find_window(model, tokenizer), pad, special, threading.Lock())


def keep_head_precise(model: Any) -> None:
    """Make the head of a half-precision model compute in float32: in bfloat16, scores near 4 are multiples of 1/64."""
    from torch import float32, nn

    for name in ("score", "classifier"):
        head = getattr(model, name, None)
        if isinstance(head, nn.Linear) and head.weight.dtype.itemsize < float32.itemsize:
            head.float()
            head.register_forward_pre_hook(lambda _, arguments: (arguments[0].float(), *arguments[1:]))


def find_window(model: Any, tokenizer: Any) -> int:
    """The longest input of both model and tokenizer. RoBERTa positions start after the id of the padding token."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or NO_LIMIT
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            positions -= module.padding_idx + 1
    return int(min(positions, tokenizer.model_max_length, NO_LIMIT))


# ---------------------------------------------------------------------------------------------------------------------
# Input
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """One input of the model."""

    token_ids: tuple[int, ...]
    types: tuple[int, ...] | None = None
    """token_type_ids, if the tokenizer has them."""
    prompt: tuple[int, int] = (0, 0)
    """First token of the prompt and first token after it, without special tokens: the part that may be cut."""
    read_at: tuple[int, ...] = ()
    """Positions at which a process reward reads each step; NOWHERE for a step that is empty for the model."""

    def without(self, excess: int) -> Encoded:
        """The prompt without its first `excess` tokens."""
        start, end = self.prompt
        keep = [index for index in range(len(self.token_ids)) if not start <= index < start + excess]
        return Encoded(
            tuple(self.token_ids[index] for index in keep),
            None if self.types is None else tuple(self.types[index] for index in keep),
            (start, end - excess),
            tuple(index if index == NOWHERE else index - excess for index in self.read_at),
        )


def encode(tokenizer: Any, prompt: Any, completion: str, template: str, end_token: bool, limit: int) -> Encoded:
    """The input for a prompt and a completion. In a chat the prompt's position is only found if the input exceeds `limit`."""
    is_chat = not isinstance(prompt, str)
    if template == "chat" or (template == "auto" and is_chat):
        text = render_chat(tokenizer, prompt, completion)
        found = tokenize(tokenizer, text, add_special_tokens=False)
        first = int(found["input_ids"][:1] == [tokenizer.bos_token_id])
        # The same conversation with another completion has the same text before the completion. (And longer if both begin
        # alike, so the other one is a character with which no completion begins.)
        too_long = len(found["input_ids"]) + end_token > limit
        seam = count_common_start(text, render_chat(tokenizer, prompt, SEAM)) if too_long else 0
        prompt_span = (first, count_tokens_before(found, seam, first))
    elif template == "pair":
        found = tokenize(tokenizer, join_prompt(prompt), completion)
        parts = found.sequence_ids(0) if tokenizer.is_fast else []
        prompt_span = (parts.index(0), parts.index(0) + parts.count(0)) if 0 in parts else (0, 0)
    else:
        start = join_prompt(prompt)
        found = tokenize(tokenizer, start + completion)
        first = next((index for index, special in enumerate(found["special_tokens_mask"]) if not special), 0)
        prompt_span = (first, count_tokens_before(found, len(start), first))
    ids, types = list(found["input_ids"]), found.get("token_type_ids")
    if end_token and (not ids or ids[-1] != tokenizer.eos_token_id):
        if tokenizer.eos_token_id is None:
            raise RewardError("end_token: the reward model's tokenizer has no end token; leave it at false.")
        ids.append(tokenizer.eos_token_id)
        types = None if types is None else [*types, types[-1] if types else 0]
    return Encoded(tuple(ids), None if types is None else tuple(types), prompt_span)


def tokenize(tokenizer: Any, *texts: str, **options: Any) -> Any:
    """The tokenizer's output with offsets and the mask of special tokens, without warnings about the length."""
    return tokenizer(
        *texts, return_offsets_mapping=tokenizer.is_fast, return_special_tokens_mask=True, verbose=False, **options
    )


def count_tokens_before(found: Any, seam: int, first: int) -> int:
    """Index of the first token from `first` on that ends after `seam` characters."""
    offsets = found.get("offset_mapping")
    if offsets is None:
        return first
    return next((index for index in range(first, len(offsets)) if offsets[index][1] > seam), len(offsets))


def count_common_start(one: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    return next(
        (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def join_prompt(prompt: Any) -> str:
    """A prompt as one text; for a chat, the texts of its messages."""
    return prompt if isinstance(prompt, str) else "\n".join(text_of([message]) for message in prompt)


def render_chat(tokenizer: Any, prompt: Any, completion: str) -> str:
    """The whole conversation. If the prompt ends in an assistant's message, the completion continues it."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(message) for message in prompt]
    if messages and messages[-1].get("role") == "assistant":
        messages[-1]["content"] = text_of(messages) + completion
    else:
        messages.append({"role": "assistant", "content": completion})
    return render_messages(tokenizer, messages)


def render_messages(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    if not tokenizer.chat_template:
        raise RewardError(
            "the prompts are chats (or template is chat), but the reward model's tokenizer has no chat template. For an outcome "
            'reward use template = "pair" (an encoder with question and answer) or "plain" (one text); for a process reward '
            "use text prompts."
        )
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except Exception as problem:  # templates can raise any exception
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise RewardError(f"the reward model's chat template refuses the messages ({roles}): {problem}") from problem


def remove_special_tokens(text: str, special_tokens: Sequence[str], any_case: bool = False) -> tuple[str, int]:
    """(the text without these tokens, number of removed tokens). A token that forms when another is removed is removed too, in one pass."""
    tokens = [token.lower() if any_case else token for token in special_tokens]
    if not any(token in (text.lower() if any_case else text) for token in tokens):
        return text, 0
    ending: dict[str, list[str]] = {}
    for token in sorted(tokens, key=lambda token: (-len(token), token)):
        ending.setdefault(token[-1], []).append(token)
    kept: list[str] = []
    compared: list[str] = []
    removed = 0
    for character in text:
        kept.append(character)
        compared.append(character.lower() if any_case else character)
        for token in ending.get(compared[-1], ()):
            if "".join(compared[-len(token) :]) == token:
                del kept[-len(token) :], compared[-len(token) :]
                removed += 1
                break
    return "".join(kept), removed


# ---------------------------------------------------------------------------------------------------------------------
# One call
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class ModelCall:
    """One call of a learned reward: the inputs of its rows, their batches, and the reported verdicts and metrics."""

    loaded: LoadedModel
    max_tokens: int
    overlong: str
    batch_tokens: int
    wall_s: float
    log_metric: Callable[[str, float], None] | None
    log_verdict: Callable[..., None] | None
    rows: list[Encoded | None] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: {"cut": 0, "refused": 0, "special_tokens": 0})

    def __post_init__(self) -> None:
        check_choice("overlong", self.overlong, OVERLONG)
        if self.batch_tokens < 1:
            raise RewardError(f"batch_tokens: {self.batch_tokens} is not a number of tokens.")
        if not 0 <= self.max_tokens <= self.loaded.window:
            raise RewardError(
                f"max_tokens: {self.max_tokens} is not between 0 and {self.loaded.window}, the longest input of "
                f"{self.loaded.source!r}."
            )

    @property
    def limit(self) -> int:
        """Longest input in tokens."""
        return self.max_tokens or self.loaded.window

    def clean(self, text: str, *also: str) -> str:
        """The text without spelled-out control tokens and without the texts `also`; the removed ones are counted."""
        cleaned, removed = remove_special_tokens(text, (*self.loaded.special_tokens, *also))
        self.counts["special_tokens"] += removed
        return cleaned

    def add(self, encoded: Encoded | None) -> None:
        """Add the next row's input, cut to the limit, or report why that is impossible. None: a row without input."""
        self.rows.append(None if encoded is None else self._fit(encoded))

    def _fit(self, encoded: Encoded) -> Encoded | None:
        length, (start, end) = len(encoded.token_ids), encoded.prompt
        if not length:
            self.report_fault(len(self.rows), "prompt and completion are both empty, which the model cannot read")
            return None
        if length <= self.limit:
            return encoded
        if self.overlong == "cut" and length - self.limit <= end - start:
            self.counts["cut"] += 1
            return encoded.without(length - self.limit)
        self.counts["refused"] += 1
        reason = (
            "the completion alone is too long" if self.overlong == "cut" else "and overlong = refuse forbids cutting prompts"
        )
        self.report_fault(
            len(self.rows),
            f"the input has {length} tokens, more than the limit of {self.limit} (max_tokens), {reason}. Lower "
            "max_completion_tokens, or use a reward model with a longer input.",
        )
        return None

    def report_fault(self, row: int, detail: str) -> None:
        if self.log_verdict is not None:
            self.log_verdict(row, "infrastructure", detail)

    def score(self, read: Callable[[dict[str, Any], Sequence[Encoded]], list[list[float]]]) -> list[list[float] | None]:
        """The values that `read` returns for each row, in padded batches of batch_tokens, until the time is over. None: unscored."""
        from torch import no_grad

        results: list[list[float] | None] = [None] * len(self.rows)
        late = {row for row, encoded in enumerate(self.rows) if encoded is not None}
        with no_grad(), self.loaded.lock:
            for members, encoded, inputs in self._batches():
                for row, values in zip(members, read(inputs, encoded), strict=True):
                    late.remove(row)
                    broken = [value for value in values if not abs(value) < float("inf")]
                    if broken:
                        self.report_fault(row, f"the model's score is {broken[0]}, which is not a finite number")
                        continue
                    results[row] = values
                    if self.log_verdict is not None:  # for progress reports
                        self.log_verdict(row, "scored")
        for row in sorted(late):
            self.report_fault(
                row,
                f"not scored in time: {len(self.rows)} completions x {self.wall_s:g} s (timeout_s) are over. Raise timeout_s, or "
                "use a smaller model, a faster device or larger batch_tokens.",
            )
        if self.log_metric is not None:
            for name, number in self.counts.items():
                self.log_metric(name, float(number))
        return results

    def _batches(self) -> Iterator[tuple[list[int], list[Encoded], dict[str, Any]]]:
        """(row numbers, the rows, padded inputs), until the time is over. The model's lock is held."""
        from cohort.model.packing import cut_by_tokens

        deadline = time.monotonic() + self.wall_s * len(self.rows)
        present = {index: row for index, row in enumerate(self.rows) if row is not None}
        lengths = [0 if row is None else len(row.token_ids) for row in self.rows]
        config = self.loaded.model.config.get_text_config()
        for members in cut_by_tokens(list(present), lengths, self.batch_tokens):
            # No row may end in the token used for padding, so at least one token of the vocabulary must not end a row.
            size = len(members) if self.loaded.pad is not None else max(1, config.vocab_size - 1)
            for start in range(0, len(members), size):
                if time.monotonic() > deadline:
                    return
                part = members[start : start + size]
                encoded = [present[index] for index in part]
                config.pad_token_id = pad = self.loaded.pad if self.loaded.pad is not None else find_unused_end(encoded)
                yield part, encoded, pad_rows(encoded, pad, self.loaded)


def find_unused_end(rows: Sequence[Encoded]) -> int:
    """A token that ends none of the rows. It can serve as padding wherever else it occurs, since transformers pools at the last token
    that is not padding."""
    ends = {row.token_ids[-1] for row in rows}
    return next(token for token in range(len(rows) + 1) if token not in ends)


def pad_rows(rows: Sequence[Encoded], pad: int, loaded: LoadedModel) -> dict[str, Any]:
    """The rows as right-padded tensors: a causal model never sees the padding, and positions count from the first token."""
    import torch

    width = max(len(row.token_ids) for row in rows)

    def tensor(lists: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
        return torch.tensor([[*values, *[filler] * (width - len(values))] for values in lists], device=loaded.model.device)

    inputs = {
        "input_ids": tensor([row.token_ids for row in rows], pad),
        "attention_mask": tensor([[1] * len(row.token_ids) for row in rows], 0),
    }
    if all(row.types is not None for row in rows):
        inputs["token_type_ids"] = tensor([row.types or () for row in rows], loaded.tokenizer.pad_token_type_id)
    return inputs


# ---------------------------------------------------------------------------------------------------------------------
# From logits to a score
# ---------------------------------------------------------------------------------------------------------------------


def make_score_reader(loaded: LoadedModel, head: str | int, output: str) -> Callable[[Any], Any]:
    """A function from float32 logits to one number per row."""
    problem, chosen = loaded.model.config.problem_type, find_label(loaded, head)
    if problem == "regression" and output == "probability":
        raise RewardError(f'output: {loaded.source!r} is a regression model, which gives no probabilities; use "score".')
    others = [index for index in range(len(loaded.labels)) if index != chosen]
    independent = not others or problem in ("regression", "multi_label_classification")

    def read(logits_BL: Any) -> Any:
        score_B = logits_BL[:, chosen]
        if not independent:
            score_B = score_B - logits_BL[:, others].logsumexp(dim=1)
        return score_B.sigmoid() if output == "probability" else score_B

    return read


def find_label(loaded: LoadedModel, head: str | int) -> int:
    labels = loaded.labels
    if head == "auto" and len(labels) == 1:
        return 0
    if isinstance(head, int) and not isinstance(head, bool) and 0 <= head < len(labels):
        return head
    if isinstance(head, str) and labels.count(head) == 1:
        return labels.index(head)
    listed = ", ".join(f"{index} {label!r}" for index, label in enumerate(labels))
    raise RewardError(f"head: {head!r} is not a label of {loaded.source!r}; its labels are {listed}. Give an index or a name.")
