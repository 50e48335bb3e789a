# Makes a C file of the bytes of another file: cmake -D INPUT=... -D OUTPUT=... -D NAME=...
#   -D HEADER=... -P embed.cmake
# NAME[] are the bytes and a NUL, NAME_bytes is their number without it; HEADER declares both.
file(READ ${INPUT} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR n_bytes "${digits} / 2")
string(REPEAT "[0-9a-f]" 32 row) # 16 bytes
string(REGEX REPLACE "(${row})" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"\n\nconst unsigned char ${NAME}[] = {\n${bytes}0x00};\nconst size_t ${NAME}_bytes = ${n_bytes};\n")
