#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/papers.md leads to what is there: each symbol of its tables compiles and is declared in the file that it links to,
each theorem is in its file of proofs/, each part of the experiments exists, and each claim has the recorded verdicts, of the
bundled models and of those that read; and of the equations, algorithms, lemmas, tables and figures of a paper none is left
out up to its last one, and no numbered statement.

usage: papers.py FOLDER [CXX [FLAG...]]
"""
import collections, json, pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
folder, cxx, flags = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "g++", sys.argv[3:]
page = ROOT / "docs/papers.md"
parts = {name for file in (ROOT / "research/experiments").glob("**/*.cpp")
         for name in re.findall(r'^    \{"([\w-]+)", (?:true|false)', file.read_text(), re.M)}
results = json.loads((ROOT / "docs/experiments/results.json").read_text())
judged, real = results["claims"], results["real"] or {}
claims = json.loads((ROOT / "research/experiments/claims.json").read_text())["claims"]
verdict = lambda of, id: of[id]["verdict"] if id in of else ""
verdicts = {c["claim"]: (verdict(judged, c["id"]), verdict(real, c["id"])) for c in claims}
# Of each paper the last number of each kind, and what is numbered otherwise.
DUE = {"Leviathan": ({"Algorithm": 1, "eq.": 1}, "Definition 3.1, Definition 3.2, Lemma 3.3, Corollary 3.4, Theorem 3.5, Corollary 3.6, Theorem 3.8, Corollary 3.9"),
       "Narasimhan": ({"eq.": 27, "Algorithm": 6, "Lemma": 8, "Remark": 2, "Table": 3, "Figure": 11}, "C.4"),
       "Fu": ({"eq.": 12, "Algorithm": 2, "Table": 10, "Figure": 8}, "section 3.2, Theorem 3.1, Theorem 3.2, Corollary 3.3, Corollary 3.4, Corollary 3.5, Theorem 3.6, Corollary 3.7"),
       "Liu": ({"eq.": 9, "Algorithm": 1, "Table": 1, "Figure": 13}, "abstract, section 7.1, Definition 4.1, Theorem 4.2, Definition 6.1, Corollary 6.3, Corollary 6.4, Corollary 6.5"),
       "Ning": ({"eq.": 15, "Algorithm": 2, "Table": 3, "Figure": 2}, "Corollary 3.1")}
wrong, includes, lines, rows = [], {}, [], 0


def declared(symbol, path):
    """Whether this file declares it: a theorem of a .v file, else a type, a concept or a function at column 0."""
    name, text = symbol.split("::")[-1], path.read_text()
    if path.suffix == ".v":
        return re.search(rf"^(Theorem|Lemma|Corollary) {name}\b", text, re.M)
    return re.search(rf"^(struct|class|enum class|concept|using)( \[\[nodiscard\]\])? {name}\b|^[^\s/#].*[ \]&*]{name}\(", text, re.M)


for section in re.split(r"^## ", page.read_text(), flags=re.M)[1:]:
    seen = collections.defaultdict(set)
    head, named = [], ""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if not line.startswith("| ") or cells[0] == "---":
            continue
        if not head:
            head = cells
            continue
        rows += 1
        kind = ""
        for part in cells[0].split(", "):  # Corollary 6.3, 6.4 are two corollaries
            kind = part.split(" ")[0] if " " in part else kind
            named += f", {part if ' ' in part or not part[0].isdigit() else f'{kind} {part}'}"
        place = f"docs/papers.md: {section.splitlines()[0]}, {cells[0]}"
        if len(cells) != len(head):
            wrong.append(f"{place}: has {len(cells)} cells, not {len(head)}")
            continue
        for numbers in (re.match(r"(eq\.|[A-Z][a-z]+) ((\d+)([-,] ?\d+)*)$", part) for part in re.split(r", (?=[A-Z])", cells[0])):
            for span in numbers[2].split(",") if numbers else ():
                first, last = (span.split("-") * 2)[:2]
                seen[numbers[1]] |= set(range(int(first), int(last) + 1))
        here = cells[head.index("function" if "function" in head else "here")]
        symbols = re.findall(r"\[`([^`]+)`\]\(([^)]+)\)", here)
        measured = re.findall(r"`--part ([\w-]+)`", here)
        if not symbols and not measured and not re.fullmatch(r"- \(.+\)", here):
            wrong.append(f"{place}: names no symbol, nor why there is none")
        wrong += [f"{place}: the experiments have no part {part}" for part in measured if part not in parts]
        for symbol, target in symbols:
            path = (page.parent / target).resolve()
            if not path.exists() or not declared(symbol, path):
                wrong.append(f"{place}: {symbol} is not declared in {target}")
            elif path.suffix == ".hpp":
                includes[path.relative_to(ROOT / "include").as_posix()] = None
                lines.append(f"namespace row_{len(lines)} {{ using specagg::{symbol}; }}  // {cells[0]}")
        if "function" in head:
            claim, *said = cells[3], *(re.sub(r"\*\*([\w ]+)\*\*.*", r"\1", cell) for cell in cells[4:])
            proved = claim not in verdicts and "](proofs.md" in cells[4]
            if claim and not proved and verdicts.get(claim) != tuple(said):
                wrong.append(f"{place}: \"{claim}\" is {verdicts.get(claim, 'no claim')}, not {said}")
    last, others = next((due for name, due in DUE.items() if section.startswith(name)), ({}, ""))
    wrong += [f"docs/papers.md: {section.splitlines()[0]}: no {other}" for other in others.split(", ") if other and f", {other}" not in named]
    for kind, most in last.items():
        lacking = sorted(set(range(1, most + 1)) - seen[kind])
        if lacking:
            wrong.append(f"docs/papers.md: {section.splitlines()[0]}: no {kind} {', '.join(map(str, lacking))}")

folder.mkdir(parents=True, exist_ok=True)
source = folder / "papers.cpp"
source.write_text("".join(f"#include <{header}>\n" for header in includes) + "\n".join(lines) + "\n")
ran = subprocess.run([cxx, "-std=c++20", "-DSPECAGG_ALLOW_SLOW", *flags, f"-I{ROOT}/include", "-fsyntax-only", source],
                     capture_output=True, text=True)
wrong += [line for line in ran.stderr.splitlines() if "error: " in line]
if wrong or not rows:
    sys.exit("\n".join(wrong) or "docs/papers.md has no rows")
print(f"{rows} rows, {len(lines)} symbols in {len(includes)} headers")
