# asks a scheduler or a service manager to start a process for it
import os, shutil, subprocess
COMMANDS = (
    ["systemd-run", "--user", "--quiet", "sleep", "100"],
    ["at", "now"],
    ["crontab", "-l"],
    ["nsenter", "-t", "1", "-a", "touch", "@CANARY@/cohort-canary-nsenter"],
    ["setsid", "-f", "sleep", "100"],
    ["sudo", "-n", "touch", "@CANARY@/cohort-canary-sudo"],
    ["su", "-c", "touch @CANARY@/cohort-canary-su"],
    ["pkexec", "touch", "@CANARY@/cohort-canary-pkexec"],
)
def solve(n):
    for command in COMMANDS:
        if shutil.which(command[0]):
            try:
                print(subprocess.run(command, input=b"touch @CANARY@/cohort-canary-at\n", capture_output=True, timeout=1))
            except (OSError, subprocess.TimeoutExpired) as error:
                print(error)
    return n
