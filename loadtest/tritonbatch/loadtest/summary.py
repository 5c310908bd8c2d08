"""How faithfully a load was played, beside its records: of one process, or of all workers together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tritonbatch.loadtest.records import Records


def summary_of(options: Any, records: Records, played: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of one process: what was asked, and what *played* says became of it and what CPU it took."""
    closed = str(options.pattern).startswith("closed")
    return {
        "load": options.load_name,
        "loop": "closed" if closed else "open",
        "pattern": options.pattern,
        "arrivals": options.pattern or options.arrivals,
        "rate_per_s": rate_of(options, records),
        "requests": len(records),
        "seed": options.seed,
        "client_batch": options.client_batch,
        "protocol": options.protocol,
        "cap": options.cap,
        "finished": int(np.count_nonzero(records.status)),
        "workers": 1,
        "lost_workers": 0,
        **played,
    }


def rate_of(options: Any, records: Records) -> float:
    """Arrivals per second: as asked for, or of the pattern's own times."""
    if not options.pattern:
        return float(options.rate)
    span_s = float(records.intended_ns.max() - records.intended_ns.min()) / 1e9 if len(records) > 1 else 0.0
    return (len(records) - 1) / span_s if span_s > 0 else float(len(records))


def merged(summaries: Sequence[Mapping[str, Any]], lost: int) -> dict[str, Any]:
    """One summary of all workers: counts added, the worst lag, complete only when each was and none is lost."""
    failed = next((summary for summary in summaries if "error" in summary), None)
    if failed is not None or not summaries:
        return {"complete": False, "lost_workers": lost, **(failed or {"error": "No worker has reported."})}
    total = dict(summaries[0])
    for name in ("requests", "finished", "cap_waits", "generator_cpu_s", "rate_per_s"):
        total[name] = sum(summary[name] for summary in summaries)
    if not total["pattern"]:
        total["rate_per_s"] = summaries[0]["rate_per_s"]
    total["schedule_lag_p99_ms"] = max(summary["schedule_lag_p99_ms"] for summary in summaries)
    total["complete"] = not lost and all(summary["complete"] for summary in summaries)
    total["saturated"] = any(summary["saturated"] for summary in summaries)
    return {**total, "workers": len(summaries) + lost, "lost_workers": lost}
