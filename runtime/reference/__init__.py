"""The reference interpreter of schedules (package): see `interpreter`, and `stages` for the table of stages."""

from sscc.runtime.reference.interpreter import ReferenceInterpreter

__all__ = ["ReferenceInterpreter"]
