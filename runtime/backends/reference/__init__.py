"""The reference interpreter of schedules: `interpreter` is its entry, `pipelines` decides when stages fire, and `steps`
has the table of steps."""

from sscc.runtime.backends.reference.interpreter import ReferenceInterpreter

__all__ = ["ReferenceInterpreter"]
