"""Programs that forge their verdict: forged replies, values that lie, a patched runner, an early exit."""

from __future__ import annotations

from hostile.programs import SECRET_NUMBER, SECRET_WORD, SOLVE, Ask, HostileProgram, read_source

NONE_WANTED = (Ask("solve", (17,), None),)
"""For programs that never return: a call without an answer must not read as one that returned None."""


def _forgery(name: str, aims_at: str, calls: tuple[Ask, ...] = SOLVE) -> HostileProgram:
    return HostileProgram(name, "forgery", read_source("forgery", name), calls=calls, aims_at=aims_at)


FORGERY = [
    _forgery("exit_at_load", "status 0 read as all tests passed", NONE_WANTED),
    _forgery("exit_in_call", "status 0 read as passed", NONE_WANTED),
    _forgery("os_exit_at_load", "status 0 read as all tests passed", NONE_WANTED),
    _forgery("os_exit_in_call", "status 0 read as passed", NONE_WANTED),
    _forgery("exit_with_answer", "the payload of SystemExit read as a value", NONE_WANTED),
    _forgery("abort_in_call", "death read as None", NONE_WANTED),
    _forgery("print_pass", "a verdict parsed from output"),
    _forgery("frames_everywhere_at_load", "replies written before any call was made"),
    _forgery("frames_everywhere_in_call", "a forged reply instead of an answer", SOLVE),
    _forgery("frames_from_a_thread", "forged replies between the true ones"),
    _forgery("frames_at_exit", "replies written while the interpreter ends"),
    _forgery("frames_of_garbage", "a crash of the host's parser, read as a fault of the verifier (unscored instead of wrong)"),
    _forgery("frames_half_sent", "a host that waits for the rest of a frame for ever"),
    _forgery("frames_of_huge_length", "a host that allocates what a frame announces"),
    _forgery("frames_nested_deeply", "RecursionError in the host, read as a fault of the verifier"),
    _forgery("always_equal", "a value equal to every expectation"),
    _forgery("always_equal_number", "a subclass of int that equals every expectation"),
    _forgery("always_equal_text", "a subclass of str that equals every expectation"),
    _forgery("always_equal_containers", "containers that equal every expectation, and an endless items()"),
    _forgery("false_class", "an object that says it is an int"),
    _forgery("lying_metaclass", "a type that equals the types that are let through"),
    _forgery("reduce_on_the_host", "code that runs in the host when the value is loaded"),
    _forgery("pickles_on_every_descriptor", "code that runs in the host when a frame is loaded"),
    _forgery("patched_builtins", "a runner that believes what the program put into builtins"),
    _forgery("patched_write", "the runner's replies changed on their way out"),
    _forgery("patched_modules", "the functions that the runner will call next"),
    _forgery("patched_through_gc", "the code of the runner's own functions"),
    _forgery("read_frames_of_the_caller", "the expected values, in the memory of the runner"),
    _forgery("read_all_objects", "the expected values, anywhere in the process"),
    _forgery("patched_by_ctypes", "what integers mean in the process that compares"),
    _forgery("traced_runner", "local variables of the runner, by sys.settrace"),
    _forgery("signal_handlers", "a last word when the limit strikes"),
    _forgery(
        "closed_descriptors",
        "an end of file read as success or as a fault of the verifier",
        (Ask("solve", (17,), SECRET_NUMBER),),
    ),
    _forgery("swapped_descriptors", "replies and output exchanged", (Ask("solve", (17,), SECRET_NUMBER),)),
    _forgery("drained_requests", "calls, and perhaps their answers, read from the runner's pipe"),
    _forgery("exception_without_a_name", "an exception whose empty name reads as 'it returned'", NONE_WANTED),
    _forgery("exception_with_a_lying_name", "an exception whose name is computed, and empty", NONE_WANTED),
    _forgery(
        "exception_with_a_broken_name",
        "a runner that fails on the name of an exception",
        (Ask("solve", (17,), None), Ask("solve", (4,), None)),
    ),
    _forgery("exception_that_exits", "the end of the process while its error is described", NONE_WANTED),
    _forgery(
        "exception_of_the_runner", "an exception that `except Exception` does not catch, and whose text raises", NONE_WANTED
    ),
    _forgery(
        "generator_exit_in_call",
        "exceptions that the machinery uses for itself",
        (Ask("solve", (17,), None), Ask("solve", (4,), None)),
    ),
    _forgery("import_hooks", "modules that the runner imports late"),
    _forgery("module_without_a_module", "a function that exists only as an answer to everything"),
    _forgery("lazy_answer", "a generator whose items are asked for when the expectation is known"),
    _forgery("late_answer", "a coroutine in the place of a value"),
    _forgery("cyclic_answer", "a value without an end"),
    _forgery("not_a_number", "comparisons that are false both ways"),
    _forgery("surrogates_in_answer", "a value that cannot be encoded, read as a fault of the verifier"),
    _forgery("changed_while_read", "a value that changes while it is checked and sent"),
    _forgery("keys_that_cannot_be_hashed", "a dict that only the program can build: TypeError when the host rebuilds it"),
    _forgery("unprintable_streams", "a runner that fails when it flushes", NONE_WANTED),
    _forgery(
        "poison_for_the_next_run", "files that the next program, or the next runner, imports (the next program looks for them)"
    ),
    _forgery("poison_of_an_earlier_run", "what an earlier program left"),
    _forgery(
        "hash_collisions_in_a_reply",
        "a host that builds a set of numbers that all have the same hash: quadratic time outside every limit",
        (SOLVE[0],),
    ),
    _forgery("hash_collisions_in_keys", "the same with the keys of a dict", (SOLVE[0],)),
    _forgery(
        "hash_collisions_in_every_reply",
        "many such replies, each below whatever is allowed for one",
        tuple(Ask("solve", (place,), SECRET_NUMBER) for place in range(20)),
    ),
    _forgery(
        "many_small_lists_in_a_reply", "a frame that is small on the pipe and large in the memory of the host", (SOLVE[0],)
    ),
    _forgery("small_objects_in_a_frame", "the same, with what is no value at all: only read as JSON", (SOLVE[0],)),
    _forgery("digits_in_a_frame", "quadratic time to read a number", (SOLVE[0],)),
    _forgery(
        "malformed_tags",
        "replies that only nearly follow the protocol: an exception in the host",
        tuple(Ask("solve", (place,), SECRET_NUMBER) for place in range(30)),
    ),
    _forgery("empty_frames", "frames of no bytes"),
    HostileProgram(
        "script_exit_before_output",
        "forgery",
        read_source("forgery", "script_exit_before_output"),
        stdin="17\n",
        wanted_stdout=f"{SECRET_NUMBER}\n",
        aims_at="status 0 without the output that was asked for",
    ),
    HostileProgram(
        "script_looks_for_the_output",
        "forgery",
        read_source("forgery", "script_looks_for_the_output"),
        stdin="17\n",
        wanted_stdout=f"{SECRET_WORD}\n",
        aims_at="the expected output in a file or descriptor of the jail",
    ),
    HostileProgram(
        "script_waits_for_more_input",
        "forgery",
        read_source("forgery", "script_waits_for_more_input"),
        stdin="17\n",
        wanted_stdout=f"{SECRET_NUMBER}\n",
        aims_at="a standard input that never ends",
    ),
]
