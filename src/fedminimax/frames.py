"""Tables of results as pandas has them, which write LaTeX by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from fedminimax.errors import InputError
from fedminimax.report.tables import tex


class Table(pd.DataFrame):
    """A pandas table whose ``to_latex`` needs no further package (pandas' own needs jinja2)."""

    @property
    def _constructor(self) -> type[Table]:
        return Table

    def to_latex(  # type: ignore[override]
        self,
        buf: str | Path | None = None,
        *,
        index: bool = True,
        float_format: str | Callable[[float], str] = "%.4g",
        caption: str | None = None,
        label: str | None = None,
        **others: Any,
    ) -> str | None:
        r"""Return the table for LaTeX, with ``\usepackage{booktabs}``; or write it to a file.

        Args:
            buf: the file to write; None: return the text.
            index: whether the rows' names are a column.
            float_format: how numbers are written: a format such as "%.3f", or a function.
            caption: makes it a floating table with this caption.
            label: what ``\ref`` calls the floating table.
            others: not known here; an error says so.
        """
        if others:
            raise InputError(
                f"to_latex has no {', '.join(others)} here: give index, float_format, caption or label, or use pandas' own, "
                "pandas.DataFrame(table).to_latex(...), which needs jinja2."
            )
        shown = float_format if callable(float_format) else lambda value: float_format % value
        cell = lambda value: shown(value) if isinstance(value, float) else tex(str(value))
        frame = self.reset_index(names=self.index.name or "") if index else self
        lines = [r"\begin{tabular}{" + "".join("r" if kind.kind in "fiu" else "l" for kind in frame.dtypes) + "}", r"\toprule"]
        lines += [" & ".join(tex(str(name)) for name in frame.columns) + r" \\", r"\midrule"]
        lines += [" & ".join(map(cell, row)) + r" \\" for row in frame.itertuples(index=False, name=None)]
        lines += [r"\bottomrule", r"\end{tabular}"]
        if caption is not None or label is not None:
            named = [rf"\caption{{{caption}}}"] * (caption is not None) + [rf"\label{{{label}}}"] * (label is not None)
            lines = [r"\begin{table}", r"\centering", *named, *lines, r"\end{table}"]
        text = "\n".join(lines) + "\n"
        if buf is None:
            return text
        Path(buf).write_text(text)
        return None
