// The generated tokens of an engine's slots, appended one step at a time; types and documentation in
// runtime/support/_native.pyi.
#include "python_slots.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "errors.hpp"

namespace nb = nanobind;

namespace sscc {

namespace {

template <class T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

enum Finish : std::int8_t { kNot, kEnd, kLimit };

// Works on arrays that it shares with Python: one call per step for any number of slots.
class TokenTable {
  public:
    TokenTable(Array<std::int32_t, 2> history, Array<std::int64_t, 1> counts, Array<std::int64_t, 1> next_tokens)
        : history_(std::move(history)), counts_(std::move(counts)), next_tokens_(std::move(next_tokens)) {
        check(counts_.shape(0) == slots() && next_tokens_.shape(0) == slots());
        limits_.resize(slots());
        ends_.resize(slots());
        latest_.resize(slots());
    }

    void start(std::size_t slot, std::int64_t most, std::vector<std::int64_t> ends) {
        check(slot < slots() && most <= static_cast<std::int64_t>(history_.shape(1)));
        limits_[slot] = most;
        ends_[slot] = std::move(ends);
    }

    std::pair<std::int64_t, std::int64_t> append(const Array<const std::int64_t, 1>& tokens,
                                                 const Array<const bool, 1>& given, double now,
                                                 const Array<double, 1>& gaps, const Array<std::int8_t, 1>& finish) {
        check(tokens.shape(0) == slots() && given.shape(0) == slots() && gaps.shape(0) == slots() &&
              finish.shape(0) == slots());
        std::int64_t made = 0, ended = 0;
        for (std::size_t slot = 0; slot < slots(); ++slot) {
            finish(slot) = kNot;
            if (!given(slot)) {
                continue;
            }
            auto& count = counts_(slot);
            check(count >= 0 && count < limits_[slot]);
            const auto token = tokens(slot);
            const auto& ends = ends_[slot];
            history_(slot, static_cast<std::size_t>(count++)) = static_cast<std::int32_t>(token);
            next_tokens_(slot) = token;
            gaps(static_cast<std::size_t>(made++)) = now - std::exchange(latest_[slot], now);
            const auto is_end = std::find(ends.begin(), ends.end(), token) != ends.end();
            finish(slot) = is_end ? kEnd : count == limits_[slot] ? kLimit : kNot;
            ended += finish(slot) != kNot;
        }
        return {made, ended};
    }

  private:
    std::size_t slots() const { return history_.shape(0); }

    static void check(bool fits) {
        if (!fits) {
            fail("TOKEN_TABLE_SHAPES");
        }
    }

    Array<std::int32_t, 2> history_;
    Array<std::int64_t, 1> counts_, next_tokens_;
    std::vector<std::int64_t> limits_;
    std::vector<std::vector<std::int64_t>> ends_;
    std::vector<double> latest_;  // time of each slot's newest token
};

}  // namespace

void add_slots(nb::module_& m) {
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    nb::class_<TokenTable>(m, "TokenTable")
        .def(nb::init<Array<std::int32_t, 2>, Array<std::int64_t, 1>, Array<std::int64_t, 1>>(), array("history"),
             array("counts"), array("next_tokens"))
        .def("start", &TokenTable::start, nb::arg("slot"), nb::arg("most"), nb::arg("ends"))
        .def("append", &TokenTable::append, array("tokens"), array("given"), nb::arg("now"), array("gaps"),
             array("finish"));
}

}  // namespace sscc
