// Threads, caches and memory, read from the operating system. Unknown values are left out, never guessed.
#include "machine.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

namespace sscc {

namespace {

std::optional<std::string> first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line)) {
        return std::nullopt;
    }
    return line;
}

std::optional<double> number(const std::string& text) {
    std::istringstream stream(text);
    double value = 0;
    if (!(stream >> value)) {
        return std::nullopt;
    }
    return value;
}

std::optional<double> file_number(const std::string& path) {
    const auto line = first_line(path);
    return line ? number(*line) : std::nullopt;
}

// The folders of this process's cgroup for a v1 controller, or of the v2 hierarchy if `controller` is empty, from the
// process's own level up to the root. Inside a container the host's path may not exist; the mount's root, always last,
// is then the container's own level.
std::vector<std::string> cgroup_folders(const std::string& controller) {
    std::vector<std::string> roots = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    if (!controller.empty()) {
        roots = {"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup/cpu,cpuacct"};
    }
    std::string path;
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {  // hierarchy:controllers:path
        const auto first = line.find(':');
        const auto second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) {
            continue;
        }
        const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
        if (names == ",," ? controller.empty() : names.find("," + controller + ",") != std::string::npos) {
            path = line.substr(second + 1);
        }
    }
    std::vector<std::string> folders;
    for (; path.size() > 1; path.erase(path.find_last_of('/'))) {
        for (const auto& root : roots) {
            folders.push_back(root + path);
        }
    }
    folders.insert(folders.end(), roots.begin(), roots.end());
    return folders;
}

// The smallest value that `read` returns for the folders of a controller.
std::optional<double> smallest(const std::string& controller,
                               const std::function<std::optional<double>(const std::string&)>& read) {
    std::optional<double> least;
    for (const auto& folder : cgroup_folders(controller)) {
        const auto value = read(folder);
        if (value && (!least || *value < *least)) {
            least = value;
        }
    }
    return least;
}

std::optional<double> smaller(std::optional<double> a, std::optional<double> b) {
    return a && b ? std::min(*a, *b) : (a ? a : b);
}

// cgroup v2: "QUOTA PERIOD" or "max PERIOD".
std::optional<double> quota_v2(const std::string& folder) {
    const auto line = first_line(folder + "/cpu.max");
    double quota = 0, period = 0;
    if (!line || !(std::istringstream(*line) >> quota >> period) || quota <= 0 || period <= 0) {
        return std::nullopt;
    }
    return quota / period;
}

// cgroup v1: microseconds, -1 for no limit.
std::optional<double> quota_v1(const std::string& folder) {
    const auto quota = file_number(folder + "/cpu.cfs_quota_us");
    const auto period = file_number(folder + "/cpu.cfs_period_us");
    if (!quota || !period || *quota <= 0 || *period <= 0) {
        return std::nullopt;
    }
    return *quota / *period;
}

// "48K", "8192K", "32M" or plain bytes.
std::optional<std::int64_t> sized(const std::string& text) {
    std::istringstream stream(text);
    std::int64_t value = 0;
    char unit = ' ';
    if (!(stream >> value)) {
        return std::nullopt;
    }
    stream >> unit;
    return unit == 'K' ? value << 10 : unit == 'M' ? value << 20 : unit == 'G' ? value << 30 : value;
}

}  // namespace

int affinity_threads() {
#if defined(__linux__)
    for (int cpus = 1024; cpus <= (1 << 20); cpus *= 4) {  // the kernel refuses a mask smaller than its own
        cpu_set_t* mask = CPU_ALLOC(cpus);
        const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
        const bool known = mask != nullptr && sched_getaffinity(0, bytes, mask) == 0;
        const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
        CPU_FREE(mask);
        if (count > 0) {
            return count;
        }
    }
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::optional<double> cpu_quota() { return smaller(smallest("", quota_v2), smallest("cpu", quota_v1)); }

int usable_threads() {
    const auto quota = cpu_quota();
    const int allowed = affinity_threads();
    return quota ? std::clamp(static_cast<int>(std::ceil(*quota)), 1, allowed) : allowed;
}

std::map<std::string, std::int64_t> cache_sizes() {
    std::map<std::string, std::int64_t> sizes;
    for (int index = 0; index < 8; ++index) {
        const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
        const auto level = first_line(folder + "/level"), type = first_line(folder + "/type");
        const auto text = first_line(folder + "/size");
        const auto bytes = text ? sized(*text) : std::nullopt;
        if (level && type && bytes && *type != "Instruction") {
            sizes["l" + *level + (*level == "1" ? "d" : "")] = *bytes;
        }
    }
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    const std::pair<const char*, int> names[] = {
        {"l1d", _SC_LEVEL1_DCACHE_SIZE}, {"l2", _SC_LEVEL2_CACHE_SIZE}, {"l3", _SC_LEVEL3_CACHE_SIZE}};
    for (const auto& [name, key] : names) {
        if (const long bytes = sysconf(key); bytes > 0) {
            sizes.emplace(name, bytes);  // keeps a size from sysfs
        }
    }
#endif
    return sizes;
}

std::int64_t page_size() { return sysconf(_SC_PAGESIZE); }

std::int64_t total_memory() { return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * page_size(); }

std::optional<std::int64_t> memory_limit() {
    const auto v2 = smallest("", [](const std::string& folder) { return file_number(folder + "/memory.max"); });
    const auto v1 = smallest(
        "memory", [](const std::string& folder) { return file_number(folder + "/memory.limit_in_bytes"); });
    const auto bytes = smaller(v2, v1);
    if (!bytes || *bytes >= static_cast<double>(total_memory())) {  // v1 says "no limit" with a huge number
        return std::nullopt;
    }
    return static_cast<std::int64_t>(*bytes);
}

}  // namespace sscc
