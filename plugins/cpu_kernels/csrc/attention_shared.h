// Which decodes begin with the same blocks: their common keys are read once for all of them.
//
// A chunk gives a row the same bits whoever else meets it, so results don't tell whether a prefix was shared.
#pragma once
#include "attention.h"

namespace CK_NS {

// Decodes of one token with the same first chunks.
struct Group {
    int64_t leader, num_members, num_chunks;
};

struct Groups {
    Group* all;      // [R] at most
    int32_t* next;   // [R]: the next member of a request's group; -1: none
    int32_t* last;   // [R]: by group, the last member
    int64_t count;
};

static const int SHARED_SLOTS = 1024;

// Whole chunks at the start of two requests that both see, in the same blocks.
static int64_t common_chunks(const Step& step, int64_t left, int64_t right) {
    int64_t keys = step.seq_lens[left] < step.seq_lens[right] ? step.seq_lens[left] : step.seq_lens[right];
    int64_t most = keys / KEYS * KEYS / step.block_size, equal = 0;
    const int32_t *a = step.block_table + left * step.table_stride, *b = step.block_table + right * step.table_stride;
    while (equal < most && a[equal] == b[equal]) ++equal;
    return equal * step.block_size / KEYS;
}

static void add_member(Groups& groups, int64_t group, int64_t request, int64_t chunks) {
    groups.next[groups.last[group]] = int32_t(request);
    groups.last[group] = int32_t(request);
    ++groups.all[group].num_members;
    if (chunks < groups.all[group].num_chunks) groups.all[group].num_chunks = chunks;
}

// Requests are found by their first block. Where two first blocks have one place, the later request has it: at worst a
// prefix is read twice.
static void find_groups(Groups& groups, const Layer& layer) {
    const Step& step = *layer.step;
    int32_t places[SHARED_SLOTS];
    __builtin_memset(places, -1, sizeof places);
    for (int64_t request = 0; request < step.num_requests; ++request) {
        groups.next[request] = -1;
        if (layer.num_new(request) != 1 || step.seq_lens[request] < KEYS) continue;
        int32_t block = step.block_table[request * step.table_stride];
        int32_t& place = places[block % SHARED_SLOTS];
        int64_t chunks = place < 0 ? 0 : common_chunks(step, groups.all[place].leader, request);
        if (chunks > 0) {
            add_member(groups, place, request, chunks);
            continue;
        }
        place = int32_t(groups.count);
        groups.last[groups.count] = int32_t(request);
        groups.all[groups.count++] = Group{request, 1, step.seq_lens[request] / KEYS};
    }
}

}  // namespace CK_NS
