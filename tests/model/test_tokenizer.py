"""A tokenizer is loaded as it was saved, for any model type."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from cohort.model.loading import PROBES, encode_probes, load_tokenizer
from cohort.model.scratch import build_scratch
from cohort.recipe.schema import ScratchConfig

TEXT = "12 + 3 = 15"


def characters():
    size = ScratchConfig(
        hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_kv_heads=1, max_positions=32,
        characters="0123456789+= ",
    )  # fmt: skip
    return build_scratch(size, (), 0)[1]


def save(tokenizer, folder, model_type: str) -> str:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return str(folder)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "mistral", "gemma2", "phi3"])
def test_a_tokenizer_of_characters_keeps_its_spaces(tmp_path, model_type):
    own = characters()
    again = load_tokenizer(save(own, tmp_path, model_type))
    assert again(TEXT)["input_ids"] == own(TEXT)["input_ids"]
    assert again.decode(again(TEXT)["input_ids"]) == TEXT
    assert (again.eos_token, again.pad_token) == (own.eos_token, own.pad_token)
    assert encode_probes(again) == encode_probes(own)


def test_qwens_own_tokenizer_stays_qwens(tmp_path):
    """The same ids as its file: the class of transformers is kept, with its own settings."""
    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"Ġ+": len(vocabulary), "<|endoftext|>": len(vocabulary) + 1}
    own = Qwen2Tokenizer(vocab=vocabulary, merges=[("Ġ", "+")])
    again = load_tokenizer(save(own, tmp_path, "qwen2"))
    assert type(again) is Qwen2Tokenizer
    assert again(TEXT)["input_ids"] == own(TEXT)["input_ids"]
    assert again.decode(again(TEXT)["input_ids"]) == TEXT


def test_truncation_and_padding_in_the_file_are_no_difference(tmp_path):
    made = Tokenizer(
        models.BPE(vocab={character: n for n, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[])
    )
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.enable_truncation(4)
    made.enable_padding(length=64)
    own = PreTrainedTokenizerFast(tokenizer_object=made)
    again = load_tokenizer(save(own, tmp_path, "llama"))
    assert [len(ids) for ids in encode_probes(again)] == [len(text.encode()) for text in PROBES]


def test_a_tokenizer_that_differs_from_its_file_is_a_warning(tmp_path, monkeypatch):
    own = characters()
    source = save(own, tmp_path, "qwen2")
    monkeypatch.setattr("cohort.model.loading.read_saved_ids", lambda source, revision: [[1]])
    with pytest.warns(UserWarning, match=r"than the folder.s tokenizer\.json"):
        load_tokenizer(source)


def test_without_such_a_file_there_is_nothing_to_compare(tmp_path, monkeypatch):
    own, asked = characters(), []
    source = save(own, tmp_path, "llama")
    monkeypatch.setattr("transformers.utils.cached_file", lambda *given, **options: asked.append(given))
    assert load_tokenizer(source)(TEXT)["input_ids"] == own(TEXT)["input_ids"]
    assert asked == [(source, "tokenizer.json")]
