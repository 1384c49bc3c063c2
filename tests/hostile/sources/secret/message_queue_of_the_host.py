# begins with raw.py
def solve(x):
    area = ctypes.create_string_buffer(1024)
    for queue in range(64):
        result, error = syscall('msgrcv', @QUEUE@ - queue, area, 1000, 0, 0o4000)
        if result >= 0:
            breach('took a message of the host')
            print(area.raw[8:8 + result])
    ctypes.memmove(area, (1).to_bytes(8, 'little') + b'forged', 14)
    if syscall('msgsnd', @QUEUE@, area, 6, 0o4000)[0] == 0:
        breach('put a message into a queue of the host')
    return 1
