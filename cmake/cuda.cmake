# The kernels of src/kernels, and those of src/kernels/cuda, for NVIDIA GPUs. Where nvcc is found: a fat binary a
# file, with machine code for Ampere, Hopper and Blackwell and PTX of the first for the rest, embedded in the
# program. Without it the program holds their source and has NVRTC compile it when it first starts. The GPU's
# driver is opened at run time.
option(CSGL_CUDA "kernels for NVIDIA GPUs" ON)
option(CSGL_CUDA_SOURCE "put them into the program as source also where nvcc is" OFF)
set(CSGL_CUDA_ARCHS 80 90a 120 CACHE STRING "compute capabilities (times 10) with machine code, the lowest first")
set(cuda_is_built OFF)
if(CSGL_CUDA AND NOT CMAKE_CROSSCOMPILING AND NOT APPLE)
  set(cuda_is_built ON)
  if(CSGL_CUDA_SOURCE)
    unset(NVCC CACHE)
  else()
    find_program(NVCC nvcc PATHS /usr/local/cuda/bin)
  endif()
  set_source_files_properties(src/device/gpu/cuda_none.c PROPERTIES HEADER_FILE_ONLY ON)
else()
  set_source_files_properties(src/device/gpu/cuda.c src/device/gpu/cuda_queue.c PROPERTIES HEADER_FILE_ONLY ON)
endif()
if(NOT cuda_is_built OR NOT NVCC)
  set_source_files_properties(src/device/gpu/cuda_modules.c PROPERTIES HEADER_FILE_ONLY ON)
endif()

file(GLOB cuda_kernel_sources CONFIGURE_DEPENDS src/kernels/*.metal src/kernels/cuda/*.cu)
list(FILTER cuda_kernel_sources EXCLUDE REGEX "_matrix\\.metal$") # native kernels are there instead
file(GLOB cuda_kernel_headers CONFIGURE_DEPENDS src/kernels/*.h src/kernels/cuda/*.h)
list(GET CSGL_CUDA_ARCHS 0 lowest)
set(architectures -gencode arch=compute_${lowest},code=compute_${lowest})
foreach(arch ${CSGL_CUDA_ARCHS})
  list(APPEND architectures -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
set(cuda_folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
file(MAKE_DIRECTORY ${cuda_folder})

# C files with the bytes of the files build/cuda/NAME.SUFFIX and the table of them, cuda_THINGS; into the variable
# `out`.
function(cuda_table out suffix things)
  set(arrays)
  set(declarations "")
  set(entries "")
  foreach(source ${cuda_kernel_sources})
    get_filename_component(name ${source} NAME_WE)
    embed(array cuda_${things}_${name} ${cuda_folder}/${name}.${suffix} device/gpu/cuda_kernels.h)
    list(APPEND arrays ${array})
    string(APPEND declarations
      "extern const unsigned char cuda_${things}_${name}[];\nextern const size_t cuda_${things}_${name}_bytes;\n")
    string(APPEND entries "    {\"${name}\", cuda_${things}_${name}, &cuda_${things}_${name}_bytes},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${cuda_folder}/${suffix}_table.c CONTENT
"#include \"device/gpu/cuda_kernels.h\"

${declarations}
const struct cuda_module cuda_${things}[] = {
${entries}};
const int cuda_n_${things} = sizeof cuda_${things} / sizeof cuda_${things}[0];
")
  set(${out} ${arrays} ${cuda_folder}/${suffix}_table.c PARENT_SCOPE)
endfunction()

foreach(source ${cuda_kernel_sources})
  get_filename_component(name ${source} NAME_WE)
  add_custom_command(OUTPUT ${cuda_folder}/${name}.cu
    COMMAND ${CMAKE_COMMAND} -D INPUT=${source} -D OUTPUT=${cuda_folder}/${name}.cu
      -D EXCEPT=kd_metal.h,kd_opencl.h,kd_emulator.h -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/flatten.cmake
    DEPENDS ${source} ${cuda_kernel_headers} cmake/flatten.cmake VERBATIM)
  add_custom_command(OUTPUT ${cuda_folder}/${name}.fatbin
    COMMAND ${NVCC} -x cu -std=c++17 -O3 -fatbin -I${CMAKE_CURRENT_SOURCE_DIR}/src/kernels
      ${architectures} -o ${cuda_folder}/${name}.fatbin ${source}
    DEPENDS ${source} ${cuda_kernel_headers} VERBATIM)
endforeach()
cuda_table(cuda_source_arrays cu sources)
cuda_table(cuda_binary_arrays fatbin binaries)
set(cuda_compiler src/device/gpu/nvrtc/cuda_compile.c ${cuda_source_arrays})
if(cuda_is_built AND NOT NVCC)
  target_sources(room_device PRIVATE src/device/gpu/nvrtc/cuda_sources.c ${cuda_compiler})
else()
  # For tests/unit/test_device_cuda_compile.c alone.
  add_library(cuda_compiler OBJECT EXCLUDE_FROM_ALL ${cuda_compiler})
  target_link_libraries(cuda_compiler PRIVATE csgl_options)
endif()
if(cuda_is_built AND NVCC)
  target_sources(room_device PRIVATE ${cuda_binary_arrays})
endif()
