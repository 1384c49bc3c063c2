"""A model is split into backbone and head only if both together are its own forward; soft-caps and scales are known."""

from __future__ import annotations

import pytest
import torch
import transformers

from cohort.errors import ModelError
from cohort.model import head

SMALL = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def build(family: str, **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL, **more)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def whole_and_ours(model, parts, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the model and of the two halves, with the head's weights made larger so that a cap would show."""
    with torch.no_grad():
        parts.projection.weight.mul_(factor)
        token_ids = torch.tensor([[3, 9, 27, 14, 5, 6]])
        whole = model(input_ids=token_ids, use_cache=False).logits
        ours = parts.logits(parts.backbone(input_ids=token_ids, use_cache=False).last_hidden_state)
    return whole, ours


@pytest.mark.parametrize(
    ("family", "more", "expected"),
    [
        ("Llama", {}, (0.0, 1.0)),
        ("Qwen2", {}, (0.0, 1.0)),
        ("Gemma2", {"final_logit_softcapping": 5.0, "head_dim": 8}, (5.0, 1.0)),
        ("Cohere", {"logit_scale": 0.0625}, (0.0, 0.0625)),
        ("Granite", {"logits_scaling": 8.0}, (0.0, 0.125)),
    ],
)
def test_known_heads_are_reproduced(family, more, expected):
    model = build(family, **more)
    parts = head.split(model)
    assert (parts.softcap, parts.scale) == expected
    whole, ours = whole_and_ours(model, parts, factor=50.0)
    assert whole.abs().max() > 1.0
    assert (whole - ours).abs().max().item() < 1e-5 * max(1.0, whole.abs().max().item())
    if expected[0]:
        assert whole.abs().max() < 5.0 + 1e-6  # the cap is really at work


@pytest.mark.parametrize(
    "processing",
    [
        lambda logits: torch.tanh(logits / 30.0) * 30.0,
        lambda logits: logits * 1.001,
        lambda logits: logits + 0.01,
        lambda logits: logits.masked_fill(torch.arange(logits.shape[-1]) > 30, -1e4),
        lambda logits: logits * float("nan"),
    ],
)
def test_unknown_processing_of_logits_is_refused(processing, monkeypatch):
    """Also a soft-cap that the small logits of an untrained model would hide (their largest is far below 30)."""
    model = build("Llama")
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.abs().max() < 3.0
    original = type(model).forward

    def forward(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        output.logits = processing(output.logits)
        return output

    monkeypatch.setattr(type(model), "forward", forward)
    with pytest.raises(ModelError, match="LlamaForCausalLM"):
        head.split(model)


def test_the_probe_leaves_no_trace():
    """No hook stays behind, the mode is put back, and logits are bitwise as before."""
    model = build("Llama").train()
    before = model(input_ids=torch.tensor([[1, 2, 3]])).logits
    parts = head.split(model)
    assert model.training
    assert not parts.projection._forward_pre_hooks
    assert torch.equal(model(input_ids=torch.tensor([[1, 2, 3]])).logits, before)


def test_a_bare_backbone_is_refused():
    with pytest.raises(ModelError, match="decoder-only causal LMs"):
        head.split(build("Llama").model)


def test_logits_are_float32_at_least():
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)):
        projection = torch.nn.Linear(4, 6, bias=False).to(dtype)
        parts = head.SplitModel(torch.nn.Identity(), projection, 0.0, 1.0)
        with torch.backends.mkldnn.flags(enabled=False):
            assert parts.logits(torch.randn(2, 4).to(dtype)).dtype == expected


@pytest.mark.parametrize(
    ("family", "more"),
    [("Llama", {}), ("Gemma2", {"final_logit_softcapping": 5.0, "head_dim": 8}), ("Cohere", {"logit_scale": 0.0625})],
)
def test_a_plain_head_as_tensors_scores_as_the_module_does(family, more):
    """Values are bit-equal; gradients of hidden states and weight are equal up to rounding."""
    parts = head.split(build(family, **more))
    assert parts.why_not_linear is None
    assert parts.linear.weight_VH is parts.projection.weight
    assert parts.linear.bias_V is None
    assert (parts.linear.scale, parts.linear.softcap) == (parts.scale, parts.softcap)
    hidden_MH = torch.randn(9, 16, generator=torch.Generator().manual_seed(1)).mul_(40).requires_grad_()
    token_ids_M = torch.arange(9) * 3
    results = []
    for _ in range(2):
        ours = parts.token_logprobs(hidden_MH, token_ids_M, temperature=0.7, entropy_gradient=True)
        loss = ours[0].sum() + (ours[1] * torch.linspace(-1, 1, 9)).sum()
        results.append((*ours, *torch.autograd.grad(loss, [hidden_MH, parts.projection.weight])))
        parts.projection.register_forward_hook(lambda module, inputs, output: None)  # now it must be called as a module
    assert parts.linear is None
    (logprobs, entropy, *ours), (module_logprobs, module_entropy, *theirs) = results
    assert torch.equal(logprobs, module_logprobs)
    assert torch.equal(entropy, module_entropy)
    for found, expected in zip(ours, theirs, strict=True):
        assert expected.abs().max() > 1e-3
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


class Shifted(torch.nn.Linear):
    def forward(self, rows):
        return super().forward(rows) + torch.arange(self.out_features)


def with_hook(projection):
    projection.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    return projection


def with_forward(projection):
    projection.forward = lambda rows: torch.nn.functional.linear(rows, projection.weight) * 2
    return projection


@pytest.mark.parametrize(
    ("projection", "reason", "differs"),
    [
        (Shifted(4, 6, bias=False), "Shifted, not a plain nn.Linear", True),
        (with_hook(torch.nn.Linear(4, 6)), "hooks are registered", True),
        (with_forward(torch.nn.Linear(4, 6, bias=False)), "forward of its output projection is replaced", True),
        (torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 6)), "ParametrizedLinear, not a plain", False),
    ],
)
def test_a_head_that_is_more_than_a_matrix_is_called_and_named(projection, reason, differs):
    """Scored through the module, gradients included: its weight alone may give other numbers, or have other parameters."""
    parts = head.SplitModel(torch.nn.Identity(), projection, 0.0, 1.0)
    assert reason in parts.why_not_linear
    hidden_MH = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    token_ids_M = torch.tensor([0, 5, 2, 2, 1])
    expected_MV = torch.log_softmax(projection(hidden_MH), -1)
    expected_M = expected_MV[torch.arange(5), token_ids_M]
    logprobs_M, entropy_M = parts.token_logprobs(hidden_MH, token_ids_M, temperature=1.0)
    assert (logprobs_M - expected_M).abs().max() < 1e-6
    assert (entropy_M + (expected_MV.exp() * expected_MV).sum(-1)).abs().max() < 1e-6
    wanted = [hidden_MH, *projection.parameters()]
    for found, expected in zip(*(torch.autograd.grad(t.sum(), wanted) for t in (logprobs_M, expected_M)), strict=True):
        assert (found - expected).abs().max() < 1e-5
    weight_alone = torch.log_softmax(torch.nn.functional.linear(hidden_MH, projection.weight, projection.bias), -1)
    assert ((weight_alone - expected_MV).abs().max() > 1e-2) == differs


def test_the_proof_takes_the_path_of_training_and_sampling(monkeypatch):
    """A head whose tensors give other logits than its module is refused, also where the module itself would pass."""
    model = build("Llama")
    seen = []
    original = head.SplitModel.logits

    def logits(self, hidden):
        seen.append(self.why_not_linear)
        return original(self, hidden) * (1.0 if len(seen) == 1 else 1.01)

    monkeypatch.setattr(head.SplitModel, "logits", logits)
    with pytest.raises(ModelError, match="LlamaForCausalLM"):
        head.split(model)
    assert seen == [None, None]
