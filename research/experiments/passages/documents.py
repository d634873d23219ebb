#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documents: English text from Debian's packages, for the experiments with documents and models that read.

usage: documents.py FOLDER     FOLDER/passages/{books,manual}/*.txt; FOLDER/{books,manual}.test.txt: held out;
                           FOLDER/questions.tsv: purpose, answer

  books   developers-reference (GPL-2+), debian-policy (GPL-2+), debian-handbook (GPL-2+ or CC-BY-SA-3.0)
  manual  manpages-dev: sections 2 and 3 of the Linux manual (each page under a free licence of its own)
Every tenth chapter of the books and every tenth page of the manual is held out, in the order of the SHA-256 of their names.
A question is the purpose of a function, its answer the name, as they stand in the section NAME of a page of the passages.
Exit status 2, with one line on standard error, if a package is not installed.
"""
import gzip, hashlib, html.parser, pathlib, re, shutil, sys

SHARE = pathlib.Path("/usr/share")
NEEDED = {"debian-policy": SHARE / "doc/debian-policy/policy.txt.gz",
          "developers-reference": SHARE / "developers-reference/developers-reference.txt.gz",
          "debian-handbook": SHARE / "doc/debian-handbook/html/en-US",
          "manpages-dev": SHARE / "man/man3/printf.3.gz"}
BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "li", "dt", "dd", "div", "tr", "title"}


class Paragraphs(html.parser.HTMLParser):
    """The paragraphs of a page. Left out: what belongs to no text (navigation, scripts, programs)."""
    def __init__(self):
        super().__init__()
        self.done, self.now, self.skip = [], "", []

    def end(self):
        text = " ".join(self.now.split())
        self.now = ""
        if text:
            self.done.append(text)

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "style", "pre", "head") or (tag == "ul" and "docnav" in (dict(attributes).get("class") or "")):
            self.skip.append(tag)
        elif self.skip and tag == self.skip[-1]:
            self.skip.append(tag)
        if tag in BLOCKS:
            self.end()

    def handle_endtag(self, tag):
        if self.skip and tag == self.skip[-1]:
            self.skip.pop()
        if tag in BLOCKS:
            self.end()

    def handle_data(self, data):
        if not self.skip:
            self.now += data


def of_html(path):
    reader = Paragraphs()
    reader.feed(path.read_text())
    reader.end()
    return "\n".join(p for p in reader.done if len(p.split()) > 3)


def of_plain(path):
    """The paragraphs of a text with lines of a fixed width, without its table of contents and its rulers."""
    text = gzip.decompress(path.read_bytes()).decode()
    paragraphs = (" ".join(p.split()) for p in re.split(r"\n[ \t]*\n", text))
    return [p for p in paragraphs if len(p.split()) > 3 and not re.search(r"(\. ){4}|[-=*~^]{6}|_{6}", p)]


ESCAPES = {r"\-": "-", r"\(aq": "'", r"\(dq": '"', r"\(en": "-", r"\(em": "--", r"\(bu": "*", r"\(co": "(c)", r"\(ti": "~", r"\(ha": "^",
           r"\(rs": "\\", r"\(lq": '"', r"\(rq": '"', r"\(oq": "'", r"\(cq": "'", r"\(+-": "+-", r"\(mu": "*", r"\(<=": "<=", r"\(>=": ">=",
           r"\e": "\\", r"\ ": " ", r"\~": " ", r"\&": "", r"\|": "", r"\^": "", r"\/": "", r"\,": "", r"\%": "", r"\:": "", r"\c": "", r"\0": " "}


def of_roff(source):
    """A page of the manual as text: (title, lines). None: it only refers to another page."""
    lines, now, table, title = [], "", False, None

    def plain(text):
        text = re.sub(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\[hvw]'[^']*'", "", text)
        text = re.sub(r"\\\[(..)\]", r"\\(\1", text)
        return re.sub(r"\\(\(..|.)", lambda m: ESCAPES.get(m[0], ""), text)

    def end():
        nonlocal now
        if now.strip():
            lines.append(now.strip())
        now = ""

    literal = False
    for line in source.split("\n"):
        if line.startswith((".so ", ".mso")):
            return None
        if line.startswith((".\\\"", "'\\\"", ".\\")):
            continue
        if line.startswith(".TS"):
            table = True
        if line.startswith(".TE"):
            table = False
        if table:
            continue
        if not line.startswith((".", "'")):
            text = plain(re.sub(r'\\".*', "", line))
        else:
            words = re.findall(r'"((?:[^"]|"")*)"|(\S+)', re.sub(r'\\".*', "", line[1:]))
            words = [a or b for a, b in words]
            macro, rest = (words[0], words[1:]) if words else ("", [])
            if macro == "TH":
                title = rest[0] if rest else None
            if macro in ("SH", "SS"):
                end()
                lines.append(plain(" ".join(rest)))
            if macro in ("PP", "P", "LP", "TP", "TQ", "IP", "SH", "SS", "HP", "RS", "RE", "nf", "fi", "EX", "EE", "br", "sp", "in"):
                end()
                literal = True if macro in ("nf", "EX") else False if macro in ("fi", "EE") else literal
            if macro in ("B", "I", "SM", "SB"):
                text = plain(" ".join(rest))
            elif macro in ("BR", "RB", "IR", "RI", "BI", "IB"):
                text = plain("".join(rest))
            elif macro == "IP" and rest:
                text = plain(rest[0])
            else:
                continue
        if literal:
            end()
            now = text
            end()
        else:
            now += " " + text
    end()
    return title, lines


def digest(name):
    return hashlib.sha256(name.encode()).hexdigest()


def held_out(names):
    return set(sorted(names, key=digest)[::10])


def main(out):
    missing = [package for package, path in NEEDED.items() if not path.exists()]
    if missing:
        sys.exit(print(f"documents.py: not installed: {' '.join(missing)} (Debian: apt-get install {' '.join(missing)})", file=sys.stderr) or 2)
    books = {"handbook-" + p.stem: of_html(p) for p in sorted(NEEDED["debian-handbook"].glob("*.html"))}
    for name in ("debian-policy", "developers-reference"):
        paragraphs = of_plain(NEEDED[name])
        for i in range(0, len(paragraphs), 40):
            books[f"{name}-{i // 40:03}"] = "\n".join(paragraphs[i:i + 40])
    books = {name: text for name, text in books.items() if len(text.split()) > 100}
    pages = {}
    for path in sorted([*SHARE.glob("man/man2/*.2.gz"), *SHARE.glob("man/man3/*.3.gz")]):
        if path.is_symlink():
            continue
        try:
            page = of_roff(gzip.decompress(path.read_bytes()).decode())
        except UnicodeDecodeError:
            continue
        if page and page[0] and "Linux man-pages" in gzip.decompress(path.read_bytes()).decode()[:4000]:
            pages[path.name.removesuffix(".gz")] = page[1]
    shutil.rmtree(out, ignore_errors=True)
    for kind, texts in (("books", books), ("manual", {name: "\n".join(lines) for name, lines in pages.items()})):
        (out / "passages" / kind).mkdir(parents=True)
        apart = held_out(texts)
        for name in sorted(set(texts) - apart):
            (out / "passages" / kind / f"{name}.txt").write_text(texts[name] + "\n")
        (out / f"{kind}.test.txt").write_text("".join(texts[name] + "\n" for name in sorted(apart)))
    questions = {}
    for name in sorted(set(pages) - held_out(pages), key=digest):
        lines = pages[name]
        at = lines.index("NAME") + 1 if "NAME" in lines else len(lines)
        found = re.fullmatch(r"([a-z_0-9]+)(?:, [\w, ]+)? - (.+)", lines[at]) if at < len(lines) else None
        # the purpose says nothing of the name, and no other page has the purpose
        if found and name.split(".")[0] == found[1] and found[1].strip("_") not in found[2].lower() and len(found[2].split()) > 2:
            questions.setdefault(found[2], []).append(found[1])
    (out / "questions.tsv").write_text("".join(f"{q}\t{a[0]}\n" for q, a in questions.items() if len(a) == 1))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(print(__doc__) if "--help" in sys.argv else print("usage: documents.py FOLDER", file=sys.stderr) or 2)
    main(pathlib.Path(sys.argv[1]))
