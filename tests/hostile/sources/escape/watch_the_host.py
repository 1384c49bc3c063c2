# begins with raw.py
def solve(x):
    watch = libc.inotify_init()
    if watch >= 0 and libc.inotify_add_watch(watch, b'@CANARY@', 0xFFF) >= 0:
        breach('watches the canary folder')
    refused('fanotify_init', 0, 0)
    return 1
