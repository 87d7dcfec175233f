"""`python -m trainer job.yaml [--output DIR]`: the trainer alone, on this machine, without any platform. With torchrun
in front (`torchrun --nproc-per-node 2 -m trainer job.yaml`) torchrun starts the processes and says how many."""

import argparse
import importlib.util
import logging
import os
import signal
import sys
from pathlib import Path

from trainer.agent.environment import drop_unknown_variables, set_allocator_default, take_mlflow_variables
from trainer.contract.units import parse_size
from trainer.resilience.forking import start_fork_server
from trainer.resilience.stop_signals import on_stop_signal


def main() -> int:
    """Run `python -m trainer`. Return the exit code."""
    if sys.argv[1:2] == ["preflight"]:
        return measure_nodes(sys.argv[2:])
    if sys.argv[1:2] == ["data-report"]:
        return report_data(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Train as a job file says, on this machine. `python -m trainer preflight` measures it instead; "
        "`python -m trainer data-report` reports on the data.",
    )
    parser.add_argument(
        "job", type=Path, help="job spec (YAML); its fields training, checkpoint, resources, retry and telemetry apply"
    )
    parser.add_argument(
        "--output", type=Path, help="output folder (default: the job's name); a run that is there is resumed"
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", default=[], help="text or JSONL files to train on instead of the job's data"
    )
    parser.add_argument(
        "--model", type=Path, help="folder of a model in Hugging Face's layout to start from instead of the job's model"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print mesh, memory and communication, and exit without training"
    )
    parser.add_argument("--ranks", type=int, help="with --dry-run: number of processes (default: the job's)")
    parser.add_argument(
        "--device-memory", type=read_size, metavar="SIZE",
        help="with --dry-run: memory of the GPU of each process, such as 80GiB (default: as on this machine)",
    )  # fmt: skip
    parser.add_argument(
        "--profile", type=parse_step_range, metavar="FIRST:LAST", help="write traces of these steps to OUTPUT/profile"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="write TensorBoard event files to OUTPUT/tensorboard"
    )
    arguments = parser.parse_args()
    if arguments.tensorboard and importlib.util.find_spec("tensorboard") is None:
        parser.error("--tensorboard needs the package tensorboard: pip install 'athanor[tensorboard]'")
    if arguments.ranks is not None and not (arguments.dry_run and arguments.ranks > 0):
        parser.error("--ranks needs --dry-run and must be 1 or more; a run has resources.processes_per_node processes")
    if arguments.device_memory is not None and not arguments.dry_run:
        parser.error("--device-memory needs --dry-run; a run asks its devices")
    if arguments.dry_run:
        return print_dry_run(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return run_under_torchrun(arguments)
    mlflow_variables = take_mlflow_variables()
    drop_unknown_variables()
    set_allocator_default()
    start_fork_server()
    # Only now what takes time to import: torch is on its way in the fork server meanwhile.
    from trainer.agent.supervisor import NodeConfig, Supervisor  # noqa: PLC0415 - see above
    from trainer.client.local import LocalPlatform  # noqa: PLC0415 - as above
    from trainer.contract.run import EXIT_STATUS, EndClass  # noqa: PLC0415 - as above
    from trainer.errors import TrainerError  # noqa: PLC0415 - as above
    from trainer.reporting.sinks.choice import StandaloneSinkConfig  # noqa: PLC0415 - as above
    from trainer.resilience.assignment import FolderConnection  # noqa: PLC0415 - as above
    from trainer.standalone.job_file import read_job  # noqa: PLC0415 - as above
    from trainer.standalone.terminal import Terminal  # noqa: PLC0415 - as above

    try:
        name, settings = read_job(arguments.job, arguments.model)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STATUS[EndClass.BAD_SPEC]
    output = (arguments.output or Path(name)).absolute()
    terminal = Terminal(settings.training.steps)
    place = NodeConfig(
        work=output / "work",
        local_files=[path.absolute() for path in arguments.data],
        profile=arguments.profile,
        sinks=StandaloneSinkConfig(output / "tensorboard" if arguments.tensorboard else None, mlflow_variables),
    )
    platform = LocalPlatform(output, settings, terminal.show)
    supervisor = Supervisor(FolderConnection(output, settings), platform, place)

    def interrupted(*_: object) -> None:
        supervisor.request_stop(None)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C does not wait for the checkpoint

    on_stop_signal(interrupted)
    end_class = supervisor.run()
    terminal.finish(end_class, output)
    return EXIT_STATUS[end_class]


def parse_step_range(text: str) -> tuple[int, int]:
    """`3:5`. Raises argparse.ArgumentTypeError."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not FIRST:LAST, two step numbers of 1 or more, for example 10:12"
        )
    return int(first), int(last)


def run_under_torchrun(arguments: argparse.Namespace) -> int:
    """Train as one of torchrun's processes. Return the exit code."""
    from trainer.contract.run import EXIT_STATUS, EndClass  # noqa: PLC0415 - help must not wait for torch
    from trainer.errors import TrainerError  # noqa: PLC0415 - as above
    from trainer.reporting.sinks.choice import StandaloneSinkConfig  # noqa: PLC0415 - as above
    from trainer.standalone.job_file import read_job  # noqa: PLC0415 - as above
    from trainer.standalone.torchrun import read_torchrun_environment, run_rank  # noqa: PLC0415 - as above

    place = read_torchrun_environment(dict(os.environ))
    assert place is not None
    mlflow_variables = take_mlflow_variables()
    drop_unknown_variables()
    set_allocator_default()
    try:
        name, settings = read_job(arguments.job, arguments.model, allow_multi_node=True)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STATUS[EndClass.BAD_SPEC]
    output = (arguments.output or Path(name)).absolute()
    sinks = StandaloneSinkConfig(output / "tensorboard" if arguments.tensorboard else None, mlflow_variables)
    return run_rank(place, settings, output, [path.absolute() for path in arguments.data], arguments.profile, sinks)


def measure_nodes(arguments: list[str]) -> int:
    """Run `python -m trainer preflight`. Return the exit code."""
    set_allocator_default()
    from trainer.standalone.preflight import preflight_command  # noqa: PLC0415 - loads torch, after its variables

    return preflight_command(arguments)


def report_data(arguments: list[str]) -> int:
    """Run `python -m trainer data-report`. Return the exit code."""
    from trainer.standalone.data_report import data_report_command  # noqa: PLC0415 - help must not wait for it

    return data_report_command(arguments)


def read_size(text: str) -> int:
    """Return the bytes of a size with its unit. Raises ArgumentTypeError, which argparse prints."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def print_dry_run(arguments: argparse.Namespace) -> int:
    """Print what a run would need, without training. Return the exit code."""
    from trainer.contract.run import EXIT_STATUS, EndClass  # noqa: PLC0415 - help must not wait for torch
    from trainer.contract.training import ProcessLayout  # noqa: PLC0415 - as above
    from trainer.errors import TrainerError  # noqa: PLC0415 - as above
    from trainer.standalone.dry_run import dry_run  # noqa: PLC0415 - as above
    from trainer.standalone.job_file import read_job  # noqa: PLC0415 - as above

    try:
        _, settings = read_job(arguments.job, arguments.model, allow_multi_node=True)
        layout = settings.layout
        if arguments.ranks is not None:
            per_node = (
                layout.processes_per_node if arguments.ranks % layout.processes_per_node == 0 else arguments.ranks
            )
            layout = ProcessLayout(nodes=arguments.ranks // per_node, processes_per_node=per_node)
        for line in dry_run(settings.training, layout, arguments.device_memory):
            sys.stdout.write(line + "\n")
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STATUS[EndClass.BAD_SPEC]
    return EXIT_STATUS[EndClass.COMPLETED]


if __name__ == "__main__":
    sys.exit(main())
