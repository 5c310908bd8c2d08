"""TLS for both transports, from the files that say whom to trust and who one is."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from tritonbatch.client.options import Tls
from tritonbatch.errors import InvalidInput


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """What sockets need: server certificates are verified, names included.

    Raises:
        InvalidInput: a file is missing or is no PEM of its kind.
    """
    _check(tls)
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.certificate_file:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(str(path) for path in (tls.ca_file, tls.certificate_file, tls.key_file) if path)
        raise InvalidInput(
            f"TLS cannot be set up from {named} ({error}); expected PEM files that belong together."
        ) from error
    return context


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """What a gRPC channel needs.

    Raises:
        InvalidInput: a file is missing or is no PEM of its kind.
    """
    ssl_context(tls)  # gRPC takes any bytes and only fails to connect later; this names the file now
    return grpc.ssl_channel_credentials(*[_content(path) for path in (tls.ca_file, tls.key_file, tls.certificate_file)])


def _check(tls: Tls) -> None:
    if bool(tls.certificate_file) != bool(tls.key_file):
        raise InvalidInput(
            "A certificate and its key go together: give Tls both certificate_file and key_file, or neither."
        )


def _content(path: str | Path | None) -> bytes | None:
    return Path(path).read_bytes() if path else None
