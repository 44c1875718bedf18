// Memory for one call, kept for the next.
#pragma once
#include <stdint.h>

// At least size bytes on a cache line's border, the calling thread's own until it asks again.
extern "C" void* ck_scratch(int64_t size);
