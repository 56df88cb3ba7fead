"""Formulas: from how they are written in docstrings and pages to MathML, which browsers draw without scripts or fonts.

Docstrings have ``.. math::`` blocks and ``:math:`` roles, in LaTeX. In prose they write symbols as one types them in a
terminal, "eta_{x,l}" or "x^{r+1}": :func:`symbols` turns these into formulas too, and leaves code alone.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.inlinepatterns import InlineProcessor

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|phi|psi|omega|Delta|Phi|Psi|Omega"
)
_INDEX = r"(?:\{[^{}]*\}|(?:max|min|ref|eff)\b|[A-Za-z0-9](?!\w))"  # braces, a few words, or one character
_SYMBOL = rf"(?<![\w\\.]|[-/]\b)(?:(?:{_GREEK}|sum(?=_))(?:[_^]{_INDEX})*(?![\w(]*[=.]\w)|[A-Za-z](?:[_^]{_INDEX})+)'?(?!\w)"
_KEPT = (
    r"``.+?``|`[^`]+`|\$\$.+?\$\$|\$[^$]+\$|\]\([^)]*\)|^ {4}\w+(?: \([^)]*\))?:"  # code, formulas, links, names of arguments
)
_PLAIN = re.compile(rf"(?P<kept>{_KEPT})|(?P<symbol>{_SYMBOL})", re.DOTALL | re.MULTILINE)
_WORD = re.compile(rf"(?<![A-Za-z])({_GREEK}|sum)(?![A-Za-z])|_(max|min|ref|eff)\b")
_LIMITS = ("min", "max", "sup", "inf", "argmin", "argmax")  # what has its set below it on a line of its own


def mathml(latex: str, *, block: bool = False) -> str:
    """Return the MathML of a formula in LaTeX; several lines, or columns, are aligned."""
    latex = re.sub(r"\\arg\s*\\(min|max)", r"\\operatorname{arg\1}", latex.strip())
    if block and (r"\\" in latex or "&" in latex):
        latex = rf"\begin{{align*}}{latex}\end{{align*}}"
    formula = fromstring(convert(latex, xmlns="", display="block" if block else "inline"))
    for part in formula.iter():
        if (part.text or "").startswith("\\"):
            raise ValueError(f"{part.text} in the formula {latex!r} is not known to latex2mathml.")
        if block and part.tag == "msub" and part[0].text in _LIMITS:
            part.tag = "munder"
    return tostring(formula, encoding="unicode")


def symbols(text: str) -> str:
    r"""Return prose with its symbols as formulas: eta_{x,l} becomes $\eta_{x,l}$, and so do f_i, x^{r+1} and tau."""

    def replace(match: re.Match[str]) -> str:
        if match["kept"] is not None:
            return match["kept"]
        latex = _WORD.sub(
            lambda m: rf"\{m[1]}" if m[1] else rf"_{{\{m[2]}}}" if m[2] in ("max", "min") else f"_{{{m[2]}}}", match[0]
        )
        return f"${latex}$"

    return _PLAIN.sub(replace, text)


class _Inline(InlineProcessor):
    """$...$ within a paragraph."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        """Keep the formula out of Markdown's way until the page is written."""
        return self.md.htmlStash.store(mathml(m[1])), m.start(0), m.end(0)


class _Block(BlockProcessor):
    """A paragraph that is $$...$$."""

    def test(self, parent: Element, block: str) -> bool:
        """Whether the paragraph is a formula."""
        text = block.strip()
        return len(text) > 4 and text.startswith("$$") and text.endswith("$$")

    def run(self, parent: Element, blocks: list[str]) -> None:
        """Put it on a line of its own."""
        formula = mathml(blocks.pop(0).strip()[2:-2], block=True)
        SubElement(parent, "p").text = self.parser.md.htmlStash.store(f'<div class="formula">{formula}</div>')


class FormulaExtension(Extension):
    """$...$ and $$...$$ as MathML."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Come after code (190) and before backslashes are taken for escapes (180)."""
        md.inlinePatterns.register(_Inline(r"(?<!\\)\$(?![\s$])([^$]+?)(?<!\s)\$(?!\w)", md), "formula", 185)
        md.parser.blockprocessors.register(_Block(md.parser), "formulas", 175)


def makeExtension(**options: Any) -> FormulaExtension:
    """Return the extension, as Markdown asks for it."""
    return FormulaExtension(**options)
