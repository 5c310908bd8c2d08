"""Wake up at a moment, under gevent, to within tens of microseconds where Linux can.

gevent's own timers wait in whole milliseconds (libev's epoll backend), which alone would be the schedule error of a
load generator. A timerfd is a file that becomes readable at its moment, so the same wait ends when the kernel's
high-resolution timer says.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from gevent import get_hub

READABLE = 1
_CLOCK_MONOTONIC, _TFD_NONBLOCK, _TFD_CLOEXEC = 1, 0o4000, 0o2000000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """Calls *wake* in the hub once per :meth:`at`; falls back to gevent's timers where there is no timerfd."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        create = getattr(self._libc, "timerfd_create", None)
        self._file = -1 if create is None else int(create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC))
        self._setting = _Setting()
        loop = get_hub().loop
        self._watcher = loop.io(self._file, READABLE) if self._file >= 0 else loop.timer(0.0)
        if self._file >= 0:
            self._watcher.start(self._ring)

    def at(self, delay_ns: int) -> None:
        """Wake up in *delay_ns*; at once when that is not in the future."""
        delay_ns = max(delay_ns, 1)
        if self._file < 0:
            self._watcher.stop()
            self._watcher = get_hub().loop.timer(delay_ns / 1e9)
            self._watcher.start(self._wake)
            return
        value = self._setting.value
        value.seconds, value.nanoseconds = divmod(delay_ns, 1_000_000_000)
        self._libc.timerfd_settime(self._file, 0, ctypes.byref(self._setting), None)

    def close(self) -> None:
        """Wake up no more."""
        self._watcher.stop()
        self._watcher.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _ring(self) -> None:
        os.read(self._file, 8)
        self._wake()
