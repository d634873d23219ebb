#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts and questions for the experiments with models that read, made from installed Debian packages: nothing is copied into
this project.

usage: texts.py FOLDER

Writes into FOLDER:
  manual.txt     reference: sections 2 and 7 of the Linux manual pages (manpages, manpages-dev; several free licences)
  handbook.txt   a textbook: The Debian Administrator's Handbook (debian-handbook; GPL-2+ or CC-BY-SA-3.0+)
  jargon.txt     a dictionary with anecdotes: The Jargon File (jargon-text; public domain)
  questions.tsv  task, text before the answer, answer: capitals of countries (kgeography-data; GPL-2+), codes of currencies
                 (miscfiles; GPL-2+)

Exit status 2, with one line on standard error, where a package is missing.
"""
import gzip, html.parser, pathlib, re, sys, xml.etree.ElementTree


def say_missing(package):
    sys.exit(print(f"texts.py: {package} is not installed (Debian: apt-get install {package})", file=sys.stderr) or 2)


def plain(roff):
    """The prose of a manual page: without its macros, tables and examples."""
    lines, skipped = [], None
    for line in roff.splitlines():
        if skipped:
            skipped = None if line.startswith(skipped) else skipped
            continue
        begin = line[:3]
        if begin in (".nf", ".EX", ".TS"):
            skipped = {".nf": ".fi", ".EX": ".EE", ".TS": ".TE"}[begin]
            continue
        macro = re.match(r"\.(SH|SS|PP|P|LP|TP|IP|B|I|BR|BI|IR|IB|RB|RI)\b *(.*)", line)
        if macro and macro[1] in ("PP", "P", "LP", "TP", "IP", "SH", "SS"):
            lines.append("")
        elif macro:
            words = [a or b for a, b in re.findall(r'"([^"]*)"|(\S+)', macro[2])]
            lines.append(("" if len(macro[1]) == 2 else " ").join(words))
        elif not line.startswith((".", "'")):
            lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\[&/,|^]", "", text)
    for name, character in (("-", "-"), ("e", "\\"), ("(aq", "'"), ("(lq", '"'), ("(rq", '"'), ("(en", "-"), ("(em", " - "),
                            ("(co", "(c)"), ("(bu", "-"), ("(ti", "~"), ("(ha", "^"), ("[aq]", "'"), ("[en]", "-"),
                            ("[em]", " - "), ("[lq]", '"'), ("[rq]", '"'), ("[rs]", "\\"), ("\"", "")):
        text = text.replace("\\" + name, character)
    return text


class Prose(html.parser.HTMLParser):
    """The paragraphs of a page."""
    def __init__(self):
        super().__init__()
        self.paragraphs, self.inside = [""], []

    def handle_starttag(self, tag, attributes):
        if tag == "div":
            self.inside.append(("class", "para") in attributes)
            self.paragraphs.append("")

    def handle_endtag(self, tag):
        if tag == "div" and self.inside:
            self.inside.pop()
            self.paragraphs.append("")

    def handle_data(self, data):
        if self.inside and self.inside[-1]:
            self.paragraphs[-1] += data


def paragraphs(text, least=160):
    """English paragraphs of ASCII characters, on one line each; short ones are headings and lists."""
    for one in re.split(r"\n\s*\n", text):
        one = " ".join(one.split())
        if len(one) >= least and one.isascii() and one[0].isupper() and one[-1] in '.:)"':
            yield one


def files(package, pattern):
    found = sorted(pathlib.Path("/").glob(pattern))
    return found or say_missing(package)


def manual():
    for package, pattern in (("manpages", "usr/share/man/man7/*.gz"), ("manpages-dev", "usr/share/man/man2/*.gz")):
        for page in files(package, pattern):
            roff = gzip.open(page, "rt", errors="replace").read()
            if not page.is_symlink() and "man-pages" in roff[:4000]:
                yield from paragraphs(plain(roff))


def handbook():
    for page in files("debian-handbook", "usr/share/doc/debian-handbook/html/en-US/*.html"):
        prose = Prose()
        prose.feed(page.read_text(errors="replace"))
        yield from paragraphs("\n\n".join(prose.paragraphs))


def jargon():
    yield from paragraphs(gzip.open(files("jargon-text", "usr/share/doc/jargon-text/jargon.txt.gz")[0], "rt", errors="replace").read())


CAPITAL = "The capital of Italy is Rome.\nThe capital of Peru is Lima.\nThe capital of {} is"
CODE = "The code of the Swiss franc is CHF.\nThe code of the Japanese yen is JPY.\nThe code of the {} is"


def questions():
    world = xml.etree.ElementTree.parse(files("kgeography-data", "usr/share/kgeography/world.kgm")[0])
    for division in world.iter("division"):
        country, capital = division.findtext("name"), division.findtext("capital")
        if capital and country.isascii() and capital.isascii() and country not in ("Italy", "Peru"):
            yield "capital", CAPITAL.format(country), f" {capital}"
    for line in gzip.open(files("miscfiles", "usr/share/misc/currency.gz")[0], "rt", errors="replace"):
        code, _, name = line.strip().split(":") if line.count(":") == 2 else ("", "", "")
        if re.fullmatch("[A-Z]{3}", code) and name.isascii() and code not in ("CHF", "JPY"):
            yield "code", CODE.format(name), f" {code}"


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit(print(__doc__.strip()) or (0 if arguments == ["--help"] else 2))
    folder = pathlib.Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, of in (("manual", manual), ("handbook", handbook), ("jargon", jargon)):
        (folder / f"{name}.txt").write_text("\n\n".join(dict.fromkeys(of())) + "\n")
    (folder / "questions.tsv").write_text("".join("\t".join(q).replace("\n", "\\n") + "\n" for q in questions()))


main(sys.argv[1:])
