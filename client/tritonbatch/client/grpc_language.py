"""Triton over gRPC, without the network: protobufs of tritonclient, with what does not change serialised once.

Serialised protobufs may be joined: the parts of a message that repeat for every request of a signature are kept as
bytes, and the tensors' data, the id and the timeout are appended as further fields of the same message. An answer that
begins with the same bytes as one before, and has its data in the same places, is understood without parsing it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt
from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import np_to_triton_dtype

from tritonbatch.client.message import Answer, Buffer, Call, Output, Reply, WriteCall, raw
from tritonbatch.client.options import Options, Parameter

SERVICE = "/inference.GRPCInferenceService/"
_RAW_INPUT_TAG = bytes([pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | 2])
_RAW_OUTPUT_TAG = bytes([pb.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number << 3 | 2])
KEPT_LAYOUTS = 1024


class _Span(NamedTuple):
    """Where an output's data lie in an answer, *start* to *stop*; *head*, their tag and length, begins at *head_at*."""

    head: bytes
    head_at: int
    start: int
    stop: int


class _Layout(NamedTuple):
    """An answer without its data; *spans* has None for outputs in shared memory."""

    prefix: bytes
    answer: Answer
    spans: tuple[_Span | None, ...]

    def filled(self, body: bytes) -> Answer | None:
        """The answer with the data of *body*, not copied; None when it differs in more than data, or in their places.

        *body* has the length of the answer that this comes from.
        """
        if not body.startswith(self.prefix):
            return None
        view, known, outputs = memoryview(body), self.answer, []
        for output, span in zip(known.outputs, self.spans, strict=True):
            if span is None:
                outputs.append(output)
            elif body.startswith(span.head, span.head_at):
                outputs.append(Output(output.name, output.datatype, output.shape, view[span.start : span.stop]))
            else:
                return None
        return Answer(known.model, known.version, known.request_id, tuple(outputs), known.parameters)


@dataclass(frozen=True, slots=True)
class GrpcWriter:
    """The kept part of one signature: a serialised ModelInferRequest, and what precedes the data of each input.

    Texts vary in size, so what precedes them is not known before they are there: empty.
    """

    start: bytes
    heads: tuple[bytes, ...]


class GrpcLanguage:
    """Writes and reads the messages of Triton's gRPC service; keeps the layout of answers by their length."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}

    def writer(self, arrays: dict[str, npt.NDArray[Any]], model: str, options: Options) -> GrpcWriter:
        """What does not change between requests with the same names, types, shapes and options."""
        message = pb.ModelInferRequest(model_name=model, model_version=options.version)
        for name, array in arrays.items():
            message.inputs.add(name=name, shape=array.shape, datatype=np_to_triton_dtype(array.dtype))
        for name in options.outputs:
            message.outputs.add(name=name)
        if options.priority:
            message.parameters["priority"].uint64_param = options.priority
        for key, value in options.parameters.items():
            message.parameters[key].CopyFrom(_parameter(value))
        heads = [b"" if each.dtype.hasobject else _head(_RAW_INPUT_TAG, each.nbytes) for each in arrays.values()]
        return GrpcWriter(message.SerializeToString(), tuple(heads))

    def bind(self, writer: GrpcWriter, arrays: tuple[npt.NDArray[Any], ...], *, keep: bool) -> WriteCall:
        """Put *arrays* into a call."""
        parts: list[Buffer] = [writer.start]
        for array, head in zip(arrays, writer.heads, strict=True):
            data = raw(array, keep=keep)
            parts += (head or _head(_RAW_INPUT_TAG, len(data)), data)
        body = tuple(parts)

        def write(queue_timeout_us: int | None, request_id: str, headers: Mapping[str, str]) -> Call:
            if queue_timeout_us is None and not request_id:
                return Call("ModelInfer", headers, body)
            more = pb.ModelInferRequest(id=request_id)
            if queue_timeout_us is not None:
                more.parameters["timeout"].int64_param = queue_timeout_us
            return Call("ModelInfer", headers, (*body, more.SerializeToString()))

        return write

    def answer(self, reply: Reply) -> Answer:
        """Understand the answer to an inference."""
        body = bytes(reply.body)
        layout = self._layouts.get(len(body))
        known = None if layout is None else layout.filled(body)
        return self._parsed(body) if known is None else known

    def _parsed(self, body: bytes) -> Answer:
        message = pb.ModelInferResponse.FromString(body)
        answer = _answer(message)
        if not message.id:  # with an id every answer begins differently
            layout = _layout(body, answer, [len(data) for data in message.raw_output_contents])
            if layout is not None:
                if len(self._layouts) >= KEPT_LAYOUTS:
                    self._layouts.clear()
                self._layouts[len(body)] = layout
        return answer

    def ask(self, what: str, model: str = "", version: str = "", body: Any = None) -> Call:
        """A call that is no inference."""
        method, request = _METHODS[what]
        return Call(method, {}, (request(model, version, body).SerializeToString(),))

    def understand(self, what: str, reply: Reply) -> Any:
        """The protobuf that answers :meth:`ask`."""
        if what not in _ANSWERS:
            return None
        message: Any = _ANSWERS[what].FromString(bytes(reply.body))
        if what in {"server_ready", "model_ready"}:
            return message.ready
        return message.config if what == "config" else message


def _answer(message: pb.ModelInferResponse) -> Answer:
    data = iter(message.raw_output_contents)
    outputs = [
        Output(
            tensor.name,
            tensor.datatype,
            tuple(tensor.shape),
            None if "shared_memory_region" in tensor.parameters else next(data, b""),
        )
        for tensor in message.outputs
    ]
    parameters = {key: _value(value) for key, value in message.parameters.items()}
    return Answer(message.model_name, message.model_version, message.id, tuple(outputs), parameters)


def _layout(body: bytes, answer: Answer, sizes: list[int]) -> _Layout | None:
    """The layout of *body*, whose data have these *sizes*; None when they are not its end, one after the other."""
    heads = [_head(_RAW_OUTPUT_TAG, size) for size in sizes]
    at = first = len(body) - sum(map(len, heads)) - sum(sizes)
    found = []
    for head, size in zip(heads, sizes, strict=True):
        start = at + len(head)
        found.append(_Span(head, at, start, start + size))
        at = start + size
    spans = iter(found)
    outputs = tuple([Output(each.name, each.datatype, each.shape, None) for each in answer.outputs])
    in_place = tuple([None if each.data is None else next(spans, None) for each in answer.outputs])
    layout = _Layout(
        prefix=body[: max(first, 0)],
        answer=Answer(answer.model, answer.version, answer.request_id, outputs, answer.parameters),
        spans=in_place,
    )
    return layout if first >= 0 and layout.filled(body) is not None else None


def _load(model: str, _: str, body: Any) -> Any:
    message: Any = pb.RepositoryModelLoadRequest(model_name=model)
    if body is not None:
        message.parameters["config"].string_param = json_format.MessageToJson(body)
    return message


_METHODS: dict[str, tuple[str, Any]] = {
    "server_metadata": ("ServerMetadata", lambda *_: pb.ServerMetadataRequest()),
    "server_ready": ("ServerReady", lambda *_: pb.ServerReadyRequest()),
    "model_ready": ("ModelReady", lambda model, version, _: pb.ModelReadyRequest(name=model, version=version)),
    "metadata": ("ModelMetadata", lambda model, version, _: pb.ModelMetadataRequest(name=model, version=version)),
    "config": ("ModelConfig", lambda model, version, _: pb.ModelConfigRequest(name=model, version=version)),
    "statistics": ("ModelStatistics", lambda model, version, _: pb.ModelStatisticsRequest(name=model, version=version)),
    "load": ("RepositoryModelLoad", _load),
    "unload": ("RepositoryModelUnload", lambda model, *_: pb.RepositoryModelUnloadRequest(model_name=model)),
    "register_memory": (
        "SystemSharedMemoryRegister",
        lambda name, _, body: pb.SystemSharedMemoryRegisterRequest(name=name, **body),
    ),
    "unregister_memory": (
        "SystemSharedMemoryUnregister",
        lambda name, *_: pb.SystemSharedMemoryUnregisterRequest(name=name),
    ),
    "register_cuda_memory": (
        "CudaSharedMemoryRegister",
        lambda name, _, body: pb.CudaSharedMemoryRegisterRequest(name=name, **body),
    ),
    "unregister_cuda_memory": (
        "CudaSharedMemoryUnregister",
        lambda name, *_: pb.CudaSharedMemoryUnregisterRequest(name=name),
    ),
}
_ANSWERS: dict[str, type[Message]] = {
    "server_metadata": pb.ServerMetadataResponse,
    "server_ready": pb.ServerReadyResponse,
    "model_ready": pb.ModelReadyResponse,
    "metadata": pb.ModelMetadataResponse,
    "config": pb.ModelConfigResponse,
    "statistics": pb.ModelStatisticsResponse,
}


def _parameter(value: Parameter) -> pb.InferParameter:
    if isinstance(value, bool):  # before int, of which it is one
        return pb.InferParameter(bool_param=value)
    if isinstance(value, int):
        return pb.InferParameter(int64_param=value)
    return pb.InferParameter(double_param=value) if isinstance(value, float) else pb.InferParameter(string_param=value)


def _value(parameter: pb.InferParameter) -> Any:
    chosen = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, chosen) if chosen else None


def _head(tag: bytes, size: int) -> bytes:
    """What precedes *size* bytes of a field."""
    return tag + _varint(size)


def _varint(number: int) -> bytes:
    """A protobuf length: seven bits a byte, the least significant first, the top bit set while more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
