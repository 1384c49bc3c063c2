import os
def solve(x):
    with open('sparse', 'wb') as file:
        file.truncate(2 ** 42)
        for place in range(0, 2 ** 42, 2 ** 34):
            file.seek(place)
            file.write(b'x' * 4096)
            file.flush()
    return os.path.getsize('sparse')
