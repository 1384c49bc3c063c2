"""The reference: the policy that the KL pulls towards, and how it may follow the policy.

It stays where the run started, or becomes the policy every N steps (iterative training), or follows it as a moving average.
One that stays is made again from the starting weights; one that moves is part of the checkpoint. With LoRA it is an adapter
over the policy's own base, and the adapter is all that moves: A and B are averaged each, not their product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cohort.model.policy import Policy


class Reference:
    def __init__(self, policy: Policy, every: int = 0, decay: float = 0.0):
        self.policy = policy
        self.every, self.decay = every, decay
        self.moved = False
        """By hand, at the start of an iteration: from then on it is part of the checkpoint."""
        self.averages: dict[str, Tensor] = {}
        """Moving averages in float32: a small step would be lost in a bfloat16 parameter."""
        if decay:
            self.averages = {name: value.detach().float().clone() for name, value in self.values.items()}

    @property
    def values(self) -> dict[str, Tensor]:
        return self.policy.list_held_parameters()

    @property
    def moves(self) -> bool:
        return bool(self.every or self.decay or self.moved)

    def follow(self, policy: Policy, step: int) -> None:
        """Called once a step is finished."""
        if self.every and step % self.every == 0:
            self.become(policy)
        elif self.decay:
            self._average(policy)

    @torch.no_grad()
    def become(self, policy: Policy) -> None:
        self.moved = True
        theirs = policy.list_held_parameters()
        for name, mine in self.values.items():
            mine.copy_(theirs[name])
            if self.averages:  # a moving average starts over from here
                self.averages[name].copy_(theirs[name])
        self.policy.notice_new_weights()

    @torch.no_grad()
    def _average(self, policy: Policy) -> None:
        theirs = policy.list_held_parameters()
        for name, mine in self.values.items():
            self.averages[name].lerp_(theirs[name].float(), 1.0 - self.decay)
            mine.copy_(self.averages[name])
        self.policy.notice_new_weights()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if not self.moves:
            return {}, {}
        current = self.averages or {name: value.detach() for name, value in self.values.items()}
        return self.policy.make_whole(current), {"moved": self.moved}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        if not tensors:
            return
        self.moved, tensors = bool(document["moved"]), self.policy.take_own(tensors)
        for name, mine in self.values.items():
            mine.copy_(tensors[name])
            if self.averages:
                self.averages[name].copy_(tensors[name])
        self.policy.notice_new_weights()
