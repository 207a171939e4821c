// Python bindings of the native interpreter; types and documentation in runtime/support/_native.pyi.
#include "python_core.hpp"

#include <new>
#include <tuple>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "core.hpp"
#include "errors.hpp"

namespace nb = nanobind;

namespace sscc {

namespace {

// Names come from files and may not be UTF-8.
nb::object text(const std::string& bytes) {
    return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

nb::list texts(const std::vector<std::string>& names) {
    nb::list list;
    for (const auto& name : names) {
        list.append(text(name));
    }
    return list;
}

nb::object value(const Error::Value& value) {
    if (const auto* number = std::get_if<std::int64_t>(&value)) {
        return nb::int_(*number);
    }
    return text(std::get<std::string>(value));
}

void translate(const std::exception_ptr& thrown, void*) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Error& error) {
        nb::dict fields;
        for (const auto& [name, field] : error.fields()) {
            fields[name] = value(field);
        }
        const auto made = nb::module_::import_("sscc.runtime.support.native_errors").attr("native_error")(error.kind(), fields);
        PyErr_SetObject(made.type().ptr(), made.ptr());
    }
}

// Python handles signals in its main thread; other threads need not take the interpreter's lock.
Core::Poll signal_check() {
    const auto main = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    return [main] {
        if (PyThread_get_thread_ident() != main) {
            return;
        }
        const nb::gil_scoped_acquire gil;
        if (PyErr_CheckSignals() != 0) {
            throw nb::python_error();
        }
    };
}

std::vector<Kernel> kernels(const std::vector<std::uintptr_t>& addresses) {
    std::vector<Kernel> list;
    for (const auto address : addresses) {
        list.push_back(reinterpret_cast<Kernel>(address));
    }
    return list;
}

using PythonExternal = std::tuple<std::string, std::uintptr_t, std::int64_t>;

std::vector<External> externals(const std::vector<PythonExternal>& given) {
    std::vector<External> list;
    for (const auto& [name, address, bytes] : given) {
        list.push_back({name, reinterpret_cast<std::byte*>(address), bytes});
    }
    return list;
}

TeamOptions team_options(int threads, std::optional<bool> pin, double spin_us) {
    if (!(spin_us >= 0 && spin_us <= 1e9)) {
        fail("SPIN_OUT_OF_RANGE");
    }
    return {threads, pin, std::chrono::nanoseconds(static_cast<std::int64_t>(spin_us * 1e3))};
}

// An exchange between ranks that is implemented in Python.
class PythonExchange : public Exchange {
  public:
    explicit PythonExchange(nb::object callable) : callable_(std::move(callable)) {}
    ~PythonExchange() override {
        const nb::gil_scoped_acquire gil;
        callable_.reset();
    }
    void meet(std::int64_t bytes, int turn, const std::function<void()>&) override {
        const nb::gil_scoped_acquire gil;
        callable_(bytes, turn);
    }

  private:
    nb::object callable_;
};

std::chrono::nanoseconds seconds(double value) {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(value * 1e9));
}

using PythonWindows = std::tuple<std::uintptr_t, int, int, nb::object>;

Windows windows_of(const std::optional<PythonWindows>& given) {
    if (!given) {
        return {};
    }
    const auto& [address, rank, ranks, meeting] = *given;
    std::shared_ptr<Exchange> exchange;
    if (nb::isinstance<Meeting>(meeting)) {
        exchange = nb::cast<std::shared_ptr<Meeting>>(meeting);
    } else {
        exchange = std::make_shared<PythonExchange>(meeting);
    }
    return {reinterpret_cast<std::byte*>(address), rank, ranks, exchange};
}

class PythonCore {
  public:
    PythonCore(const nb::bytes& plan, const std::vector<std::uintptr_t>& functions,
               const std::vector<PythonExternal>& given, int threads, std::optional<bool> pin, double spin_us,
               const std::optional<PythonWindows>& windows, bool guarded)
        : core_(parse_plan({static_cast<const std::byte*>(plan.data()), plan.size()}), kernels(functions),
                externals(given), team_options(threads, pin, spin_us), signal_check(), windows_of(windows), guarded) {}

    Core& core() { return core_; }
    nb::handle hook() const { return hook_; }

    std::vector<std::int64_t> run(const std::string& entry, const std::vector<std::int64_t>& scalars) {
        const nb::gil_scoped_release released;
        return core_.run(entry, scalars);
    }

    std::pair<std::uintptr_t, std::int64_t> region(const std::string& name, int thread) const {
        const auto span = core_.region(name, thread);
        return {reinterpret_cast<std::uintptr_t>(span.address), span.bytes};
    }

    void reset(const std::optional<std::vector<std::string>>& names) {
        const nb::gil_scoped_release released;
        core_.reset(names);
    }

    void set_hook(const std::optional<std::vector<std::string>>& labels, nb::object callable) {
        if (labels && labels->empty()) {
            fail("HOOK_WITHOUT_STAGES");
        }
        if (callable.is_none()) {
            core_.set_hook({}, {});
        } else {
            core_.set_hook(labels.value_or(std::vector<std::string>()), [this](std::uint32_t run) {
                const nb::gil_scoped_acquire gil;
                hook_(text(core_.plan().labels[core_.plan().runs[run].label]), run);
            });
        }
        hook_ = std::move(callable);
    }

    nb::list events() const {
        nb::list list;
        for (const auto& event : core_.events()) {
            list.append(nb::make_tuple(event.label, event.thread, event.start, event.end));
        }
        return list;
    }

    nb::list totals() const {
        nb::list list;
        for (int thread = 0; thread < core_.threads(); ++thread) {
            auto label = kMeetingLabel;
            for (const auto& total : core_.totals(thread)) {
                if (total.count != 0) {
                    list.append(nb::make_tuple(label, thread, total.count, total.nanoseconds));
                }
                ++label;
            }
        }
        return list;
    }

    // For Python's garbage collector: a hook may refer to its core.
    static int traverse(PyObject* self, visitproc visit, void* arg) {
        Py_VISIT(Py_TYPE(self));
        if (nb::inst_ready(self)) {
            Py_VISIT(nb::inst_ptr<PythonCore>(self)->hook_.ptr());
        }
        return 0;
    }

    static int clear(PyObject* self) {
        auto& core = *nb::inst_ptr<PythonCore>(self);
        core.core_.set_hook({}, {});
        core.hook_.reset();
        return 0;
    }

  private:
    nb::object hook_ = nb::none();
    Core core_;
};

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(PythonCore::traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(PythonCore::clear)},
                       {0, nullptr}};

}  // namespace

void add_core(nb::module_& m) {
    nb::register_exception_translator(translate);
    nb::class_<Team>(m, "Team")
        .def("__init__",
             [](Team* self, int threads, std::optional<bool> pin, double spin_us) {
                 new (self) Team(team_options(threads, pin, spin_us));
             },
             nb::arg("threads"), nb::kw_only(), nb::arg("pin") = nb::none(), nb::arg("spin_us") = 50.0)
        .def_prop_ro("threads", &Team::size);
    nb::class_<Meeting>(m, "Meeting")
        .def("__init__",
             [](Meeting* self, std::uintptr_t address, int rank, int ranks, double timeout, double spin_us) {
                 if (!(timeout >= 0 && timeout <= 1e6) || !(spin_us >= 0 && spin_us <= 1e9)) {
                     fail("MEETING_OPTIONS");
                 }
                 new (self) Meeting(reinterpret_cast<std::byte*>(address),
                                    {rank, ranks, seconds(timeout), seconds(spin_us * 1e-6)});
             },
             nb::arg("address"), nb::arg("rank"), nb::arg("ranks"), nb::kw_only(), nb::arg("timeout") = 6.0,
             nb::arg("spin_us") = 0.0)
        .def_static("nbytes", &Meeting::bytes, nb::arg("ranks"))
        .def("meet",
             [](Meeting& self) {
                 const auto check = signal_check();
                 const nb::gil_scoped_release released;
                 self.meet(0, 0, check);
             })
        .def("fail", [](Meeting& self, int rank) { self.end(rank, Meeting::Ending::kFailed); }, nb::arg("rank"))
        .def("stall", [](Meeting& self, int rank) { self.end(rank, Meeting::Ending::kStalled); }, nb::arg("rank"))
        .def("leave", [](Meeting& self, int rank) { self.end(rank, Meeting::Ending::kEnded); }, nb::arg("rank"));
    nb::class_<PythonCore>(m, "Core", nb::type_slots(slots))
        .def(nb::init<const nb::bytes&, const std::vector<std::uintptr_t>&, const std::vector<PythonExternal>&, int,
                      std::optional<bool>, double, const std::optional<PythonWindows>&, bool>(),
             nb::arg("plan"), nb::arg("functions"), nb::arg("externals"), nb::arg("threads"), nb::kw_only(),
             nb::arg("pin") = nb::none(), nb::arg("spin_us") = 50.0, nb::arg("windows") = nb::none(), nb::arg("guarded") = false)
        .def("run", &PythonCore::run, nb::arg("entry"), nb::arg("scalars") = nb::list())
        .def("region", &PythonCore::region, nb::arg("name"), nb::arg("thread") = 0)
        .def("reset", &PythonCore::reset, nb::arg("regions") = nb::none())
        .def("registers", [](PythonCore& self) { return self.core().registers(); })
        .def("trace", [](PythonCore& self, bool on, std::size_t capacity) { self.core().trace(on, capacity); },
             nb::arg("on"), nb::arg("capacity") = 1 << 16)
        .def("events", &PythonCore::events)
        .def("totals", &PythonCore::totals)
        .def("set_hook", &PythonCore::set_hook, nb::arg("labels").none(), nb::arg("hook").none())
        .def_prop_ro("allocated_bytes", [](PythonCore& self) { return self.core().allocated_bytes(); })
        .def_prop_ro("threads", [](PythonCore& self) { return self.core().threads(); })
        .def_prop_ro("team", [](PythonCore& self) { return self.core().team(); })
        .def_prop_ro("labels", [](PythonCore& self) { return texts(self.core().plan().labels); });
}

}  // namespace sscc
