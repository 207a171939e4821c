"""Continuous batching: requests share the slots of one program (docs/serving.md)."""

from sscc.runtime.serving.engine.elsewhere import Elsewhere, Outcome, PrefillError, Received
from sscc.runtime.serving.engine.engine import Engine
from sscc.runtime.serving.engine.metrics import Figures, Histogram, Metrics, SlotState
from sscc.runtime.serving.engine.request import (
    FINISH_REASONS,
    Completion,
    EngineClosed,
    Finish,
    Piece,
    QueueFull,
    Request,
    ThoughtBound,
    shown_text,
)
from sscc.runtime.serving.engine.ticket import Ticket, cancel_all
from sscc.runtime.support.serving_options import EngineOptions

__all__ = [
    "FINISH_REASONS",
    "Completion",
    "Elsewhere",
    "Engine",
    "EngineClosed",
    "EngineOptions",
    "Figures",
    "Finish",
    "Histogram",
    "Metrics",
    "Outcome",
    "Piece",
    "PrefillError",
    "QueueFull",
    "Received",
    "Request",
    "SlotState",
    "ThoughtBound",
    "Ticket",
    "cancel_all",
    "shown_text",
]
