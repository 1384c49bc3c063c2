# epoll, eventfd, timerfd, inotify, signalfd, terminals, timers, semaphores, queues and keys, all it can get of each
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def many(make, limit=5000):
    made = 0
    for i in range(limit):
        if make(i) < 0:
            break
        made += 1
    return made
def solve(n):
    timer = ctypes.c_void_p()
    counts = {
        "timers": many(lambda i: libc.timer_create(1, None, ctypes.byref(timer)), 50_000),
        "keys": many(lambda i: libc.syscall(248, b"user", b"cohort-canary-%d" % i, b"x" * 1000, 1000, -4), 2000),
        "semaphores": many(lambda i: libc.semget(0, 250, 0o1600)),
        "queues": many(lambda i: libc.msgget(0, 0o1600)),
        "mqueues": many(lambda i: libc.mq_open(b"/cohort-canary-%d" % i, os.O_CREAT | os.O_RDWR, 0o600, None), 300),
        "inotify": many(lambda i: libc.inotify_init1(0), 300),
        "epoll": many(lambda i: libc.epoll_create1(0), 300),
        "eventfd": many(lambda i: libc.eventfd(0, 0), 300),
        "timerfd": many(lambda i: libc.timerfd_create(1, 0), 300),
        "terminals": many(lambda i: libc.posix_openpt(2), 300),
        "userfaultfd": many(lambda i: libc.syscall(323, 0), 50),
        "bpf": many(lambda i: libc.syscall(321, 0, b"\x02\0\0\0\x04\0\0\0\0\0\x10\0\x10\0\0\0" + bytes(100), 72), 50),
        "perf": many(lambda i: libc.syscall(298, bytes(128), 0, -1, -1, 0), 50),
        "io_uring": many(lambda i: libc.syscall(425, 4096, ctypes.create_string_buffer(120)), 200),
    }
    print(counts)
    return counts
