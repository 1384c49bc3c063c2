
import os, tempfile
def solve(text):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a", "b.txt")
        os.makedirs(os.path.dirname(path))
        with open(path, "w") as file:
            file.write(text)
        os.rename(path, path + ".new")
        with open(path + ".new") as file:
            first = file.read()
    with tempfile.TemporaryFile("w+") as file:
        file.write(text * 2)
        file.seek(0)
        second = file.read()
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("x")
    os.unlink(file.name)
    return [first, second, os.path.exists(folder)]
