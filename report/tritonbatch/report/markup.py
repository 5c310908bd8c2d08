"""HTML from values. Every text from outside goes through :func:`text`, every JSON through :func:`script_json`."""

from __future__ import annotations

import html
from collections.abc import Sequence


def text(value: object) -> str:
    """*value* as text that no browser reads as markup, inside an attribute too."""
    return html.escape(str(value), quote=True)


def script_json(document: str) -> str:
    """JSON that cannot end the script element it stands in, nor open a comment in it."""
    return document.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def table(label: str, caption: str, head: Sequence[str], bodies: str, kind: str = "") -> str:
    """A table that scrolls sideways in its own frame, so that the page never does; *bodies* is markup already."""
    columns = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    heading = f"<thead><tr>{columns}</tr></thead>" if head else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(label)}"><table class="{kind}">'
        f"<caption><span>{text(caption)}</span></caption>{heading}{bodies}</table></div>"
    )
