// What the processor, and the system on it, can do.
#include "ck.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

struct Registers {
    unsigned a, b, c, d;
};

Registers leaf(unsigned number, unsigned sub) {
    Registers r = {0, 0, 0, 0};
    __get_cpuid_count(number, sub, &r.a, &r.b, &r.c, &r.d);
    return r;
}

bool has(unsigned bits, int bit) { return (bits >> bit) & 1; }

// Which register states the system saves: without it, instructions that exist may not be used.
uint64_t saved_states() {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t(high) << 32) | low;
}

// Linux gives a process the tile registers on request.
bool may_use_tiles() {
    const int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

int find_level() {
    Registers one = leaf(1, 0), seven = leaf(7, 0), more = leaf(7, 1);
    if (!has(one.c, 27) || !has(one.c, 28)) return 0;  // OSXSAVE, AVX
    uint64_t saved = saved_states();
    if ((saved & 0x6) != 0x6 || !has(one.c, 12) || !has(one.c, 29) || !has(seven.b, 5)) return 0;  // FMA, F16C, AVX2
    bool avx512 = has(seven.b, 16) && has(seven.b, 17) && has(seven.b, 30) && has(seven.b, 31);  // F, DQ, BW, VL
    if ((saved & 0xe0) != 0xe0 || !avx512) return 1;
    if (!has(seven.c, 11) || !has(more.a, 5)) return 2;  // VNNI, BF16
    bool amx = has(seven.d, 22) && has(seven.d, 24) && has(seven.d, 25);  // BF16, TILE, INT8
    if ((saved & 0x60000) != 0x60000 || !amx || !may_use_tiles()) return 3;
    return 4;
}

}  // namespace

// 0: none of the levels, 1: avx2, 2: avx512, 3: avx512_vnni_bf16, 4: amx. Asks for the right to use tiles on the way.
CK_EXPORT int ck_cpu_level(void) { return find_level(); }
