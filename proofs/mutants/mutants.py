#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Changes one definition of the proofs at a time. For each change: the proofs must fail, and the theorem named must be
# false for the changed definition, which a counter-example proves (checked by Coq, without axioms).
# usage: proofs/mutants/mutants.py [NAME...]   after `make proofs`
import pathlib, re, shutil, subprocess, sys

here = pathlib.Path(__file__).resolve().parent
proofs, built, work = here.parent, here.parent.parent / "build/proofs", here.parent.parent / "build/mutants"
modules = [line[:-2] for line in (proofs / "_CoqProject").read_text().split() if line.endswith(".v")]


def coqc(module):
    return subprocess.run(["timeout", "100", "coqc", "-q", "-w", "none", "-R", ".", "specagg", module + ".v"], cwd=work,
                          capture_output=True, text=True)


def parts(text):  # (* name: x *), (* changes: file *), (* theorem: x *), then pairs of old and new, then the lemma
    head = dict(re.findall(r"\(\* (\w+): (.*?) \*\)", text))
    edits = re.findall(r"\(\* was:\n(.*?)\n   now:\n(.*?) \*\)\n", text, re.S)
    return head, edits


def run(path):
    head, edits = parts(path.read_text())
    module, theorem = head["changes"][:-2], head["theorem"]
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(built, work)
    text = (proofs / head["changes"]).read_text()
    for old, new in edits:
        if text.count(old) != 1:
            return f"{path.stem}: {head['changes']} does not have once: {old}"
        text = text.replace(old, new)
    (work / head["changes"]).write_text(text)
    result = coqc(module)
    if result.returncode == 0:
        return f"{path.stem}: the proofs accept it"
    line = int(re.search(r"line (\d+)", result.stderr)[1])
    failed = re.findall(r"^(?:Lemma|Theorem|Corollary) (\w+)", "\n".join(text.split("\n")[:line]), re.M)[-1]
    # The definitions alone, for the counter-example: it must not use what is not proved.
    for later in modules[modules.index(module):]:
        if later in head["needs"].split():
            source = text if later == module else (proofs / f"{later}.v").read_text()
            (work / f"{later}.v").write_text(re.sub(r"\bProof\..*?\bQed\.", "Admitted.", source, flags=re.S))
            result = coqc(later)
            if result.returncode:
                return f"{path.stem}: {later}.v: {result.stderr}"
    (work / "counter.v").write_text(path.read_text() + "\nPrint Assumptions counter.\n")
    result = coqc("counter")
    if result.returncode or "Closed under the global context" not in result.stdout:
        return f"{path.stem}: no counter-example: {result.stdout}{result.stderr}"
    print(f"{path.stem}: {theorem} is false; the proof of {failed} ({head['changes']}) fails", flush=True)


errors = 0
for path in sorted(here.glob("*.v")):
    if not sys.argv[1:] or path.stem in sys.argv[1:]:
        error = run(path)
        if error:
            errors += 1
            print(error, flush=True)
sys.exit(errors > 0)
