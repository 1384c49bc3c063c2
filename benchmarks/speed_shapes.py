"""Models of real shapes with random weights, and a generated tokenizer of whole words.

All are Llama models (Qwen2.5 without its biases): every peer loads them, and transformers does not replace our tokenizer by Qwen's. Each
engine makes the weights on its device, because writing and reading 15 GB would measure the disk. Only peers that need files get them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speed_costs import count_parameters
from speed_workload import BOS, EOS, PAD, SPECIAL, spell_token

from cohort.ops.flops import Dimensions

QWEN_VOCABULARY = 151_936

SHAPES = {
    "tiny": Dimensions(256, 688, 6, 4, 2, 64, vocabulary=64, tied=False),
    "0.5b": Dimensions(896, 4864, 24, 14, 2, 64, vocabulary=QWEN_VOCABULARY, tied=True),
    "1.5b": Dimensions(1536, 8960, 28, 12, 2, 128, vocabulary=QWEN_VOCABULARY, tied=True),
    "7b": Dimensions(3584, 18944, 28, 28, 4, 128, vocabulary=QWEN_VOCABULARY, tied=False),
}
"""tiny: 4.4 million parameters, for two cores. The others: Qwen2.5."""

MOST_POSITIONS = 32_768


@dataclass(frozen=True)
class BenchShape:
    """The dimensions of a Llama model, and their name in tables."""

    name: str
    dimensions: Dimensions

    @property
    def parameters(self) -> int:
        return count_parameters(self.dimensions)

    @property
    def config_fields(self) -> dict[str, Any]:
        """The fields of a Llama config."""
        own = self.dimensions
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": own.hidden,
            "intermediate_size": own.intermediate,
            "num_hidden_layers": own.layers,
            "num_attention_heads": own.query_heads,
            "num_key_value_heads": own.kv_heads,
            "head_dim": own.head_dim,
            "vocab_size": own.vocabulary,
            "tie_word_embeddings": own.tied,
            "max_position_embeddings": MOST_POSITIONS,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "mlp_bias": False,
            "pad_token_id": PAD,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
        }

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self.dimensions), "parameters": self.parameters}


def write_folder(shape: BenchShape, folder: Path) -> Path:
    """Write config.json and the files of the tokenizer into a folder; no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config_fields, indent=1) + "\n", encoding="utf-8")
    make_tokenizer(shape.dimensions.vocabulary).save_pretrained(folder)
    return folder


def make_tokenizer(vocabulary: int) -> Any:
    """A tokenizer of whole words split at white space, without special tokens added to a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = models.WordLevel({spell_token(token_id): token_id for token_id in range(vocabulary)}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **named)


def make_random_model(folder: Path, device: Any, dtype: Any, in_four_bits: bool = False) -> Any:
    """The model of a folder with random weights, made on the device; optionally with linear layers in 4 bits."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = PAD
    if in_four_bits:
        round_to_four_bits(model, dtype)
    return model.eval()


def round_to_four_bits(model: Any, dtype: Any) -> None:
    """Replace every linear layer below the head by nf4, and reset the memory peak: a base read from files is never in memory in full."""
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    from cohort.model.four_bit import NAME, make_steady
    from cohort.model.lora import linear_layers

    layers: dict[str, Any] = linear_layers(model)  # bitsandbytes and torch type its attributes differently
    for name, layer in layers.items():
        parent, _, child = name.rpartition(".")
        rounded: Any = Linear4bit(1, 1, bias=False, compute_dtype=dtype, device="meta")
        rounded.in_features, rounded.out_features, rounded.bias = layer.in_features, layer.out_features, layer.bias
        weight: Any = Params4bit(layer.weight.data, requires_grad=False, quant_type=NAME, compress_statistics=True)
        rounded.weight = weight.to(layer.weight.device)
        setattr(model.get_submodule(parent), child, rounded)
    make_steady(model)
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(model.device)
