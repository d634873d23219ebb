#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C library that tests/c was built with, in the current folder: its decisions are the C++ library's with every
instruction set that runs here; it exports the functions of specagg.h and nothing else; installed, it is found by
pkg-config and by find_package from a project in C alone; the example prints what it says.

usage: check.py SOURCE     the tree's folder
"""
import os, pathlib, re, shutil, subprocess, sys

source = pathlib.Path(sys.argv[1])
here = pathlib.Path.cwd()


def run(*command, **environment):
    result = subprocess.run([str(part) for part in command], env={**os.environ, **environment}, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{command}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
    print(result.stderr, end="")
    return result.stdout


library = next(here.rglob("libspecagg.so.*.*.*")) if sys.platform != "darwin" else next(here.rglob("libspecagg.*.dylib"))
declared = set(re.findall(r"^SPECAGG_API [^(]*?(specagg_\w+)\(", (source / "c/specagg.h").read_text(), re.M))
exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
assert exported == declared and len(declared) == 12, f"exports {exported ^ declared} otherwise than specagg.h"

if sys.platform != "darwin":
    abi = ".".join(re.findall(r"^#define SPECAGG_ABI_M[A-Z]+R (\d+)$", (source / "c/specagg.h").read_text(), re.M))
    soname = re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", library))[1]
    assert soname == f"libspecagg.so.{abi}", f"SPECAGG_ABI is {abi}, and the soname {soname}"

# Asked for what is not there, it names what is, and ends the program.
asked = subprocess.run("./c_library", env={**os.environ, "SPECAGG_ISA": "none"}, capture_output=True, text=True)
built = asked.stderr.rstrip(")\n").split(": ")[-1].split() if asked.returncode == 2 else []
flags = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
needs = {"avx512": "avx512vl", "avx512vnni": "avx512_vnni", "avx2": "avx2"}
hashes = {isa: run("./c_library", SPECAGG_ISA=isa) for isa in built if needs.get(isa, "") in flags}
hashes = hashes or {"one version": run("./c_library")}
assert len(set(hashes.values())) == 1, hashes

prefix = here / "prefix"
shutil.rmtree(prefix, ignore_errors=True)
run("cmake", "--install", here, "--prefix", prefix)
pc = next(prefix.rglob("specagg-c.pc")).parent
wanted = run("pkg-config", "--cflags", "--libs", "specagg-c", PKG_CONFIG_PATH=str(pc)).split()
lib = next(prefix.rglob("libspecagg.so")).parent
example = source / "examples/c_library.c"
run("cc", "-std=c99", example, *wanted, f"-Wl,-rpath,{lib}", "-o", "by_pkg_config")
run(source / "tests/examples/output.py", example, "./by_pkg_config")

(here / "found").mkdir(exist_ok=True)
(here / "found/CMakeLists.txt").write_text(f"""cmake_minimum_required(VERSION 3.22)
project(found LANGUAGES C)
find_package(specagg 0.5 REQUIRED COMPONENTS c)
add_executable(found {example})
target_link_libraries(found PRIVATE specagg::c)
""")
run("cmake", "-S", "found", "-B", "found/build", f"-DCMAKE_PREFIX_PATH={prefix}")
run("cmake", "--build", "found/build")
run(source / "tests/examples/output.py", example, "found/build/found")
print(f"{', '.join(hashes)}: one hash; {len(exported)} functions; found by pkg-config and find_package")
