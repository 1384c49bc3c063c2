import threading
shared = [0] * 200_000
def shake():
    while True:
        shared.append(1)
        del shared[:10]
threading.Thread(target=shake, daemon=True).start()
def solve(x):
    return shared
