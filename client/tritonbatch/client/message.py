"""What travels between the parts of a client: a request made ready, a call on the wire, and the answer. Pure.

The values made for every request are named tuples, which take a quarter of a frozen dataclass's time to make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

from tritonbatch.client.errors import MALFORMED, ServerError
from tritonbatch.client.options import Options
from tritonbatch.errors import InvalidInput

Buffer = bytes | bytearray | memoryview
LARGE = 16384
"""From this size on an array is sent from where it lies instead of being copied."""


class Call(NamedTuple):
    """One exchange on the wire: a path and headers over HTTP, a method and metadata over gRPC; *body* is joined."""

    target: str
    headers: Mapping[str, str]
    body: tuple[Buffer, ...] = ()


class Reply(NamedTuple):
    """What came back: over HTTP with *status* and the length of the JSON in front of the binary data, if any."""

    body: Buffer
    status: int = 200
    json_bytes: int | None = None


WriteCall = Callable[[int | None, str, Mapping[str, str]], Call]
"""``write(queue_timeout_us, request_id, headers)`` gives the call of one attempt; the inputs are in it already."""


class Request(NamedTuple):
    """Inputs that were checked and serialised once, to be sent any number of times; *rows* is their batch."""

    model: str
    rows: int
    options: Options
    write: WriteCall
    takes_queue_timeout: bool = False
    repeatable: bool = True


def check_request(request: object) -> None:
    """Raise InvalidInput where *request* is none."""
    if not isinstance(request, Request):
        raise InvalidInput(f"The request is {request!r:.60}: expected what the client's request() gave.")


class Output(NamedTuple):
    """One tensor of an answer; *data* is None when it lies in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer | None


class Answer(NamedTuple):
    """The outputs of one request as they came; decoded when asked for."""

    model: str
    version: str
    request_id: str
    outputs: tuple[Output, ...]
    parameters: Mapping[str, Any] = MappingProxyType({})

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The outputs by name; text is an array of bytes objects. What lies in shared memory is left out.

        Raises:
            ServerError: the data do not fit their declared type and shape.
        """
        return {output.name: self._decoded(output) for output in self.outputs if output.data is not None}

    def as_numpy(self, name: str) -> npt.NDArray[Any] | None:
        """One output, or None when the answer has none of this name."""
        return next((self._decoded(each) for each in self.outputs if each.name == name and each.data is not None), None)

    def _decoded(self, output: Output) -> npt.NDArray[Any]:
        try:
            if output.datatype == "BYTES":
                flat = deserialize_bytes_tensor(bytes(output.data or b""))
            else:
                flat = np.frombuffer(output.data or b"", _dtype(output.datatype))
            array: npt.NDArray[Any] = flat.reshape(output.shape)
        except MALFORMED as error:
            raise ServerError(
                f"Model {self.model}, output {output.name}: got {len(output.data or b'')} bytes; expected "
                f"{output.datatype} of shape {output.shape} ({error})."
            ) from error
        return array


class Language(Protocol):
    """How one transport says things: calls are made, and replies understood, without any I/O."""

    def writer(self, arrays: dict[str, npt.NDArray[Any]], model: str, options: Options) -> Any:
        """What does not change between requests with the same names, types, shapes and options."""

    def bind(self, writer: Any, arrays: tuple[npt.NDArray[Any], ...], *, keep: bool) -> WriteCall:
        """Put *arrays* into a call; *keep* copies them, so that later changes do not show."""

    def answer(self, reply: Reply) -> Answer:
        """Understand the answer to an inference; raises InferenceServerException where the server refused."""

    def ask(self, what: str, model: str = "", version: str = "", body: Any = None) -> Call:
        """A call that is no inference: metadata, config, load and so on."""

    def understand(self, what: str, reply: Reply) -> Any:
        """The protobuf that answers :meth:`ask`; raises InferenceServerException where the server refused."""


_DTYPES: dict[str, np.dtype[Any]] = {}


def _dtype(datatype: str) -> np.dtype[Any]:
    if datatype not in _DTYPES:
        known = triton_to_np_dtype(datatype)
        if known is None:  # which NumPy would take for float64
            raise ValueError(f"unknown datatype {datatype!r}")
        _DTYPES[datatype] = np.dtype(known)
    return _DTYPES[datatype]


def raw(array: npt.NDArray[Any], *, keep: bool) -> Buffer:
    """The bytes of *array* in C order as Triton reads them; not copied when large, contiguous and not to *keep*."""
    if array.dtype.hasobject:
        serialised = serialize_byte_tensor(array)
        return bytes(serialised.item()) if serialised.size else b""
    if keep or array.nbytes < LARGE or not array.flags.c_contiguous:
        return array.tobytes()
    return array.reshape(-1).view(np.uint8).data
