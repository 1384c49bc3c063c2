"""The system-call filter: a short BPF program that refuses calls which honest programs do not need.

Refused are new processes (threads are allowed), replacing the program, inspecting or signalling other processes, sockets other
than a socketpair, mounts and namespaces, io_uring, and all kernel objects whose memory is not counted against the process.
Refused calls return EPERM, which honest programs can handle. clone3 hides its flags behind a pointer, which a filter cannot
follow; it returns "not implemented", and the C library falls back to clone. Written by hand instead of with libseccomp because
the filter is one list of numbers, and so the jail needs nothing but the kernel.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable

Instruction = tuple[int, int, int, int]
Code = list[Instruction]

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# System call numbers on x86_64 and aarch64; None if the architecture does not have the call.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435),
    "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "kcmp": (312, 272), "move_pages": (279, 239), "migrate_pages": (256, 238),
    "prlimit64": (302, 261), "prctl": (157, 167), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "setsid": (112, 157), "setpgid": (109, 154), "personality": (135, 92),
    "arch_prctl": (158, None), "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None), "acct": (163, 89),
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147),
    "setresgid": (119, 149), "setfsuid": (122, 151), "setfsgid": (123, 152), "setgroups": (116, 159), "capset": (126, 91),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "statmount": (457, 457), "listmount": (458, 458),
    "unshare": (272, 97), "setns": (308, 268), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "swapon": (167, 224), "swapoff": (168, 225),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_setup": (206, 0), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "fanotify_init": (300, 262), "lookup_dcookie": (212, 18), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58), "mknod": (133, None), "mknodat": (259, 33),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "sync": (162, 81),
    "syncfs": (306, 267), "openat2": (437, 437), "open": (2, None), "openat": (257, 56),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "mq_open": (240, 180), "remap_file_pages": (216, 234), "mbind": (237, 235),
    "fcntl": (72, 25), "ioctl": (16, 29), "seccomp": (317, 277), "map_shadow_stack": (453, 453), "lsm_set_self_attr": (460, 460),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "truncate": (76, 45), "close_range": (436, 436),
    "fallocate": (285, 47),
}  # fmt: skip

FOREIGN = (
    "inotify_init", "inotify_init1", "inotify_add_watch", "setxattr", "lsetxattr", "removexattr", "lremovexattr", "setxattrat",
    "removexattrat", "file_setattr", "truncate", "chown", "lchown", "fchownat", "fchown", "fsetxattr",
    "fremovexattr",
)  # fmt: skip
TIMES = ("utime", "utimes", "futimesat", "utimensat")
MODES = ("chmod", "fchmod", "fchmodat", "fchmodat2")
"""Calls that Landlock does not cover, by path or through a read-only descriptor. They are harmless on a file system of the
jail's own. Elsewhere FOREIGN is refused. Changes of times succeed without effect, because honest programs copy files; so do
changes of modes, unless the jail has its own user."""

AF_UNIX = 1
CLONE_THREAD = 0x00010000
PR_NAMES = (15, 16)
"""PR_SET_NAME, PR_GET_NAME. Other prctl operations could undo the death with the parent."""
FCNTL_REFUSED = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX signal other processes through a descriptor. F_SETLEASE and F_NOTIFY: a lease makes other
openers of the file wait."""
IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: needed to open and read files."""
ARCH_CPUID = 0x1012
UNNAMED_FILE = 0o20000000
"""O_TMPFILE without O_DIRECTORY: an unnamed file, which a scan of the folder would miss."""
EMPTY_FILE, WRITING = 0o1000, 3
"""O_TRUNC, and the bits of a writable access mode."""
CLONE_FILES = 0x400
OWN_TABLE = 2
"""CLOSE_RANGE_UNSHARE"""
X32_BIT = 0x40000000

LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER, ARCHITECTURE = 0, 4


def locate_argument(index: int) -> int:
    """Return the offset of the low half of an argument. All arguments compared here are ints, so the high half does not matter."""
    return 16 + 8 * index


def build_filter(own_pid: int, own_files: bool, own_user: bool, machine: str = "") -> bytes:
    """Build the filter for a process that sees itself as `own_pid`.

    own_files: all reachable files belong to the jail. own_user: the trainer's files belong to another user.
    """
    machine = machine or platform.machine()
    column = list(ARCHITECTURES).index(machine)
    numbers = {name: number for name, both in NUMBERS.items() if (number := both[column]) is not None}
    pretended = {*(() if own_files else TIMES), *(() if own_files or own_user else MODES)}
    harmless = {*MODES, *TIMES, *(FOREIGN if own_files else ())} - pretended
    allowed = [(RETURN, 0, 0, ALLOW)]
    # Calls whose arguments decide. All other calls in NUMBERS are refused.
    checked: dict[str, Code] = {
        "clone3": [refuse(errno.ENOSYS)],
        "openat2": [refuse(errno.ENOSYS)],  # its flags are behind a pointer too
        # It could reserve gigabytes before the next check.
        "fallocate": allowed if own_files else [refuse(errno.EOPNOTSUPP)],
        "openat": allowed if own_files else check_opening(2),
        "open": allowed if own_files else check_opening(1),
        # Threads must share the table of open files, because the host counts the open files of the process.
        "close_range": allow_without_bits(2, OWN_TABLE),
        "clone": allow_with_bits(0, CLONE_THREAD, CLONE_FILES),
        "kill": allow_only(0, [own_pid]),
        "tgkill": allow_only(0, [own_pid]),
        "prlimit64": allow_only(0, [0, own_pid]),
        "prctl": allow_only(0, PR_NAMES),
        "socketpair": allow_only(0, [AF_UNIX]),
        "fcntl": allow_all_but(1, FCNTL_REFUSED),
        "ioctl": allow_only(1, IOCTL_ALLOWED, errno.ENOTTY),
        "arch_prctl": allow_all_but(
            0, [ARCH_CPUID]
        ),  # the C library sets thread-local storage with it; turning off cpuid is refused
    }
    code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (JUMP_ABOVE, 0, 1, X32_BIT if machine == "x86_64" else 0x7FFFFFFF),
        (RETURN, 0, 0, KILL),
    ]
    for name, number in numbers.items():
        if name not in checked and name not in harmless:
            code += [(JUMP_EQUAL, 0, 1, number), refuse(0 if name in pretended else errno.EPERM)]
    for name, rest in checked.items():
        if name in numbers:  # `rest` ends in a return
            code += [(JUMP_EQUAL, 0, len(rest), numbers[name]), *rest]
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def refuse(reason: int = errno.EPERM) -> Instruction:
    return (RETURN, 0, 0, ERROR | reason)


def allow_only(index: int, values: Iterable[int], reason: int = errno.EPERM) -> Code:
    tests = [step for value in values for step in ((JUMP_EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW))]
    return [(LOAD, 0, 0, locate_argument(index)), *tests, refuse(reason)]


def allow_all_but(index: int, values: Iterable[int]) -> Code:
    tests = [step for value in values for step in ((JUMP_EQUAL, 0, 1, value), refuse())]
    return [(LOAD, 0, 0, locate_argument(index)), *tests, (RETURN, 0, 0, ALLOW)]


def allow_with_bits(index: int, first: int, second: int) -> Code:
    tests = [(JUMP_BITS, 0, 2, first), (JUMP_BITS, 0, 1, second)]
    return [(LOAD, 0, 0, locate_argument(index)), *tests, (RETURN, 0, 0, ALLOW), refuse()]


def allow_without_bits(index: int, bits: int) -> Code:
    return [(LOAD, 0, 0, locate_argument(index)), (JUMP_BITS, 0, 1, bits), refuse(errno.EOPNOTSUPP), (RETURN, 0, 0, ALLOW)]


def check_opening(index: int) -> Code:
    """Refuse unnamed files, and truncating a file without the right to write, which Landlock before version 3 allows."""
    return [
        (LOAD, 0, 0, locate_argument(index)),
        (JUMP_BITS, 0, 1, UNNAMED_FILE),
        refuse(errno.EOPNOTSUPP),
        (JUMP_BITS, 0, 2, EMPTY_FILE),
        (JUMP_BITS, 1, 0, WRITING),
        refuse(errno.EACCES),
        (RETURN, 0, 0, ALLOW),
    ]
