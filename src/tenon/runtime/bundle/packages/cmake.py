"""A CMake package: a static library with the weights, headers, and the files that ``find_package`` looks for."""

from __future__ import annotations

from tenon.runtime.bundle.packages.contents import Contents

_CONFIG = """\
# find_package(@NAME@) gives the target @NAME@::@NAME@: @ABOUT@.
if(NOT TARGET @NAME@::@NAME@)
  get_filename_component(_@NAME@_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(@NAME@::@NAME@ STATIC IMPORTED)
  set_target_properties(@NAME@::@NAME@ PROPERTIES
    IMPORTED_LOCATION "${_@NAME@_prefix}/lib/lib@NAME@.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES "C"
    INTERFACE_INCLUDE_DIRECTORIES "${_@NAME@_prefix}/include")
  unset(_@NAME@_prefix)
endif()
"""
VERSION_FILE = """\
set(PACKAGE_VERSION "@VERSION@")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""
"""The template of a package's version file: a package serves requests for its version or an older one."""


def cmake(contents: Contents) -> dict[str, bytes]:
    """Unpack it anywhere and add the folder to CMAKE_PREFIX_PATH."""
    name, top = contents.name, f"{contents.name}-{contents.version}/"
    return {
        **contents.headers(f"{top}include/"),
        f"{top}lib/lib{name}.a": contents.archive(),
        f"{top}lib/cmake/{name}/{name}Config.cmake": contents.filled(_CONFIG),
        f"{top}lib/cmake/{name}/{name}ConfigVersion.cmake": contents.filled(VERSION_FILE),
    }
