"""The memory behind shared tensors: of the host, or of a GPU, under a name that a server can open."""

from __future__ import annotations

import base64
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonbatch.client.contract import Contract
from tritonbatch.client.errors import InvalidRequest
from tritonbatch.client.options import Protocol
from tritonbatch.client.tensors import Array, converted
from tritonbatch.errors import NotSupported

NOTHING: Mapping[str, Array] = {}
FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux


class Places(Mapping[str, Array]):
    """The arrays of a region by name; assigning to one copies into it, converted as inputs of a request are."""

    def __init__(self, contract: Contract | None = None, arrays: Mapping[str, Array] = NOTHING) -> None:
        self._contract, self._arrays = contract, dict(arrays)

    def __getitem__(self, name: str) -> Array:
        """The memory of one tensor."""
        return self._arrays[name]

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        """Copy *value* into the whole memory of one tensor; for fewer rows, ``places[name][:rows] = value``.

        Raises:
            InvalidRequest: there is none of this name, or the type or shape does not fit.
        """
        if self._contract is None or name not in self._arrays:
            raise InvalidRequest(f"There is no memory for {name!r}; expected of {', '.join(self._arrays) or 'none'}.")
        place = self._arrays[name]
        array = converted(self._contract.model, self._contract.inputs[name], value)
        if array.shape != place.shape:
            raise InvalidRequest(
                f"Model {self._contract.model}, input {name}: got shape {array.shape}; expected {place.shape}; for "
                f"fewer rows write inputs[{name!r}][:rows] = …"
            )
        place[...] = array

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._arrays)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._arrays)


class SystemRegion:
    """Host memory with a name under ``/dev/shm``; *buffer* lives as long as an array on it does."""

    ask = "memory"

    def __init__(self, name: str, byte_size: int) -> None:
        self.name, self.byte_size = name, byte_size
        try:
            file = os.open(FOLDER / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            try:
                os.posix_fallocate(file, 0, byte_size)  # a full /dev/shm is an error now, not a SIGBUS later
                self.buffer = mmap.mmap(file, byte_size)
            finally:
                os.close(file)
        except BaseException as error:
            self.unlink()
            if isinstance(error, OSError):
                raise NotSupported(
                    f"Shared memory of {byte_size} bytes cannot be had in {FOLDER} ({error.strerror}); give it more "
                    "room (docker: --shm-size), or use fewer rows."
                ) from error
            raise

    def body(self, protocol: Protocol) -> dict[str, Any]:  # noqa: ARG002 - CUDA's body depends on it
        """What registering it says beside its name."""
        return {"key": f"/{self.name}", "offset": 0, "byte_size": self.byte_size}

    def unlink(self) -> None:
        """Remove its name; who has it open keeps it."""
        (FOLDER / self.name).unlink(missing_ok=True)

    def upload(self) -> None:
        """Nothing: the server reads the buffer itself."""

    def download(self) -> None:
        """Nothing: the server has written to the buffer itself."""

    def free(self) -> None:
        """Forget the buffer; unlike closing, which numpy would not notice, that leaves it to the last array on it."""
        del self.buffer


class CudaRegion:
    """Memory of GPU 0, with a buffer on the host that is copied there and back."""

    ask = "cuda_memory"

    def __init__(self, name: str, byte_size: int) -> None:
        self.name, self.byte_size = name, byte_size
        try:
            from tritonclient.utils import cuda_shared_memory  # noqa: PLC0415 - only where it is asked for

            self._cuda = cuda_shared_memory
            self._handle = cuda_shared_memory.create_shared_memory_region(name, byte_size, 0)
        except Exception as error:  # CUDA says in many types that it is not there
            reason = (error.__cause__ or error).args[0]
            reason = reason.decode() if isinstance(reason, bytes) else reason
            raise NotSupported(
                f"CUDA shared memory needs an NVIDIA GPU, its driver and cuda-python ({reason}); use kind='system'."
            ) from error
        self.buffer = bytearray(byte_size)

    def body(self, protocol: Protocol) -> dict[str, Any]:
        """What registering it says beside its name."""
        encoded: bytes = self._cuda.get_raw_handle(self._handle)
        handle = {"b64": encoded.decode()} if protocol == "http" else base64.b64decode(encoded)
        return {"raw_handle": handle, "device_id": 0, "byte_size": self.byte_size}

    def unlink(self) -> None:
        """Nothing: it has no name outside the server."""

    def upload(self) -> None:
        """Copy the buffer to the GPU."""
        self._cuda.set_shared_memory_region(self._handle, [np.frombuffer(self.buffer, np.uint8)])

    def download(self) -> None:
        """Copy the GPU's memory to the buffer."""
        host = np.frombuffer(self.buffer, np.uint8)
        host[:] = self._cuda.get_contents_as_numpy(self._handle, np.uint8, (self.byte_size,))

    def free(self) -> None:
        """Give the GPU's memory back."""
        self._cuda.destroy_shared_memory_region(self._handle)


Region = SystemRegion | CudaRegion
KINDS: dict[str, type[Region]] = {"system": SystemRegion, "cuda": CudaRegion}
