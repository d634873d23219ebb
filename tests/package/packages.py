#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/package: the archive holds what is committed, and makes the same bytes twice; a program compiles against the
unpacked Debian package, by pkg-config and by find_package, and no file of it names a folder of this machine. The
versions of the vcpkg port and the Conan recipe are CMakeLists.txt's. The port runs with stand-ins for vcpkg's functions
(vcpkg.cmake), and a program compiles with what it has installed. Where there is conan, its package is made and tested, too.

usage: packages.py FOLDER [CXX]
"""
import hashlib, json, os, pathlib, re, shutil, subprocess, sys, tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
folder, cxx = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else "g++"
version = re.search(r"project\(specagg VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


# The output of a command, its messages among it: nobody sees them unless it fails.
def run(*command, **environment):
    result = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)
    assert result.returncode == 0, f"{command}: exit status {result.returncode}\n{result.stdout}"
    return result.stdout


def git(*command):
    return subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True)


if git("rev-parse", "--verify", "HEAD").returncode != 0:
    print("skipped: this tree is no git repository")
    sys.exit()
shutil.rmtree(folder, ignore_errors=True)

manifest = json.loads((ROOT / "cmake/vcpkg/vcpkg.json").read_text())
assert manifest["name"] == "specagg" and set(manifest["default-features"]) <= set(manifest["features"]), manifest
ported = manifest["version"]
assert ported == version, f"cmake/vcpkg/vcpkg.json has version {ported}, CMakeLists.txt {version}"

# --- the archive ---
digests = []
for _ in range(2):
    run(ROOT / "scripts/package", folder / "out", DEBFULLNAME="", DEBEMAIL="")
    digests.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (folder / "out").iterdir()})
assert digests[0] == digests[1], f"made twice, the packages differ: {digests}"
archive = next((folder / "out").glob("specagg-*.tar.gz"))
version = archive.name.removeprefix("specagg-").removesuffix(".tar.gz")  # the commit's
with tarfile.open(archive) as tar:
    packed = sorted(m.name.split("/", 1)[1] for m in tar.getmembers() if m.isfile())
committed = sorted(git("ls-tree", "-r", "--name-only", "HEAD").stdout.splitlines())
assert packed == committed, f"the archive differs from the commit by {set(packed) ^ set(committed)}"
print(f"{archive.name}: {len(packed)} files")

# --- the Debian package ---
if not shutil.which("dpkg-deb"):
    print("there is no dpkg-deb: the Debian package was not tested")
else:
    package = folder / "out" / f"specagg-dev_{version}_all.deb"
    run("dpkg-deb", "--extract", package, folder / "root")
    maintainer = run("dpkg-deb", "--field", package, "Maintainer").strip()
    author = git("log", "-1", "--format=%an <%ae>").stdout.strip()
    assert maintainer == author, f"the maintainer is {maintainer}, the commit's author {author}"
    prefix = folder / "root/usr"
    own = [os.fsencode(folder), os.fsencode(ROOT)]
    for path in prefix.rglob("*"):
        assert not path.is_file() or not any(o in path.read_bytes() for o in own), f"{path} names this machine's folders"
    headers = len(list((prefix / "include").rglob("*.hpp")))
    assert headers == sum(p.startswith("include/") and p.endswith(".hpp") for p in committed)

    consumer = ROOT / "tests/package/consumer.cpp"
    if shutil.which("pkg-config"):
        search = {"PKG_CONFIG_PATH": str(prefix / "share/pkgconfig")}
        assert run("pkg-config", "--modversion", "specagg", **search).strip() == version
        flags = run("pkg-config", "--cflags", "--libs", "specagg", **search).split()
        run(cxx, "-std=c++20", *flags, consumer, "-o", folder / "by_pkg_config")
        print("by pkg-config:", run(folder / "by_pkg_config").strip())
    else:
        print("there is no pkg-config: specagg.pc was not tested")
    run("cmake", "-S", ROOT / "tests/package", "-B", folder / "by_cmake", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={cxx}")
    run("cmake", "--build", folder / "by_cmake")
    print("by find_package:", run(folder / "by_cmake/consumer").strip())

# --- the vcpkg port ---
called = set(re.findall(r"^(vcpkg_\w+)\(", (ROOT / "cmake/vcpkg/portfile.cmake").read_text(), re.M))
helpers = {one["name"] for one in manifest["dependencies"]}
assert all(("vcpkg-cmake-config" if one == "vcpkg_cmake_config_fixup" else "vcpkg-cmake") in helpers
           for one in called if one.startswith("vcpkg_cmake_")), (called, helpers)
run("cmake", f"-DFOLDER={folder}/vcpkg", "-P", ROOT / "tests/package/vcpkg.cmake")
prefix = folder / "vcpkg/packages"
assert {p.name for p in prefix.iterdir()} == {"include", "share"}, list(prefix.iterdir())
assert (prefix / "share/specagg/copyright").read_bytes() == (ROOT / "LICENSE").read_bytes()
moved = folder / "vcpkg/elsewhere"  # vcpkg copies a package to where it is used
shutil.move(prefix, moved)
run("cmake", "-S", ROOT / "tests/package", "-B", folder / "by_vcpkg", f"-DCMAKE_PREFIX_PATH={moved}",
    f"-DCMAKE_CXX_COMPILER={cxx}")
run("cmake", "--build", folder / "by_vcpkg")
print("by the vcpkg port's files:", run(folder / "by_vcpkg/consumer").strip())

# --- the Conan package ---
if not shutil.which("conan"):
    print("there is no conan: the recipe was not tested")
else:
    version = ported  # of the tree as it stands
    home = {"CONAN_HOME": str(folder / "conan")}
    run("conan", "profile", "detect", **home)
    made = run("conan", "create", ROOT / "cmake/conan", "-s", "compiler.cppstd=20",
               "-s", "build_type=Debug", "-o", "specagg/*:with_xsimd=False", "--no-remote", "-c", "tools.build:jobs=1",
               "-c", f"tools.cmake.cmake_layout:test_folder={folder}/conan-test", **home)
    assert f"specagg {version}: ok, 2 tokens" in made and "\nscalar\n" in made, made
    print("by conan: both consumers run")
