# does not read its standard input, stuck before reading: a host that writes all of it first waits for ever
import fcntl, time
try:
    fcntl.fcntl(0, 1031, 4096)
except OSError:
    pass
time.sleep(600)
