# SPDX-License-Identifier: Apache-2.0
#
# Cross build for AArch64 on Debian: gcc's cross compiler, libraries of the arm64 multiarch packages
# (scripts/install_deps.sh --arm), programs run by qemu-user, whose default processor ("max") has NEON and
# SVE of any length; QEMU_CPU chooses another.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
