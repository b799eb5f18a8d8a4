#include "thread_pool.hpp"

namespace rl {

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int thread = 1; thread < num_threads; thread++) {
      workers_.emplace_back([this, thread] { wait_for_work(thread); });
    }
  } catch (...) {  // no more threads: those that run must end before this object does
    close();
    throw;
  }
}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  started_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int num_items, const std::function<void(int, int)>& work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    next_item_ = 0;
    num_items_ = num_items;
  }
  started_.notify_all();
  take_items(0);
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [this] { return num_busy_ == 0; });
}

void ThreadPool::wait_for_work(int thread) {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      started_.wait(lock, [this] { return is_closing_ || next_item_ < num_items_; });
      if (is_closing_) return;
      num_busy_++;
    }
    take_items(thread);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--num_busy_ == 0) finished_.notify_one();
  }
}

void ThreadPool::take_items(int thread) {
  for (int item = next_item_++; item < num_items_; item = next_item_++) (*work_)(item, thread);
}

}  // namespace rl
