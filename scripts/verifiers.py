# SPDX-License-Identifier: Apache-2.0
"""The list of verifiers (include/specagg/verify/verifiers.hpp) for scripts."""
import pathlib, re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read(root=ROOT):
    """The names of the verifiers of chains, in the order of their numbers: those of NAME_verifier."""
    text = (root / "include/specagg/verify/verifiers.hpp").read_text()
    types = re.search(r"using all_verifiers =\s*std::tuple<(.*?)>;", text, re.S)[1]
    return re.findall(r"(\w+)_verifier", types)
