#include "template/text.h"

#include "base/json.h"

uint32_t text_decode(const char *s, size_t n, size_t *bytes)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *bytes = 1;
        return p[0];
    }
    size_t k = utf8_sequence(s, n);
    *bytes = k ? k : 1;
    switch (k) {
    case 2:
        return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    case 3:
        return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    case 4:
        return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    default:
        return 0xFFFD;
    }
}

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

size_t text_last(const char *s, size_t n)
{
    size_t k = 1;
    while (k < n && k < 4 && is_continuation(s[n - k]))
        k++;
    return k;
}

size_t text_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += !is_continuation(s[i]);
    return count;
}

size_t text_offset(const char *s, size_t n, size_t index)
{
    size_t i = 0;
    while (i < n && index > 0) {
        i++;
        while (i < n && is_continuation(s[i]))
            i++;
        index--;
    }
    return i;
}

bool text_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t text_leading_space(const char *s, size_t n)
{
    size_t i = 0, bytes;
    while (i < n && text_is_space(text_decode(s + i, n - i, &bytes)))
        i += bytes;
    return i;
}

size_t text_trailing_space(const char *s, size_t n)
{
    size_t end = n, bytes;
    while (end > 0) {
        size_t k = text_last(s, end);
        if (!text_is_space(text_decode(s + end - k, k, &bytes)))
            break;
        end -= k;
    }
    return n - end;
}

bool text_is_line_end(uint32_t c)
{
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

/* Ranges whose upper- and lower-case letters stand `step` apart (a fixed distance), or alternate
 * upper, lower, upper, ... (distance 0; the first is an upper-case letter). */
struct case_range {
    uint32_t first, last;
    uint32_t distance;
};

static const struct case_range case_ranges[] = {
    {'A', 'Z', 32},       {0xC0, 0xD6, 32},     {0xD8, 0xDE, 32},    {0x100, 0x12F, 0},
    {0x132, 0x137, 0},    {0x139, 0x148, 0},    {0x14A, 0x177, 0},   {0x179, 0x17E, 0},
    {0x1A0, 0x1A5, 0},    {0x246, 0x24F, 0},    {0x1CD, 0x1DC, 0},   {0x1DE, 0x1EF, 0},
    {0x1F8, 0x21F, 0},    {0x222, 0x233, 0},    {0x370, 0x373, 0},   {0x388, 0x38A, 37},
    {0x391, 0x3A1, 32},   {0x3A3, 0x3AB, 32},   {0x3D8, 0x3EF, 0},   {0x400, 0x40F, 80},
    {0x410, 0x42F, 32},   {0x460, 0x481, 0},    {0x48A, 0x4BF, 0},   {0x4C1, 0x4CE, 0},
    {0x4D0, 0x52F, 0},    {0x531, 0x556, 48},   {0x1E00, 0x1E95, 0}, {0x1EA0, 0x1EFF, 0},
    {0x2160, 0x216F, 16}, {0xFF21, 0xFF3A, 32},
};

/* Pairs outside every range. */
static const struct {
    uint32_t upper, lower;
} case_pairs[] = {
    {0x178, 0xFF},  {0x386, 0x3AC}, {0x38C, 0x3CC}, {0x38E, 0x3CD}, {0x38F, 0x3CE},
    {0x1AF, 0x1B0}, {0x376, 0x377}, {0x4C0, 0x4CF}, {0x1F4, 0x1F5},
};

uint32_t text_lower(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    if (c == 0x130 || c == 0x131)
        return c == 0x130 ? 'i' : c;
    for (size_t i = 0; i < sizeof case_ranges / sizeof case_ranges[0]; i++) {
        const struct case_range *r = &case_ranges[i];
        if (c < r->first || c > r->last)
            continue;
        if (r->distance)
            return c + r->distance;
        return ((c - r->first) & 1) == 0 ? c + 1 : c;
    }
    for (size_t i = 0; i < sizeof case_pairs / sizeof case_pairs[0]; i++)
        if (case_pairs[i].upper == c)
            return case_pairs[i].lower;
    return c == 0x1E9E ? 0xDF : c;
}

uint32_t text_upper(uint32_t c)
{
    if (c < 0x80)
        return c >= 'a' && c <= 'z' ? c - 32 : c;
    switch (c) {
    case 0xB5:
        return 0x39C; /* micro sign */
    case 0x131:
        return 'I';
    case 0x17F:
        return 'S';
    case 0x3C2:
        return 0x3A3; /* final sigma */
    default:
        break;
    }
    for (size_t i = 0; i < sizeof case_ranges / sizeof case_ranges[0]; i++) {
        const struct case_range *r = &case_ranges[i];
        uint32_t distance = r->distance ? r->distance : 1;
        if (c < r->first + distance || c > r->last + (r->distance ? distance : 0))
            continue;
        if (r->distance)
            return c - distance;
        return ((c - r->first) & 1) == 1 ? c - 1 : c;
    }
    for (size_t i = 0; i < sizeof case_pairs / sizeof case_pairs[0]; i++)
        if (case_pairs[i].lower == c)
            return case_pairs[i].upper;
    return c;
}

void text_append_upper(struct str *out, uint32_t c)
{
    if (c == 0xDF)
        str_append(out, "SS", 2);
    else
        str_append_utf8(out, text_upper(c));
}

bool text_is_upper(uint32_t c)
{
    return text_lower(c) != c;
}

bool text_is_lower(uint32_t c)
{
    return text_upper(c) != c || c == 0xDF || c == 0xAA || c == 0xBA || c == 0x138 || c == 0x149;
}

bool text_is_alpha(uint32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    static const uint32_t ranges[][2] = {
        {0xAA, 0xAA},     {0xB5, 0xB5},     {0xBA, 0xBA},     {0xC0, 0xD6},     {0xD8, 0xF6},
        {0xF8, 0x2C1},    {0x370, 0x374},   {0x376, 0x377},   {0x37B, 0x37D},   {0x37F, 0x37F},
        {0x386, 0x386},   {0x388, 0x3F5},   {0x3F7, 0x481},   {0x48A, 0x52F},   {0x531, 0x556},
        {0x561, 0x587},   {0x5D0, 0x5EA},   {0x620, 0x64A},   {0x671, 0x6D3},   {0x904, 0x939},
        {0x985, 0x9B9},   {0xE01, 0xE30},   {0x10A0, 0x10FF}, {0x1100, 0x1248}, {0x1E00, 0x1FBC},
        {0x3041, 0x3096}, {0x30A1, 0x30FA}, {0x3105, 0x312F}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF},
        {0xAC00, 0xD7A3}, {0xF900, 0xFAD9}, {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A}, {0x20000, 0x323AF},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

bool text_is_digit(uint32_t c)
{
    return (c >= '0' && c <= '9') || (c >= 0x660 && c <= 0x669) || (c >= 0x6F0 && c <= 0x6F9) ||
           (c >= 0x966 && c <= 0x96F) || (c >= 0xFF10 && c <= 0xFF19);
}

bool text_is_printable(uint32_t c)
{
    static const uint32_t hidden[][2] = {
        {0, 0x1F},        {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
        {0x61C, 0x61C},   {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x1680, 0x1680},
        {0x180E, 0x180E}, {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},
        {0x3000, 0x3000}, {0xD800, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
        {0xFFFE, 0xFFFF}, {0x1D173, 0x1D17A}, {0xE0001, 0xE007F}, {0xF0000, 0x10FFFF},
    };
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
        if (c >= hidden[i][0] && c <= hidden[i][1])
            return false;
    return true;
}
