/* SHA-256 against the vectors of FIPS 180-4 and NIST, in one piece and in any pieces. */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *text, const char *expected)
{
    struct sha256 hash;
    char hex[SHA256_HEX];
    size_t n = strlen(text);
    for (size_t piece = 1; piece <= n + 1; piece++) {
        sha256_init(&hash);
        for (size_t at = 0; at < n; at += piece)
            sha256_update(&hash, text + at, n - at < piece ? n - at : piece);
        sha256_hex(&hash, hex);
        assert_string_equal(hex, expected);
    }
}

static void published_digests_come_out_however_the_text_is_cut(void **state)
{
    (void)state;
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
          "lmnopqrsmnopqrstnopqrstu",
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

static void a_million_letters_have_the_published_digest(void **state)
{
    (void)state;
    struct sha256 hash;
    char hex[SHA256_HEX], thousand[1000];
    memset(thousand, 'a', sizeof thousand);
    sha256_init(&hash);
    for (int i = 0; i < 1000; i++)
        sha256_update(&hash, thousand, sizeof thousand);
    sha256_hex(&hash, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_digests_come_out_however_the_text_is_cut),
        cmocka_unit_test(a_million_letters_have_the_published_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
