# begins with raw.py
def solve(x):
    queue, error = syscall('msgget', @KEY@, 0o1666)
    if queue >= 0:
        breach('a System V queue')
    group, error = syscall('semget', @KEY@, 1, 0o1666)
    if group >= 0:
        breach('System V semaphores')
    queue, error = syscall('mq_open', b'@MARKER@', 0o102, 0o666, None)
    return [queue, error]
