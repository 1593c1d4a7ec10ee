"""The network with a server for a serial port, for ``tenon validate --device serial:PORT``."""

from __future__ import annotations

from pathlib import Path

from tenon.runtime.bundle.packages.contents import Contents

_SERVER = Path(__file__).parents[2] / "c" / "serial" / "serve.c"
_TOP = """\
/* @NAME@_serve answers the requests of `tenon validate --device serial:PORT`, and never returns.  Compile this file
   with the network, and give it the board's serial port:

     void @NAME@_serve(uint8_t (*receive)(void), void (*send)(uint8_t byte), uint32_t (*microseconds)(void));

   receive waits for a byte, send sends one, microseconds reads a clock (NULL: there is none). */

#include "@NAME@_weights.h"

#define SERIAL_NAME "@NAME@"
#define SERIAL_NETWORK @NAME@_run
#define SERIAL_TENSORS ((uint32_t)@PREFIX@_MUTABLE_MEM_SIZE)

static const uint8_t serial_digest[32] = {
@DIGEST@};

"""
_SERVE = """
void @NAME@_serve(uint8_t (*receive)(void), void (*send)(uint8_t byte), uint32_t (*microseconds)(void));

void @NAME@_serve(uint8_t (*receive)(void), void (*send)(uint8_t byte), uint32_t (*microseconds)(void)) {
  TENON_MEM_ALIGN(64) static uint8_t tensors[@PREFIX@_MUTABLE_MEM_SIZE + 1];
  TENON_MEM_ALIGN(64) static uint8_t activations[@PREFIX@_ACTIVATIONS_MEM_SIZE + 1];
  SerialPort port = {send, receive, 0};
  for (;;) serial_request(&port, tensors, activations, microseconds);
}
"""


def serial(contents: Contents) -> str:
    """``<name>_serial.c``."""
    digest = contents.digest()
    rows = "".join("  " + "".join(f"0x{byte:02x}," for byte in digest[i : i + 16]) + "\n" for i in (0, 16))
    top, serve = contents.filled(_TOP, DIGEST=rows).decode(), contents.filled(_SERVE).decode()
    return top + _SERVER.read_text(encoding="utf-8") + serve
