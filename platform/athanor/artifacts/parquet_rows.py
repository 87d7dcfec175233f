"""Print the first rows of a parquet file as JSON lines: a program of its own, run by `previews.py`.

A small parquet file may unpack to gigabytes. So it is read in this process, with limits of memory, time and output.
Usage: `python -m athanor.artifacts.parquet_rows ROWS MEMORY_BYTES < FILE`. Exits with 1 and a line on stderr if the
file cannot be read. Prints fewer rows if they would exceed MAX_OUTPUT_CHARACTERS.
"""

import json
import resource
import sys

from athanor.artifacts.inspection import shortened

CPU_SECONDS = 10
MAX_OUTPUT_CHARACTERS = 4 * 2**20  # of JSON, which the web server holds in memory


def main() -> int:
    """Print the rows. Return the exit status."""
    limit, memory_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    import pyarrow  # noqa: PLC0415 - within the limits
    import pyarrow.parquet  # noqa: PLC0415 - see above

    pyarrow.set_cpu_count(1)
    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(sys.stdin.buffer.read()))
        batch = next(file.iter_batches(limit, use_threads=False), None)
        printed = 0
        for row in batch.to_pylist() if batch is not None else []:
            line = json.dumps(shortened(row))
            printed += len(line)
            if printed > MAX_OUTPUT_CHARACTERS:
                break
            sys.stdout.write(f"{line}\n")
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        sys.stderr.write(" ".join(str(error).split()) or type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
