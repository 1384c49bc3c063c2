"""Runs untrusted code in a jail: model-written programs, and verifiers that model text could subvert.

    result = run_calls("def add(a, b): return a + b", [Call("add", (2, 3))], Limits(cpu_s=2))
    result.replies[0].value        # 5, an int that the host has built itself

The verdict never lives in the jail. A program returns plain values on a pipe, and whoever asked compares them with what
it alone knows. How a run ended is part of the result, never an exception, but for JailUnavailable: then nothing was run.
Needs the standard library alone.
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
    "ENDS",
    "Answer",
    "Call",
    "CallsResult",
    "CheckResult",
    "ChecksResult",
    "JailUnavailable",
    "Limits",
    "NotPlain",
    "Reply",
    "Run",
    "ScriptResult",
    "WorkerPool",
    "find_tier",
    "run_calls",
    "run_checks",
    "run_script",
    "shared_pool",
]
