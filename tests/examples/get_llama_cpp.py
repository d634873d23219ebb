#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/get-llama-cpp chooses a processor's instruction sets, never AMX, and builds again for another processor.

usage: get_llama_cpp.py [LIBRARY]    (LIBRARY: libggml-cpu.a as it built it, which is searched for instructions of AMX)
"""
import importlib.machinery, importlib.util, os, pathlib, re, shutil, signal, subprocess, sys, tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "get-llama-cpp"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
loader = importlib.machinery.SourceFileLoader("get_llama_cpp", str(SCRIPT))
get = importlib.util.module_from_spec(importlib.util.spec_from_loader("get_llama_cpp", loader))
loader.exec_module(get)

OLD = "sse4_2 avx f16c"
HASWELL = OLD + " avx2 fma bmi2"
ICE_LAKE = HASWELL + " avx512f avx512cd avx512vl avx512dq avx512bw avx512vbmi avx512_vnni"
SAPPHIRE_RAPIDS = ICE_LAKE + " avx_vnni avx512_bf16 amx_tile amx_int8 amx_bf16"


def switches():
    def on(flags, machine="x86_64"):
        chosen = get.instruction_sets(machine, f"processor\t: 0\nflags\t\t: fpu {flags} lm\nbugs\t\t: amx_tile\n")
        assert len(chosen) == len(set(chosen)) and all(re.fullmatch(r"-DGGML_\w+=(ON|OFF)", s) for s in chosen)
        return {s.removeprefix("-DGGML_").removesuffix("=ON") for s in chosen if s.endswith("=ON")}, chosen
    for flags, due in [("", set()), (OLD, {"SSE42", "AVX", "F16C"}),
                       (HASWELL, {"SSE42", "AVX", "F16C", "AVX2", "FMA", "BMI2"}),
                       (ICE_LAKE.replace("avx512cd ", ""), on(HASWELL)[0]),
                       (ICE_LAKE, on(HASWELL)[0] | {"AVX512", "AVX512_VBMI", "AVX512_VNNI"}),
                       (SAPPHIRE_RAPIDS, on(ICE_LAKE)[0] | {"AVX_VNNI", "AVX512_BF16"})]:
        assert on(flags)[0] == due, f"{flags}: {on(flags)[0]}"
    all_off = {f"-DGGML_{name}=OFF" for name in ("NATIVE", "AMX_TILE", "AMX_INT8", "AMX_BF16")}
    assert all_off <= set(on(SAPPHIRE_RAPIDS)[1]), on(SAPPHIRE_RAPIDS)[1]
    assert on("", "aarch64")[0] == {"NATIVE"} and get.instruction_sets("x86_64", "") == ["-DGGML_NATIVE=ON"]
    print("x86: the instruction sets of the processor, without AMX")


def built_again():
    """With a `build` that only says that it ran."""
    with tempfile.TemporaryDirectory() as cache:
        where, built = pathlib.Path(cache) / "llama.cpp", []
        def build(place, to):
            (place / "new").mkdir()
            (place / "new" / "number").write_text(str(len(built)))
            get.put(place / "new", to)
            built.append(to)
        get.build, get.folder = build, lambda: pathlib.Path(cache)
        cases = [("for the first time", lambda: None, 1), ("again", lambda: None, 1),
                 ("by an older script", lambda: (where / get.SWITCHES).unlink(), 2), ("again", lambda: None, 2),
                 ("for another processor", lambda: (where / get.SWITCHES).write_text("-DGGML_AMX_TILE=ON"), 3)]
        for when, change, due in cases:
            change()
            assert get.get() == where and len(built) == due, f"{when}: built {len(built)} times"
            assert (where / "number").read_text() == str(due - 1)
        assert sorted(p.name for p in pathlib.Path(cache).iterdir()) == [".llama.cpp.lock", "llama.cpp"]
    print("a library of another processor is built again")


def all_or_nothing():
    """The second of the two moves does not happen: it fails, or the process is killed before it."""
    def cut(end):
        with tempfile.TemporaryDirectory() as cache:
            where, new = pathlib.Path(cache) / "llama.cpp", pathlib.Path(cache) / ".llama.cpp-1"
            for folder, number in [(where, "old"), (new, "new")]:
                folder.mkdir()
                (folder / "number").write_text(number)
            replace, moves = os.replace, []
            def moving(a, b):
                moves.append(a)
                if len(moves) == 2:
                    end()
                replace(a, b)
            child = os.fork()
            if child == 0:
                get.os.replace = moving
                try:
                    get.put(new, where)
                except OSError:
                    os._exit(1)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
            yield where
    def fails():
        raise OSError("no room")
    for where in cut(fails):
        assert (where / "number").read_text() == "old"
    for where in cut(lambda: os.kill(os.getpid(), signal.SIGKILL)):
        assert not where.exists()
        get.folder = lambda: where.parent
        def build(place, to):
            raise get.NoDownload("offline")
        get.build = build
        (where.parent / get.REPLACED / "lib").mkdir()
        (where.parent / get.REPLACED / "lib/libllama.a").write_text("")
        assert get.get() == where and (where / "number").read_text() == "old"
        assert sorted(p.name for p in where.parent.iterdir()) == [".llama.cpp.lock", "llama.cpp"]
    print("an installation that is cut short leaves the library that was there")


def no_amx(library):
    if not shutil.which("objdump"):
        return print("skipped: no objdump")
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True).stdout
    assert "ggml_graph_compute" in code, f"{library} is not ggml's code for the CPU"
    found = re.search(r"\t(ldtilecfg|sttilecfg|tile\w+|tdp\w+)\b.*", code)
    assert not found, f"{library} has an instruction of AMX:{found[0]}"
    print("libllama has no instruction of AMX")


switches()
built_again()
all_or_nothing()
if sys.argv[1:]:
    no_amx(sys.argv[1])
