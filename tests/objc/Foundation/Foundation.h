/* What device/gpu/metal.m uses of Foundation, declared anew for a type check without a Mac. */
#ifndef CSGL_TESTS_OBJC_FOUNDATION_H
#define CSGL_TESTS_OBJC_FOUNDATION_H

#include <stddef.h>
#include <stdint.h>

#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil ((id)0)
#define NS_ENUM(type, name) enum name : type name; enum name : type
#define SINCE(version) __attribute__((availability(macos, introduced = version)))

typedef _Bool BOOL;
typedef long NSInteger;
typedef unsigned long NSUInteger;

#pragma clang assume_nonnull begin

@protocol NSObject
- (instancetype)self;
@end

__attribute__((objc_root_class)) @interface NSObject <NSObject>
+ (instancetype)alloc;
+ (instancetype)new;
- (instancetype)init;
@end

typedef NS_ENUM(NSUInteger, NSStringEncoding) { NSUTF8StringEncoding = 4 };

@interface NSString : NSObject
@property(readonly, nullable) const char *UTF8String;
+ (nullable instancetype)stringWithUTF8String:(const char *)text;
- (nullable instancetype)initWithBytes:(const void *)bytes
                                length:(NSUInteger)length
                              encoding:(NSStringEncoding)encoding;
@end

@interface NSArray<__covariant T> : NSObject
@property(readonly) NSUInteger count;
+ (instancetype)arrayWithObjects:(const T _Nonnull *_Nonnull)objects count:(NSUInteger)count;
- (T)objectAtIndexedSubscript:(NSUInteger)index;
@end

@interface NSMutableArray<T> : NSArray <T>
- (void)addObject:(T)object;
@end

@interface NSError : NSObject
@property(readonly, copy) NSString *localizedDescription;
@end

@interface NSURL : NSObject
+ (NSURL *)fileURLWithPath:(NSString *)path;
@end

@interface NSProcessInfo : NSObject
@property(class, readonly) NSProcessInfo *processInfo;
@property(readonly, copy) NSString *operatingSystemVersionString;
@end

#pragma clang assume_nonnull end

#endif
