# Files of device/cpu that carry an instruction set's name are built for it and nothing else is, so that
# one binary runs on any machine of its architecture. cpu_isa.c picks at run time.
set(x86_flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(x86_flags_avx512 ${x86_flags_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
  -mavx512bf16 -mavx512vbmi -mprefer-vector-width=512)
set(x86_flags_amx ${x86_flags_avx512} -mamx-tile -mamx-int8 -mamx-bf16)
set(arm_flags_neon "")
set(arm_flags_dotprod -march=armv8.2-a+dotprod)
set(arm_flags_i8mm -march=armv8.2-a+dotprod+i8mm)
set(cpu_isa_x86 avx2 avx512 amx)
set(cpu_isa_arm neon dotprod i8mm)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(architecture x86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(architecture arm)
endif()
# Checked kernels take minutes to compile with more; AVX-512's even so, when UBSan looks at every pointer of
# which AddressSanitizer looks at the use.
if(CSGL_SANITIZE)
  set(x86_flags_avx2 ${x86_flags_avx2} -O1)
  set(x86_flags_avx512 ${x86_flags_avx512} -O1 -fno-sanitize=null,alignment,object-size,pointer-overflow)
  set(x86_flags_amx ${x86_flags_amx} -O1)
endif()
foreach(family x86 arm)
  foreach(isa ${cpu_isa_${family}})
    file(GLOB isa_sources src/device/cpu/*_${isa}.c)
    if(family STREQUAL "${architecture}")
      set_source_files_properties(${isa_sources} PROPERTIES
        COMPILE_OPTIONS "${${family}_flags_${isa}}")
    else()
      set_source_files_properties(${isa_sources} PROPERTIES HEADER_FILE_ONLY ON)
    endif()
  endforeach()
endforeach()
