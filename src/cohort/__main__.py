"""`python -m cohort` is the command line."""

from cohort.cli import app

app()
