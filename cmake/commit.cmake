# Writes the commit of SOURCE as a C file, OUTPUT, touching it only when it changes. CSGL_COMMIT, where
# it is set, stands for what git cannot tell: sources that were unpacked from an archive.
set(commit "$ENV{CSGL_COMMIT}")
cmake_minimum_required(VERSION 3.20)
if(commit STREQUAL "")
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit STREQUAL "")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT
  "#include \"cli/version.h\"\n\nconst char csgl_commit[] = \"@commit@\";\n" @ONLY)
