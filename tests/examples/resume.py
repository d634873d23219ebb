#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/experiments --quick, killed half-way and started again: the finished parts stay as they are, the page is
written, and the exact files are, byte for byte, those of a run that nobody disturbed and that had other threads.

usage: resume.py PROGRAM FOLDER
"""
import os, pathlib, shutil, signal, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
shutil.rmtree(folder, ignore_errors=True)
killed, straight = folder / "killed", folder / "straight"
programs = [program] + [p for p in [f"{program}-passages"] if os.path.exists(p)]  # the second where there is Xapian
parts = 18 + 2 * (len(programs) - 1)
environment = {**os.environ, "SPECAGG_EXPERIMENTS": program}


def start(out, *options):
    return subprocess.Popen([ROOT / "scripts" / "experiments", "--quick", "--out", out, *options], env=environment,
                            stderr=subprocess.DEVNULL, start_new_session=True)


def files(out, kind="*"):
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.glob(f"{kind}/*.csv"))}


for p in programs:
    for option, value in [("--seed", "010"), ("--threads", "0x1"), ("--seed", "1e3"), ("--part", "")]:
        r = subprocess.run([p, "--out", straight, option, value], capture_output=True, text=True)
        assert r.returncode == 2 and option in r.stderr and r.stderr.count("\n") == 1, f"{p} {option} {value}: {r}"
begin = time.monotonic()
run = start(killed)
while len(files(killed)) < 5 and run.poll() is None:
    time.sleep(0.05)
time.sleep(0.5)  # in the middle of a part
os.killpg(run.pid, signal.SIGKILL)
run.wait()
before = files(killed)
assert 5 <= len(before) < parts, f"{len(before)} parts were finished when it was killed"
assert start(killed).wait() == 0
after = files(killed)
assert len(after) == parts, f"{len(after)} parts after all"
assert all(after[name] == content for name, content in before.items()), "a finished part was run again"
assert (killed / "experiments.md").read_text().count("\n| ") > 40, "there are few claims in the page"
print(f"killed after {len(before)} of {parts} parts and started again: {time.monotonic() - begin:.0f} s")

for p in programs:
    assert subprocess.run([p, "--quick", "--threads", "1", "--out", straight], stderr=subprocess.DEVNULL).returncode == 0
assert files(straight, "exact") == files(killed, "exact"), "the exact files differ"
assert not list(folder.glob("**/*.partial"))
print(f"{len(files(straight, 'exact'))} exact files are identical")
