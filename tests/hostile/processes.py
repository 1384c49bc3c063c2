"""Programs that start others, and programs that want to be there when the run is over.

A new process is no effect by itself; one that is left, or that takes more than the limits allow, is.
Whatever is started ends by itself after a minute, so that a jail with a hole in it costs a test and not the machine.
"""

from __future__ import annotations

from hostile.programs import HostileProgram, called, read_source

PROCESSES = [
    called("process", "fork", "a process of its own"),
    called("process", "fork_bomb", "five hundred processes"),
    called("process", "fork_and_share_memory_out", "a limit on memory that counts each process alone"),
    called("process", "fork_and_burn", "a limit on CPU time that counts each process alone"),
    called("process", "raw_fork", "a process by the system call, past os.fork"),
    called("process", "raw_clone", "a process by clone, with its parent's parent, its memory, without tracing"),
    called("process", "raw_clone3", "a process by clone3, whose flags a filter cannot read"),
    called("process", "clone_into_namespaces", "rights inside a new namespace"),
    called("process", "subprocess_shell", "programs of the host"),
    called("process", "subprocess_python", "another interpreter, without the runner"),
    called("process", "multiprocessing", "workers that nobody joins"),
    called("process", "posix_spawn", "a program of the host"),
    called("process", "replaced_by_exec", "an interpreter without the runner, with its pipes"),
    called("process", "exec_from_memory", "a program that was never in a file"),
    called("process", "exec_from_scratch", "a program of its own making, with the bits of another user"),
    called("process", "set_user_id_programs", "the rights of another user"),
    called("process", "thousands_of_threads", "the table of processes of the machine"),
    called("process", "pseudo_terminal", "a session and a terminal of its own"),
]

SURVIVORS = [
    called("survivor", "daemon", "a daemon: two forks, a session of its own, no descriptors"),
    called("survivor", "sibling_of_the_jail", "a process whose parent is the jail's own (CLONE_PARENT)"),
    called("survivor", "holds_the_pipes", "a host that waits for the end of pipes which another process holds"),
    called("survivor", "orphan_by_killing_the_parent", "a process that lost those who would have ended it"),
    called("survivor", "without_a_death_signal", "a process that does not hear of its parent's death"),
    called("survivor", "own_process_group", "a kill by process group or session"),
    called("survivor", "killed_group", "the processes around it, by the process group"),
    called("survivor", "rapid_forks", "a process that has another number whenever it is looked for"),
    called("survivor", "message_queue", "objects of the kernel that stay"),
    called("survivor", "scheduled_job", "a job that the machine would run later"),
    HostileProgram(
        "script_daemon",
        "survivor",
        read_source("survivor", "script_daemon"),
        stdin="17\n",
        wanted_stdout="1\n",
        aims_at="a script's child that holds its output open",
    ),
]
