"""Runs untrusted code in a jail: model-written programs, and verifiers that model text could subvert.

    result = run_calls("def add(a, b): return a + b", [Call("add", (2, 3))], Limits(cpu_s=2))
    result.replies[0].value        # 5, an int built by the host

Verdicts are computed outside the jail: a program returns plain values on a pipe, and the caller compares them with expected
values that the jail never sees. The result says how a run ended. The only exception is JailUnavailable, which means that
nothing was run. Needs only the standard library.
"""

from cohort_verify.sandbox.limits import ENDS, JailUnavailable, Limits
from cohort_verify.sandbox.program import (
    Call,
    CallsResult,
    CheckResult,
    ChecksResult,
    Reply,
    Run,
    ScriptResult,
    run_calls,
    run_checks,
    run_script,
)
from cohort_verify.sandbox.tiers import find_tier
from cohort_verify.sandbox.values import NotPlain
from cohort_verify.sandbox.workers import WorkerPool, shared_pool
from cohort_verify.workers import Answer

__all__ = [
    "ENDS", "Answer", "Call", "CallsResult", "CheckResult", "ChecksResult", "JailUnavailable", "Limits", "NotPlain", "Reply",
    "Run", "ScriptResult", "WorkerPool", "find_tier", "run_calls", "run_checks", "run_script", "shared_pool",
]  # fmt: skip
