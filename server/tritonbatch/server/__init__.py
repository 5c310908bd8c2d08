"""The embedded real Triton."""

from tritonbatch.server.embedded import EmbeddedServer, Ports

__all__ = ["EmbeddedServer", "Ports"]
