"""Bounds on the texts that a chat template creates: templates come with models, and may be written to exhaust memory.

Loops are counted in `chat_template`. This module bounds single expressions: widths, repetitions and replacements by
which a few letters of a template become gigabytes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedFormatter

MOST_LETTERS = 1 << 24  # letters of a text, elements of a list, binary digits of a number
MOST_WIDTH = 1 << 12  # width to which one expression pads a text, or by which it indents a line
_WIDE = re.compile(r"\d{5,}|\*")  # a width or a precision in a format; "*" takes it from an argument
_PERCENT = re.compile(r"%(?:\([^)]*\))?([-+ #0-9.*]*)")  # a conversion of %-formatting, its flags and widths apart

WIDENING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "wordwrap"})
REPEATED = {"indent": "\n", "expandtabs": "\t"}  # the width is added once for each of these in the text


class TooLarge(jinja2.TemplateRuntimeError):
    """A template would create a text larger than any prompt."""


def check_size(size: int, what: str) -> None:
    if size > MOST_LETTERS:
        raise TooLarge(f"{what} in it has more than {MOST_LETTERS} letters or digits")


def product_size(operator: str, left: Any, right: Any) -> int:
    """Return an upper bound of the letters, elements or binary digits of a product or power; 0 if it is always small.
    """
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    repeated, times = (left, right) if isinstance(right, int) else (right, left)
    return len(repeated) * times if isinstance(times, int) and isinstance(repeated, str | list | tuple) else 0


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Check `left operator right`, one of + * ** %, before it is evaluated. Raises TooLarge."""
    if operator == "%":
        if isinstance(left, str):
            check_percent(left, tuple(right.values()) if isinstance(right, dict) else right)
    elif operator == "+":
        sized = isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple)
        check_size(len(left) + len(right) if sized else 0, "a sum")
    else:
        check_size(product_size(operator, left, right), "a product")


def check_percent(text: str, values: Any) -> None:
    """Check `text % values` before it is evaluated. Raises TooLarge."""
    conversions = _PERCENT.findall(text)
    if any(_WIDE.search(widths) for widths in conversions):
        raise TooLarge(f"a format in it is wider than {MOST_WIDTH} letters, or takes its width from an argument")
    longest = max((len(value) for value in _items(values) if isinstance(value, str)), default=0)
    check_size(len(text) + len(conversions) * longest, "a format")


def check_join(separator: str, items: Any) -> None:
    """Check `separator.join(items)` before it is evaluated. Raises TooLarge."""
    texts = _items(items)
    check_size(sum(len(separator) + (len(item) if isinstance(item, str) else 0) for item in texts), "a sum")


def _items(values: Any) -> tuple[Any, ...] | list[Any]:
    return values if isinstance(values, tuple | list) else (values,)


def check_call(name: str, text: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check a filter or method `name` before it is applied to `text`. Raises TooLarge."""
    values = (*args, *kwargs.values())
    if name in WIDENING:
        width = max((value for value in values if isinstance(value, int)), default=0)
        if width > MOST_WIDTH:
            raise TooLarge(f"{name} in it widens to {width} letters, at most {MOST_WIDTH}")
        width = max([width, *(len(value) for value in values if isinstance(value, str))])
        check_size(width * text.count(REPEATED[name]) if name in REPEATED and isinstance(text, str) else 0, name)
    if name == "replace" and isinstance(text, str) and len(values) > 1 and isinstance(values[1], str):
        check_size(len(text) + text.count(str(values[0])) * len(values[1]), "a replacement")
    if name == "format" and isinstance(text, str):
        check_percent(text, values)
    if name == "join":
        separator, items = (text, args[0]) if isinstance(text, str) and args else (args[0] if args else "", text)
        check_join(str(separator), items)


def weigh(value: Any) -> int:
    """Check the size of a value when written: a list that holds another one twice writes it twice, so that forty such
    lists, nested, write 2^40 copies. Returns the number of items visited, each list once.

    Raises:
        TooLarge: letters and items together are more than MOST_LETTERS.
    """
    known: dict[int, int] = {}
    seen = 0

    def size(item: Any) -> int:
        nonlocal seen
        seen += 1
        if isinstance(item, str):
            return 1 + len(item)
        if not isinstance(item, list | tuple | dict):
            return 1
        if id(item) not in known:
            parts = (*item.keys(), *item.values()) if isinstance(item, dict) else item
            known[id(item)] = 1 + sum(map(size, parts))
            check_size(known[id(item)], "a list")
        return known[id(item)]

    size(value)
    return seen


def bounded_filter(name: str, function: Callable[..., Any], count_items: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the filter with its check before it and `count_items` after it. Jinja may pass a context or an environment
    first."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)  # copies Jinja's marks for the filter's first argument
    def bounded(*args: Any, **kwargs: Any) -> Any:
        if len(args) > skipped:
            check_call(name, args[skipped], args[skipped + 1 :], kwargs)
        return count_items(function(*args, **kwargs))

    return bounded


class BoundedFormatter(SandboxedFormatter):
    """`str.format` in which no width is beyond the bound, wherever it comes from."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self._letters = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        if _WIDE.search(format_spec):
            raise TooLarge(f"a format in it is wider than {MOST_WIDTH} letters")
        text = super().format_field(value, format_spec)
        self._letters += len(text)
        check_size(self._letters, "a format")
        return text
