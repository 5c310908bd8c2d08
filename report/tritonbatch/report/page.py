"""One HTML file that shows a comparison, whole without a network: styles, scripts and data are all inside it.

The content security policy lets the browser fetch nothing, and run only the two scripts whose hashes it names, so
that a text which slipped through would still not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.drawings import RunRecords
from tritonbatch.report.figures import looks
from tritonbatch.report.markup import table, text
from tritonbatch.report.sections import model_section
from tritonbatch.report.verdict import Verdict
from tritonbatch.report.wording import by_model, listing
from tritonbatch.whole_file import whole_file

LEAD = (
    "The same seeded arrivals went to every variant of a model. Latency counts from the moment a request should have "
    "started, so a wait before sending is part of it."
)

SHORT = 100
"""Characters of JSON that fit on one line of the manifest table."""


def write_page(
    path: Path,
    *,
    measurements: Sequence[Measurement],
    records: RunRecords,
    manifest: Mapping[str, Any],
    verdicts: Sequence[Verdict],
) -> None:
    """Write the page, whole or not at all (a temporary file is renamed into place).

    Args:
        path: where to; its folder exists.
        measurements: of any number of models.
        records: of each run by (model, load name, variant); a run without records has no latency line.
        manifest: what the run wrote down about itself; nested values are shown as JSON.
        verdicts: at most one per model.
    """
    document = _document(_body(measurements, records, manifest, verdicts), list(by_model(measurements)))
    with whole_file(path) as temporary:
        temporary.write_text(document, encoding="utf-8")


def _body(
    measurements: Sequence[Measurement], records: RunRecords, manifest: Mapping[str, Any], verdicts: Sequence[Verdict]
) -> str:
    style = looks(m.variant for m in measurements)
    by_name = {v.model: v for v in verdicts}
    sections = [
        model_section(f"model-{position}", group, by_name.get(model), records, style)
        for position, (model, group) in enumerate(by_model(measurements).items())
    ]
    return "\n".join([*sections, _manifest(manifest)])


def _document(body: str, models: Sequence[str]) -> str:
    plotly, draw, css = get_plotlyjs(), _asset("page.js"), _asset("page.css")
    title = text(f"Batching compared: {listing(models)}")
    policy = (
        f"default-src 'none'; script-src {_hash(plotly)} {_hash(draw)}; style-src 'unsafe-inline'; img-src data: blob:"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<header><h1>{title}</h1><p class="lead">{text(LEAD)}</p></header>
<main>
{body}
</main>
<noscript><p class="lead">The figures need JavaScript; every number stands in the tables.</p></noscript>
<script>{plotly}</script>
<script>{draw}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return files("tritonbatch.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _manifest(manifest: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{text(key)}</th><td>{_value(str(key), value)}</td></tr>'
        for key, value in manifest.items()
    )
    caption = "What ran, on what, with which seed and configuration: enough to repeat it."
    shown = table("Run manifest", caption, (), f"<tbody>{rows}</tbody>", "manifest")
    return f'<section aria-labelledby="manifest"><h2 id="manifest">How this was run</h2>{shown}</section>'


def _value(key: str, value: object) -> str:
    """A plain value or short JSON as it is, what is longer behind a summary."""
    if isinstance(value, Mapping) and any(isinstance(v, str) and "\n" in v for v in value.values()):
        # A configuration file inside JSON would be one line of escapes.
        return "".join(_value(str(name), inner) for name, inner in value.items())
    if isinstance(value, Mapping | list | tuple):
        short = json.dumps(value, ensure_ascii=False, default=str)
        if len(short) <= SHORT:
            return f"<code>{text(short)}</code>"
        return _details(key, json.dumps(value, indent=2, ensure_ascii=False, default=str))
    shown = "" if value is None else str(value)
    return _details(key, shown) if "\n" in shown else text(shown)


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{text(summary)}</summary><pre>{text(content)}</pre></details>"
