"""Which files `make test-fast` leaves out."""

from pathlib import Path

# Folders whose tests start programs, or train models, which takes seconds each. Files of them that do neither: QUICK.
PROCESS_FOLDERS = ("backends", "chaos", "cli", "deploy", "docs", "e2e", "kubernetes", "slurm", "trainer", "workers")
QUICK = {
    "trainer/test_chat.py", "trainer/test_data_order.py", "trainer/test_layouts.py", "trainer/test_optimizer.py",
    "trainer/test_schedule.py", "trainer/test_encrypted_storage.py", "chaos/test_checker.py",
    "kubernetes/test_objects.py", "docs/test_links.py", "slurm/test_answers.py",
}  # fmt: skip
FOLDER = Path(__file__).parent


def starts_processes(path: Path) -> bool:
    """Return whether a file's tests start programs or train models."""
    name = path.relative_to(FOLDER).as_posix()
    return name.startswith(tuple(f"{folder}/" for folder in PROCESS_FOLDERS)) and name not in QUICK
