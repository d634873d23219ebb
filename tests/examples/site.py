#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The site's reference has an entry for every public name, and tools/site/check finds each mistake that is put in."""
import importlib.machinery, importlib.util, pathlib, re, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("site_check", str(ROOT / "tools/site/check"))
site_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("site_check", loader))
loader.exec_module(site_check)
sys.path.insert(0, str(ROOT / "tools/site"))
import reference

if reference.public_names.Index is None:
    print(f"skipped: {reference.public_names.MISSING}")
    sys.exit()

# Page, what stands there, what is put in its place, what is said of it.
MISTAKES = [
    ("reference/cpp/verify.html", 'id="verify-token-hpp.verify_token"', 'id="gone"', "has no entry for verify_token"),
    ("reference/cpp/rows.html", 'id="rows-sampling-hpp.sampling::top_p"', 'id="gone"', "has no entry for sampling::top_p"),
    ("reference/python/specagg.html", 'id="specagg.verify_tree"', 'id="gone"', "has no entry for specagg.verify_tree"),
    ("index.html", "", '<a href="nowhere.html">', "links to nowhere.html, which is not there"),
    ("index.html", "", '<a href="reference/cpp/verify.html#nothing">', "there is no such place"),
    ("index.html", "", '<script src="https://example.org/a.js"></script>', "loads https://example.org/a.js"),
    ("large.bin", "", "x" * site_check.MOST_BYTES, "more than 6,500,000"),
]
with tempfile.TemporaryDirectory() as folder:
    site = pathlib.Path(folder)
    (site / "index.html").write_text("<a href='reference/cpp/verify.html'>")
    for name, text in reference.pages().items():  # headings become what mkdocs makes of them
        page = site / "reference" / name.replace(".md", ".html")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(re.sub(r"^#+ .*\{ #(\S+) \}$", r'<h2 id="\1">', text, flags=re.M))
    names, wrong, misnamed = list(reference.expected()), list(reference.misnamed()), reference.misnamed
    reference.expected, reference.misnamed = lambda: names, lambda: wrong  # read once
    found = list(site_check.check_files(site))
    assert not found, found
    for name, stands, put, says in MISTAKES:
        page = site / name
        before = page.read_text() if page.exists() else ""
        assert stands in before, (name, stands)
        page.write_text(before.replace(stands, put, 1) if stands else before + put)
        found = list(site_check.check_files(site))
        assert len(found) == 1 and says in found[0], (name, put[:60], found)
        page.write_text(before)

entry = {"comment": ["Adds.", "  a, b  numbers", "  c     a third"], "parameters": ["a", "b"], "line": 1}
reference.cpp_entries = lambda: ({"x.hpp": [entry]}, {})
assert list(misnamed()) == [("x.hpp", 1, "c")]
entry["parameters"].append("c")
assert not list(misnamed())
print(f"{len(names)} entries; {len(MISTAKES) + 1} mistakes found")
