"""Turns a package that is not installed into one helpful sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tritonbatch.errors import NotSupported


@contextmanager
def needing(purpose: str, extra: str) -> Iterator[None]:
    """Run imports that only *purpose* needs; *extra* is the optional dependency group that brings them.

    Raises:
        NotSupported: A package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise NotSupported(
            f"{purpose} needs {error.name}, which is not installed; install it with pip install 'tritonbatch[{extra}]'"
        ) from error
