# a second interpreter in the same process, out of reach of hooks and of a patched environment, that never stops
import threading
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
def run():
    inner = interpreters.create()
    interpreters.run_string(inner, "import os\nos.write(1, b'inner')\nwhile True:\n    pass\n")
def solve(n):
    threading.Thread(target=run).start()
    run()
