"""The cached engine against the reference engine, for architectures that the local engine refuses."""

import pytest
import torch
import transformers
from test_engines import SIZES, TRAIN, flat, make_model, make_prompts, plain_logits, sampling, text_of
from transformers import AutoModelForCausalLM, DynamicCache

from cohort.engine import build_engine, sample_groups, slot_engine
from cohort.engine.cached import CachedEngine, CacheRows
from cohort.engine.hf import HFEngine
from cohort.engine.protocol import EngineSetup
from cohort.errors import EngineError
from cohort.model.examples import make_examples
from cohort.model.policy import Policy
from cohort.model.scratch import build_tokenizer
from cohort.types import Outcome, Rollout

EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}  # fmt: skip
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
LATENT = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
HEADLESS = dict.fromkeys(
    ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings")
)
FAMILIES = {
    "Mamba": HEADLESS | {"state_size": 4},
    "Qwen3Next": DELTA
    | EXPERTS
    | {"shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"]},
    "GptOss": EXPERTS | {"sliding_window": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "DeepseekV3": EXPERTS | LATENT | {"head_dim": None},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "Llama4Text": EXPERTS | {"attention_chunk_size": 8, "intermediate_size_mlp": 48},
}
"""State space, gated delta rule with experts, sinks with a window, latent attention, no position ids, convolutions, chunks."""


def tiny(family):
    torch.manual_seed(0)
    sizes = {key: value for key, value in (SIZES | FAMILIES[family]).items() if value is not None}
    return AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**sizes)).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_samples_the_same_as_the_reference_engine_and_as_the_trainer_scores(family):
    """Prompts of different lengths and more completions than slots, so that rows end, join and move; reading padding would show."""
    model, prompts, wanted = tiny(family), make_prompts(5), sampling(group_size=3, max_completion_tokens=8)
    engine, sentence = build_engine("auto", EngineSetup(model, text_of, slots=4))
    assert engine.name == "cached", sentence
    assert "Not local:" in sentence
    assert type(model).__name__ in sentence
    assert "a quarter of local's tokens per second on a CPU, a twentieth on a GPU" in sentence
    ours = flat(sample_groups(engine, prompts, wanted, TRAIN, first_draw=4))
    theirs = flat(sample_groups(HFEngine(EngineSetup(model, text_of)), prompts, wanted, TRAIN, first_draw=4))
    assert [(one.token_ids, one.end, one.text) for one in ours] == [(one.token_ids, one.end, one.text) for one in theirs]
    assert len({len(one.token_ids) for one in ours}) > 1, "rows should end at different times"
    to_slow = max(abs(a - b) for one, two in zip(ours, theirs, strict=True) for a, b in zip(one.sampling_logprobs, two.sampling_logprobs, strict=True))  # fmt: skip
    policy = Policy(model, build_tokenizer("ab", 64))
    assert not policy.attention_configs, "padded, since it keeps its attention"
    outcome, prompts_N = Outcome({}, 1.0, True), [prompt for prompt in prompts for _ in range(3)]
    rollouts = [Rollout(prompt, 0, n, one, outcome, 0) for n, (prompt, one) in enumerate(zip(prompts_N, ours, strict=True))]
    scored = policy.score_examples(make_examples(rollouts), micro_batch_tokens=64)
    to_trainer, to_plain = 0.0, 0.0
    for prompt, one, logprobs_T in zip(prompts_N, ours, scored, strict=True):
        plain_TV = plain_logits(model, prompt, one).log_softmax(-1)
        plain_T = plain_TV.gather(-1, torch.tensor(one.token_ids)[:, None])[:, 0]
        to_trainer = max(to_trainer, float((logprobs_T - torch.tensor(one.sampling_logprobs)).abs().max()))
        to_plain = max(to_plain, float((logprobs_T - plain_T).abs().max()))
    print(f"{family}: to hf {to_slow:.1e}, to the trainer {to_trainer:.1e}, trainer to a plain forward {to_plain:.1e}")
    assert max(to_slow, to_trainer) < 3e-5
    assert to_plain < 1e-5


def test_prompts_are_run_without_padding_and_once_per_group():
    """Reading padding changes a recurrent state, and an attention mask does not help."""
    model, prompts = tiny("Qwen3Next"), make_prompts(6)
    engine, shapes = CachedEngine(EngineSetup(model, text_of, 32)), []
    hook = model.model.register_forward_pre_hook(
        lambda module, args, words: shapes.append(words["input_ids"]), with_kwargs=True
    )
    sample_groups(engine, prompts, sampling(group_size=4, max_completion_tokens=3, stop_ids=()), TRAIN)
    hook.remove()
    run = [tuple(row) for ids in shapes[:-2] for row in ids.tolist()]
    assert sorted(run) == sorted(prompt.token_ids for prompt in prompts)
    assert [tuple(ids.shape) for ids in shapes[-2:]] == [(24, 1), (24, 1)], "all completions decode together"


def test_rows_of_one_length_decode_together_if_padding_would_move_chunks():
    model, prompts = tiny("Llama4Text"), make_prompts(4)
    engine = CachedEngine(EngineSetup(model, text_of, 32))
    assert "chunks of 8 tokens" in engine.describe()
    shapes = []
    hook = model.model.register_forward_pre_hook(
        lambda module, args, words: shapes.append(words["input_ids"].shape), with_kwargs=True
    )
    sample_groups(engine, prompts, sampling(group_size=4, max_completion_tokens=3, stop_ids=()), TRAIN)
    hook.remove()
    lengths = {len(prompt.token_ids) for prompt in prompts}
    assert len(shapes) == 3 * len(lengths), "a prefill and two steps for each length"


def test_a_backbone_with_float32_sums_is_served_in_bfloat16():
    model = tiny("Mamba").bfloat16()
    # Without oneDNN: some virtual machines advertise bfloat16 instructions that end the process when executed.
    with torch.backends.mkldnn.flags(enabled=False), torch.no_grad():
        assert model.backbone(input_ids=torch.tensor([[3, 4]])).last_hidden_state.dtype == torch.float32
        groups = sample_groups(
            CachedEngine(EngineSetup(model, text_of, 4)), make_prompts(2), sampling(max_completion_tokens=4), TRAIN
        )
    assert all(logprob <= 0.0 for one in flat(groups) for logprob in one.sampling_logprobs)


def test_slots_follow_the_memory_of_a_row(monkeypatch):
    engine = CachedEngine(EngineSetup(tiny("Bloom"), text_of))
    # Two layers of 4 heads of 8, keys and values, float32, in up to three copies; the sampler's arrays beside.
    slot_bytes = 3 * 40 * 2 * 2 * 32 * 4 + 4 * slot_engine.SAMPLER_FLOATS * 64
    monkeypatch.setattr(slot_engine, "measure_free_memory", lambda device: int(2 * slot_bytes * 7.5))
    assert engine.choose_slots(40) == 7
    monkeypatch.setattr(slot_engine, "measure_free_memory", lambda device: slot_bytes)
    with pytest.raises(EngineError, match="not even one slot fits"):
        engine.choose_slots(40)


def test_a_model_without_a_cache_uses_hf_with_both_reasons():
    torch.manual_seed(0)
    config = transformers.RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, context_length=64)
    engine, sentence = build_engine("auto", EngineSetup(AutoModelForCausalLM.from_config(config).eval(), text_of))
    assert engine.name == "hf"
    assert "Not local: RwkvForCausalLM: its layers carry a recurrent state" in sentence
    assert "Not cached: RwkvForCausalLM: its cache cannot be separated into rows" in sentence
    assert "a hundredth of cached's speed" in sentence


def test_a_cache_that_does_not_give_the_plain_forward_is_refused(monkeypatch):
    """Positions that count from the last token: every step is wrong, which only the run shows."""
    model = make_model()
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, position_ids - position_ids.max() * (position_ids.shape[1] == 1))
    with pytest.raises(EngineError, match="differ from its plain forward"):
        CachedEngine(EngineSetup(model, text_of))


# -- rows of a cache ---------------------------------------------------------------------------------------------------


def test_rows_are_padded_cut_joined_and_moved():
    config = transformers.Gemma2Config(**{**SIZES, "sliding_window": 4})

    def rows(count, length, value):
        cache = DynamicCache(config=config)
        for layer in range(2):
            cache.update(torch.full((count, 2, length, 8), value), torch.full((count, 2, length, 8), -value), layer)
        return CacheRows(cache, count, length)

    both = rows(1, 2, 1.0).join(rows(2, 6, 2.0))
    sliding, full = both.cache.layers
    assert (both.rows, both.length) == (3, 6)
    assert full.keys[0, 0, :, 0].tolist() == [0.0] * 4 + [1.0] * 2
    assert full.values[1, 0, :, 0].tolist() == [-2.0] * 6
    assert sliding.keys[0, 0, :, 0].tolist() == [0.0, 1.0, 1.0], "a window of 4 keeps 3"
    assert sliding.get_mask_sizes(1) == (4, 3)
    cut = both.take_rows(torch.tensor([0, 0])).fit_length(2)
    assert [layer.keys.shape[-2] for layer in cut.cache.layers] == [2, 2]
    assert cut.cache.layers[0].get_mask_sizes(1) == (3, 0)
    both.overwrite_rows(torch.tensor([2]), torch.tensor([0]))
    assert full.keys[0, 0, :, 0].tolist() == [2.0] * 6
    assert cut.cache.layers[1].keys[0, 0, :, 0].tolist() == [1.0, 1.0], "what was taken is a copy"
