/* One mistake a BUG, as they are made in a driver for Metal: each must be found by the check that
 * metal.m passes. BUG 0 has none. */
#include <stdlib.h>

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

struct held {
    id<MTLBuffer> buffer;
};

void use(id<MTLDevice> device, id<MTLComputeCommandEncoder> encoder, struct held *held);

void use(id<MTLDevice> device, id<MTLComputeCommandEncoder> encoder, struct held *held)
{
    NSError *cause = nil;
#if BUG == 0
    [encoder setBuffer:held->buffer offset:0 atIndex:0];
#elif BUG == 1 /* no such selector */
    [encoder setBuffer:held->buffer atIndex:0];
#elif BUG == 2 /* arguments in another order */
    [encoder setBytes:16 length:&cause atIndex:0];
#elif BUG == 3 /* a count is kept by hand */
    [held->buffer release];
#elif BUG == 4 /* an object becomes an address without saying who owns it */
    void *handle = held->buffer;
    free(handle);
#elif BUG == 5 /* a system without it is not asked for */
    [device newResidencySetWithDescriptor:[MTLResidencySetDescriptor new] error:&cause];
#elif BUG == 6 /* an error is given by value */
    held->buffer = [device newLibraryWithSource:@"" options:nil error:cause];
#elif BUG == 7 /* an object of another kind */
    id<MTLCommandQueue> queue = [device newBufferWithLength:16
                                                    options:MTLResourceStorageModeShared];
    [encoder setBytes:&queue length:8 atIndex:0];
#endif
    (void)device, (void)encoder, (void)held, (void)cause;
}
