"""Step rewards on tokens: from positions in the text to indices of sampled tokens, with several kinds of tokenizers."""

from __future__ import annotations

import random
from functools import cache
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cohort.model.chat import ChatCodec
from cohort.model.scratch import build_tokenizer
from cohort.rewards.steps import split_steps
from cohort.training import credit
from cohort.training.credit import find_cuts, locate_steps
from cohort.types import Completion


def step_token(completion, position, decode):
    """Index of the token with which the text reaches `position` characters."""
    [(token, _)] = locate_steps(completion, [(position, 0.0)], decode)
    return token


@cache
def codec(kind: str) -> ChatCodec:
    if kind == "characters":
        return ChatCodec(build_tokenizer("abc +=>0123456789\né😀", 64))
    if kind == "bytes":  # byte-level BPE with some merges, as GPT, Llama 3 and Qwen have it
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=256 + 1 + 30,
            special_tokens=["<eos>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(["ab ab abc 12 12 123 cab\n\n ab"] * 5, trainer)
    else:  # sentencepiece with bytes for the rest, as Llama 2 has it; decoding drops the first space
        vocabulary = ["<eos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁ab", *"abc0123456789", "\n"]
        inner = Tokenizer(models.WordLevel({token: index for index, token in enumerate(vocabulary)}, unk_token="<eos>"))
        inner.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    return ChatCodec(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>"))


def ids_of(kind: str, text: str) -> list[int]:
    tokenizer = codec(kind).tokenizer
    if kind != "fallback":
        return tokenizer.encode(text)
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary["▁"]]  # the space that decoding drops
    for character in text.replace(" ", "▁"):
        pieces = [character] if character in vocabulary else [f"<0x{byte:02X}>" for byte in character.encode()]
        ids += [vocabulary[piece] for piece in pieces]
    return ids


def written(kind: str, ids: list[int], stop: bool = True) -> Completion:
    ids = [*ids, codec(kind).tokenizer.eos_token_id] if stop else ids
    return Completion(tuple(ids), (0.0,) * len(ids), "stop" if stop else "length", codec(kind).decode(ids))


def first_token(completion: Completion, position: int, decode) -> int:
    """The slow twin: the shortest prefix of ids that begins with this much of the text."""
    ids, text = completion.token_ids, completion.text
    if position == len(text):
        return len(ids) - 1
    return next(end for end in range(len(ids)) if decode(ids[: end + 1]).startswith(text[:position]))


def test_characters_are_tokens_and_the_last_step_has_the_stop_token():
    text = "3+9=12\n>12"
    completion = written("characters", ids_of("characters", text))
    decode = codec("characters").decode
    assert [step_token(completion, position, decode) for position in range(1, 10)] == list(range(9))
    assert step_token(completion, 10, decode) == 10  # the token after the text's last: <eos>
    assert locate_steps(completion, ((7, 1.0), (10, 0.0), (10, 0.5)), decode) == ((6, 1.0), (10, 0.0), (10, 0.5))
    cut_short = written("characters", ids_of("characters", text), stop=False)
    assert step_token(cut_short, 10, decode) == 9
    assert locate_steps(cut_short, (), decode) == ()
    empty = written("characters", [])
    assert locate_steps(empty, ((0, 0.0),), decode) == ((0, 0.0),)


def test_the_example_at_the_top_of_the_module():
    pieces = ["3", "+", "9", "=", "12", "\n", ">", "12", ""]
    completion = Completion(tuple(range(9)), (0.0,) * 9, "stop", "".join(pieces))
    found = locate_steps(completion, ((7, 1.0), (10, 0.0)), lambda ids: "".join(pieces[index] for index in ids))
    assert found == ((5, 1.0), (8, 0.0))


def test_a_token_over_the_seam_ends_the_first_step():
    completion = written("bytes", ids_of("bytes", "12 ab\n\n ab"))
    tokens = [codec("bytes").decode([index]) for index in completion.token_ids]
    assert tokens == ["12", " ab", "\n\n", " ab", ""]
    assert locate_steps(completion, ((6, 1.0), (7, 2.0), (8, 3.0), (10, 4.0)), codec("bytes").decode) == (
        (2, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 4.0),
    )


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_a_character_over_several_tokens_ends_with_the_last_of_them(kind):
    completion = written(kind, ids_of(kind, "a😀b\ufffdc"))
    lead = int(kind == "fallback")
    assert completion.text == "a😀b\ufffdc"
    assert len(completion.token_ids) == lead + 1 + 4 + 1 + 3 + 1 + 1
    decode = codec(kind).decode
    # The second position is the last of the four bytes of the emoji.
    assert [step_token(completion, position, decode) - lead for position in (1, 2, 3)] == [0, 4, 5]
    if kind == "bytes":
        assert step_token(completion, 4, decode) == 8
    assert step_token(completion, 5, decode) == len(completion.token_ids) - 1


@pytest.mark.parametrize("kind", ["characters", "bytes", "fallback"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="abc 012\né😀", min_size=1, max_size=40), stop=st.booleans())
@example(text="😀" * 9, stop=True)
@example(text=" ab" * 8, stop=False)
def test_tokens_of_every_position_equal_the_slow_twin(kind, text, stop):
    decode = codec(kind).decode
    completion = written(kind, ids_of(kind, text), stop)
    assert completion.text == text
    every = [(position, float(position)) for position in range(1, len(text) + 1)]
    slow = tuple((first_token(completion, position, decode), reward) for position, reward in every)
    assert tuple((step_token(completion, position, decode), reward) for position, reward in every) == slow
    # Short windows, so that a text of this length has many; a cut may fall anywhere, into characters too.
    for window in (1, 3, 7):
        with mock.patch.object(credit, "WINDOW", window):
            assert locate_steps(completion, every, decode) == slow


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(1, 260), min_size=1, max_size=40))
def test_ids_that_make_no_text_still_have_their_steps_in_order(kind, ids):
    """Sampled bytes need not make characters. Then there is no right token, but there is always one, and never before."""
    decode = codec(kind).decode
    completion = written(kind, ids)
    every = [(position, 0.0) for position in range(1, len(completion.text) + 1)]
    for window in (3, 64):
        with mock.patch.object(credit, "WINDOW", window):
            tokens = [token for token, _ in locate_steps(completion, every, decode)]
        assert all(0 <= token < len(completion.token_ids) for token in tokens)
        for (position, _), token in zip(every, tokens, strict=True):
            assert (
                position == len(completion.text)
                or decode(completion.token_ids[: token + 1])[:position] == completion.text[:position]
            )


def test_a_long_completion_is_cut_into_windows_and_its_steps_are_the_same():
    decode = codec("bytes").decode
    generator = random.Random(0)
    text = "".join(generator.choice(["ab ", "12 123\n", "😀", "\ufffd", "cab\n\n"]) for _ in range(400))
    completion = written("bytes", ids_of("bytes", text))
    assert len(find_cuts(completion, decode)) > 10
    lengths: list[int] = []

    def counted(ids):
        lengths.append(len(ids))
        return decode(ids)

    steps = [(step.end, 1.0) for step in split_steps(text)]
    assert len(steps) > 100
    assert locate_steps(completion, steps, counted) == tuple((step_token(completion, end, decode), 1.0) for end, _ in steps)
    assert max(lengths) <= credit.WINDOW + credit.WINDOW_SLACK


def test_positions_outside_the_completion_are_refused():
    completion = written("characters", ids_of("characters", "abc"))
    for position in (-1, 0, 4):
        with pytest.raises(ValueError, match=rf"position {position} is not in a completion of 3 characters and 4 tokens"):
            step_token(completion, position, codec("characters").decode)
        with pytest.raises(ValueError, match="from 1 to 3"):
            locate_steps(completion, ((position, 1.0),), codec("characters").decode)
    with pytest.raises(ValueError, match="0 tokens"):
        step_token(Completion((), (), "stop", ""), 0, codec("characters").decode)
