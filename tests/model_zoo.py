"""Tiny pretrained models in folders, whole or spoilt, as a person may have them on disk."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Qwen3's way: thinking is switched off by an empty thought in the prompt."""


@functools.cache
def make_tokenizer(added: tuple[str, ...] = ()) -> Any:
    """Bytes, and a few special tokens behind them."""
    from tokenizers import Tokenizer, decoders, models
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL, *added])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0])
    made.chat_template = TEMPLATE
    return made


def write_model(folder: Path, *, added: tuple[str, ...] = (), scale_of_layers: float = 1.0, **config: Any) -> Path:
    """A Qwen2 of two layers with 264 rows, and its tokenizer of 259 tokens; the same weights each time."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    fields = {
        "vocab_size": 264,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "eos_token_id": 256,
        "bos_token_id": None,
    }
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**(fields | config)))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() == 2 and "layers" in name:
                value.mul_(scale_of_layers)
    model.save_pretrained(folder)
    make_tokenizer(added).save_pretrained(folder)
    return folder


@functools.cache
def whole_model() -> Path:
    """One folder for all tests of a process that only copy from it."""
    return write_model(Path(tempfile.mkdtemp(prefix="cohort-zoo-")) / "whole")


def spoilt(folder: Path, spoil: Callable[[Path], Any]) -> Path:
    shutil.copytree(whole_model(), folder)
    spoil(folder)
    return folder


def edit_config(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def edit_weights(folder: Path, edit: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(dict(edit(tensors) or tensors), file, metadata={"format": "pt"})
