#include "scratch.h"

#include <stdlib.h>

namespace {

struct Memory {
    void* start = nullptr;
    int64_t size = 0;
    ~Memory() { free(start); }
};

thread_local Memory memory;

}  // namespace

extern "C" void* ck_scratch(int64_t size) {
    if (size > memory.size) {
        free(memory.start);
        memory.size = (size + 4095) / 4096 * 4096;
        memory.start = aligned_alloc(64, size_t(memory.size));
        if (memory.start == nullptr) abort();
    }
    return memory.start;
}
