# embed(out NAME FILE HEADER): sources, into the variable `out`, that put FILE into the program: NAME[] are its
# bytes and a NUL, NAME_bytes is their number without it; HEADER declares both. The assembler reads FILE itself:
# as an array of numbers, a megabyte takes a C compiler ten seconds.
set(embed_folder ${CMAKE_CURRENT_BINARY_DIR}/embed)
function(embed out name file header)
  set(begin ".section .rodata\\n")
  set(hidden ".hidden")
  set(prefix "")
  set(end ".previous\\n")
  if(APPLE)
    set(begin ".const_data\\n")
    set(hidden ".private_extern")
    set(prefix "_")
    set(end ".text\\n")
  endif()
  set(bytes ${prefix}${name})
  file(CONFIGURE OUTPUT ${embed_folder}/${name}.c CONTENT
"#include \"${header}\"

__asm__(\"${begin}\"
        \".globl ${bytes}\\n${hidden} ${bytes}\\n.balign 16\\n\"
        \"${bytes}: .incbin \\\"${file}\\\"\\n\"
        \"${bytes}_end: .byte 0\\n\"
        \".globl ${bytes}_bytes\\n${hidden} ${bytes}_bytes\\n.balign 8\\n\"
        \"${bytes}_bytes: .quad ${bytes}_end - ${bytes}\\n\"
        \"${end}\");
")
  set_source_files_properties(${embed_folder}/${name}.c PROPERTIES OBJECT_DEPENDS ${file})
  set(${out} ${embed_folder}/${name}.c ${file} PARENT_SCOPE)
endfunction()
