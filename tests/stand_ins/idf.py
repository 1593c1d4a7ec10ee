#!/usr/bin/env python3
"""``idf.py``: the chip is a RISC-V of QEMU's without floating point; ESP-IDF is the folder ``esp_idf``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

IDF = Path(__file__).resolve().parent / "esp_idf"
QEMU = "timeout 20 qemu-system-riscv32 -M virt -bios none -nographic -monitor none -serial stdio -kernel"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-C", dest="folder", default=".")
    parser.add_argument("-p", dest="port")
    parser.add_argument("actions", nargs="+")
    given = parser.parse_args()
    if given.actions[0] == "set-target":
        sys.exit(given.actions[1:] != ["esp32c3"])
    os.chdir(given.folder)
    environment = {**os.environ, "IDF_PATH": str(IDF)}
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={IDF / 'tools' / 'cmake' / 'toolchain.cmake'}"
    for command in (["cmake", "-S", ".", "-B", "build", toolchain], ["cmake", "--build", "build"]):
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
    if "monitor" in given.actions:
        subprocess.run([*QEMU.split(), "build/digits.elf"], check=True)


main()
