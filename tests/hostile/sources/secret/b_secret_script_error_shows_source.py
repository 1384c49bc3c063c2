# makes the interpreter itself show the planted file: as module, as program, as configuration, in its error message
import os, subprocess, sys
for command in (
    [sys.executable, "@SECRET_FILE@"],
    [sys.executable, "-m", "tokenize", "@SECRET_FILE@"],
    [sys.executable, "-m", "base64", "-e", "@SECRET_FILE@"],
    ["bash", "@SECRET_FILE@"],
    ["env", "-S", "@SECRET_FILE@"],
    ["/lib64/ld-linux-x86-64.so.2", "@SECRET_FILE@"],
    ["grep", "-r", "", os.path.dirname("@SECRET_FILE@")],
):
    try:
        done = subprocess.run(command, capture_output=True, timeout=1)
        print(done.stdout[:2000], done.stderr[:2000])
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error)
