"""Every user-facing error; messages name the field and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.types import Outcome


class CohortError(Exception):
    """Base of all errors raised on purpose. The command line prints the message alone, without a traceback."""

    told = False
    """Whether another process of the run says it to people: they should read it once."""


def describe_problem(problem: Exception) -> str:
    """What a problem says, with its kind where it is none that was raised on purpose."""
    return str(problem) if isinstance(problem, CohortError) else f"{type(problem).__name__}: {problem}"


class RecipeError(CohortError):
    """The recipe, or an override of it, cannot be used."""


class PromptError(CohortError):
    """Prompts cannot be read, rendered or split as asked."""


class ModelError(CohortError):
    """The model or its tokenizer cannot be loaded, built or saved faithfully."""


class EngineError(CohortError):
    """An engine cannot serve this model or these sampling parameters exactly."""


class RewardError(CohortError):
    """Reward functions failed so often, or in such a way, that going on would corrupt the training signal."""

    outcomes: Sequence[Outcome] = ()
    """Of the completions of the call, where it came to an end."""


class CheckpointError(CohortError):
    """A checkpoint is missing, damaged, or does not belong to this run."""


class RunError(CohortError):
    """The run folder cannot be used: locked by another process, already finished, or not a run."""


class NotFound(CohortError):
    """A page names a run, a step or a group that is not there."""


class InvariantError(CohortError):
    """Something that must hold before training can be trusted does not (for instance ratio 1 at step 1)."""


class RankError(CohortError):
    """Another process of the run is lost, or the processes do not belong to one run."""


class Interrupted(BaseException):
    """SIGTERM, SIGHUP or Ctrl-C. A BaseException, so that no `except Exception` on the way out can swallow it."""
