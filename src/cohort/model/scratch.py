"""A small Llama with a character tokenizer, created from scratch: `cohort train` without a recipe and the tests download nothing.

It is an ordinary transformers model, so everything works as with a downloaded model, and it is saved and loaded in the usual
format. It is a Llama because `AutoTokenizer` replaces the tokenizer of a folder with type qwen2 by Qwen's, which loses the
spaces.

Embeddings are not tied. With an alphabet of about twenty characters, tying saves only a few thousand parameters and gives one
small matrix two roles. Untied models are also saved and loaded without special cases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cohort.errors import ModelError
from cohort.recipe.schema import ScratchConfig

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
"""Three separate tokens. There is no BOS: every prompt has a first character, at position 0."""


def build_scratch(
    config: ScratchConfig, alphabet_source: Iterable[str], seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model and the tokenizer of [model.scratch]. The weights depend only on the seed; global RNGs do not change."""
    if config.hidden_size % config.num_heads or (config.hidden_size // config.num_heads) % 2:
        raise ModelError(
            f"model.scratch: hidden_size {config.hidden_size} must be an even multiple of num_heads {config.num_heads} "
            "(rotary positions rotate pairs of dimensions)."
        )
    if config.num_heads % config.num_kv_heads:
        raise ModelError(f"model.scratch: num_kv_heads {config.num_kv_heads} must divide num_heads {config.num_heads}.")
    characters = config.characters or "".join(sorted(set().union(*map(set, alphabet_source))))
    tokenizer = build_tokenizer(characters, config.max_positions)
    return build_model(config, tokenizer, seed), tokenizer


def build_tokenizer(characters: str, max_positions: int) -> PreTrainedTokenizerFast:
    """One token per character, in code-point order, after the three special tokens."""
    if not characters:
        raise ModelError(
            "model.scratch.characters: empty, and there are no prompts or demonstrations to collect an alphabet from."
        )
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *sorted(set(characters))])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")  # `.` would skip newlines
    inner.decoder = decoders.Fuse()  # otherwise decoding joins the characters with spaces
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=max_positions,
    )


def build_model(config: ScratchConfig, tokenizer: Any, seed: int) -> LlamaForCausalLM:
    llama = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=False,
        attention_dropout=0.0,
        # 1 / sqrt(width). The usual 0.02 is for widths in the thousands. At width 128 it needs about three times as many
        # supervised batches of column addition for the same loss (0.21 after 240 batches; here 0.18 after 80).
        initializer_range=config.hidden_size**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    # Only the CPU generator changes, and it is restored: torch.manual_seed would also reseed every GPU.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = LlamaForCausalLM(llama).float()
    model.generation_config = GenerationConfig(
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model.eval()
