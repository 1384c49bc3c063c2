"""`cohort dashboard`: run folders live in a browser. It only reads files, imports no user code, and has no route that changes anything.

A page is a function listed in `app.py`. It returns sections as the report does, so the dashboard uses the report's charts, tables and
styles. `guard.py` checks every request, `run_index.py` finds the runs that may be shown.
"""
