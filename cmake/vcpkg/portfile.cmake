# SPDX-License-Identifier: Apache-2.0
# An overlay port that installs the tree it stands in:
#   vcpkg install specagg --overlay-ports=cmake/vcpkg
# A port for the registry gets its source by vcpkg_from_github() instead; the rest stays.
# vcpkg does not notice changes outside this folder: after one, add --no-binarycaching.
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../..")
set(VCPKG_BUILD_TYPE release)  # headers only: there is no debug build

# Component net is installed whether there is gRPC or not, and looking for gRPC takes long.
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS -DSPECAGG_TESTS=OFF -DSPECAGG_EXAMPLES=OFF
  -DSPECAGG_TOOLS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/specagg)
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
