# The kernels of src/kernels, and those of src/kernels/cuda for NVIDIA GPUs alone, where nvcc is found: a fat
# binary a file, with machine code for Ampere, Hopper and Blackwell and PTX of the first for the rest, as an
# array in the program. The GPU's driver is opened at run time. Without nvcc, or with -D CSGL_CUDA=OFF, csgl
# has no CUDA.
option(CSGL_CUDA "kernels for NVIDIA GPUs, if nvcc is found" ON)
set(CSGL_CUDA_ARCHS 80 90 120 CACHE STRING "compute capabilities (times 10) with machine code, the lowest first")
if(CSGL_CUDA AND NOT CMAKE_CROSSCOMPILING)
  find_program(NVCC nvcc PATHS /usr/local/cuda/bin)
endif()
if(NOT NVCC)
  set_source_files_properties(src/device/gpu/cuda.c PROPERTIES HEADER_FILE_ONLY ON)
  return()
endif()
set_source_files_properties(src/device/gpu/cuda_none.c PROPERTIES HEADER_FILE_ONLY ON)

file(GLOB cuda_kernel_sources CONFIGURE_DEPENDS src/kernels/*.metal src/kernels/cuda/*.cu)
file(GLOB cuda_kernel_headers CONFIGURE_DEPENDS src/kernels/*.h src/kernels/cuda/*.h)
list(GET CSGL_CUDA_ARCHS 0 lowest)
set(architectures -gencode arch=compute_${lowest},code=compute_${lowest})
foreach(arch ${CSGL_CUDA_ARCHS})
  list(APPEND architectures -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
set(cuda_arrays)
set(declarations "")
set(names "")
foreach(source ${cuda_kernel_sources})
  get_filename_component(name ${source} NAME_WE)
  set(binary ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.fatbin)
  add_custom_command(OUTPUT ${binary}.c
    COMMAND ${NVCC} -x cu -std=c++17 -O3 -fatbin -I${CMAKE_CURRENT_SOURCE_DIR}/src/kernels
      ${architectures} -o ${binary} ${source}
    COMMAND ${CMAKE_COMMAND} -D INPUT=${binary} -D OUTPUT=${binary}.c -D NAME=cuda_${name}
      -D HEADER=device/gpu/cuda_kernels.h -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${source} ${cuda_kernel_headers} cmake/embed.cmake VERBATIM)
  list(APPEND cuda_arrays ${binary}.c)
  string(APPEND declarations "extern const unsigned char cuda_${name}[];\n")
  string(APPEND names "    cuda_${name},\n")
endforeach()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/cuda/modules.c CONTENT
"#include \"device/gpu/cuda_kernels.h\"

${declarations}
const unsigned char *const cuda_modules[] = {
${names}};
const int cuda_n_modules = sizeof cuda_modules / sizeof cuda_modules[0];
")
target_sources(room_device PRIVATE ${cuda_arrays} ${CMAKE_CURRENT_BINARY_DIR}/cuda/modules.c)
