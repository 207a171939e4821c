"""The reference interpreter of schedules (package): see `interpreter`, `pipelines` for how stages fire, and `steps` for
the table of steps."""

from sscc.runtime.backends.reference.interpreter import ReferenceInterpreter

__all__ = ["ReferenceInterpreter"]
