
import ctypes, errno, os, platform, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
_X86 = dict(mount=165, umount2=166, pivot_root=155, chroot=161, unshare=272, setns=308, ptrace=101, process_vm_readv=310,
    process_vm_writev=311, io_uring_setup=425, bpf=321, perf_event_open=298, userfaultfd=323, keyctl=250, add_key=248,
    request_key=249, kexec_load=246, init_module=175, name_to_handle_at=303, open_by_handle_at=304, clone=56, clone3=435,
    memfd_create=319, shmget=29, shmat=30, shmctl=31, msgget=68, msgsnd=69, msgrcv=70, semget=64, personality=135, prlimit64=302, tgkill=234,
    tkill=200, kill=62, rt_sigqueueinfo=129, pidfd_open=434, pidfd_send_signal=424, pidfd_getfd=438, reboot=169, syslog=103,
    acct=163, swapon=167, quotactl=179, sethostname=170, execveat=322, kcmp=312, move_pages=279, mq_open=240, fsopen=430,
    open_tree=428, move_mount=429, mount_setattr=442, get_robust_list=274, setpriority=141, sched_setaffinity=203, vfork=58,
    fork=57, seccomp=317, process_madvise=440, fanotify_init=300, memfd_secret=447, iopl=172, ioprio_set=251, mknodat=259,
    landlock_create_ruleset=444, openat2=437, vmsplice=278, migrate_pages=256, lookup_dcookie=212, settimeofday=164, capset=126,
    kexec_file_load=320, delete_module=176, finit_module=313)
_ARM = dict(mount=40, umount2=39, pivot_root=41, chroot=51, unshare=97, setns=268, ptrace=117, process_vm_readv=270,
    process_vm_writev=271, io_uring_setup=425, bpf=280, perf_event_open=241, userfaultfd=282, keyctl=219, add_key=217,
    request_key=218, kexec_load=104, init_module=105, name_to_handle_at=264, open_by_handle_at=265, clone=220, clone3=435,
    memfd_create=279, shmget=194, shmat=196, shmctl=195, msgget=186, msgsnd=189, msgrcv=188, semget=190, personality=92, prlimit64=261,
    tgkill=131, tkill=130, kill=129, rt_sigqueueinfo=138, pidfd_open=434, pidfd_send_signal=424, pidfd_getfd=438, reboot=142,
    syslog=116, acct=89, swapon=224, quotactl=60, sethostname=161, execveat=281, kcmp=272, move_pages=239, mq_open=180,
    fsopen=430, open_tree=428, move_mount=429, mount_setattr=442, get_robust_list=100, setpriority=140, sched_setaffinity=122,
    seccomp=277, process_madvise=440, fanotify_init=262, memfd_secret=447, ioprio_set=30, mknodat=33,
    landlock_create_ruleset=444, openat2=437, vmsplice=75, migrate_pages=238, settimeofday=170, capset=91, kexec_file_load=294,
    delete_module=106, finit_module=273)
NUMBERS = {"x86_64": _X86, "aarch64": _ARM}[platform.machine()]

def syscall(name, *arguments):
    """The result and errno of a raw system call; -1 and ENOSYS where this machine does not have it."""
    if name not in NUMBERS:
        return -1, errno.ENOSYS
    ctypes.set_errno(0)
    plain = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *plain)
    return result, ctypes.get_errno()

def breach(what):
    print("BREACH", what, flush=True)

def refused(name, *arguments):
    """Make the call; to be granted it is a breach."""
    result, error = syscall(name, *arguments)
    if result >= 0:
        breach(f"{name} returned {result}")
    return result, error
