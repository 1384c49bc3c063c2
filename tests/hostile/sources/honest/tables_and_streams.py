
import configparser, csv, html, io, pprint, urllib.parse, xml.etree.ElementTree as tree
def solve(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    out = io.StringIO()
    csv.writer(out).writerows([["a", "b,c"], [1, None]])
    parser = configparser.ConfigParser()
    parser.read_string("[s]\nk = v")
    return [rows, out.getvalue(), parser["s"]["k"], html.escape("<&>"), urllib.parse.urlsplit("http://h/p?q=1").query,
            tree.fromstring("<a><b>1</b></a>").find("b").text, io.BytesIO(b"abc").read(2)]
