# Every kernel is read by the compilers of its other targets: as Metal and for address spaces by OpenCL's, as
# CUDA by nvcc where there is one; and so is the driver for Metal, against declarations of our own of what it
# uses. For each check a test shows that it finds the bugs it is there for.
get_filename_component(clang_folder ${CMAKE_CXX_COMPILER} DIRECTORY)
get_filename_component(clang_name ${CMAKE_CXX_COMPILER} NAME)
string(REPLACE "clang++" "clang" clang_name ${clang_name})
set(clang ${clang_folder}/${clang_name})
find_program(CSGL_NVCC nvcc PATHS /usr/local/cuda/bin)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(kernel_folder ${CMAKE_SOURCE_DIR}/src/kernels)
file(GLOB kernels CONFIGURE_DEPENDS ${kernel_folder}/*.metal)
file(GLOB kernel_headers CONFIGURE_DEPENDS ${kernel_folder}/*.h)
list(FILTER kernel_headers EXCLUDE REGEX "/kd[_a-z]*\\.h$") # what targets differ in
set(checks ${CMAKE_CURRENT_SOURCE_DIR}/kernels)

set(opencl ${clang} -x cl -cl-std=clc++2021 -target spir64 -fsyntax-only -Wall -Werror)
add_dependencies(test_emulator metal_sources)
foreach(kernel ${kernels})
  get_filename_component(name ${kernel} NAME_WE)
  add_test(NAME kernel_address_spaces_${name} COMMAND ${opencl} -I${CMAKE_SOURCE_DIR}/src ${kernel})
  # As it is embedded, by the macros of kd_metal.h.
  add_test(NAME kernel_metal_${name} COMMAND ${opencl} -Wno-unknown-attributes -D__METAL_VERSION__=310
    -isystem ${CMAKE_CURRENT_SOURCE_DIR}/metal ${CMAKE_BINARY_DIR}/metal/${name}.metal)
endforeach()
set(address_bugs 1 "cannot pass pointer to address space '__global'"
  2 "no known conversion from '__private float.4.' to 'const __local float"
  3 "cannot initialize a variable of type 'const __local float"
  4 "converts between mismatching address spaces"
  5 "cannot initialize a variable of type '__global float"
  6 "read-only variable is not assignable")
while(address_bugs)
  list(POP_FRONT address_bugs bug expected)
  add_test(NAME kernel_address_spaces_find_bug_${bug} COMMAND ${opencl} -I${CMAKE_SOURCE_DIR}/src -DBUG=${bug}
    ${checks}/address_bugs.metal)
  set_tests_properties(kernel_address_spaces_find_bug_${bug} PROPERTIES PASS_REGULAR_EXPRESSION "${expected}")
endwhile()
add_test(NAME kernel_address_spaces_find_no_bug COMMAND ${opencl} -I${CMAKE_SOURCE_DIR}/src -DBUG=0
  ${checks}/address_bugs.metal)

set(lint ${Python3_EXECUTABLE} ${checks}/lint.py --clang ${clang} --include ${CMAKE_SOURCE_DIR}/src)
add_test(NAME kernel_lint COMMAND ${lint} ${kernels} ${kernel_headers})
add_test(NAME kernel_lint_finds_bugs COMMAND ${lint} --bugs)

if(CSGL_NVCC)
  set(gate ${Python3_EXECUTABLE} ${checks}/cuda_gate.py --nvcc ${CSGL_NVCC} --include ${CMAKE_SOURCE_DIR}/src)
  foreach(kernel ${kernels})
    get_filename_component(name ${kernel} NAME_WE)
    add_test(NAME kernel_cuda_${name} COMMAND ${gate} --limits ${checks}/cuda_limits.txt ${kernel})
  endforeach()
  add_test(NAME kernel_cuda_finds_bugs COMMAND ${gate} --bugs)
endif()

# The oldest macOS that csgl supports, on x86-64, whose C library's headers this system has.
set(objc ${clang} -target x86_64-apple-macosx14.0 -U__nonnull -fsyntax-only -x objective-c -std=c11
  -D_GNU_SOURCE -fobjc-arc -fblocks -Wall -Wextra -Wshadow -Wconversion -Wvla -Wunguarded-availability -Werror
  -isystem ${CMAKE_CURRENT_SOURCE_DIR}/objc -isystem /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}
  -isystem /usr/include -I${CMAKE_SOURCE_DIR}/src)
file(GLOB metal_driver CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/device/gpu/metal*.m)
foreach(source ${metal_driver})
  get_filename_component(name ${source} NAME_WE)
  add_test(NAME kernel_${name}_driver COMMAND ${objc} ${source})
endforeach()
set(driver_bugs 1 "no known instance method for selector 'setBuffer:atIndex:'"
  2 "sending 'int' to parameter of type 'const void"
  3 "ARC forbids explicit message send of 'release'"
  4 "requires a bridged cast"
  5 "only available on macOS 15.0 or newer"
  6 "sending 'NSError"
  7 "incompatible type 'id<MTLBuffer>")
while(driver_bugs)
  list(POP_FRONT driver_bugs bug expected)
  add_test(NAME kernel_metal_driver_finds_bug_${bug} COMMAND ${objc} -DBUG=${bug}
    ${CMAKE_CURRENT_SOURCE_DIR}/objc/bugs.m)
  set_tests_properties(kernel_metal_driver_finds_bug_${bug} PROPERTIES PASS_REGULAR_EXPRESSION "${expected}")
endwhile()
add_test(NAME kernel_metal_driver_finds_no_bug COMMAND ${objc} -DBUG=0 ${CMAKE_CURRENT_SOURCE_DIR}/objc/bugs.m)
