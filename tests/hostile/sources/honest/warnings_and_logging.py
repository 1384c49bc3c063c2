
import contextvars, logging, sys, traceback, warnings
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
current = contextvars.ContextVar("current", default=1)
def solve():
    logging.getLogger("a.b").info("said %s", "this")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning)
    token = current.set(2)
    inside = current.get()
    current.reset(token)
    try:
        1 / 0
    except ZeroDivisionError:
        text = traceback.format_exc()
    warnings.warn("seen on standard error")
    return [str(caught[0].message), inside, current.get(), "ZeroDivisionError" in text]
