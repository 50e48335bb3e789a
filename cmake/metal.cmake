# The kernels of src/kernels as Metal source, a string a file with its headers in it, and on a Mac the driver
# that has them compiled when csgl starts. Elsewhere the strings are made for the checks of tests/kernels.cmake.
file(GLOB metal_kernel_sources CONFIGURE_DEPENDS src/kernels/*.metal)
file(GLOB metal_kernel_headers CONFIGURE_DEPENDS src/kernels/*.h)
set(metal_folder ${CMAKE_CURRENT_BINARY_DIR}/metal)
set(metal_flat)
set(metal_arrays)
set(declarations "")
set(names "")
foreach(source ${metal_kernel_sources})
  get_filename_component(name ${source} NAME_WE)
  set(flat ${metal_folder}/${name}.metal)
  add_custom_command(OUTPUT ${flat}
    COMMAND ${CMAKE_COMMAND} -D INPUT=${source} -D OUTPUT=${flat}
      -D EXCEPT=kd_cuda.h,kd_opencl.h,kd_emulator.h -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/flatten.cmake
    DEPENDS ${source} ${metal_kernel_headers} cmake/flatten.cmake VERBATIM)
  embed(array metal_${name} ${flat} device/gpu/metal_kernels.h)
  list(APPEND metal_flat ${flat})
  list(APPEND metal_arrays ${array})
  string(APPEND declarations
    "extern const unsigned char metal_${name}[];\nextern const size_t metal_${name}_bytes;\n")
  string(APPEND names "    {\"${name}\", metal_${name}, &metal_${name}_bytes},\n")
endforeach()
file(MAKE_DIRECTORY ${metal_folder})
add_custom_target(metal_sources DEPENDS ${metal_flat})
if(NOT APPLE)
  return()
endif()

enable_language(OBJC)
set(CMAKE_OBJC_VISIBILITY_PRESET hidden)
set_source_files_properties(src/device/gpu/metal_none.c PROPERTIES HEADER_FILE_ONLY ON)
file(GLOB metal_driver CONFIGURE_DEPENDS src/device/gpu/metal*.m)
set_source_files_properties(${metal_driver} PROPERTIES COMPILE_OPTIONS
  "-fobjc-arc;-fvisibility=hidden;-Wunguarded-availability")
file(CONFIGURE OUTPUT ${metal_folder}/sources.c CONTENT
"#include \"device/gpu/metal_kernels.h\"

${declarations}
const struct metal_source metal_sources[] = {
${names}};
const int metal_n_sources = sizeof metal_sources / sizeof metal_sources[0];
")
target_sources(room_device PRIVATE ${metal_driver} ${metal_arrays} ${metal_folder}/sources.c)
set(metal_libraries "-framework Foundation" "-framework Metal" objc)
