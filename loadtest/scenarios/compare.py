r"""The same arrivals for several servers one after the other: serial, static and dynamic, or any others.

locust -f loadtest/scenarios/compare.py --headless -u 1 --model NAME --targets \
    serial=localhost:8000,static=localhost:8010/32,dynamic=localhost:8020

`/32` after an address sends full batches of that size there. Each leaves records-NAME.parquet. `tritonbatch compare`
does the same with servers of its own, and reports.
"""

import copy
from pathlib import Path
from typing import Any

from locust import events
from locust.argument_parser import LocustArgumentParser

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.user import OpenLoopUser


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _targets(parser: LocustArgumentParser) -> None:
    parser.add_argument("--targets", default="", help="NAME=HOST:PORT[/BATCH], comma-separated")


class Compare(OpenLoopUser):
    """Plays the load of the command line once for each of --targets."""

    defaults = {"pattern": "poisson:rate=100,seconds=10"}

    def phases(self, options: Any) -> list[Any]:
        """A load per target."""
        if not options.targets:
            raise InvalidInput("No targets: expected --targets NAME=HOST:PORT[/BATCH],NAME=HOST:PORT.")
        return [_phase(options, target) for target in options.targets.split(",")]


def _phase(options: Any, target: str) -> Any:
    name, equals, address = target.partition("=")
    url, _, batch = address.partition("/")
    if not (name and equals and url) or (batch and not batch.isdigit()):
        raise InvalidInput(f"The target {target!r} is not one: expected NAME=HOST:PORT or NAME=HOST:PORT/BATCH.")
    phase = copy.copy(options)
    path = Path(options.records)
    phase.records = str(path.with_name(f"{path.stem}-{name}{path.suffix}"))
    phase.host, phase.variant, phase.client_batch = url, name, int(batch or 1)
    return phase
