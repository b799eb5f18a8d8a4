#include "thread_pool.hpp"

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int thread = 1; thread < num_threads; thread++) {
      workers_.emplace_back([this, thread] { wait_for_work(thread); });
    }
  } catch (...) {  // the system gives no more threads: those that run must end before this object does
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

void ThreadPool::run(int num_pieces, const std::function<void(int, int)>& work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    next_piece_ = 0;
    num_pieces_ = num_pieces;
  }
  started_.notify_all();
  take_pieces(0);
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [this] { return num_busy_ == 0; });
}

void ThreadPool::wait_for_work(int thread) {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      started_.wait(lock, [this] { return is_closing_ || next_piece_ < num_pieces_; });
      if (is_closing_) return;
      num_busy_++;
    }
    take_pieces(thread);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--num_busy_ == 0) finished_.notify_one();
  }
}

void ThreadPool::take_pieces(int thread) {
  for (int piece = next_piece_++; piece < num_pieces_; piece = next_piece_++) (*work_)(piece, thread);
}
