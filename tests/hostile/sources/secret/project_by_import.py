import importlib, importlib.util, linecache, os, runpy, sys, zipimport
def tried(what, attempt):
    try:
        if got := attempt():
            print('BREACH', what, repr(got)[:80])
    except BaseException:
        pass
def solve(x):
    for folder in ('@PROJECT@', '@PROJECT@/tests', '@PROJECT@/recipes', '@PROJECT@/src/..', *[path + '/../../../../..' for path in sys.path]):
        sys.path.insert(0, folder)
        for name in ('test_answers', 'tests.test_answers', 'hostile.programs', 'tests.hostile.programs', 'recipes.own'):
            tried('imported ' + name, lambda: importlib.import_module(name))
        file = folder + '/test_answers.py'
        tried('loaded ' + file, lambda: importlib.util.spec_from_file_location('t', file).loader.get_data(file))
        tried('ran ' + file, lambda: runpy.run_path(file))
        tried('lines of ' + file, lambda: linecache.getlines(file)[0])
        tried('archive ' + folder, lambda: zipimport.zipimporter(folder))
        tried('listed ' + folder, lambda: [name for name in os.listdir(folder) if name in ('answers.jsonl', 'recipes', 'tests')][0])
        sys.path.pop(0)
    for package in ('cohort', 'cohort_verify'):
        from importlib import resources
        for name in ('../answers.jsonl', '../../answers.jsonl', '../../../../../answers.jsonl', '../../tests/test_answers.py'):
            tried('resource ' + name, lambda: resources.files(package).joinpath(name).read_text())
            tried('data ' + name, lambda: importlib.import_module('pkgutil').get_data(package, name))
    return 1
