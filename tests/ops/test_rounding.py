"""On a CPU in float32, engine and trainer give the same bits for models of the demo's size."""

from __future__ import annotations

import pytest
import torch

from cohort.engine import sample_groups
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.model.examples import make_examples
from cohort.model.policy import Policy
from cohort.model.scratch import build_scratch
from cohort.ops.products import STEADY_ROWS, run_steadily
from cohort.recipe.schema import ScratchConfig
from cohort.types import NoiseKey, Outcome, Prompt, Rollout, Sampling

SHAPES = [(128, 128), (128, 64), (128, 384), (384, 128), (128, 20), (256, 256), (64, 48), (32, 64)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_any_company(shape):
    inputs, outputs = shape
    torch.manual_seed(0)
    linear = torch.nn.Linear(inputs, outputs, bias=False)
    rows_NH = torch.randn(1024, inputs)
    with torch.no_grad():
        expected_NV = linear(rows_NH)
        for count in [*range(1, STEADY_ROWS + 4), 63, 200, 511]:
            assert torch.equal(run_steadily(linear, rows_NH[:count]), expected_NV[:count]), count


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("micro_batch_tokens", [1, 200, 16384])
def test_engine_and_trainer_agree_bitwise_down_to_one_row(layers, micro_batch_tokens):
    """Ragged completions, so that the last rows decode in small batches; a budget of 1 trains each row by itself."""
    config = ScratchConfig(num_layers=layers, max_positions=64)
    model, tokenizer = build_scratch(config, ["0123456789+=>"], seed=1)
    with torch.no_grad():
        # Noise on every weight: the padding token starts at zero, and equal attention to all is a sum that ends in exact
        # ties between two floats, the one case in which rounding once can still go either way.
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    policy = Policy(model, tokenizer, temperature=0.9)
    prompts = [
        Prompt(index, text, {}, policy.codec.encode(text)) for index, text in enumerate(["1+2=", "12+345=", "7=", "99+1="])
    ]
    sampling = Sampling(group_size=3, temperature=0.9, max_completion_tokens=30, stop_ids=(tokenizer.eos_token_id,))
    groups = sample_groups(
        LocalEngine(EngineSetup(model, policy.codec.decode, slots=5)), prompts, sampling, NoiseKey(0, "train", 1)
    )
    rollouts = [
        Rollout(prompt, group, sample, completion, Outcome({}, 1.0, True), 0)
        for group, (prompt, completions) in enumerate(zip(prompts, groups, strict=True))
        for sample, completion in enumerate(completions)
    ]
    assert len({len(rollout.completion.token_ids) for rollout in rollouts}) > 3
    examples = make_examples(rollouts)
    for example, logprobs_T in zip(examples, policy.score_examples(examples, micro_batch_tokens), strict=True):
        assert torch.equal(logprobs_T, example.sampling_logprobs_T)
