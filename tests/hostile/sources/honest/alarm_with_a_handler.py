
import signal, time
class Late(Exception):
    pass
def handler(number, frame):
    raise Late
def solve(seconds):
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        time.sleep(5)
    except Late:
        return "late"
    finally:
        signal.alarm(0)
    return "on time"
