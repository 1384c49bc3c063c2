# begins with raw.py

def stay():
    """What a survivor does: take the run's name, keep no one waiting by a signal, and last a minute."""
    libc.prctl(15, b"@MARKER@", 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    try:
        time.sleep(60)
        open("@CANARY@/survived", "w").close()
    finally:
        os._exit(0)
