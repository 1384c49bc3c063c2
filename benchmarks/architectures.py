"""Every causal language model that transformers can build small: loaded, sampled with the best engine, scored by the trainer.

    python benchmarks/architectures.py [TYPE ...] [--json OUT]
    python benchmarks/architectures.py --page OUT       # writes docs/architectures.md from that file

For each model type in transformers' list, a tiny model with random weights is saved and loaded like a user's, the engine of
`sampling.engine = "auto"` samples ragged groups from it, and log-probs are compared: of the engine, of the trainer's path (packed, or
padded) and of a plain forward of each single completion. `engine` is the largest difference between the first two, `trainer` between the
last two, in nats, in float32. The last column has the message of models that are refused.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cohort.engine import EngineSetup, build_engine, sample_groups
from cohort.errors import CohortError
from cohort.model.examples import make_examples
from cohort.model.loading import load_pretrained
from cohort.model.policy import Policy
from cohort.model.scratch import build_tokenizer
from cohort.types import Completion, NoiseKey, Outcome, Prompt, Rollout, Sampling

VOCABULARY, POSITIONS = 64, 64
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
MLA = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "head_dim": None,
}
EXPERTS = {
    "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2,
    "top_k_experts": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "first_k_dense_replace": 1,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_hidden_layers": 4,
}
MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
CHANGES: dict[str, dict[str, Any]] = {
    "bamba": MAMBA2 | {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "ctrl": {"dff": 48, "n_layer": 2},
    "deepseek_v2": MLA | EXPERTS,
    "deepseek_v3": MLA | EXPERTS,
    "deepseek_v32": MLA | EXPERTS | {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4},
    "dots1": {"sliding_window": 8, "max_window_layers": 1} | EXPERTS,
    "exaone_moe": EXPERTS,
    "ernie4_5_moe": EXPERTS,
    "falcon": {"head_dim": None},
    "falcon_h1": MAMBA2 | {"mamba_d_ssm": 64},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    "gemma3_text": {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "sliding_window": 5,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 4,
    },
    "gemma4_text": {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "sliding_window": 8, "global_head_dim": 8},
    "glm4_moe": EXPERTS,
    "glm4_moe_lite": MLA | EXPERTS,
    "glm_moe_dsa": MLA | EXPERTS | {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": 8},
    "gptj": {"rotary_dim": 4},
    "gpt_oss": EXPERTS | {"sliding_window": 8},
    "granitemoe": EXPERTS,
    "granitemoehybrid": MAMBA2 | EXPERTS | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
    "hy_v3": EXPERTS,
    "jamba": EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4},
    "kimi_linear": MLA | EXPERTS,
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1} | EXPERTS,
    "llama4_text": EXPERTS | {"attention_chunk_size": 8, "intermediate_size_mlp": 48, "num_hidden_layers": 4},
    "longcat_flash": MLA | EXPERTS | {"num_layers": 1, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "zero_expert_num": 1},
    "mamba": {"state_size": 4},
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    "mixtral": EXPERTS,
    "minimax": EXPERTS,
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "nemotron_h": EXPERTS | {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8, "moe_shared_expert_intermediate_size": 16},
    "olmoe": EXPERTS,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phimoe": EXPERTS,
    "qwen2_moe": EXPERTS,
    "qwen3_5_moe_text": DELTA | EXPERTS,
    "qwen3_5_text": DELTA,
    "qwen3_moe": EXPERTS,
    "qwen3_next": DELTA | EXPERTS,
    "recurrent_gemma": {"attention_window_size": 8, "num_hidden_layers": 3, "lru_width": 32},
    "solar_open": EXPERTS,
    "xglm": {"ffn_dim": 48},
    "zamba": {"layer_types": None, "num_hidden_layers": 4, "mamba_d_state": 4, "n_mamba_heads": 2, "attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"num_hidden_layers": 4, "layer_types": ["mamba", "hybrid"] * 2, "hybrid_layer_ids": [1, 3], "mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 4, "chunk_size": 8, "num_mem_blocks": 1, "adapter_rank": 4},
}  # fmt: skip
SPEEDS = """Tokens per second of the tiers in the same run (`benchmarks/tiers.py`, random weights): on two shared CPU cores a tiny Qwen2 8,494 local, 2,024 cached, 75 hf; a tiny
Qwen3-Next 2,516 cached, 33 hf; a tiny Mamba 2 2,365 cached, 21 hf. On an H200 in bfloat16, a Qwen2 of the 0.5B shape, 128 completions of 128 tokens: 85,004 local, 4,015 cached, 37 hf."""
MOST_PARAMETERS = 60e6
LONGEST_PROMPT = 20
SAMPLED = Sampling(group_size=3, temperature=1.0, max_completion_tokens=12, stop_ids=(2, 5, 6))


def build_tiny(kind: str) -> Any:
    """A random model of this type. Norms are not left at 1: a layer that swapped two of them would go unnoticed."""
    wanted = {key: value for key, value in (SIZES | CHANGES.get(kind, {})).items() if value is not None}
    config = CONFIG_MAPPING[kind](**wanted)
    with torch.device("meta"):
        count = sum(value.numel() for value in AutoModelForCausalLM.from_config(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"still {count / 1e6:.0f} M parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
        model(input_ids=torch.tensor([[3, 4, 5]]), use_cache=False)  # sizes that do not fit together show here
    return model


def try_architecture(kind: str) -> dict[str, Any]:
    row: dict[str, Any] = {"type": kind}
    try:
        model = build_tiny(kind)
    except Exception as problem:
        return row | {"verdict": "not built", "words": short(problem)}
    tokenizer = build_tokenizer("0123456789+-*=()abcdefghijklmnopqrstuvwxyz .,:;?!", POSITIONS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            model, tokenizer = load_pretrained(folder)
        row["attention"] = model.config._attn_implementation
        policy = Policy(model, tokenizer)
        policy.set_longest(LONGEST_PROMPT + SAMPLED.max_completion_tokens)
        row["training"] = "flat" if policy.attention_configs else "padded"
        engine, sentence = build_engine("auto", EngineSetup(model, policy.codec.decode, slots=5))
        row |= {"tier": engine.name, "words": short(sentence)}
        return row | compare(policy, engine)
    except CohortError as problem:
        return row | {"verdict": "refused", "words": short(problem)}
    except Exception as problem:
        return row | {"verdict": "CRASHED", "words": f"{type(problem).__name__}: {short(problem)}"}


def compare(policy: Policy, engine: Any) -> dict[str, Any]:
    draw = random.Random(0)
    prompts = [
        Prompt(n, "", {}, tuple(draw.randrange(3, VOCABULARY) for _ in range(draw.randint(1, LONGEST_PROMPT))))
        for n in range(6)
    ]
    groups = sample_groups(engine, prompts, SAMPLED, NoiseKey(3, "train", 1))
    outcome = Outcome({}, 1.0, True)
    pairs = [(prompt, completion) for prompt, group in zip(prompts, groups, strict=True) for completion in group]
    rollouts = [Rollout(prompt, prompt.index, n, completion, outcome, 0) for n, (prompt, completion) in enumerate(pairs)]
    trained = policy.score_examples(make_examples(rollouts), micro_batch_tokens=128)
    to_engine = max(
        float((ours - torch.tensor(completion.sampling_logprobs)).abs().max())
        for ours, (_, completion) in zip(trained, pairs, strict=True)
    )
    to_plain = max(
        float((ours - plain_logprobs(policy.model, *pair)).abs().max()) for ours, pair in zip(trained, pairs, strict=True)
    )
    held = max(to_engine, to_plain) <= 1e-4
    return {"engine": to_engine, "trainer": to_plain, "verdict": "exact" if held else "MISMATCH"}


@torch.no_grad()
def plain_logprobs(model: Any, prompt: Prompt, completion: Completion) -> torch.Tensor:
    ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt.token_ids) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]


def short(words: object) -> str:
    return " ".join(str(words).split())[:260]


def line(row: dict[str, Any]) -> str:
    numbers = [f"{row[name]:.0e}" if name in row else "" for name in ("engine", "trainer")]
    cells = [
        row["type"],
        row["verdict"],
        row.get("attention", ""),
        row.get("training", ""),
        row.get("tier", ""),
        *numbers,
        row["words"],
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_page(document: dict[str, Any]) -> str:
    """docs/architectures.md: the result of each type, with the messages of refused and slow models."""
    rows = document["rows"]
    found = {
        verdict: [row for row in rows if row["verdict"] == verdict] for verdict in ("exact", "MISMATCH", "refused", "not built")
    }
    tiers = {tier: [row for row in found["exact"] if row["tier"] == tier] for tier in ("local", "cached", "hf")}
    lines = [
        "# Architectures",
        "",
        "`python benchmarks/architectures.py` builds every causal language model of the installed transformers small, with random weights, saves it, loads it as a",
        'user\'s would be, samples ragged groups with the engine that `sampling.engine = "auto"` takes, and compares log-probs in float32 on a CPU. *engine*: the',
        "largest difference between engine and trainer, in nats; *trainer*: between the trainer's path and a plain forward of each single completion.",
        f"With transformers {document['transformers']}: {len(rows)} types, of which "
        + ", ".join(f"{len(members)} are sampled by {tier}" for tier, members in tiers.items())
        + f", {len(found['refused'])} are refused with a message, {len(found['MISMATCH'])} exceeds 1e-4 nats (a run with it stops at its first step where it exceeds "
        f"the limit), and {len(found['not built'])} could not be built small or without images. What each engine does is in [how it works](how-it-works.md#three-engines).",
        "",
        SPEEDS,
    ]
    for tier, members in tiers.items():
        lines += ["", f"## {tier}", "", "| type | attention | training | engine | trainer |", "|---|---|---|---|---|"]
        lines += [
            f"| {row['type']} | {row['attention']} | {row['training']} | {row['engine']:.0e} | {row['trainer']:.0e} |"
            for row in members
        ]
    lines += ["", "## More than 1e-4 nats", "", "| type | tier | engine | trainer |", "|---|---|---|---|"]
    lines += [f"| {row['type']} | {row['tier']} | {row['engine']:.1e} | {row['trainer']:.0e} |" for row in found["MISMATCH"]]
    lines += ["", "## Refused, and why", "", "| type | words |", "|---|---|"]
    lines += [f"| {row['type']} | {cell(row['words'])} |" for row in found["refused"]]
    lines += ["", "## Not built", "", ", ".join(row["type"] for row in found["not built"]) + "."]
    return "\n".join(lines) + "\n"


def cell(words: str) -> str:
    return words.replace("|", "\\|").partition(". A token's logits")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types; all of transformers without any")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, metavar="JSON", help="write docs/architectures.md from this file, and try nothing")
    options = parser.parse_args()
    if options.page:
        page = Path(__file__).parents[1] / "docs" / "architectures.md"
        page.write_text(write_page(json.loads(options.page.read_text(encoding="utf-8"))), encoding="utf-8")
        return
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("| type | verdict | attention | training | tier | engine | trainer | words |\n|---|---|---|---|---|---|---|---|")
    rows = []
    for kind in options.types or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        rows.append(try_architecture(kind))
        print(line(rows[-1]), flush=True)
    counts: dict[str, int] = {}
    for row in rows:
        name = f"{row['verdict']} {row.get('tier', '')}".strip()
        counts[name] = counts.get(name, 0) + 1
    print(f"\n{len(rows)} types: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    if options.json:
        options.json.write_text(json.dumps({"transformers": transformers.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
