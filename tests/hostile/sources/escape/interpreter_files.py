import os, sys
def solve(x):
    for path in ('/proc/self/exe', sys.executable, os.__file__, os.__cached__, '/etc/passwd', '/etc/hosts', '/usr/bin/env', '/bin/sh',
                 '/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/sys/kernel/uevent_helper',
                 '/sys/power/state', '/dev/mem', '/dev/kmem', '/dev/port', '/dev/vda', '/dev/sda', '/dev/nvme0n1', '/dev/kvm', '/dev/fuse',
                 '/dev/uinput', '/dev/loop-control', '/dev/console', '/dev/tty0', '/dev/rtc0', '/dev/kmsg', '/sys/fs/cgroup/cgroup.procs',
                 '/sys/fs/cgroup/memory/tasks', '/sys/fs/cgroup/pids/tasks'):
        try:
            os.close(os.open(path, os.O_WRONLY))
            print('BREACH opened for writing:', path)
        except OSError:
            pass
    return 1
