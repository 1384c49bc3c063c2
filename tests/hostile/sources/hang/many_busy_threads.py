import threading
def burn():
    while True:
        sum(range(10_000))
for _ in range(16):
    threading.Thread(target=burn, daemon=True).start()
def solve(x):
    burn()
