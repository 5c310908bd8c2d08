"""Triton over HTTP, without the network: calls are written and replies read here; tritonclient knows the protocol.

What tritonclient works out anew for every request is kept per signature (names, types, shapes, options): the JSON in
front of the tensors, which it writes once, and the place of each output in the reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tritonbatch.client.errors import MALFORMED
from tritonbatch.client.message import Answer, Buffer, Call, Output, Reply, WriteCall, raw
from tritonbatch.client.options import Options

# Stand for what changes from call to call in a kept JSON; a request id could not be taken for them.
_ID, _TIMEOUT = "\x00id\x00", 0x7F3A_91C4_55E2_0D17
_ID_JSON, _TIMEOUT_JSON = json.dumps(_ID).encode(), str(_TIMEOUT).encode()
KEPT_LAYOUTS = 1024
IN_A_PATH = ":@!$&'()*+,;="
"""What RFC 3986 allows in a segment of a path beside letters, digits and ``-._~``."""


@dataclass(frozen=True, slots=True)
class HttpWriter:
    """The kept part of one signature: the target, and the JSON without and with the parts that change."""

    target: str
    plain: bytes
    changing: bytes
    headers: Mapping[str, str]


class HttpLanguage:
    """Writes and reads HTTP bodies; keeps the layout of replies by their JSON."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, _Layout] = {}

    def writer(self, arrays: dict[str, npt.NDArray[Any]], model: str, options: Options) -> HttpWriter:
        """What does not change between requests with the same names, types, shapes and options."""
        plain = _json(arrays, options, "", None)
        return HttpWriter(
            target=_model_path(model, options.version) + "/infer",
            plain=plain,
            changing=_json(arrays, options, _ID, _TIMEOUT),
            headers={"Inference-Header-Content-Length": str(len(plain))},
        )

    def bind(self, writer: HttpWriter, arrays: tuple[npt.NDArray[Any], ...], *, keep: bool) -> WriteCall:
        """Put *arrays* into a call."""
        buffers = tuple([raw(array, keep=keep) for array in arrays])

        def write(queue_timeout_us: int | None, request_id: str, headers: Mapping[str, str]) -> Call:
            if queue_timeout_us is None and not request_id:
                start, lengths = writer.plain, writer.headers
            else:
                start = _filled(writer.changing, queue_timeout_us, request_id)
                lengths = {"Inference-Header-Content-Length": str(len(start))}
            return Call(writer.target, {**headers, **lengths} if headers else lengths, (start, *buffers))

        return write

    def answer(self, reply: Reply) -> Answer:
        """Understand the answer to an inference."""
        _check(reply)
        if reply.json_bytes is None:  # outputs in shared memory leave nothing but JSON
            return _Layout(json.loads(bytes(reply.body))).answer(b"")
        view = memoryview(reply.body).toreadonly()  # as over gRPC, whose bytes nobody may change
        start = bytes(view[: reply.json_bytes])
        layout = self._layouts.get(start)
        if layout is None:
            layout = _Layout(json.loads(start))
            if not layout.request_id:  # with an id every JSON differs, and keeping it would only fill the memory
                if len(self._layouts) >= KEPT_LAYOUTS:
                    self._layouts.clear()
                self._layouts[start] = layout
        return layout.answer(view[reply.json_bytes :])

    def ask(self, what: str, model: str = "", version: str = "", body: Any = None) -> Call:
        """A call that is no inference; a body makes it a POST."""
        path = _PATHS[what].format(model=_model_path(model, version), name=_quoted(model), body=body)
        content = () if what not in _POSTS else (_control(what, body),)
        return Call(path, {}, content)

    def understand(self, what: str, reply: Reply) -> Any:
        """The protobuf that answers :meth:`ask`."""
        if what in {"server_ready", "model_ready"}:
            return reply.status == 200
        _check(reply)
        if what not in _ANSWERS:
            return None
        content = json.loads(bytes(reply.body))
        if not isinstance(content, dict):
            raise TypeError(f"expected a JSON object, got {content!r:.60}")
        return json_format.ParseDict(content, _ANSWERS[what](), ignore_unknown_fields=True)


_PATHS = {
    "server_metadata": "/v2",
    "server_ready": "/v2/health/ready",
    "model_ready": "{model}/ready",
    "metadata": "{model}",
    "config": "{model}/config",
    "statistics": "{model}/stats",
    "load": "/v2/repository/models/{name}/load",
    "unload": "/v2/repository/models/{name}/unload",
    "register_memory": "/v2/systemsharedmemory/region/{name}/register",
    "unregister_memory": "/v2/systemsharedmemory/region/{name}/unregister",
    "register_cuda_memory": "/v2/cudasharedmemory/region/{name}/register",
    "unregister_cuda_memory": "/v2/cudasharedmemory/region/{name}/unregister",
}
_POSTS = {what for what in _PATHS if "load" in what or "register" in what}
_ANSWERS: dict[str, type] = {
    "server_metadata": pb.ServerMetadataResponse,
    "metadata": pb.ModelMetadataResponse,
    "config": ModelConfig,
    "statistics": pb.ModelStatisticsResponse,
}


def _model_path(model: str, version: str) -> str:
    path = f"/v2/models/{_quoted(model)}"
    return f"{path}/versions/{_quoted(version)}" if version else path


def _quoted(name: str) -> str:
    """*name* as one part of a path. Triton does not decode paths: what may stand there as it is must do so."""
    return quote(name, safe=IN_A_PATH)


def _control(what: str, body: Any) -> bytes:
    if what == "load":
        return json.dumps(
            {"parameters": {"config": json_format.MessageToJson(body)}} if body is not None else {}
        ).encode()
    return json.dumps(body or {}).encode()


def _json(arrays: dict[str, npt.NDArray[Any]], options: Options, request_id: str, timeout: int | None) -> bytes:
    inputs = []
    for name, array in arrays.items():
        tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    body, json_bytes = InferenceServerClient.generate_request_body(
        inputs,
        outputs=[InferRequestedOutput(name, binary_data=True) for name in options.outputs] or None,
        request_id=request_id,
        priority=options.priority,
        timeout=timeout,
        parameters=dict(options.parameters) or None,
    )
    return bytes(body[:json_bytes])


def _filled(changing: bytes, queue_timeout_us: int | None, request_id: str) -> bytes:
    timeout = b"0" if queue_timeout_us is None else str(queue_timeout_us).encode()
    return changing.replace(_TIMEOUT_JSON, timeout, 1).replace(_ID_JSON, json.dumps(request_id).encode(), 1)


def _check(reply: Reply) -> None:
    if reply.status == 200:
        return
    text = bytes(reply.body).decode(errors="replace")
    try:
        text = json.loads(text)["error"]
    except MALFORMED:
        text = text.strip()[:200] or "nothing more"
    raise InferenceServerException(text, str(reply.status))


class _Layout:
    """Where each output lies in the binary part of a reply, from the reply's JSON."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._model, self._version = content["model_name"], content.get("model_version", "")
        self.request_id = content.get("id", "")
        self._parameters = content.get("parameters", {})
        self._tensors = content.get("outputs", [])
        sizes = [tensor.get("parameters", {}).get("binary_data_size", 0) for tensor in self._tensors]
        starts = np.cumsum([0, *sizes]).tolist()
        self._outputs = [
            (tensor["name"], tensor["datatype"], tuple(tensor["shape"]), *span)
            for tensor, span in zip(self._tensors, pairwise(starts), strict=True)
        ]
        self._elsewhere = {t["name"] for t in self._tensors if "shared_memory_region" in t.get("parameters", {})}

    def answer(self, data: Buffer) -> Answer:
        outputs = [
            Output(name, datatype, shape, None if name in self._elsewhere else data[start:stop])
            for name, datatype, shape, start, stop in self._outputs
        ]
        return Answer(self._model, self._version, self.request_id, tuple(outputs), self._parameters)
