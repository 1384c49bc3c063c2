"""Programs that reach for the host: its files, its processes, its kernel, its network, its secrets.

What they write carries the run's marker or lies in the canary folder; devices and tables of the host are opened, never written.
Signals to processes outside are ones that a process ignores unless it asks for them; the harness asks.
"""

from __future__ import annotations

from hostile.programs import WITH_PACKAGES, HostileProgram, called, read_source

ESCAPES = [
    called("escape", "ptrace", "control over the host process"),
    called("escape", "memory_of_others", "the memory of the host process"),
    called("escape", "root_of_others", "the host's files by way of /proc"),
    called("escape", "chroot_and_back", "the folder above the root"),
    called("escape", "mounts", "file systems of its choice"),
    called("escape", "unshare", "rights inside new namespaces"),
    called("escape", "enter_namespaces", "the namespaces of the host"),
    called("escape", "pivot_root", "another root"),
    called("escape", "open_by_handle", "files by their number"),
    called("escape", "links_out_of_the_scratch", "files of the host by way of the scratch folder"),
    called("escape", "canary_by_every_call", "a folder of the host that everyone may write to"),
    called("escape", "canary_metadata", "what path rules do not cover: modes, times, owners, attributes"),
    called("escape", "metadata_of_the_system", "modes and times of the host's folders"),
    called("escape", "system_folders", "the system, the interpreter and the trainer"),
    called("escape", "interpreter_files", "files of the system, open for writing"),
    called("escape", "folders_of_memory", "folders that everyone may write to"),
    called("escape", "control_groups", "limits of the host"),
    called("escape", "io_uring", "system calls past the filter"),
    called("escape", "bpf", "the kernel"),
    called("escape", "perf_events", "the kernel, and what others do"),
    called("escape", "userfaultfd", "the kernel"),
    called("escape", "keyrings", "keys of the host's user, and memory that stays"),
    called("escape", "kernel_modules", "the kernel itself"),
    called("escape", "signals_to_everyone", "processes of the host"),
    called("escape", "signals_by_a_descriptor", "a signal to the host that the kernel sends (F_SETOWN)"),
    called("escape", "killed_supervisor", "whoever counts the limits inside the jail"),
    called("escape", "limits_of_others", "the host process, slowed down"),
    called("escape", "looks_at_the_host", "the inside of the host process"),
    called("escape", "int80", "system calls under their 32-bit numbers, past the filter"),
    called("escape", "x32_calls", "system calls under their x32 numbers, past the filter"),
    called("escape", "personality", "an execution domain without protections"),
    called("escape", "typed_into_the_terminal", "the terminal of whoever started the trainer (TIOCSTI, TIOCLINUX)"),
    called("escape", "device_nodes", "the disk as a device"),
    called("escape", "capabilities", "rights of root"),
    called("escape", "out_of_memory_score", "the kernel's choice of whom to kill"),
    called("escape", "undone_filter", "the jail's own rules"),
    called("escape", "watch_the_host", "what happens in the host's folders"),
    called("escape", "memory_of_itself", "shared mappings that reach the host"),
    called("escape", "native_library", "code of its own in native form"),
]

NETWORK = [
    called("network", "tcp", "a service on this machine"),
    called("network", "tcp_version_six", "a service on this machine"),
    called("network", "tcp_fast_open", "a connection without connect"),
    called("network", "multipath_tcp", "protocols beside TCP"),
    called("network", "udp", "a service on this machine"),
    called("network", "abstract_socket", "services without a file"),
    called("network", "named_socket", "services behind a file"),
    called("network", "system_services", "the services of the system"),
    called("network", "netlink", "the tables of the network"),
    called("network", "raw_sockets", "packets of its own making, and rare families of the kernel"),
    called("network", "names", "names, by asking a server"),
    called("network", "web", "the web, and the cloud's own service"),
    called("network", "a_service_of_its_own", "a door that the host could be led to"),
]

SECRETS = [
    called("secret", "message_queue_of_the_host", "messages between processes of the host"),
    called("secret", "environment", "variables of the trainer"),
    called("secret", "environment_of_others", "variables and arguments of other processes"),
    called("secret", "command_line_of_the_host", "arguments of the trainer"),
    called("secret", "secret_file", "a file with the answers"),
    called("secret", "home_folder", "keys and tokens"),
    called("secret", "system_secrets", "secrets of the system"),
    called("secret", "kernel_log", "the log of the kernel"),
    called("secret", "inherited_descriptors", "files that the trainer has open"),
    called("secret", "folder_of_the_trainer", "the data, with its answers"),
    called("secret", "scratch_of_other_runs", "other programs' files"),
    called("secret", "memory_of_the_runner", "secrets that the runner inherited"),
    called("secret", "project_above_the_packages", "tests, recipes and answers of a checkout or project", WITH_PACKAGES),
    called("secret", "project_by_descriptors", "the same through folders that the jail holds open", WITH_PACKAGES),
    called("secret", "project_by_import", "the same by making them modules or resources", WITH_PACKAGES),
    called("secret", "packages_overwritten", "the import packages themselves, for the next run to load", WITH_PACKAGES),
    HostileProgram(
        "script_environment",
        "secret",
        read_source("secret", "script_environment"),
        stdin="17\n",
        wanted_stdout="1\n",
        aims_at="variables of the trainer, in a script",
    ),
]
