"""Triton over gRPC, without the network: protobufs of tritonclient, with what does not change serialised once.

Serialised protobufs may be joined: the parts of a message that repeat for every request of a signature are kept as
bytes, and the tensors' data, the id and the timeout are appended as further fields of the same message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import np_to_triton_dtype

from tritonbatch.client.message import Answer, Buffer, Call, Output, Reply, WriteCall, raw
from tritonbatch.client.options import Options, Parameter

SERVICE = "/inference.GRPCInferenceService/"
_RAW_INPUT_TAG = bytes([pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | 2])


@dataclass(frozen=True, slots=True)
class GrpcWriter:
    """The kept part of one signature: a serialised ModelInferRequest without data."""

    start: bytes


class GrpcLanguage:
    """Writes and reads the messages of Triton's gRPC service."""

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
        return GrpcWriter(message.SerializeToString())

    def bind(self, writer: GrpcWriter, arrays: tuple[npt.NDArray[Any], ...], *, keep: bool) -> WriteCall:
        """Put *arrays* into a call."""
        parts: list[Buffer] = [writer.start]
        for array in arrays:
            data = raw(array, keep=keep)
            parts += (_RAW_INPUT_TAG, _varint(len(data)), data)
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
        message = pb.ModelInferResponse.FromString(bytes(reply.body))
        data = iter(message.raw_output_contents)
        outputs = [
            Output(
                tensor.name,
                tensor.datatype,
                tuple(tensor.shape),
                None if "shared_memory_region" in tensor.parameters else next(data),
            )
            for tensor in message.outputs
        ]
        parameters = {key: _value(value) for key, value in message.parameters.items()}
        return Answer(message.model_name, message.model_version, message.id, tuple(outputs), parameters)

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


def _varint(number: int) -> bytes:
    """A protobuf length: seven bits a byte, the least significant first, the top bit set while more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
