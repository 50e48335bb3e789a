/* What the load generator's requests share. */
#ifndef CSGL_BENCH_LOAD_HTTP_H
#define CSGL_BENCH_LOAD_HTTP_H

#include "base/str.h"

#include <curl/curl.h>

/* A proxy of the environment is for other machines. */
#define LOAD_NO_PROXY "localhost,127.0.0.1,::1"

/* "base/path", whether or not the base ends in a slash or in /v1. */
void load_url(struct str *out, const char *base_url, const char *path);

/* Content type and key; NULL when memory is exhausted. */
struct curl_slist *load_headers(const char *api_key);

#endif
