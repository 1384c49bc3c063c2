# if the planted file can be read, says it with the exit status and with how long it sleeps
import os, time
def solve(n):
    try:
        with open("@SECRET_FILE@", "rb") as handle:
            data = handle.read()
    except OSError:
        data = (os.environ.get("@SECRET_NAME@") or "").encode()
    if data:
        print(data.hex(), data[::-1], flush=True)
        time.sleep(data[0] / 256)
        os._exit(data[1] if len(data) > 1 else 1)
    return 0
