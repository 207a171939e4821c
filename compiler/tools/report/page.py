"""The report page: all sections in one HTML file, which needs no network.

Texts from an artifact, from dumps or from measurements are untrusted: templates escape all of them, and the page's
content security policy allows only the inline script, by its digest, and no external resources.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2

from sscc.compiler.tools.report.assumptions import assumptions
from sscc.compiler.tools.report.kept import kept
from sscc.compiler.tools.report.kernels import kernels
from sscc.compiler.tools.report.measured import measured
from sscc.compiler.tools.report.memory import memory
from sscc.compiler.tools.report.overview import overview
from sscc.compiler.tools.report.passes import passes
from sscc.compiler.tools.report.report_inputs import Sources
from sscc.compiler.tools.report.roofline import roofline
from sscc.compiler.tools.report.timeline import timeline
from sscc.ir.sizes import format_bytes, format_seconds


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: anchor on the page, and name of the template.
        data: returns the template's variable `data`; None if there is nothing to show, and the template says why.
    """

    key: str
    title: str
    data: Callable[[Sources], Any]


SECTIONS: Sequence[Section] = (
    Section("overview", "Overview", overview),
    Section("kernels", "Kernels and stages", kernels),
    Section("memory", "Memory", memory),
    Section("roofline", "Roofline", roofline),
    Section("timeline", "Timeline", timeline),
    Section("passes", "Passes", passes),
    Section("kept", "Kept text", kept),
    Section("measured", "Measured", measured),
    Section("assumptions", "Assumptions", assumptions),
)
"""Sections in the order of the page."""


def render(sources: Sources) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sscc.compiler.tools.report"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": format_bytes, "time": format_seconds, "percent": percent, "px": _px}
    script, style = _file("report.js"), _file("report.css")
    return environment.get_template("page.html.j2").render(
        name=sources.name,
        sections=[(section, section.data(sources)) for section in SECTIONS],
        model=sources.inspection.model,
        version=sources.artifact.manifest.sscc,
        script=script,
        style=style,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _file(name: str) -> str:
    """Return the text of a file of the page that is not a template."""
    return files("sscc.compiler.tools.report").joinpath("templates", name).read_text(encoding="utf-8")


def percent(share: float) -> str:
    """Format a share of 0 .. 1 as a percentage."""
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def _px(length: float) -> str:
    """Format a length of a drawing."""
    return f"{length:.1f}".removesuffix(".0")
