"""Read the reason of a failure out of tritonserver's log."""

from __future__ import annotations

import re

# Most telling first. glog prints severity letter, date, time, thread, file:line], then the message in quotes.
_LINE = r"^E\d{4} [\d:.]+ \d+ \S+:\d+\] "
_REASONS = [
    re.compile(_LINE + r'"(?P<reason>failed to load .+)$', re.MULTILINE),
    re.compile(_LINE + r'"(?P<reason>Poll failed .+)$', re.MULTILINE),
    # Every start on a machine without a GPU prints the line about CudaDriverHelper; it is never the reason.
    re.compile(_LINE + r'(?P<reason>(?!"?CudaDriverHelper).+)$', re.MULTILINE),
    re.compile(r"^error: (?P<reason>.+)$", re.MULTILINE),
]
_PARSE_ERROR = re.compile(r"^.*Error parsing text-format \S+: (?P<reason>.+)$", re.MULTILINE)


def error_lines(log: str) -> str:
    """The server's own reason in *log*, or its last lines when it named none; never empty."""
    for pattern in _REASONS:
        if found := pattern.search(log):
            # A Python backend's message goes on with a traceback, its line ends written as backslash and n.
            reason = found["reason"].split("\\n")[0].strip().strip(';"')
            # For a config.pbtxt that does not parse, line and column stand in a line of their own.
            place = _PARSE_ERROR.search(log)
            return f"{reason}: {place['reason']}" if place and "text proto" in reason else reason
    tail = [line.strip() for line in log.strip().splitlines()[-3:]]
    return " / ".join(tail) or "it printed nothing"
