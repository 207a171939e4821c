// The generated tokens of an engine's slots, appended one step at a time, and the search of a sequence for the tokens
// that followed its newest ones before; types and documentation in runtime/support/_native.pyi.
#include "python_slots.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>
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

// Returns the number of equal tokens that end at positions `a` and `b` > a of a sequence, at most `longest`. A negative
// token, which separates texts, equals none.
std::int64_t common_suffix(const std::int32_t* tokens, std::int64_t a, std::int64_t b, std::int64_t longest) {
    std::int64_t length = 0;
    while (length < longest && length <= a && tokens[a - length] == tokens[b - length] && tokens[b - length] >= 0) {
        ++length;
    }
    return length;
}

// Drafts the next tokens of a sequence of `count` tokens, up to `most`: those that followed the earlier position with
// the longest suffix in common with the end. If there are several, the one closest to `expected` counts, or the latest if
// that is negative; if there are none, `expected` itself. Tokens are repeated where they reach the end. Returns their
// number and the length of the suffix, and sets `expected` to the position.
std::pair<std::int64_t, std::int64_t> look_up(const std::int32_t* tokens, std::int64_t count, std::int64_t most,
                                              std::int64_t longest, std::int64_t& expected, std::int64_t* draft) {
    std::int64_t best = 0, place = -1;
    const auto farther = [&](std::int64_t at) {
        return expected < 0 || std::abs(at - expected) >= std::abs(place - expected);
    };
    for (std::int64_t at = count - 2; at >= 0; --at) {
        if (tokens[at] != tokens[count - 1]) {
            continue;
        }
        const auto length = common_suffix(tokens, at, count - 1, longest);
        if (length > best || (length == best && length > 0 && !farther(at))) {
            best = length;
            place = at;
        }
        if (best == longest && (expected < 0 || at <= expected)) {
            break;  // earlier positions are farther from the expected one
        }
    }
    if (best == 0 && (expected < 0 || expected >= count - 1)) {
        expected = -1;
        return {0, 0};
    }
    expected = best > 0 ? place : expected;
    place = expected + 1;
    std::int64_t drafted = 0;
    const auto period = count - place;
    while (drafted < most && tokens[place + drafted % period] >= 0) {
        draft[drafted] = tokens[place + drafted % period];
        ++drafted;
    }
    return {drafted, best};
}

void look_up_all(const Array<const std::int32_t, 2>& tokens, const Array<const std::int64_t, 1>& counts,
                 const Array<const std::int64_t, 1>& most, std::int64_t longest,
                 const Array<std::int64_t, 1>& expected, const Array<std::int64_t, 2>& draft,
                 const Array<std::int64_t, 1>& drafted, const Array<std::int64_t, 1>& matched) {
    const auto slots = tokens.shape(0);
    const auto fits = [slots](const auto& array) { return array.shape(0) == slots; };
    if (!fits(counts) || !fits(most) || !fits(expected) || !fits(draft) || !fits(drafted) || !fits(matched)) {
        fail("TOKEN_TABLE_SHAPES");
    }
    for (std::size_t slot = 0; slot < slots; ++slot) {
        if (counts(slot) > static_cast<std::int64_t>(tokens.shape(1)) ||
            most(slot) > static_cast<std::int64_t>(draft.shape(1))) {
            fail("TOKEN_TABLE_SHAPES");
        }
        std::tie(drafted(slot), matched(slot)) =
            most(slot) > 0 && counts(slot) > 1
                ? look_up(&tokens(slot, 0), counts(slot), most(slot), longest, expected(slot), &draft(slot, 0))
                : std::pair<std::int64_t, std::int64_t>{0, 0};
    }
}

}  // namespace

void add_slots(nb::module_& m) {
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    nb::class_<TokenTable>(m, "TokenTable")
        .def(nb::init<Array<std::int32_t, 2>, Array<std::int64_t, 1>, Array<std::int64_t, 1>>(), array("history"),
             array("counts"), array("next_tokens"))
        .def("start", &TokenTable::start, nb::arg("slot"), nb::arg("most"), nb::arg("ends"))
        .def("append", &TokenTable::append, array("tokens"), array("given"), nb::arg("now"), array("gaps"),
             array("finish"));
    m.def("look_up", &look_up_all, array("tokens"), array("counts"), array("most"), nb::arg("longest"), array("expected"),
          array("draft"), array("drafted"), array("matched"));
}

}  // namespace sscc
