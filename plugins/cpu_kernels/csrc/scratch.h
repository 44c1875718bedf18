// Memory for one call, kept for the next.
#pragma once
#include <stdint.h>

// At least size bytes on a cache line's border, the calling thread's own until it asks again.
extern "C" void* ck_scratch(int64_t size);
// The same for a call that needs several: each of CK_SCRATCH_SLOTS is its own, and slot 0 is ck_scratch's.
extern "C" void* ck_scratch_slot(int slot, int64_t size);

#define CK_SCRATCH_SLOTS 5
