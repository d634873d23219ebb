#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""research/experiments/passages/documents.py: pages of the manual, plain texts and HTML become paragraphs; without a package
it says which; where Debian's packages are, no answer and no page is held out and given as a passage, and each question's
answer is what the passages say.

usage: documents.py
"""
import importlib.util, pathlib, re, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
script = ROOT / "research" / "experiments" / "passages" / "documents.py"
spec = importlib.util.spec_from_file_location("documents", script)
documents = importlib.util.module_from_spec(spec)
spec.loader.exec_module(documents)

page = r'''.\" a comment
.TH frob 3 2026-01-01 "Linux man-pages 6"
.SH NAME
frob, frobnicate \- turn a \fIknob\fP
.SH SYNOPSIS
.nf
.B #include <frob.h>
.BI "int frob(int " knob ", char *" name );
.fi
.TS
l l.
left	out
.TE
.SH DESCRIPTION
It turns
.IR knob .
See
.BR bind (2),
\(lqthe\(rq manual\[aq]s page.
.PP
Another\~paragraph.
'''
title, lines = documents.of_roff(page)
assert title == "frob", title
assert lines == ["NAME", "frob, frobnicate - turn a knob", "SYNOPSIS", "#include <frob.h>", "int frob(int knob, char *name);", "DESCRIPTION",
                 "It turns knob. See bind(2), \"the\" manual's page.", "Another paragraph."], lines
assert documents.of_roff(".so man3/frob.3\n") is None
assert documents.held_out([str(i) for i in range(100)]) == documents.held_out([str(i) for i in reversed(range(100))])
assert len(documents.held_out([str(i) for i in range(100)])) == 10

if any(not path.exists() for path in documents.NEEDED.values()):
    r = subprocess.run([script, "/nowhere"], capture_output=True, text=True)
    assert r.returncode == 2 and r.stderr.count("\n") == 1 and "apt-get install" in r.stderr, r
    sys.exit(print("documents.py: its messages; the packages are not installed"))
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder) / "of"
    subprocess.run([script, folder], check=True)
    passages = {p.stem.split(".")[0]: p.read_text() for p in (folder / "passages" / "manual").glob("*.txt")}
    questions = [line.split("\t") for line in (folder / "questions.tsv").read_text().splitlines()]
    assert len(questions) >= 200 and len(passages) > 200
    for purpose, answer in questions:
        assert re.search(rf"^{answer}\b.* - {re.escape(purpose)}$", passages[answer], re.M), answer
        assert answer.strip("_") not in purpose.lower(), answer
    for kind in ("books", "manual"):
        test = (folder / f"{kind}.test.txt").read_text()
        long = {line for line in test.splitlines() if len(line) > 200}
        seen = {line for p in (folder / "passages" / kind).glob("*.txt") for line in p.read_text().splitlines()}
        assert len(long - seen) > 0.8 * len(long) > 20, f"{kind}: {len(long & seen)} of {len(long)} long held-out paragraphs are passages"
print(f"documents.py: {len(questions)} questions of {len(passages)} pages")
