"""Token ids of prompts: one BOS, no EOS at the end, the template applied once, demonstrations that start where prompts end."""

from __future__ import annotations

import copy
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cohort.errors import PromptError
from cohort.model.chat import ChatCodec, can_decode_in_rust, find_end_of_turn_id, read_template, refuse_blank_template
from cohort.model.scratch import build_tokenizer
from model_zoo import TEMPLATE, make_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = [{"role": "user", "content": "1+1="}]


def chat_tokenizer(template: str | None = CHATML, bos: bool = False, appended_eos: bool = False) -> PreTrainedTokenizerFast:
    """A character tokenizer with ChatML's tokens, and with the BOS and EOS habits of real ones."""
    tokenizer = build_tokenizer("0123456789+=\n <>/abcdefghijklmnopqrstuvwxyz", 256)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": "<bos>"})
    pieces = ["<bos>:0"] * bos + ["$A:0"] + ["<eos>:0"] * appended_eos
    special = [("<bos>", tokenizer.bos_token_id), ("<eos>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=" ".join(pieces), special_tokens=special)
    tokenizer.chat_template = template
    return tokenizer


def ids_of(tokenizer: PreTrainedTokenizerFast, *pieces: str) -> tuple[int, ...]:
    """Worked out by hand: a piece in the vocabulary is that token, any other text is its characters."""
    vocabulary = tokenizer.get_vocab()
    return tuple(vocabulary[token] for piece in pieces for token in ([piece] if piece in vocabulary else piece))


def test_text_gets_exactly_one_bos():
    tokenizer = chat_tokenizer(bos=True)
    codec = ChatCodec(tokenizer)
    expected = ids_of(tokenizer, "<bos>", "1+1=")
    assert codec.encode("1+1=") == expected
    assert tokenizer("<bos>1+1=")["input_ids"][:2] == [tokenizer.bos_token_id] * 2  # What would go wrong.
    assert codec.encode("<bos>1+1=") == expected


def test_text_of_a_model_without_bos_is_unchanged():
    tokenizer = chat_tokenizer()
    assert ChatCodec(tokenizer).encode("1+1=") == ids_of(tokenizer, "1+1=")


def test_an_appended_eos_is_dropped_but_not_a_written_one():
    tokenizer = chat_tokenizer(bos=True, appended_eos=True)
    codec = ChatCodec(tokenizer)
    assert codec.encode("1+") == ids_of(tokenizer, "<bos>", "1+")
    written = chat_tokenizer()
    assert ChatCodec(written).encode("1+<eos>") == ids_of(written, "1+", "<eos>")


def test_a_chat_is_rendered_once_up_to_the_assistants_turn():
    tokenizer = chat_tokenizer(bos=True)
    expected = ids_of(tokenizer, "<|im_start|>", "user\n1+1=", "<|im_end|>", "\n", "<|im_start|>", "assistant\n")
    encoded = ChatCodec(tokenizer).encode(CHAT)
    assert encoded == expected
    assert all(type(token) is int for token in encoded)


def test_a_template_that_writes_bos_gets_no_second_one():
    tokenizer = chat_tokenizer("{{ bos_token }}" + CHATML, bos=True)
    encoded = ChatCodec(tokenizer).encode(CHAT)
    assert encoded[:2] == ids_of(tokenizer, "<bos>", "<|im_start|>")
    doubled = chat_tokenizer("{{ bos_token }}{{ bos_token }}" + CHATML)
    assert ChatCodec(doubled).encode(CHAT) == encoded


def test_a_chat_without_a_template_is_refused_with_the_fix():
    with pytest.raises(PromptError, match=r"no chat template.*instruction-tuned.*prompts\.system"):
        ChatCodec(chat_tokenizer(template=None)).encode(CHAT)


def test_a_template_that_refuses_a_role_is_quoted():
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
    with pytest.raises(PromptError, match=r"\(system, user\): System role not supported"):
        ChatCodec(chat_tokenizer(template)).encode([{"role": "system", "content": "be short"}, *CHAT])


def test_decode_drops_special_tokens_and_keeps_every_space():
    tokenizer = chat_tokenizer()
    codec = ChatCodec(tokenizer)
    assert codec.decode(ids_of(tokenizer, "<bos>", " a  b\n =\n", "<|im_end|>", "<eos>")) == " a  b\n =\n"
    assert codec.decode(()) == ""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE as in Qwen and Llama 3, here of single bytes: a row may end inside a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")
    tokenizer.add_tokens(["<tool> ", " ,"])
    return tokenizer


class LoudTokenizer(PreTrainedTokenizerFast):
    """A class that overrides decoding."""

    def _decode(self, *arguments, **options):
        return super()._decode(*arguments, **options).upper()


@pytest.mark.parametrize("make", [chat_tokenizer, byte_tokenizer], ids=["characters", "bytes"])
def test_decode_all_equals_decoding_one_by_one(make):
    tokenizer = make()
    codec = ChatCodec(tokenizer)
    assert can_decode_in_rust(tokenizer)
    generator = random.Random(0)
    rows = [generator.choices(range(len(tokenizer)), k=length) for length in (0, 1, 2, 7, 64, 200) for _ in range(20)]
    rows += [[tokenizer.eos_token_id], tuple(tokenizer("é , 日本\n  x")["input_ids"])[:-1], (tokenizer.pad_token_id, 5)]
    assert codec.decode_all(rows) == [codec.decode(row) for row in rows]
    assert codec.decode_all([]) == []


def test_a_class_with_its_own_decoding_is_used():
    plain = chat_tokenizer()
    loud = LoudTokenizer(tokenizer_object=plain.backend_tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    codec = ChatCodec(loud)
    assert not can_decode_in_rust(loud)
    rows = [ids_of(plain, "abc"), ids_of(plain, "1+x", "<eos>")]
    assert codec.decode_all(rows) == [codec.decode(row) for row in rows] == ["ABC", "1+X"]


def test_a_demonstration_begins_where_the_prompt_ends_and_stops():
    tokenizer = chat_tokenizer(bos=True)
    codec = ChatCodec(tokenizer)
    prompt_ids, completion_ids = codec.encode_demonstration("1+1=", "2\n", tokenizer.eos_token_id)
    assert prompt_ids == codec.encode("1+1=")
    assert completion_ids == ids_of(tokenizer, "2\n", "<eos>")  # No BOS in the middle of the sequence.
    prompt_ids, completion_ids = codec.encode_demonstration(CHAT, "2", tokenizer.eos_token_id)
    assert prompt_ids == codec.encode(CHAT)
    assert completion_ids == ids_of(tokenizer, "2", "<|im_end|>")


def test_a_template_without_an_end_of_turn_falls_back_to_the_stop_id():
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    codec = ChatCodec(tokenizer)
    assert find_end_of_turn_id(tokenizer) is None
    assert codec.encode_demonstration(CHAT, "2", tokenizer.eos_token_id)[1] == ids_of(tokenizer, "2", "<eos>")


@pytest.mark.parametrize(
    ("prefill", "inside"), [("<think>", True), ("<think>\n", True), ("", False), ("<think>\n\n</think>\n\n", False)]
)
def test_prefilled_think_is_detected_in_the_rendered_prompt(prefill: str, inside: bool):
    codec = ChatCodec(chat_tokenizer(CHATML.replace("assistant\n", "assistant\n" + prefill)))
    assert codec.prefills_think(CHAT) is inside
    assert codec.prefills_think([{"role": "user", "content": "write <think> first"}]) is inside
    assert codec.prefills_think("1+1=" + prefill) is inside


def thinking_codec(template: str = TEMPLATE) -> ChatCodec:
    tokenizer = copy.deepcopy(make_tokenizer())
    tokenizer.chat_template = template
    return ChatCodec(tokenizer)


def test_template_arguments_reach_only_their_codec():
    codec = thinking_codec()
    plain, told = codec.encode(CHAT), codec.use_template_args({"enable_thinking": False}, "prompts.template_args").encode(CHAT)
    assert codec.tokenizer.decode(told[len(plain) :]) == "<think>\n\n</think>\n\n"
    assert told[: len(plain)] == plain == codec.encode(CHAT)
    prompt, completion = codec.use_template_args({"enable_thinking": False}, "x").encode_demonstration(CHAT, "2", 256)
    assert prompt == told
    assert completion == (*codec.tokenizer("2")["input_ids"], codec.tokenizer.convert_tokens_to_ids("<|im_end|>"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("enable_thinkin", "does not read 'enable_thinkin' .it reads enable_thinking; did you mean 'enable_thinking'.."),
        ("m", "does not read 'm'"),  # a name of the template's own
        ("messages", "'messages' is set by the trainer"),
        ("add_generation_prompt", "is set by the trainer"),
        ("tokenize", "is set by the trainer"),
        ("eos_token", "does not read 'eos_token'"),
        ("tools", "does not read 'tools'"),
    ],
)
def test_an_argument_that_the_template_does_not_read_is_refused(name: str, words: str):
    with pytest.raises(PromptError, match=rf"prompts\.template_args: .*{words}"):
        thinking_codec().use_template_args({name: 1}, "prompts.template_args")


def test_arguments_are_found_wherever_a_template_reads_them():
    template = (
        "{% set think = think | default(true) %}{% macro end(x) %}{{ x }}{{ style }}{% endmacro %}"
        "{% for m in messages %}{{ m.content }}{% if loop.last and budget is defined %}{% break %}{% endif %}{% endfor %}{{ end(1) }}"
    )
    codec = thinking_codec(template)
    codec.use_template_args({"think": False, "style": "s", "budget": 3}, "x")
    with pytest.raises(PromptError, match="it reads budget, style, think"):
        codec.use_template_args({"x": 1}, "x")


def test_a_custom_template_is_read_and_checked(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    assert read_template(str(file)) == TEMPLATE == read_template(TEMPLATE)
    file.write_bytes(b"\xef\xbb\xbf" + TEMPLATE.encode())  # as some editors save it
    assert read_template(str(file)) == TEMPLATE
    for text, words in {
        "{% for m in messages %}": "not a Jinja template .*endfor",
        "{{ 'always the same' }}": "never reads `messages`",
        "no template at all": "never reads `messages`",
    }.items():
        file.write_text(text)
        with pytest.raises(PromptError, match=rf"prompts\.chat_template: .*{words}"):
            read_template(str(file))
    with pytest.raises(PromptError, match=r"nowhere\.jinja: no such file"):
        read_template(str(tmp_path / "nowhere.jinja"))


def test_a_template_that_drops_the_message_is_refused():
    for template, dropped in {
        "{% for m in messages %}{{ m.role }}: {{ m.contents }}{% endfor %}": True,
        "{{ messages | length }} messages": True,
        "{% for m in messages %}{{ m | tojson }}{% endfor %}": False,
        "{{ messages[-1]['content'] | trim | upper }}": False,
        "{{ raise_exception('a system message first') }}{{ messages }}": False,  # the prompts themselves tell
    }.items():
        tokenizer = thinking_codec(template).tokenizer
        if dropped:
            with pytest.raises(PromptError, match=r"prompts\.chat_template: the rendered text .* does not contain"):
                refuse_blank_template(tokenizer)
        else:
            refuse_blank_template(tokenizer)
