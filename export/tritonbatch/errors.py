"""What can go wrong, by what the person at the keyboard can do about it.

    TritonbatchError            carries the exit code of the command line
    ├── InvalidInput       (2)  a mistake in what was given: fix the argument or the file
    ├── NotSupported       (2)  this machine or installation cannot do it: install or go elsewhere
    ├── ExportRejected     (1)  a model failed its verification: nothing was written
    ├── ServerFailed       (1)  the server did not start, or stopped: its own error line is in the message
    └── RequestFailed      (1)  the server or the way to it refused a request (see tritonbatch.client.errors)

Every message is one sentence that says what, got, expected, and the next step.
"""


class TritonbatchError(Exception):
    """Any failure that tritonbatch explains itself; ``exit_code`` is what the command line returns for it."""

    exit_code = 1


class InvalidInput(TritonbatchError):  # noqa: N818 - the name says what happened
    """The caller gave something that cannot be right."""

    exit_code = 2


class NotSupported(TritonbatchError):  # noqa: N818
    """This machine, or this installation, lacks what the operation needs."""

    exit_code = 2


class ExportRejected(TritonbatchError):  # noqa: N818
    """A model failed its verification; the version that was there before is untouched."""


class ServerFailed(TritonbatchError):  # noqa: N818
    """The inference server did not become ready, or stopped by itself."""


class RequestFailed(TritonbatchError):  # noqa: N818
    """A request got no answer that can be used."""
