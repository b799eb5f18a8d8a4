// A few threads that process numbered work items. They sleep between calls.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rl {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // the calling thread included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(item, thread) once for each item in [0, num_items), in any order; returns when all are done. A thread
  // that wakes after the others have taken all items is not waited for. `work` must not throw.
  void run(int num_items, const std::function<void(int, int)>& work);

 private:
  void wait_for_work(int thread);
  void take_items(int thread);
  void close();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  const std::function<void(int, int)>* work_ = nullptr;
  std::atomic<int> next_item_{0};
  int num_items_ = 0;
  int num_busy_ = 0;  // threads, other than the caller, that may hold an item
  bool is_closing_ = false;
};

}  // namespace rl
