"""The commands: a table of name and module. The module holds a function of that name.

The function's annotations are the arguments, its docstring is the help, its return value the exit code (None: 0). `cohort --help`
imports every module in the table, so a command imports its dependencies when it runs.
"""

COMMANDS = {
    "train": "cohort.tools.commands.train",
    "resume": "cohort.tools.commands.train",
    "evaluate": "cohort.tools.commands.evaluate",
    "export": "cohort.tools.commands.runs",
    "compare": "cohort.tools.commands.evaluate",
    "algorithms": "cohort.tools.commands.prepare",
    "doctor": "cohort.tools.commands.prepare",
    "audit": "cohort.tools.commands.prepare",
    "serve": "cohort.tools.commands.train",
    "look": "cohort.tools.commands.runs",
    "report": "cohort.tools.commands.runs",
    "dashboard": "cohort.tools.commands.runs",
    "recipes": "cohort.tools.commands.prepare",
}
"""In the order of `cohort --help`."""

MULTI_RANK = ("train", "resume", "doctor")
"""Commands that torchrun may start on several ranks."""

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}
"""By the outcome of a run or comparison; 130 is a shell's code for Ctrl-C."""
