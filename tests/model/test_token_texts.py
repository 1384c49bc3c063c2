"""The texts of single tokens: joined they are the whole text, also if characters are split over tokens."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cohort.model.chat import ChatCodec
from conftest import tiny_policy

TEXTS = ("naïve — 数学 🙂 x²", "  two  spaces\n\ttab", "don't", "💁🏽‍♀️ ok", "ends 数", "")


def make_byte_level() -> ChatCodec:
    """A vocabulary so small that nearly every non-ASCII character is split over tokens."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = ["the cat sat don't 数数 学 two spaces", "the naïve cat"] * 3
    options = {"special_tokens": ["<eos>"], "show_progress": False, "initial_alphabet": alphabet}
    inner.train_from_iterator(words, trainers.BpeTrainer(vocab_size=280, **options))
    return ChatCodec(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>"))


def make_byte_fallback() -> ChatCodec:
    """As in SentencePiece: words begin with a mark for a space, and unknown text is written as bytes."""
    names = ["<unk>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁cat", *"abcdefghijklmnopqrstuvwxyz'"]
    inner = Tokenizer(
        models.BPE(vocab={name: place for place, name in enumerate(names)}, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return ChatCodec(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="<unk>"))


CODECS = {"byte level": make_byte_level(), "byte fallback": make_byte_fallback(), "characters": tiny_policy().codec}


class OneByOne(PreTrainedTokenizerFast):
    """A class that overrides decoding, so the Rust tokenizer is not used."""

    def decode(self, *args, **kwargs):
        return super().decode(*args, **kwargs)


def whole_text(codec: ChatCodec, ids: list[int]) -> str:
    return codec.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("name", CODECS)
def test_joined_texts_are_the_whole_text(name):
    codec = CODECS[name]
    rows = [codec.tokenizer(text)["input_ids"] for text in TEXTS]
    for ids, pieces in zip(rows, codec.token_texts.read_texts(rows), strict=True):
        assert len(pieces) == len(ids)
        assert "".join(pieces) == whole_text(codec, ids)


def test_any_tokens_give_the_text_that_decoding_gives():
    """Also token sequences that no text gives: halves of characters, stray marks, special tokens in the middle."""
    codec, draw = CODECS["byte level"], random.Random(0)
    size = len(codec.tokenizer)
    rows = [draw.choices(range(size), k=draw.randint(1, 12)) for _ in range(2000)]
    wrong = [
        (pieces, whole_text(codec, ids))
        for ids, pieces in zip(rows, codec.token_texts.read_texts(rows), strict=True)
        if "".join(pieces) != whole_text(codec, ids)
    ]
    assert wrong == []


def test_a_character_belongs_to_the_token_that_completes_it():
    codec = CODECS["byte level"]
    ids = codec.tokenizer("a🙂b")["input_ids"]
    [pieces] = codec.token_texts.read_texts([ids])
    assert pieces == ["a", "", "", "", "🙂", "b"]
    [cut] = codec.token_texts.read_texts([ids[:3]])
    assert cut == ["a", "", "\ufffd"]


def test_special_tokens_have_their_names():
    codec = CODECS["characters"]
    eos = codec.tokenizer.eos_token_id
    assert codec.token_texts.read_texts([[*codec.tokenizer("1+2")["input_ids"], eos]]) == [["1", "+", "2", "<eos>"]]
    assert codec.token_texts.read_texts([]) == []


def test_a_tokenizer_with_its_own_decoding_is_used():
    inner = CODECS["byte level"].tokenizer.backend_tokenizer
    codec = ChatCodec(OneByOne(tokenizer_object=inner, eos_token="<eos>"))
    assert not codec.token_texts.in_rust
    rows = [codec.tokenizer(text)["input_ids"] for text in TEXTS]
    assert codec.token_texts.read_texts(rows) == CODECS["byte level"].token_texts.read_texts(rows)
