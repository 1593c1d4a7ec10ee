#!/bin/sh
# idf.py ACTION...: the chip is a RISC-V of QEMU's without floating point; ESP-IDF is the folder esp_idf.
IDF_PATH=$(dirname "$0")/esp_idf
export IDF_PATH
[ "$1" = -C ] && cd "$2" && shift 2
[ "$1" = -p ] && shift 2
[ "$1" = set-target ] && { [ "$2" = esp32c3 ]; exit $?; }
cmake -S . -B build -DCMAKE_TOOLCHAIN_FILE="$IDF_PATH/tools/cmake/toolchain.cmake" >build.log 2>&1 || { cat build.log >&2; exit 1; }
cmake --build build >>build.log 2>&1 || { cat build.log >&2; exit 1; }
case "$*" in
  *monitor*) exec timeout 20 qemu-system-riscv32 -M virt -bios none -nographic -monitor none -serial stdio -kernel build/digits.elf ;;
esac
