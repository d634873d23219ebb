#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The first program of README.md compiles as it is printed, prints what stands after it, includes specagg.hpp alone and calls
nothing that allocates or throws, and compiles with the core as one header; no block of C++ in README.md, CHANGELOG.md and docs/ has a
backtick.

usage: readme.py FOLDER [CXX [FLAG...]]
"""
import pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
folder, cxx, flags = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "g++", sys.argv[3:]
readme = (ROOT / "README.md").read_text()

# --- the program: the first ```cpp block, its command line and output in the block after it ---
program, command, expected = re.search(r"```cpp\n(.*?)```\n```\n\$ (.*?)\n(.*?)```\n", readme, re.S).groups()
assert "-Iinclude" in command and "-std=c++20" in command, f"README.md compiles it with: {command}"
folder.mkdir(parents=True, exist_ok=True)
source, binary = folder / "readme.cpp", folder / "readme"
source.write_text(program)
subprocess.run([cxx, "-std=c++20", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-DSPECAGG_ALLOW_SLOW",
                *flags, f"-I{ROOT}/include", source, "-o", binary], check=True)
result = subprocess.run([binary], capture_output=True, text=True)
assert result.returncode == 0, f"the program's exit status is {result.returncode}"
assert result.stdout == expected, f"it prints\n{result.stdout}and README.md says\n{expected}"
print(f"{len(program.splitlines())} lines print what README.md says")

assert re.findall(r"#include <(specagg/.*)>", program) == ["specagg/specagg.hpp"]
subprocess.run([ROOT / "scripts/amalgamate", folder], check=True, stdout=subprocess.DEVNULL)
(folder / "one.cpp").write_text(program.replace("<specagg/specagg.hpp>", '"specagg.hpp"'))
for name, flags_too in ("readme", [f"-I{ROOT}/include"]), ("one", []):
    subprocess.run([cxx, "-std=c++20", "-O2", "-fno-exceptions", "-fno-rtti", "-DSPECAGG_ALLOW_SLOW", *flags, *flags_too,
                    "-c", folder / f"{name}.cpp", "-o", folder / f"{name}.o"], check=True)
    called = subprocess.run(["nm", "-C", "-u", folder / f"{name}.o"], capture_output=True, text=True, check=True).stdout
    called = re.findall(r" U (.*)", called)
    bad = [f for f in called if re.match(r"operator (new|delete)|(m|c|re|aligned_)alloc|__cxa_|std::", f)]
    assert "verify" not in str(called) and not bad, f"README.md's program calls {bad}"
print("it is verified without an allocation or an exception, also with the core as one header")

# --- blocks of C++ (which policies README.md names, scripts/check-tree looks at) ---
for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
    for block in re.findall(r"^```cpp\n(.*?)^```$", page.read_text(), re.M | re.S):
        assert "`" not in block, f"tests/tree/documentation.cmake does not compile a block with a backtick:\n{block}"
