"""`cohort audit REWARD`: attack a reward function before a policy does.

    report = cohort.tools.audit.audit("my_module:correct", rows)
    report.clean, report.flaws, report.findings

A policy under reinforcement learning finds every text that a reward scores by mistake. The audit searches for such texts first: right
answers in other spellings must pass; wrong answers, hedges, empty formats, tricks and bombs must not. The function runs in a worker
process that may hang or crash.
"""

from __future__ import annotations

from cohort.observe.diagnosis.finding import Finding
from cohort.tools.audit.kinds import audit
from cohort.tools.audit.report import FLAWS, AuditExample, AuditReport
from cohort.tools.audit.running import KINDS, AuditError, AuditOptions

__all__ = ["FLAWS", "KINDS", "AuditError", "AuditExample", "AuditOptions", "AuditReport", "Finding", "audit"]
