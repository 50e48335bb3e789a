/* Between Metal's strings and ours. */
#ifndef CSGL_DEVICE_GPU_METAL_TEXT_H
#define CSGL_DEVICE_GPU_METAL_TEXT_H

#include <stddef.h>
#include <stdio.h>

#import <Foundation/Foundation.h>

/* Metal's own words as one line; compilers write several. */
static inline void metal_text(NSError *cause, char *out, size_t size)
{
    const char *text = cause ? cause.localizedDescription.UTF8String : NULL;
    snprintf(out, size, "%s", text ? text : "Metal gives no reason");
    for (char *c = out; *c; c++)
        if (*c == '\n')
            *c = ' ';
}

static inline NSURL *metal_url(const char *path)
{
    return [NSURL fileURLWithPath:[NSString stringWithUTF8String:path]];
}

#endif
