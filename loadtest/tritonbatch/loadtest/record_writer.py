"""Records written as they come, so that a process that is killed leaves what it had."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.loadtest.record_files import PARTIAL, SCHEMA, stream_batches
from tritonbatch.loadtest.records import PARQUET, Records, record_batch
from tritonbatch.whole_file import whole_file


class RecordWriter:
    """Appends records to ``PATH.partial`` and turns it into the Parquet file *path* at :meth:`close`.

    As a context manager it closes when the block ends well; when it fails, ``PATH.partial`` stays, to be read with
    ``read_records(path, partial=True)``. Everything appended has been handed to the operating system.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = 0
        self._partial = path.with_name(path.name + PARTIAL)
        self._sink = pa.OSFile(str(self._partial), "wb")
        self._stream = pa.ipc.new_stream(self._sink, SCHEMA)

    def append(self, records: Records) -> None:
        """Add *records*, one batch of the stream; a few thousand at a time cost least."""
        self._stream.write_batch(record_batch(records))
        self._records += len(records)

    def close(self) -> None:
        """Write *path*, whole or not at all, batch by batch, and remove the partial file."""
        self._end_stream()
        with whole_file(self._path) as temporary, pq.ParquetWriter(temporary, SCHEMA, **PARQUET) as parquet:
            for batch in stream_batches(self._partial):
                parquet.write_batch(batch)
                self._records -= batch.num_rows
            if self._records:
                raise OSError(f"{self._partial} lost {self._records} records that were written to it")
        self._partial.unlink()

    def _end_stream(self) -> None:
        self._stream.close()
        self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end_stream()
