// A few threads that share numbered pieces of work. They sleep between calls.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // the caller's included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(piece, thread) once for each piece in [0, num_pieces), in any order; returns when all are done. A thread
  // that the system wakes only after the others have taken all pieces is not waited for. `work` must not throw.
  void run(int num_pieces, const std::function<void(int, int)>& work);

 private:
  void wait_for_work(int thread);
  void take_pieces(int thread);
  void close();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  const std::function<void(int, int)>* work_ = nullptr;
  std::atomic<int> next_piece_{0};
  int num_pieces_ = 0;
  int num_busy_ = 0;  // threads, other than the caller, that may hold a piece
  bool is_closing_ = false;
};
