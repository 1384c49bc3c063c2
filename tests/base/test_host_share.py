"""What the host does between two uses of the device, for 32 prompts x 8 completions x 512 tokens: a tenth of a second.

On a fast GPU a step of this size takes two to three seconds, so every tenth of a second in Python is 4 %. Budgets are CPU
time of a quiet core, about three times what it measures; each fast way is compared with the plain one.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cohort.model.chat import ChatCodec
from cohort.model.critic import NoCritic
from cohort.model.examples import Example
from cohort.observe.diagnosis import signs as hacking
from cohort.observe.diagnosis.checks import FindingWatch
from cohort.observe.monitors.base import Monitors
from cohort.observe.monitors.console import ConsoleMonitor
from cohort.observe.monitors.jsonl import JsonlMonitor
from cohort.observe.rollouts import append_rows
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import build_recipe
from cohort.training.experience import Models, average_advantages, measure_advantages
from cohort.training.rollouts import Collected, count_verdicts, group_rollouts
from cohort.training.stages import record_tokens
from cohort.training.state import TrainState
from cohort.training.updates import Measured, TokenValues
from cohort.types import Completion, Outcome, Prompt, Rollout
from conftest import collect_batch, rollout
from yardstick import measure_quiet_ms

PROMPTS, GROUP, LENGTH, PROMPT_LENGTH = 32, 8, 512, 128
DOCS = Path(__file__).parents[2] / "docs"
RECIPE = build_recipe(
    {
        "algorithm": {"kl_coef": 0.0},
        "train": {"prompts_per_step": PROMPTS, "group_size": GROUP},
        "sampling": {"max_completion_tokens": LENGTH},
    }
)


class Work:
    """One step's worth of real text in tokens of a byte-level BPE, as an engine hands it over."""

    def __init__(self) -> None:
        texts = [file.read_text(encoding="utf-8") for file in sorted(DOCS.glob("*.md"))]
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        inner.train_from_iterator(
            texts,
            trainers.BpeTrainer(vocab_size=2000, special_tokens=["<eos>"], show_progress=False, initial_alphabet=alphabet),
        )
        self.codec = ChatCodec(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>"))
        stream = [token for text in texts for token in self.codec.tokenizer(text)["input_ids"]]
        draw, noise = random.Random(0), np.random.default_rng(0)

        def piece(length: int) -> list[int]:
            start = draw.randrange(len(stream) - length)
            return stream[start : start + length]

        prompt_ids = [tuple(piece(PROMPT_LENGTH)) for _ in range(PROMPTS)]
        self.prompts = [
            Prompt(index, self.codec.decode(ids), {"answer": str(1000 + index)}, ids) for index, ids in enumerate(prompt_ids)
        ]
        self.token_ids_NT = np.array([piece(LENGTH) for _ in range(PROMPTS * GROUP)])
        self.logprobs_NT = -noise.exponential(size=self.token_ids_NT.shape).astype(np.float32)
        self.texts = [self.codec.decode(ids) for ids in self.token_ids_NT.tolist()]
        self.completions = self.as_completions()
        self.outcomes = [self.outcome(row) for row in range(PROMPTS * GROUP)]
        self.rollouts = self.as_rollouts()
        self.collected = Collected(self.rollouts, {"reward/mean": 0.5}, PROMPTS, self.token_ids_NT.size)
        self.models = Models(SimpleNamespace(codec=self.codec), None, NoCritic())  # type: ignore[arg-type]
        self.batch = collect_batch(self.collected, self.models, RECIPE, 1, 0.0)
        self.advantages_N = self.batch.advantages_N

    def outcome(self, row: int) -> Outcome:
        """No answer is extracted, so that every string of the successes is looked at: the dear case of `hacking.find_signs`."""
        right = (row + row // GROUP) % 2 == 0
        return Outcome({"judge": float(right)}, float(right), right, extras={"judge/verdict": "right" if right else "wrong"})

    def as_state(self) -> TrainState:
        """After one update in four micro-batches."""
        state, examples = TrainState(optimizer=None), self.batch.examples  # type: ignore[arg-type]
        state.begin_batch(self.batch)
        measured = []
        for start in range(0, len(examples), len(examples) // 4):
            places = tuple(range(start, start + len(examples) // 4))
            values_M = torch.randn(sum(examples[place].trained_tokens for place in places))
            values = TokenValues(places, values_M, values_M, values_M, values_M > 1, values_M > 2)
            measured.append(Measured(coefficient_M=values_M, tokens=values))
        state.trace.note_update(1, examples, [1.0] * len(examples), measured)
        return state

    def as_completions(self) -> list[Completion]:
        rows = zip(self.token_ids_NT, self.logprobs_NT, self.texts, strict=True)
        return [Completion(tuple(ids.tolist()), tuple(logprobs.tolist()), "stop", text) for ids, logprobs, text in rows]

    def as_rollouts(self) -> list[Rollout]:
        groups = [self.completions[start : start + GROUP] for start in range(0, PROMPTS * GROUP, GROUP)]
        groups_PG = group_rollouts(self.prompts, groups, self.outcomes, 0)
        count_verdicts(groups_PG)
        return [member for group in groups_PG for member in group]


@pytest.fixture(scope="module")
def work() -> Work:
    return Work()


def test_the_host_needs_a_small_part_of_a_step(work: Work, tmp_path: Path):
    """Each part within its budget, and all of them together within theirs."""
    folder, jsonl = RunFolder(tmp_path), JsonlMonitor(tmp_path)
    signs = hacking.find_signs(work.rollouts)
    row = {"evidence": signs.evidence, **{f"loss/{number}": number / 7 for number in range(90)}, **signs.metrics}
    console = ConsoleMonitor(tmp_path, RECIPE.model_dump(), console=Console(file=io.StringIO()))
    before = [{"step": step, **row} for step in range(1, 401)]
    monitors = Monitors([jsonl, console], watch=FindingWatch(RECIPE.model_dump(), rows=before))
    console.on_stage("training", total=1000)

    def watch() -> None:
        """The row of every tenth step, after which findings are looked for."""
        monitors.on_metrics({"step": monitors.watch.step // 10 * 10 + 10, **row})

    state = work.as_state()
    run: Any = SimpleNamespace(folder=folder, recipe=RECIPE, policy=SimpleNamespace(codec=work.codec))
    parts: dict[str, tuple[Callable[[], Any], float]] = {
        "decoding text": (lambda: work.codec.decode_all(work.token_ids_NT.tolist()), 130.0),
        "completions": (work.as_completions, 50.0),
        "rollouts": (work.as_rollouts, 10.0),
        "make_batch": (lambda: collect_batch(work.collected, work.models, RECIPE, 1, 0.0), 60.0),
        "signs of hacking": (lambda: hacking.find_signs(work.rollouts), 60.0),
        "rollouts/": (lambda: folder.write_rollouts(1, work.rollouts, work.advantages_N), 80.0),
        "monitors": (watch, 35.0),
        "index.bin": (lambda: append_rows(folder.index_file, 1, work.rollouts, work.advantages_N), 6.0),
        "noting tokens": (work.as_state, 6.0),
        "tokens.parquet": (lambda: record_tokens(run, state, work.batch, 1, [], due=True), 75.0),
    }
    spent = {name: measure_quiet_ms(function) for name, (function, _) in parts.items()}
    too_slow = {name: round(spent[name], 1) for name, (_, budget) in parts.items() if spent[name] > budget}
    assert not too_slow, spent
    assert sum(spent.values()) < 300.0, spent


# -- the fast ways are the plain ones ----------------------------------------------------------------------------------


def test_text_decoded_at_once_is_text_decoded_one_by_one(work: Work):
    assert work.codec.decode_all(work.token_ids_NT.tolist()) == work.texts


def test_rollouts_come_back_from_the_file_as_they_were(work: Work, tmp_path: Path):
    unscored = rollout(1, 0, None)
    told = replace(
        rollout(0, 0, 0.5, length=1, mask=(True,), steps=((1, 0.5),)),
        outcome=Outcome({"a": 0.5, "b": None}, 0.5, True, "46", ("b:timeout",), {"a/verdict": "right"}, ((1, 0.5),)),
    )
    empty = replace(told, completion=replace(told.completion, token_ids=(), sampling_logprobs=(), text="é\n"))
    rollouts = [told, empty, unscored, *work.rollouts[:20]]
    RunFolder(tmp_path).write_rollouts(3, rollouts, [0.25 * place for place in range(len(rollouts))])
    rows = pq.read_table(tmp_path / "rollouts" / "step-000003.parquet").to_pylist()
    assert len(rows) == len(rollouts)
    for place, (row, one) in enumerate(zip(rows, rollouts, strict=True)):
        expected = {
            "step": 3,
            "group": one.group,
            "sample": one.sample,
            "policy_version": 0,
            "prompt_index": one.prompt.index,
            "prompt": one.prompt.content,
            "completion": one.completion.text,
            "end": one.completion.end,
            "reward": one.outcome.reward,
            "success": one.outcome.success,
            "length": one.completion.length,
            "extracted": one.outcome.answer,
            "reference_answer": one.prompt.reference_answer,
            "answer": one.prompt.reference_answer,
            "advantage": 0.25 * place,
            "faults": list(one.outcome.faults),
            "steps": json.dumps([list(step) for step in one.outcome.steps]),
            "extras": json.dumps(dict(one.outcome.extras)),
            "prompt_ids": list(one.prompt.token_ids),
            "completion_ids": list(one.completion.token_ids),
            "sampling_logprobs": np.float32(one.completion.sampling_logprobs).tolist(),
            **{f"reward/{name}": one.outcome.parts.get(name) for name in ("a", "b", "judge")},
        }
        assert row == expected


def ragged(lengths: tuple[int, ...]) -> list[Example]:
    generator = torch.Generator().manual_seed(0)
    examples = []
    for place, length in enumerate(lengths):
        mask_T = torch.rand(length, generator=generator) < (0.0 if place == 2 else 0.7)
        values_T = torch.randn(length, generator=generator)
        ids = tuple(range(length))
        examples.append(Example(2 * place, place // 2, (1, 2), ids, mask_T, values_T, torch.zeros(length)))
    return examples


def test_advantages_laid_flat_give_what_a_loop_over_examples_gives():
    """Ragged, one example masked throughout, and rollouts without an example."""
    examples = ragged((5, 1, 7, 64, 3, 300))
    slow = [0.0] * 12
    for example in examples:
        if example.trained_tokens:
            slow[example.rollout] = float(example.advantages_T[example.loss_mask_T].double().mean())
    assert average_advantages(examples, 12) == pytest.approx(slow, rel=1e-12)
    assert slow[4] == 0.0
    largest = max(float(e.advantages_T[e.loss_mask_T].abs().max()) for e in examples if e.trained_tokens)
    scored_PG = torch.ones(3, 4, dtype=torch.bool)
    metrics = measure_advantages(slow, scored_PG, examples)
    assert metrics == {"advantage/std": pytest.approx(float(np.std(slow))), "advantage/abs_max": largest}
    assert average_advantages([], 3) == [0.0, 0.0, 0.0]
    assert measure_advantages([0.0] * 4, scored_PG[:1], [])["advantage/abs_max"] == 0.0
