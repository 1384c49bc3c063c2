
import json, re, string, textwrap, unicodedata, difflib
def solve(text):
    words = re.findall(r"(?P<w>\w+)", text)
    record = json.loads(json.dumps({"words": words, "x": [1.5, None, True]}, indent=1))
    return [record["words"], re.sub(r"(\w)(\w*)", lambda m: m[2] + m[1], text), unicodedata.normalize("NFC", "e\u0301"),
            string.Template("$a").substitute(a=1), textwrap.fill("a b c", 3), f"{3.14159:>10.2f}|{255:#x}"]
