
import hashlib, os
def solve(size):
    data = bytes(range(256)) * (size // 256)
    with open("data.bin", "wb") as file:
        file.write(data)
    with open("data.bin", "rb") as file:
        again = file.read()
    os.remove("data.bin")
    return [len(again), hashlib.md5(again).hexdigest() == hashlib.md5(data).hexdigest()]
