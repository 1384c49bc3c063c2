# reads the planted file by open, mmap, link, tokenizer, import, shell, another root and a copy in the kernel
import ctypes, glob, importlib.util, linecache, mmap, os, pathlib, shutil, subprocess, tempfile, tokenize
PATH = "@SECRET_FILE@"
def linked(make):
    name = tempfile.mkdtemp(prefix="cohort-canary-") + "/x"
    make(PATH, name)
    return open(name).read()
def mapped():
    with open(PATH, "rb") as handle:
        return mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)[:]
def by_c():
    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(4096)
    fd = libc.open(PATH.encode(), 0)
    libc.read(fd, buffer, 4096)
    return buffer.value
def solve(n):
    for door in (
        lambda: open(PATH).read(),
        lambda: pathlib.Path(PATH).read_bytes(),
        lambda: open("/proc/self/root" + PATH).read(),
        lambda: open("/proc/1/root" + PATH).read(),
        lambda: open("/proc/@HOST_PID@/root" + PATH).read(),
        lambda: open("../" * 20 + PATH.lstrip("/")).read(),
        lambda: linked(os.link),
        lambda: linked(os.symlink),
        lambda: linked(shutil.copy),
        mapped,
        by_c,
        lambda: linecache.getlines(PATH),
        lambda: list(tokenize.generate_tokens(open(PATH).readline)),
        lambda: importlib.util.spec_from_file_location("x", PATH).loader.get_data(PATH),
        lambda: subprocess.run(["cat", PATH], capture_output=True, timeout=1).stdout,
        lambda: subprocess.run(["dd", "if=" + PATH], capture_output=True, timeout=1).stdout,
        lambda: subprocess.run(["sh", "-c", ". " + PATH], capture_output=True, timeout=1).stderr,
        lambda: [open(p).read() for p in glob.glob(os.path.dirname(PATH) + "/*")],
    ):
        try:
            print(door())
        except Exception as error:
            print(type(error).__name__, error)
    return n
