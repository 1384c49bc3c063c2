# a frame whose file name is the secret file: whoever prints the traceback quotes the line, in the jail or in the host
import linecache, traceback
code = compile("raise ValueError('look at line one')", "@SECRET_FILE@", "exec")
def solve(n):
    print(linecache.getline("@SECRET_FILE@", 1))
    try:
        exec(code, {})
    except ValueError:
        print(traceback.format_exc())
    if n == 18:
        raise SyntaxError("bad", ("@SECRET_FILE@", 1, 1, None))
    exec(code, {})
