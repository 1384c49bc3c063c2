"""The commands by name. Each is a function in a file of its own; a new one is such a file and a line in the table.

The function bears the command's name. Its annotations are the words that a person types, its docstring is the help, and what it
returns is the exit code (None: 0); errors made for people are printed by cli.py. `cohort --help` imports every file in the table,
so each imports what it needs when it runs. What is larger than a screen lies beside this folder.
"""

COMMANDS = {
    "train": "cohort.tools.commands.train",
    "resume": "cohort.tools.commands.resume",
    "evaluate": "cohort.tools.commands.evaluate",
    "export": "cohort.tools.commands.export",
    "compare": "cohort.tools.commands.compare",
    "algorithms": "cohort.tools.commands.algorithms",
    "doctor": "cohort.tools.commands.doctor",
    "audit": "cohort.tools.commands.audit",
    "bench": "cohort.tools.commands.bench",
    "serve": "cohort.tools.commands.serve",
    "look": "cohort.tools.commands.look",
    "report": "cohort.tools.commands.report",
    "dashboard": "cohort.tools.commands.dashboard",
    "recipes": "cohort.tools.commands.recipes",
}
"""In the order in which `cohort --help` lists them."""

KNOW_RANKS = ("train", "resume", "doctor")
"""Those that several processes of torchrun do together; any other is the work of one."""

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}
"""By how a run, or a comparison of several, ended; 130 is what a shell gives a program that Ctrl-C has ended."""
