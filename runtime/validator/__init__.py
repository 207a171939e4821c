"""The independent validator: proves a schedule, or refuses it and says where. It shares no code with what makes
schedules and with what executes them."""

from sscc.runtime.validator.failure import Limits
from sscc.runtime.validator.findings import EntryReport, Report, Run
from sscc.runtime.validator.validate import validate

__all__ = ["EntryReport", "Limits", "Report", "Run", "validate"]
