// Vectors of 2, 3 and 4 as in MSL, for targets whose compilers lack them: components by name,
// arithmetic with vectors and scalars, construction from scalars or from a vector of another type.
// There are no swizzles of several components. KD_VEC is what functions of the target begin with.
#ifndef CSGL_KERNELS_KD_VEC_H
#define CSGL_KERNELS_KD_VEC_H

namespace kd
{
template <class T, int N> struct vec;

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
    T x, y;
    vec() = default;
    KD_VEC vec(T a) : x(a), y(a)
    {
    }
    KD_VEC vec(T a, T b) : x(a), y(b)
    {
    }
    template <class U> KD_VEC explicit vec(vec<U, 2> v) : x((T)v.x), y((T)v.y)
    {
    }
    KD_VEC T &operator[](int i)
    {
        return (&x)[i];
    }
    KD_VEC T operator[](int i) const
    {
        return (&x)[i];
    }
};

template <class T> struct vec<T, 3> {
    T x, y, z;
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
    T x, y, z, w;
    vec() = default;
    KD_VEC vec(T a) : x(a), y(a), z(a), w(a)
    {
    }
    KD_VEC vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d)
    {
    }
    template <class U> KD_VEC explicit vec(vec<U, 4> v) : x((T)v.x), y((T)v.y), z((T)v.z), w((T)v.w)
    {
    }
    KD_VEC T &operator[](int i)
    {
        return (&x)[i];
    }
    KD_VEC T operator[](int i) const
    {
        return (&x)[i];
    }
};

#define KD_OPERATOR(op)                                                                            \
    template <class T, int N> KD_VEC vec<T, N> operator op(vec<T, N> a, vec<T, N> b)               \
    {                                                                                              \
        for (int i = 0; i < N; i++)                                                                \
            a[i] = (T)(a[i] op b[i]);                                                              \
        return a;                                                                                  \
    }                                                                                              \
    template <class T, int N> KD_VEC vec<T, N> operator op(vec<T, N> a, T b)                       \
    {                                                                                              \
        return a op vec<T, N>(b);                                                                  \
    }                                                                                              \
    template <class T, int N> KD_VEC vec<T, N> &operator op##=(vec<T, N> &a, vec<T, N> b)          \
    {                                                                                              \
        return a = a op b;                                                                         \
    }
KD_OPERATOR(+)
KD_OPERATOR(-)
KD_OPERATOR(*)
KD_OPERATOR(/)
#undef KD_OPERATOR

template <class T, int N> KD_VEC T dot(vec<T, N> a, vec<T, N> b)
{
    T sum = a[0] * b[0];
    for (int i = 1; i < N; i++)
        sum += a[i] * b[i];
    return sum;
}

template <class To, class From> KD_VEC To as_type(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    To to;
    __builtin_memcpy((void *)&to, (const void *)&from, sizeof to);
    return to;
}
} // namespace kd

#endif
