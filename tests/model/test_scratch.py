"""The model built from scratch: its size, its weights per seed, and a tokenizer that is saved without loss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from cohort.data.tasks import load_task
from cohort.errors import ModelError
from cohort.model.scratch import build_scratch, build_tokenizer
from cohort.recipe.schema import ScratchConfig

SMALL = ScratchConfig(hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_kv_heads=1, max_positions=64)
ALPHABET = "0123456789+=>\n "


def parameter_count(config: ScratchConfig, vocabulary: int) -> int:
    """By hand: projections, gated MLP, two norms per layer, one at the end, and two separate embedding matrices."""
    head = config.hidden_size // config.num_heads
    attention = 2 * config.hidden_size**2 + 2 * config.hidden_size * head * config.num_kv_heads
    layer = attention + 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size
    return config.num_layers * layer + config.hidden_size + 2 * vocabulary * config.hidden_size


def test_the_default_has_the_size_its_shape_says_and_stays_small():
    rows = load_task("column_addition", "train", 0, {"count": 200})
    model, tokenizer = build_scratch(ScratchConfig(), [row["prompt"] + row["demonstration"] for row in rows], seed=0)
    assert len(tokenizer) == 3 + len("0123456789+=>\n")
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == parameter_count(ScratchConfig(), len(tokenizer)) == 791_936
    assert count <= 1_100_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.max_position_embeddings == 256
    assert model.model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(128**-0.5, rel=0.02)
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight


def test_the_weights_depend_only_on_the_seed_and_the_global_generator_is_unchanged():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, _ = build_scratch(SMALL, [ALPHABET], seed=1)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    again, _ = build_scratch(SMALL, [ALPHABET], seed=1)
    other, _ = build_scratch(SMALL, [ALPHABET], seed=2)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_the_alphabet_is_sorted_and_does_not_depend_on_the_order_of_the_source():
    _, forward = build_scratch(SMALL, ["cab", "x\n"], seed=0)
    _, backward = build_scratch(SMALL, ["\nx", "bca"], seed=0)
    assert forward.get_vocab() == backward.get_vocab()
    assert forward.convert_tokens_to_ids(["<pad>", "<eos>", "<unk>", "\n", "a", "b", "c", "x"]) == list(range(8))
    _, given = build_scratch(ScratchConfig(**{**SMALL.model_dump(), "characters": "ba"}), iter(["never read"]), seed=0)
    assert given("ab")["input_ids"] == [3, 4]


TOKENIZER = build_tokenizer(ALPHABET + "abé", 64)


@given(st.text(alphabet=ALPHABET + "abé", max_size=40))
def test_every_text_over_the_alphabet_comes_back_exactly(text: str):
    ids = TOKENIZER(text)["input_ids"]
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_unknown_characters_and_special_tokens_have_separate_ids():
    assert TOKENIZER("1z2")["input_ids"].count(TOKENIZER.unk_token_id) == 1
    assert len({TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id}) == 3
    assert TOKENIZER.bos_token_id is None


@pytest.mark.parametrize("folder", ["model", "qwen2-0.5b", "step-12"])
def test_saving_and_loading_changes_nothing(tmp_path, folder: str):
    model, tokenizer = build_scratch(SMALL, [ALPHABET], seed=3)
    model.save_pretrained(tmp_path / folder)
    tokenizer.save_pretrained(tmp_path / folder)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
    loaded_tokenizer = AutoTokenizer.from_pretrained(tmp_path / folder)
    text = " 12 +34=\n\n> 46  \n"
    ids = tokenizer(text)["input_ids"]
    assert loaded_tokenizer(text)["input_ids"] == ids
    assert loaded_tokenizer.decode(ids) == text
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    assert loaded.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    with torch.no_grad():
        torch.testing.assert_close(loaded(torch.tensor([ids])).logits, model(torch.tensor([ids])).logits, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"hidden_size": 30, "num_heads": 4}, "multiple of num_heads"),
        ({"hidden_size": 12, "num_heads": 4}, "even multiple"),
        ({"num_heads": 4, "num_kv_heads": 3}, "must divide num_heads"),
    ],
)
def test_invalid_shapes_are_refused_with_the_reason(shape, message):
    with pytest.raises(ModelError, match=message):
        build_scratch(ScratchConfig(**shape), ["ab"], seed=0)


def test_an_empty_alphabet_is_refused():
    with pytest.raises(ModelError, match="to collect an alphabet from"):
        build_scratch(SMALL, [], seed=0)
