"""Converts prompts and completions to token ids and back. Chat templates are applied only here.

The engine receives these ids and the trainer scores them; nothing is tokenised again later. Mistakes such as a second BOS, an EOS at
the end of a prompt or a template applied twice can therefore only start here, and the tests look for them here.
"""

from __future__ import annotations

import codecs
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest
from cohort.types import Message

Content = str | list[Message]

MARKER = "cohort-assistant-content"


class ChatCodec:
    """Encodes and decodes with one tokenizer."""

    def __init__(self, tokenizer: Any, template_args: Mapping[str, Any] | None = None) -> None:
        """template_args: arguments of the chat template in addition to the messages."""
        self.tokenizer, self.template_args = tokenizer, dict(template_args or {})

    def use_template_args(self, template_args: Mapping[str, Any], field: str) -> ChatCodec:
        """A codec with the same tokenizer and these template arguments. Raises PromptError if the template does not read one of them."""
        if template_args and self.tokenizer.chat_template:
            refuse_unread(template_args, self.tokenizer, field)
        return ChatCodec(self.tokenizer, template_args)

    def encode(self, content: Content) -> tuple[int, ...]:
        """Token ids of a prompt: plain text for a base model, or a chat rendered up to the assistant's turn."""
        if isinstance(content, str):
            return self._drop_added_eos(content, self._drop_extra_bos(self.tokenizer(content)["input_ids"]))
        return self._drop_extra_bos(self._apply_template(content, tokenize=True))

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of the ids, without special tokens and with spaces exactly as in the tokens."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of every row. The Rust tokenizer decodes all rows in one call, on all cores."""
        tokenizer = self.tokenizer
        if not can_decode_in_rust(tokenizer):
            return [self.decode(row) for row in rows]
        texts: list[str] = tokenizer.backend_tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=True)
        return texts

    @cached_property
    def token_texts(self) -> TokenTextReader:
        return TokenTextReader(self.tokenizer, can_decode_in_rust(self.tokenizer))

    def encode_demonstration(
        self, content: Content, completion_text: str, stop_id: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(prompt ids, completion ids) for imitation.

        The prompt ids equal `encode(content)`. Tokenising prompt and completion together could merge tokens across the boundary,
        and the model would be trained on a prompt that it is never sampled from. The completion ends with the stop id, or in a
        chat with the template's end-of-turn token, if it has one.
        """
        end_of_turn = None if isinstance(content, str) else find_end_of_turn_id(self.tokenizer)
        end_id = stop_id if end_of_turn is None else end_of_turn
        completion_ids = self.tokenizer(completion_text, add_special_tokens=False)["input_ids"]
        return self.encode(content), (*completion_ids, end_id)

    def prefills_think(self, content: Content) -> bool:
        """Whether the rendered prompt ends inside <think>, so that completions have no opening tag."""
        text = content if isinstance(content, str) else self._apply_template(content, tokenize=False)
        return text.rstrip().endswith("<think>")

    def _apply_template(self, messages: list[Message], tokenize: bool) -> Any:
        if not self.tokenizer.chat_template:
            raise PromptError(
                "the prompts are chats, but the tokenizer has no chat template. Use an instruction-tuned model, set "
                "prompts.chat_template to a template, or use text prompts: leave prompts.system empty and write the question as text with "
                "prompts.template"
            )
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages,
                tokenize=tokenize,
                add_generation_prompt=True,
                return_dict=False,
                **self.template_args,
            )
        except Exception as problem:  # templates raise anything, for example "system role not supported" or Jinja's own errors
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise PromptError(f"the chat template refuses the messages ({roles}): {problem}") from problem
        # One conversation is a flat list of ids in some versions of transformers and a batch of one in others.
        return rendered[0] if tokenize and rendered and isinstance(rendered[0], list) else rendered

    def _drop_extra_bos(self, token_ids: list[int]) -> tuple[int, ...]:
        """Drop the second BOS that the tokenizer adds to a text or template with its own; models are not trained on two."""
        bos = self.tokenizer.bos_token_id
        extra = 0
        while bos is not None and token_ids[extra : extra + 2] == [bos, bos]:
            extra += 1
        return tuple(token_ids[extra:])

    def _drop_added_eos(self, text: str, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Drop the EOS that some tokenizers add to every text: a prompt that has ended cannot be continued."""
        eos = self.tokenizer.eos_token_id
        if eos is None or not token_ids or token_ids[-1] != eos:
            return token_ids
        plain = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids if plain and plain[-1] == eos else token_ids[:-1]


# -- templates ---------------------------------------------------------------------------------------------------------


def read_template(value: str) -> str:
    """The text of a chat template: `value` itself, or the contents of that file. It must be Jinja and read the messages."""
    text = value
    if "{" not in value:
        try:
            text = Path(value).expanduser().read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        except (OSError, UnicodeDecodeError) as problem:
            reason = "no such file" if isinstance(problem, FileNotFoundError) else problem
            raise PromptError(f"prompts.chat_template: {value}: {reason}. Name a file with a Jinja template") from problem
    if "messages" not in find_template_variables(text, "prompts.chat_template"):
        raise PromptError(
            f"prompts.chat_template: {text[:40]!r} never reads `messages`, so every prompt would be the same. A template loops over "
            "them: {% for message in messages %}...{% endfor %}"
        )
    return text


def refuse_blank_template(tokenizer: Any) -> None:
    """Raise PromptError for a template that leaves out the user's message, for example because it misspells `content`."""
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": MARKER}], tokenize=False, add_generation_prompt=True)
    except Exception:
        return  # it may need other roles or arguments; the prompts are rendered next, and errors are reported then
    if MARKER not in text.lower():
        raise PromptError(
            f"prompts.chat_template: the rendered text ({text[:60]!r}) does not contain the user's message, so every prompt would be the "
            "same. The template must write message['content'] of every message"
        )


def find_template_variables(template: str, field: str) -> set[str]:
    """Names of the variables that a template reads."""
    from jinja2 import TemplateError, meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:  # in the environment that will render it, which has more tags than Jinja itself
        return meta.find_undeclared_variables(_compile_jinja_template(template).environment.parse(template))
    except TemplateError as problem:
        raise PromptError(f"{field}: it is not a Jinja template ({problem})") from problem


def refuse_unread(template_args: Mapping[str, Any], tokenizer: Any, field: str) -> None:
    """Raise PromptError for arguments that the template does not read or that the trainer sets itself."""
    ours = {*inspect.signature(type(tokenizer).apply_chat_template).parameters, "messages"} - {"tools", "documents"}
    read = find_template_variables(tokenizer.get_chat_template(), field) - ours - set(tokenizer.special_tokens_map)
    for name in template_args:
        if name in ours:
            raise PromptError(f"{field}: {name!r} is set by the trainer. Leave it out")
        if name not in read:
            has = f"it reads {', '.join(sorted(read))}{suggest_nearest(name, read)}" if read else "it reads no arguments"
            raise PromptError(f"{field}: the chat template does not read {name!r} ({has}), so it has no effect. Leave it out")


def find_end_of_turn_id(tokenizer: Any) -> int | None:
    """The added token that the chat template writes right after an assistant message; None if there is none."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARKER}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:
        # A template may refuse such a chat (own roles, mandatory tools). There are other sources of stop tokens.
        return None
    after = text.rpartition(MARKER)[2].lstrip()
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    # Longest first, since an added token may be the beginning of another.
    return next((added[token] for token in sorted(added, key=len, reverse=True) if token and after.startswith(token)), None)


# -- the text of single tokens -----------------------------------------------------------------------------------------

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""Notation for single bytes in tokenizers whose tokens are characters."""


def make_byte_alphabet() -> dict[str, int]:
    """The characters that byte-level tokenizers (GPT-2 and its successors) write bytes with; printable ones stand for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_ALPHABET = make_byte_alphabet()


def can_decode_in_rust(tokenizer: Any) -> bool:
    """Whether `decode` is the Rust tokenizer's, not overridden by the tokenizer's class."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.decode is PreTrainedTokenizerFast.decode
        and kind._decode is PreTrainedTokenizerFast._decode
    )


class TokenTextReader:
    """The text of every single token. Joined, the texts of a completion are its whole text.

    Decoding ids one by one is not enough: a character may be split over several tokens, each of which decodes to a replacement
    character, and some tokenizers drop a leading space. So every token is read as bytes, and its text is the characters that its bytes
    complete: of a character in three tokens, the first two have no text and the third has all of it. Bytes that never become a
    character are a replacement character, as in the whole text. Tokens are cached.
    """

    def __init__(self, tokenizer: Any, in_rust: bool) -> None:
        """in_rust: whether `decode` is the Rust tokenizer's, which decodes many rows in one call."""
        self.tokenizer, self.in_rust = tokenizer, in_rust
        self.first: dict[int, bytes] = {}
        """Bytes of a token at the beginning of a text."""
        self.later: dict[int, bytes] = {}
        """Bytes of a token after another."""
        self.complete: dict[int, str] = {}
        """`later` as text, for tokens of complete characters: nearly all of them."""

    def read_texts(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        """The texts of every row's tokens. Special tokens have their names, so that the end of a completion is visible."""
        self._look_up([token for token in dict.fromkeys(token for row in rows for token in row) if token not in self.first])
        return [self._join_bytes(row) for row in rows]

    def _join_bytes(self, row: Sequence[int]) -> list[str]:
        complete = [self.complete.get(token) for token in row[1:]]
        if row and None not in complete and row[0] in self.complete:
            return [self.first[row[0]].decode(), *complete]  # type: ignore[list-item]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode((self.later if place else self.first)[token]) for place, token in enumerate(row)]
        if texts:
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    def _look_up(self, tokens: Sequence[int]) -> None:
        """Decode each token once and twice in a row: the difference is its text after another token."""
        once, twice = self._decode([[token] for token in tokens]), self._decode([[token, token] for token in tokens])
        for token, alone, double in zip(tokens, once, twice, strict=True):
            later = double[len(alone) :] if double.startswith(alone) else alone
            self.first[token], self.later[token] = self._find_bytes(token, alone), self._find_bytes(token, later)
            if REPLACEMENT not in alone + later:
                self.complete[token] = self.later[token].decode()

    def _decode(self, rows: list[list[int]]) -> list[str]:
        if self.in_rust:
            texts: list[str] = self.tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
            return texts
        return [self.tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False) for row in rows]

    def _find_bytes(self, token: int, text: str) -> bytes:
        """Bytes of a token's text, or of its name if the token is a part of a character."""
        if REPLACEMENT in text:
            name = str(self.tokenizer.convert_ids_to_tokens(token))
            if match := BYTE_TOKEN.fullmatch(name):
                return bytes([int(match[1], 16)])
            if name and all(character in BYTE_ALPHABET for character in name):
                return bytes(BYTE_ALPHABET[character] for character in name)
        return text.encode("utf-8", "replace")
