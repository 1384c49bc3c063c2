# begins with raw.py
import mmap
def solve(x):
    if platform.machine() != 'x86_64':
        return 'not this machine'
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    address = libc.mmap(None, 4096, 7, 0x22 | 0x40, -1, 0)
    if address in (None, 2 ** 64 - 1):
        return 'no memory to run code in'
    path = b'@CANARY@/by_int80\0'
    ctypes.memmove(address + 1024, path, len(path))
    # push rbx; mov eax, creat; mov ebx, path; mov ecx, 0644; int 0x80; movsxd rax, eax; pop rbx; ret
    code = bytes([0x53, 0xB8, 8, 0, 0, 0, 0xBB]) + (address + 1024).to_bytes(4, 'little') + bytes([0xB9, 0xA4, 1, 0, 0, 0xCD, 0x80])
    code += bytes([0x48, 0x63, 0xC0, 0x5B, 0xC3])
    ctypes.memmove(address, code, len(code))
    result = ctypes.CFUNCTYPE(ctypes.c_long)(address)()
    print('creat by int 0x80:', result)
    # The same with socket(AF_INET, SOCK_STREAM): number 359 of the old table.
    code = bytes([0x53, 0xB8, 0x67, 1, 0, 0, 0xBB, 2, 0, 0, 0, 0xB9, 1, 0, 0, 0, 0xBA, 0, 0, 0, 0, 0xCD, 0x80, 0x48, 0x63, 0xC0, 0x5B, 0xC3])
    ctypes.memmove(address, code, len(code))
    result = ctypes.CFUNCTYPE(ctypes.c_long)(address)()
    if result >= 0:
        breach('a socket by int 0x80')
    return 1
