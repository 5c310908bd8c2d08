"""Small Python models that answer, wait, fail and crash on demand, and one embedded Triton that serves them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tritonbatch.client import AsyncClient, Client
from tritonbatch.server import EmbeddedServer

CODE = Path(__file__).parent / "models" / "model.py"

X_TO_Y = """\
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
QUEUE = """\
dynamic_batching { default_queue_policy {
  max_queue_size: 2 default_timeout_microseconds: 5000000 allow_timeout_override: true timeout_action: REJECT
} }
"""
CONFIGS = {
    "text": (8, X_TO_Y.replace("FP32", "STRING").replace('"y"', '"x"')),
    "sleeper": (1, X_TO_Y + QUEUE),
    "optional": (
        8,
        """\
input { name: "a" data_type: TYPE_FP32 dims: [2] }
input { name: "b" data_type: TYPE_FP32 dims: [2] optional: true }
output { name: "y" data_type: TYPE_FP32 dims: [2] }
""",
    ),
    "team:names": (
        8,
        """\
input { name: "in/ids:0" data_type: TYPE_INT64 dims: [2] }
output { name: "out/values:0" data_type: TYPE_FP32 dims: [2] }
""",
    ),
    "half": (8, X_TO_Y.replace("FP32", "FP16")),
    "bfloat": (8, X_TO_Y.replace("FP32", "BF16")),
    "failing": (8, X_TO_Y),
    "crash": (8, X_TO_Y),
    "free": (8, X_TO_Y.replace("FP32 dims: [1] }\noutput", "FP32 dims: [-1] }\noutput")),
    "nobatch": (0, X_TO_Y.replace("[1]", "[2, 3]")),
}
"""max_batch_size and the rest of the config.pbtxt, by model.

`text`, `half`, `bfloat`, `nobatch` give back what they got (`text` under the same name, x); `sleeper` does after x
seconds; `failing` and `crash` do unless x is over 9. `optional` adds b, `team:names` doubles, `free` sums.
"""

ANY_TIME = ["--model-control-mode=explicit", "--load-model=*"]


@pytest.fixture(scope="session")
def client_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of CONFIGS, all in Python, on one CPU instance each."""
    folder = tmp_path_factory.mktemp("client_repository")
    for name, (max_batch_size, rest) in CONFIGS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        shutil.copyfile(CODE, version / "model.py")
        text = f'backend: "python"\nmax_batch_size: {max_batch_size}\ninstance_group {{ kind: KIND_CPU count: 1 }}\n'
        (version.parent / "config.pbtxt").write_text(text + rest, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def client_server(client_repository: Path) -> Iterator[EmbeddedServer]:
    """A Triton with all of `client_repository` loaded, which takes load and unload: put back what you unload."""
    with EmbeddedServer(client_repository, arguments=ANY_TIME) as running:
        yield running


class Driven:
    """An AsyncClient with the call style of a Client: each call runs to its end in one event loop of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(self._made(url, options))

    async def _made(self, url: str, options: dict[str, Any]) -> AsyncClient:
        return AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return (lambda *given, **named: self._runner.run(found(*given, **named))) if callable(found) else found

    def end(self) -> None:
        """Close the client and its loop."""
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(params=["http", "grpc", "http-async", "grpc-async"])
def connect(request: pytest.FixtureRequest, client_server: EmbeddedServer) -> Iterator[Callable[..., Any]]:
    """Makes clients of the server with one call style, once per protocol and kind; closes them in the end."""
    protocol, _, kind = request.param.partition("-")
    address = client_server.grpc_url if protocol == "grpc" else client_server.http_url
    ends: list[Callable[[], None]] = []

    def made(url: str = address, **options: Any) -> Any:
        client: Any = (Driven if kind else Client)(url, protocol=protocol, **options)
        ends.append(client.end if kind else client.close)
        return client

    yield made
    for end in ends:
        end()
