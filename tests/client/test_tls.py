"""TLS to the real server over gRPC, and over HTTP through a proxy, since Triton's HTTP has none."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import trustme

from tritonbatch.client import AsyncClient, Client, Connections, Protocol, Tls, Unreachable
from tritonbatch.errors import InvalidInput
from tritonbatch.server import EmbeddedServer

X = np.ones((2, 4), np.float32)
Y = X @ np.arange(12, dtype=np.float32).reshape(4, 3)


@dataclass(frozen=True)
class Keys:
    """PEM files of an authority that signed a server and a client, and of one that signed nobody."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    stranger: Path

    def trusting(self) -> Tls:
        """Trust the server, and show nothing."""
        return Tls(ca_file=self.ca)

    def mutual(self) -> Tls:
        """Trust the server, and show who one is."""
        return Tls(ca_file=self.ca, certificate_file=self.client, key_file=self.client_key)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """A small test authority."""
    folder = tmp_path_factory.mktemp("keys")
    found = Keys(*(folder / name for name in ("ca", "server", "server_key", "client", "client_key", "stranger")))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(found.ca)
    trustme.CA().cert_pem.write_to_path(found.stranger)
    for name, pem, key in (
        ("localhost", found.server, found.server_key),
        ("client.test", found.client, found.client_key),
    ):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(pem)
        issued.private_key_pem.write_to_path(key)
    return found


@pytest.fixture(scope="module")
def secured(repository: Path, keys: Keys) -> Iterator[EmbeddedServer]:
    """A Triton whose gRPC wants mutual TLS."""
    arguments = [
        "--grpc-use-ssl=true",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={keys.server}",
        f"--grpc-server-key={keys.server_key}",
        f"--grpc-root-cert={keys.ca}",
    ]
    with EmbeddedServer(repository, config_name="dynamic", models=["linear"], arguments=arguments) as server:
        yield server


@contextmanager
def proxied(url: str, keys: Keys, *, mutual: bool) -> Iterator[str]:
    """A TLS proxy in front of *url*; ends with the block."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=keys.ca)
    context.load_cert_chain(keys.server, keys.server_key)
    context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    with ThreadPoolExecutor(1) as thread:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()
        running = thread.submit(asyncio.run, _proxy(url, context, started))
        loop, stop, port = started.result(timeout=10)
        try:
            yield f"localhost:{port}"
        finally:
            loop.call_soon_threadsafe(stop.set)
            running.result(timeout=10)


async def _proxy(
    url: str, context: ssl.SSLContext, started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]]
) -> None:
    host, _, port = url.rpartition(":")

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError), closing(writer):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pipe(reader, server_writer), pipe(server_reader, writer))

    stop = asyncio.Event()
    server = await asyncio.start_server(serve, "localhost", 0, family=socket.AF_INET, ssl=context)
    started.set_result((asyncio.get_running_loop(), stop, server.sockets[0].getsockname()[1]))
    await stop.wait()
    server.close()


async def _infer_async(url: str, protocol: Protocol, tls: Tls) -> np.ndarray:
    async with AsyncClient(url, protocol=protocol, connections=Connections(tls=tls), retry=None) as client:
        return (await client.infer("linear", {"x": X}))["y"]


def _infer(url: str, protocol: Protocol, tls: Tls) -> np.ndarray:
    with Client(url, protocol=protocol, connections=Connections(tls=tls), retry=None, timeout_s=10) as client:
        return client.infer("linear", {"x": X})["y"]


@pytest.mark.triton
def test_mutual_tls_over_grpc(secured: EmbeddedServer, keys: Keys) -> None:
    """With the right keys the answers are right; without its own, or with a stranger's authority, nothing answers."""
    np.testing.assert_allclose(_infer(secured.grpc_url, "grpc", keys.mutual()), Y)
    np.testing.assert_allclose(asyncio.run(_infer_async(secured.grpc_url, "grpc", keys.mutual())), Y)
    stranger = Tls(ca_file=keys.stranger, certificate_file=keys.client, key_file=keys.client_key)
    for tls in (keys.trusting(), stranger):
        with pytest.raises(Unreachable, match=secured.grpc_url):
            _infer(secured.grpc_url, "grpc", tls)
    with (
        Client(secured.grpc_url, protocol="grpc", retry=None, timeout_s=10) as plain,
        pytest.raises(Unreachable, match=secured.grpc_url),
    ):
        plain.infer("linear", {"x": X})


@pytest.mark.triton
@pytest.mark.parametrize("mutual", [False, True])
def test_tls_over_http_through_a_proxy(server: EmbeddedServer, keys: Keys, mutual: bool) -> None:  # noqa: FBT001
    """Blocking and asyncio clients get right answers; a stranger's authority is refused and named as the reason."""
    tls = keys.mutual() if mutual else keys.trusting()
    with proxied(server.http_url, keys, mutual=mutual) as url:
        np.testing.assert_allclose(_infer(url, "http", tls), Y)
        np.testing.assert_allclose(asyncio.run(_infer_async(url, "http", tls)), Y)
        stranger = Tls(ca_file=keys.stranger)
        with pytest.raises(Unreachable, match="certificate verify failed"):
            _infer(url, "http", stranger)
        with pytest.raises(Unreachable, match="certificate verify failed"):
            asyncio.run(_infer_async(url, "http", stranger))


@pytest.mark.triton
def test_large_tensors_pass_through_tls(server: EmbeddedServer, keys: Keys) -> None:
    """Parts that are not joined, and answers of many records, arrive whole over kept connections."""
    rows = np.random.default_rng(0).random((4000, 4), np.float32)
    with (
        proxied(server.http_url, keys, mutual=False) as url,
        Client(url, connections=Connections(tls=keys.trusting())) as client,
    ):
        for _ in range(2):
            got = client.infer_many("linear", {"x": rows})["y"]
        np.testing.assert_allclose(got, rows @ np.arange(12, dtype=np.float32).reshape(4, 3), rtol=1e-6)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_wrong_files_are_named_when_the_client_is_made(
    keys: Keys, tmp_path: Path, protocol: Protocol, kind: type[Client | AsyncClient]
) -> None:
    """A missing file, a file that is no PEM, and a certificate without its key are the user's mistakes."""
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for tls, says in (
        (Tls(ca_file=tmp_path / "missing.pem"), "missing.pem"),
        (Tls(ca_file=nonsense), "nonsense.pem"),
        (Tls(ca_file=keys.ca, certificate_file=keys.client), "go together"),
        (Tls(ca_file=keys.ca, certificate_file=keys.client, key_file=keys.server_key), "belong together"),
    ):
        with pytest.raises(InvalidInput, match=says):
            kind("localhost:1", protocol=protocol, connections=Connections(tls=tls))
