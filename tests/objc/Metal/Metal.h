/* What device/gpu/metal.m uses of Metal, declared anew for a type check without a Mac: selectors,
 * types, who owns what is returned, and the version of macOS that each came with after 14. */
#ifndef CSGL_TESTS_OBJC_METAL_H
#define CSGL_TESTS_OBJC_METAL_H

#import <Foundation/Foundation.h>

#pragma clang assume_nonnull begin

typedef struct {
    NSUInteger width, height, depth;
} MTLSize;

static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth)
{
    return (MTLSize){width, height, depth};
}

typedef NS_ENUM(NSUInteger, MTLResourceOptions) { MTLResourceStorageModeShared = 0 };
typedef NS_ENUM(NSUInteger, MTLDispatchType) { MTLDispatchTypeSerial, MTLDispatchTypeConcurrent };
typedef NS_ENUM(NSUInteger, MTLBarrierScope) { MTLBarrierScopeBuffers = 1 };
typedef NS_ENUM(NSUInteger, MTLPipelineOption) { MTLPipelineOptionNone = 0 };
typedef NS_ENUM(NSUInteger, MTLLanguageVersion) { MTLLanguageVersion3_1 = (3 << 16) + 1 };
typedef NS_ENUM(NSInteger, MTLCaptureDestination) { MTLCaptureDestinationGPUTraceDocument = 2 };
typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus) {
    MTLCommandBufferStatusCompleted = 4,
    MTLCommandBufferStatusError = 5
};

SINCE(15.0) @protocol MTLAllocation <NSObject>
@end

@protocol MTLResource <MTLAllocation>
@end

@protocol MTLBuffer <MTLResource>
@property(readonly) NSUInteger length;
- (void *)contents;
@end

@protocol MTLFunction <NSObject>
@property(readonly) NSString *name;
@end

@protocol MTLLibrary <NSObject>
- (nullable id<MTLFunction>)newFunctionWithName:(NSString *)name;
@end

@interface MTLCompileOptions : NSObject
@property(readwrite) BOOL fastMathEnabled
    __attribute__((availability(macos, introduced = 10.11, deprecated = 15.0)));
@property(readwrite) MTLLanguageVersion languageVersion;
@end

@interface MTLBinaryArchiveDescriptor : NSObject
@property(readwrite, copy, nullable) NSURL *url;
@end

@protocol MTLBinaryArchive;

@interface MTLComputePipelineDescriptor : NSObject
@property(nullable, copy) NSString *label;
@property(nullable, strong) id<MTLFunction> computeFunction;
@property BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth;
@property(readwrite, nullable, copy) NSArray<id<MTLBinaryArchive>> *binaryArchives;
@end

@class MTLComputePipelineReflection;

@protocol MTLBinaryArchive <NSObject>
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                            error:(NSError *_Nullable __autoreleasing *)error;
- (BOOL)serializeToURL:(NSURL *)url error:(NSError *_Nullable __autoreleasing *)error;
@end

@protocol MTLComputePipelineState <NSObject>
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger threadExecutionWidth;
@end

@protocol MTLComputeCommandEncoder <NSObject>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(nullable id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads;
- (void)endEncoding;
@end

@protocol MTLCommandBuffer <NSObject>
@property(readonly) MTLCommandBufferStatus status;
@property(nullable, readonly) NSError *error;
@property(readonly) double GPUStartTime;
@property(readonly) double GPUEndTime;
- (nullable id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:
    (MTLDispatchType)type;
- (void)commit;
- (void)waitUntilCompleted;
@end

SINCE(15.0) @interface MTLResidencySetDescriptor : NSObject
@end

SINCE(15.0) @protocol MTLResidencySet <NSObject>
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)commit;
- (void)requestResidency;
@end

@protocol MTLCommandQueue <NSObject>
- (nullable id<MTLCommandBuffer>)commandBuffer;
- (void)addResidencySet:(id<MTLResidencySet>)set SINCE(15.0);
@end

@protocol MTLDevice <NSObject>
@property(readonly) NSString *name;
@property(readonly) BOOL hasUnifiedMemory;
@property(readonly) uint64_t recommendedMaxWorkingSetSize;
@property(readonly) NSUInteger maxBufferLength;
@property(readonly) NSUInteger currentAllocatedSize;
@property(readonly) MTLSize maxThreadsPerThreadgroup;
- (nullable id<MTLCommandQueue>)newCommandQueue;
- (nullable id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                                      options:(MTLResourceOptions)options;
- (nullable id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                            length:(NSUInteger)length
                                           options:(MTLResourceOptions)options
                                       deallocator:(void (^_Nullable)(void *pointer,
                                                                      NSUInteger length))deallocator;
- (nullable id<MTLLibrary>)newLibraryWithSource:(NSString *)source
                                        options:(nullable MTLCompileOptions *)options
                                          error:(NSError *_Nullable __autoreleasing *)error;
- (nullable id<MTLComputePipelineState>)
    newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                  options:(MTLPipelineOption)options
                               reflection:(MTLComputePipelineReflection *_Nullable __autoreleasing
                                               *_Nullable)reflection
                                    error:(NSError *_Nullable __autoreleasing *)error;
- (nullable id<MTLBinaryArchive>)
    newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)descriptor
                             error:(NSError *_Nullable __autoreleasing *)error;
- (nullable id<MTLResidencySet>)
    newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor
                            error:(NSError *_Nullable __autoreleasing *)error SINCE(15.0);
@end

NSArray<id<MTLDevice>> *MTLCopyAllDevices(void) __attribute__((ns_returns_retained));

@interface MTLCaptureDescriptor : NSObject
@property(nullable, strong) id captureObject;
@property MTLCaptureDestination destination;
@property(nullable, copy) NSURL *outputURL;
@end

@interface MTLCaptureManager : NSObject
+ (MTLCaptureManager *)sharedCaptureManager;
- (BOOL)supportsDestination:(MTLCaptureDestination)destination;
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor *)descriptor
                             error:(NSError *_Nullable __autoreleasing *)error;
- (void)stopCapture;
@end

#pragma clang assume_nonnull end

#endif
