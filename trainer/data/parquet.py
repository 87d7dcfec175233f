"""The texts of one column of a parquet file."""

import tempfile
from collections.abc import Iterator

_ROWS = 1024


class UnreadableRows(ValueError):
    """Rows that cannot be read. `kind`: as of a RowProblem; `row`: the first of them, from 1."""

    def __init__(self, kind: str, row: int, message: str) -> None:
        super().__init__(message)
        self.kind, self.row = kind, row


def parquet_texts(blocks: Iterator[bytes], column: str) -> Iterator[tuple[int, str]]:
    """Yield (row, text) of a column, without nulls. The file is copied to a temporary file first, since its metadata is
    at its end.

    Raises UnreadableRows that names the problem and the rows.
    """
    # Loaded where parquet is met: it takes half a second, and most data sets are text.
    import pyarrow  # noqa: PLC0415 - see above
    import pyarrow.parquet  # noqa: PLC0415

    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block)
        row = 0
        try:
            parquet = pyarrow.parquet.ParquetFile(file)
            names = parquet.schema_arrow.names
            if column not in names:
                shown = ", ".join(names[:8])
                message = f"has no column {column!r} (it has: {shown}); set training.data.text_field"
                raise UnreadableRows("no_text_field", 1, message)
            kind = parquet.schema_arrow.field(column).type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                message = f"column {column!r} has the type {kind}; it must be a string column"
                raise UnreadableRows("text_not_string", 1, message)
            for batch in parquet.iter_batches(_ROWS, columns=[column]):
                try:
                    texts = batch.column(0).to_pylist()
                except UnicodeDecodeError as error:
                    message = f"rows {row} to {row + len(batch) - 1}: not UTF-8; convert it"
                    raise UnreadableRows("not_utf8", row + 1, message) from error
                yield from ((number, text) for number, text in enumerate(texts, start=row + 1) if text is not None)
                row += len(batch)
        except pyarrow.ArrowException as error:
            raise UnreadableRows("not_parquet", row + 1, f"is not a readable parquet file: {error}") from error
