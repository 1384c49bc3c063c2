"""Programs that reach for the host: its files, its processes, its kernel, its network, its secrets.

What they write carries the run's marker or lies in the canary folder; devices and tables of the host are opened, never written.
Signals to processes outside are ones that a process ignores unless it asks for them; the harness asks.
"""

from __future__ import annotations

from hostile.programs import RAW, SOLVE, Ask, HostileProgram

ONE = (SOLVE[0],)


def _program(category: str, name: str, source: str, aims_at: str, calls: tuple[Ask, ...] = ONE) -> HostileProgram:
    return HostileProgram(name, category, source, calls=calls, aims_at=aims_at)


def _call(*lines: str) -> str:
    return "def solve(x):\n" + "".join(f"    {line}\n" for line in lines) + "    return 1\n"


def _attempts(*lines: str) -> str:
    """Each line on its own: the refusal of one does not spare the jail the next."""
    return _call(
        f"for attempt in {lines!r}:",
        "    try:",
        "        exec(attempt)",
        "    except Exception as error:",
        "        print(attempt[:40], '->', error)",
    )


ESCAPES = [
    _program(
        "escape",
        "ptrace",
        RAW
        + _call(
            "for process in {@HOST_PID@, os.getppid(), 1}:",
            "    refused('ptrace', 16, process, 0, 0)",
            "    refused('ptrace', 0x4206, process, 0, 0)",
        ),
        "control over the host process",
    ),
    _program(
        "escape",
        "memory_of_others",
        RAW
        + _call(
            "area = ctypes.create_string_buffer(64)",
            "local = (ctypes.c_uint64 * 2)(ctypes.addressof(area), 64)",
            "start = 0",
            "for process in {@HOST_PID@, os.getppid(), 1} - {os.getpid()}:",
            "    try:",
            "        start = int(open(f'/proc/{process}/maps').readline().split('-')[0], 16)",
            "        breach(f'read the maps of {process}')",
            "    except (OSError, ValueError):",
            "        start = 0x400000",
            "    remote = (ctypes.c_uint64 * 2)(start, 64)",
            "    for name in ('process_vm_readv', 'process_vm_writev'):",
            "        result, error = syscall(name, process, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)",
            "        if result > 0 or (result < 0 and error == errno.EFAULT):",
            "            breach(f'{name} of {process} got as far as its memory')",
            "    try:",
            "        os.open(f'/proc/{process}/mem', os.O_RDWR)",
            "        breach(f'opened the memory of {process}')",
            "    except OSError:",
            "        pass",
        ),
        "the memory of the host process",
    ),
    _program(
        "escape",
        "root_of_others",
        "import os\n"
        + _call(
            "for process in {1, @HOST_PID@, os.getppid()} - {os.getpid()}:",
            "    for place in ('root', 'cwd'):",
            "        base = f'/proc/{process}/{place}'",
            "        try:",
            "            open(base + '@CANARY@/through_proc', 'w').close()",
            "        except OSError:",
            "            pass",
            "        try:",
            "            print(open(base + '@SECRET_FILE@').read())",
            "        except OSError:",
            "            pass",
        ),
        "the host's files by way of /proc",
    ),
    _program(
        "escape",
        "chroot_and_back",
        RAW
        + _call(
            "os.mkdir('cell')",
            "result, error = refused('chroot', b'cell')",
            "for _ in range(60):",
            "    os.chdir('..')",
            "syscall('chroot', b'.')",
            "open('@CANARY@/chroot', 'w').close()",
        ),
        "the folder above the root",
    ),
    _program(
        "escape",
        "mounts",
        RAW
        + _call(
            "os.makedirs('here', exist_ok=True)",
            "refused('mount', b'none', b'here', b'tmpfs', 0, None)",
            "refused('mount', b'/', b'here', None, 4096, None)",
            "refused('mount', b'none', b'here', b'proc', 0, None)",
            "refused('mount', b'none', b'/', None, 32 | 4096, None)",
            "refused('mount', b'none', b'@CANARY@', b'tmpfs', 0, None)",
            "refused('fsopen', b'tmpfs', 0)",
            "refused('open_tree', -100, b'/', 1)",
            "refused('umount2', b'here', 2)",
        ),
        "file systems of its choice",
    ),
    _program(
        "escape",
        "unshare",
        RAW
        + _call(
            "for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80):",
            "    refused('unshare', flag)",
            "refused('unshare', 0x10000000 | 0x00020000 | 0x20000000)",
        ),
        "rights inside new namespaces",
    ),
    _program(
        "escape",
        "enter_namespaces",
        RAW
        + _call(
            "for process in {1, @HOST_PID@, os.getppid()}:",
            "    for kind in ('user', 'mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup'):",
            "        try:",
            "            descriptor = os.open(f'/proc/{process}/ns/{kind}', os.O_RDONLY)",
            "        except OSError:",
            "            continue",
            "        refused('setns', descriptor, 0)",
            "    descriptor, error = syscall('pidfd_open', process, 0)",
            "    if descriptor >= 0:",
            "        refused('setns', descriptor, 0x20000)",
        ),
        "the namespaces of the host",
    ),
    _program(
        "escape",
        "pivot_root",
        RAW + _call("os.makedirs('new/old')", "refused('pivot_root', b'new', b'new/old')", "refused('pivot_root', b'.', b'.')"),
        "another root",
    ),
    _program(
        "escape",
        "open_by_handle",
        RAW
        + _call(
            "handle = ctypes.create_string_buffer(8 + 128)",
            "mount = ctypes.c_int()",
            "for path in (b'.', b'/', b'/proc', b'/usr', b'/etc', b'@CANARY@'):",
            "    ctypes.c_uint.from_buffer(handle).value = 128",
            "    result, error = syscall('name_to_handle_at', -100, path, handle, ctypes.byref(mount), 0)",
            "    if result == 0:",
            "        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)",
            "        refused('open_by_handle_at', folder, handle, 0)",
            "    # The root of ext4 is inode 2: a handle made by hand.",
            "    ctypes.memmove(handle, (8).to_bytes(4, 'little') + (1).to_bytes(4, 'little') + (2).to_bytes(8, 'little'), 16)",
            "    try:",
            "        refused('open_by_handle_at', os.open(path, os.O_RDONLY), handle, 0)",
            "    except OSError:",
            "        pass",
        ),
        "files by their number",
    ),
    _program(
        "escape",
        "links_out_of_the_scratch",
        "import os\n"
        + _attempts(
            "os.symlink('@CANARY@', 'way'); open('way/by_link', 'w').close()",
            "os.symlink('@CANARY@/precious', 'file'); open('file', 'a').write('x')",
            "os.symlink('@SECRET_FILE@', 'secret'); print(open('secret').read())",
            "os.symlink('/proc/self/root@CANARY@', 'loop'); open('loop/by_loop', 'w').close()",
            "os.rename('@CANARY@/precious', 'precious')",
            "os.rename('way', '@CANARY@/way')",
            "os.link('@CANARY@/precious', 'mine'); open('mine', 'a').write('x')",
            "open('../' * 30 + '@CANARY@/by_dots', 'w').close()",
            "os.open('by_path', os.O_CREAT | os.O_WRONLY, dir_fd=os.open('@CANARY@', os.O_PATH))",
            "os.chdir('@CANARY@'); open('by_cwd', 'w').close()",
        ),
        "files of the host by way of the scratch folder",
    ),
    _program(
        "escape",
        "canary_by_every_call",
        RAW
        + _attempts(
            "open('@CANARY@/created', 'w').close()",
            "open('@CANARY@/precious', 'a').write('x')",
            "os.truncate('@CANARY@/precious', 0)",
            "os.unlink('@CANARY@/precious')",
            "os.rename('@CANARY@/precious', '@CANARY@/moved')",
            "os.rmdir('@CANARY@/inner')",
            "os.mkdir('@CANARY@/made')",
            "os.mkfifo('@CANARY@/fifo')",
            "os.symlink('x', '@CANARY@/symlink')",
            "os.link('@CANARY@/precious', '@CANARY@/link')",
            "os.mknod('@CANARY@/node')",
            "import socket; socket.socket(socket.AF_UNIX).bind('@CANARY@/bound')",
        ),
        "a folder of the host that everyone may write to",
    ),
    _program(
        "escape",
        "canary_metadata",
        RAW
        + _attempts(
            "os.chmod('@CANARY@/precious', 0o600)",
            "os.chmod('@CANARY@', 0o700)",
            "os.utime('@CANARY@/precious', (1, 1))",
            "os.chown('@CANARY@/precious', 65534, 65534)",
            "os.chown('@CANARY@/precious', os.getuid(), os.getgid())",
            "os.setxattr('@CANARY@/precious', 'user.mark', b'x')",
            "os.chmod('@CANARY@/inner', 0)",
            "os.utime('@CANARY@/inner', (1, 1))",
        ),
        "what path rules do not cover: modes, times, owners, attributes",
    ),
    _program(
        "escape",
        "metadata_of_the_system",
        RAW
        + _call(
            "for path in ('/', '/usr', '/etc', '/etc/passwd', sys.prefix, os.path.dirname(os.__file__), sys.executable, '@TRAINER@', '/tmp'):",
            "    if os.path.realpath('.').startswith(path.rstrip('/') + '/') or os.path.realpath('.') == path:",
            "        continue  # the jail's own",
            "    try:",
            "        state = os.stat(path)",
            "        # To set what is set already is harmless, and a change that is really made moves the time of the last one.",
            "        os.chmod(path, state.st_mode & 0o7777)",
            "        if os.stat(path).st_ctime_ns != state.st_ctime_ns:",
            "            breach(f'chmod of {path}')",
            "    except OSError:",
            "        pass",
        ),
        "modes and times of the host's folders",
    ),
    _program(
        "escape",
        "system_folders",
        "import os, sys\n"
        + _call(
            "folders = {'/', '/usr', '/usr/bin', '/usr/lib', '/usr/local/bin', '/etc', '/bin', '/lib', '/var', '/opt', '/root', '/home', '/mnt', '/srv', '/boot'}",
            "folders |= {os.path.dirname(sys.executable), os.path.dirname(os.__file__), sys.prefix, sys.base_prefix, '@TRAINER@', '@HOME@', *sys.path}",
            "for folder in folders:",
            "    for place in (folder, os.path.join(folder, '__pycache__')):",
            "        path = os.path.join(place, '@MARKER@')",
            "        try:",
            "            open(path, 'x').close()",
            "        except OSError:",
            "            continue",
            "        print('wrote', path)",
        ),
        "the system, the interpreter and the trainer",
    ),
    _program(
        "escape",
        "interpreter_files",
        "import os, sys\n"
        + _call(
            "for path in ('/proc/self/exe', sys.executable, os.__file__, os.__cached__, '/etc/passwd', '/etc/hosts', '/usr/bin/env', '/bin/sh',",
            "             '/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/sys/kernel/uevent_helper',",
            "             '/sys/power/state', '/dev/mem', '/dev/kmem', '/dev/port', '/dev/vda', '/dev/sda', '/dev/nvme0n1', '/dev/kvm', '/dev/fuse',",
            "             '/dev/uinput', '/dev/loop-control', '/dev/console', '/dev/tty0', '/dev/rtc0', '/dev/kmsg', '/sys/fs/cgroup/cgroup.procs',",
            "             '/sys/fs/cgroup/memory/tasks', '/sys/fs/cgroup/pids/tasks'):",
            "    try:",
            "        os.close(os.open(path, os.O_WRONLY))",
            "        print('BREACH opened for writing:', path)",
            "    except OSError:",
            "        pass",
        ),
        "files of the system, open for writing",
    ),
    _program(
        "escape",
        "folders_of_memory",
        "import os\n"
        + _call(
            "for folder in ('/dev/shm', '/run', '/run/lock', '/var/tmp', '/tmp', '/dev/mqueue', '/dev/hugepages', '/run/user/0', '/var/lock'):",
            "    try:",
            "        open(os.path.join(folder, '@MARKER@'), 'x').write('left here')",
            "    except OSError:",
            "        pass",
        ),
        "folders that everyone may write to",
    ),
    _program(
        "escape",
        "control_groups",
        "import glob, os\n"
        + _call(
            "for folder in ['/sys/fs/cgroup'] + glob.glob('/sys/fs/cgroup/*') + ['/proc/self/cgroup']:",
            "    try:",
            "        os.mkdir(os.path.join(folder, '@MARKER@'))",
            "        print('BREACH made a control group in', folder)",
            "    except OSError:",
            "        pass",
        ),
        "limits of the host",
    ),
    _program(
        "escape",
        "io_uring",
        RAW + _call("area = (ctypes.c_uint32 * 64)()", "refused('io_uring_setup', 8, ctypes.byref(area))"),
        "system calls past the filter",
    ),
    _program(
        "escape",
        "bpf",
        RAW + _call("block = (ctypes.c_uint32 * 32)(2, 4, 4, 4)", "refused('bpf', 0, ctypes.byref(block), 72)"),
        "the kernel",
    ),
    _program(
        "escape",
        "perf_events",
        RAW
        + _call(
            "block = (ctypes.c_uint32 * 32)(1, 112)",
            "for process in (0, -1, @HOST_PID@):",
            "    refused('perf_event_open', ctypes.byref(block), process, -1 if process >= 0 else 0, -1, 0)",
        ),
        "the kernel, and what others do",
    ),
    _program("escape", "userfaultfd", RAW + _call("refused('userfaultfd', 0)", "refused('userfaultfd', 1)"), "the kernel"),
    _program(
        "escape",
        "keyrings",
        RAW
        + _call(
            "refused('add_key', b'user', b'@MARKER@', b'x', 1, -4)",
            "refused('keyctl', 0, -3, 0)",
            "refused('keyctl', 1, None)",
            "refused('request_key', b'user', b'@MARKER@', None, -4)",
        ),
        "keys of the host's user, and memory that stays",
    ),
    _program(
        "escape",
        "kernel_modules",
        RAW
        + _call(
            "for name, wrong in (('init_module', (0, 0, b'')), ('finit_module', (-1, b'', 0)), ('delete_module', (b'@MARKER@', 0)),",
            "                    ('kexec_load', (0, 0, 0, 0xFFFF)), ('kexec_file_load', (-1, -1, 0, b'', 0xFFFF)), ('reboot', (0, 0, 0, 0)),",
            "                    ('acct', (b'/no/such/file',)), ('swapon', (b'/no/such/file', 0)), ('settimeofday', (None, b'\\xff' * 8))):",
            "    result, error = syscall(name, *wrong)",
            "    if result >= 0 or error not in (errno.EPERM, errno.ENOSYS, errno.EACCES):",
            "        breach(f'{name} was not refused at the door: errno {error}')",
        ),
        "the kernel itself",
    ),
    _program(
        "escape",
        "signals_to_everyone",
        RAW
        + _call(
            "for number in (signal.SIGWINCH, signal.SIGURG):",
            "    for target in (-1, @HOST_PID@, -@HOST_PID@, os.getppid()):",
            "        if target in (0, 1):",
            "            continue",
            "        try:",
            "            os.kill(target, number)",
            "        except OSError:",
            "            pass",
            "    syscall('tgkill', @HOST_PID@, @HOST_PID@, int(number))",
            "    syscall('tkill', @HOST_PID@, int(number))",
            "    syscall('rt_sigqueueinfo', @HOST_PID@, int(number), ctypes.create_string_buffer(128))",
            "    descriptor, error = syscall('pidfd_open', @HOST_PID@, 0)",
            "    if descriptor >= 0:",
            "        syscall('pidfd_send_signal', descriptor, int(number), None, 0)",
            "        if syscall('pidfd_getfd', descriptor, 1, 0)[0] >= 0:",
            "            breach('took a descriptor of the host')",
        ),
        "processes of the host",
    ),
    _program(
        "escape",
        "signals_by_a_descriptor",
        RAW
        + "import fcntl, socket\n"
        + _call(
            "left, right = socket.socketpair()",
            "for number in (signal.SIGWINCH, signal.SIGURG):",
            "    try:",
            "        fcntl.fcntl(left, fcntl.F_SETOWN, @HOST_PID@)",
            "        fcntl.fcntl(left, 10, int(number))",
            "        fcntl.fcntl(left, fcntl.F_SETFL, fcntl.fcntl(left, fcntl.F_GETFL) | os.O_ASYNC)",
            "    except OSError:",
            "        pass",
            "    right.send(b'x')",
            "    left.recv(1)",
        ),
        "a signal to the host that the kernel sends (F_SETOWN)",
    ),
    _program(
        "escape",
        "killed_supervisor",
        RAW
        + _call(
            "for target in {os.getppid(), 1, 2, 3} - {os.getpid(), @HOST_PID@, 0}:",
            "    # Small numbers are processes of the jail only where it has numbers of its own.",
            "    if target > 1 and (target == os.getppid() or os.getpid() < 50):",
            "        try:",
            "            os.kill(target, signal.SIGKILL)",
            "        except OSError:",
            "            pass",
            "time.sleep(0.2)",
        ),
        "whoever counts the limits inside the jail",
    ),
    _program(
        "escape",
        "limits_of_others",
        RAW
        + _call(
            "pair = (ctypes.c_uint64 * 2)()",
            "for process in {@HOST_PID@, os.getppid()} - {0, 1, os.getpid()}:",
            "    refused('prlimit64', process, 4, None, ctypes.byref(pair))",
            "    for what, call in (('priority', lambda: os.setpriority(os.PRIO_PROCESS, process, 19)),",
            "                       ('processors', lambda: os.sched_setaffinity(process, {0})),",
            "                       ('policy', lambda: os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0)))):",
            "        try:",
            "            call()",
            "            breach(f'changed the {what} of {process}')",
            "        except OSError:",
            "            pass",
            "    syscall('ioprio_set', 1, process, (3 << 13))",
        ),
        "the host process, slowed down",
    ),
    _program(
        "escape",
        "looks_at_the_host",
        RAW
        + _call(
            "pointer, length = ctypes.c_uint64(), ctypes.c_uint64()",
            "for process in {@HOST_PID@, os.getppid()} - {0, 1, os.getpid()}:",
            "    refused('kcmp', process, os.getpid(), 1, 0, 0)",
            "    refused('get_robust_list', process, ctypes.byref(pointer), ctypes.byref(length))",
            "    refused('move_pages', process, 0, None, None, None, 0)",
            "    for name in ('environ', 'fd', 'io', 'syscall', 'stack', 'auxv', 'pagemap', 'map_files', 'fdinfo'):",
            "        try:",
            "            path = f'/proc/{process}/{name}'",
            "            os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(100)",
            "            breach(f'read {path}')",
            "        except OSError:",
            "            pass",
        ),
        "the inside of the host process",
    ),
    _program(
        "escape",
        "int80",
        RAW
        + "import mmap\n"
        + _call(
            "if platform.machine() != 'x86_64':",
            "    return 'not this machine'",
            "libc.mmap.restype = ctypes.c_void_p",
            "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]",
            "address = libc.mmap(None, 4096, 7, 0x22 | 0x40, -1, 0)",
            "if address in (None, 2 ** 64 - 1):",
            "    return 'no memory to run code in'",
            "path = b'@CANARY@/by_int80\\0'",
            "ctypes.memmove(address + 1024, path, len(path))",
            "# push rbx; mov eax, creat; mov ebx, path; mov ecx, 0644; int 0x80; movsxd rax, eax; pop rbx; ret",
            "code = bytes([0x53, 0xB8, 8, 0, 0, 0, 0xBB]) + (address + 1024).to_bytes(4, 'little') + bytes([0xB9, 0xA4, 1, 0, 0, 0xCD, 0x80])",
            "code += bytes([0x48, 0x63, 0xC0, 0x5B, 0xC3])",
            "ctypes.memmove(address, code, len(code))",
            "result = ctypes.CFUNCTYPE(ctypes.c_long)(address)()",
            "print('creat by int 0x80:', result)",
            "# The same with socket(AF_INET, SOCK_STREAM): number 359 of the old table.",
            "code = bytes([0x53, 0xB8, 0x67, 1, 0, 0, 0xBB, 2, 0, 0, 0, 0xB9, 1, 0, 0, 0, 0xBA, 0, 0, 0, 0, 0xCD, 0x80, 0x48, 0x63, 0xC0, 0x5B, 0xC3])",
            "ctypes.memmove(address, code, len(code))",
            "result = ctypes.CFUNCTYPE(ctypes.c_long)(address)()",
            "if result >= 0:",
            "    breach('a socket by int 0x80')",
        ),
        "system calls under their 32-bit numbers, past the filter",
    ),
    _program(
        "escape",
        "x32_calls",
        RAW
        + _call(
            "if platform.machine() != 'x86_64':",
            "    return 'not this machine'",
            "for number, arguments in ((0x40000000 | 41, (2, 1, 0)), (0x40000000 | 272, (0x10000000,)), (0x40000000 | 57, ())):",
            "    ctypes.set_errno(0)",
            "    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(value) for value in arguments])",
            "    if result == 0 and number & 0xFF == 57:",
            "        os._exit(0)",
            "    if result >= 0:",
            "        breach(f'x32 call {number:#x}')",
        ),
        "system calls under their x32 numbers, past the filter",
    ),
    _program(
        "escape",
        "personality",
        RAW
        + _call(
            "syscall('personality', 0x0400000 | 0x0040000)", "syscall('personality', 8)", "syscall('personality', 0xFFFFFFFF)"
        ),
        "an execution domain without protections",
    ),
    _program(
        "escape",
        "typed_into_the_terminal",
        RAW
        + "import fcntl, pty\n"
        + _call(
            "targets = [0, 1, 2]",
            "for path in ('/dev/tty', '/dev/console', '/dev/pts/0', '/dev/pts/1', '/dev/tty1'):",
            "    try:",
            "        targets.append(os.open(path, os.O_RDWR | os.O_NOCTTY))",
            "    except OSError:",
            "        pass",
            "for descriptor in targets:",
            "    for request in (0x5412, 0x541C):",
            "        try:",
            "            fcntl.ioctl(descriptor, request, b'#')",
            "            breach(f'typed into the terminal behind descriptor {descriptor}')",
            "        except OSError:",
            "            pass",
        ),
        "the terminal of whoever started the trainer (TIOCSTI, TIOCLINUX)",
    ),
    _program(
        "escape",
        "device_nodes",
        RAW
        + _call(
            "import stat",
            "for name, major, minor in (('disk', 254, 0), ('disk2', 8, 0), ('memory', 1, 1), ('kernel', 1, 11), ('fuse', 10, 229)):",
            "    for kind in (stat.S_IFBLK, stat.S_IFCHR):",
            "        try:",
            "            os.mknod(name, kind | 0o666, os.makedev(major, minor))",
            "            breach(f'made a device {name}')",
            "        except OSError:",
            "            pass",
        ),
        "the disk as a device",
    ),
    _program(
        "escape",
        "capabilities",
        RAW
        + _call(
            "held = (ctypes.c_uint32 * 6)()",
            "if libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) == 0 and any(held):",
            "    breach(f'capabilities {list(held)}')",
            "syscall('capset', (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6))",
            "if libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) == 0 and any(held):",
            "    breach(f'capabilities taken back: {list(held)}')",
            "if os.getuid() == 0:",
            "    breach('runs as root')",
            "for change in (os.setuid, os.setgid, os.seteuid, os.setegid):",
            "    try:",
            "        change(0)",
            "        breach('became root')",
            "    except OSError:",
            "        pass",
            "if 0 in os.getgroups():",
            "    breach('in the group of root')",
        ),
        "rights of root",
    ),
    _program(
        "escape",
        "out_of_memory_score",
        "import os\n"
        + _call(
            "for process in ('self', '@HOST_PID@', str(os.getppid())):",
            "    try:",
            "        before = int(open(f'/proc/{process}/oom_score_adj').read())",
            "        for value in (-1000, before - 1):",
            "            with open(f'/proc/{process}/oom_score_adj', 'w') as file:",
            "                file.write(str(value))",
            "            print('BREACH lowered the score of', process)",
            "    except (OSError, ValueError):",
            "        pass",
        ),
        "the kernel's choice of whom to kill",
    ),
    _program(
        "escape",
        "undone_filter",
        RAW
        + _call(
            "libc.prctl(38, 0, 0, 0, 0)",
            "libc.prctl(22, 0, 0, 0, 0)",
            "listener, error = syscall('seccomp', 1, 8, (ctypes.c_uint64 * 2)(1, 0))",
            "for name in ('landlock_create_ruleset', 'fanotify_init'):",
            "    print(name, syscall(name, 0, 0, 1))",
            "open('@CANARY@/undone', 'w').close()",
        ),
        "the jail's own rules",
    ),
    _program(
        "escape",
        "watch_the_host",
        RAW
        + _call(
            "watch = libc.inotify_init()",
            "if watch >= 0 and libc.inotify_add_watch(watch, b'@CANARY@', 0xFFF) >= 0:",
            "    breach('watches the canary folder')",
            "refused('fanotify_init', 0, 0)",
        ),
        "what happens in the host's folders",
    ),
    _program(
        "escape",
        "memory_of_itself",
        RAW
        + _call(
            "with open('/proc/self/mem', 'r+b', buffering=0) as memory:",
            "    memory.seek(id(1) + 24)",
            "    memory.write(memory.read(0))",
            "for line in open('/proc/self/maps'):",
            "    if 'rw-s' in line and '/' in line:",
            "        print('shared with a file:', line.strip())",
        ),
        "shared mappings that reach the host",
    ),
    _program(
        "escape",
        "native_library",
        RAW
        + _call(
            "for name in ('evil.so', '/tmp/evil.so', '/dev/shm/evil.so'):",
            "    try:",
            "        with open(name, 'wb') as file:",
            "            file.write(open(sys.modules['_ctypes'].__file__, 'rb').read())",
            "        ctypes.CDLL(os.path.abspath(name))",
            "    except (OSError, AttributeError):",
            "        pass",
            "os.environ['LD_PRELOAD'] = os.path.abspath('evil.so')",
            "syscall('execveat', -100, b'/bin/true', (ctypes.c_char_p * 2)(b'true', None), (ctypes.c_char_p * 2)(b'LD_PRELOAD=./evil.so', None), 0)",
        ),
        "code of its own in native form",
    ),
]

NETWORK = [
    _program(
        "network",
        "tcp",
        "import socket\n"
        + _attempts(
            "socket.create_connection(('127.0.0.1', @PORT@), timeout=0.5).send(b'tcp')",
            "socket.create_connection(('localhost', @PORT@), timeout=0.5).send(b'tcp')",
            "socket.create_connection(('0.0.0.0', @PORT@), timeout=0.5).send(b'tcp')",
        ),
        "a service on this machine",
    ),
    _program(
        "network",
        "tcp_version_six",
        "import socket\n"
        + _attempts(
            "s = socket.socket(socket.AF_INET6); s.settimeout(0.5); s.connect(('::1', @PORT@)); s.send(b'six')",
            "s = socket.socket(socket.AF_INET6); s.settimeout(0.5); s.connect(('::ffff:127.0.0.1', @PORT@)); s.send(b'six')",
        ),
        "a service on this machine",
    ),
    _program(
        "network",
        "tcp_fast_open",
        "import socket\n"
        + _attempts(
            "s = socket.socket(); s.settimeout(0.5); s.sendto(b'fast', 0x20000000, ('127.0.0.1', @PORT@))",
            "s = socket.socket(); s.setsockopt(6, 30, 1); s.settimeout(0.5); s.connect(('127.0.0.1', @PORT@)); s.send(b'fast')",
        ),
        "a connection without connect",
    ),
    _program(
        "network",
        "multipath_tcp",
        "import socket\n"
        + _attempts(
            "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.settimeout(0.5); s.connect(('127.0.0.1', @PORT@)); s.send(b'multi')",
            "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132); s.settimeout(0.5); s.connect(('127.0.0.1', @PORT@))",
        ),
        "protocols beside TCP",
    ),
    _program(
        "network",
        "udp",
        "import socket\n"
        + _attempts(
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'udp', ('127.0.0.1', @UDP_PORT@))",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136).sendto(b'udp', ('127.0.0.1', @UDP_PORT@))",
        ),
        "a service on this machine",
    ),
    _program(
        "network",
        "abstract_socket",
        "import socket\n"
        + _attempts(
            "s = socket.socket(socket.AF_UNIX); s.connect('\\0@ABSTRACT@'); s.send(b'abstract')",
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'abstract', '\\0@ABSTRACT_DATAGRAM@')",
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('\\0@ABSTRACT@')",
        ),
        "services without a file",
    ),
    _program(
        "network",
        "named_socket",
        "import os, socket\n"
        + _attempts(
            "s = socket.socket(socket.AF_UNIX); s.connect('@UNIX_PATH@'); s.send(b'named')",
            "os.symlink('@UNIX_PATH@', 'door'); s = socket.socket(socket.AF_UNIX); s.connect('door'); s.send(b'named')",
            "os.chdir(os.path.dirname('@UNIX_PATH@')); s = socket.socket(socket.AF_UNIX); s.connect(os.path.basename('@UNIX_PATH@'))",
        ),
        "services behind a file",
    ),
    _program(
        "network",
        "system_services",
        "import socket\n"
        + _call(
            "for path in ('/run/dbus/system_bus_socket', '/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock',",
            "             '/run/systemd/private', '/run/systemd/notify', '/dev/log', '/tmp/.X11-unix/X0', '/run/udev/control', '/run/nscd/socket'):",
            "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):",
            "        try:",
            "            socket.socket(socket.AF_UNIX, kind).connect(path)",
            "            print('BREACH connected to', path)",
            "        except OSError:",
            "            pass",
        ),
        "the services of the system",
    ),
    _program(
        "network",
        "netlink",
        "import socket\n"
        + _call(
            "for protocol in range(32):",
            "    try:",
            "        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)",
            "        s.bind((0, 0))",
            "        print('BREACH netlink', protocol)",
            "    except OSError:",
            "        pass",
        ),
        "the tables of the network",
    ),
    _program(
        "network",
        "raw_sockets",
        "import socket\n"
        + _call(
            "for family, kind, protocol in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 3), (17, 2, 0x300), (2, 2, 1), (40, 1, 0), (38, 5, 0), (29, 3, 1), (31, 3, 0), (16, 3, 9)):",
            "    try:",
            "        socket.socket(family, kind, protocol)",
            "        print('BREACH a socket of family', family, 'and kind', kind)",
            "    except OSError:",
            "        pass",
        ),
        "packets of its own making, and rare families of the kernel",
    ),
    _program(
        "network",
        "names",
        "import socket\n"
        + _call(
            "for name in ('example.com', 'localhost.localdomain', 'metadata.google.internal'):",
            "    try:",
            "        print('BREACH resolved', socket.getaddrinfo(name, 80)[0][4]) if name == 'example.com' else socket.getaddrinfo(name, 80)",
            "    except OSError:",
            "        pass",
        ),
        "names, by asking a server",
    ),
    _program(
        "network",
        "web",
        "import urllib.request\n"
        + _call(
            "for address in ('http://127.0.0.1:@PORT@/', 'http://169.254.169.254/latest/meta-data/', 'http://1.1.1.1/', 'ftp://127.0.0.1:@PORT@/x'):",
            "    try:",
            "        urllib.request.urlopen(address, timeout=0.3)",
            "        print('BREACH an answer from', address)",
            "    except Exception:",
            "        pass",
        ),
        "the web, and the cloud's own service",
    ),
    _program(
        "network",
        "a_service_of_its_own",
        "import socket, time\n"
        + _call(
            "kept = []",
            "for family, address in ((socket.AF_INET, ('127.0.0.1', 0)), (socket.AF_INET, ('0.0.0.0', 0)), (socket.AF_INET6, ('::', 0))):",
            "    try:",
            "        s = socket.socket(family)",
            "        s.bind(address)",
            "        s.listen()",
            "        kept.append(s.getsockname()[1])",
            "    except OSError:",
            "        pass",
            "try:",
            "    s = socket.socket(socket.AF_UNIX)",
            "    s.bind('\\0@MARKER@')",
            "    s.listen()",
            "    client = socket.socket(socket.AF_UNIX)",
            "except OSError:",
            "    pass",
            "time.sleep(0.2)",
        ),
        "a door that the host could be led to",
    ),
]

SECRETS = [
    _program(
        "secret",
        "message_queue_of_the_host",
        RAW
        + _call(
            "area = ctypes.create_string_buffer(1024)",
            "for queue in range(64):",
            "    result, error = syscall('msgrcv', @QUEUE@ - queue, area, 1000, 0, 0o4000)",
            "    if result >= 0:",
            "        breach('took a message of the host')",
            "        print(area.raw[8:8 + result])",
            "ctypes.memmove(area, (1).to_bytes(8, 'little') + b'forged', 14)",
            "if syscall('msgsnd', @QUEUE@, area, 6, 0o4000)[0] == 0:",
            "    breach('put a message into a queue of the host')",
        ),
        "messages between processes of the host",
    ),
    _program(
        "secret",
        "environment",
        "import os\ndef solve(x):\n    print(dict(os.environ))\n    return [os.environ.get('@SECRET_NAME@', ''), open('/proc/self/environ').read()]\n",
        "variables of the trainer",
    ),
    _program(
        "secret",
        "environment_of_others",
        "import glob\n"
        + _call(
            "for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline') + ['/proc/@HOST_PID@/environ', '/proc/@HOST_PID@/cmdline']:",
            "    try:",
            "        print(path, open(path, 'rb').read()[:8000])",
            "    except OSError:",
            "        pass",
        ),
        "variables and arguments of other processes",
    ),
    _program(
        "secret",
        "command_line_of_the_host",
        "import os\n"
        + _call(
            "for process in ('@HOST_PID@', str(os.getppid())):",
            "    try:",
            "        text = open(f'/proc/{process}/cmdline').read()",
            "        if 'harness' in text or 'pytest' in text:",
            "            print('BREACH the command line of the host:', text[:60])",
            "    except OSError:",
            "        pass",
        ),
        "arguments of the trainer",
    ),
    _program(
        "secret",
        "secret_file",
        "import os\n"
        + _attempts(
            "print(open('@SECRET_FILE@').read())",
            "print(os.read(os.open('@SECRET_FILE@', os.O_RDONLY), 1000))",
            "print(open('/proc/self/root@SECRET_FILE@').read())",
            "print(os.listdir(os.path.dirname('@SECRET_FILE@')))",
            "import mmap; f = open('@SECRET_FILE@'); print(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:100])",
            "import linecache; print(linecache.getlines('@SECRET_FILE@'))",
            "exec(compile(open('@SECRET_FILE@').read(), '@SECRET_FILE@', 'exec'))",
        ),
        "a file with the answers",
    ),
    _program(
        "secret",
        "home_folder",
        "import glob, os\n"
        + _call(
            "homes = ['@HOME@', os.path.expanduser('~'), '/root', '/home']",
            "for home in homes:",
            "    for name in ('.gitconfig', '.netrc', '.ssh/id_rsa', '.ssh/authorized_keys', '.bash_history', '.aws/credentials', '.config/gh/hosts.yml',",
            "                 '.cache/huggingface/token', '.git-credentials', '.pypirc', '.docker/config.json'):",
            "        try:",
            "            text = open(os.path.join(home, name)).read()",
            "            print('BREACH read', os.path.join(home, name))",
            "            print(text[:200] if home == '@HOME@' else '')",
            "        except OSError:",
            "            pass",
        ),
        "keys and tokens",
    ),
    _program(
        "secret",
        "system_secrets",
        _call(
            "for path in ('/etc/shadow', '/etc/gshadow', '/etc/sudoers', '/etc/ssh/ssh_host_rsa_key', '/proc/kcore', '/proc/kmsg', '/proc/kallsyms',",
            "             '/dev/kmsg', '/sys/kernel/notes', '/proc/keys', '/var/log/syslog', '/var/log/auth.log', '/var/log/dpkg.log', '/boot/config'):",
            "    try:",
            "        with open(path, 'rb') as file:",
            "            data = file.read(4096)",
            "        addresses = path == '/proc/kallsyms' and not any(line[:16].strip(b'0') for line in data.splitlines()[:-1])",
            "        if data and not addresses and path not in ('/proc/keys', '/sys/kernel/notes'):",
            "            print('BREACH read', path)",
            "    except OSError:",
            "        pass",
        ),
        "secrets of the system",
    ),
    _program(
        "secret",
        "kernel_log",
        RAW
        + _call(
            "area = ctypes.create_string_buffer(4096)",
            "result, error = syscall('syslog', 3, area, 4096)",
            "if result > 0:",
            "    breach('read the log of the kernel')",
        ),
        "the log of the kernel",
    ),
    _program(
        "secret",
        "inherited_descriptors",
        "import os\n"
        + _call(
            "for descriptor in list(range(3, 1024)) + [@SECRET_FD@]:",
            "    try:",
            "        print(descriptor, os.readlink(f'/proc/self/fd/{descriptor}'))",
            "        os.set_blocking(descriptor, False)",
            "        print(os.pread(descriptor, 1000, 0))",
            "    except OSError:",
            "        pass",
        ),
        "files that the trainer has open",
    ),
    _program(
        "secret",
        "folder_of_the_trainer",
        "import os\n"
        + _call(
            "seen = 0",
            "for folder, folders, files in os.walk('@TRAINER@'):",
            "    for name in files:",
            "        try:",
            "            open(os.path.join(folder, name), 'rb').read(1)",
            "            print('BREACH read', os.path.join(folder, name))",
            "            seen += 1",
            "        except OSError:",
            "            pass",
            "        if seen > 5:",
            "            return seen",
        ),
        "the data, with its answers",
    ),
    _program(
        "secret",
        "scratch_of_other_runs",
        "import glob, os\n"
        + _call(
            "own = os.path.realpath('.')",
            "for base in ('/tmp', '/var/tmp', '/dev/shm', '/run', os.path.dirname(own)):",
            "    try:",
            "        for name in os.listdir(base):",
            "            path = os.path.join(base, name)",
            "            if os.path.realpath(path) != own and not own.startswith(os.path.realpath(path) + '/'):",
            "                try:",
            "                    inside = os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(10)",
            "                    if base != os.path.dirname(own) or 'cohort' in name:",
            "                        print('BREACH looked into', path, str(inside)[:80])",
            "                except OSError:",
            "                    pass",
            "    except OSError:",
            "        pass",
        ),
        "other programs' files",
    ),
    _program(
        "secret",
        "memory_of_the_runner",
        "import gc\ndef solve(x):\n    words = []\n    for thing in gc.get_objects():\n        if isinstance(thing, dict):\n"
        "            words += [str(value)[:200] for value in list(thing.values()) if isinstance(value, (str, bytes)) and len(value) < 5000]\n"
        "    text = '\\n'.join(words)\n    return [line for line in text.splitlines() if '@SECRET_NAME@'[:6] in line or 'canary-secret' in line][:100]\n",
        "secrets that the runner inherited",
    ),
    HostileProgram(
        "script_environment",
        "secret",
        "import os, sys\nprint(dict(os.environ), sys.argv, open('/proc/self/cmdline').read())\nprint(open('/proc/self/environ').read())\n",
        stdin="17\n",
        wanted_stdout="1\n",
        aims_at="variables of the trainer, in a script",
    ),
]
