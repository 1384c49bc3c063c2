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
from cohort.recipe.section import suggest_nearest
from cohort.types import Message

Content = str | list[Message]

MARKER = "cohort-assistant-content"


class ChatCodec:
    """Encodes and decodes with one tokenizer."""

    def __init__(self, tokenizer: Any, template_args: Mapping[str, Any] | None = None) -> None:
        """`template_args`: what the chat template is told beside the messages."""
        self.tokenizer, self.template_args = tokenizer, dict(template_args or {})

    def use_template_args(self, template_args: Mapping[str, Any], field: str) -> ChatCodec:
        """The same tokenizer, its template rendered with these arguments; PromptError where it reads none of that name."""
        if template_args and self.tokenizer.chat_template:
            refuse_unread(template_args, self.tokenizer, field)
        return ChatCodec(self.tokenizer, template_args)

    def encode(self, content: Content) -> tuple[int, ...]:
        """Token ids of a prompt: text as a base model reads it, or a chat rendered up to the assistant's turn."""
        if isinstance(content, str):
            return self._drop_added_eos(content, self._drop_extra_bos(self.tokenizer(content)["input_ids"]))
        return self._drop_extra_bos(self._apply_template(content, tokenize=True))

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of the ids: special tokens left out, spaces exactly as the tokens have them."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of every row. The Rust tokenizer takes them all in one call, on all cores; others take them one by one."""
        tokenizer = self.tokenizer
        if not can_decode_in_rust(tokenizer):
            return [self.decode(row) for row in rows]
        texts: list[str] = tokenizer.backend_tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=True)
        return texts

    @cached_property
    def pieces(self) -> PieceReader:
        """What single tokens say."""
        return PieceReader(self.tokenizer, can_decode_in_rust(self.tokenizer))

    def encode_demonstration(
        self, content: Content, completion_text: str, stop_id: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(prompt ids, completion ids) for imitation.

        The prompt ids equal `encode(content)`: tokenising prompt and completion in one go could merge across the seam,
        and the model would be trained on a prompt it is never sampled from. The completion ends with the stop id; in a
        chat that is the template's end of turn, where the template has one.
        """
        end_id = stop_id if isinstance(content, str) else self.find_end_of_turn_id(stop_id)
        completion_ids = self.tokenizer(completion_text, add_special_tokens=False)["input_ids"]
        return self.encode(content), (*completion_ids, end_id)

    def find_end_of_turn_id(self, default: int) -> int:
        found = find_end_of_turn_id(self.tokenizer)
        return default if found is None else found

    def prefills_think(self, content: Content) -> bool:
        """Whether the rendered prompt ends inside <think>: completions then hold no opening tag of their own."""
        text = content if isinstance(content, str) else self._apply_template(content, tokenize=False)
        return text.rstrip().endswith("<think>")

    def _apply_template(self, messages: list[Message], tokenize: bool, add_generation_prompt: bool = True) -> Any:
        if not self.tokenizer.chat_template:
            raise PromptError(
                "the prompts are chats, but the tokenizer has no chat template. Use an instruction-tuned model, or give text "
                "prompts: prompts.system empty, and prompts.template to write the question as text. A template of your own is "
                "prompts.chat_template"
            )
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages,
                tokenize=tokenize,
                add_generation_prompt=add_generation_prompt,
                return_dict=False,
                **self.template_args,
            )
        except Exception as problem:  # Templates raise whatever they like: "system role not supported", jinja's own errors.
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise PromptError(f"the chat template refuses the messages ({roles}): {problem}") from problem
        # One conversation is a flat list of ids in some versions of transformers and a batch of one in others.
        return rendered[0] if tokenize and rendered and isinstance(rendered[0], list) else rendered

    def _drop_extra_bos(self, token_ids: list[int]) -> tuple[int, ...]:
        """A text or template that writes BOS itself gets a second one from the tokenizer; models are not trained on two."""
        bos = self.tokenizer.bos_token_id
        extra = 0
        while bos is not None and token_ids[extra : extra + 2] == [bos, bos]:
            extra += 1
        return tuple(token_ids[extra:])

    def _drop_added_eos(self, text: str, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Some tokenizers end every text with EOS; a prompt that has ended cannot be continued."""
        eos = self.tokenizer.eos_token_id
        if eos is None or not token_ids or token_ids[-1] != eos:
            return token_ids
        plain = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids if plain and plain[-1] == eos else token_ids[:-1]


def read_template(value: str) -> str:
    """The text of a chat template: `value` itself, or what the file of that name holds. It must be Jinja, and read the messages."""
    text = value
    if "{" not in value:
        try:
            text = Path(value).expanduser().read_text(encoding="utf-8-sig")  # the mark of some editors is no text
        except (OSError, UnicodeDecodeError) as problem:
            reason = "no such file" if isinstance(problem, FileNotFoundError) else problem
            raise PromptError(f"prompts.chat_template: {value}: {reason}; name a file that holds a Jinja template") from problem
    if "messages" not in find_template_words(text, "prompts.chat_template"):
        raise PromptError(
            f"prompts.chat_template: {text[:40]!r} never reads `messages`, so every prompt would be the same; a template loops over "
            "them: {% for message in messages %}...{% endfor %}"
        )
    return text


def refuse_blank_template(tokenizer: Any) -> None:
    """A template that loops over the messages and misspells `content` would ask the same of every row."""
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": MARKER}], tokenize=False, add_generation_prompt=True)
    except Exception:
        return  # it may want other roles or arguments; the prompts themselves are rendered next, and what it refuses is said then
    if MARKER not in text.lower():
        raise PromptError(
            f"prompts.chat_template: what the user says is not in what it renders ({text[:60]!r}), so every prompt would be the same; it "
            "must write message['content'] of every message"
        )


def find_template_words(template: str, field: str) -> set[str]:
    """Names that a template reads from outside."""
    from jinja2 import TemplateError, meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:  # in the environment that will render it, whose tags are more than Jinja's own
        return meta.find_undeclared_variables(_compile_jinja_template(template).environment.parse(template))
    except TemplateError as problem:
        raise PromptError(f"{field}: it is not a Jinja template ({problem})") from problem


def refuse_unread(template_args: Mapping[str, Any], tokenizer: Any, field: str) -> None:
    """An argument that the template never reads would be accepted and do nothing; one that is set here would be set twice."""
    ours = {*inspect.signature(type(tokenizer).apply_chat_template).parameters, "messages"} - {"tools", "documents"}
    read = find_template_words(tokenizer.get_chat_template(), field) - ours - set(tokenizer.special_tokens_map)
    for name in template_args:
        if name in ours:
            raise PromptError(f"{field}: {name!r} is set by the trainer itself; leave it out")
        if name not in read:
            has = f"it reads {', '.join(sorted(read))}{suggest_nearest(name, read)}" if read else "it takes none"
            raise PromptError(
                f"{field}: the chat template does not read {name!r} ({has}), so it would change nothing. Leave it out"
            )


def can_decode_in_rust(tokenizer: Any) -> bool:
    """Whether `decode` is the Rust tokenizer's decoding and nothing else: a class with a decoding of its own is left to it."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.decode is PreTrainedTokenizerFast.decode
        and kind._decode is PreTrainedTokenizerFast._decode
    )


def find_end_of_turn_id(tokenizer: Any) -> int | None:
    """The added token that the chat template writes right after an assistant message; None where there is none."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARKER}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:
        # A template may refuse such a chat (its own roles, mandatory tools); the other sources still hold.
        return None
    after = text.rpartition(MARKER)[2].lstrip()
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    # Longest first: one added token may begin another.
    return next((added[token] for token in sorted(added, key=len, reverse=True) if token and after.startswith(token)), None)


# -- the text of single tokens ----------------------------------------------------------------------------------------


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How tokenizers with characters for pieces write a byte that is none of them."""


def make_byte_alphabet() -> dict[str, int]:
    """The characters that byte-level tokenizers (GPT-2's and its heirs') write bytes with: printable ones stand for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_ALPHABET = make_byte_alphabet()


class PieceReader:
    """Reads the pieces of completions. Tokens are looked up once and remembered."""

    def __init__(self, tokenizer: Any, in_rust: bool) -> None:
        """in_rust: whether `decode` is the Rust tokenizer's, which takes many rows in one call."""
        self.tokenizer, self.in_rust = tokenizer, in_rust
        self.first: dict[int, bytes] = {}
        """What a token says at the beginning of a text."""
        self.later: dict[int, bytes] = {}
        """What it says behind another."""
        self.whole: dict[int, str] = {}
        """The same as text, of tokens that are whole characters by themselves: nearly all of them."""

    def read_pieces(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        """The pieces of every row. Special tokens say their names, so that the end of a completion is seen."""
        self._look_up([token for token in dict.fromkeys(token for row in rows for token in row) if token not in self.first])
        return [self._join_bytes(row) for row in rows]

    def _join_bytes(self, row: Sequence[int]) -> list[str]:
        whole = [self.whole.get(token) for token in row[1:]]
        if row and None not in whole and row[0] in self.whole:
            return [self.first[row[0]].decode(), *whole]  # type: ignore[list-item]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces = [decoder.decode((self.later if place else self.first)[token]) for place, token in enumerate(row)]
        if pieces:
            pieces[-1] += decoder.decode(b"", final=True)
        return pieces

    def _look_up(self, tokens: Sequence[int]) -> None:
        """A token twice tells what it says behind another: what is there beside its text alone."""
        once, twice = self._decode([[token] for token in tokens]), self._decode([[token, token] for token in tokens])
        for token, alone, double in zip(tokens, once, twice, strict=True):
            behind = double[len(alone) :] if double.startswith(alone) else alone
            self.first[token], self.later[token] = self._find_bytes(token, alone), self._find_bytes(token, behind)
            if REPLACEMENT not in alone + behind:
                self.whole[token] = self.later[token].decode()

    def _decode(self, rows: list[list[int]]) -> list[str]:
        if self.in_rust:
            texts: list[str] = self.tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
            return texts
        return [self.tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False) for row in rows]

    def _find_bytes(self, token: int, text: str) -> bytes:
        """Those of the text; of a token that is a part of a character those that its name is written with."""
        if REPLACEMENT in text:
            name = str(self.tokenizer.convert_ids_to_tokens(token))
            if match := BYTE_TOKEN.fullmatch(name):
                return bytes([int(match[1], 16)])
            if name and all(character in BYTE_ALPHABET for character in name):
                return bytes(BYTE_ALPHABET[character] for character in name)
        return text.encode("utf-8", "replace")
