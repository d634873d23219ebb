#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts mistakes into copies of the headers, one at a time. The emulator's tests must fail with each, and pass without.

usage: mutants.py FOLDER LIBRARIES COMPILER FLAGS...   LIBRARIES: separated by commas; FOLDER: for what is built
"""
import pathlib, shutil, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
folder, libraries, compiler = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
CUDA = "include/specagg/backend/cuda/"
# what it is, header, text, what stands in its place, test file, tests
MUTANTS = [
    ("four logits are loaded at once from any address", CUDA + "row.hpp",
     "n == 4 && reinterpret_cast<std::uintptr_t>(logits + v) % (4 * sizeof(S)) == 0", "n == 4",
     "verify.test.cpp", "cuda: logits of every type*"),
    ("what one thread of a cluster writes waits for its block only", CUDA + "collective.hpp",
     "    synchronise();\n    if (threadIdx.x == 0) f();\n    synchronise();\n",
     "    __syncthreads();\n    if (threadIdx.x == 0) f();\n    __syncthreads();\n",
     "tree.test.cpp", "cuda: trees of all ways*"),
    ("a cluster does not wait until all its blocks have started", CUDA + "collective.hpp",
     "      __cluster_barrier_arrive_relaxed();\n      __cluster_barrier_wait();\n", "",
     "verify.test.cpp", "cuda: logits of every type*"),
    ("what one warp found of a row is read before all have", CUDA + "batch.hpp",
     "together.publish(threadIdx.x % 32, facts, j, found);\n  }\n  together.synchronise();\n",
     "together.publish(threadIdx.x % 32, facts, j, found);\n  }\n", "verify.test.cpp", "cuda: logits of every type*"),
    ("blocks whose sums have a lower unit are left out", CUDA + "row_sums.hpp",
     "below = !highest && unit{highest_.index - 1}.reached_by(n);", "below = false;", "verify.test.cpp", "cuda: logits of every type*"),
    ("a row beyond all units is not read again", CUDA + "row_sums.hpp",
     "const bool again = needs_shift(largest, scale);", "const bool again = false;", "verify.token.test.cpp",
     "cuda: token verification*"),
    ("the sums of blocks are added in another order", CUDA + "warp.hpp",
     "for (int d = 16; d > 0; d /= 2) x = reducer<Op, D>", "for (int d = 1; d < 32; d *= 2) x = reducer<Op, D>",
     "verify.token.test.cpp", "cuda: token verification*"),
    ("the blocks of a rank are taken in another order", CUDA + "sharded.hpp",
     "i = b % of.most_blocks();", "i = of.blocks_of(k) - 1 - b % of.most_blocks();", "sharded.test.cpp",
     "cuda: a vocabulary in parts*"),
    ("of two ranks with the largest logit the last one has the token", CUDA + "sharded.hpp",
     "        k = i / of.most_blocks();\n        break;\n", "        k = i / of.most_blocks();\n",
     "sharded.test.cpp", "cuda: a vocabulary in parts*"),
    ("every rank is taken to have as many sums at temperature 1", CUDA + "sharded.hpp",
     "at_1 ? of.blocks_of(k) : 0", "at_1 ? of.most_blocks() : 0", "sharded.test.cpp", "cuda: a vocabulary in parts*"),
    ("a single logit is taken from another rank", "include/specagg/shards/detail/rank_reader.hpp",
     "return all(self().layout().owner(v), 0);", "return all(0, 0);", "sharded.test.cpp",
     "cuda: a policy that asks for single logits*"),
    ("a bonus follows a text that has ended", "include/specagg/verify/verify.hpp",
     "return bonus && !ends_text(g);", "return bool(bonus);", "ragged.test.cpp", "cuda: no bonus follows*"),
    ("a draft ends before the token that ends the text", CUDA + "batch.hpp",
     "ended ? unsigned(__ffs(int(ends)))", "ended ? unsigned(__ffs(int(ends))) - 1", "ragged.test.cpp",
     "cuda: ragged batches*"),
    ("a sum in another unit is taken for one in the row's", CUDA + "row.hpp",
     "return !counts || unit_of_sum<float>::of(n(facts().sampled.max)).reached_by(n(x.max));", "return true;",
     "verify.test.cpp", "cuda: logits of every type*"),
    ("at temperature 0 the block before the token's has the mass", CUDA + "row.hpp",
     "sum = b == unsigned(facts().token) / unsigned(block_size);",
     "sum = b + 1 == unsigned(facts().token) / unsigned(block_size) || (b == 0 && facts().token < block_size);",
     "verify.test.cpp", "cuda: logits of every type*"),
    ("a group of 16 entries is added up from the next entry on", CUDA + "warp.hpp",
     "const unsigned k = threadIdx.x % 16 * 16 + i;", "const unsigned k = threadIdx.x % 16 * 16 + i + 1;",
     "verify.test.cpp", "cuda: logits of every type*"),
    ("a token is accepted without its coin where all are judged at once", "include/specagg/verify/detail/decision.hpp",
     "(has_draft<decltype(rows)> || d.w >= 1) && keep(d, j);", "(has_draft<decltype(rows)> || d.w >= 1);",
     "verify.test.cpp", "cuda: logits of every type*"),
    ("a token outside the support is accepted where all are judged at once", "include/specagg/verify/detail/decision.hpp",
     "kept = d.e.why == status::ok && d.w <", "kept = d.w <", "verify.test.cpp", "cuda: logits of every type*"),
    ("a text does not end where all are judged at once", "include/specagg/verify/detail/decision.hpp",
     "if (drafted.ends_text(n)) result.ended = drafted.tokens[n - 1];", "", "verify.test.cpp",
     "cuda: an accepted token that ends the text*"),
    ("a part whose largest logit is the bound is not filtered", CUDA + "filter.hpp",
     "maxima[16 * b + lane] >= lowest", "maxima[16 * b + lane] > lowest", "filter.test.cpp", "cuda:*"),
    ("of equal logits a filter keeps the higher ids", CUDA + "filter.hpp", "<< 32 | std::uint32_t(~id);",
     "<< 32 | std::uint32_t(id);", "filter.test.cpp", "cuda:*"),
    ("the token after the one that is enough is taken", CUDA + "filter.hpp", "before + own + x >= enough",
     "before + own + x > enough", "filter.test.cpp", "cuda:*"),
    ("the tokens of a bucket are taken for the first of the row", CUDA + "filter.hpp", "if (hi >= top_) covered_ = lo;",
     "covered_ = lo;", "filter.test.cpp", "cuda:*"),
    ("only the first half of a part is filtered", CUDA + "filter.hpp", "half < 2;", "half < 1;", "filter.test.cpp", "cuda:*"),
    ("a list that lacks a few tokens counts", CUDA + "filter.hpp", "if (listed_ > m_->capacity) return",
     "if (listed_ > m_->capacity + 16) return", "filter.test.cpp", "cuda:*"),
    ("a list covers its tokens after buckets took its memory", CUDA + "filter.hpp",
     "  __device__ void clear_buckets() {\n    covered_ = none;\n", "  __device__ void clear_buckets() {\n",
     "filter.test.cpp", "cuda:*"),
    ("what a bound that was too high has found stays", CUDA + "filter.hpp", "      from = least;\n        above = 0;\n",
     "      from = least;\n", "filter.test.cpp", "cuda:*"),
    ("the logits of a part are loaded at once from any address", CUDA + "row.hpp",
     "if (all && (Whole || reinterpret_cast<std::uintptr_t>(logits + v) % sizeof(quad) == 0)) {", "if (all) {",
     "filter.test.cpp", "cuda:*"),
    ("the four logits at 64 a have the mask of the first four", CUDA + "row.hpp", "mask[(v + step * i) / 32] : 0;",
     "mask[v / 32] : 0;", "filter.test.cpp", "cuda:*"),
    ("a quotient is not corrected", CUDA + "row_sums.hpp", "return fma(x, fma(q, minus_b, D(a)), q).v;", "return q.v;",
     "row_sums.test.cpp", "cuda:*"),
    ("the draft's rows have the stride of the target's", CUDA + "verify.hpp",
     "is_draft ? this->draft_stride : this->target_stride", "this->target_stride", "verify.test.cpp",
     "cuda: logits of every type*"),
    ("a row's part is of the request before", CUDA + "verify.hpp", "factor(((1u << 31) + n - 1) / n)", "factor((1u << 31) / n)",
     "verify.emulator.test.cpp", "cuda: a row's part*"),
    ("a request has a row more than its range says", CUDA + "batch.hpp", "unsigned(j) >= own.count", "unsigned(j) > own.count",
     "verify.test.cpp", "cuda: rows after the end*"),
    ("a range may end after its matrix", CUDA + "verify.hpp", "wanted.count < left ? wanted.count : left", "wanted.count",
     "verify.test.cpp", "cuda: rows after the end*"),
    ("the target's rows are placed as the draft's", CUDA + "ragged.hpp", "is_draft && this->draft_row_numbers",
     "bool(this->draft_row_numbers)", "ragged.test.cpp", "cuda: ragged batches*"),
    ("under __CUDA_ARCH__ a product is rounded before its sum", "include/specagg/kernel/detail/simd/number.hpp",
     "return __fmaf_rn(a, b, c);", "return __fadd_rn(__fmul_rn(a, b), c);",
     "emulator.arch.slow.test.cpp,emulator/math_bits.cpp", "cuda: arithmetic*"),
]

# A part of what a file tests, which compiles sooner. Only where it finds what the whole finds.
PART = {"verify.test.cpp": ["-DFEW_KERNELS=1"]}


def passes(include, sources, tests):
    """Whether the tests pass; None: they do not compile."""
    program = folder / "mutant"
    files = [ROOT / "tests/cuda" / s for s in sources.split(",")]
    built = subprocess.run([*compiler, f"-I{include}", *PART.get(sources, []), *files, *libraries, "-o", program],
                           capture_output=True, text=True)
    if built.returncode != 0:
        print(built.stderr[-3000:])
        return None
    ran = subprocess.run([program, tests], capture_output=True, text=True, timeout=1800)
    print("\n".join(ran.stdout.splitlines()[-2:]))
    return ran.returncode == 0


folder.mkdir(parents=True, exist_ok=True)
wrong = 0
known = set()
for what, header, text, instead, sources, tests in MUTANTS:
    original = (ROOT / header).read_text()
    if original.count(text) != 1:
        sys.exit(f"mutants.py: {header} does not have once: {text}")
    if (sources, tests) not in known:
        known.add((sources, tests))
        if passes(ROOT / "include", sources, tests) is not True:
            sys.exit(f"mutants.py: {sources}: {tests} does not pass without a mistake")
    shutil.rmtree(folder / "include", ignore_errors=True)
    shutil.copytree(ROOT / "include", folder / "include")
    (folder / header).write_text(original.replace(text, instead))
    found = passes(folder / "include", sources, tests)
    print(f"{'found' if found is False else 'does not compile' if found is None else 'NOT FOUND'}: {what}", flush=True)
    wrong += found is not False
sys.exit(wrong > 0)
