"""Programs that start others, and programs that want to be there when the run is over.

A new process is no effect by itself; one that is left, or that takes more than the limits allow, is.
Whatever is started ends by itself after a minute, so that a jail with a hole in it costs a test and not the machine.
"""

from __future__ import annotations

from hostile.programs import RAW, SOLVE, Ask, HostileProgram

ONE = (SOLVE[0],)

STAY = (
    RAW
    + '''
def stay():
    """What a survivor does: take the run's name, keep no one waiting by a signal, and last a minute."""
    libc.prctl(15, b"@MARKER@", 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    try:
        time.sleep(60)
        open("@CANARY@/survived", "w").close()
    finally:
        os._exit(0)
'''
)


def _program(category: str, name: str, source: str, aims_at: str, calls: tuple[Ask, ...] = ONE) -> HostileProgram:
    return HostileProgram(name, category, source, calls=calls, aims_at=aims_at)


PROCESSES = [
    _program(
        "process",
        "fork",
        STAY + "def solve(x):\n    if os.fork() == 0:\n        stay()\n    return 1\n",
        "a process of its own",
    ),
    _program(
        "process",
        "fork_bomb",
        STAY
        + "def solve(x):\n    for _ in range(9):\n        try:\n            os.fork()\n        except OSError:\n            pass\n"
        "    time.sleep(20)\n",
        "five hundred processes",
    ),
    _program(
        "process",
        "fork_and_share_memory_out",
        RAW
        + "def solve(x):\n    for _ in range(6):\n        if os.fork() == 0:\n            kept = bytearray(b'x') * (300 * 2 ** 20)\n"
        "            time.sleep(20)\n            os._exit(0)\n    time.sleep(20)\n",
        "a limit on memory that counts each process alone",
    ),
    _program(
        "process",
        "fork_and_burn",
        RAW
        + "def solve(x):\n    for _ in range(4):\n        if os.fork() == 0:\n            while True:\n                pass\n    time.sleep(20)\n",
        "a limit on CPU time that counts each process alone",
    ),
    _program(
        "process",
        "raw_fork",
        STAY
        + "def solve(x):\n    for name in ('fork', 'vfork'):\n        result, error = syscall(name)\n        if result == 0:\n"
        "            stay()\n    return 1\n",
        "a process by the system call, past os.fork",
    ),
    _program(
        "process",
        "raw_clone",
        STAY + "def solve(x):\n    for flags in (17, 17 | 0x8000, 0x100, 17 | 0x800000):\n"
        "        result, error = syscall('clone', flags, 0, 0, 0, 0)\n        if result == 0:\n            stay()\n    return 1\n",
        "a process by clone, with its parent's parent, its memory, without tracing",
    ),
    _program(
        "process",
        "raw_clone3",
        STAY + "def solve(x):\n    block = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)\n"
        "    result, error = syscall('clone3', ctypes.byref(block), ctypes.sizeof(block))\n    if result == 0:\n        stay()\n"
        "    return [result, error]\n",
        "a process by clone3, whose flags a filter cannot read",
    ),
    _program(
        "process",
        "clone_into_namespaces",
        STAY
        + "def solve(x):\n    for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000):\n"
        "        result, error = syscall('clone', flag | 17, 0, 0, 0, 0)\n        if result == 0:\n            stay()\n"
        "        if result > 0:\n            breach(f'a namespace by clone, flag {flag:#x}')\n    return 1\n",
        "rights inside a new namespace",
    ),
    _program(
        "process",
        "subprocess_shell",
        "import subprocess\ndef solve(x):\n    out = subprocess.run(['/bin/sh', '-c', 'id; cat /etc/shadow; touch @CANARY@/shell; sleep 60 &'],"
        " capture_output=True, text=True, timeout=1)\n    if 'root:' in out.stdout:\n        print('BREACH read /etc/shadow')\n    return out.stdout[:1000]\n",
        "programs of the host",
    ),
    _program(
        "process",
        "subprocess_python",
        "import subprocess, sys\ndef solve(x):\n    return subprocess.run([sys.executable, '-c', 'import os; os.setsid(); import time; time.sleep(60)'],"
        " stdin=subprocess.DEVNULL).returncode\n",
        "another interpreter, without the runner",
    ),
    _program(
        "process",
        "multiprocessing",
        "import multiprocessing, time\ndef work(x):\n    time.sleep(60)\ndef solve(x):\n    multiprocessing.set_start_method('fork', force=True)\n"
        "    workers = [multiprocessing.Process(target=work, args=(1,)) for _ in range(8)]\n    for worker in workers:\n        worker.start()\n"
        "    return 1\n",
        "workers that nobody joins",
    ),
    _program(
        "process",
        "posix_spawn",
        "import os\ndef solve(x):\n    return os.posix_spawn('/bin/sleep', ['@MARKER@', '60'], {'MARKER': '@MARKER@'}, setpgroup=0)\n",
        "a program of the host",
    ),
    _program(
        "process",
        "replaced_by_exec",
        "import os, sys\ndef solve(x):\n    os.execv(sys.executable, [sys.executable, '-I', '-c',"
        " 'import os, time\\nfor d in range(3, 64):\\n  try: os.write(d, b\"{}\")\\n  except OSError: pass\\ntime.sleep(60)'])\n",
        "an interpreter without the runner, with its pipes",
    ),
    _program(
        "process",
        "exec_from_memory",
        RAW
        + "def solve(x):\n    descriptor, error = syscall('memfd_create', b'program', 0)\n    if descriptor < 0:\n        return error\n"
        "    os.write(descriptor, b'#!/bin/sh\\ntouch @CANARY@/memory\\nsleep 60\\n')\n"
        "    empty = (ctypes.c_char_p * 1)(None)\n    syscall('execveat', descriptor, b'', empty, empty, 0x1000)\n"
        "    os.execve(f'/proc/self/fd/{descriptor}', ['x'], {})\n",
        "a program that was never in a file",
    ),
    _program(
        "process",
        "exec_from_scratch",
        "import os\ndef solve(x):\n    with open('tool', 'w') as file:\n        file.write('#!/bin/sh\\ntouch @CANARY@/tool\\nsleep 60\\n')\n"
        "    os.chmod('tool', 0o6777)\n    os.execv('./tool', ['tool'])\n",
        "a program of its own making, with the bits of another user",
    ),
    _program(
        "process",
        "set_user_id_programs",
        "import glob, os\ndef solve(x):\n    for path in ('/usr/bin/su', '/usr/bin/sudo', '/usr/bin/mount', '/usr/bin/passwd', '/usr/bin/newgrp', '/bin/ping'):\n"
        "        try:\n            os.posix_spawn(path, [path, '--help'], {})\n        except OSError:\n            pass\n"
        "    for identity in (0, 1, 1000, 65534):\n        for change in (os.setuid, os.setgid):\n            try:\n                change(identity)\n"
        "            except OSError:\n                pass\n    return os.getuid()\n",
        "the rights of another user",
    ),
    _program(
        "process",
        "thousands_of_threads",
        "import threading, time\ndef solve(x):\n    started = 0\n    try:\n        for _ in range(5000):\n"
        "            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n            started += 1\n"
        "    except (RuntimeError, MemoryError):\n        pass\n    if started > 1000:\n        print('BREACH', started, 'threads')\n    return started\n",
        "the table of processes of the machine",
    ),
    _program(
        "process",
        "pseudo_terminal",
        STAY + "import pty\ndef solve(x):\n    pid, descriptor = pty.fork()\n    if pid == 0:\n        stay()\n    return 1\n",
        "a session and a terminal of its own",
    ),
]

SURVIVORS = [
    _program(
        "survivor",
        "daemon",
        STAY
        + "def solve(x):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            os.closerange(0, 4096)\n"
        "            stay()\n        os._exit(0)\n    os.wait()\n    return 1\n",
        "a daemon: two forks, a session of its own, no descriptors",
    ),
    _program(
        "survivor",
        "sibling_of_the_jail",
        STAY
        + "def solve(x):\n    result, error = syscall('clone', 0x8000 | 17, 0, 0, 0, 0)\n    if result == 0:\n        os.setsid()\n        stay()\n"
        "    os._exit(0)\n",
        "a process whose parent is the jail's own (CLONE_PARENT)",
    ),
    _program(
        "survivor",
        "holds_the_pipes",
        STAY + "def solve(x):\n    if os.fork() == 0:\n        os.setsid()\n        stay()\n    os._exit(0)\n",
        "a host that waits for the end of pipes which another process holds",
    ),
    _program(
        "survivor",
        "orphan_by_killing_the_parent",
        STAY + "def solve(x):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(0.05)\n        stay()\n"
        "    parent = os.getppid()\n    if parent > 1 and parent != @HOST_PID@:\n        try:\n            os.kill(parent, signal.SIGKILL)\n"
        "        except OSError:\n            pass\n    os.kill(os.getpid(), signal.SIGKILL)\n",
        "a process that lost those who would have ended it",
    ),
    _program(
        "survivor",
        "without_a_death_signal",
        STAY
        + "def solve(x):\n    libc.prctl(1, 0, 0, 0, 0)\n    libc.prctl(36, 1, 0, 0, 0)\n    libc.prctl(4, 1, 0, 0, 0)\n    stay()\n",
        "a process that does not hear of its parent's death",
    ),
    _program(
        "survivor",
        "own_process_group",
        STAY
        + "def solve(x):\n    for change in (os.setsid, lambda: os.setpgid(0, 0)):\n        try:\n            change()\n        except OSError:\n"
        "            pass\n    stay()\n",
        "a kill by process group or session",
    ),
    _program(
        "survivor",
        "killed_group",
        RAW + "def solve(x):\n    os.kill(0, signal.SIGKILL)\n    return 1\n",
        "the processes around it, by the process group",
    ),
    _program(
        "survivor",
        "rapid_forks",
        STAY
        + "def solve(x):\n    while True:\n        try:\n            if os.fork() != 0:\n                os._exit(0)\n        except OSError:\n            time.sleep(0.01)\n"
        "            if time.process_time() > 30:\n                break\n",
        "a process that has another number whenever it is looked for",
    ),
    _program(
        "survivor",
        "message_queue",
        RAW
        + "def solve(x):\n    queue, error = syscall('msgget', @KEY@, 0o1666)\n    if queue >= 0:\n        breach('a System V queue')\n"
        "    group, error = syscall('semget', @KEY@, 1, 0o1666)\n    if group >= 0:\n        breach('System V semaphores')\n"
        "    queue, error = syscall('mq_open', b'@MARKER@', 0o102, 0o666, None)\n    return [queue, error]\n",
        "objects of the kernel that stay",
    ),
    _program(
        "survivor",
        "scheduled_job",
        "import os\ndef solve(x):\n    for folder in ('/etc/cron.d', '/var/spool/cron/crontabs', '/etc/systemd/system', '/etc/profile.d', '/etc/init.d'):\n"
        "        try:\n            open(os.path.join(folder, '@MARKER@'), 'x').close()\n            print('BREACH wrote to', folder)\n        except OSError:\n            pass\n"
        "    return 1\n",
        "a job that the machine would run later",
    ),
    HostileProgram(
        "script_daemon",
        "survivor",
        STAY + "try:\n    if os.fork() == 0:\n        os.setsid()\n        stay()\nexcept OSError:\n    pass\nprint('done')\n",
        stdin="17\n",
        wanted_stdout="1\n",
        aims_at="a script's child that holds its output open",
    ),
]
