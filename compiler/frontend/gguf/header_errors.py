"""Kinds of errors in the header of a `.gguf` file, for all modules that read one."""

from __future__ import annotations

from sscc.ir.errors import ErrorKind, InputError, UnsupportedError


class GgufHeaderErrors(ErrorKind):
    """Files that are not GGUF, or whose header does not hold together."""

    NOT_GGUF = InputError, "{path} is not a GGUF file: it begins with {magic!r}"
    BYTE_ORDER = UnsupportedError, "{path} is a big-endian GGUF file, which is not supported"
    VERSION = UnsupportedError, "{path} has GGUF version {version}, supported are {known}"
    TRUNCATED = InputError, "{path} is truncated: {what} ends at byte {end}, but the file has {size} bytes"
    TOO_MANY = InputError, "{path} has {count} {what}, more than the limit of {most}"
    TOO_LONG = InputError, "{path}: {what} has {bytes} bytes, more than the limit of {most}"
    NOT_TEXT = InputError, "{path}: {what} is not UTF-8: {cause}"
    EMPTY_KEY = InputError, "{path}: entry {entry} of its metadata has an empty key"
    VALUE_TYPE = InputError, "{path}: metadata {key} has a value of type {type}, which GGUF does not have"
    NESTED = UnsupportedError, "{path}: metadata {key} is an array of arrays, which is not supported"
    BOOLEAN = InputError, "{path}: metadata {key} must be 0 or 1, got a boolean of value {value}"
    TWICE = InputError, "{path}: {what} {name!r} is there twice"
    BAD_ALIGNMENT = InputError, (
        "{path}: metadata general.alignment must be a power of two of type UINT32, got {alignment!r} of type {type}"
    )
    NO_ARCHITECTURE = InputError, (
        "{path}: metadata {key} must be a text of 1 to {most} characters that names an architecture, got {value!r}"
    )
    DIMENSIONS = InputError, "{path}: tensor {tensor!r} has {count} dimensions, more than the limit of {most}"
    SIZES = InputError, "{path}: tensor {tensor!r} of shape {shape} has more bytes than a file can have"
    TENSOR_TYPE = UnsupportedError, "{path}: tensor {tensor!r} has ggml type {type}, which is not supported"
    ROWS = InputError, "{path}: tensor {tensor!r} of shape {shape} has rows that are no whole blocks of {block} numbers"
    OFFSET = InputError, "{path}: tensor {tensor!r} begins at offset {offset}, which is not a multiple of {alignment}"
    OVERLAP = InputError, "{path}: the tensors {tensor!r} and {other!r} overlap"


SHOWN = 100
"""Characters of a text of metadata that a message repeats."""


def shown(value: object) -> object:
    """Return a value of metadata as the field of an error: a text shortened, an array as the name of its type."""
    if isinstance(value, str):
        return value if len(value) <= SHOWN else f"{value[:SHOWN]}.."
    return value if value is None or isinstance(value, bool | int | float) else type(value).__name__
