"""After ``fork``: a child shares its parent's sockets, and inherits locks that nobody in it will ever release."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What holds something that a child of this process must not use."""

    def forked(self) -> None:
        """Begin anew: called in the child, whose only thread this is."""


_watched: WeakSet[Forked] = WeakSet()


def watch_forks(holder: Forked) -> None:
    """Call ``holder.forked()`` in every child that is forked as long as *holder* lives."""
    _watched.add(holder)


def _begin_anew() -> None:
    for holder in list(_watched):
        holder.forked()


os.register_at_fork(after_in_child=_begin_anew)
