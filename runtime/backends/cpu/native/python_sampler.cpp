// Python bindings of the sampler; types and documentation in runtime/support/_native.pyi.
#include "python_sampler.hpp"

#include <string>
#include <utility>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.hpp"
#include "sampler.hpp"

namespace nb = nanobind;

namespace sscc {

namespace {

template <class T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

void check(bool fits, const Sampler& sampler) {
    if (!fits) {
        fail("SAMPLER_SHAPES", {{"slots", sampler.slots()}, {"vocabulary", sampler.vocabulary()}});
    }
}

template <class Element>
Logits checked(const Sampler& sampler, const Array<const Element, 2>& logits) {
    check(logits.shape(0) == static_cast<std::size_t>(sampler.slots()) &&
              logits.shape(1) == static_cast<std::size_t>(sampler.vocabulary()),
          sampler);
    return {logits.data(), sizeof(Element) == 2};
}

template <class Element>
std::optional<std::int64_t> pick(Sampler& sampler, const Array<const Element, 2>& logits,
                                 const Array<const bool, 1>& active, const Array<std::int64_t, 1>& tokens,
                                 const std::optional<Array<const std::uint32_t, 2>>& allowed,
                                 const std::optional<Array<const bool, 1>>& constrained) {
    const auto slots = static_cast<std::size_t>(sampler.slots());
    check(active.shape(0) == slots && tokens.shape(0) == slots, sampler);
    check(allowed.has_value() == constrained.has_value(), sampler);
    Allowed bits;
    if (allowed) {
        check(allowed->shape(0) == slots && constrained->shape(0) == slots &&
                  allowed->shape(1) == Allowed::words(sampler.vocabulary()),
              sampler);
        bits = {allowed->data(), constrained->data()};
    }
    const auto rows = checked(sampler, logits);
    const nb::gil_scoped_release released;
    return sampler.pick(rows, active.data(), tokens.data(), bits);
}

template <class Element>
std::vector<std::pair<std::int64_t, float>> kept(Sampler& sampler, std::int64_t slot,
                                                 const Array<const Element, 2>& logits) {
    return sampler.kept(slot, checked(sampler, logits));
}

void start(Sampler& sampler, std::int64_t slot, const Array<const std::int64_t, 1>& prompt, double temperature,
           std::int64_t top_k, double top_p, double min_p, double repetition_penalty, double presence_penalty,
           double frequency_penalty, std::uint64_t seed, std::vector<std::pair<std::int64_t, double>> logit_bias,
           std::optional<std::int64_t> logprobs) {
    const nb::gil_scoped_release released;
    sampler.start(slot,
                  {temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed,
                   std::move(logit_bias)},
                  {prompt.data(), prompt.shape(0)}, logprobs);
}

nb::object logprobs(const Sampler& sampler, std::int64_t slot) {
    const auto told = sampler.logprobs(slot);
    return told == nullptr ? nb::none() : nb::object(nb::make_tuple(told->token, told->logprob, nb::cast(told->top)));
}

}  // namespace

void add_sampler(nb::module_& m) {
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    nb::class_<Sampler>(m, "BatchSampler")
        .def(nb::init<std::int64_t, std::int64_t, std::shared_ptr<Team>, int>(), nb::arg("slots"),
             nb::arg("vocab_size"), nb::kw_only(), nb::arg("team") = nb::none(), nb::arg("width") = 16)
        .def("start", &start, nb::arg("slot"), array("prompt"), nb::kw_only(), nb::arg("temperature"),
             nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("repetition_penalty"),
             nb::arg("presence_penalty"), nb::arg("frequency_penalty"), nb::arg("seed"), nb::arg("logit_bias"),
             nb::arg("logprobs").none())
        .def("stop", &Sampler::stop, nb::arg("slot"))
        .def("pick", &pick<float>, array("logits"), array("active"), array("tokens"), array("allowed") = nb::none(),
             array("constrained") = nb::none())
        .def("pick", &pick<std::uint16_t>, array("logits"), array("active"), array("tokens"),
             array("allowed") = nb::none(), array("constrained") = nb::none())
        .def("kept", &kept<float>, nb::arg("slot"), array("logits"))
        .def("kept", &kept<std::uint16_t>, nb::arg("slot"), array("logits"))
        .def("logprobs", &logprobs, nb::arg("slot"));
}

}  // namespace sscc
