/* How many dispatches go into one command buffer. macOS ends a program whose command buffer holds
 * the GPU for seconds, and draws no window meanwhile; short ones cost time at their borders. */
#ifndef CSGL_DEVICE_GPU_METAL_PACE_H
#define CSGL_DEVICE_GPU_METAL_PACE_H

enum { METAL_FIRST_DISPATCHES = 64, METAL_MAX_DISPATCHES = 1024 };

/* What a command buffer should last, so that even one of twice that length keeps below the 100 ms
 * that a user sees as a stutter. */
#define METAL_BUFFER_SECONDS 0.05

/* The number to put into the next one, when `now` was the number before it and one of `n`
 * dispatches ran for `seconds`. Falls at once, grows at most twofold. */
static inline int metal_pace(int now, int n, double seconds)
{
    if (n < 1 || !(seconds > 0.0))
        return now;
    double fits = METAL_BUFFER_SECONDS / (seconds / n);
    int most = now < METAL_MAX_DISPATCHES / 2 ? 2 * now : METAL_MAX_DISPATCHES;
    if (fits > (double)most)
        return most;
    return fits > 1.0 ? (int)fits : 1;
}

#endif
