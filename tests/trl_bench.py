"""TRL 1.16's own trainers on a tiny random model, fed with the library's examples. Nothing is recorded: TRL runs in the test.

Every setting that a comparison depends on is written before each call, so that no test sees what another one left behind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cohort.model.examples import Example
from cohort.model.policy import Policy
from conftest import gradients, library_loss_and_gradients, ragged_examples, relative_difference, tiny_policy

TEMPERATURE = 0.7
MAX_COMPLETION = 8
PROMPTS = [{"prompt": "1+2="}] * 8
"""Two groups of four."""
AGGREGATION = {
    "grpo": "sequence_mean",
    "bnpo": "token_mean",
    "dapo": "token_mean",  # with one optimizer step per generation: there, its window is the minibatch
    "cispo": "token_mean",
    "dr_grpo": "constant",
    "luspo": "sequence_sum",
    "sapo": "sequence_mean",
}


@dataclass(frozen=True)
class Trl:
    """A GRPO objective in TRL's words. `corrected` is `use_bias_correction_kl`, which TRL has on by default: always said."""

    loss_type: str
    beta: float
    corrected: bool
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    level: str = "token"
    """importance_sampling_level"""
    delta: float | None = None
    entropy_coef: float = 0.0
    tau_up: float = 1.0
    """sapo_temperature_pos"""
    tau_down: float = 1.05
    """sapo_temperature_neg"""

    def configure(self, trainer: Any) -> None:
        trainer.loss_type, trainer.beta = self.loss_type, self.beta
        trainer.epsilon_low, trainer.epsilon_high = self.epsilon_low, self.epsilon_high
        trainer.importance_sampling_level = self.level
        trainer.entropy_coef, trainer._entropy_bonus_enabled = self.entropy_coef, self.entropy_coef > 0
        trainer.args.delta = self.delta
        trainer.args.sapo_temperature_pos, trainer.args.sapo_temperature_neg = self.tau_up, self.tau_down
        trainer.args.use_bias_correction_kl = self.corrected

    def in_our_words(self) -> dict[str, Any]:
        """The same objective as choices of the recipe."""
        words: dict[str, Any] = {
            "aggregation": AGGREGATION[self.loss_type],
            "kl_coef": self.beta,
            "kl_corrected": self.corrected,
            "entropy_coef": self.entropy_coef,
        }
        if self.loss_type == "cispo":
            return words | {"region": "cispo", "ratio_cap": self.epsilon_high}  # the cap itself, not 1 + epsilon
        if self.loss_type == "sapo":
            return words | {"region": "soft", "soft_up": in_float32(self.tau_up), "soft_down": in_float32(self.tau_down)}
        words |= {"clip_low": self.epsilon_low, "clip_high": self.epsilon_high}
        if self.level == "sequence":
            return words | {"region": "sequence"}
        return words | ({"region": "dual_clip", "dual_clip": self.delta} if self.delta else {"region": "clip"})


def in_float32(value: float) -> float:
    """As TRL has it: a choice between two plain numbers is a float32 in torch, whatever it is multiplied with."""
    return torch.tensor(value, dtype=torch.float32).item()


@dataclass
class Bench:
    trainer: Any
    policy: Policy
    scripted_rewards: list[float | None] = field(default_factory=list)
    reference: Policy | None = None

    def use_float64(self, on: bool) -> None:
        """TRL's own float32 head, or float64 log-probs given to TRL's loss."""
        self.trainer.__dict__.pop("_get_per_token_logps_and_entropies", None)
        if on:
            self.trainer._get_per_token_logps_and_entropies = float64_logprobs


# -- trainers ----------------------------------------------------------------------------------------------------------


def grpo_bench(folder: Path) -> Bench:
    from trl import GRPOConfig, GRPOTrainer

    bench = _rewarded_bench(GRPOConfig, GRPOTrainer, folder, use_bias_correction_kl=False)
    bench.trainer.current_gradient_accumulation_steps = 1
    return bench


def rloo_bench(folder: Path) -> Bench:
    """With a reference of other weights, which TRL's trainer would otherwise load by name."""
    from trl import RLOOConfig, RLOOTrainer
    from trl.trainer.utils import add_fused_lm_head

    bench = _rewarded_bench(RLOOConfig, RLOOTrainer, folder)
    bench.reference = tiny_policy(seed=7, temperature=TEMPERATURE, spread=3.0)
    bench.trainer.ref_model = plain_copy(bench.reference.model)
    add_fused_lm_head(bench.trainer.ref_model, temperature=TEMPERATURE)
    return bench


def _rewarded_bench(config: Any, trainer: Any, folder: Path, **options: Any) -> Bench:
    from datasets import Dataset

    policy = tiny_policy(temperature=TEMPERATURE, spread=3.0)
    bench = Bench(None, policy)

    def scripted(completions: list[str], **columns: Any) -> list[float | None]:
        return bench.scripted_rewards

    args = config(
        output_dir=str(folder), per_device_train_batch_size=8, num_generations=4, max_completion_length=MAX_COMPLETION,
        beta=0.0, temperature=TEMPERATURE, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
        gradient_accumulation_steps=1, **options,
    )  # fmt: skip
    bench.trainer = trainer(
        model=plain_copy(policy.model), reward_funcs=scripted, args=args, processing_class=policy.tokenizer,
        train_dataset=Dataset.from_list(PROMPTS),
    )  # fmt: skip
    bench.trainer.model.train()  # normalisers differ in evaluation; there is no dropout
    assert bench.trainer.model is not policy.model
    assert bench.trainer.args.steps_per_generation == 1
    return bench


def dpo_bench(folder: Path) -> Bench:
    """At temperature 1, which is where TRL scores pairs, and where the recipe scores pairs that were written."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    policy, reference = tiny_policy(spread=3.0), tiny_policy(seed=7, spread=3.0)
    args = DPOConfig(
        output_dir=str(folder), beta=0.1, loss_type=["sigmoid"], max_length=None, use_cpu=True, bf16=False,
        gradient_checkpointing=False, report_to=[],
    )  # fmt: skip
    trainer = DPOTrainer(
        model=plain_copy(policy.model), ref_model=plain_copy(reference.model), args=args, processing_class=policy.tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "1+2=", "chosen": "3", "rejected": "4"}] * 2),
    )  # fmt: skip
    trainer.model.train()
    return Bench(trainer, policy, reference=reference)


def plain_copy(model: Any) -> Any:
    """The same weights with the attention of transformers, which knows what to do with padding on the left."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("sdpa")
    return model


@contextmanager
def drifted(model: Any, size: float) -> Iterator[None]:
    """Other weights for a while: those of the policy that sampled. Equal models are moved equally."""
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(model.parameters(), kept, strict=True):
                parameter.copy_(before)


# -- float64 in the place of TRL's head --------------------------------------------------------------------------------


def float64_logprobs(
    model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, batch_size: int | None = None, **options: Any
) -> tuple[Tensor, Tensor, None]:
    """(log-probs, entropies, no auxiliary loss), with positions counted from the first real token."""
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False).logits
    logprobs = torch.log_softmax(logits[:, -logits_to_keep - 1 : -1] / TEMPERATURE, -1)
    chosen = logprobs.gather(2, input_ids[:, -logits_to_keep:, None]).squeeze(2)
    return chosen, -(logprobs.exp() * logprobs).sum(2), None


def float64_head(model: Any) -> Callable[..., SimpleNamespace]:
    """`model` with what DPOTrainer reads of TRL's fused head: log-probs of the labelled tokens, and fields for its metrics."""

    def forward(input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **options: Any) -> SimpleNamespace:
        logits = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1]
        logprobs, labels = torch.log_softmax(logits, -1), labels[:, 1:]
        chosen = logprobs.gather(2, labels.clamp(min=0)[..., None]).squeeze(2).masked_fill(labels == -100, 0.0)
        return SimpleNamespace(
            log_probs=chosen, entropy=torch.zeros_like(chosen), mean_logits=logits.mean(-1), is_top1=logits.argmax(-1) == labels
        )

    return forward


# -- comparisons -------------------------------------------------------------------------------------------------------


def trl_inputs(examples: Sequence[Example], pad_id: int) -> dict[str, Tensor]:
    """TRL's layout: prompts padded on the left, completions on the right."""
    prompt_width = max(len(example.prompt_ids) for example in examples)
    width = max(len(example.completion_ids) for example in examples)

    def right(values: Any, dtype: torch.dtype, fill: float = 0) -> Tensor:
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in values], dtype=dtype)

    def left(values: Any, fill: int) -> Tensor:
        return torch.tensor([[*[fill] * (prompt_width - len(row)), *row] for row in values])

    inputs = {
        "prompt_ids": left([example.prompt_ids for example in examples], pad_id),
        "prompt_mask": left([[1] * len(example.prompt_ids) for example in examples], 0),
        "completion_ids": right([example.completion_ids for example in examples], torch.long, pad_id),
        "completion_mask": right([[1] * len(example.completion_ids) for example in examples], torch.long),
        # TRL masks tool output with a second mask; holes in ours are the same thing.
        "tool_mask": right([example.loss_mask_T.long().tolist() for example in examples], torch.long),
        "advantages": torch.stack([example.advantages_T[0] for example in examples]),
        "num_items_in_batch": torch.tensor(float(sum(example.trained_tokens for example in examples))),
    }
    if examples[0].old_logprobs_T is not None:
        inputs["old_per_token_logps"] = right([example.old_logprobs_T.tolist() for example in examples], torch.float64)
    if examples[0].ref_logprobs_T is not None:
        inputs["ref_per_token_logps"] = right([example.ref_logprobs_T.tolist() for example in examples], torch.float64)
    return inputs


def trl_loss_and_gradients(bench: Bench, inputs: dict[str, Tensor]) -> tuple[float, Tensor]:
    trainer = bench.trainer
    trainer.model.zero_grad(set_to_none=True)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    theirs = gradients(trainer)
    assert theirs.abs().max() > 1e-3
    return loss.item(), theirs


def holed_examples(policy: Policy, seed: int, **options: Any) -> list[Example]:
    """Ragged examples, one of them with tokens in its middle that are not trained on."""
    examples = ragged_examples(policy, seed=seed, **options)
    examples[2].loss_mask_T[3:5] = False
    return examples


def compare(
    bench: Bench, trl: Trl, off_policy: float, seed: int = 1, *, float64: bool = True, examples: Any = None, **changed: Any
) -> tuple[float, float]:
    """(difference of the losses, largest difference of the gradients in units of the largest entry).

    The objective in our words is TRL's, with the choices in `changed` put in its place.
    """
    bench.use_float64(float64)
    trl.configure(bench.trainer)
    examples = examples or holed_examples(bench.policy, seed, off_policy=off_policy, reference=trl.beta > 0)
    trl_loss, theirs = trl_loss_and_gradients(bench, trl_inputs(examples, bench.policy.tokenizer.pad_token_id))
    loss, ours = our_loss_and_gradients(bench.policy, examples, **{**trl.in_our_words(), **changed})
    return loss_difference(loss, trl_loss, loss_unit(bench, trl, examples)), relative_difference(ours, theirs)


def loss_difference(ours: float, theirs: float, unit: float = 1.0) -> float:
    """Absolute up to a loss of `unit`, relative above, as float32 rounds."""
    return abs(ours - theirs) / max(unit, abs(theirs))


def loss_unit(bench: Bench, trl: Trl, examples: Sequence[Example]) -> float:
    """The size of one token's term: about 1 where it is a ratio, and for cispo, whose terms hold log pi, that of log-probs."""
    if trl.loss_type != "cispo":
        return 1.0
    return max(float(row_T.abs().max()) for row_T in bench.policy.score_examples(list(examples), 10_000))


def our_loss_and_gradients(policy: Policy, examples: Sequence[Example], **choices: Any) -> tuple[float, Tensor]:
    """In several micro-batches, which must not matter."""
    options = {"max_completion_tokens": MAX_COMPLETION, "micro_batch_tokens": 25, **choices}
    return library_loss_and_gradients(policy, list(examples), **options)
