#include "bandwidth.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace sscc {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kWordsPerLine = kLine / sizeof(std::uint64_t);

struct AlignedDelete {
    void operator()(std::uint64_t* words) const { ::operator delete[](words, std::align_val_t{4096}); }
};

struct Slice {
    std::uint64_t* words = nullptr;
    std::size_t count = 0;  // a multiple of kWordsPerLine
    std::uint64_t written = 0;
    std::uint64_t read = 0;
};

void fill(Slice& slice) {
    std::uint64_t value = 0x9e3779b97f4a7c15u, sum = 0;
    for (std::size_t i = 0; i < slice.count; ++i, value += 0x9e3779b97f4a7c15u) {
        slice.words[i] = value;
        sum += value;
    }
    slice.written = sum;
}

// One accumulator per word of a line: the compiler keeps them in vector registers, in several independent chains.
void sum(Slice& slice) {
    std::uint64_t lanes[2 * kWordsPerLine] = {};
    std::size_t i = 0;
    for (; i + 2 * kWordsPerLine <= slice.count; i += 2 * kWordsPerLine) {
        for (std::size_t lane = 0; lane < 2 * kWordsPerLine; ++lane) {
            lanes[lane] += slice.words[i + lane];
        }
    }
    std::uint64_t total = 0;
    for (; i < slice.count; ++i) {
        total += slice.words[i];
    }
    for (const std::uint64_t lane : lanes) {
        total += lane;
    }
    slice.read = total;
}

enum Gate { kClosed, kOpen, kAbandoned };

}  // namespace

double read_bandwidth(int threads, std::size_t bytes, int repeats) {
    if (threads < 1 || repeats < 1) {
        throw std::invalid_argument("threads and repeats must be at least 1");
    }
    const std::size_t lines = bytes / kLine / static_cast<std::size_t>(threads);
    if (lines == 0) {
        throw std::invalid_argument("the buffer is smaller than one 64-byte line per thread");
    }
    const std::size_t words = lines * kWordsPerLine * static_cast<std::size_t>(threads);
    const std::unique_ptr<std::uint64_t[], AlignedDelete> buffer(
        static_cast<std::uint64_t*>(::operator new[](words * sizeof(std::uint64_t), std::align_val_t{4096})));
    std::vector<Slice> slices(static_cast<std::size_t>(threads));
    for (std::size_t t = 0; t < slices.size(); ++t) {
        slices[t].words = buffer.get() + t * lines * kWordsPerLine;
        slices[t].count = lines * kWordsPerLine;
    }

    std::barrier meet(threads);
    std::atomic<bool> damaged = false;
    double best = 0;  // seconds; only the calling thread writes it
    const auto work = [&](std::size_t t) {
        fill(slices[t]);
        for (int pass = 0; pass < repeats; ++pass) {
            meet.arrive_and_wait();
            const auto start = std::chrono::steady_clock::now();
            sum(slices[t]);
            meet.arrive_and_wait();
            const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
            if (t == 0) {
                best = pass == 0 ? taken.count() : std::min(best, taken.count());
            }
            if (slices[t].read != slices[t].written) {
                damaged = true;
            }
        }
    };

    // The helpers wait at a gate, so that those already started can return if a later one cannot be started.
    std::atomic<Gate> gate = kClosed;
    std::vector<std::jthread> helpers;
    try {
        for (std::size_t t = 1; t < slices.size(); ++t) {
            helpers.emplace_back([&, t] {
                gate.wait(kClosed);
                if (gate == kOpen) {
                    work(t);
                }
            });
        }
    } catch (...) {
        gate = kAbandoned;
        gate.notify_all();
        throw;
    }
    gate = kOpen;
    gate.notify_all();
    work(0);
    helpers.clear();  // joins
    if (damaged) {
        throw std::runtime_error("memory did not read back as written");
    }
    return static_cast<double>(words * sizeof(std::uint64_t)) / best / 1e9;
}

}  // namespace sscc
