"""Continuous batching: requests share the slots of one program (docs/serving.md)."""

from sscc.runtime.serving.engine.engine import Engine
from sscc.runtime.serving.engine.metrics import Figures, Histogram, Metrics, SlotState
from sscc.runtime.serving.engine.remote_prefill import Outcome, PrefillError, Received, RemotePrefill
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
from sscc.runtime.serving.engine.request_handle import RequestHandle, cancel_all
from sscc.runtime.support.serving_options import EngineOptions

__all__ = [
    "FINISH_REASONS",
    "Completion",
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
    "RemotePrefill",
    "Request",
    "RequestHandle",
    "SlotState",
    "ThoughtBound",
    "cancel_all",
    "shown_text",
]
