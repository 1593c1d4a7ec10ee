# The CMake functions of Zephyr that an application and its modules use.

set(board ${CMAKE_CURRENT_LIST_DIR}/../cortex_m)

# CONFIG_NAME=y of prj.conf.
file(STRINGS prj.conf lines REGEX "^CONFIG_[A-Z0-9_]+=")
foreach(line IN LISTS lines)
  string(REGEX MATCH "^([A-Z0-9_]+)=(.*)$" _ ${line})
  set(${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
endforeach()

function(zephyr_include_directories)
  target_include_directories(app PRIVATE ${ARGN})
endfunction()

function(zephyr_library)
endfunction()

function(zephyr_library_sources)
  target_sources(app PRIVATE ${ARGN})
endfunction()

macro(project name)
  set(CMAKE_SYSTEM_NAME Generic)
  set(CMAKE_C_COMPILER arm-none-eabi-gcc)
  set(CMAKE_C_COMPILER_WORKS 1)
  _project(${name} C)
  add_executable(app ${board}/board.c)
  set_target_properties(app PROPERTIES OUTPUT_NAME zephyr.elf)
  set(flags -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16)
  target_compile_options(app PRIVATE ${flags} -O2 -fno-builtin-printf -Wall -Wextra -Werror -isystem ${board}/include)
  target_link_options(app PRIVATE ${flags} -nostdlib -T ${board}/board.ld -Wl,-z,noexecstack,--no-warn-rwx-segments)
  target_link_libraries(app PRIVATE gcc)
  foreach(module IN LISTS ZEPHYR_EXTRA_MODULES)
    add_subdirectory(${module}/zephyr ${CMAKE_BINARY_DIR}/modules/${module})
  endforeach()
endmacro()
