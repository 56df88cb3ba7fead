"""What it costs to start: fedminimax imported, and its command line, against JAX alone.

    python benchmarks/startup.py

Processes are started in turn; a number is the median of the processor time (user) that they took, which depends less than
wall time on what else the machine does, and a ratio is the median of the ratios within a repetition.
"""

import argparse
import os
import statistics
import subprocess
import sys

COMMAND = "from fedminimax.cli import main; main()"
PROGRAMS = {
    "Python": ["-c", ""],
    "import jax": ["-c", "import jax"],
    "import fedminimax": ["-c", "import fedminimax"],
    "import fedminimax and use a name": ["-c", "import fedminimax as fm; fm.run, fm.MinimaxProblem, fm.ClientData, fm.FessGDA"],
    "the same and fm.models": ["-c", "import fedminimax as fm; fm.run, fm.models"],
    "fedminimax --version": ["-c", COMMAND, "--version"],
    "fedminimax --help": ["-c", COMMAND, "--help"],
}
BASE = "import jax"
# An installed package has its bytecode beside it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds(arguments: list[str]) -> float:
    """Return the processor time of a process."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    return os.times().children_user - before.children_user


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=9)
    repetitions = parser.parse_args().repetitions
    for arguments in PROGRAMS.values():  # what Python compiles when it first imports a file is no start-up time
        seconds(arguments)
    taken = [{name: seconds(arguments) for name, arguments in PROGRAMS.items()} for _ in range(repetitions)]
    print(f"| | user seconds | times `{BASE}` |\n|---|---:|---:|")
    for name in PROGRAMS:
        own = statistics.median(one[name] for one in taken)
        print(f"| `{name}` | {own:.2f} | {statistics.median(one[name] / one[BASE] for one in taken):.2f} |")


if __name__ == "__main__":
    main()
