/* The chat page: page.html as bytes, put here by the build (cmake/embed.cmake). */
#ifndef CSGL_SERVER_PAGE_H
#define CSGL_SERVER_PAGE_H

#include <stddef.h>

extern const unsigned char page_html[];
extern const size_t page_html_bytes;

#endif
