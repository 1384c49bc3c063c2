import sys
print(sys.stdin.read())
print(sys.stdin.read())
print(input())
