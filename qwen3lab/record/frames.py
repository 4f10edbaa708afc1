"""Tables of samples as Parquet, the same bytes for the same table: one codec, one level, no pandas notes inside.

A missing value (None, NaN) is null in the file. A column of whole numbers with gaps therefore comes back as floats.
"""

from __future__ import annotations

import io
import operator
import re
from collections.abc import Mapping, Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from qwen3lab.record.schema import FRAME_NAME, Frame

Outputs = dict[str, dict[str, list[list[int]]]]  # arm → workload → token ids, one list a request

_OUTPUTS = pa.schema(
    [("arm", pa.string()), ("workload", pa.string()), ("request", pa.int32()), ("token_ids", pa.list_(pa.int32()))]
)


def to_parquet(name: str, frame: pd.DataFrame) -> tuple[bytes, Frame]:
    """The file's bytes and what the record says of it. Raises ValueError for what Parquet would lose or bend."""
    if re.fullmatch(FRAME_NAME, name) is None:
        raise ValueError(f"frame name {name!r}, allowed: lower-case letters, digits and _, up to 64")
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"frame {name!r} is a {type(frame).__name__}, allowed: a pandas DataFrame")
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(f"frame {name!r} has a {type(frame.index).__name__}, which is not stored; reset_index() first")
    columns = list(frame.columns)
    if not all(isinstance(column, str) for column in columns) or len(set(columns)) != len(columns):
        raise ValueError(f"frame {name!r} has the columns {columns}, allowed: strings, each once")
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException as error:
        raise ValueError(f"frame {name!r}: {error}; give each column one type") from None
    return _write(name, table)


def outputs_to_parquet(name: str, outputs: Mapping[str, Mapping[str, Sequence[Sequence[int]]]]) -> tuple[bytes, Frame]:
    """`outputs` (see Outputs) as a table of arm, workload, request, token_ids (int32)."""
    try:
        rows = [
            {"arm": arm, "workload": workload, "request": request, "token_ids": [operator.index(i) for i in ids]}
            for arm, by_workload in outputs.items()
            for workload, requests in by_workload.items()
            for request, ids in enumerate(requests)
        ]
        return _write(name, pa.Table.from_pylist(rows, schema=_OUTPUTS))
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise ValueError(f"outputs: {error}; token ids are whole numbers below 2^31") from None


def from_parquet(data: bytes) -> pd.DataFrame:
    frame: pd.DataFrame = pq.read_table(io.BytesIO(data)).to_pandas()
    return frame


def outputs_from_parquet(data: bytes) -> Outputs:
    outputs: Outputs = {}
    for row in pq.read_table(io.BytesIO(data)).to_pylist():
        outputs.setdefault(row["arm"], {}).setdefault(row["workload"], []).append(row["token_ids"])
    return outputs


def _write(name: str, table: pa.Table) -> tuple[bytes, Frame]:
    # pandas leaves a note with its version in the schema: the same samples would hash differently after an upgrade.
    table = table.replace_schema_metadata(None)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=9)
    return buffer.getvalue(), Frame(member=f"{name}.parquet", rows=table.num_rows, columns=table.column_names)
