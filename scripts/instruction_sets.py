# SPDX-License-Identifier: Apache-2.0
"""cmake/specaggInstructionSets.cmake for scripts."""
import pathlib, platform, re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read(root=ROOT):
    """The instruction sets of each architecture, best first, and the compiler's flags for each."""
    text = (root / "cmake/specaggInstructionSets.cmake").read_text()
    isas = {name: words.split() for name, words in re.findall(r"^set\(SPECAGG_ISAS_(\w+) ?(.*)\)$", text, re.M)}
    flags = {name: words.split() for name, words in re.findall(r"^set\(SPECAGG_FLAGS_(\w+) ?(.*)\)$", text, re.M)}
    return isas, flags


ISAS, FLAGS = read()


def missing(isa):
    """What this machine lacks to run the instruction set, or None."""
    if isa not in ISAS.get({"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine()), []):
        return f"this machine is {platform.machine()}"
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    features = set(cpuinfo.read_text().replace("_", "").split()) if cpuinfo.exists() else set()  # avx512_vnni
    lacking = [flag[2:] for flag in FLAGS[isa] if flag.startswith("-m") and flag[2:] not in features]
    return f"this CPU has no {' '.join(lacking)}" if lacking else None
