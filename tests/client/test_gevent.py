"""Greenlets: with gevent's patches one client serves them all at once, over both protocols."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tritonbatch.server import EmbeddedServer

PROGRAM = '''\
"""Run with: protocol, address."""
import sys

from gevent import monkey

monkey.patch_all()
import gevent

if sys.argv[1] == "grpc":
    import grpc.experimental.gevent

    grpc.experimental.gevent.init_gevent()
import numpy as np

from tritonbatch.client import Client, Connections, Retry, TimedOut


def seconds(value):
    return {"x": np.array([[value]], np.float32)}


def share():
    """50 greenlets beside one that waits for the server all the while."""
    ended, at_once, most = [], 0, 0
    with Client(sys.argv[2], protocol=sys.argv[1]) as client:
        client.contract("free"), client.contract("sleeper")
        exchange = client._core.transport.exchange

        async def counted(*given):
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            try:
                return await exchange(*given)
            finally:
                at_once -= 1

        client._core.transport.exchange = counted

        def wait():
            client.infer("sleeper", seconds(0.8))
            ended.append("sleeper")

        def work(number):
            for size in (1, 2, 3):
                x = np.full((2, size), number, np.float32)
                assert client.infer("free", {"x": x})["y"].tolist() == [[number * size]] * 2
            ended.append(number)

        greenlets = [gevent.spawn(wait), *(gevent.spawn(work, number) for number in range(50))]
        gevent.joinall(greenlets, timeout=60, raise_error=True)
    assert len(ended) == 51, ended
    assert ended[-1] == "sleeper", ended
    assert most > 10, most


def split():
    """infer_many and hedging, whose threads are greenlets here."""
    x = np.arange(64, dtype=np.float32)[:, None]
    with Client(sys.argv[2], protocol=sys.argv[1], retry=Retry(hedge_after_s=0.001)) as client:
        assert client.infer_many("free", {"x": x}, in_flight=4)["y"].tolist() == x.tolist()


def killed():
    """A greenlet killed while it waits gives its connection back, and so does one that ran out of time."""
    with Client(sys.argv[2], protocol=sys.argv[1], connections=Connections(limit=1)) as client:
        client.contract("sleeper")
        for _ in range(2):
            victim = gevent.spawn(client.infer, "sleeper", seconds(0.3))
            gevent.sleep(0.1)
            victim.kill(timeout=20)
            assert victim.dead
            assert isinstance(victim.value, gevent.GreenletExit), victim.value
            assert client.infer("free", seconds(2), timeout_s=20)["y"].tolist() == [[2]]
            assert client._core.balancer.endpoints[0].outstanding == 0
        try:
            client.infer("sleeper", seconds(0.5), timeout_s=0.1)
        except TimedOut:
            pass
        else:
            raise AssertionError("in time")
        assert client.infer("free", seconds(2), timeout_s=20)["y"].tolist() == [[2]]


{"share": share, "split": split, "killed": killed}[sys.argv[3]]()
print("well")
'''


@pytest.mark.triton
@pytest.mark.parametrize("what", ["share", "split", "killed"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_greenlets_share_a_client(client_server: EmbeddedServer, tmp_path: Path, protocol: str, what: str) -> None:
    """Right answers while another request waits, split and hedged requests, and a kill that leaves the client whole."""
    program = tmp_path / "greenlets.py"
    program.write_text(PROGRAM, encoding="utf-8")
    url = client_server.grpc_url if protocol == "grpc" else client_server.http_url
    done = subprocess.run(
        [sys.executable, str(program), protocol, url, what], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.strip().endswith("well"), done.stdout + done.stderr
