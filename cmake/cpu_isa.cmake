# device/cpu/*_avx2.c and *_avx512.c are built for their instruction sets and nothing else is, so
# that one binary runs on any x86-64 machine. *_neon.c belongs to 64-bit Arm.
file(GLOB avx2_sources src/device/cpu/*_avx2.c)
file(GLOB avx512_sources src/device/cpu/*_avx512.c)
file(GLOB amx_sources src/device/cpu/*_amx.c)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(${avx2_sources} PROPERTIES
    COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mbmi2")
  set(avx512_flags -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq
    -mavx512vnni -mavx512bf16 -mavx512vbmi -mprefer-vector-width=512)
  set_source_files_properties(${avx512_sources} PROPERTIES COMPILE_OPTIONS "${avx512_flags}")
  set_source_files_properties(${amx_sources} PROPERTIES
    COMPILE_OPTIONS "${avx512_flags};-mamx-tile;-mamx-int8;-mamx-bf16")
else()
  foreach(source ${avx2_sources} ${avx512_sources} ${amx_sources})
    set_source_files_properties(${source} PROPERTIES HEADER_FILE_ONLY ON)
  endforeach()
endif()
