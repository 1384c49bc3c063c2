"""A step written down beside its rollouts: a short record of every completion, and single tokens of a few groups.

It comes last, once the findings of the step are known. It is for those who watch: a problem with it is told once, and training goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from cohort.observe.rollouts import append_rows, choose_groups, choose_rows, write_tokens
from cohort.training.parts import Parts
from cohort.training.state import Batch, TrainState
from cohort.training.trace import make_token_rows


def record_step(parts: Parts, state: TrainState, step: int) -> None:
    """Write the step's records and tokens to the run folder, on the main rank."""
    settings, watch, batch = parts.recipe.monitors, parts.monitors.watch, state.batch
    assert batch is not None
    if not parts.folder.owned:
        return
    try:
        named, new = (watch.list_named_rows(step), watch.list_named_rows(step, new=True)) if watch else ([], [])
        if settings.rollouts_every and step % settings.rollouts_every == 0:
            append_rows(parts.folder.index_file, step, batch.rollouts, batch.advantages_N, named)
        if settings.tokens_every:
            due = step == 1 or step % settings.tokens_every == 0
            record_tokens(parts, state, batch, step, new, due)
    except Exception as problem:
        parts.monitors.note_failure(parts.folder, "record_step", problem)


def record_tokens(parts: Parts, state: TrainState, batch: Batch, step: int, named: Sequence[int], due: bool) -> None:
    """Single tokens of the groups of these rollouts, and where it is due of a few that teach."""
    if not (named or due):
        return
    rewards: dict[int, list[float | None]] = {}
    members: dict[int, list[int]] = {}
    for row, rollout in enumerate(batch.rollouts):
        rewards.setdefault(rollout.group, []).append(rollout.outcome.reward)
        members.setdefault(rollout.group, []).append(row)
    groups = choose_groups(rewards, [batch.rollouts[row].group for row in named], due)
    if not groups:
        return
    lengths_N = [len(rollout.completion.token_ids) for rollout in batch.rollouts]
    chosen = choose_rows(groups, members, lengths_N, batch.advantages_N)
    pieces, algorithm = parts.policy.codec.pieces, parts.recipe.algorithm
    rows = make_token_rows(chosen, batch.rollouts, batch.examples, state.trace, len(state.update_metrics), algorithm, pieces)
    write_tokens(parts.folder.tokens_file(step), step, rows)
