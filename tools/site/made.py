# SPDX-License-Identifier: Apache-2.0
"""Pages of the site that are made from what is no Markdown: the manual page, and the list of versions."""
import html, pathlib, re, subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build/bin/specagg"
ESCAPES = {r"\(aq": "'", r"\(ha": "^", r"\(ti": "~", r"\(ga": "`", r"\e": "\\", r"\-": "-", r"\&": "", r"\fB": "<b>", r"\fI": "<i>"}


def shown(text):
    """A line of the manual page as HTML. It has the escapes that tools/cli/manual.cpp writes, and no others."""
    out, end = [], ""
    for part in re.split(r"(\\f[BIR]|\\\(..|\\[-e&])", text):
        if part == r"\fR":
            out.append(end)
        elif part in (r"\fB", r"\fI"):
            out.append(ESCAPES[part])
            end = ESCAPES[part].replace("<", "</")
        else:
            out.append(html.escape(ESCAPES.get(part, part), quote=False))
    return re.sub(r" ?<i></i>", "", "".join(out))


def manual(roff):
    """Markdown of the page that `specagg man` prints: a heading for each section, a list of options, text as printed."""
    lines = iter(roff.splitlines())
    out, kind = ["# The manual page\n\nWhat `specagg man` prints.\n"], None

    def go_on(wanted, tag=None):
        nonlocal kind
        if kind and kind != wanted:
            out.append({"dl": "</dd></dl>", "pre": "</pre>", "p": "</p>"}[kind])
        if wanted and kind != wanted:
            out.append(tag or f"<{wanted}>")
        kind = wanted

    for line in lines:
        macro, _, text = line.partition(" ")
        if macro == ".SH":
            go_on(None)
            out.append(f"\n## {shown(text)}\n")
        elif macro == ".TP":
            if kind == "dl":
                out.append("</dd>")
            go_on("dl", '<dl class="parameters">')
            out.append(f"<dt>{shown(next(lines))}</dt><dd>")
        elif macro in (".B", ".I"):
            go_on("p")
            out.append(f"<{macro[1].lower()}>{shown(text)}</{macro[1].lower()}>")
        elif macro == ".nf":
            go_on("pre")
        elif macro == ".br":
            out.append("<br>")
        elif macro in (".fi", ".PP"):
            go_on(None)
        elif macro not in (".TH", ".nh", ".ad", ".ft"):
            go_on(kind or "p")
            out.append(shown(line))
    go_on(None)
    return re.sub(r"(?m)<pre>\n", "<pre>", "\n".join(out)) + "\n"


def git(*words):
    done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def versions(changelog):
    """Markdown of a table of the versions that CHANGELOG.md names, with the tags that they have."""
    tags = git("tag").split()
    commit = git("log", "-1", "--format=%h of %cs")
    out = ["# Versions\n", "These pages describe the sources" + (f" at commit {commit}" if commit else "") + ".\n",
           "| Version | Date |\n| --- | --- |"]
    for title in re.findall(r"(?m)^## (.+)$", changelog):
        name, _, date = title.partition(" ")
        tag = next((t for t in (f"v{name}", name) if t in tags), "")
        place = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())  # as mkdocs names a heading
        out.append(f"| [{name}](CHANGELOG.md#{place}){tag and f', tag `{tag}`'} | {date.strip('()')} |")
    return "\n".join(out) + "\n\nThe pages of another version: `git checkout` its tag, then `make site`.\n"


def pages():
    """{name: Markdown}. Without build/bin/specagg there is no manual page."""
    found = {"versions.md": versions((ROOT / "CHANGELOG.md").read_text())}
    if PROGRAM.exists():
        roff = subprocess.run([PROGRAM, "man"], capture_output=True, text=True, check=True).stdout
        found["reference/manual.md"] = manual(roff)
    return found
