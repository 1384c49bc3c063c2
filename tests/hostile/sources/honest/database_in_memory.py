
import sqlite3
def solve(n):
    with sqlite3.connect(":memory:") as database:
        database.execute("create table t (a integer, b text)")
        database.executemany("insert into t values (?, ?)", [(k, str(k)) for k in range(n)])
        inside = database.execute("select sum(a), max(b) from t where a % 2 = 0").fetchone()
    with sqlite3.connect("file.db") as database:
        database.execute("create table u (a)")
        database.execute("insert into u values (5)")
        database.commit()
    with sqlite3.connect("file.db") as database:
        return [inside, database.execute("select a from u").fetchone()]
