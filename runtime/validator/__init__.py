"""The independent validator: it proves a schedule, or refuses it with the place of the fault. It shares no code with
the compiler that produces schedules or the interpreters that execute them."""

from sscc.runtime.validator.failure import Limits
from sscc.runtime.validator.findings import EntryReport, Report, Run
from sscc.runtime.validator.validate import validate

__all__ = ["EntryReport", "Limits", "Report", "Run", "validate"]
