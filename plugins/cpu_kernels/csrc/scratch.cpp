#include "scratch.h"

#include <stdlib.h>

namespace {

struct Memory {
    void* start = nullptr;
    int64_t size = 0;
    ~Memory() { free(start); }
};

thread_local Memory memories[CK_SCRATCH_SLOTS];

}  // namespace

extern "C" void* ck_scratch_slot(int slot, int64_t size) {
    Memory& memory = memories[slot];
    if (size > memory.size) {
        free(memory.start);
        memory.size = (size + size / 2 + 4095) / 4096 * 4096;  // steps grow little by little
        memory.start = aligned_alloc(64, size_t(memory.size));
        if (memory.start == nullptr) abort();
    }
    return memory.start;
}

extern "C" void* ck_scratch(int64_t size) { return ck_scratch_slot(0, size); }
