"""The command line of a load: options of Locust's, in a group of their own."""

from __future__ import annotations

from typing import Any

from locust import events
from locust.argument_parser import LocustArgumentParser

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.arrivals import PROCESSES


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_flags(parser: LocustArgumentParser) -> None:
    """Add the options of the open loop to Locust's."""
    group = parser.add_argument_group("tritonbatch: load on one model")
    group.add_argument("--model", help="name of the model to load")
    group.add_argument("--variant", default="served", help="what to call the served configuration in the records")
    group.add_argument("--protocol", choices=("http", "grpc"), default="http")
    group.add_argument(
        "--pattern",
        default="",
        help="instead of --arrivals, --rate, --requests: poisson:rate=200,seconds=30, ramp:from=10,to=500,seconds=60, "
        "trace:FILE and more, or a closed loop, as closed:users=16,seconds=30",
    )
    group.add_argument("--arrivals", choices=sorted(PROCESSES), default="poisson", help="arrival process")
    group.add_argument("--load-name", default="load", help="what to call this load in the records")
    group.add_argument("--rate", type=float, default=100.0, help="arrivals per second")
    group.add_argument("--requests", type=int, default=1000, help="number of arrivals")
    group.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    group.add_argument("--client-batch", type=int, default=1, help="static batching: send full batches of this size")
    group.add_argument("--mix", default="", help="sizes of requests and their shares, as 1:0.8,8:0.2")
    group.add_argument("--classes", default="", help="priorities and their shares, as interactive=1:0.7,bulk=2:0.3")
    group.add_argument("--samples", default="", help=".npz or .jsonl with rows for every input; random without it")
    group.add_argument("--cap", type=int, default=4096, help="most requests outstanding at once")
    group.add_argument("--drain-s", type=float, default=60.0, help="seconds to wait for answers after the last arrival")
    group.add_argument("--request-ids", default="", help="give requests the ids PREFIX-NUMBER, to find them in a trace")
    group.add_argument("--records", default="records.parquet", help="where to write the records")
    group.add_argument("--progress-fd", type=int, default=-1, help="file descriptor for progress, a JSON object a line")
    group.add_argument("--metrics-port", type=int, default=0, help="serve the generator's own Prometheus metrics there")


DEFAULTS = {"pattern": "", "client_batch": 1, "mix": "", "classes": ""}
"""Of the options that a scenario may set; given on the command line, the user's own hold."""


def check(options: Any) -> None:
    """Refuse what cannot be before anything is connected.

    Raises:
        InvalidInput: no model is named, or a number is out of its range.
    """
    if not options.model:
        raise InvalidInput("No model was named: expected --model NAME, one that the server has loaded.")
    for flag, number in (("--client-batch", options.client_batch), ("--cap", options.cap)):
        if number < 1:
            raise InvalidInput(f"{flag} is {number}: expected at least 1.")
    if not 0 <= options.drain_s < float("inf"):
        raise InvalidInput(f"--drain-s is {options.drain_s}: expected seconds, 0 or more.")
    if options.client_batch > 1 and (options.mix or options.classes):
        raise InvalidInput("--client-batch forms full batches: expected it without --mix and --classes.")
