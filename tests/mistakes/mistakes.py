#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts forty mistakes into a copy of the tree, all in one build. The environment variable SPECAGG_MISTAKE switches one of
them on at run time. The tests must fail with each, and pass with none.

usage: mistakes.py [--only N[,N]...] [--folder DIR] [--jobs N]
       mistakes.py --syntax [--folder DIR]   only puts them in, and looks whether each changed file still compiles

--folder: where the copy and its build are, build/mistakes unless given; they are used again. --jobs: how many programs are
compiled, or run, at once. The time limit of a program is 120 s, or four times what it takes without a mistake if that is
more. A mistake that makes it crash, or run longer, is found, too. Exit status 1 if one is not found.
"""
import argparse, concurrent.futures, html, os, pathlib, re, shlex, shutil, signal, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = "include/specagg/detail/mistake.hpp"
INCLUDED_FROM = ("include/specagg/config.hpp", "#pragma once\n")
MISTAKE_HPP = """\
// SPDX-License-Identifier: Apache-2.0
// Written by tests/mistakes/mistakes.py: whether mistake n is switched on. Never in a constant expression, nor for CUDA.
#pragma once
#include <type_traits>
#if !defined(__CUDACC__)
#include <cstdlib>
#endif

namespace specagg_mistakes {

inline int chosen() {
#if defined(__CUDACC__)
  return 0;
#else
  static const int number = [] {
    const char* text = std::getenv("SPECAGG_MISTAKE");
    return text ? std::atoi(text) : 0;
  }();
  return number;
#endif
}
constexpr bool on([[maybe_unused]] int n) {
#if defined(__CUDACC__)
  return false;
#else
  return std::is_constant_evaluated() ? false : chosen() == n;
#endif
}

}  // namespace specagg_mistakes
"""

# What it is, file, text, what stands in place of the part between the two @, programs that should find it. The part is an
# expression, or statements if it ends with a semicolon. A mistake's number is its place in the list.
MISTAKES = [
    # --- kernel/
    ("of equal largest logits in two blocks the later one is taken", "include/specagg/kernel/select.hpp",
     "l = T(reduce_max(largest)); @l > top.logit@) {", "l >= top.logit", "kernel rows"),
    ("top-k keeps all where exactly k tokens are listed", "include/specagg/kernel/select.hpp",
     "if (@list.size >= k@) cut = list.keep_first(k);", "list.size > k", "kernel rows"),
    ("of equal logits in a short list the higher id stands first", "include/specagg/kernel/select.hpp",
     "return less(b, a) || (!less(a, b) && @a < b@);", "a > b", "kernel rows"),
    ("NaN in a block far below the largest logit is let through", "include/specagg/kernel/exponentials.hpp",
     "@nothing_ += x.sum * 0;@", "", "kernel rows"),
    # --- random.hpp, text.hpp, thread_pool.hpp
    ("the second word of keyed noise is that of another token", "include/specagg/random.hpp",
     "word < rarest ? 0 : @second_word(position, v)@", "second_word(position, token_id(v + 1))", "core verify"),
    ("that a model refused to go back to 0 is not said", "include/specagg/text.hpp",
     "refused != status::ok) s = @refused@;", "status::ok", "core decode"),
    ("after scoring the processor does not know the draft", "include/specagg/text.hpp",
     "    }\n  }\n  @push_again();@", "", "core decode"),
    ("the last range of a loop goes beyond its end", "include/specagg/thread_pool.hpp",
     "run_(body_, begin, @std::min(begin + share_, count_)@);", "begin + share_", "core-more verify backend"),
    # --- rows/
    ("a token that was popped is still penalised", "include/specagg/rows/process.hpp",
     "if (--counts_[std::size_t(t)] == 0) @--distinct_size_;@", "", "rows decode"),
    ("top-p forgets what weighs more than the listed tokens", "include/specagg/kernel/prefix.hpp",
     "found = list.shorten(@enough - above@, unit, weight);", "enough", "kernel rows"),
    ("a large top-k keeps a token more", "include/specagg/kernel/logits_in_memory.hpp",
     "std::size_t missing = @k - above.count@;", "k - above.count + 1", "kernel rows"),
    ("a draw takes the places of tokens for those of the block", "include/specagg/kernel/sample.hpp",
     "return of.row.may_keep(@begin + k@)", "k", "kernel rows"),
    # --- policy/
    ("the floor of token_v3 is made from q, not p", "include/specagg/policy/token_cascade.hpp",
     "(1 - alpha) * rows.max([](auto at) { return @at.confidence_p@; });", "at.confidence_q", "policy"),
    ("where tokens tie at the k-th place, less likely ones stand, too", "include/specagg/policy/relaxed.hpp",
     "if (@as_likely >= k@) break;", "as_likely > k", "policy"),
    # --- verify/
    ("without a bonus a token is drawn where the draft ends early", "include/specagg/verify/token.hpp",
     "@if (g == j && !drafted.bonus) return d.e.why;@", "", "verify"),
    ("a block's chance of a rejection is that of the token before", "include/specagg/verify/block.hpp",
     "const double all = left + (@1 - claim[tau]@);", "1 - claim[tau - 1]", "verify"),
    ("all tokens of a coupled draft race with the noise of the first position", "include/specagg/verify/coupled.hpp",
     "noise, std::uint32_t(@drafted.start + j@)).token", "drafted.start", "verify"),
    ("a rejected node's equal sibling may be accepted", "include/specagg/verify/detail/tree_walk.hpp",
     "@if (token(i) == y) node(i).pi = 0;@", "", "verify"),
    ("without a last token the state stays that before the draft", "include/specagg/verify/stateful.hpp",
     "@states[0] = after;@", "", "verify"),
    ("where memory is short the last of an odd number of tasks is left out",
     "include/specagg/shards/vocabulary_shards.hpp",
     "run_range(first + count / 2, @count - count / 2@, task);", "count / 2", "shards"),
    # --- draft/
    ("what followed in a text that was cut still counts", "include/specagg/draft/counts.hpp",
     "if (@size_ < text_.size()@) {\n      text_.clear();", "false", "draft"),
    ("a token of documents that is V is proposed", "include/specagg/draft/lookup.hpp",
     "return t < 0 || @std::size_t(t) >= vocabulary_@;", "std::size_t(t) > vocabulary_", "draft"),
    ("own tokens that a pop has brought back stay among the removed ones", "include/specagg/draft/retokenised.hpp",
     "@removed_.erase(removed, removed_.end());@", "", "draft"),
    ("of two drafters the one that is ahead is not rolled back", "include/specagg/draft/first_of.hpp",
     "return @std::max<std::size_t>(first_->position(), second_->position())@;",
     "std::min<std::size_t>(first_->position(), second_->position())", "draft decode"),
    # --- decode/
    ("a stop string that began before is not found", "include/specagg/decode/stop.hpp",
     "from >= stop.size() ? @from - stop.size() + 1@ : 0", "from", "decode cli"),
    ("every text may draft what all may draft together", "include/specagg/decode/together.hpp",
     "r.limit(@most / rounds.size()@);", "most", "decode"),
    ("after a small model's end of text the large one adds a token", "include/specagg/decode/bild.hpp",
     "rows = g + (@!ended && g < limit@);", "g < limit", "decode"),
    ("a tree's growth learns levels as calls of the draft model", "include/specagg/decode/tree.hpp",
     "tree.growth.observe(path, decided.emitted, @steps@, end - 1);", "levels", "decode"),
    ("a round that fails leaves its draft in the text", "include/specagg/decode/detail/speculation.hpp",
     "void fail(status why) {\n    @roll_back();@", "", "decode"),
    ("a round says that it accepted all that it emitted", "include/specagg/decode/detail/speculation.hpp",
     "result_.accepted = @decided_.accepted@;", "decided_.emitted", "decode"),
    # --- plan/
    ("the price of more tokens is added to their worth", "include/specagg/plan/draft_length.hpp",
     "best = std::max(best, fma(@-rho()@, price, gained));", "rho()", "plan"),
    ("bits are rounded down to bytes", "include/specagg/plan/link.hpp",
     "inline double bytes(double bits) { return @std::ceil(bits / 8)@; }", "std::floor(bits / 8)", "plan"),
    # --- audit/
    ("outcomes are counted with one tail each, not two", "include/specagg/audit/goodness_of_fit.hpp",
     "@tails += 2;@", "tails += 1;", "audit"),
    ("a height found by a coin does not count it: its noise is used again",
     "include/specagg/audit/best_of_independent.hpp",
     "s.end - s.begin, left)) return @++m.branch, s.begin@;", "s.begin", "audit"),
    # --- sites/
    ("settled tokens do not say who aggregates next", "include/specagg/sites/message.hpp",
     "@c.number(m.next, 1);@", "", "sites"),
    ("rows that were computed before are not computed for this call", "include/specagg/sites/documents.hpp",
     "seen.begin() + std::ptrdiff_t(@std::min(seen.size(), wanted)@);", "std::min(seen.size(), text.size())", "sites"),
    ("after a rejection the model keeps the rejected draft", "include/specagg/sites/dragon.hpp",
     "      busy_ = false;\n      @keep_ = std::min(keep_, step);@", "", "sites"),
    # --- backend/cpu/
    ("a cache writes to pages that another one holds", "include/specagg/backend/cpu/kv_cache.hpp",
     "else if (@pages_[i].shared()@)", "false", "backend"),
    ("of equal merges the right one comes first", "include/specagg/backend/cpu/sentencepiece.hpp",
     "score == other.score && @left > other.left@", "left < other.left", "backend"),
    ("an error of a file does not say at which byte", "include/specagg/backend/cpu/gguf.hpp",
     "throw error(input, @joined(\"byte \", at)@, reason);", "std::string()", "backend"),
    # --- tools/cli/
    ("trees are sampled unless --propose is given", "tools/cli/lists.hpp",
     "  return @proposal::greedy@;\n}", "proposal::sampled", "cli"),
    ("three bytes of a character of four are written", "tools/cli/terminal.hpp",
     "for (std::size_t n = 1; @n <= 3@ && n <= text.size(); ++n)", "n <= 2", "cli"),
]


def replaced(number, text, wrong):
    """What is found, and what stands in its place."""
    before, right, after = text.split("@")
    on = f"specagg_mistakes::on({number})"
    if right.endswith(";"):
        choice = f"{{ if ({on}) {{ {wrong} }} else {{ {right} }} }}"
    else:
        choice = f"({on} ? ({wrong}) : ({right}))"
    return before + right + after, before + choice + after


def with_mistakes():
    """The changed files of the copy."""
    name, line = INCLUDED_FROM
    files = {HEADER: MISTAKE_HPP, name: (ROOT / name).read_text().replace(line, line + "#include <specagg/detail/mistake.hpp>\n", 1)}
    for number, (_, name, text, wrong, _) in enumerate(MISTAKES, 1):
        right, mistaken = replaced(number, text, wrong)
        original = (ROOT / name).read_text()
        changed = files.get(name, original)
        if original.count(right) != 1 or changed.count(right) != 1:
            sys.exit(f"mistakes.py: {number}: {name} does not have once: {right}")
        files[name] = changed.replace(right, mistaken)
    return files


def copy_tree(folder):
    """Writes what differs only, so that little is compiled again. Returns the names of the changed files."""
    changed = with_mistakes()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {n for n in listed.split("\0") if (ROOT / n).is_file()} | set(changed)
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        name = path.relative_to(folder).as_posix()
        if name not in names and not name.startswith(("build/", "runs/")):
            path.unlink()
    for name in sorted(names):
        to = folder / name
        content = changed[name].encode() if name in changed else (ROOT / name).read_bytes()
        if to.is_file() and to.read_bytes() == content:
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content)
        if name != HEADER:
            shutil.copymode(ROOT / name, to)
    return sorted(changed)


def compiles(folder, name):
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    done = subprocess.run([*compiler, "-fsyntax-only", "-x", "c++", "-std=gnu++20", "-march=native", "-Wall", "-Wextra", "-DNDEBUG",
                           "-DSPECAGG_ALLOW_SLOW", "-DSPECAGG_COMPILE_FAST", f"-I{folder}/include", f"-I{folder}",
                           "-isystem", "/usr/include/eigen3", "-"],
                          input=f'#include "{name}"\n', capture_output=True, text=True)
    print(f"{'compiles' if done.returncode == 0 else 'DOES NOT COMPILE'}: {name}", flush=True)
    print(done.stderr[-3000:], end="")
    return done.returncode == 0


def build(folder, programs, jobs):
    for command in (["cmake", "--preset", "release", "-DSPECAGG_WERROR=OFF"],
                    ["cmake", "--build", "build", "--parallel", str(jobs), "--target", *programs]):
        if subprocess.run(command, cwd=folder).returncode != 0:
            sys.exit(f"mistakes.py: failed in {folder}: {shlex.join(command)}")


def failure_of(folder, program, number, limit):
    """How the program fails with this mistake (0: with none): what happened, and the first test that did not pass; "" if all pass."""
    place = folder / "runs" / f"{number}-{program}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    report = place / "report.xml"
    with open(place / "output.txt", "wb") as output:
        running = subprocess.Popen(
            [folder / "build/bin" / program, "~[more]~[slow]", "--abort", "-r", "xml", "-o", report], cwd=place,
            env={**os.environ, "SPECAGG_MISTAKE": str(number), "TMPDIR": str(place)}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True)  # a group of its own: also what the tests start
        try:
            how = running.wait(limit)
        except subprocess.TimeoutExpired:
            how = None
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        running.wait()
    if how == 0:
        return ""
    what = f"longer than {limit:.0f} s in " if how is None else f"{signal.Signals(-how).name} in " if how < 0 else ""
    for case in report.read_text(errors="replace").split("<TestCase ")[1:] if report.exists() else ():
        if '<OverallResult success="true"' not in case:
            return what + html.unescape(re.match(r'name="([^"]*)"', case)[1])
    return f"{what}{program}, exit status {how}"


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=numbers, default=range(1, len(MISTAKES) + 1))
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/mistakes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--syntax", action="store_true")
    given = parser.parse_args()
    if bad := [n for n in given.only if not 1 <= n <= len(MISTAKES)]:
        sys.exit(f"mistakes.py: there is no mistake {bad[0]} (1 to {len(MISTAKES)})")
    folder = given.folder.resolve()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / HEADER).is_file():
        sys.exit(f"mistakes.py: {folder} has other files, and what is not of the tree is removed there")
    folder.mkdir(parents=True, exist_ok=True)
    changed = copy_tree(folder)
    if given.syntax:
        sys.exit(not all([compiles(folder, name) for name in changed]))

    programs = {n: ["test-" + p for p in MISTAKES[n - 1][4].split()] for n in given.only}
    every = sorted({p for some in programs.values() for p in some})
    build(folder, every, given.jobs)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        def without(program):
            start = time.monotonic()
            return failure_of(folder, program, 0, 1800), time.monotonic() - start
        limits = {}
        for program, (failure, seconds) in zip(every, pool.map(without, every)):
            if failure:
                sys.exit(f"mistakes.py: {program} does not pass without a mistake: {failure}")
            limits[program] = max(120, 4 * seconds)
            print(f"{program} passes without a mistake, in {seconds:.0f} s", flush=True)

        def found_by(number):
            for program in programs[number]:
                if failure := failure_of(folder, program, number, limits[program]):
                    return f"{program}: {failure}"
            return ""
        print("\n| | file | mistake | found by |\n| --- | --- | --- | --- |")
        lost = 0
        for number, found in zip(programs, pool.map(found_by, programs)):
            what, name = MISTAKES[number - 1][:2]
            print(f"| {number} | {name.removeprefix('include/specagg/')} | {what} | {found or 'NOT FOUND'} |", flush=True)
            lost += not found
    print(f"\n{len(programs) - lost} of {len(programs)} mistakes are found")
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
