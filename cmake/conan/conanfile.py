# SPDX-License-Identifier: Apache-2.0
"""Conan 2: conan create cmake/conan -s compiler.cppstd=20

Packs the tree it stands in. -o "specagg/*:with_xsimd=False" takes no package from a remote: then xsimd is used where the
compiler finds it, and the code is scalar, many times slower with the same tokens, where it does not.
"""
import pathlib, re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy

TREE = pathlib.Path(__file__).resolve().parent.parent.parent


class Specagg(ConanFile):
    name = "specagg"
    license = "Apache-2.0"
    description = "Exact verification of drafted tokens for LLM decoding: speculative decoding, cascades, ensembles"
    topics = ("llm", "speculative-decoding", "sampling", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_xsimd": [True, False]}
    default_options = {"with_xsimd": True}
    no_copy_source = True

    def set_version(self):
        self.version = re.search(r"project\(specagg VERSION ([\d.]+)", (TREE / "CMakeLists.txt").read_text())[1]

    def export_sources(self):
        for files in ("include/*", "cmake/specagg*", "LICENSE"):
            copy(self, files, TREE, self.export_sources_folder)

    def requirements(self):
        if self.options.with_xsimd:
            self.requires("xsimd/[>=8.1 <15]", transitive_headers=True)

    def validate(self):
        if self.settings.get_safe("compiler.cppstd"):
            check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()  # the same files for every compiler

    def package(self):
        copy(self, "include/*", self.source_folder, self.package_folder)
        copy(self, "LICENSE", self.source_folder, f"{self.package_folder}/licenses")
        for files in ("specaggDispatch*", "specaggInstructionSets*"):
            copy(self, files, f"{self.source_folder}/cmake", f"{self.package_folder}/cmake")

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        self.cpp_info.set_property("cmake_build_modules", ["cmake/specaggDispatch.cmake"])
        self.cpp_info.set_property("pkg_config_name", "specagg")
