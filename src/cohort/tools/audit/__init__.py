"""`cohort audit REWARD`: attack a reward function before a policy does.

    report = cohort.tools.audit.audit("my_module:correct", rows)
    report.clean, report.flaws, report.findings

A policy under reinforcement learning finds whatever a reward pays for by mistake. The audit looks for it first: right
answers in other spellings, which must pass, and wrong ones, hedges, empty formats, tricks and bombs, which must not.
The function runs in a worker process that may hang or crash.
"""

from __future__ import annotations

from cohort.observe.diagnosis.finding import Finding
from cohort.tools.audit.auditor import audit
from cohort.tools.audit.findings import FLAWS, AuditExample, AuditReport
from cohort.tools.audit.running import KINDS, AuditError, AuditOptions

__all__ = ["FLAWS", "KINDS", "AuditError", "AuditExample", "AuditOptions", "AuditReport", "Finding", "audit"]
