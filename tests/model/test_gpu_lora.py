"""LoRA on a GPU in bfloat16: the invariants of the CPU tests, exact where they must be, and what a copy costs in memory."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("peft", reason="adapters need peft")

from transformers import LlamaConfig, LlamaForCausalLM

from cohort.model import lora
from cohort.model.policy import Policy
from cohort.recipe.schema import LoraConfig
from session_tools import FAST, bits, rows_of, train_tiny

pytestmark = pytest.mark.gpu


def test_a_run_in_bfloat16_starts_at_kl_zero_moves_the_adapter_and_leaves_the_base(tmp_path):
    base = train_tiny(tmp_path, "base", **{"train.num_steps": 0, "evaluation.samples": 0, "model.dtype": "float32"}).model
    settings = {"model.source": str(base), "model.lora.rank": 4, "model.dtype": "bfloat16", "algorithm.kl_coef": 0.04}
    settings |= {"optimizer.learning_rate": 1e-2, "train.num_steps": 3, "model.lora.merge": False}
    run = train_tiny(tmp_path, **FAST | settings)
    rows = rows_of(run.folder)
    assert rows[0]["loss/kl"] == 0.0
    assert rows[-1]["loss/kl"] > 0.0
    saved = bits(run.folder / "checkpoints" / "step-3" / "weights.safetensors")
    assert {kind for kind, _, _ in saved.values()} == {"torch.float32"}
    assert all(any(data) for name, (_, _, data) in saved.items() if ".lora_B." in name)
    assert {kind for kind, _, _ in bits(run.model / "adapter_model.safetensors").values()} == {"torch.bfloat16"}
    assert not (run.model / "model.safetensors").exists()


def test_a_reference_and_a_critics_backbone_only_add_their_adapters():
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32_000,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    adapter = lora.start_adapter(model, LoraConfig(rank=8), 0)
    with torch.no_grad():
        for value in lora.adapter_parameters(model).values():
            value.normal_(std=0.02)
    policy = Policy(model, tokenizer=FakeTokenizer(), adapter=adapter)
    own = sum(value.nbytes for value in policy.list_own_parameters().values())
    whole = sum(value.nbytes for value in model.parameters())
    before = torch.cuda.memory_allocated()
    reference, backbone = policy.make_frozen_copy(), policy.copy_backbone()
    grown = torch.cuda.memory_allocated() - before
    assert grown < 2.2 * own + 2**20
    assert grown < 0.1 * whole
    ids = torch.arange(64, device="cuda")[None]
    with torch.no_grad():
        assert torch.equal(reference.model(input_ids=ids).logits, policy.model(input_ids=ids).logits)
        hidden = backbone(input_ids=ids).last_hidden_state
        assert torch.equal(hidden, policy.split.backbone(input_ids=ids).last_hidden_state)


class FakeTokenizer:
    """Enough of a tokenizer for a policy that writes no text."""

    chat_template = None
    bos_token_id = None
