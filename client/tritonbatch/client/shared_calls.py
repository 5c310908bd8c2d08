"""Requests whose tensors lie in shared memory: where each lies, and what travels instead of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from urllib.parse import quote

import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import triton_to_np_dtype

from tritonbatch.client.contract import Contract, Tensor, check_options
from tritonbatch.client.errors import InvalidRequest
from tritonbatch.client.message import Call, WriteCall
from tritonbatch.client.options import Options, Parameter, Protocol
from tritonbatch.errors import InvalidInput

ALIGNMENT = 64
"""Every tensor begins at a multiple of so many bytes, which suits every type and a cache line."""

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place of one tensor in its region; *rows* is None where the model has no batch axis."""

    name: str
    datatype: str
    dtype: np.dtype[Any]
    rows: int | None
    item: tuple[int, ...]
    offset: int

    def shape(self, rows: int) -> tuple[int, ...]:
        """The tensor's shape with *rows* rows."""
        return self.item if self.rows is None else (rows, *self.item)

    def byte_size(self, rows: int) -> int:
        """What *rows* rows take, from the offset on."""
        return prod(self.shape(rows)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One region for the inputs and one for the outputs of up to *rows* rows."""

    contract: Contract
    options: Options
    rows: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


def plan(contract: Contract, options: Options, rows: int, shapes: Shapes) -> Plan:
    """Lay out the inputs and the outputs asked for; an optional input has a place only when *shapes* names it.

    Raises:
        InvalidRequest: too many rows, an unknown name, a free axis without its size, or a tensor of text.
    """
    model, most = contract.model, max(contract.max_batch_size, 1)
    if type(rows) is not int:
        raise InvalidInput(f"rows is {rows!r}: expected an integer, 1 to {most}.")
    if not 1 <= rows <= most:
        raise InvalidRequest(f"Model {model}: got memory for {rows} rows; expected 1 to {most} (max_batch_size).")
    if unknown := sorted({*shapes} - {*contract.inputs, *contract.outputs}):
        raise InvalidRequest(
            f"Model {model} has no tensor {', '.join(unknown)}; expected in shapes only "
            f"{', '.join(sorted({*contract.inputs, *contract.outputs}))}."
        )
    check_options(contract, options)
    inputs = [each for each in contract.inputs.values() if not each.optional or each.name in shapes]
    outputs = [each for each in contract.outputs.values() if not options.outputs or each.name in options.outputs]
    _check_sizes(contract, [*inputs, *outputs], shapes)
    return Plan(
        contract=contract,
        options=options,
        rows=rows,
        inputs=_slots(contract, inputs, rows, shapes),
        outputs=_slots(contract, outputs, rows, shapes),
    )


def region_bytes(slots: Sequence[Slot], rows: int) -> int:
    """The size of the region that holds *slots*."""
    return max(slot.offset + slot.byte_size(rows) for slot in slots)


def shared_call(protocol: Protocol, planned: Plan, regions: tuple[str, str], rows: int) -> WriteCall:
    """How to write a request for the first *rows* rows in *regions* (of the inputs, of the outputs)."""
    writer = _http if protocol == "http" else _grpc

    def write(queue_timeout_us: int | None, request_id: str, headers: Mapping[str, str]) -> Call:
        return writer(planned, regions, rows, (queue_timeout_us, request_id), headers)

    return write


def _item(contract: Contract, tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape[1:] if contract.max_batch_size else tensor.shape


def _check_sizes(contract: Contract, tensors: Iterable[Tensor], shapes: Shapes) -> None:
    missing = {}
    for tensor in tensors:
        if tensor.datatype == "BYTES":
            raise InvalidRequest(
                f"Model {contract.model}, tensor {tensor.name}: the size of text (BYTES) is not known beforehand: it "
                "cannot lie in shared memory; use infer."
            )
        item, given = _item(contract, tensor), shapes.get(tensor.name)
        if given is None:
            if -1 in item:
                missing[tensor.name] = item
        elif len(given) != len(item) or not all(
            have > 0 and want in (-1, have) for want, have in zip(item, given, strict=True)
        ):
            raise InvalidRequest(
                f"Model {contract.model}, tensor {tensor.name}: got the item shape {tuple(given)}; expected {item}, -1 "
                "meaning any size, without the batch axis."
            )
    if missing:
        listed = ", ".join(f"{name} {item}" for name, item in missing.items())
        raise InvalidRequest(
            f"Model {contract.model} has tensors with free axes whose sizes are missing: {listed}; give their largest "
            "item shapes without the batch axis in shapes."
        )


def _slots(contract: Contract, tensors: Iterable[Tensor], rows: int, shapes: Shapes) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    offset = 0
    for tensor in tensors:
        slot = Slot(
            name=tensor.name,
            datatype=tensor.datatype,
            dtype=np.dtype(triton_to_np_dtype(tensor.datatype)),
            rows=rows if contract.max_batch_size else None,
            item=tuple(shapes.get(tensor.name, _item(contract, tensor))),
            offset=offset,
        )
        slots.append(slot)
        offset = -(-(offset + slot.byte_size(rows)) // ALIGNMENT) * ALIGNMENT
    return tuple(slots)


Changing = tuple[int | None, str]
"""The queue timeout in microseconds and the request id."""


def _http(planned: Plan, regions: tuple[str, str], rows: int, changing: Changing, headers: Mapping[str, str]) -> Call:
    options, (timeout_us, request_id) = planned.options, changing
    inputs, outputs = [], []
    for slot in planned.inputs:
        tensor = InferInput(slot.name, list(slot.shape(rows)), slot.datatype)
        inputs.append(tensor.set_shared_memory(regions[0], slot.byte_size(rows), slot.offset))
    for slot in planned.outputs:
        output = InferRequestedOutput(slot.name)
        output.set_shared_memory(regions[1], slot.byte_size(rows), slot.offset)
        outputs.append(output)
    body, _ = InferenceServerClient.generate_request_body(
        inputs,
        outputs=outputs,
        request_id=request_id,
        priority=options.priority,
        timeout=timeout_us,
        parameters=dict(options.parameters) or None,
    )
    version = f"/versions/{quote(options.version, safe='')}" if options.version else ""
    return Call(f"/v2/models/{quote(planned.contract.model, safe='')}{version}/infer", headers, (body,))


def _grpc(planned: Plan, regions: tuple[str, str], rows: int, changing: Changing, headers: Mapping[str, str]) -> Call:
    options, (timeout_us, request_id) = planned.options, changing
    message = pb.ModelInferRequest(model_name=planned.contract.model, model_version=options.version, id=request_id)
    for slot in planned.inputs:
        tensor = message.inputs.add(name=slot.name, shape=slot.shape(rows), datatype=slot.datatype)
        _refer(tensor.parameters, regions[0], slot, rows)
    for slot in planned.outputs:
        _refer(message.outputs.add(name=slot.name).parameters, regions[1], slot, rows)
    if options.priority:
        message.parameters["priority"].uint64_param = options.priority
    if timeout_us is not None:
        message.parameters["timeout"].int64_param = timeout_us
    for key, value in options.parameters.items():
        _set(message.parameters[key], value)
    return Call("ModelInfer", headers, (message.SerializeToString(),))


def _refer(parameters: Any, region: str, slot: Slot, rows: int) -> None:
    _set(parameters["shared_memory_region"], region)
    _set(parameters["shared_memory_byte_size"], slot.byte_size(rows))
    if slot.offset:
        _set(parameters["shared_memory_offset"], slot.offset)


def _set(parameter: pb.InferParameter, value: Parameter) -> None:
    if isinstance(value, bool):  # before int, of which it is one
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
