#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program of examples/ ends with its own output, as a comment: a line `// Output:`, then each line after `// `.
Runs the program and compares the two.

usage: output.py [--write] SOURCE PROGRAM...     --write: puts what the program prints into SOURCE
"""
import difflib, pathlib, subprocess, sys

write = sys.argv[1:2] == ["--write"]
source, *command = sys.argv[1 + write:]
ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
if ran.returncode != 0:
    sys.exit(f"{source}: the program's exit status is {ran.returncode}\n{ran.stdout}")
program, _, block = pathlib.Path(source).read_text().partition("\n// Output:\n")
printed = [f"// {line}".rstrip() for line in ran.stdout.splitlines()]
if write:
    pathlib.Path(source).write_text("\n".join([program.rstrip("\n"), "", "// Output:", *printed, ""]))
    sys.exit()
differences = "\n".join(difflib.unified_diff(block.splitlines(), printed, source, "what it prints", lineterm=""))
if differences or not printed:
    sys.exit(differences or f"{source}: prints nothing")
print(f"{len(printed)} lines, as its source says")
