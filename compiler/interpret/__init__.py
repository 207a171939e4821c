"""Executes the compiler's IR levels with torch: every operation from its own definition, plainly.

It shares no code with the frontend's definition of the algorithm, with the backend or with the reference interpreter
of schedules, so that an error in one of them shows as a difference.
"""
