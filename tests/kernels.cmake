# Every kernel is read by the compilers of its other targets: address spaces by OpenCL's, CUDA by nvcc
# where there is one.
get_filename_component(clang_folder ${CMAKE_CXX_COMPILER} DIRECTORY)
get_filename_component(clang_name ${CMAKE_CXX_COMPILER} NAME)
string(REPLACE "clang++" "clang" clang_name ${clang_name})
find_program(CSGL_NVCC nvcc)
file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*.metal)
foreach(kernel ${kernels})
  get_filename_component(name ${kernel} NAME_WE)
  add_test(NAME kernel_address_spaces_${name} COMMAND ${clang_folder}/${clang_name} -x cl
    -cl-std=clc++2021 -target spir64 -fsyntax-only -Wall -Werror -I${CMAKE_SOURCE_DIR}/src ${kernel})
  if(CSGL_NVCC)
    add_test(NAME kernel_cuda_${name} COMMAND ${CSGL_NVCC} -x cu -arch=sm_80 -std=c++17 -ptx
      -diag-suppress 550,177 -I${CMAKE_SOURCE_DIR}/src -o ${CMAKE_CURRENT_BINARY_DIR}/${name}.ptx ${kernel})
  endif()
endforeach()
