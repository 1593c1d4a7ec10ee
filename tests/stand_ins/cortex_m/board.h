/* Functions of board.c besides those of the C library. */
#ifdef __cplusplus
extern "C" {
#endif
void put(char c);   /* to the serial port */
void leave(void);   /* ends the emulator */
#ifdef __cplusplus
}
#endif
