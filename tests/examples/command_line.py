#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/command-line.md run, the page names every command, and what pages say of defaults is so.

usage: command_line.py SPECAGG
"""
import os, pathlib, re, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
specagg = pathlib.Path(sys.argv[1]).resolve()
page = (ROOT / "docs/command-line.md").read_text()
wrong = []

blocks = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    shutil.copytree(ROOT / "models", folder / "models")
    (folder / "bin").mkdir()
    (folder / "bin/specagg").symlink_to(specagg)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1"}
    for block in blocks:
        done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", block], cwd=folder, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            wrong.append(f"status {done.returncode}: {done.stderr.strip()}\n{block}")


def help_of(*command):
    return subprocess.run([specagg, *command, "--help"], capture_output=True, text=True, check=True).stdout


def subcommands(*command):
    listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", help_of(*command), re.M)
    return re.findall(r"^  ([\w-]+) ", listed[1], re.M) if listed else []


for name in subcommands() + [name for name in subcommands("plan")]:
    if not re.search(rf"`{name}`|specagg {name}\b|specagg plan {name}\b", page):
        wrong.append(f"docs/command-line.md does not name {name}")

# (command, option, page, what the page says of its default)
DEFAULTS = [
    (("audit",), "--alpha", "docs/audit.md", r"The default is alpha = ([\de.-]+)"),
    (("dragon", "device"), "--scheduler", "docs/cost-models.md", r"^\| `(\w+)` \(default\)"),
]
for command, option, where, says in DEFAULTS:
    if command[0] not in subcommands():  # built without gRPC
        continue
    default = re.search(rf"^  {option} .*=(\S+)", help_of(*command), re.M)[1]
    said = re.search(says, (ROOT / where).read_text(), re.M)[1]
    try:
        same = float(default) == float(said)
    except ValueError:
        same = default == said
    if not same:
        wrong.append(f"{where}: the default of {' '.join(command)} {option} is {default}, not {said}")

sys.exit("\n".join(wrong) if wrong else print(f"{len(blocks)} blocks of commands run"))
