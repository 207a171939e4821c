"""Default limits of serving, and the largest values that its numbers may have. They are in a module of their own so
that `sscc serve --help` imports no server."""

NEW_TOKENS = 64  # of an answer, if they fit
QUEUE = 64  # requests that wait for a slot
BODY_BYTES = 4 << 20  # of a request

MOST_SECONDS = 7 * 24 * 3600.0
"""The longest time that any option or request may ask for: a week. Waits of threads overflow beyond some 292 years."""
MOST_TOKENS = 1 << 31
"""The largest number of tokens that any option or request may name."""
MOST_REQUESTS = 1 << 20
"""The largest number of requests that any option may name."""
MOST_BODY_BYTES = 1 << 34
"""The largest size of a request's body that an option may allow."""
