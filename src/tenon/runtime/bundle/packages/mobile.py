"""Source packages for applications: a Swift package, and a library project for Android's Gradle."""

from __future__ import annotations

import re

from tenon.runtime.bundle.packages.contents import Contents

_SWIFT = """\
// swift-tools-version:5.5
import PackageDescription

let package = Package(
    name: "@NAME@",
    products: [.library(name: "@NAME@", targets: ["@NAME@"])],
    targets: [.target(name: "@NAME@", path: "Sources/@NAME@"@SETTINGS@)]
)
"""
_MODULE_MAP = """\
module @NAME@ {
    header "@NAME@.h"
    header "@NAME@_weights.h"
    export *
}
"""
_SETTINGS = "pluginManagement { repositories { google(); mavenCentral(); gradlePluginPortal() } }\n"
_REPOSITORIES = "dependencyResolutionManagement { repositories { google(); mavenCentral() } }\n"
_GRADLE = """\
plugins { id 'com.android.library' version '8.1.0' }

android {
    namespace 'org.tenon.@NAME@'
    compileSdk 34
    defaultConfig {
        minSdk 21
        ndk { abiFilters '@ABI@' }
    }
    externalNativeBuild { cmake { path 'src/main/cpp/CMakeLists.txt' } }
}
"""
_CMAKE = """\
cmake_minimum_required(VERSION 3.13)
project(@NAME@ C)
add_library(@NAME@ SHARED @NAME@.c @NAME@_weights.c)
target_compile_options(@NAME@ PRIVATE -O2 @FLAGS@)
target_include_directories(@NAME@ PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
find_library(@PREFIX@_MATH m)
if(@PREFIX@_MATH)
  target_link_libraries(@NAME@ PRIVATE ${@PREFIX@_MATH})
endif()
if(ANDROID)
  target_sources(@NAME@ PRIVATE @NAME@_jni.c)
endif()
"""
_JNI = """\
/* The native methods of Network.java. */
#include <jni.h>
#include "@NAME@_weights.h"

TENON_MEM_ALIGN(64) static uint8_t tensors[@PREFIX@_MUTABLE_MEM_SIZE + 1];
TENON_MEM_ALIGN(64) static uint8_t activations[@PREFIX@_ACTIVATIONS_MEM_SIZE + 1];

JNIEXPORT jobject JNICALL Java_org_tenon_@MANGLED@_Network_memory(JNIEnv *env, jclass type) {
  (void)type;
  return (*env)->NewDirectByteBuffer(env, tensors, @PREFIX@_MUTABLE_MEM_SIZE);
}

JNIEXPORT jint JNICALL Java_org_tenon_@MANGLED@_Network_start(JNIEnv *env, jclass type) {
  (void)env, (void)type;
  return @NAME@_run(tensors, activations);
}
"""
_JAVA = """\
package org.tenon.@NAME@;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** The network @NAME@, of which a process has one. */
public final class Network {
    static {
        System.loadLibrary("@NAME@");
    }

    private Network() {}

@CONSTANTS@
    /** Inputs and outputs, at the offsets above. */
    public static ByteBuffer tensors() {
        return memory().order(ByteOrder.nativeOrder());
    }

    /** Runs the network once. */
    public static synchronized void run() {
        if (start() != 0) {
            throw new IllegalStateException("@NAME@ has not run");
        }
    }

    private static native ByteBuffer memory();

    private static native int start();
}
"""
_ABIS = {"aarch64": "arm64-v8a", "arm": "armeabi-v7a", "x86_64": "x86_64"}


def swift(contents: Contents) -> dict[str, bytes]:
    """A package for Swift's package manager with the network as a C module."""
    flags = ", ".join(f'"{flag}"' for flag in contents.flags)
    settings = f", cSettings: [.unsafeFlags([{flags}])]" if flags else ""
    top = f"{contents.name}/"
    sources = f"{top}Sources/{contents.name}/"
    return {
        f"{top}Package.swift": contents.filled(_SWIFT, SETTINGS=settings),
        f"{sources}include/module.modulemap": contents.filled(_MODULE_MAP),
        **contents.headers(f"{sources}include/"),
        **contents.sources(sources),
    }


def android(contents: Contents) -> dict[str, bytes]:
    """A library project for Gradle and Android's NDK, with a class ``org.tenon.<name>.Network`` over JNI."""
    name, top = contents.name, f"{contents.name}/"
    code = f"{top}src/main/cpp/"
    abi = _ABIS.get(contents.target.triple.split("-")[0], "arm64-v8a")
    return {
        f"{top}settings.gradle": (_SETTINGS + _REPOSITORIES + f"rootProject.name = '{name}'\n").encode(),
        f"{top}build.gradle": contents.filled(_GRADLE, ABI=abi),
        f"{top}src/main/AndroidManifest.xml": b"<manifest/>\n",
        f"{top}src/main/java/org/tenon/{name}/Network.java": contents.filled(_JAVA, CONSTANTS=_constants(contents)),
        f"{code}CMakeLists.txt": contents.filled(_CMAKE),
        f"{code}{name}_jni.c": contents.filled(_JNI, MANGLED=name.replace("_", "_1")),
        **contents.headers(code),
        **contents.sources(code),
    }


def _constants(contents: Contents) -> str:
    """The integers of the header as constants of a Java class: offsets and sizes of inputs and outputs."""
    integer = re.compile(rf"^#define ({contents.name.upper()}_\w+) \(?(-?\d+)\)?(?: /\*.*)?$", re.MULTILINE)
    constants = [(name, value) for name, value in integer.findall(contents.header) if int(value) < 1 << 31]
    about = f"    /* As in {contents.name}.h: offsets of inputs and outputs in the tensors, their sizes. */\n"
    return about + "".join(f"    public static final int {name} = {value};\n" for name, value in constants)
