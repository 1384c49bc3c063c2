"""Rollouts as a checkpoint holds them: token-sized data as tensors, the rest as JSON, prompts by their index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from cohort.types import Completion, Outcome, Prompt, Rollout

Rows = list[dict[str, Any]]


def encode_rollouts(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], Rows]:
    """(tensors over all tokens, a row for each rollout). Prompts are stored by index: their source is part of the recipe."""
    tensors = {
        "completion_ids": lay_flat([rollout.completion.token_ids for rollout in rollouts], torch.int64),
        "sampling_logprobs": lay_flat([rollout.completion.sampling_logprobs for rollout in rollouts], torch.float32),
        "sampled_mask": lay_flat([rollout.completion.mask for rollout in rollouts], torch.bool),
    }
    rows = [
        {
            "prompt": rollout.prompt.index,
            "group": rollout.group,
            "sample": rollout.sample,
            "policy_version": rollout.policy_version,
            "length": len(rollout.completion.token_ids),
            "all_sampled": rollout.completion.sampled_mask is None,
            "end": rollout.completion.end,
            "text": rollout.completion.text,
            "versions": rollout.completion.versions,
            "outcome": asdict(rollout.outcome),
        }
        for rollout in rollouts
    ]
    return tensors, rows


def decode_rollouts(tensors: Mapping[str, Tensor], rows: Rows, find_prompt: Callable[[int], Prompt]) -> list[Rollout]:
    rollouts, offset = [], 0
    for row in rows:
        span = slice(offset, offset + row["length"])
        offset += row["length"]
        completion = Completion(
            token_ids=tuple(tensors["completion_ids"][span].tolist()),
            sampling_logprobs=tuple(tensors["sampling_logprobs"][span].tolist()),
            end=row["end"],
            text=row["text"],
            sampled_mask=None if row["all_sampled"] else tuple(tensors["sampled_mask"][span].tolist()),
            versions=tuple((version, count) for version, count in row.get("versions", ())),
        )
        said = row["outcome"]
        outcome = Outcome(**said | {"faults": tuple(said["faults"]), "steps": tuple(map(tuple, said["steps"]))})
        prompt = find_prompt(row["prompt"])
        rollouts.append(Rollout(prompt, row["group"], row["sample"], completion, outcome, row["policy_version"]))
    return rollouts


def lay_flat(rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=dtype)
