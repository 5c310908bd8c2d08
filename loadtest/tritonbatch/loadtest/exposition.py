"""The generator's own metrics in Prometheus' text format. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


def exposition(total: Any, state: Mapping[str, float], model: str) -> str:
    """Counters, a latency histogram and gauges, from Locust's *total* and the generator's *state*.

    The histogram has Locust's rounding: two digits above 100 ms. A label may hold any text, so it is escaped.
    """
    label = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines: list[str] = []

    def add(name: str, kind: str, text: str, *samples: tuple[str, float]) -> None:
        lines.extend((f"# HELP tritonbatch_{name} {text}", f"# TYPE tritonbatch_{name} {kind}"))
        for suffix, value in samples:
            plain, _, more = suffix.partition("{")
            labels = f'model="{label}"' + (f",{more.rstrip('}')}" if more else "")
            lines.append(f"tritonbatch_{name}{plain}{{{labels}}} {value}")

    counts = sorted(total.response_times.items())
    buckets = [(f'_bucket{{le="{edge:g}"}}', sum(n for ms, n in counts if ms <= edge)) for edge in BUCKETS_MS]
    add("requests_total", "counter", "Requests that have ended.", ("", total.num_requests))
    add("failed_requests_total", "counter", "Requests that ended without a usable answer.", ("", total.num_failures))
    add(
        "latency_ms",
        "histogram",
        "Milliseconds from the intended start to the answer.",
        *buckets,
        ('_bucket{le="+Inf"}', total.num_requests),
        ("_sum", total.total_response_time),
        ("_count", total.num_requests),
    )
    add("outstanding_requests", "gauge", "Requests without an answer yet.", ("", state["outstanding"]))
    add("schedule_lag_ms", "gauge", "How late the latest request started.", ("", state["lag_ms"]))
    add("cap_waits_total", "counter", "Requests that waited because the cap was reached.", ("", state["cap_waits"]))
    return "\n".join(lines) + "\n"
