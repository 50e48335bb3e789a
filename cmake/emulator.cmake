# The emulator of device/gpu and the kernels of src/kernels for it, in clang's C++, twice: plain for csgl
# itself, and checked, where every access of a kernel is looked at, for the tests of single operations.
set(emulator_objects)
set(emulator_checked_objects)
if(NOT CSGL_EMULATOR)
  return()
endif()

if(NOT CMAKE_CXX_COMPILER)
  find_program(CMAKE_CXX_COMPILER NAMES clang++-20 clang++-19 clang++-18 clang++-17 clang++ REQUIRED)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
enable_language(CXX)

file(GLOB kernel_sources CONFIGURE_DEPENDS src/kernels/*.metal)
set(bug_sources tests/ops/emulator/bugs.metal)
set_source_files_properties(${kernel_sources} ${bug_sources} PROPERTIES LANGUAGE CXX)
set(emulator_runtime src/device/gpu/emulator/driver_emulator.cpp src/device/gpu/emulator/fibers.cpp)
set_source_files_properties(src/device/gpu/emulator_none.c PROPERTIES HEADER_FILE_ONLY ON)

function(emulator_library name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE src src/device/gpu/emulator)
  target_compile_options(${name} PRIVATE -O2 -g -Wall -Wextra -Werror -fno-exceptions -fno-rtti
    -fno-threadsafe-statics)
endfunction()

emulator_library(emulator ${emulator_runtime} src/device/gpu/emulator/unchecked.cpp ${kernel_sources})
emulator_library(emulator_checker ${emulator_runtime} src/device/gpu/emulator/checked.cpp)
# The compiler's calls before accesses; what it would make of several at once has none.
emulator_library(emulator_checked_kernels ${kernel_sources} ${bug_sources})
target_compile_options(emulator_checked_kernels PRIVATE -fsanitize=thread -fno-vectorize
  -fno-slp-vectorize -mllvm -tsan-instrument-func-entry-exit=0)
set(emulator_objects $<TARGET_OBJECTS:emulator>)
set(emulator_checked_objects $<TARGET_OBJECTS:emulator_checker>
  $<TARGET_OBJECTS:emulator_checked_kernels>)
