"""Default limits of serving, and the maxima of its numbers. They are in a separate module so that `sscc serve --help`
imports no server."""

NEW_TOKENS = 64  # tokens of an answer, if they fit
QUEUE = 64  # requests that wait for a slot
BODY_BYTES = 4 << 20  # size of a request's body

MOST_SECONDS = 7 * 24 * 3600.0
"""Maximum time of any option or request: a week. Waits of threads overflow beyond some 292 years."""
MOST_TOKENS = 1 << 31
"""Maximum number of tokens in any option or request."""
MOST_REQUESTS = 1 << 20
"""Maximum number of requests in any option."""
MOST_BODY_BYTES = 1 << 34
"""Maximum of the option for the size of a request's body."""
