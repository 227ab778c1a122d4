"""Stage REPORT: a Result as text for a terminal and as JSON."""

from __future__ import annotations

from kernelwright.report.document import SCHEMA, as_json
from kernelwright.report.explanation import render_explanation
from kernelwright.report.text import render_text

__all__ = ["SCHEMA", "as_json", "render_explanation", "render_text"]
