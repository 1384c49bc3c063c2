"""LoRA: the formula and its gradients, one base in memory, the reference at the start, exact resume, exports that other libraries load."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft", reason="adapters need peft")

from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from cohort import session
from cohort.engine.decoders import prove_local
from cohort.errors import Interrupted, ModelError, RunError
from cohort.model import lora
from cohort.model.backbone import explain_not_own_attention
from cohort.model.frozen import Reference
from cohort.model.head import split
from cohort.model.loading import load_adapted, load_pretrained
from cohort.model.optim import MasterWeights, Optimizer
from cohort.model.policy import Policy
from cohort.recipe.file import load_recipe
from cohort.recipe.rules import list_warnings
from cohort.recipe.schema import LoraConfig, ModelConfig, OptimizerConfig
from cohort.recipe.values import Materials
from cohort.training import build, checkpoint
from cohort.training import run as training_run
from conftest import library_loss_and_gradients, ragged_examples, relative_difference, tiny_policy
from session_tools import FAST, bits, digit_share, prove_others, rows_of, run_with, summary_of, tiny, train_tiny, without_timing

RANK = 2


def lora_policy(seed: int = 0, dtype: torch.dtype = torch.float64, moved: float = 0.0, **settings: Any) -> Policy:
    """tiny_policy with an adapter; `moved` puts noise of that size into B, which starts at zero."""
    plain = tiny_policy(seed, dtype)
    adapter = lora.start_adapter(plain.model, LoraConfig(**{"rank": RANK, **settings}), seed)
    with torch.no_grad():
        for name, value in lora.adapter_parameters(plain.model).items():
            if moved and ".lora_B." in name:
                value.normal_(std=moved, generator=torch.Generator().manual_seed(len(name)))
    return Policy(plain.model, plain.tokenizer, adapter=adapter)


def logits_of(model: Any, tokens: int = 8) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(tokens)[None], use_cache=False).logits


def storages(*models: Any) -> int:
    """Bytes of parameters, each piece of memory once."""
    sizes = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for one in models for value in one.parameters()
    }
    return sum(sizes.values())


# -- the formula -------------------------------------------------------------------------------------------------------


def test_a_layer_computes_the_formula():
    model = lora_policy(moved=0.5, alpha=6.0).model
    layer = model.model.layers[1].mlp.down_proj
    x = torch.randn(5, layer.in_features, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight, a, b = layer.base_layer.weight, layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert torch.allclose(layer(x), x @ weight.T + 6.0 / RANK * (x @ a.T) @ b.T, atol=1e-12)


def test_every_linear_layer_but_the_head_has_an_adapter_and_alpha_is_twice_the_rank():
    policy = lora_policy()
    names = {name.rpartition(".")[2] for name in lora.list_lora_layers(policy.model)}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(lora.list_lora_layers(policy.model)) == 14
    assert {layer.scaling["default"] for layer in lora.list_lora_layers(policy.model).values()} == {2.0}
    trained = {name for name, value in policy.model.named_parameters() if value.requires_grad}
    assert trained == set(policy.list_own_parameters())
    few = lora_policy(targets=["q_proj", "layers.1.mlp.up_proj"])
    assert [name for name in lora.list_lora_layers(few.model) if "layers.0" in name] == ["model.layers.0.self_attn.q_proj"]
    assert len(lora.list_lora_layers(few.model)) == 3


def test_a_new_adapter_changes_no_bit_and_depends_only_on_its_seed():
    before = torch.random.get_rng_state()
    policy = lora_policy()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(logits_of(policy.model), logits_of(tiny_policy().model))
    torch.manual_seed(99)
    again, other = lora_policy(), lora_policy(seed=1)
    for name, value in policy.list_own_parameters().items():
        assert torch.equal(value, again.list_own_parameters()[name])
        assert torch.equal(value, other.list_own_parameters()[name]) == (".lora_B." in name)
        bound = value.shape[1] ** -0.5
        assert ".lora_B." in name or 0.5 * bound < value.abs().max() <= bound


def test_gradients_are_those_of_the_full_weights_by_the_chain_rule():
    """With G = dL/dW of the merged model: dL/dB = s G A^T and dL/dA = s B^T G, and the base gets none."""
    policy = lora_policy(moved=0.3)
    examples = ragged_examples(policy, off_policy=0.3)
    merged = Policy(copy.deepcopy(policy.merge_model()).requires_grad_(True), policy.tokenizer)
    loss, gradient = library_loss_and_gradients(policy, examples)
    expected_loss, full_gradient = library_loss_and_gradients(merged, examples)
    assert loss == pytest.approx(expected_loss, rel=1e-10)
    ours, full = by_parameter(policy, gradient), by_parameter(merged, full_gradient)
    own = policy.list_own_parameters()
    for name in lora.list_lora_layers(policy.model):
        of_weight = full[f"{name}.weight"]
        a, b = (f"{name}.lora_{part}.default.weight" for part in "AB")
        assert relative_difference(ours[b], 2.0 * of_weight @ own[a].detach().T) < 1e-9
        assert relative_difference(ours[a], 2.0 * own[b].detach().T @ of_weight) < 1e-9
    assert not any(value.any() for name, value in ours.items() if name not in own)
    assert all(value.any() for name, value in ours.items() if name in own)


def by_parameter(policy: Policy, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    parameters = dict(policy.model.named_parameters())
    pieces = vector.split([value.numel() for value in parameters.values()])
    return {name: piece.view_as(value) for (name, value), piece in zip(parameters.items(), pieces, strict=True)}


def test_masters_are_float32_adapters_and_a_small_step_is_not_lost(plain_bfloat16):
    policy = lora_policy(dtype=torch.float32)
    weights = MasterWeights(policy.model, torch.bfloat16)
    assert {value.dtype for value in policy.model.parameters()} == {torch.bfloat16}
    assert {value.dtype for value in weights.masters.values()} == {torch.float32}
    assert set(weights.masters) == set(policy.list_own_parameters())
    before = weights.probe()
    optimizer = Optimizer(weights, OptimizerConfig(learning_rate=1e-6), 1)
    library_loss_and_gradients(policy, ragged_examples(policy, dtype=torch.float32))
    optimizer.clip_and_step()
    assert weights.measure_change(before) == pytest.approx(1e-6, rel=1e-3)


def test_a_base_in_bfloat16_gets_a_float32_adapter(plain_bfloat16):
    """A base that stays frozen is loaded in the compute dtype; its adapter's masters must not be rounded with it."""
    policy, exact = lora_policy(dtype=torch.bfloat16), lora_policy(dtype=torch.float32)
    assert policy.model.dtype == torch.bfloat16
    for name, value in policy.list_own_parameters().items():
        assert torch.equal(value, exact.list_own_parameters()[name])
    weights = MasterWeights(policy.model, torch.bfloat16)
    assert all(torch.equal(master, exact.list_own_parameters()[name]) for name, master in weights.masters.items())
    assert torch.equal(logits_of(policy.model), logits_of(policy.make_frozen_copy().model))


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("family", ["gpt2", "phi3", "qwen2"])
def test_other_families_merge_to_the_same_numbers(family):
    """Transposed weights (GPT-2), fused projections (Phi-3), biases (Qwen2), and a head that is the embedding."""
    from transformers import AutoConfig

    sizes: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    more = {"gpt2": {}, "phi3": {"intermediate_size": 24}, "qwen2": {"intermediate_size": 24, "num_key_value_heads": 1}}
    config = AutoConfig.for_model(family, **sizes, **more[family], tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(config).double()
    plain = logits_of(model.eval())
    lora.start_adapter(model, LoraConfig(rank=RANK), 0)
    assert torch.equal(logits_of(model), plain)
    with torch.no_grad():
        for value in lora.adapter_parameters(model).values():
            value.normal_(std=0.3, generator=torch.Generator().manual_seed(value.numel()))
    expected = logits_of(model)
    assert (expected - plain).abs().max() > 0.1
    assert torch.allclose(logits_of(lora.make_plain_model(model, merge=True)), expected, atol=1e-5)
    assert torch.equal(logits_of(lora.make_plain_model(model, merge=False)), plain)
    prove_local(model.float())
    assert explain_not_own_attention(model, split(model)) is None


# -- one base ----------------------------------------------------------------------------------------------------------


def test_copies_share_the_base_and_own_their_adapters():
    policy = lora_policy(moved=0.3)
    own = sum(value.nbytes for value in policy.list_own_parameters().values())
    alone = storages(policy.model)
    reference, backbone = policy.make_frozen_copy(), policy.copy_backbone()
    assert storages(policy.model, reference.model) == alone + own
    assert storages(policy.model, reference.model, backbone) == alone + 2 * own
    assert torch.equal(logits_of(reference.model), logits_of(policy.model))
    assert not any(value.requires_grad for value in reference.model.parameters())
    trained = {name for name, value in backbone.named_parameters() if value.requires_grad}
    assert trained == set(lora.adapter_parameters(backbone))
    start = logits_of(policy.model)
    with torch.no_grad():
        for value in policy.list_own_parameters().values():
            value.add_(0.1)
    assert torch.equal(logits_of(reference.model), start)
    assert not torch.equal(logits_of(policy.model), start)
    assert {value.requires_grad for value in policy.list_own_parameters().values()} == {True}


def test_a_reference_at_the_base_runs_without_its_adapter_and_can_follow():
    policy = lora_policy()
    reference = Reference(policy.make_frozen_copy(), every=1)
    layers = lora.list_lora_layers(reference.policy.model).values()
    assert all(layer.disable_adapters for layer in layers)
    assert not any(layer.disable_adapters for layer in lora.list_lora_layers(policy.model).values())
    base = logits_of(policy.model)
    with torch.no_grad():
        for value in policy.list_own_parameters().values():
            value.add_(0.1)
    assert torch.equal(logits_of(reference.policy.model), base)
    reference.follow(policy, 1)
    assert torch.equal(logits_of(reference.policy.model), logits_of(policy.model))
    assert not torch.equal(logits_of(policy.model), base)
    tensors, document = reference.state()
    assert set(tensors) == set(policy.list_own_parameters())
    other = Reference(lora_policy().make_frozen_copy(), every=1)
    other.load_state(tensors, document)
    assert torch.equal(logits_of(other.policy.model), logits_of(policy.model))
    assert not any(value.requires_grad for value in other.policy.model.parameters())


def test_a_moving_reference_averages_the_adapter():
    policy = lora_policy(moved=0.3)
    reference = Reference(policy.make_frozen_copy(), decay=0.75)
    start = {name: value.detach().clone() for name, value in policy.list_own_parameters().items()}
    with torch.no_grad():
        for value in policy.list_own_parameters().values():
            value.add_(8.0)
    reference.follow(policy, 1)
    for name, value in reference.policy.list_own_parameters().items():
        assert torch.allclose(value, start[name] + 2.0, atol=1e-5)
    assert set(reference.averages) == set(start)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small model that has partly learned to write sums, in place of a hub model."""
    folder = tmp_path_factory.mktemp("base")
    return train_tiny(folder, "base", **{"train.num_steps": 0, "evaluation.samples": 0}).model


@pytest.fixture(scope="module")
def sft(tmp_path_factory, base):
    """An adapter trained on demonstrations, on top of the base and exported alone."""
    folder = tmp_path_factory.mktemp("sft")
    settings = {"train.num_steps": 0, "evaluation.samples": 0, "cold_start.num_steps": 4, "model.lora.merge": False}
    return train_tiny(folder, "sft", **adapted(base), **settings).model


def adapted(base: Path, **more: Any) -> dict[str, Any]:
    return {"model.source": str(base), "model.lora.rank": RANK, **more}


def test_exports_load_with_transformers_and_peft_and_compute_the_same(tmp_path, base):
    import peft

    policy = lora_policy(dtype=torch.float32, moved=0.2)
    expected = logits_of(policy.model)
    policy.save(tmp_path / "merged", merge=True)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.allclose(logits_of(merged), expected, rtol=1e-4, atol=1e-4)
    assert "lora" not in " ".join(merged.state_dict())

    policy.save(tmp_path / "alone")  # the base was made here, so it lies beside its adapter
    assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "alone")), expected)
    shutil.move(tmp_path / "alone", tmp_path / "moved")
    assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "moved")), expected)
    model, _, adapter = load_adapted(tmp_path / "moved", ModelConfig(device="cpu"))
    assert (adapter.base, adapter.config.r) == ("", RANK)
    assert torch.equal(logits_of(model), expected)
    with pytest.raises(ModelError, match="is a PEFT adapter, not a model"):
        load_pretrained(str(tmp_path / "moved"))

    lora.make_plain_model(policy.model, merge=False).save_pretrained(tmp_path / "base")
    named = Policy(policy.model, policy.tokenizer, adapter=lora.Adapter(policy.adapter.config, str(tmp_path / "base")))
    named.save(tmp_path / "named")
    assert sorted(path.name for path in (tmp_path / "named").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "named")), expected)
    assert AutoTokenizer.from_pretrained(tmp_path / "named").get_vocab() == policy.tokenizer.get_vocab()
    wrapped = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "named")
    assert torch.equal(logits_of(wrapped), expected)
    assert torch.equal(logits_of(policy.model), expected)  # saving changed nothing


def test_an_adapter_written_by_peft_is_loaded(tmp_path, base):
    """rsLoRA with a separate rank for one module, as PEFT saves it: the scale is PEFT's, alpha / sqrt(rank)."""
    import peft

    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], rank_pattern={"down_proj": 1}, use_rslora=True,
        lora_dropout=0.1, init_lora_weights=False, task_type="CAUSAL_LM",
    )  # fmt: skip
    theirs = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    recipe = tiny(tmp_path, **adapted(base, **{"model.lora.rank": 3, "model.lora.adapter": str(tmp_path / "theirs")}))
    policy = build.load_policy(recipe, build.load_data(recipe, Materials()))
    assert torch.equal(logits_of(policy.model), logits_of(theirs))
    assert not torch.equal(logits_of(policy.model), logits_of(AutoModelForCausalLM.from_pretrained(base)))
    merged = logits_of(policy.merge_model())
    assert torch.allclose(merged, logits_of(theirs.merge_and_unload()), rtol=1e-4, atol=1e-5)
    other = tiny(tmp_path, **adapted(base, **{"model.lora.adapter": str(tmp_path / "theirs")}))
    data = build.load_data(other, Materials())
    with pytest.raises(ModelError, match=r"model\.lora\.rank is 2, but the adapter in .* has 3: set it to 3"):
        build.load_policy(other, data)


def broken(folder: Path, sft: Path, **changes: Any) -> Path:
    shutil.copytree(sft, folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.lora.rank": 0, "model.lora.targets": ["q_proj"]}, "model.lora.targets is set, but model.lora.rank is 0"),
        ({"model.lora.rank": 0, "model.lora.adapter": "{sft}"}, "model.lora.adapter is set, but model.lora.rank is 0"),
        ({"model.lora.targets": ["query"]}, "LlamaForCausalLM has no module 'query'. Available: down_proj, gate_proj, k_proj"),
        ({"model.lora.targets": ["lm_head"]}, "'lm_head' is the output projection, which stays frozen"),
        ({"model.lora.targets": ["mlp"]}, "'mlp' is a LlamaMLP, not a linear layer. Available: down_proj"),
        ({"model.lora.adapter": "/nowhere"}, "model.lora.adapter: /nowhere has no adapter_config.json"),
        ({"model.lora.adapter": "{base}"}, "has no adapter_config.json"),
        ({"model.lora.adapter": "{sft}", "model.lora.alpha": 7.0}, "model.lora.alpha is 7.0, but the adapter in"),
        ({"model.lora.adapter": "{sft}", "model.lora.targets": ["q_proj"]}, "model.lora.targets is ['q_proj'], but the adapter"),
        ({"model.source": "{sft}"}, "is a PEFT adapter, not a model. Set model.source to its base"),
        ({"model.source": "scratch", "model.lora.adapter": "{sft}", "model.scratch.hidden_size": 16}, "does not fit LlamaForCausalLM"),
        ({"model.source": "scratch", "model.lora.adapter": "{sft}", "model.scratch.num_layers": 1}, "Set model.source to its base"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_with_the_field_and_the_fix(tmp_path, base, sft, changes, said):
    given = {key: value.format(base=base, sft=sft) if isinstance(value, str) else value for key, value in changes.items()}
    with pytest.raises(ModelError) as problem:
        train_tiny(tmp_path, **{**FAST, **adapted(base), **given})
    assert said in str(problem.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "contains an adapter of type IA3; only LORA is supported"),
        ({"use_dora": True}, "a variant of LoRA (use_dora)"),
        ({"modules_to_save": ["lm_head"]}, "whole trained modules (modules_to_save)"),
        ({"bias": "all"}, "trained biases (bias = 'all')"),
        ({"init_lora_weights": "pissa"}, "a start that changes the base (init_lora_weights = 'pissa')"),
        ({"target_modules": ["query"]}, "LlamaForCausalLM has none of its layers"),
        ({"target_modules": ["q_proj"]}, "does not fit LlamaForCausalLM"),
        ({"r": 5}, "does not fit LlamaForCausalLM"),
    ],
)
def test_unsupported_adapters_are_refused_by_name(tmp_path, base, sft, changes, said):
    folder = broken(tmp_path / "adapter", sft, **changes)
    model, _ = load_pretrained(str(base))
    with pytest.raises(ModelError) as problem:
        lora.load_adapter(model, folder, str(base))
    assert said in str(problem.value)
    assert str(folder) in str(problem.value)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_an_adapter_that_is_not_finite_is_refused_by_name(tmp_path, base, sft, value):
    """Every logit would be NaN, and the later errors would be misleading."""
    folder = broken(tmp_path / "adapter", sft)
    values = load_file(folder / "adapter_model.safetensors")
    name = min(values)
    values[name][0, 0] = value
    save_file(values, folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors has NaN or infinity in model\.layers\.0\..*weight\."):
        lora.load_adapter(load_pretrained(str(base))[0], folder, str(base))


def test_a_pickle_is_never_read(tmp_path, base, sft):
    folder = broken(tmp_path / "adapter", sft)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match="only a pickle, which is never loaded"):
        lora.load_adapter(load_pretrained(str(base))[0], folder, str(base))


def test_without_peft_the_error_names_the_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"pip install peft.*model\.lora\.rank = 0"):
        lora_policy()


def test_a_model_without_linear_layers_below_its_head_is_refused():
    model = tiny_policy().model
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ModelError, match="has no linear layers below its head"):
        lora.start_adapter(model, LoraConfig(rank=2), 0)


def test_a_rate_for_full_training_is_warned_about():
    pretrained = ["model=some/model", "model.lora.rank=8"]
    (said,) = list_warnings(load_recipe(overrides=pretrained))
    assert said.startswith(
        "optimizer.learning_rate = 1e-06 is outside 1e-05 to 0.001: a rule of thumb: LoRA needs about ten times"
    )
    assert list_warnings(load_recipe(overrides=[*pretrained, "learning_rate=1e-5"])) == []
    assert list_warnings(load_recipe(overrides=["model=some/model", "learning_rate=1e-5"])) == []
    assert "full fine-tuning" in list_warnings(load_recipe(overrides=["model=some/model", "learning_rate=1e-4"]))[0]


@pytest.mark.parametrize("rank", [2, 16])
def test_runs_on_own_code_and_on_modules_agree(tmp_path, monkeypatch, rank):
    """With the same seed the same completions, rewards, losses and updates up to rounding; sampling and training agree exactly."""
    said = []
    prepare = Policy.prepare
    monkeypatch.setattr(Policy, "prepare", lambda self, *args, **named: said.append(prepare(self, *args, **named)) or said[-1])
    settings = FAST | {
        "model.lora.rank": rank,
        "train.num_steps": 3,
        "algorithm.kl_coef": 0.04,
        "optimizer.learning_rate": 1e-2,
    }
    settings |= {"model.scratch.intermediate_size": 64, "rewards": [{"function": "session_tools:digit_share"}]}
    own, modules = (
        rows_of(train_tiny(tmp_path, kernels, **settings | {"model.kernels": kernels}).folder)
        for kernels in ("auto", "modules")
    )
    if said[0] != "training with own compiled code":
        pytest.skip(said[0])
    assert len(said) == 4
    assert said[1] == said[0], "the reference too"
    for ours, theirs in zip(own, modules, strict=True):
        for name in ("reward/mean", "rollout/length_mean", "loss/policy", "loss/kl", "optim/grad_norm", "loss/entropy"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-7), name
    assert own[-1]["loss/kl"] > 0
    assert [row["rollout/mismatch_max"] for row in own] == [0.0] * 3


@pytest.mark.parametrize("engine", ["auto", "local"])
def test_own_kernels_can_be_requested(tmp_path, engine):
    settings = {"model.lora.rank": RANK, "model.kernels": "fused", "sampling.engine": engine}
    assert train_tiny(tmp_path, **FAST, **settings).status == "finished"


def test_own_kernels_are_refused_by_name_and_never_replaced(tmp_path):
    """Kernels that cannot be used are an error, not a fallback to another engine."""
    settings = {"model.lora.rank": RANK, "model.kernels": "fused", "sampling.engine": "hf"}
    with pytest.raises(ModelError, match=r'model\.kernels = "fused" is not possible') as said:
        train_tiny(tmp_path, **FAST, **settings)
    assert 'Use "auto"' in str(said.value) or 'Use kernels = "auto"' in str(said.value)
    assert train_tiny(tmp_path, "auto", **FAST, **settings | {"model.kernels": "auto"}).status == "finished"


# -- runs --------------------------------------------------------------------------------------------------------------


def weights_in(folder: Path) -> dict[str, Any]:
    return bits(folder / "model.safetensors")


def checkpoint_bytes(run: Path) -> int:
    found = checkpoint.latest(run / "checkpoints").folder
    return sum(path.stat().st_size for path in found.glob("*.safetensors"))


@pytest.mark.parametrize("engine", ["local", "hf"])
def test_engine_trainer_and_reference_agree_and_rollouts_see_the_adapter(tmp_path, engine):
    """Before the first update ratio 1 and KL exactly 0; after a huge step another policy completes the same prompt."""
    import pyarrow.parquet as pq

    one_prompt = {"prompts.limit": 1, "train.prompts_per_step": 1, "train.group_size": 8, "evaluation.held_out": 0.0}
    settings = {"optimizer.learning_rate": 0.3, "sampling.engine": engine, "algorithm.kl_coef": 0.04}
    run = run_with(digit_share, tmp_path, **{"model.lora.rank": RANK}, **one_prompt, **settings)
    rows = rows_of(run.folder)
    assert rows[0]["loss/kl"] == 0.0
    assert rows[0]["loss/ratio_max"] == 1.0
    assert rows[0]["optim/grad_norm"] > 0
    assert rows[1]["loss/kl"] > 0
    assert max(row["rollout/mismatch_max"] for row in rows) <= 1e-5
    first, second = (pq.read_table(run.folder / "rollouts" / f"step-00000{step}.parquet") for step in (1, 2))
    assert first["prompt_ids"].to_pylist() == second["prompt_ids"].to_pylist()
    assert first["completion_ids"].to_pylist() != second["completion_ids"].to_pylist()


def test_a_run_moves_the_adapter_and_never_the_base_and_its_checkpoints_are_small(tmp_path, base):
    settings = {**adapted(base), "train.num_steps": 2, "checkpoints.every_steps": 1, "optimizer.weight_decay": 0.1}
    run = train_tiny(tmp_path, **FAST | settings | {"model.lora.rank": 1, "model.lora.merge": False})
    saved = checkpoint.latest(run.folder / "checkpoints").snapshot.tensors
    policy, _, adapter = load_adapted(run.model, ModelConfig(device="cpu"))
    own = {name: value.detach() for name, value in lora.adapter_parameters(policy).items()}
    assert set(saved["weights"]) == set(own)
    assert all(torch.equal(saved["weights"][name], value) for name, value in own.items())
    assert any(value.any() for name, value in own.items() if ".lora_B." in name)
    plain = lora.make_plain_model(policy, merge=False)
    plain.save_pretrained(tmp_path / "below")
    assert weights_in(tmp_path / "below") == weights_in(base)
    assert adapter.base == str(base)

    full = train_tiny(tmp_path, "full", **FAST, **{"model.source": str(base), "checkpoints.every_steps": 1})
    assert checkpoint_bytes(run.folder) < 0.15 * checkpoint_bytes(full.folder)
    parameters = sum(value.numel() for value in own.values())
    held = sum(value.numel() for part in ("weights", "optimizer") for value in saved[part].values())
    assert held == 3 * parameters + len(own)  # values, two moments, and a count of steps each


def test_a_few_steps_raise_the_reward(tmp_path, base):
    """The share of the digit 1: from a ninth to a third in ten steps, at ten times the rate of the full runs in these tests."""

    def ones(completions: list[str], **columns: Any) -> list[float]:
        return [text.count("1") / (1 + len(text)) for text in completions]

    settings = {"optimizer.learning_rate": 1e-2, "train.num_steps": 10, "train.prompts_per_step": 8, "model.lora.rank": 4}
    rows = rows_of(run_with(ones, tmp_path, **adapted(base) | settings | {"algorithm.kl_coef": 0.0}).folder)
    before, after = (sum(row["reward/mean"] for row in part) / 3 for part in (rows[:3], rows[-3:]))
    assert before < 0.15
    assert after > 0.25


def test_the_reference_is_the_adapter_the_run_started_from_and_not_the_base_below_it(tmp_path, base, sft, monkeypatch):
    """KL exactly 0 before the first update, from a start that differs from the base; and again after a resume."""
    seen: list[Policy] = []
    original = training_run.find_start

    def watched(*arguments: Any) -> Policy:
        seen.append(original(*arguments))
        return seen[-1]

    monkeypatch.setattr(training_run, "find_start", watched)
    stop_after(monkeypatch, "finish_step", 1)
    settings = {**FAST, **adapted(base), "model.lora.adapter": str(sft), "algorithm.kl_coef": 0.04, "train.num_steps": 2}
    assert train_tiny(tmp_path, **settings).status == "interrupted"
    monkeypatch.undo()
    monkeypatch.setattr(training_run, "find_start", watched)
    assert session.resume(tmp_path / "run").status == "finished"
    rows = rows_of(tmp_path / "run")
    assert [row["loss/kl"] == 0.0 for row in rows] == [True, False]
    below = logits_of(AutoModelForCausalLM.from_pretrained(base))
    start = logits_of(AutoModelForCausalLM.from_pretrained(sft))
    assert not torch.allclose(start, below, atol=1e-3)
    assert len(seen) == 2
    assert all(torch.equal(logits_of(reference.model), start) for reference in seen)


def stop_after(monkeypatch: Any, method: str, calls: int) -> None:
    """The n-th call of a method of TrainState ends the process as SIGTERM would, once it has returned."""
    from cohort.training.state import TrainState

    original, count = getattr(TrainState, method), 0

    def stopped(self: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        result = original(self, *args)
        if count == calls:
            raise Interrupted("SIGTERM")
        return result

    monkeypatch.setattr(TrainState, method, stopped)


SHORT = {"cold_start.num_steps": 0, "train.num_steps": 3, "train.prompts_per_step": 4, "train.minibatches_per_step": 2}
SHORT |= {"train.passes_per_step": 1, "evaluation.samples": 0, "checkpoints.every_steps": 3}

SAVED = ("model", "start", "reward_model", "checkpoints/step-3")

RUNS: dict[str, dict[str, Any]] = {
    "from the base": {},
    "from an adapter": {"model.lora.adapter": "{sft}"},
    "after a cold start": {"cold_start.num_steps": 3, "cold_start.batch_size": 16},
    "on a base made here": {
        "model.source": "scratch",
        "cold_start.num_steps": 3,
        "cold_start.batch_size": 16,
        "rewards": [{"function": "session_tools:digit_share"}],
    },
    "exported alone": {"model.lora.merge": False, "algorithm.kl_coef": 0.0},
    "ppo": {"algorithm.name": "ppo", "critic.learning_rate": 1e-2},
    "dpo from rollouts of the start": {"algorithm.name": "dpo", "algorithm.data": "start", "model.lora.adapter": "{sft}"},
    "refreshed reference": {"algorithm.reference_every": 2},
    "moving reference": {"algorithm.reference_decay": 0.9, "model.lora.adapter": "{sft}"},
    "reward model": {"reward_model.iterations": 2, "reward_model.prompts": 8, "reward_model.learning_rate": 1e-3},
}


@pytest.mark.parametrize("name", prove_others(RUNS, "after a cold start", "ppo", "moving reference"))
def test_a_stopped_run_ends_with_the_same_bits(tmp_path, monkeypatch, base, sft, name):
    """Stopped between two minibatches of a step, so that the batch is in the checkpoint too."""
    choices = {key: str(value).format(sft=sft) if key == "model.lora.adapter" else value for key, value in RUNS[name].items()}
    settings = {**SHORT, **adapted(base), "optimizer.learning_rate": 1e-2, **choices}
    whole = train_tiny(tmp_path, "whole", **settings)
    with monkeypatch.context() as patch:
        stop_after(patch, "update", 3)
        assert train_tiny(tmp_path, "stopped", **settings).status == "interrupted"
    assert (tmp_path / "stopped" / "checkpoints" / "step-1.1").is_dir()
    assert session.resume(tmp_path / "stopped").status == "finished"
    run, rows = tmp_path / "stopped", rows_of(whole.folder)
    assert without_timing(rows_of(run)) == without_timing(rows)
    files = sorted(path.relative_to(whole.folder) for part in SAVED for path in whole.folder.glob(f"{part}/*.safetensors"))
    assert [str(file) for file in files if bits(run / file) != bits(whole.folder / file)] == []
    assert {file.name for file in files if file.parts[0] == "model"} == (
        {"model.safetensors"} if settings.get("model.lora.merge", True) else {"adapter_model.safetensors"}
    )
    assert ("start/adapter_model.safetensors" in map(str, files)) == (settings["cold_start.num_steps"] > 0)
    assert sum(row["optim/grad_norm"] > 0 for row in rows) >= 2, "a run that learns nothing resumes trivially"
    if "rollout/mismatch_max" in rows[0]:
        assert max(row["rollout/mismatch_max"] for row in rows) <= 1e-5


def test_a_base_that_changed_is_refused_on_resume(tmp_path, monkeypatch, base):
    """The checkpoint holds only the adapter, and without KL nothing else would detect it."""
    mine = shutil.copytree(base, tmp_path / "mine")
    settings = {**SHORT, **adapted(mine), "algorithm.kl_coef": 0.0}
    with monkeypatch.context() as patch:
        stop_after(patch, "finish_step", 1)
        assert train_tiny(tmp_path, **settings).status == "interrupted"
    model = AutoModelForCausalLM.from_pretrained(mine)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(1.01)
    model.save_pretrained(mine)
    with pytest.raises(RunError, match="has changed since the run was started"):
        session.resume(tmp_path / "run")


def test_ppo_values_with_its_own_adapters_over_the_policys_base(base, tmp_path):
    from cohort.model.critic import Critic

    recipe = tiny(tmp_path, **adapted(base))
    policy = build.load_policy(recipe, build.load_data(recipe, Materials()))
    own = sum(value.nbytes for value in policy.list_own_parameters().values())
    critic = Critic(policy, recipe.critic, recipe.optimizer, torch.float32, 1)
    head = critic.model.head.weight.nbytes
    assert storages(policy.model, critic.model) == storages(policy.model) + own + head
    assert len(critic.optimizer.weights.masters) == len(policy.list_own_parameters()) + 1


@pytest.mark.parametrize("merge", [True, False])
def test_evaluate_gives_the_numbers_of_the_runs_own_evaluations(tmp_path, base, merge):
    """The final model, merged or not, the start, and a checkpoint that holds only the adapter."""
    from cohort.tools.evaluate import run_evaluation

    settings = {"evaluation.samples": 8, "evaluation.greedy": False, "model.lora.merge": merge, "optimizer.learning_rate": 2e-2}
    during = {"evaluation.every_steps": 1, "evaluation.every_problems": 8, "checkpoints.every_steps": 1}
    run = train_tiny(tmp_path, **FAST | adapted(base) | settings | during).folder
    expected = summary_of(run)["eval"]
    assert expected["before"]["reward"] != expected["after"]["reward"]

    def evaluated(which: str) -> Any:
        run_evaluation([str(run)], "", which, [], tmp_path / "numbers.json")
        (document,) = json.loads((tmp_path / "numbers.json").read_text()).values()
        return document["sets"]["held_out"]["reward"]

    assert evaluated("final") == expected["after"]["reward"]
    assert evaluated("start") == expected["before"]["reward"]
    (row,) = [row for row in rows_of(run) if "eval/held_out/reward" in row]
    assert evaluated(f"step-{row['step']}")["value"] == row["eval/held_out/reward"]


def test_importing_the_quantiser_gives_no_advice_on_a_kernel_that_is_not_used():
    pytest.importorskip("bitsandbytes")
    code = "import cohort.model.four_bit, bitsandbytes"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install" not in done.stdout + done.stderr
