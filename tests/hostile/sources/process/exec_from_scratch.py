import os
def solve(x):
    with open('tool', 'w') as file:
        file.write('#!/bin/sh\ntouch @CANARY@/tool\nsleep 60\n')
    os.chmod('tool', 0o6777)
    os.execv('./tool', ['tool'])
