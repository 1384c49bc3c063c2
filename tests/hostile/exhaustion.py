"""Programs that use up what they are given: time, memory, disk, output.

Each bomb stops by itself well above its limit, so that a jail with a hole in it costs a test and not the machine.
"""

from __future__ import annotations

from hostile.programs import RAW, SOLVE, Ask, HostileProgram

ONE = (SOLVE[0],)


def _program(category: str, name: str, source: str, aims_at: str, calls: tuple[Ask, ...] = ONE) -> HostileProgram:
    return HostileProgram(name, category, source, calls=calls, aims_at=aims_at)


def _call(*lines: str) -> str:
    return "def solve(x):\n" + "".join(f"    {line}\n" for line in lines)


HANGS = [
    _program("hang", "busy_loop", "def solve(x):\n    while True:\n        pass\n", "CPU time in Python"),
    _program("hang", "busy_at_load", "while True:\n    pass\n", "CPU time before any call"),
    _program("hang", "sleep", "import time\ndef solve(x):\n    time.sleep(3600)\n", "wall time without CPU time"),
    _program("hang", "sleep_at_load", "import time\ntime.sleep(3600)\n", "wall time before any call"),
    _program(
        "hang",
        "blocked_signals",
        "import signal\ndef solve(x):\n    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n    while True:\n        pass\n",
        "every signal blocked",
    ),
    _program(
        "hang",
        "ignored_signals",
        "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\ndef solve(x):\n    while True:\n        pass\n",
        "SIGTERM, SIGXCPU and the rest ignored",
    ),
    _program(
        "hang",
        "regex_backtracking",
        "import re\ndef solve(x):\n    return bool(re.match('(a+)+$', 'a' * 60 + 'b'))\n",
        "C code",
    ),
    _program(
        "hang",
        "tower_of_nines",
        "def solve(x):\n    return 9 ** 9 ** 9 % 10\n",
        "C code that holds the lock of the interpreter",
    ),
    _program("hang", "tower_at_load", "X = 9 ** (9 ** (8 + 1))\n", "the compiler's constant folding"),
    _program(
        "hang", "count_for_ever", "import itertools\ndef solve(x):\n    return sum(itertools.count())\n", "an endless C loop"
    ),
    _program(
        "hang",
        "thread_that_never_ends",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\ndef solve(x):\n    return 1\n",
        "an interpreter that waits for a thread at its end",
    ),
    _program(
        "hang",
        "many_busy_threads",
        "import threading\ndef burn():\n    while True:\n        sum(range(10_000))\nfor _ in range(16):\n"
        "    threading.Thread(target=burn, daemon=True).start()\ndef solve(x):\n    burn()\n",
        "CPU time spread over threads",
    ),
    _program(
        "hang", "waiting_for_input", "import sys\ndef solve(x):\n    return input() + sys.stdin.read()\n", "a read that blocks"
    ),
    _program(
        "hang",
        "reading_every_descriptor",
        "import os, threading\ndef take(descriptor):\n    while True:\n        os.read(descriptor, 1)\n"
        "def solve(x):\n    for descriptor in range(256):\n        threading.Thread(target=take, args=(descriptor,)).start()\n"
        "    threading.Event().wait()\n",
        "a read that blocks, on the pipes of the runner",
    ),
    _program(
        "hang",
        "deadlock",
        "import threading\ndef solve(x):\n    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()\n",
        "a lock that is never free",
    ),
    _program(
        "hang", "at_exit", "import atexit, time\natexit.register(time.sleep, 3600)\ndef solve(x):\n    return 1\n", "the end"
    ),
    _program(
        "hang",
        "in_destructor",
        "import time\nclass Slow:\n    def __del__(self):\n        while True:\n            time.sleep(1)\n"
        "kept = Slow()\ndef solve(x):\n    Slow()\n    return 1\n",
        "a destructor that does not return",
    ),
    _program(
        "hang",
        "in_the_text_of_an_exception",
        "class Slow(Exception):\n    def __str__(self):\n        while True:\n            pass\n    __repr__ = __str__\n"
        "def solve(x):\n    raise Slow\n",
        "the runner's description of an error",
    ),
    _program(
        "hang",
        "in_the_items_of_a_dict",
        "import time\nclass Slow(dict):\n    def items(self):\n        time.sleep(3600)\n    keys = values = __iter__ = __len__ = items\n"
        "def solve(x):\n    return Slow(a=1)\n",
        "the runner's look at a value",
    ),
    _program(
        "hang",
        "swallowed_exceptions",
        "def solve(x):\n    while True:\n        try:\n            while True:\n                pass\n        except BaseException:\n            pass\n",
        "an exception that was meant to end it",
    ),
    _program(
        "hang", "stopped", "import os, signal\ndef solve(x):\n    os.kill(os.getpid(), signal.SIGSTOP)\n", "a stopped process"
    ),
    _program(
        "hang",
        "stopped_parent",
        "import os, signal, time\ndef solve(x):\n    parent = os.getppid()\n    if parent > 1 and parent != @HOST_PID@:\n"
        "        try:\n            os.kill(parent, signal.SIGSTOP)\n        except OSError:\n            pass\n    time.sleep(3600)\n",
        "whoever watches the program from inside the jail",
    ),
    _program(
        "hang",
        "slow_output",
        "import time\ndef solve(x):\n    while True:\n        print('.', end='', flush=True)\n        time.sleep(0.02)\n",
        "a limit on silence instead of on time",
    ),
    _program(
        "hang",
        "slow_frames",
        "import os, time\ndef solve(x):\n    while True:\n        for descriptor in range(3, 64):\n            try:\n"
        "                os.write(descriptor, b' ')\n            except OSError:\n                pass\n        time.sleep(0.02)\n",
        "a limit on silence on the value pipe",
    ),
    _program(
        "hang",
        "closed_and_asleep",
        "import os, time\ndef solve(x):\n    os.closerange(0, 4096)\n    time.sleep(3600)\n",
        "a host that waits for the process after its pipes ended",
    ),
    _program(
        "hang",
        "realtime_priority",
        "import os\ndef solve(x):\n    for policy in (os.SCHED_FIFO, os.SCHED_RR):\n        try:\n"
        "            os.sched_setscheduler(0, policy, os.sched_param(10))\n            print('BREACH realtime priority')\n            return 0\n"
        "        except OSError:\n            pass\n    while True:\n        pass\n",
        "the processor, before the host's own threads",
    ),
    HostileProgram(
        "script_busy",
        "hang",
        "import sys\nfor line in sys.stdin:\n    pass\nwhile True:\n    pass\n",
        stdin="1\n" * 10,
        wanted_stdout="1\n",
    ),
    HostileProgram(
        "script_that_does_not_read",
        "hang",
        "import time\ntime.sleep(3600)\n",
        stdin="7" * 2_000_000,
        wanted_stdout="1\n",
        aims_at="a host that blocks while it writes the standard input",
    ),
]

# Every memory bomb stops at 3 GB, six times the limit it meets.
MEMORY = [
    _program(
        "memory",
        "list_of_numbers",
        _call("kept = []", "while len(kept) < 3 * 10 ** 8:", "    kept.extend(range(10 ** 6))"),
        "memory",
    ),
    _program(
        "memory", "one_block", _call("kept = bytearray(3 * 2 ** 30)", "kept[::4096] = b'x' * len(kept[::4096])"), "memory"
    ),
    _program("memory", "doubled_text", _call("text = 'xy'", "while len(text) < 3 * 2 ** 30:", "    text += text"), "memory"),
    _program(
        "memory",
        "many_small_objects",
        _call("kept = []", "for place in range(8_000_000):", "    kept.append({place: [place]})", "return len(kept)"),
        "memory",
    ),
    _program(
        "memory",
        "caught_memory_errors",
        _call(
            "kept, size = [], 2 ** 26",
            "while sum(map(len, kept)) < 3 * 2 ** 30:",
            "    try:",
            "        kept.append(b'x' * size)",
            "    except MemoryError:",
            "        size = max(size // 2, 16)",
        ),
        "the last byte below the limit, for ever",
    ),
    _program(
        "memory",
        "anonymous_mapping",
        "import mmap\n"
        + _call(
            "area = mmap.mmap(-1, 3 * 2 ** 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
            "for place in range(0, 3 * 2 ** 30, 4096):",
            "    area[place] = 1",
        ),
        "memory outside Python's allocator",
    ),
    _program(
        "memory",
        "shared_mapping",
        "import mmap\n"
        + _call(
            "area = mmap.mmap(-1, 3 * 2 ** 30, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)",
            "for place in range(0, 3 * 2 ** 30, 4096):",
            "    area[place] = 1",
        ),
        "shared memory, which some limits do not count",
    ),
    _program(
        "memory",
        "memfd",
        RAW
        + _call(
            "held = 0",
            "block = b'x' * 2 ** 20",
            "for number in range(64):",
            "    descriptor, error = syscall('memfd_create', b'm%d' % number, 0)",
            "    if descriptor < 0:",
            "        break",
            "    try:",
            "        for _ in range(48):",
            "            held += os.write(descriptor, block)",
            "    except OSError:",
            "        pass",
            "    if held > (@MEMORY_MB@ + 64) * 2 ** 20:",
            "        breach(f'{held >> 20} MB in files of memory')",
            "        break",
            "time.sleep(0.2)",
            "return held",
        ),
        "memory that belongs to no process",
    ),
    _program(
        "memory",
        "posix_shared_memory",
        "import os\n"
        + _call(
            "held, block = 0, b'x' * 2 ** 20",
            "for folder in ('/dev/shm', '/run/shm'):",
            "    try:",
            "        descriptor = os.open(f'{folder}/@MARKER@', os.O_CREAT | os.O_RDWR)",
            "        os.unlink(f'{folder}/@MARKER@')",
            "        for _ in range(1500):",
            "            held += os.write(descriptor, block)",
            "    except OSError:",
            "        pass",
            "if held > (@MEMORY_MB@ + 64) * 2 ** 20:",
            "    print('BREACH', held >> 20, 'MB in shared memory')",
            "return held",
        ),
        "the host's shared memory",
    ),
    _program(
        "memory",
        "system_v_shared_memory",
        RAW
        + _call(
            "libc.shmat.restype = ctypes.c_void_p",
            "held = 0",
            "for number in range(16):",
            "    segment, error = syscall('shmget', @KEY@ + number, 64 * 2 ** 20, 0o1666)",
            "    if segment < 0:",
            "        break",
            "    breach('System V shared memory was granted')",
            "    address = libc.shmat(segment, None, 0)",
            "    if address not in (None, 2 ** 64 - 1):",
            "        ctypes.memset(address, 1, 64 * 2 ** 20)",
            "        held += 64",
            "return held",
        ),
        "memory that stays when the process is gone",
    ),
    _program(
        "memory",
        "pipe_buffers",
        "import fcntl, os, time\n"
        + _call(
            "held, kept, block = 0, [], b'x' * 2 ** 20",
            "try:",
            "    for _ in range(4000):",
            "        reader, writer = os.pipe()",
            "        kept += [reader, writer]",
            "        os.set_blocking(writer, False)",
            "        try:",
            "            fcntl.fcntl(writer, 1031, 2 ** 20)",
            "        except OSError:",
            "            pass",
            "        held += os.write(writer, block)",
            "except OSError:",
            "    pass",
            "if held > (@MEMORY_MB@ + 64) * 2 ** 20:",
            "    print('BREACH', held >> 20, 'MB in pipes')",
            "return held",
        ),
        "memory of the kernel, in pipes",
    ),
    _program(
        "memory",
        "socket_buffers",
        "import socket\n"
        + _call(
            "held, kept, block = 0, [], b'x' * 2 ** 20",
            "try:",
            "    for _ in range(4000):",
            "        pair = socket.socketpair()",
            "        kept.append(pair)",
            "        pair[0].setblocking(False)",
            "        pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 ** 24)",
            "        try:",
            "            while True:",
            "                held += pair[0].send(block)",
            "        except BlockingIOError:",
            "            pass",
            "except OSError:",
            "    pass",
            "if held > (@MEMORY_MB@ + 64) * 2 ** 20:",
            "    print('BREACH', held >> 20, 'MB in sockets')",
            "return held",
        ),
        "memory of the kernel, in sockets",
    ),
    _program(
        "memory",
        "socket_of_sockets",
        "import array, os, socket\n"
        + _call(
            "held, block = 0, b'x' * 2 ** 16",
            "try:",
            "    carrier = socket.socketpair()",
            "    carrier[0].setblocking(False)",
            "    for _ in range(20_000):",
            "        reader, writer = os.pipe()",
            "        os.set_blocking(writer, False)",
            "        count = os.write(writer, block)",
            "        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [reader, writer]))",
            "        carrier[0].sendmsg([b'x'], [rights])",
            "        held += count",
            "        os.close(reader)",
            "        os.close(writer)",
            "except OSError:",
            "    pass",
            "if held > (@MEMORY_MB@ + 64) * 2 ** 20:",
            "    print('BREACH', held >> 20, 'MB in pipes on their way')",
            "return held",
        ),
        "pipes that are in no table of descriptors",
    ),
    _program(
        "memory",
        "thread_stacks",
        "import ctypes, threading, time\n"
        + _call(
            "threading.stack_size(64 * 2 ** 20)",
            "def deep(level):",
            "    area = ctypes.create_string_buffer(2 ** 20)",
            "    return time.sleep(0.5) if level == 0 else deep(level - 1)",
            "for _ in range(60):",
            "    try:",
            "        threading.Thread(target=deep, args=(40,), daemon=True).start()",
            "    except (RuntimeError, MemoryError):",
            "        break",
            "time.sleep(0.6)",
        ),
        "memory in the stacks of threads",
    ),
    _program(
        "memory",
        "recursion_in_python",
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef solve(x):\n    return solve(x) + 1\n",
        "the stack, and the memory of frames",
    ),
    _program(
        "memory",
        "recursion_in_c",
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef solve(x):\n    deep = []\n    for _ in range(3_000_000):\n        deep = [deep]\n"
        "    return len(repr(deep))\n",
        "the stack of the process",
    ),
    _program(
        "memory",
        "recursion_in_the_compiler",
        "def solve(x):\n    return eval('(' * 500_000 + '1' + ')' * 500_000) + eval('-' * 3_000_000 + '1')\n",
        "the stack of the parser",
    ),
    _program(
        "memory", "shifted_integer", "def solve(x):\n    return (1 << (8 * 3 * 2 ** 30)).bit_length()\n", "one huge integer"
    ),
    _program(
        "memory",
        "decompression",
        "import zlib\n"
        + _call(
            "packer = zlib.compressobj()",
            "packed = b''.join(packer.compress(bytes(2 ** 20)) for _ in range(3000)) + packer.flush()",
            "return len(zlib.decompress(packed))",
        ),
        "memory from a small input",
    ),
    _program(
        "memory",
        "format_width",
        "def solve(x):\n    return len('%3000000000d' % 1) + len(f'{1:3000000000}')\n",
        "memory from a width",
    ),
    _program(
        "memory",
        "locked_memory",
        RAW
        + "import mmap\n"
        + _call(
            "area = mmap.mmap(-1, 2 ** 31)",
            "address = ctypes.addressof(ctypes.c_char.from_buffer(area))",
            "if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(2 ** 31)) == 0:",
            "    breach('2 GB of locked memory')",
            "libc.mlockall(3)",
            "return len(bytearray(2 ** 31))",
        ),
        "memory that cannot be swapped",
    ),
    _program(
        "memory",
        "raised_limits",
        "import resource\n"
        + _call(
            "for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC,",
            "             resource.RLIMIT_NOFILE, resource.RLIMIT_STACK):",
            "    soft, hard = resource.getrlimit(what)",
            "    for wanted in ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (hard, hard)):",
            "        try:",
            "            resource.setrlimit(what, wanted)",
            "        except (OSError, ValueError):",
            "            continue",
            "        if wanted[1] == resource.RLIM_INFINITY and hard != resource.RLIM_INFINITY:",
            "            print('BREACH raised the hard limit', what)",
            "kept = []",
            "while len(kept) < 400:",
            "    kept.append(b'x' * 2 ** 23)",
            "return len(kept)",
        ),
        "limits that the program may raise",
    ),
]

DISK = [
    _program(
        "disk",
        "one_big_file",
        _call(
            "held = 0",
            "with open('big', 'wb', buffering=0) as file:",
            "    try:",
            "        for _ in range(1024):",
            "            held += file.write(b'x' * 2 ** 20)",
            "    finally:",
            "        if held > (@FILES_MB@ + 16) * 2 ** 20:",
            "            print('BREACH', held >> 20, 'MB in a file', flush=True)",
            "return held",
        ),
        "the disk",
    ),
    _program(
        "disk",
        "several_big_files",
        _call(
            "held = 0",
            "for number in range(40):",
            "    try:",
            "        with open(f'big{number}', 'wb', buffering=0) as file:",
            "            for _ in range(30):",
            "                held += file.write(b'x' * 2 ** 20)",
            "    except OSError:",
            "        pass",
            "    if held > (@FILES_MB@ + 64) * 2 ** 20:",
            "        print('BREACH', held >> 20, 'MB in files', flush=True)",
            "        break",
            "return held",
        ),
        "the disk, below any limit per file",
    ),
    _program(
        "disk",
        "deleted_but_open",
        "import os\n"
        + _call(
            "held, kept = 0, []",
            "for number in range(40):",
            "    try:",
            "        file = open(f'gone{number}', 'wb', buffering=0)",
            "        os.unlink(f'gone{number}')",
            "        kept.append(file)",
            "        for _ in range(30):",
            "            held += file.write(b'x' * 2 ** 20)",
            "    except OSError:",
            "        pass",
            "    if held > (@FILES_MB@ + 64) * 2 ** 20:",
            "        print('BREACH', held >> 20, 'MB in deleted files', flush=True)",
            "        break",
            "return held",
        ),
        "space that no listing shows",
    ),
    _program(
        "disk",
        "unnamed_files",
        "import os\n"
        + _call(
            "held, kept = 0, []",
            "for number in range(40):",
            "    try:",
            "        descriptor = os.open('.', os.O_TMPFILE | os.O_RDWR)",
            "        kept.append(descriptor)",
            "        for _ in range(30):",
            "            held += os.write(descriptor, b'x' * 2 ** 20)",
            "    except OSError:",
            "        pass",
            "    if held > (@FILES_MB@ + 64) * 2 ** 20:",
            "        print('BREACH', held >> 20, 'MB in files without a name', flush=True)",
            "        break",
            "return held",
        ),
        "space that never had a name",
    ),
    _program(
        "disk",
        "many_files",
        _call(
            "made = 0",
            "try:",
            "    for number in range(200_000):",
            "        open(f'file{number}', 'w').close()",
            "        made += 1",
            "finally:",
            "    print('made', made, flush=True)",
            "return made",
        ),
        "inodes, and the time that cleaning up takes",
    ),
    _program(
        "disk",
        "deep_folders",
        "import os\n"
        + _call(
            "made = 0",
            "try:",
            "    for _ in range(20_000):",
            "        os.mkdir('d' * 200)",
            "        os.chdir('d' * 200)",
            "        made += 1",
            "finally:",
            "    print('depth', made, flush=True)",
            "return made",
        ),
        "a clean-up that recurses, or builds a path that is too long",
    ),
    _program(
        "disk",
        "folders_without_rights",
        "import os\n"
        + _call(
            "os.makedirs('a/b/c')",
            "open('a/b/c/file', 'w').close()",
            "os.mkdir('odd\\udcff\\n name')",
            "os.symlink('@CANARY@', 'link')",
            "os.symlink('/', 'root')",
            "os.mkfifo('fifo')",
            "os.chmod('a/b/c/file', 0)",
            "os.chmod('a/b', 0)",
            "os.chmod('a', 0)",
            "os.chmod('.', 0)",
            "return 1",
        ),
        "a clean-up that stops at a folder it may not enter, or follows a link",
    ),
    _program(
        "disk",
        "sparse_file",
        "import os\n"
        + _call(
            "with open('sparse', 'wb') as file:",
            "    file.truncate(2 ** 42)",
            "    for place in range(0, 2 ** 42, 2 ** 34):",
            "        file.seek(place)",
            "        file.write(b'x' * 4096)",
            "        file.flush()",
            "return os.path.getsize('sparse')",
        ),
        "a size that a copy would have to write out",
    ),
    _program(
        "disk",
        "fallocate",
        "import os\n"
        + _call(
            "held, kept = 0, []",
            "for number in range(64):",
            "    try:",
            "        descriptor = os.open(f'f{number}', os.O_CREAT | os.O_RDWR)",
            "        kept.append(descriptor)",
            "        os.posix_fallocate(descriptor, 0, 48 * 2 ** 20)",
            "        held += 48",
            "    except OSError:",
            "        pass",
            "if held > @FILES_MB@ + 64:",
            "    print('BREACH', held, 'MB set aside', flush=True)",
            "return held",
        ),
        "space without writing",
    ),
    _program(
        "disk",
        "mapped_file",
        "import mmap, os\n"
        + _call(
            "held = 0",
            "for number in range(24):",
            "    try:",
            "        with open(f'm{number}', 'w+b') as file:",
            "            file.truncate(48 * 2 ** 20)",
            "            area = mmap.mmap(file.fileno(), 48 * 2 ** 20)",
            "            for place in range(0, 48 * 2 ** 20, 4096):",
            "                area[place] = 1",
            "            area.flush()",
            "            area.close()",
            "            held += 48",
            "    except (OSError, ValueError):",
            "        break",
            "if held > @FILES_MB@ + 64:",
            "    print('BREACH', held, 'MB through a mapping', flush=True)",
            "return held",
        ),
        "space through memory",
    ),
    _program(
        "disk",
        "hard_links",
        "import os\n"
        + _call(
            "open('one', 'w').close()",
            "for number in range(50_000):",
            "    os.link('one', f'{number:0>200}')",
            "for path in ('@CANARY@/precious', '@SECRET_FILE@', '/etc/passwd'):",
            "    try:",
            "        os.link(path, 'taken')",
            "        open('taken', 'a').write('x')",
            "    except OSError:",
            "        pass",
            "return 1",
        ),
        "names, and files of the host under another name",
    ),
    _program(
        "disk",
        "attributes",
        "import os\n"
        + _call(
            "open('one', 'w').close()",
            "for number in range(2000):",
            "    try:",
            "        os.setxattr('one', f'user.{number}', b'x' * 3000)",
            "        os.setxattr('@CANARY@/precious', f'user.{number}', b'x')",
            "    except OSError:",
            "        pass",
            "return 1",
        ),
        "space in attributes",
    ),
    _program(
        "disk",
        "other_folders",
        "import os\n"
        + _call(
            "held = 0",
            "for folder in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/dev', '/', '/home', '/dev/mqueue', '/proc', '/sys/fs/cgroup'):",
            "    path = os.path.join(folder, '@MARKER@')",
            "    try:",
            "        with open(path, 'wb', buffering=0) as file:",
            "            for _ in range(100):",
            "                held += file.write(b'x' * 2 ** 20)",
            "    except OSError:",
            "        pass",
            "if held > (@FILES_MB@ + @MEMORY_MB@ + 64) * 2 ** 20:",
            "    print('BREACH', held >> 20, 'MB in folders beside the scratch folder', flush=True)",
            "return held",
        ),
        "folders that no limit covers",
    ),
    _program(
        "disk",
        "core_dump",
        "import os, resource\ndef solve(x):\n    kept = b'x' * 2 ** 28\n    try:\n"
        "        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "    except (OSError, ValueError):\n        pass\n    os.abort()\n",
        "a core file of the size of the memory",
    ),
]

OUTPUT = [
    _program("output", "stdout_flood", "def solve(x):\n    while True:\n        print('x' * 1000)\n", "memory of the host"),
    _program(
        "output",
        "stderr_flood",
        "import sys\ndef solve(x):\n    while True:\n        sys.stderr.write('x' * 65536)\n",
        "memory",
    ),
    _program(
        "output",
        "flood_by_threads",
        "import os, threading\ndef flood(descriptor):\n    while True:\n        os.write(descriptor, b'y' * 65536)\n"
        "def solve(x):\n    for descriptor in (1, 2):\n        threading.Thread(target=flood, args=(descriptor,), daemon=True).start()\n"
        "    flood(1)\n",
        "memory of the host",
    ),
    _program(
        "output",
        "value_pipe_flood",
        "import os\ndef solve(x):\n    while True:\n        for descriptor in range(3, 64):\n            try:\n"
        "                os.write(descriptor, b'\\0' * 65536)\n            except OSError:\n                pass\n",
        "memory of the host, by way of the replies",
    ),
    _program(
        "output",
        "endless_reply",
        "import os, struct\ndef solve(x):\n    for descriptor in range(3, 64):\n        try:\n            os.fstat(descriptor)\n"
        "        except OSError:\n            continue\n        try:\n            os.write(descriptor, struct.pack('>I', 2 ** 31))\n"
        "            while True:\n                os.write(descriptor, b' ' * 65536)\n        except OSError:\n            pass\n",
        "one frame of two gigabytes",
    ),
    _program("output", "giant_text", "def solve(x):\n    return 'x' * 150_000_000\n", "memory of the host"),
    _program("output", "giant_list", "def solve(x):\n    return [1.5] * 10_000_000\n", "memory and time of the host"),
    _program("output", "giant_integer", "def solve(x):\n    return 1 << 60_000_000\n", "the quadratic time of decimal digits"),
    _program("output", "long_integer", "def solve(x):\n    return 10 ** 50_000\n", "the limit on digits, raised in the host"),
    _program(
        "output",
        "deep_value",
        "def solve(x):\n    deep = []\n    for _ in range(100_000):\n        deep = [deep]\n    return deep\n",
        "RecursionError in the host",
    ),
    _program(
        "output",
        "deep_value_of_dicts",
        "def solve(x):\n    deep = ()\n    for _ in range(3_000):\n        deep = {'a': (deep,)}\n    return deep\n",
        "RecursionError in the host, just below the limits of the runner",
    ),
    _program(
        "output",
        "shared_value",
        "def solve(x):\n    wide = ['x' * 1000]\n    for _ in range(40):\n        wide = [wide, wide]\n    return wide\n",
        "a small value in memory that is huge on the wire",
    ),
    _program("output", "giant_exception", "def solve(x):\n    raise ValueError('x' * 100_000_000)\n", "memory of the host"),
    _program(
        "output",
        "giant_exception_name",
        "def solve(x):\n    raise type('E' * 20_000_000, (Exception,), {})\n",
        "memory of the host, in the name of an exception",
    ),
    _program(
        "output",
        "broken_text",
        "import os\ndef solve(x):\n    for _ in range(4000):\n        os.write(1, bytes(range(256)) * 4)\n        os.write(2, b'\\xff\\xfe\\x00\\x1b[2J')\n"
        "    return b'\\xff' * 1000\n",
        "a decoder that fails, a terminal that obeys",
    ),
    _program(
        "output",
        "flood_at_exit",
        "import atexit, os\ndef flood():\n    while True:\n        os.write(1, b'z' * 65536)\natexit.register(flood)\ndef solve(x):\n    return 0\n",
        "output after the last answer",
    ),
    HostileProgram(
        "script_flood",
        "output",
        "import sys\nwhile True:\n    sys.stdout.write('1\\n' * 10_000)\n",
        stdin="17\n",
        wanted_stdout="1\n",
        aims_at="memory of the host",
    ),
]
