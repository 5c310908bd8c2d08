"""The embedded real Triton."""

from tritonbatch.server.embedded import EmbeddedServer
from tritonbatch.server.launch import Ports

__all__ = ["EmbeddedServer", "Ports"]
