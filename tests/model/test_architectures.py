"""Architectures: loaded with their own attention, scored exactly or refused; notices for experts and rotary lengths."""

import copy

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from cohort.engine.decoders import prove_local
from cohort.errors import EngineError, ModelError
from cohort.model.architecture import ASKS_FOR_BALANCE, count_positions, describe_experts, find_exact_length, hold_frequencies
from cohort.model.examples import make_examples
from cohort.model.loading import load_pretrained
from cohort.model.policy import Policy
from cohort.model.scratch import build_tokenizer
from cohort.types import Completion, Outcome, Prompt, Rollout

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WITHOUT_SDPA = {
    "Gemma2": {},
    "VaultGemma": {},
    "GptOss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "Mamba": {"num_attention_heads": None, "num_key_value_heads": None, "head_dim": None},
    "GPTJ": {"rotary_dim": 4},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4},
    "Mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
}
TOKENIZER = build_tokenizer("0123456789+=", 64)


def tiny(family, seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {key: value for key, value in {**SIZES, **changes}.items() if value is not None}
    return AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**sizes)).eval()


@pytest.mark.parametrize("family", [*WITHOUT_SDPA, "Llama"])
def test_a_model_is_loaded_with_the_attention_that_it_has(family, tmp_path):
    saved = tiny(family, **WITHOUT_SDPA.get(family, {}))
    saved.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    model, _ = load_pretrained(str(tmp_path))
    assert model.config._attn_implementation == ("sdpa" if family == "Llama" else "eager")
    with torch.no_grad():
        ids = torch.arange(3, 12)[None]
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, saved(input_ids=ids, use_cache=False).logits)
    try:  # Gemma 2 is read with our attention, whatever it was loaded with
        prove_local(model)
    except EngineError:
        assert family not in ("Gemma2", "VaultGemma", "Llama")
    else:
        assert family in ("Gemma2", "VaultGemma", "Llama")


def test_attention_that_is_not_causal_is_refused_before_anything_is_sampled():
    model = tiny("BertGeneration", head_dim=None, num_key_value_heads=None)
    with pytest.raises(ModelError, match=r"rows padded after their end differ.*attention that is not causal"):
        Policy(model, TOKENIZER)


def test_keys_that_are_chosen_by_score_limit_the_length():
    policy = Policy(tiny("Mamba", **WITHOUT_SDPA["Mamba"]), TOKENIZER)
    policy.model.config.index_topk = 16
    policy.set_longest(16)
    with pytest.raises(ModelError, match=r"beyond 16 tokens.*index_topk.*reaches 17.*prompts\.max_prompt_tokens"):
        policy.set_longest(17)


# -- rotary frequencies that follow the length -------------------------------------------------------------------------

LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


def score(policy, completions):
    prompt, outcome = Prompt(0, "", {}, (5, 9, 4)), Outcome({}, 1.0, True)
    rollouts = [
        Rollout(prompt, 0, n, Completion(ids, (0.0,) * len(ids), "stop", ""), outcome, 0) for n, ids in enumerate(completions)
    ]
    return policy.score_examples(make_examples(rollouts), micro_batch_tokens=1024)


@pytest.mark.parametrize(("family", "changes"), [("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 16}), ("Llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 16})])  # fmt: skip
def test_held_frequencies_are_those_of_the_longest_sequence_at_every_length(family, changes):
    model = tiny(family, initializer_range=0.3, **changes)
    draw = torch.Generator().manual_seed(0)
    short, long = (tuple(torch.randint(3, 64, (n,), generator=draw).tolist()) for n in (6, 30))
    free = Policy(copy.deepcopy(model), TOKENIZER)
    assert (score(free, [short])[0] - score(free, [short, long])[0]).abs().max() > 1e-3, "a token hangs on its neighbours"
    held = Policy(copy.deepcopy(model), TOKENIZER)
    held.set_longest(33)
    assert "change beyond 16 tokens, and this run reaches 33" in held.notes[-1]
    assert torch.equal(score(held, [short])[0], score(held, [short, long])[0])
    assert torch.allclose(score(held, [long])[0], score(free, [long])[0], atol=1e-6), "as transformers has it at that length"
    assert torch.equal(score(held.make_frozen_copy(), [short])[0], score(held, [short])[0])
    assert find_exact_length(held.model) == 33
    near = Policy(copy.deepcopy(model), TOKENIZER)
    near.set_longest(16)
    assert near.notes == []
    assert torch.allclose(score(near, [short])[0], score(free, [short])[0], atol=1e-6), "within 16 tokens nothing changes"


def test_dynamic_frequencies_reach_as_far_as_their_factor():
    assert (
        count_positions(transformers.LlamaConfig(**{**SIZES, "max_position_embeddings": 16, "rope_parameters": DYNAMIC})) == 64
    )
    assert count_positions(transformers.LlamaConfig(**SIZES)) == 64
    assert count_positions(transformers.MambaConfig()) is None
    assert hold_frequencies(tiny("Llama"), 1000) is None


# -- experts -----------------------------------------------------------------------------------------------------------


def test_a_mixture_of_experts_says_that_its_balance_loss_is_not_trained():
    config = transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    said = describe_experts(config)
    assert "a mixture of 4 experts" in said
    assert "the balance loss (router_aux_loss_coef) is not trained" in said
    assert ASKS_FOR_BALANCE not in said
    config.output_router_logits = True
    assert f"{ASKS_FOR_BALANCE} (output_router_logits = true, router_aux_loss_coef = 0.001)" in describe_experts(config)
    assert describe_experts(transformers.LlamaConfig(**SIZES)) is None
    policy = Policy(tiny("Qwen2Moe", num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16), TOKENIZER)
    assert "a mixture of 4 experts" in policy.notes[0]
