
import sys
def main():
    print("main ran", sys.argv[1:], file=sys.stdout)
    print("to standard error", file=sys.stderr)
    sys.exit(0)
if __name__ == "__main__":
    main()
