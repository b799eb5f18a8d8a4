// Measures what some threads can do at most: multiply-adds, and reading memory.
#include "peaks.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "arena.hpp"
#include "thread_pool.hpp"

namespace rl {
namespace {

// Short bursts: where other programs share the cores, some bursts still run undisturbed.
constexpr int64_t kRounds = 1 << 15;
constexpr size_t kBurstBytes = size_t{1} << 20;
constexpr size_t kSinkFloats = 64;

// The best rate of bursts; `burst` returns how much it did.
double best_rate(double seconds, const std::function<double()>& burst) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  auto before = Clock::now();
  while (before < end) {
    const double amount = burst();
    const auto after = Clock::now();
    best = std::max(best, amount / std::chrono::duration<double>(after - before).count());
    before = after;
  }
  return best;
}

// The sum of the best rates of all threads, which run at the same time.
double best_rates(int num_threads, double seconds, const std::function<double(int)>& burst_of_thread) {
  ThreadPool pool(num_threads);
  std::vector<double> rates(num_threads);
  pool.run(num_threads, [&](int item, int) { rates[item] = best_rate(seconds, [&] { return burst_of_thread(item); }); });
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace

double peak_flops(const PeakKernels& kernels, int num_threads, double seconds) {
  Arena sinks(num_threads * kSinkFloats * sizeof(float));
  return best_rates(num_threads, seconds, [&](int thread) {
    return static_cast<double>(kernels.multiply_adds(kRounds, sinks.floats() + thread * kSinkFloats));
  });
}

double peak_bandwidth(const PeakKernels& kernels, int num_threads, size_t bytes, double seconds) {
  const size_t burst = std::min(kBurstBytes, bytes) / sizeof(float) / 1024 * 1024;
  const size_t num_bursts = std::max<size_t>(1, bytes / (burst * sizeof(float)));
  const int repeats = static_cast<int>(std::max<size_t>(1, kBurstBytes / (burst * sizeof(float))));
  Arena sinks(num_threads * kSinkFloats * sizeof(float));
  std::vector<Arena> arenas(num_threads);
  std::vector<size_t> next(num_threads, 0);
  for (Arena& arena : arenas) arena = Arena(num_bursts * burst * sizeof(float));
  return best_rates(num_threads, seconds, [&](int thread) {
    const float* values = arenas[thread].floats() + next[thread]++ % num_bursts * burst;
    for (int k = 0; k < repeats; k++) kernels.read_all(values, burst, sinks.floats() + thread * kSinkFloats);
    return static_cast<double>(repeats * burst * sizeof(float));
  });
}

}  // namespace rl
