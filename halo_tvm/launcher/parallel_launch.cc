// Pools of threads for the parallel loops of one library, in place of the calling thread's pool of TVM.
//
// halo_pool(threads) makes a pool of `threads` threads, whoever calls a kernel among them, and returns it as a number.
// halo_use(pool) makes loops that the calling thread launches from now on run there; 0 gives it TVM's pool again. The
// pool may be another library's: a pool begins with the function that launches on it.
// halo_end(pool) ends the threads and waits for them. A pool serves one call at a time: its session sees to that. A
// library that is loaded twice is there once, so several sessions may have pools of one library.
//
// A launch offers tasks 0..n-1. Everyone takes the next one that is free, the caller, too: a thread that is asleep, or
// that the system has put off its core, holds nobody up. Threads begin with the first launch that offers anything. Idle
// ones spin for a while and then sleep, and so does a caller whose last tasks are with others: on a core that other
// programs want, whoever yields instead is put off for milliseconds.
//
// A thread that is woken does not begin on the core of whoever wakes it. In virtual machines Linux often puts it there,
// although others are idle, and it preempts the caller: the call then waits until the thread has done its tasks and has
// spun in vain.
//
// Whether a loop is worth waking anybody for depends on sizes that only a run knows. So it is remembered how long a
// loop took: one that took less than a launch costs is begun by the caller alone, in small pieces, and offered to the
// others only when it takes longer than last time. A shorter time is believed at once, a longer one in steps: what the
// system put off its core for a while is no longer loop. Pieces cost time of their own: loops that have been small for
// long have few of them.
//
// Threads are those of POSIX: std::thread and its like would ask for a libstdc++ as new as the compiling host's.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O2")
#endif

namespace {

// As tvm/runtime/c_backend_api.h has them.
struct GroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using Lambda = int (*)(int task, GroupEnv* env, void* closure);
using Launch = int (*)(Lambda lambda, void* closure, int num_task);

constexpr int64_t kSpinNs = 500000;  // how long a thread spins before it sleeps
constexpr int kPauses = 64;          // between two looks at the clock: 1 to 3 us
constexpr int64_t kSmallNs = 8000;   // a loop below this is not worth another thread
constexpr int kPieces = 8;           // pieces per thread of a loop that is thought to be small,
constexpr int kFewPieces = 4;        // in all of one that was small for
constexpr int kLong = 256;           // so many launches
constexpr int kRemembered = 1024;    // loops whose time is remembered
constexpr int64_t kUnknown = INT64_MAX;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// Spins until `ready()`, at most for kSpinNs; whether it was.
template <typename Ready>
bool spin(Ready ready) {
  for (int64_t start = 0;;) {
    for (int i = 0; i < kPauses; ++i) {
      if (ready()) return true;
      pause();
    }
    int64_t now = now_ns();
    if (start == 0) {
      start = now;
    } else if (now - start >= kSpinNs) {
      return false;
    }
  }
}

thread_local bool inside = false;  // of a task: loops inside loops are run by who meets them

// What libraries know of each other's pools.
struct AnyPool {
  int (*launch)(AnyPool* pool, Lambda lambda, void* closure, int wanted);
};

struct Loop {
  int64_t last = kUnknown;  // how long it took
  int small = 0;            // launches in a row that it was small in
};

class Pool : public AnyPool {
 public:
  explicit Pool(int threads)
      : AnyPool{[](AnyPool* pool, Lambda lambda, void* closure, int wanted) {
          return static_cast<Pool*>(pool)->launch_here(lambda, closure, wanted);
        }},
        threads_(threads),
        workers_(new pthread_t[threads]) {}

  ~Pool() {
    wake([this] { stopping_ = true; });
    for (int i = 0; i < started_; ++i) pthread_join(workers_[i], nullptr);
    pthread_cond_destroy(&done_);
    pthread_cond_destroy(&wake_);
    pthread_mutex_destroy(&mutex_);
    delete[] workers_;
  }

  int launch_here(Lambda lambda, void* closure, int wanted) {
    Loop& loop = loops_[(reinterpret_cast<uintptr_t>(lambda) >> 4) % kRemembered];
    if (threads_ == 1 || inside) return alone(lambda, closure, wanted);
    int64_t start = now_ns();
    bool small = wanted <= 0 && loop.last < kSmallNs;
    int tasks = wanted > 0 ? wanted : !small ? threads_ : loop.small < kLong ? threads_ * kPieces : kFewPieces;
    GroupEnv env{nullptr, tasks};
    int first = 0, failed = 0;
    inside = true;
    if (small) {
      do {
        failed |= lambda(first++, &env, closure);
      } while (first < tasks && now_ns() - start < kSmallNs);
    }
    if (first < tasks) failed |= offer(lambda, closure, &env, first);
    inside = false;
    // what all threads together may have taken
    int64_t taken = (now_ns() - start) * (first == tasks ? 1 : threads_);
    loop.last = taken < loop.last ? taken : loop.last + (taken - loop.last) / 8;
    loop.small = taken >= kSmallNs ? 0 : loop.small < kLong ? loop.small + 1 : kLong;
    return failed ? -1 : 0;
  }

  static int alone(Lambda lambda, void* closure, int wanted) {
    int tasks = wanted > 0 ? wanted : 1;
    GroupEnv env{nullptr, tasks};
    for (int task = 0; task < tasks; ++task) {
      if (lambda(task, &env, closure)) return -1;
    }
    return 0;
  }

 private:
  void begin() {
    begun_ = true;
    if (sched_getaffinity(0, sizeof(allowed_), &allowed_)) CPU_ZERO(&allowed_);
    for (; started_ < threads_ - 1; ++started_) {
      if (pthread_create(&workers_[started_], nullptr, [](void* pool) -> void* {
            static_cast<Pool*>(pool)->serve();
            return nullptr;
          }, this)) {
        break;  // the system has no more: fewer do the same work
      }
    }
  }

  // Lets threads that are to be woken run on every core the caller may use but its own, where there is another.
  void keep_off_this_core() {
    int core = sched_getcpu();
    if (core < 0 || core == kept_off_ || CPU_COUNT(&allowed_) < 2) return;
    cpu_set_t others = allowed_;
    if (core < CPU_SETSIZE) CPU_CLR(core, &others);
    for (int i = 0; i < started_; ++i) pthread_setaffinity_np(workers_[i], sizeof(others), &others);
    kept_off_ = core;
  }

  // Tasks first..num_task-1, with everyone who comes; returns when all are done. The first is the caller's: so a thread
  // finds in its cache what it left there in the loop before.
  int offer(Lambda lambda, void* closure, GroupEnv* env, int first) {
    if (!begun_) begin();
    lambda_ = lambda;
    closure_ = closure;
    env_ = env;
    failed_.store(0, std::memory_order_relaxed);
    left_.store(env->num_task - first, std::memory_order_relaxed);
    uint64_t round = (free_.load(std::memory_order_relaxed) >> 32) + 1;
    free_.store(round << 32 | static_cast<uint64_t>(env->num_task) << 16 | (first + 1), std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst) > 0) {
      keep_off_this_core();
      wake([] {});
    }
    if (lambda(first, env, closure)) failed_.store(1, std::memory_order_relaxed);
    left_.fetch_sub(1, std::memory_order_release);
    while (take()) {
    }
    if (!spin([this] { return left_.load(std::memory_order_acquire) == 0; })) {
      pthread_mutex_lock(&mutex_);
      waiting_.store(true, std::memory_order_seq_cst);
      while (left_.load(std::memory_order_seq_cst) > 0) pthread_cond_wait(&done_, &mutex_);
      waiting_.store(false, std::memory_order_relaxed);
      pthread_mutex_unlock(&mutex_);
    }
    return failed_.load(std::memory_order_relaxed);
  }

  static bool any(uint64_t free) { return (free & 0xffff) < (free >> 16 & 0xffff); }

  // Take one task and run it; false when there is none. The number of the round in `free_` keeps a thread that comes
  // late from taking a task of a later round for one of this.
  bool take() {
    uint64_t free = free_.load(std::memory_order_acquire);
    do {
      if (!any(free)) return false;
    } while (!free_.compare_exchange_weak(free, free + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    // The task is ours, so the round lasts until we are done with it.
    if (lambda_(static_cast<int>(free & 0xffff), env_, closure_)) failed_.store(1, std::memory_order_relaxed);
    if (left_.fetch_sub(1, std::memory_order_seq_cst) == 1 && waiting_.load(std::memory_order_seq_cst)) {
      pthread_mutex_lock(&mutex_);  // the caller is asleep, or does not know yet that it need not be
      pthread_cond_signal(&done_);
      pthread_mutex_unlock(&mutex_);
    }
    return true;
  }

  void serve() {
    inside = true;
    while (true) {
      while (spin([this] { return take(); })) {
      }
      pthread_mutex_lock(&mutex_);
      asleep_.fetch_add(1, std::memory_order_seq_cst);
      // Once only: a loop that is over by the time its sleepers are awake will soon be followed by another.
      if (!stopping_ && !any(free_.load(std::memory_order_seq_cst))) pthread_cond_wait(&wake_, &mutex_);
      asleep_.fetch_sub(1, std::memory_order_relaxed);
      bool ends = stopping_;
      pthread_mutex_unlock(&mutex_);
      if (ends) return;
    }
  }

  template <typename Change>
  void wake(Change change) {
    pthread_mutex_lock(&mutex_);
    change();
    pthread_cond_broadcast(&wake_);
    pthread_mutex_unlock(&mutex_);
  }

  // What a launch writes and everyone polls lies apart from what everyone writes.
  alignas(64) std::atomic<uint64_t> free_{0};  // round, number of tasks, next task
  Lambda lambda_ = nullptr;
  void* closure_ = nullptr;
  GroupEnv* env_ = nullptr;
  alignas(64) std::atomic<int> left_{0};
  std::atomic<int> failed_{0};
  alignas(64) std::atomic<int> asleep_{0};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER;
  pthread_cond_t done_ = PTHREAD_COND_INITIALIZER;
  std::atomic<bool> waiting_{false};
  bool stopping_ = false;
  bool begun_ = false;
  const int threads_;
  cpu_set_t allowed_;  // cores that the caller may use, as the pool's threads began
  int kept_off_ = -1;  // the core they stay off
  Loop loops_[kRemembered];  // by a loop's address
  int started_ = 0;
  pthread_t* workers_;
};

thread_local AnyPool* used = nullptr;
Launch tvm_launch = nullptr;

int launch(Lambda lambda, void* closure, int num_task) {
  return used ? used->launch(used, lambda, closure, num_task) : tvm_launch(lambda, closure, num_task);
}

// As tvm/ffi/c_api.h has it.
struct Any {
  int32_t type_index;
  uint32_t padding;
  int64_t value;
};
constexpr int32_t kInt = 1;

}  // namespace

extern "C" {

// Where generated code finds its launcher; absent from a library that launches nothing.
extern Launch __TVMBackendParallelLaunch __attribute__((weak));

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int __tvm_ffi_halo_pool(void*, const Any* args, int32_t num_args, Any* result) {
  int threads = num_args == 1 && args[0].type_index == kInt ? static_cast<int>(args[0].value) : 1;
  AnyPool* pool = new Pool(threads);
  *result = Any{kInt, 0, reinterpret_cast<int64_t>(pool)};
  return 0;
}

EXPORTED int __tvm_ffi_halo_use(void*, const Any* args, int32_t num_args, Any*) {
  if (num_args == 1 && args[0].type_index == kInt) used = reinterpret_cast<AnyPool*>(args[0].value);
  // The loader writes TVM's whenever somebody loads the library, and again for the next.
  if (&__TVMBackendParallelLaunch != nullptr && __TVMBackendParallelLaunch != launch) {
    tvm_launch = __TVMBackendParallelLaunch;
    __TVMBackendParallelLaunch = launch;
  }
  return 0;
}

EXPORTED int __tvm_ffi_halo_end(void*, const Any* args, int32_t num_args, Any*) {
  if (num_args == 1 && args[0].type_index == kInt) {
    delete static_cast<Pool*>(reinterpret_cast<AnyPool*>(args[0].value));
  }
  return 0;
}
}
