"""Read the reason of a failure out of tritonserver's log."""

from __future__ import annotations

import re

# glog: severity letter, date, time, thread, file:line], then the message in quotes.
_ERROR = re.compile(r"^E\d{4} [\d:.]+ \d+ \S+:\d+\] (?P<message>.+)$", re.MULTILINE)
_FATAL = re.compile(r"^error: (?P<message>.+)$", re.MULTILINE)
# Every start on a machine without a GPU prints this one; it is never the reason.
_NO_GPU = "CudaDriverHelper"


def error_lines(log: str) -> str:
    """The server's own first error line in *log*, with its last lines when it named none; never empty."""
    for pattern in (_FATAL, _ERROR):
        for found in pattern.finditer(log):
            if _NO_GPU not in found["message"]:
                return found["message"].strip().strip(';"')
    tail = [line.strip() for line in log.strip().splitlines()[-3:]]
    return " / ".join(tail) or "it printed nothing"
