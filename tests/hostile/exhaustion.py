"""Programs that exhaust their limits: time, memory, disk, output.

Each bomb stops by itself well above its limit, so that a jail with a hole in it costs a test and not the machine.
"""

from __future__ import annotations

from hostile.programs import HostileProgram, called, read_source

HANGS = [
    called("hang", "busy_loop", "CPU time in Python"),
    called("hang", "busy_at_load", "CPU time before any call"),
    called("hang", "sleep", "wall time without CPU time"),
    called("hang", "sleep_at_load", "wall time before any call"),
    called("hang", "blocked_signals", "every signal blocked"),
    called("hang", "ignored_signals", "SIGTERM, SIGXCPU and the rest ignored"),
    called("hang", "regex_backtracking", "C code"),
    called("hang", "tower_of_nines", "C code that holds the lock of the interpreter"),
    called("hang", "tower_at_load", "the compiler's constant folding"),
    called("hang", "count_for_ever", "an endless C loop"),
    called("hang", "thread_that_never_ends", "an interpreter that waits for a thread at its end"),
    called("hang", "many_busy_threads", "CPU time spread over threads"),
    called("hang", "waiting_for_input", "a read that blocks"),
    called("hang", "reading_every_descriptor", "a read that blocks, on the pipes of the runner"),
    called("hang", "deadlock", "a lock that is never free"),
    called("hang", "at_exit", "the end"),
    called("hang", "in_destructor", "a destructor that does not return"),
    called("hang", "in_the_text_of_an_exception", "the runner's description of an error"),
    called("hang", "in_the_items_of_a_dict", "the runner's look at a value"),
    called("hang", "swallowed_exceptions", "an exception that was meant to end it"),
    called("hang", "stopped", "a stopped process"),
    called("hang", "stopped_parent", "whoever watches the program from inside the jail"),
    called("hang", "slow_output", "a limit on silence instead of on time"),
    called("hang", "slow_frames", "a limit on silence on the value pipe"),
    called("hang", "closed_and_asleep", "a host that waits for the process after its pipes ended"),
    called("hang", "realtime_priority", "the processor, before the host's own threads"),
    HostileProgram("script_busy", "hang", read_source("hang", "script_busy"), stdin="1\n" * 10, wanted_stdout="1\n"),
    HostileProgram(
        "script_that_does_not_read",
        "hang",
        read_source("hang", "script_that_does_not_read"),
        stdin="7" * 2_000_000,
        wanted_stdout="1\n",
        aims_at="a host that blocks while it writes the standard input",
    ),
]

# Every memory bomb stops at 3 GB, six times the limit it meets.
MEMORY = [
    called("memory", "list_of_numbers", "memory"),
    called("memory", "one_block", "memory"),
    called("memory", "doubled_text", "memory"),
    called("memory", "many_small_objects", "memory"),
    called("memory", "caught_memory_errors", "the last byte below the limit, for ever"),
    called("memory", "anonymous_mapping", "memory outside Python's allocator"),
    called("memory", "shared_mapping", "shared memory, which some limits do not count"),
    called("memory", "memfd", "memory that belongs to no process"),
    called("memory", "posix_shared_memory", "the host's shared memory"),
    called("memory", "system_v_shared_memory", "memory that stays when the process is gone"),
    called("memory", "pipe_buffers", "memory of the kernel, in pipes"),
    called("memory", "socket_buffers", "memory of the kernel, in sockets"),
    called("memory", "socket_of_sockets", "pipes that are in no table of descriptors"),
    called("memory", "thread_stacks", "memory in the stacks of threads"),
    called("memory", "threads_at_load", "a limit met before the host knows that the program has begun"),
    called("memory", "recursion_in_python", "the stack, and the memory of frames"),
    called("memory", "recursion_in_c", "the stack of the process"),
    called("memory", "recursion_in_the_compiler", "the stack of the parser"),
    called("memory", "shifted_integer", "one huge integer"),
    called("memory", "decompression", "memory from a small input"),
    called("memory", "format_width", "memory from a width"),
    called("memory", "locked_memory", "memory that cannot be swapped"),
    called("memory", "raised_limits", "limits that the program may raise"),
]

DISK = [
    called("disk", "one_big_file", "the disk"),
    called("disk", "several_big_files", "the disk, below any limit per file"),
    called("disk", "deleted_but_open", "space that no listing shows"),
    called("disk", "unnamed_files", "space that never had a name"),
    called("disk", "many_files", "inodes, and the time that cleaning up takes"),
    called("disk", "deep_folders", "a clean-up that recurses, or builds a path that is too long"),
    called("disk", "deep_folders_at_load", "a limit met before the host knows that the program has begun: whose fault is it?"),
    called("disk", "many_files_at_load", "the same with the number of files"),
    called("disk", "folders_without_rights", "a clean-up that stops at a folder it may not enter, or follows a link"),
    called("disk", "sparse_file", "a size that a copy would have to write out"),
    called("disk", "fallocate", "space without writing"),
    called("disk", "mapped_file", "space through memory"),
    called("disk", "hard_links", "names, and files of the host under another name"),
    called("disk", "attributes", "space in attributes"),
    called("disk", "other_folders", "folders that no limit covers"),
    called("disk", "core_dump", "a core file of the size of the memory"),
]

OUTPUT = [
    called("output", "stdout_flood", "memory of the host"),
    called("output", "stderr_flood", "memory"),
    called("output", "flood_by_threads", "memory of the host"),
    called("output", "value_pipe_flood", "memory of the host, by way of the replies"),
    called("output", "endless_reply", "one frame of two gigabytes"),
    called("output", "giant_text", "memory of the host"),
    called("output", "giant_list", "memory and time of the host"),
    called("output", "giant_integer", "the quadratic time of decimal digits"),
    called("output", "long_integer", "the limit on digits, raised in the host"),
    called("output", "deep_value", "RecursionError in the host"),
    called("output", "deep_value_of_dicts", "RecursionError in the host, just below the limits of the runner"),
    called("output", "shared_value", "a small value in memory that is huge on the wire"),
    called("output", "giant_exception", "memory of the host"),
    called("output", "giant_exception_name", "memory of the host, in the name of an exception"),
    called("output", "broken_text", "a decoder that fails, a terminal that obeys"),
    called("output", "flood_at_exit", "output after the last answer"),
    HostileProgram(
        "script_flood",
        "output",
        read_source("output", "script_flood"),
        stdin="17\n",
        wanted_stdout="1\n",
        aims_at="memory of the host",
    ),
]
