// A row of logits in bfloat16 has few different values. They are counted once; temperature, min_p, top-k and top-p are
// then worked out on values in falling order, and nothing is sorted.
#pragma once
#include "ck.h"
#include "scratch.h"

namespace CK_NS {

static const int64_t LANES = CK_LEVEL >= CK_AVX512 ? 32 : 16;
// So many steps of all lanes can be counted in 16 bits.
static const int64_t MOST_STEPS = 1 << 14;

typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));

struct Largest {
    int16_t key;
    int64_t id;

    // Ids come in rising order, so of equal ones the first stays.
    inline void meet(int16_t other, int64_t other_id) {
        if (other > key || (other == key && other_id < id)) {
            key = other;
            id = other_id;
        }
    }
};

// Integers that sort as the numbers do; zeros are equal, and what is no number is the largest.
static inline Shorts keys(const uint16_t* from) {
    Shorts bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    Shorts order = bits ^ ((bits >> 15) & 0x7fff);
    order -= order == -1;
    return (bits & 0x7fff) > 0x7f80 ? (bits | 0x7fff) & 0x7fff : order;
}

static inline void meet_lanes(Largest& largest, const uint16_t* row, int64_t begin, int64_t steps) {
    Shorts best = keys(row + begin), where = best - best;
    for (int64_t step = 1; step < steps; ++step) {
        Shorts here = keys(row + begin + step * LANES), at = best - best + int16_t(step);
        where = here > best ? at : where;
        best = here > best ? here : best;
    }
    for (int64_t lane = 0; lane < LANES; ++lane) largest.meet(best[lane], begin + where[lane] * LANES + lane);
}

static inline int64_t first_largest(const uint16_t* row, int64_t width) {
    Largest largest = {-0x8000, 0};
    int64_t at = 0;
    for (int64_t steps; (steps = (width - at) / LANES) > 0; at += steps * LANES) {
        if (steps > MOST_STEPS) steps = MOST_STEPS;
        meet_lanes(largest, row, at, steps);
    }
    if (at < width) {  // the last ones, behind them what is less than everything
        uint16_t rest[LANES];
        for (int64_t lane = 0; lane < LANES; ++lane) rest[lane] = at + lane < width ? row[at + lane] : 0xff80;
        Shorts best = keys(rest);
        for (int64_t lane = 0; at + lane < width; ++lane) largest.meet(best[lane], at + lane);
    }
    return largest.id;
}

// The same of one logit that is a number.
static inline int key_of(uint16_t bits) {
    int order = int16_t(bits ^ ((int16_t(bits) >> 15) & 0x7fff));
    return order == -1 ? 0 : order;
}

static inline double value_of(int key) {
    union {
        uint32_t bits;
        float value;
    } word = {uint32_t(uint16_t(key < 0 ? key ^ 0x7fff : key)) << 16};
    return word.value;
}

struct Drawing {
    double temperature;
    int64_t top_k;  // 0: all
    double top_p;   // 1: all
    double min_p;   // 0: all
    double number;  // in (0, 1)
};

// One value of a row: the weight of a token that has it, and how many of those tokens (the lowest ids) stay.
struct Value {
    double weight;
    int64_t kept;
};

// place[key] says where a value of the row, from lowest on, is in the list.
struct Values {
    Value* list;
    int32_t* place;
    int64_t size;
    int lowest;
};

static const int NUM_KEYS = 1 << 16;

// Of a row's values, falling, those that min_p leaves and that have any weight.
static inline Values values_of(const uint16_t* row, int64_t width, int largest, const Drawing& how) {
    int32_t* place = static_cast<int32_t*>(ck_scratch_slot(0, NUM_KEYS * sizeof(int32_t))) + NUM_KEYS / 2;
    int lowest = largest;
    for (int key = -NUM_KEYS / 2; key <= largest; ++key) place[key] = 0;
    for (int64_t id = 0; id < width; ++id) ++place[key_of(row[id])];
    int64_t most = width < NUM_KEYS ? width : NUM_KEYS, size = 0, left = width;
    Value* list = static_cast<Value*>(ck_scratch_slot(1, most * int64_t(sizeof(Value))));
    double top = value_of(largest);
    for (int key = largest; left > 0; --key) {
        int32_t count = place[key];
        if (count == 0) continue;
        double weight = __builtin_exp((value_of(key) - top) / how.temperature);
        if (weight < how.min_p || weight == 0) break;
        list[size] = {weight, count};
        place[key] = int32_t(size++);
        lowest = key;
        left -= count;
    }
    return {list, place, size, lowest};
}

static inline double mass_of(const Values& values) {
    double mass = 0;
    for (int64_t i = 0; i < values.size; ++i) mass += values.list[i].weight * double(values.list[i].kept);
    return mass;
}

static inline void keep_most_likely(Values& values, int64_t top_k) {
    for (int64_t i = 0; i < values.size; ++i) {
        Value& value = values.list[i];
        if (value.kept > top_k) value.kept = top_k;
        top_k -= value.kept;
    }
}

// The smallest set with a share of the mass: a token stays while those before it have less.
static inline void keep_mass(Values& values, double share) {
    double wanted = share * mass_of(values), before = 0;
    for (int64_t i = 0; i < values.size; ++i) {
        Value& value = values.list[i];
        double mass = value.weight * double(value.kept);
        if (before >= wanted) value.kept = 0;
        else if (before + mass >= wanted) {
            int64_t needed = int64_t((wanted - before) / value.weight);
            needed += before + value.weight * double(needed) < wanted;
            if (needed < value.kept) value.kept = needed;
        }
        before += mass;
    }
}

// The distribution over ids in rising order, inverted at a number.
static inline int64_t invert(const uint16_t* row, int64_t width, Values& values, double number) {
    double wanted = number * mass_of(values), mass = 0;
    int64_t last = 0;
    for (int64_t id = 0; id < width; ++id) {
        int key = key_of(row[id]);
        if (key < values.lowest) continue;
        Value& value = values.list[values.place[key]];
        if (value.kept == 0) continue;
        --value.kept;
        mass += value.weight;
        last = id;
        if (mass > wanted) break;
    }
    return last;
}

static inline int64_t draw(const uint16_t* row, int64_t width, int largest, const Drawing& how) {
    Values values = values_of(row, width, largest, how);
    if (how.top_k > 0) keep_most_likely(values, how.top_k);
    if (how.top_p < 1) keep_mass(values, how.top_p);
    return invert(row, width, values, how.number);
}

}  // namespace CK_NS
