#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-tree on a copy of this tree finds nothing, and, once mistakes are put in, each of them and no other."""
import pathlib, re, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.search(r"project\(specagg VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

# File, what stands there (a regular expression; None: an earlier mistake does it), what is put in its place, what
# check-tree says (None: another line has it).
MISTAKES = [
    ("proofs/law.v", r"\n", " \n", "ends in a blank"),
    ("include/specagg/half.hpp", r"\n#pragma once\n", "\n#include <specagg/random.hpp>\n", "may not include it"),
    ("include/specagg/half.hpp", None, None, "has no #pragma once"),
    ("include/specagg/rows/detail/blocks.hpp", r"\nnamespace detail \{\n", "\n// Lost.\nstruct lost;\n\nnamespace detail {\n",
     "declares a public name in a folder detail/"),
    ("include/specagg/policy/catalogue.hpp", '"mentored"', '"advised"', None),
    ("include/specagg/policy/mentored.hpp", None, None, "the policy mentored has no line in policy/catalogue.hpp"),
    ("docs/mathematics.md", None, None, "has no formula of the policy advised"),
    ("docs/policies.md", None, None, "mentored of the table of policies is not in policy/catalogue.hpp"),
    ("docs/policies.md", None, None, "the table of policies has no advised"),
    ("docs/policies.md", "`token-v2`, ", "", "the table of policies has no token-v2"),
    ("docs/mathematics.md", r"\n\| `fuzzy` [^\n]*", "", "has no formula of the policy fuzzy"),
    ("docs/drafters.md", ", `string_match_drafter`", "", "names no string_match_drafter"),
    ("include/specagg/verify/verifiers.hpp", "block_verifier, match_verifier,", "block_verifier,",
     "match_verifier is not in all_verifiers"),
    ("include/specagg/sites.hpp", "#include <specagg/sites/split.hpp>\n", "", "does not include sites/split.hpp"),
    ("include/specagg/specagg.hpp", r"noise, std::span<emission> out\);", "noise, std::span<emission> into);",
     "declares verify_coupled otherwise than it is defined"),
    ("docs/audit.md", r"\n\n", "\n\n[lost](nowhere.md)\n\n", "links to nowhere.md"),
    ("docs/trees.md", r"\n\n", "\n\n[lost](audit.md#nothing-of-the-sort)\n\n", "no such heading"),
    ("README.md", r"\(docs/c.md\)", "(docs/audit.md)", "does not name docs/c.md"),
    ("cmake/specaggInstructionSets.cmake", "neon scalar", "neon scalar sve", "sve has either flags or an architecture"),
    ("cmake/specaggInstructionSets.cmake", r"FLAGS_avx2 -mavx2", "FLAGS_avx2 -mavx2 -mbmi2", None),
    ("CMakePresets.json", None, None, "avx2 has not the flags"),
    ("include/specagg/config.hpp", None, None, "SPECAGG_ISA avx2 does not ask for BMI2"),
    ("include/specagg/config.hpp", "SPECAGG_ISA neon\n", "SPECAGG_ISA sve2\n", "has no SPECAGG_ISA neon"),
    ("include/specagg/config.hpp", None, None, "SPECAGG_ISA sve2 is not in"),
    ("tests/support/all_policies.hpp", "#include <specagg/compiled_once.hpp>\n", '#include "../tools/cli/policies.hpp"\n',
     "includes a file of tools/, which only"),
    ("examples/embed.cpp", r"\n// Output:", "\n// It prints:", "does not end with `// Output:` and what the program prints"),
    ("examples/audit.cpp", r"\n\n// Output:", "\n\n" + "// Longer.\n" * 10 + "// Output:", "is longer than 60 lines"),
    ("examples/batch.cpp", "// One call", "// one call", "says nothing about what it shows"),
    ("examples/own_policy.cpp", "tv > alpha", "tv >= alpha", None),
    ("docs/write-your-own-policy.md", None, None, "quotes examples/own_policy.cpp, which does not have these lines"),
    ("examples/README.md", "`batch`", "`many`", "does not name batch"),
    ("docs/install.md", None, None, "does not name sve2, which config.hpp can choose"),
    ("docs/proofs.md", r"`verify_match_emits_pi` \|", "`verify_match_emits_tau` |", "verify_match_emits_tau is no theorem"),
    ("proofs/theorems.v", "Print Assumptions unanimous_winner.", "", None),
    ("docs/proofs.md", None, None, "unanimous_winner is not in proofs/theorems.v"),
    ("CHANGELOG.md", r"\n(?=## \d)", f"\n## Unreleased\n### Results that change\n\n## {VERSION} (2026-11-30)\n\n",
     f"and the version is {VERSION}"),
    ("docs/drafters.md", "more than three target steps", "more than four target steps", "and tools/cli/draft_watch.hpp has 3"),
    ("docs/drafters.md", r"\(`draft/counts.hpp`\)", "(`draft/suffix_tree.hpp`)", "names draft/suffix_tree.hpp, which is not"),
    ("docs/experiments/claims.md", r"\*\*±\*\* is one standard", "**±** is two standard", "prints ± and does not say"),
    ("docs/experiments/claims.md", r"\+0\.0172±0\.0021", "+0.0172±0.0012", "cascade-over-target: the value +0.0172±0.0021 is not there"),
    ("docs/experiments/claims.md", r"nearest \+0\.0152±0\.0077", "+0.0142±0.0026 to +0.0485±0.0036", "diff-over-bild: the value +0.0152±0.0077 is not there"),
    ("docs/experiments/claims.md", r"\*\*yes\*\*(\]\(cascades-temperature)", r"**no**\1", "gap-shrinks: recorded is yes"),
    ("docs/experiments/claims.md", ", 1 of 2 before rounding", "", "speculative-over-sequential: the numbers do not show why"),
    ("docs/experiments/claims.md", r"(\(mu 0\.1, T 1\)); margin 0\.03", r"\1", "cd-speed: the margin decides and is not there"),
    ("docs/experiments/claims.md", r"; 16/20 ", "; 17/20 ", "cos-gamma-1: 16 of 20 values hold"),
    ("docs/experiments.md", r"\*\*no\*\* \| \*\*no\*\* \|", "**yes** | **no** |", "v3-over-others: recorded is **no** and **no**"),
    ("docs/two-sites-measured/tables.md", "± is one standard error", "± is two standard errors", "prints ± and does not say"),
    ("docs/install.md", r"\n\n", "\n\nA step takes 0.164 ms.\n\n", "repeats 0.164 ms of docs/measured.md"),
    ("docs/measured.md", "and 3\\.03 with `--tree", "and 3.13 with `--tree", "and docs/trees/accepted.txt has 2.22, 3.03"),
    ("docs/measured.md", "0\\.783 if\\s+`sampled`", "0.873 if `sampled`", "and docs/trees/accepted.txt has 0.773, 0.849, 0.783, 0.775"),
    ("README.md", r"its text \[1\.06", "its text [1.16", "and docs/performance/results.json has 1.06"),
    ("README.md", r"top-p 0\.9: a step takes \[", "top-p 0.9: a step takes [9", "and docs/measured.md has"),
    ("docs/engine.md", r"less than 3\.6 %", "less than 1.4 %", "and docs/whole-texts/results.json has 4.6, 3.6"),
    ("tools/site/mkdocs.yml", r"      - docs/trees.md\n", "", "nav lacks docs/trees.md"),
    ("tools/site/words.py", '"docs/trees.md": ', '"docs/woods.md": ', "has docs/woods.md, which is not there"),
    ("tests/policy/rate_bound.test.cpp", "rate 1 q, and", "rate 1 q; and", "has a name with a semicolon"),
    ("tests/verify/synthetic.test.cpp", "decides, and", "decides; and", "has a name with a semicolon"),
    ("docs/trees.md", "--propose sampled", "--suggest sampled", "names --suggest, which no command has"),
    ("docs/cost-models.md", "on\\s+the\\s+uplink", "on the downlink", "no test is called"),
    ("docs/decoders.md", "`measured_calls`", "`measured_cells`", "names measured_cells, which no source has"),
    ("docs/server.md", "threads spin", "threads beside it spin", "says \"beside\": write compared with or next to"),
    ("docs/trees.md", "may depend on tokens", "may depend .5 on tokens", "says \".5\": write 0."),
    ("docs/mathematics.md", "`rollback_refused`", "`rollback`", "has no status rollback_refused"),
    ("docs/troubleshooting.md", r"\n\| `missing_row` ", "\n| `norow` ", "has no status missing_row"),
    ("CHANGELOG.md", "has forty prompts", "has thirty prompts", "there are 40"),
    ("cmake/vcpkg/vcpkg.json", r'"version": "[\d.]+"', '"version": "77.0.1"', "is not CMakeLists.txt's"),
    ("include/specagg/config.hpp", "VERSION_MINOR ", "VERSION_MINOR 7", "SPECAGG_VERSION_MINOR is not CMakeLists.txt's"),
]
COMMENTS = [  # of a function, a group, a member, one of several members, a template
    ("include/specagg/kernel/select.hpp", r"// One pass\. maxima.*\n", "", "find_largest is public and has no comment"),
    ("include/specagg/backend/cpu/matrix.hpp", r"// The rows of a strip;.*\n", "", "strip_rows is public and has no comment"),
    ("include/specagg/backend/cpu/matrix.hpp", None, None, "number_bytes is public and has no comment"),
    ("include/specagg/backend/cpu/matrix.hpp", None, None, "packed_block_bytes is public and has no comment"),
    ("include/specagg/kernel/select.hpp", r" *// Whether 64 more tokens fit.\n", "", "shortlist::has_room is public and has no comment"),
    ("include/specagg/logit_source.hpp", " *// tokens_in: in all calls", "", "metered::tokens_in is public and has no comment"),
    ("include/specagg/policy/models.hpp", r"// Makes a view of N numbers.\n", "", "view_of is public and has no comment"),
]
LAYOUT = [("examples/batch.cpp", r"\nint main\(", "\nint  main (", "is laid out otherwise: make format")]


def copy(folder):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.splitlines() if listed.returncode == 0 else [
        p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.relative_to(ROOT).parts[0] not in ("build", ".git")]
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def check(folder):
    done = subprocess.run([ROOT / "scripts/check-tree", folder], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    copy(folder)
    status, said = check(folder)
    if status != 0:
        sys.exit("\n".join(["a copy of this tree is not in order:", *said]))
    mistakes = list(MISTAKES)
    for program, found in ("libclang", COMMENTS), ("clang-format", LAYOUT):
        if f"not checked: {program} " in "\n".join(said):
            print(f"{program} is not installed: left out: {len(found)} mistakes")
        else:
            mistakes += found
    for name, there, instead, _ in mistakes:
        if there is not None:
            text = (folder / name).read_text()
            broken = re.sub(there, instead, text, count=1)
            if broken == text:
                sys.exit(f"{name} has no {there}: the mistake cannot be put in")
            (folder / name).write_text(broken)
    status, said = check(folder)
    offences = [line for line in said if re.match(r"[\w./-]+:\d+: ", line)]
    wrong = [f"not found: {name}: {message}" for name, _, _, message in mistakes
             if message and not any(line.startswith(name + ":") and message in line for line in offences)]
    wrong += [f"not put in: {line}" for line in offences
              if not any(message and line.startswith(name + ":") and message in line for name, _, _, message in mistakes)]
    if wrong or status != 1:
        sys.exit("\n".join(wrong + [f"check-tree ended with status {status}"]))
print(f"{len(mistakes)} mistakes, each found")
