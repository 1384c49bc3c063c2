# moves zeros from the kernel to standard output by splice and tee: gigabytes for hardly any CPU
import os
zero = os.open("/dev/zero", os.O_RDONLY)
reader, writer = os.pipe()
for _ in range(16_384):
    try:
        os.splice(zero, writer, 65536)
        os.splice(reader, 1, 65536)
    except (OSError, AttributeError):
        os.write(1, bytes(65536))
