"""Default limits of serving. They are in a module of their own so that `sscc serve --help` imports no server."""

NEW_TOKENS = 64  # of an answer, if they fit
QUEUE = 64  # requests that wait for a slot
BODY_BYTES = 4 << 20  # of a request
