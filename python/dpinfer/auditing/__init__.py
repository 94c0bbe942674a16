"""Audits of the private mechanism: the code that private fits run, on made-up records, against its claim.

**Privacy.** No function here takes records.
"""

from dpinfer.auditing.audit import audit
from dpinfer.auditing.bounds import gaussian_lower_bound, one_run_lower_bound
from dpinfer.auditing.one_run import audit_one_run
from dpinfer.auditing.result import AuditCheck, AuditResult, OneRunResult

__all__ = [
    "AuditCheck",
    "AuditResult",
    "OneRunResult",
    "audit",
    "audit_one_run",
    "gaussian_lower_bound",
    "one_run_lower_bound",
]
