"""Interpreter of the compiler's IR levels in torch: every operation is implemented directly from its definition.

It shares no code with the frontend's definition of the algorithm, with the backend or with the reference interpreter
of schedules, so that an error in one of them shows as a difference.
"""
