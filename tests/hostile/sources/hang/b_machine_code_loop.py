# two bytes of machine code that jump to themselves
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(b"\xeb\xfe")
def solve(n):
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
