
import pathlib, shutil, tempfile
def solve(text):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "one").write_text(text)
    shutil.copyfile(folder / "one", folder / "two")
    shutil.copy(folder / "one", folder / "three")
    shutil.copytree(folder, folder.with_name(folder.name + "x"))
    names = sorted(path.name for path in folder.with_name(folder.name + "x").iterdir())
    shutil.rmtree(folder)
    return [names, folder.exists()]
