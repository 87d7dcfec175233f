"""`make test CHANGED=1` finds the tests that a change can affect (tests/affected.py)."""

from tests.affected import affected

MUON = "trainer/optim/muon.py"


def test_a_changed_module_affects_the_tests_that_import_it_and_those_that_start_the_trainer() -> None:
    found = affected([MUON])
    assert "tests/trainer/test_muon.py" in found
    assert "tests/trainer/test_runs.py" in found, "it runs `python -m trainer`"
    assert "tests/control_plane/scheduling/test_policy.py" not in found


def test_a_changed_module_does_not_affect_tests_of_the_whole_stack() -> None:
    assert not [path for path in affected([MUON]) if path.startswith(("tests/e2e", "tests/docs/test_commands"))]


def test_a_changed_helper_of_end_to_end_tests_affects_the_files_that_use_it() -> None:
    found = affected(["tests/e2e/browsing.py"])
    assert "tests/e2e/test_dashboard.py" in found


def test_a_conftest_affects_the_tests_below_it() -> None:
    found = affected(["tests/kubernetes/conftest.py"])
    assert "tests/kubernetes/test_watch.py" in found
    assert "tests/slurm/test_script.py" not in found


def test_rules_of_the_whole_code_base_are_always_checked() -> None:
    assert affected([]) == ["tests/architecture"]
