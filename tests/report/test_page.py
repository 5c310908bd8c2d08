"""The page as a file: its numbers, its escaping and that it needs nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tritonbatch.observe.measurement import latency_of, throughput_of
from tritonbatch.report.figures import KNOWN, latency_figure, looks, thinned
from tritonbatch.report.page import write_page
from tritonbatch.report.verdict import verdicts
from tritonbatch.report.wording import per_second, significant

if TYPE_CHECKING:
    Sample = Any

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sample page without plotly's own script."""
    path = tmp_path_factory.mktemp("page") / "index.html"
    write_page(
        path,
        measurements=sample.measurements,
        records=sample.records,
        manifest={"seed": 7},
        verdicts=verdicts(sample.measurements),
    )
    assert [p.name for p in path.parent.iterdir()] == ["index.html"], "no temporary file is left"
    return path.read_text(encoding="utf-8").split("<noscript>")[0]


def figures(page: str) -> list[dict[str, Any]]:
    """The data of every figure of *page*."""
    found = re.findall(r'<script type="application/json" id="[^"]+">(.*?)</script>', page, re.DOTALL)
    return [json.loads(document) for document in found]


def test_values_are_folds_over_the_records(page: str, sample: Sample) -> None:
    """Every throughput and percentile of the table is what its records give."""
    for records in sample.records.values():
        throughput_per_s, _ = throughput_of(records)
        latency, raw = latency_of(records, records.intended_ns), latency_of(records, records.sent_ns)
        quantiles = (latency.p50_ms, latency.p95_ms, latency.p99_ms, raw.p99_ms)
        cells = [per_second(throughput_per_s), *map(significant, quantiles)]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in page


def test_has_its_parts(page: str, sample: Sample) -> None:
    """Sentences, captions, scopes and a label for each figure are there, and one h1."""
    for v in verdicts(sample.measurements):
        assert v.sentence.replace("'", "&#x27;") in page
    assert page.count("<h1>") == 1
    assert page.count("<caption>") == page.count("<table") == 5
    assert page.count('role="img" aria-label="') == len(figures(page)) == 2 * (2 * 2 + 3)
    assert 'scope="col"' in page
    assert 'scope="rowgroup"' in page


def test_names_no_address(page: str) -> None:
    """Nothing outside plotly's own script holds an address to load from."""
    assert re.findall(r"(?:https?:)?//[a-z]", page) == []
    assert re.findall(r"<(?:link|img|iframe|script)[^>]+(?:src|href)=\"(?!data:)", page) == []


def test_texts_are_escaped(sample: Sample, tmp_path: Path) -> None:
    """A hostile name, load, kind of failure or manifest entry stays text everywhere."""
    hostile = [
        replace(m, model=HOSTILE, variant=f"{m.variant}{HOSTILE}", load=replace(m.load, name=HOSTILE + m.load.name))
        for m in sample.measurements[:6]
    ]
    hostile[0] = replace(hostile[0], errors={HOSTILE: 3})
    records = {(m.model, m.load.name, m.variant): r for m, r in zip(hostile, sample.records.values(), strict=False)}
    manifest = {HOSTILE: HOSTILE, "nested": {"a": [HOSTILE] * 9}, "files": {HOSTILE: f"{HOSTILE}\n"}}
    path = tmp_path / "index.html"
    write_page(path, measurements=hostile, records=records, manifest=manifest, verdicts=verdicts(hostile))
    page = path.read_text(encoding="utf-8").split("<noscript>")[0]
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") > 20
    names = {trace["name"] for figure in figures(page) for trace in figure["data"] if "alert" in trace["name"]}
    assert "serial&lt;script&gt;alert(1)&lt;/script&gt;" in names, "plotly reads HTML, so it gets none"


def test_manifest(sample: Sample, manifest: dict[str, Any], tmp_path: Path) -> None:
    """Seed and versions are shown, and a configuration keeps its lines."""
    path = tmp_path / "index.html"
    write_page(path, measurements=sample.measurements[:1], records={}, manifest=manifest, verdicts=())
    page = path.read_text(encoding="utf-8")
    assert '<th scope="row">seed</th><td>7</td>' in page
    assert "&quot;tritonserver&quot;: &quot;2.51.0&quot;" in page
    configuration = "name: &quot;ranking_mlp&quot;\nbackend: &quot;onnxruntime&quot;\nmax_batch_size: 1\n"
    assert f"<summary>ranking_mlp/serial</summary><pre>{configuration}</pre>" in page


def test_a_failed_write_leaves_the_old_page(sample: Sample, tmp_path: Path) -> None:
    """The page is replaced whole or not at all."""
    path = tmp_path / "index.html"
    path.write_text("old", encoding="utf-8")
    unwritable = [replace(sample.measurements[0], model="\ud800")]
    with pytest.raises(UnicodeEncodeError):
        write_page(path, measurements=unwritable, records={}, manifest={}, verdicts=())
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("index.html", "old")]


@pytest.mark.parametrize("count", [0, 1, 50, 100_000])
def test_thinning_keeps_the_tail(count: int) -> None:
    """Every value beyond p99 and both ends are drawn, however many there are."""
    at = thinned(np.arange(count, dtype=float))
    assert len(at) <= 400 + count // 100 + 2
    assert set(range(int(count * 0.99), count)) <= set(at.tolist())
    assert count == 0 or at[0] == 0


def test_latency_line_ends_at_the_share_that_succeeded(sample: Sample) -> None:
    """Failed requests lower the line instead of vanishing."""
    run = next(iter(sample.records.values()))
    status = run.status.copy()
    try:
        run.status[::10] = 4
        figure = latency_figure({"serial": run}, KNOWN)
    finally:
        run.status[:] = status
    assert figure.data[0].y[-1] == pytest.approx(0.9)


def test_variants_keep_their_look() -> None:
    """The usual names look the same in every run, and others differ from them and from one another."""
    found = looks(["static-32", "dynamic", "served", "serial", "dynamic"])
    assert found["dynamic"] == KNOWN["dynamic"]
    assert len({look.color for look in found.values()}) == len({look.dash for look in found.values()}) == 4
