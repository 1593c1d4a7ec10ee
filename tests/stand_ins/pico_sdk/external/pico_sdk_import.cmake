# The CMake functions of the Pico SDK that a project uses; the board is QEMU's with a Cortex-M3, which runs code of an M0+.

set(board ${CMAKE_CURRENT_LIST_DIR}/../../cortex_m)
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_CXX_COMPILER arm-none-eabi-g++)
set(CMAKE_ASM_COMPILER arm-none-eabi-gcc)
set(CMAKE_C_COMPILER_WORKS 1)
set(CMAKE_CXX_COMPILER_WORKS 1)
set(CMAKE_ASM_COMPILER_WORKS 1)

macro(pico_sdk_init)
  set(flags -mcpu=cortex-m0plus -mthumb -O2 -Wall -Wextra -Werror)
  add_library(pico_stdlib INTERFACE)
  target_sources(pico_stdlib INTERFACE ${board}/board.c)
  target_include_directories(pico_stdlib SYSTEM INTERFACE ${board}/include)
  target_compile_options(pico_stdlib INTERFACE ${flags} -fno-builtin-printf)
  target_link_options(pico_stdlib INTERFACE ${flags} -nostdlib -T ${board}/board.ld
    -Wl,-z,noexecstack,--no-warn-rwx-segments,--no-enum-size-warning)
  target_link_libraries(pico_stdlib INTERFACE gcc)
endmacro()

function(pico_enable_stdio_usb target on)
endfunction()

function(pico_add_extra_outputs target)
  add_custom_command(TARGET ${target} POST_BUILD COMMAND ${CMAKE_COMMAND} -E copy ${target} ${target}.uf2)
endfunction()
