"""How faithfully a load was played, beside its records: of one process, or of all workers together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tritonbatch.loadtest.records import Records
from tritonbatch.loadtest.traffic import Traffic


def summary_of(options: Any, traffic: Traffic, records: Records, played: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of one process: what was asked, and what *played* says became of it and what CPU it took."""
    return {
        "load": options.load_name,
        "loop": "open" if traffic.closed is None else "closed",
        "pattern": options.pattern,
        "arrivals": options.pattern or options.arrivals,
        "rate_per_s": traffic.rate_per_s or realised_rate(records),
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


def realised_rate(records: Records) -> float:
    """Requests per second as they began, for a closed loop, where no rate was asked for."""
    span_s = float(records.intended_ns.max() - records.intended_ns.min()) / 1e9 if len(records) > 1 else 0.0
    return (len(records) - 1) / span_s if span_s > 0 else float(len(records))


def merged(summaries: Sequence[Mapping[str, Any]], lost: int) -> dict[str, Any]:
    """One summary of all workers: counts added, the worst lag, complete only when each was and none is lost."""
    failed = next((summary for summary in summaries if "error" in summary), None)
    if failed is not None or not summaries:
        return {"complete": False, "lost_workers": lost, **(failed or {"error": "No worker has reported."})}
    total = dict(summaries[0])
    added = ["requests", "finished", "cap_waits", "generator_cpu_s"]
    for name in [*added, "rate_per_s"] if total["loop"] == "closed" else added:
        total[name] = sum(summary[name] for summary in summaries)
    total["schedule_lag_p99_ms"] = max(summary["schedule_lag_p99_ms"] for summary in summaries)
    total["complete"] = not lost and all(summary["complete"] for summary in summaries)
    total["saturated"] = any(summary["saturated"] for summary in summaries)
    return {**total, "workers": len(summaries) + lost, "lost_workers": lost}
