// Resources of the machine that this process may use.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sscc {

// "x86_64", "aarch64" or "unknown".
std::string architecture();

// Vector extensions that the CPU has and the operating system saves, named as in /proc/cpuinfo, in a fixed order.
std::vector<std::string> cpu_features();

// CPUs in the affinity mask of the calling thread, at least 1.
int affinity_threads();

// CPU time in CPUs that the cgroups (v2 or v1) of this process allow, the minimum of all levels; none if unlimited.
std::optional<double> cpu_quota();

// Useful number of threads: the affinity mask limited to the quota (rounded up), at least 1.
int usable_threads();

// Bytes of the caches that one CPU sees: keys "l1d", "l2", "l3"; unknown or absent levels have no key.
std::map<std::string, std::int64_t> cache_sizes();

// Bytes of physical memory.
std::int64_t page_size();
std::int64_t total_memory();

// Bytes that the cgroups (v2 or v1) of this process allow, the minimum of all levels; none if unlimited.
std::optional<std::int64_t> memory_limit();

}  // namespace sscc
