"""Run the command line: `python -m cohort`."""

from cohort.cli import app

app()
