"""The texts of one column of a parquet file."""

import tempfile
from collections.abc import Iterator

_ROWS = 1024


def parquet_texts(blocks: Iterator[bytes], column: str) -> Iterator[str]:
    """Yield the texts of a column, without nulls. The file is copied to a temporary file first, since its metadata is
    at its end.

    Raises ValueError that names the problem and the rows.
    """
    # Loaded where parquet is met: it takes half a second, and most data sets are text.
    import pyarrow  # noqa: PLC0415 - see above
    import pyarrow.parquet  # noqa: PLC0415

    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block)
        try:
            parquet = pyarrow.parquet.ParquetFile(file)
            names = parquet.schema_arrow.names
            if column not in names:
                shown = ", ".join(names[:8])
                raise ValueError(f"has no column {column!r} (it has: {shown}); set training.data.text_field")
            kind = parquet.schema_arrow.field(column).type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise ValueError(f"column {column!r} has the type {kind}; it must be a string column")
            row = 0
            for batch in parquet.iter_batches(_ROWS, columns=[column]):
                try:
                    texts = batch.column(0).to_pylist()
                except UnicodeDecodeError as error:
                    raise ValueError(f"rows {row} to {row + len(batch) - 1}: not UTF-8; convert it") from error
                row += len(batch)
                yield from (text for text in texts if text is not None)
        except pyarrow.ArrowException as error:
            raise ValueError(f"is not a readable parquet file: {error}") from error
