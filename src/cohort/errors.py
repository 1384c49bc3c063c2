"""All errors for users; messages name the field, the fault and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.types import Outcome


class CohortError(Exception):
    """Base of all errors raised on purpose. The command line prints only the message, without a traceback."""

    reported = False
    """Whether another process of the run prints it, so that it appears only once."""


def describe_problem(problem: Exception) -> str:
    """The message of an exception, with its type unless it is a CohortError."""
    return str(problem) if isinstance(problem, CohortError) else f"{type(problem).__name__}: {problem}"


class RecipeError(CohortError):
    """The recipe or an override is invalid."""


class PromptError(CohortError):
    """Prompts cannot be read, rendered or split as requested."""


class ModelError(CohortError):
    """The model or its tokenizer cannot be loaded, built or saved exactly."""


class EngineError(CohortError):
    """An engine does not support this model or these sampling parameters exactly."""


class RewardError(CohortError):
    """Reward functions failed in a way that would corrupt the training signal."""

    outcomes: Sequence[Outcome] = ()
    """The outcomes of the call's completions, if it finished."""


class EnvironmentFailed(CohortError):
    """Environments or tools failed in a way that would corrupt the training signal, or cannot be used with this model."""


class CheckpointError(CohortError):
    """A checkpoint is missing, damaged, or does not belong to this run."""


class RunError(CohortError):
    """The run folder cannot be used: locked by another process, already finished, or not a run."""


class NotFound(CohortError):
    """A page names a run, step or group that does not exist."""


class InvariantError(CohortError):
    """A condition that correct training must meet is violated (for instance ratio 1 at step 1)."""


class RankError(CohortError):
    """Another process of the run is lost, or the processes do not belong to one run."""


class Interrupted(BaseException):
    """SIGTERM, SIGHUP or Ctrl-C. A BaseException, so that no `except Exception` catches it."""
