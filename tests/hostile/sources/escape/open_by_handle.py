# begins with raw.py
def solve(x):
    handle = ctypes.create_string_buffer(8 + 128)
    mount = ctypes.c_int()
    for path in (b'.', b'/', b'/proc', b'/usr', b'/etc', b'@CANARY@'):
        ctypes.c_uint.from_buffer(handle).value = 128
        result, error = syscall('name_to_handle_at', -100, path, handle, ctypes.byref(mount), 0)
        if result == 0:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            refused('open_by_handle_at', folder, handle, 0)
        # The root of ext4 is inode 2: a handle made by hand.
        ctypes.memmove(handle, (8).to_bytes(4, 'little') + (1).to_bytes(4, 'little') + (2).to_bytes(8, 'little'), 16)
        try:
            refused('open_by_handle_at', os.open(path, os.O_RDONLY), handle, 0)
        except OSError:
            pass
    return 1
