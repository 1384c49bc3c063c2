"""`cohort dashboard`: run folders in a browser, live. It reads files and never imports a user's code, and has no route that changes anything.

A page is a function in a file of its own and a line in the table of `app.py`; it gives sections as the report does, so that charts, tables
and styles are those of the report. `guard.py` stands before every route, `shelf.py` knows which runs may be shown.
"""
