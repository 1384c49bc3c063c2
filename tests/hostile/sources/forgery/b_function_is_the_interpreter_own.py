# the functions are input, abort, exec and exit: reading the request channel, dying, running the argument
import os
first = input
second = os.abort
third = exit
fourth = breakpoint
