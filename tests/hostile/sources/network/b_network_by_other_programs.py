# lets the shell, curl, wget, nc, perl and another interpreter make the connection
import shutil, subprocess, sys
COMMANDS = (
    ["bash", "-c", "echo @MARKER@ > /dev/tcp/127.0.0.1/@PORT@"],
    ["bash", "-c", "echo @MARKER@ > /dev/udp/127.0.0.1/@UDP_PORT@"],
    ["curl", "-m1", "http://127.0.0.1:@PORT@/@MARKER@"],
    ["wget", "-T1", "-t1", "-O-", "http://127.0.0.1:@PORT@/@MARKER@"],
    ["nc", "-w1", "127.0.0.1", "@PORT@"],
    ["perl", "-MIO::Socket::INET", "-e", "IO::Socket::INET->new(PeerAddr=>'127.0.0.1:@PORT@')->print('@MARKER@')"],
    [sys.executable, "-I", "-c", "import socket; socket.create_connection(('127.0.0.1', @PORT@), 1).send(b'@MARKER@')"],
)
def solve(n):
    for command in COMMANDS:
        if shutil.which(command[0]):
            try:
                print(subprocess.run(command, input=b"@MARKER@", capture_output=True, timeout=2))
            except (OSError, subprocess.TimeoutExpired) as error:
                print(error)
    return n
