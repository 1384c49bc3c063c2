"""On-policy distillation: the teacher's credit by hand, its gradient by enumeration, and runs that learn from a teacher."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cohort import loop, session
from cohort.errors import Interrupted, RunError
from cohort.model.critic import Critic, NoCritic
from cohort.model.examples import Example, join_examples
from cohort.model.frozen import Teacher
from cohort.model.packing import pack
from cohort.model.policy import Policy
from cohort.model.scratch import build_scratch
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.file import load_recipe
from cohort.recipe.schema import CriticConfig, OptimizerConfig, ScratchConfig, TeacherConfig
from cohort.tools.doctor import run_doctor
from cohort.training import preflight
from cohort.training.credit import score_with_teacher
from cohort.training.experience import Models
from cohort.training.objective import token_loss
from cohort.training.rollouts import Collected
from cohort.training.state import Batch
from cohort.types import Rollout
from conftest import collect_batch, gradients, ragged_examples, relative_difference, rollout, tiny_policy
from session_tools import rows_of, tiny, train_tiny

TEMPERATURE = 0.7


@cache
def policy() -> Policy:
    return tiny_policy(seed=0, temperature=TEMPERATURE)


@cache
def teacher(coef: float = 1.0) -> Teacher:
    return Teacher(tiny_policy(seed=1, temperature=TEMPERATURE), TeacherConfig(source="elsewhere", coef=coef))


def sampled(examples: list[Example], model: Policy | None = None) -> list[Example]:
    """As if the policy had sampled them: with its log-probs, as the engine gives them."""
    scores = (model or policy()).score_examples(examples, 10_000)
    return [replace(example, sampling_logprobs_T=row_T) for example, row_T in zip(examples, scores, strict=True)]


def logprobs_by_hand(model: Policy, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...]) -> Tensor:
    """Of every token of a completion, straight from the logits."""
    logits_TV = model.model(torch.tensor([[*prompt_ids, *completion_ids]]), use_cache=False).logits[0]
    table_TV = torch.log_softmax(logits_TV[len(prompt_ids) - 1 : -1] / TEMPERATURE, -1)
    return table_TV.gather(1, torch.tensor(completion_ids)[:, None])[:, 0].detach()


# -- the credit of a token -----------------------------------------------------------------------------------------------


def test_every_token_is_credited_with_its_own_gap():
    """coef (log pi_teacher - log mu) on top of its advantage, both at the sampling temperature; masked tokens get nothing."""
    examples = sampled(ragged_examples(policy()))
    examples[2].loss_mask_T[3:5] = False
    lesson = score_with_teacher(teacher(0.5), examples, 20)
    gaps, taught = [], lesson.add_to(examples)
    for before, after in zip(examples, taught, strict=True):
        theirs_T = logprobs_by_hand(teacher().policy, before.prompt_ids, before.completion_ids)
        mu_T = logprobs_by_hand(policy(), before.prompt_ids, before.completion_ids)
        expected_T = before.advantages_T + torch.where(before.loss_mask_T, 0.5 * (theirs_T - mu_T), 0.0)
        assert torch.allclose(after.advantages_T, expected_T, atol=1e-12, rtol=0)
        assert torch.equal(after.advantages_T[~before.loss_mask_T], before.advantages_T[~before.loss_mask_T])
        gaps.append((mu_T - theirs_T)[before.loss_mask_T])
    assert lesson.metrics["teacher/gap"] == pytest.approx(float(torch.cat(gaps).mean()), abs=1e-12)
    assert lesson.metrics["teacher/gap_per_completion"] == pytest.approx(sum(float(gap.sum()) for gap in gaps) / 8, abs=1e-12)
    assert not torch.allclose(taught[0].advantages_T, examples[0].advantages_T, atol=0.1)


def test_without_a_teacher_or_without_tokens_nothing_is_said():
    examples = ragged_examples(policy())
    together = join_examples(examples)
    assert score_with_teacher(None, examples, 20).add_to(together) is together
    assert score_with_teacher(None, examples, 20).metrics == {}
    masked = [replace(example, loss_mask_T=torch.zeros_like(example.loss_mask_T)) for example in examples]
    assert score_with_teacher(teacher(), masked, 20).metrics == {}


# -- the gradient --------------------------------------------------------------------------------------------------------


def tables(model: Policy, contexts: list[tuple[int, ...]]) -> Tensor:
    """[contexts, V] log-probs of the next token."""
    logits = model.model(torch.tensor(contexts), use_cache=False).logits[:, -1]
    return torch.log_softmax(logits / TEMPERATURE, -1)


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("coef", [1.0, 0.25])
def test_the_expected_gradient_is_that_of_the_reverse_kl(length, coef):
    """Summed over all completions of a vocabulary of 17, each weighed by how often the policy samples it.

    The second token's KL is averaged over first tokens as they are sampled, and does not push on how they are: no return-to-go.
    """
    prompt, vocabulary = (5, 6, 7), policy().model.config.vocab_size
    completions = list(product(range(vocabulary), repeat=length))
    nothing = torch.zeros(length, dtype=torch.float64)
    all_tokens = torch.ones(length, dtype=torch.bool)
    examples = sampled([Example(place, 0, prompt, one, all_tokens, nothing, nothing) for place, one in enumerate(completions)])
    probabilities = [float(example.sampling_logprobs_T.sum().exp()) for example in examples]
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-12)
    taught = score_with_teacher(teacher(coef), examples, 10_000).add_to(examples)
    minibatch = pack(
        taught,
        aggregation=lambda lengths_N, groups_N, longest: probabilities,
        max_completion_tokens=length,
        micro_batch_tokens=10_000,
        skip_zero_advantage=True,
    )
    for micro in minibatch.micro_batches:
        loss_M = token_loss(policy().compute_logprobs(micro), micro, AlgorithmConfig(name="opd"), 0.0).loss_M
        (loss_M * micro.loss_weights_M).sum().backward()
    ours = gradients(policy())

    expected: Tensor = torch.zeros((), dtype=torch.float64)
    for known in range(length):
        prefixes = list(product(range(vocabulary), repeat=known))
        contexts = [(*prompt, *prefix) for prefix in prefixes]
        weight = torch.ones(1, dtype=torch.float64) if not known else tables(policy(), [prompt])[0].exp().detach()
        mine, theirs = tables(policy(), contexts), tables(teacher().policy, contexts).detach()
        expected = expected + (weight * (mine.exp() * (mine - theirs)).sum(1)).sum()
    (coef * expected).backward()
    kl_gradient = gradients(policy())
    gradients(teacher().policy)
    assert relative_difference(ours, kl_gradient) < 1e-12
    assert kl_gradient.abs().max() > 1e-3


# -- in a batch ----------------------------------------------------------------------------------------------------------

REWARDS = [[1.0, 0.0, 0.5, None], [1.0, 1.0, 1.0, 1.0]]
"""The second group is silent: without a teacher nothing pushes on it."""


def rollouts() -> list[Rollout]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for group, row in enumerate(REWARDS):
        for sample, reward in enumerate(row):
            ids = tuple(torch.randint(3, 17, (1 + (3 * group + sample) % 5,), generator=generator).tolist())
            made.append(rollout(group, sample, reward, token_ids=ids, steps=((1, reward or 0.0),)))
    return made


def batch_of(*overrides: str, taught: bool = True) -> Batch:
    recipe = load_recipe(overrides=["micro_batch_tokens=20", "temperature=0.7", "teacher.source=elsewhere", *overrides])
    algorithm = recipe.algorithm
    critic = (
        Critic(policy(), CriticConfig(), OptimizerConfig(), torch.float64, 10) if algorithm.advantage == "gae" else NoCritic()
    )
    reference = tiny_policy(seed=2, temperature=TEMPERATURE) if algorithm.kl_coef else None
    models = Models(policy(), reference, critic, teacher(recipe.teacher.coef) if taught else None)
    return collect_batch(Collected(rollouts(), {}, 2, 99), models, recipe, 1, algorithm.kl_coef)


@pytest.mark.parametrize(
    "algorithm", ["grpo", "dr_grpo", "grpo_process", "reinforce++", "rloo", "ppo", "online_rft", "cispo", "dapo", "opd"]
)
def test_it_is_added_last_to_any_advantage(algorithm):
    """Whatever normalises or whitens an advantage, with the KL in the loss or in the reward, has done so before."""
    words = [f"algorithm={algorithm}", "teacher.coef=0.3"]
    with_teacher, without = batch_of(*words), batch_of(*words, taught=False)
    assert len(with_teacher.examples) == len(without.examples) == 7  # one completion has no score
    for taught, plain in zip(with_teacher.examples, without.examples, strict=True):
        theirs_T = logprobs_by_hand(teacher().policy, taught.prompt_ids, taught.completion_ids)
        term_T = 0.3 * (theirs_T - taught.sampling_logprobs_T.double())
        assert torch.allclose(taught.advantages_T.double() - plain.advantages_T.double(), term_T, atol=1e-6)
        if plain.returns_T is not None:  # the critic learns what rewards say, and nothing of the teacher
            assert torch.equal(taught.returns_T, plain.returns_T)
    if algorithm == "opd":
        assert not without.examples.has_gradient_N.any()
    assert {"teacher/gap", "teacher/gap_per_completion"} <= with_teacher.metrics.keys()
    assert not any(name.startswith("teacher/") for name in without.metrics)


def test_a_silent_group_is_scored_and_trained_on():
    """Old log-probs of skipped examples are 0; with a teacher none is skipped."""
    words = ["algorithm=dr_grpo", "minibatches_per_step=2"]

    def trained(batch: Batch) -> int:
        options = {"aggregation": "constant", "max_completion_tokens": 8, "micro_batch_tokens": 20}
        micro_batches = pack(batch.examples, skip_zero_advantage=True, **options).micro_batches
        return sum(micro.num_rows for micro in micro_batches)

    taught, plain = batch_of(*words), batch_of(*words, taught=False)
    assert (trained(taught), trained(plain)) == (7, 2)  # of the first group one is unscored and one has the mean
    assert all(bool((example.old_logprobs_T != 0).all()) for example in taught.examples)
    assert not any(bool(example.old_logprobs_T.any()) for example in plain.examples if example.group == 1)


# -- runs ----------------------------------------------------------------------------------------------------------------

ONE_UPDATE = {
    "algorithm.name": "opd",
    "algorithm.kl_coef": 0.0,
    "cold_start.num_steps": 0,
    "train.minibatches_per_step": 1,
    "train.passes_per_step": 1,
    "evaluation.samples": 0,
    "checkpoints.every_steps": 0,
}


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A model that a cold start has taught to add."""
    made = train_tiny(
        tmp_path_factory.mktemp("cold"), "cold", **{"train.num_steps": 0, "evaluation.samples": 0, "parallel.sums": "fast"}
    )
    return made.folder / "model"


def test_a_teacher_that_is_the_policy_teaches_nothing_to_the_bit(tmp_path, cold):
    """Engine, policy and teacher agree to the last bit here: the gap is exactly 0, and so is the update."""
    run = train_tiny(tmp_path, **ONE_UPDATE, **{"model.source": str(cold), "teacher.source": str(cold), "train.num_steps": 2})
    for row in rows_of(run.folder):
        assert (row["teacher/gap"], row["teacher/gap_per_completion"], row["optim/grad_norm"]) == (0.0, 0.0, 0.0)
        assert row["loss/trained_tokens"] == 0
        assert row["reward/mean"] > 0  # measured all the same
    before, after = load_file(cold / "model.safetensors"), load_file(run.model / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("group_size", [4, 1])
def test_a_student_comes_closer_to_its_teacher(tmp_path, cold, group_size):
    """A student of another width that has hardly begun, and no reward in the gradient: 2.8 nats per token become 1.2."""
    student = {"model.scratch.hidden_size": 48, "seed": 3, "cold_start.num_steps": 6, "optimizer.learning_rate": 3e-3}
    sizes = {"train.num_steps": 30, "train.group_size": group_size, "train.prompts_per_step": 64 // group_size}
    run = train_tiny(tmp_path, **ONE_UPDATE | student, **sizes, **{"teacher.source": str(cold)})
    gaps = [row["teacher/gap"] for row in rows_of(run.folder)]
    assert gaps[0] > 2.0
    assert sum(gaps[-5:]) / 5 < 0.6 * gaps[0]
    assert all(row["time/teacher"] > 0 for row in rows_of(run.folder))


def test_the_kl_to_the_reference_may_act_beside_it(tmp_path, cold):
    """GRPO with its KL and a teacher: both are measured, and at step 1 the KL is exactly 0."""
    chosen = {"algorithm.name": "grpo", "algorithm.kl_coef": 0.05, "seed": 3, "train.num_steps": 2}
    rows = rows_of(train_tiny(tmp_path, **ONE_UPDATE | chosen, **{"teacher.source": str(cold), "teacher.coef": 0.5}).folder)
    assert rows[0]["loss/kl"] == 0.0
    assert rows[1]["loss/kl"] > 0
    assert rows[0]["teacher/gap"] > 1.0


def test_the_doctor_and_the_start_of_a_run_look_at_the_teacher(tmp_path, cold, monkeypatch, capsys):
    """Before its weights are read: its size counts in the memory, and another tokenizer ends the run at once."""
    counted = []
    estimate = preflight.estimate_memory
    monkeypatch.setattr(
        preflight, "estimate_memory", lambda model, run: counted.append(run.teacher_parameters) or estimate(model, run)
    )
    run_doctor(tiny(tmp_path, **ONE_UPDATE, **{"teacher.source": str(cold)}))
    parameters = sum(value.numel() for value in load_file(cold / "model.safetensors").values())
    printed = " ".join(capsys.readouterr().out.split())
    assert f"teacher {cold}: {parameters / 1e6:.2f} M parameters, the policy's vocabulary" in printed
    assert set(counted) == {parameters}
    strange = tmp_path / "strange"
    for part in build_scratch(ScratchConfig(hidden_size=16, characters="abc"), (), 0):
        part.save_pretrained(strange)
    with pytest.raises(
        RunError, match=r"^teacher: teacher\.source: .*the tokenizer of .*strange differs from the policy.s: id 3 is"
    ):
        train_tiny(tmp_path, "other", **ONE_UPDATE, **{"teacher.source": str(strange)})
    assert not list((tmp_path / "other").glob("checkpoints/*"))


def test_another_teacher_on_resume_is_refused_and_the_old_one_goes_on(tmp_path, cold, monkeypatch):
    moved = tmp_path / "teacher"
    moved.mkdir()
    for file in cold.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())

    def stop(self, state, watch):
        raise Interrupted("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "observe_step", stop)
        chosen = {**ONE_UPDATE, "seed": 3, "teacher.source": str(moved)}
        assert train_tiny(tmp_path, **chosen).status == "interrupted"
    saved = json.loads(next((tmp_path / "run" / "checkpoints").glob("step-0.1/state.json")).read_text())
    assert set(saved["components"]) == {"teacher"}
    weights = (moved / "model.safetensors").read_bytes()
    other = train_tiny(tmp_path, "other", **{"train.num_steps": 0, "evaluation.samples": 0, "seed": 1})
    (moved / "model.safetensors").write_bytes((other.model / "model.safetensors").read_bytes())
    with pytest.raises(RunError, match=r"teacher\.source: .*teacher is not the teacher that the run was started with"):
        session.resume(tmp_path / "run")
    (moved / "model.safetensors").write_bytes(weights)
    assert session.resume(tmp_path / "run").status == "finished"
