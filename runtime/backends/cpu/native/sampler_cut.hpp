// The cut of a row: it separates its largest values, which together have a given weight, from the others.
#pragma once

#include <cstdint>

#include "sampler_passes.hpp"

namespace sscc::sampling {

// The values kept are those above `value`, and the first `ties` of those equal to it.
struct Cut {
    float value;
    std::int64_t ties;
    bool splits;  // whether there are more values equal to it, which are not kept
};

// The cut that keeps as few values as possible whose weights add up to `target` out of `total`: the largest ones, and
// of equal ones the first. `weights` may be null, then each is 1; `most` is the largest value.
Cut cut(const Passes& passes, const Values& of, const float* weights, double total, double target, float most);

// The next f32 above x.
float above(float x);

}  // namespace sscc::sampling
