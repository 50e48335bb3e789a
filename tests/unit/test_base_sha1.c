/* SHA-1 against the vectors of FIPS 180-4 and git's names, in one piece and in any pieces. */
#include "base/sha1.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *text, size_t n, const char *expected)
{
    struct sha1 hash;
    char hex[SHA1_HEX];
    for (size_t piece = 1; piece <= n + 1; piece++) {
        sha1_init(&hash);
        for (size_t at = 0; at < n; at += piece)
            sha1_update(&hash, text + at, n - at < piece ? n - at : piece);
        sha1_hex(&hash, hex);
        assert_string_equal(hex, expected);
    }
}

static void published_digests_come_out_however_the_text_is_cut(void **state)
{
    (void)state;
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check("", 0, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    check("abc", 3, "a9993e364706816aba3e25717850c26c9cd0d89d");
    check(two_blocks, sizeof two_blocks - 1, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
}

static void git_names_an_empty_blob_so(void **state)
{
    (void)state;
    check("blob 0", 7, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

static void a_million_letters_have_the_published_digest(void **state)
{
    (void)state;
    struct sha1 hash;
    char hex[SHA1_HEX], thousand[1000];
    memset(thousand, 'a', sizeof thousand);
    sha1_init(&hash);
    for (int i = 0; i < 1000; i++)
        sha1_update(&hash, thousand, sizeof thousand);
    sha1_hex(&hash, hex);
    assert_string_equal(hex, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_digests_come_out_however_the_text_is_cut),
        cmocka_unit_test(git_names_an_empty_blob_so),
        cmocka_unit_test(a_million_letters_have_the_published_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
