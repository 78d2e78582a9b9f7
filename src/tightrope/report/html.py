"""Pieces of a page: numbers, tables, figures, sections, and the page itself."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

STYLE = Path(__file__).with_name("style.css")


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{attribute('class', kind)}>{coded(text)}</p>"


def attribute(name: str, value: str) -> str:
    """An attribute, unless it is empty."""
    return f' {name}="{escape(value)}"' if value else ""


def coded(text: str) -> str:
    """Text with what stands in backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def items(texts: Iterable[str]) -> str:
    """A list; nothing if it would be empty."""
    found = "".join(f"<li>{coded(text)}</li>" for text in texts)
    return f"<ul>{found}</ul>" if found else ""


def pairs(facts: dict[str, str], kind: str) -> str:
    """Terms and what they are."""
    found = "".join(f"<div><dt>{escape(name)}</dt><dd>{coded(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="{kind}">{found}</dl>'


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table that scrolls within its box; the first column names the rows."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(str(first))}</th>' + "".join(f"<td>{escape(str(x))}</td>" for x in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figures(found: Iterable[tuple[str, str]], kind: str = "") -> str:
    """Pictures side by side where there is room, each with its title."""
    each = "".join(f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in found)
    return f'<div class="{f"figures {kind}".strip()}">{each}</div>'


def number(value: float, form: str) -> str:
    """A number, or a dash for none; large ones in full."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else format(value, form)


def duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.1g} s"


def section(title: str, *content: str) -> str:
    anchor = re.sub(r"\W+", "-", title.lower())
    return f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(title)}</h2>{"".join(content)}</section>'


def page(title: str, content: str) -> str:
    """A whole document that asks for nothing from elsewhere."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n"
        f"{content}\n</body>\n</html>\n"
    )
