"""`cohort audit REWARD`: attack a reward function before a policy does.

    report = cohort.audit.audit("my_module:correct", rows)
    report.clean, report.flaws, report.findings

A policy under reinforcement learning finds whatever a reward pays for by mistake. The audit looks for it first: right
answers in other spellings, which must pass, and wrong ones, hedges, empty formats, tricks and bombs, which must not.
The function runs in a worker process that may hang or crash.
"""

from __future__ import annotations

from cohort.audit.auditor import audit
from cohort.audit.findings import FLAWS, AuditReport, Example, Finding
from cohort.audit.profiles import KINDS
from cohort.audit.running import AuditError

__all__ = ["FLAWS", "KINDS", "AuditError", "AuditReport", "Example", "Finding", "audit"]
