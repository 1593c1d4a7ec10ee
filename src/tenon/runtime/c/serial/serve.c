/* Serves the network over a serial port, or any stream of bytes, for `tenon validate --device serial:PORT`.

   The protocol, version 1.  Numbers are little-endian.  A frame is
       'T' 'N'  version (1 byte)  type (1 byte)  length (2 bytes)  payload (length bytes)  CRC-32 (4 bytes)
   where the CRC (IEEE 802.3, as of zlib) is that of everything between 'T' 'N' and itself, and a payload has 512 bytes
   at most.  The host sends a request and waits for its answer:
       request              payload              answer               payload
       1 HELLO              -                    129 HELLO            digest (32), bytes of tensors (4), name
       2 WRITE              offset (4), bytes    130 WRITE            -
       3 RUN                -                    131 RUN              status (4), microseconds (4; 0: no clock)
       4 READ               offset (4), n (2)    132 READ             n bytes
   or 255 ERROR with one byte: 1 damaged frame, 2 other version, 3 unknown request, 4 outside of the tensors.  A damaged
   frame changes nothing, and the host repeats its request.  The digest is that of the bundle (tenon's
   runtime/bundle/network_digest.py), so that a board with another network is noticed. */

enum { SERIAL_VERSION = 1, SERIAL_PAYLOAD = 512 };
enum { SERIAL_HELLO = 1, SERIAL_WRITE, SERIAL_RUN, SERIAL_READ, SERIAL_ANSWER = 128, SERIAL_ERROR = 255 };
enum { SERIAL_DAMAGED = 1, SERIAL_OTHER_VERSION, SERIAL_UNKNOWN, SERIAL_OUTSIDE };

typedef struct {
  void (*send)(uint8_t byte);
  uint8_t (*receive)(void);
  uint32_t crc;
} SerialPort;

static uint32_t serial_crc(uint32_t crc, uint8_t byte) {
  crc ^= byte;
  for (int bit = 0; bit < 8; bit++) crc = crc & 1u ? (crc >> 1) ^ 0xedb88320u : crc >> 1;
  return crc;
}

static uint8_t serial_get(SerialPort *port) {
  const uint8_t byte = port->receive();
  port->crc = serial_crc(port->crc, byte);
  return byte;
}

static uint32_t serial_get_number(SerialPort *port, int bytes) {
  uint32_t number = 0;
  for (int i = 0; i < bytes; i++) number |= (uint32_t)serial_get(port) << (8 * i);
  return number;
}

static void serial_put(SerialPort *port, uint8_t byte) {
  port->crc = serial_crc(port->crc, byte);
  port->send(byte);
}

static void serial_put_number(SerialPort *port, uint32_t number, int bytes) {
  for (int i = 0; i < bytes; i++) serial_put(port, (uint8_t)(number >> (8 * i)));
}

static void serial_begin(SerialPort *port, int type, uint32_t length) {
  port->send('T');
  port->send('N');
  port->crc = 0xffffffffu;
  serial_put(port, SERIAL_VERSION);
  serial_put(port, (uint8_t)type);
  serial_put_number(port, length, 2);
}

static void serial_end(SerialPort *port) {
  const uint32_t crc = ~port->crc;
  serial_put_number(port, crc, 4);
}

static void serial_fail(SerialPort *port, int code) {
  serial_begin(port, SERIAL_ERROR, 1);
  serial_put(port, (uint8_t)code);
  serial_end(port);
}

/* Waits for the beginning of a frame. */
static void serial_synchronise(SerialPort *port) {
  for (uint8_t last = 0, byte;; last = byte) {
    byte = port->receive();
    if (last == 'T' && byte == 'N') return;
  }
}

/* Whether the frame that was received is whole. */
static int serial_whole(SerialPort *port) {
  const uint32_t expected = ~port->crc;
  return serial_get_number(port, 4) == expected;
}

static void serial_hello(SerialPort *port) {
  uint32_t length = 0;
  while (SERIAL_NAME[length]) length++;
  serial_begin(port, SERIAL_ANSWER + SERIAL_HELLO, 36 + length);
  for (int i = 0; i < 32; i++) serial_put(port, serial_digest[i]);
  serial_put_number(port, SERIAL_TENSORS, 4);
  for (uint32_t i = 0; i < length; i++) serial_put(port, (uint8_t)SERIAL_NAME[i]);
  serial_end(port);
}

static void serial_run(SerialPort *port, uint8_t *tensors, uint8_t *activations, uint32_t (*microseconds)(void)) {
  const uint32_t began = microseconds ? microseconds() : 0;
  const int status = SERIAL_NETWORK(tensors, activations);
  const uint32_t time = microseconds ? microseconds() - began : 0;
  serial_begin(port, SERIAL_ANSWER + SERIAL_RUN, 8);
  serial_put_number(port, (uint32_t)status, 4);
  serial_put_number(port, time, 4);
  serial_end(port);
}

static void serial_read(SerialPort *port, const uint8_t *tensors, uint32_t offset, uint32_t count) {
  serial_begin(port, SERIAL_ANSWER + SERIAL_READ, count);
  for (uint32_t i = 0; i < count; i++) serial_put(port, tensors[offset + i]);
  serial_end(port);
}

/* Whether `count` bytes from `offset` on are inside of the tensors. */
static int serial_inside(uint32_t offset, uint32_t count) {
  return offset <= SERIAL_TENSORS && count <= SERIAL_TENSORS - offset;
}

static uint32_t serial_number(const uint8_t *bytes, int count) {
  uint32_t number = 0;
  for (int i = 0; i < count; i++) number |= (uint32_t)bytes[i] << (8 * i);
  return number;
}

/* One request and its answer. */
static void serial_request(SerialPort *port, uint8_t *tensors, uint8_t *activations, uint32_t (*microseconds)(void)) {
  static uint8_t payload[SERIAL_PAYLOAD];
  serial_synchronise(port);
  port->crc = 0xffffffffu;
  const uint32_t version = serial_get(port), type = serial_get(port), length = serial_get_number(port, 2);
  for (uint32_t i = 0; i < length && length <= SERIAL_PAYLOAD; i++) payload[i] = serial_get(port);
  if (length > SERIAL_PAYLOAD || !serial_whole(port)) {
    serial_fail(port, SERIAL_DAMAGED);
    return;
  }
  const uint32_t head = type == SERIAL_WRITE ? 4 : type == SERIAL_READ ? 6 : 0;
  const uint32_t offset = head && length >= head ? serial_number(payload, 4) : 0;
  const uint32_t count = type == SERIAL_READ && length >= head ? serial_number(payload + 4, 2) : length - head;
  if (version != SERIAL_VERSION) {
    serial_fail(port, SERIAL_OTHER_VERSION);
  } else if (length < head || (head && !serial_inside(offset, count)) || count > SERIAL_PAYLOAD) {
    serial_fail(port, SERIAL_OUTSIDE);
  } else if (type == SERIAL_HELLO) {
    serial_hello(port);
  } else if (type == SERIAL_WRITE) {
    for (uint32_t i = 0; i < count; i++) tensors[offset + i] = payload[4 + i];
    serial_begin(port, SERIAL_ANSWER + SERIAL_WRITE, 0);
    serial_end(port);
  } else if (type == SERIAL_RUN) {
    serial_run(port, tensors, activations, microseconds);
  } else if (type == SERIAL_READ) {
    serial_read(port, tensors, offset, count);
  } else {
    serial_fail(port, SERIAL_UNKNOWN);
  }
}
