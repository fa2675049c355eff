"""``python -m otflow`` is the program ``otflow``."""

from otflow.cli import main

main()
