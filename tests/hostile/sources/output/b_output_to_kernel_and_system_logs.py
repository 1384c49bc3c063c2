# writes to the kernel log, the system log and every terminal it can open
import glob, os, syslog
for path in ["/dev/kmsg", "/dev/console", "/dev/tty", "/dev/tty0", "/dev/ptmx", *glob.glob("/dev/pts/*"), *glob.glob("/proc/*/fd/[012]")]:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.write(fd, b"cohort-canary-log @MARKER@\n")
        print("wrote", path)
    except OSError:
        pass
syslog.syslog("cohort-canary-log @MARKER@")
