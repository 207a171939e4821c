"""Matplotlib plots as SVG."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


def svg_of(draw: Callable[[Any], Any], font_size: float) -> bytes:
    """Return the SVG of a figure. Equal figures give equal bytes.

    Args:
        draw: returns a figure, drawn with `matplotlib.pyplot`.
        font_size: font size in points.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "sscc", "svg.fonttype": "none", "font.size": font_size}):
        figure, file = draw(pyplot), io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return file.getvalue()
