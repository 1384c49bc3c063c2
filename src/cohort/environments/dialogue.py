"""From the replies of an environment to token ids that continue what the policy wrote. Nothing is tokenised again.

In a chat the ids of a reply are template(dummy + reply) minus template(dummy): a dummy conversation and the reply, without the dummy, up
to where the policy writes next. The rule is proven on the model's own template at the start; a template that rewrites earlier turns is
refused by name. In plain text a reply is its own text.

A reply is untrusted: special tokens and markers of the template in its text are encoded as text, so it cannot forge a turn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cohort.environments.tool_calls import Format
from cohort.errors import EnvironmentFailed
from cohort.model.chat import ChatCodec, find_end_of_turn_id
from cohort.types import Message

DUMMY: list[Message] = [{"role": "user", "content": "dummy"}]
CHARS_PER_TOKEN = 64
"""Text beyond this many characters for each allowed token is cut before it is encoded."""
WAY_OUT = (
    "Set prompts.template_args to an argument of the template that keeps earlier turns, or prompts.chat_template to a template that only "
    "appends"
)


class Dialogue:
    """Encodes replies for one kind of prompt: chats or texts."""

    def __init__(self, codec: ChatCodec, *, is_chat: bool, form: Format | None, max_tokens: int) -> None:
        """form: the format of tool calls; None: whole turns go to the environment, and replies are messages of the user."""
        self.codec, self.tokenizer = codec, codec.tokenizer
        self.is_chat, self.form, self.max_tokens = is_chat, form, max_tokens
        self.role = "tool" if form in ("hermes", "llama") else "user"
        self.added = {int(number) for number, token in self.tokenizer.added_tokens_decoder.items() if len(str(token)) > 1}
        self.added.discard(self.tokenizer.unk_token_id)  # unknown characters are unknown in a reply too
        names = sorted((str(self.tokenizer.added_tokens_decoder[number]) for number in self.added), key=len, reverse=True)
        self.markers = re.compile("|".join(map(re.escape, names))) if names else None
        if is_chat:
            self.end_token = self._find_end_token()
            self.prove()
            self.check_room()

    # -- replies -------------------------------------------------------------------------------------------------------

    def make_messages(self, results: Sequence[tuple[str, str]]) -> list[Message]:
        """The messages of a reply. results: (name of the tool, its result); of the hook: one text."""
        if self.role == "tool":
            return [{"role": "tool", "name": name, "content": text} for name, text in results]
        return [{"role": "user", "content": "\n".join(text for _, text in results)}]

    def encode(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[Message, ...], bool]:
        """(ids of a reply, its messages, whether it was cut at the limit)."""
        most, cut = self.max_tokens * CHARS_PER_TOKEN, False
        if any(len(one["content"]) > most for one in messages):
            messages, cut = [{**one, "content": one["content"][:most]} for one in messages], True
        ids, room = self._encode(messages), self.max_tokens
        if not self.is_chat:
            kept = ids[: self.max_tokens]
            return tuple(kept), tuple(messages), cut or len(kept) < len(ids)
        while len(ids) > self.max_tokens:
            cut, room = True, room - max(1, (len(ids) - self.max_tokens) // len(messages))
            messages = [{**one, "content": self._cut(one["content"], max(0, room))} for one in messages]
            ids = self._encode(messages)
        return tuple(ids), tuple(messages), cut

    def _cut(self, text: str, tokens: int) -> str:
        ids = self._encode_as_text(text)
        return text if len(ids) <= tokens else self.codec.decode(ids[:tokens])

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        if not self.is_chat:
            text = str(messages[0]["content"])
            return self._encode_as_text(text if self.form is None else f"\n{text}\n")
        pieces = self._split_template(messages)
        allowed = Counter(number for piece in pieces for number in self._tokenize(piece) if number in self.added)
        ids = self._tokenize(self._render_reply(messages))
        if Counter(number for number in ids if number in self.added) == allowed:
            return ids
        contents = [self._encode_as_text(str(one["content"]).strip()) for one in messages] + [[]]
        return [
            number for piece, content in zip(pieces, contents, strict=True) for number in (*self._tokenize(piece), *content)
        ]

    def _encode_as_text(self, text: str) -> list[int]:
        """The ids of a text without any added token: where the name of one occurs, it is encoded in two pieces."""
        pieces, place = [], 0
        while self.markers is not None and (found := self.markers.search(text, place)):
            pieces.append(text[place : found.start() + 1])
            place = found.start() + 1
        ids = [number for piece in (*pieces, text[place:]) for number in self._tokenize(piece)]
        return [number for number in ids if number not in self.added]

    def _split_template(self, messages: Sequence[Message]) -> list[str]:
        """What the template writes before, between and after the contents of the messages."""
        marks = [f"cohort-reply-{place}-content" for place in range(len(messages))]
        text = self._render_reply([{**one, "content": mark} for one, mark in zip(messages, marks, strict=True)])
        pieces = []
        for mark in marks:
            before, found, text = text.partition(mark)
            if not found:
                raise EnvironmentFailed("the chat template leaves out the content of a reply. Use prompts.chat_template.")
            pieces.append(before)
        return [*pieces, text]

    def _render_reply(self, messages: Sequence[Message]) -> str:
        before = self._trim(self._render([*DUMMY, self._make_turn(messages[0])], prompts=False))
        after = self._render([*DUMMY, self._make_turn(messages[0]), *messages])
        if not after.startswith(before):
            raise EnvironmentFailed(
                f"the chat template rewrites a turn once a reply follows, so replies cannot be appended. {WAY_OUT}."
            )
        return after[len(before) :]

    def _make_turn(self, reply: Message, content: str = "") -> Message:
        if self.role == "user":
            return {"role": "assistant", "content": content or "dummy"}
        call = {"type": "function", "function": {"name": reply["name"], "arguments": {}}}
        return {"role": "assistant", "content": content, "tool_calls": [call]}

    # -- the template ----------------------------------------------------------------------------------------------------

    def _render(self, messages: Sequence[Message], prompts: bool = True) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompts, **self.codec.template_args
            )
        except Exception as problem:  # templates raise anything
            roles = ", ".join(str(message["role"]) for message in messages)
            raise EnvironmentFailed(
                f"the chat template refuses an episode ({roles}): {problem}. Use a model whose template has tools, or prompts.chat_template."
            ) from problem
        return str(text)

    def _find_end_token(self) -> str:
        number = find_end_of_turn_id(self.tokenizer)
        return "" if number is None else str(self.tokenizer.convert_ids_to_tokens(number))

    def _trim(self, text: str) -> str:
        """The text up to the end of the assistant's turn, which is what the policy samples; the template may write more after it."""
        return text[: text.rindex(self.end_token) + len(self.end_token)] if self.end_token and self.end_token in text else text

    def _tokenize(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prove(self) -> None:
        """Raise EnvironmentFailed unless appending replies gives what the template renders for the whole conversation."""
        question = [{"role": "user", "content": "What is 6 times 7?"}]
        replies = [self.make_messages([("multiply", "42")]), self.make_messages([("multiply", "It is { 42 }.\nNext?")])]
        said = ["Let me see.", "<think>\nthought-of-a-turn\n</think>\n\nSo."]
        thinks = "think" in str(self.tokenizer.chat_template or "")
        if not self.end_token:
            raise EnvironmentFailed(
                f"the chat template has no token that ends the assistant's turn, so replies cannot follow it. {WAY_OUT}."
            )
        for content in said if thinks else said[:1]:
            messages, text = list(question), self._render(question)
            for reply in replies:
                messages = [*messages, self._make_turn(reply[0], content), *reply]
                whole, added = self._render(messages), self._render_reply(reply)
                middle = whole[len(text) : len(whole) - len(added)]
                if not whole.startswith(text) or not whole.endswith(added) or not middle.endswith(self.end_token):
                    raise EnvironmentFailed(f"the chat template rewrites earlier turns when a reply follows. {WAY_OUT}.")
                if "thought-of-a-turn" in content and "thought-of-a-turn" not in middle:
                    raise EnvironmentFailed(
                        f"the chat template removes the thinking of earlier turns, which the policy has read. {WAY_OUT}."
                    )
                if self._tokenize(whole) != [*self._tokenize(text + middle), *self._encode(reply)]:
                    raise EnvironmentFailed(f"the tokenizer joins the end of a turn with the reply after it. {WAY_OUT}.")
                text = whole

    def check_room(self) -> None:
        least = len(self._encode(self.make_messages([("a", "")])))
        if least + 8 > self.max_tokens:
            raise EnvironmentFailed(
                f"environment.max_observation_tokens: the chat template alone takes {least} tokens of a reply, and {self.max_tokens} are allowed. "
                f"Set it to {least + 64} or more."
            )


def find_format(codec: ChatCodec, schemas: Sequence[Any], wanted: str, is_chat: bool) -> Format:
    """The format of tool calls: the one that the chat template writes, unless the recipe names another."""
    if not is_chat:
        if wanted in ("hermes", "llama"):
            raise EnvironmentFailed(
                f'environment.format: "{wanted}" is for chats, and the prompts are plain text. Use "plain".'
            )
        return "plain"
    if wanted == "plain":
        return "plain"
    call = {"type": "function", "function": {"name": "cohort_probe", "arguments": {"value": 1}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    args = {**codec.template_args, "tools": list(schemas)}
    try:
        text = str(codec.tokenizer.apply_chat_template([*DUMMY, turn], tokenize=False, **args))
    except Exception as problem:
        text = f"({problem})"
    own = "hermes" if "<tool_call>" in text and '"arguments"' in text else "llama" if '"parameters"' in text else ""
    if "cohort_probe" not in text or own not in ("hermes", "llama"):
        raise EnvironmentFailed(
            "environment.format: the chat template writes no tool calls that Cohort can read (it reads Hermes/Qwen JSON and Llama). Use "
            'format = "plain" and describe the tools in the prompt: the policy calls one with @name(arguments) as its last line.'
        )
    if wanted not in ("auto", own):
        raise EnvironmentFailed(
            f'environment.format: the chat template writes calls in the format "{own}". Use that, or "auto".'
        )
    return own  # type: ignore[return-value]
