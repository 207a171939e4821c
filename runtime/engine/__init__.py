"""Continuous batching: requests share the slots of one program (docs/serving.md)."""

from sscc.runtime.engine.engine import Engine
from sscc.runtime.engine.metrics import Histogram, Metrics, SlotState
from sscc.runtime.engine.request import (
    Completion,
    EngineClosed,
    EngineOptions,
    Finish,
    Piece,
    QueueFull,
    Request,
)
from sscc.runtime.engine.ticket import Ticket

__all__ = [
    "Completion",
    "Engine",
    "EngineClosed",
    "EngineOptions",
    "Finish",
    "Histogram",
    "Metrics",
    "Piece",
    "QueueFull",
    "Request",
    "SlotState",
    "Ticket",
]
