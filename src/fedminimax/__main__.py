"""``python -m fedminimax``: the command line."""

from fedminimax.cli import main

main()
