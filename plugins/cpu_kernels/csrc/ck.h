// What every kernel file is written against.
//
// An entry point takes one array of arguments. A kernel file (kernels_*.cpp) is compiled once a level of the
// instruction set; CK_KERNEL(name) gives its entry point the name of the level as well. Functions of such a file are
// static or stand in namespace CK_NS, and it includes no C++ library header: the linker would keep one level's copy of
// an inline function for all, and another machine can't run it.
#pragma once
#include <stdint.h>

union ck_arg {
    void* p;
    int64_t i;
    double f;
};

typedef void (*ck_function)(const ck_arg*);

struct ck_call {
    ck_function function;
    const ck_arg* args;
};

// Runs task(context, 0) … task(context, num_tasks - 1), each once, on the process's OpenMP threads. Doesn't nest.
extern "C" void ck_parallel(int num_tasks, void (*task)(void*, int), void* context);
// How many threads ck_parallel uses at most.
extern "C" int ck_num_threads(void);

#define CK_EXPORT extern "C" __attribute__((visibility("default")))
#define CK_JOIN_(left, right) left##right
#define CK_JOIN(left, right) CK_JOIN_(left, right)

#ifdef CK_ISA
#define CK_NS CK_JOIN(ck_, CK_ISA)
#define CK_KERNEL(name) CK_EXPORT void CK_JOIN(ck_##name##__, CK_ISA)(const ck_arg* args)

// Numbers that CK_LEVEL is compared with.
#define CK_AVX2 1
#define CK_AVX512 2
#define CK_AVX512_VNNI_BF16 3
#define CK_AMX 4

namespace CK_NS {

template <class T>
static inline T* pointer(const ck_arg& arg) {
    return static_cast<T*>(arg.p);
}

template <class Body>
static void run_task(void* body, int task) {
    (*static_cast<const Body*>(body))(task);
}

// body(0) … body(num_tasks - 1) on all threads.
template <class Body>
static inline void parallel(int num_tasks, const Body& body) {
    if (num_tasks == 1) {
        body(0);
        return;
    }
    ck_parallel(num_tasks, run_task<Body>, const_cast<Body*>(&body));
}

// body(begin, end) on up to ck_num_threads() parts of 0 … count, none smaller than least.
template <class Body>
static inline void parallel_ranges(int64_t count, int64_t least, const Body& body) {
    int64_t parts = ck_num_threads();
    if (parts > count / least) parts = count / least;
    if (parts <= 1) {
        if (count > 0) body(int64_t(0), count);
        return;
    }
    parallel(int(parts), [&](int part) { body(count * part / parts, count * (part + 1) / parts); });
}

}  // namespace CK_NS
#endif
