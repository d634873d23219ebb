// SPDX-License-Identifier: Apache-2.0
// How kernels run: fibers in blocks, blocks in clusters.
#include "engine.hpp"

#include <cxxabi.h>
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <cerrno>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <semaphore>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim{}, gridDim{};

#if defined(__SANITIZE_ADDRESS__)
#define SPECAGG_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPECAGG_ASAN 1
#endif
#endif
#ifdef SPECAGG_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_emulator {
namespace {

using boost::context::fiber;

constexpr unsigned warp_size = 32, most_in_cluster = 16;

// ---- order --------------------------------------------------------------------------------------

struct {
  order which = order::forward;
  std::uint64_t state = 1;
  std::uint64_t next() {  // xorshift64*
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
  }
} scheduling;

// A permutation of the first 32 numbers; the first in it runs first.
struct priorities {
  std::uint8_t at[warp_size], rank[warp_size];
  void draw(unsigned count) {
    for (unsigned i = 0; i < count; ++i)
      at[i] = static_cast<std::uint8_t>(scheduling.which == order::backward ? count - 1 - i : i);
    if (scheduling.which == order::shuffled)
      for (unsigned i = count; i > 1; --i) std::swap(at[i - 1], at[scheduling.next() % i]);
    for (unsigned i = 0; i < count; ++i) rank[at[i]] = static_cast<std::uint8_t>(i);
  }
};

// ---- the memory that thread_local variables of this program have in each thread -----------------

struct thread_memory {
  std::size_t size = 0;  // the bytes that end at the thread pointer
  // holds nothing but variables of this program: may be overwritten in the device's threads
  bool ours = false;

  thread_memory() {
    dl_iterate_phdr(
        [](dl_phdr_info* program, std::size_t, void* self) {
          for (int i = 0; i < program->dlpi_phnum; ++i)
            if (const auto& header = program->dlpi_phdr[i]; header.p_type == PT_TLS) {
              const std::size_t align = std::max<std::size_t>(header.p_align, 1);
              static_cast<thread_memory*>(self)->size =
                  (header.p_memsz + align - 1) / align * align;
            }
          return 1;  // the first is the program itself
        },
        this);
#ifndef SPECAGG_ASAN  // its runtime is linked in, and so are its variables
    ours = !contains(&errno) && !contains(abi::__cxa_get_globals());
#endif
  }
  static char* end() { return static_cast<char*>(__builtin_thread_pointer()); }
  bool contains(const void* at) const { return at < end() && at >= end() - size; }
  void spoil() const {
    if (ours) std::memset(end() - size, 0xff, size);
  }
};
const thread_memory& this_program() {
  static const thread_memory memory;
  return memory;
}

// ---- threads ------------------------------------------------------------------------------------

constexpr std::size_t stack_size = 256 << 10, guard_size = 4096;

// Stacks are never given back; neither are fibers, which would have to be unwound.
struct no_deallocation {
  void deallocate(boost::context::stack_context&) {}
};
boost::context::stack_context new_stack(std::size_t number) {
  void* at = mmap(nullptr, stack_size, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED || mprotect(at, guard_size, PROT_NONE) != 0) throw std::bad_alloc();
  boost::context::stack_context stack;
  // Tops at different places of a page's cache sets: hundreds of stacks take turns.
  stack.size = stack_size - number % 61 * 256;
  stack.sp = static_cast<char*>(at) + stack.size;
  return stack;
}

enum class waits : std::uint8_t { nowhere, block, cluster, warp, returned };

struct thread {
  fiber here, scheduler;
  boost::context::stack_context stack;
  uint3 index{};
  waits at = waits::nowhere;
  std::uint32_t phases = 0;  // of the cluster's barrier: arrivals of this thread
#ifdef SPECAGG_ASAN
  void* fake_stack = nullptr;
#endif
};

struct warp {
  std::uint32_t exists = 0, ready = 0, waiting = 0;
  std::uint32_t mask[warp_size];
  warp_function function[warp_size];
  std::uint8_t source[warp_size];
  std::uint64_t value[warp_size], result[warp_size];
  priorities order;
};

struct cluster;

// The block that an operating system's thread runs, with the threads it had for earlier blocks.
class block {
 public:
  void prepare(cluster& in, unsigned rank, uint3 index);
  void advance();  // until all threads have returned, or wait for the cluster
  bool finished() const { return returned_ == size_; }
  bool can_go_on() const;

  // called by the running thread
  std::uint64_t across_warp(warp_function f, std::uint32_t mask, std::uint64_t value,
                            unsigned source);
  void synchronise();
  void arrive();
  void wait_for_cluster();
  unsigned lane() const { return running_ % warp_size; }
  cluster& together() const { return *cluster_; }
  unsigned rank() const { return rank_; }
  // Stops the kernel. The running fiber never goes on: its frames hold nothing that must be
  // released.
  [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* what, ...);

 private:
  void ready(unsigned w, std::uint32_t lanes) {
    warps_[w].ready |= lanes;
    ready_warps_ |= std::uint32_t{1} << order_.rank[w];
  }
  static void shuffle(warp& w) {
    if (scheduling.which == order::shuffled) w.order.draw(warp_size);
  }
  void run(thread& t);
  void suspend(waits at);
  void release_cluster();
  std::string state() const;
  void renew(thread& t, std::size_t number);

  std::vector<std::unique_ptr<thread>> threads_;
  warp warps_[warp_size];
  priorities order_;
  std::uint32_t ready_warps_ = 0;  // by rank in order_
  std::uint32_t phase_seen_ = 0;   // of the cluster
  bool started_ = false;
  unsigned size_ = 0, running_ = 0, at_barrier_ = 0, returned_ = 0, at_cluster_ = 0, rank_ = 0;
  uint3 index_{};
  cluster* cluster_ = nullptr;
#ifdef SPECAGG_ASAN
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_size_ = 0;
#endif
};

// An operating system's thread, and its block.
struct worker {
  std::binary_semaphore go{0}, started{0};
  cuda_emulator::block block;
  char* thread_pointer = nullptr;
  worker();
  void serve();
};

struct cluster {
  const launch_shape* shape = nullptr;
  void (*call)(const void*) = nullptr;
  const void* context = nullptr;
  unsigned size = 1;
  worker* blocks[most_in_cluster] = {};
  std::uint32_t phase = 0;  // times that its barrier was passed
  std::size_t arrived = 0;
  priorities order;
  std::string error;

  // The block to run next, or null: all have returned, or something is wrong.
  worker* next() {
    if (!error.empty()) return nullptr;
    bool finished = true;
    for (unsigned i = 0; i < size; ++i) {
      worker* w = blocks[order.at[i]];
      if (w->block.can_go_on()) return w;
      finished &= w->block.finished();
    }
    if (!finished)
      error = "misuse of a cluster: " + std::to_string(arrived) + " of " +
              std::to_string(size * shape->block.size()) +
              " threads wait at cluster.sync(), the others have returned";
    return nullptr;
  }
};

thread_local block* current = nullptr;

block& this_block() {
  if (!current) throw misuse("a device function was called on the host");
  return *current;
}

// ---- one block ----------------------------------------------------------------------------------

void block::renew(thread& t, std::size_t number) {
  if (t.here) {  // stopped in the middle of a kernel: its frames are forgotten, not unwound
    static auto& abandoned = *new std::vector<fiber>;
    abandoned.push_back(std::move(t.here));
  } else {
    t.stack = new_stack(number);
  }
  t.here =
      fiber(std::allocator_arg, boost::context::preallocated(t.stack.sp, t.stack.size, t.stack),
            no_deallocation(), [this, &t](fiber&& from) {
#ifdef SPECAGG_ASAN
              __sanitizer_finish_switch_fiber(t.fake_stack, &scheduler_stack_, &scheduler_size_);
#endif
              t.scheduler = std::move(from);
              for (;;) {
                cluster_->call(cluster_->context);
                ++returned_;
                suspend(waits::returned);
              }
              return std::move(t.scheduler);
            });
}

void block::prepare(cluster& in, unsigned rank, uint3 index) {
  started_ = false;
  cluster_ = &in;
  rank_ = rank;
  index_ = index;
  const auto& shape = in.shape->block;
  size_ = static_cast<unsigned>(shape.size());
  while (threads_.size() < size_) threads_.push_back(std::make_unique<thread>());
  at_barrier_ = returned_ = at_cluster_ = 0;
  ready_warps_ = phase_seen_ = 0;
  const unsigned warps = (size_ + warp_size - 1) / warp_size;
  order_.draw(warps);
  for (unsigned i = 0; i < size_; ++i) {
    auto& t = *threads_[i];
    if (t.at != waits::returned || !t.here) renew(t, i);
    t.at = waits::nowhere;
    t.phases = 0;
    t.index = {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
  }
  for (unsigned w = 0; w < warps; ++w) {
    const unsigned lanes = std::min(warp_size, size_ - w * warp_size);
    warps_[w].exists = lanes == warp_size ? ~0u : (1u << lanes) - 1;
    warps_[w].ready = warps_[w].waiting = 0;
    warps_[w].order.draw(warp_size);
    ready(w, warps_[w].exists);
  }
}

bool block::can_go_on() const {
  return ready_warps_ != 0 || (at_cluster_ > 0 && phase_seen_ != cluster_->phase);
}

void block::release_cluster() {
  phase_seen_ = cluster_->phase;
  for (unsigned i = 0; i < size_; ++i)
    if (auto& t = *threads_[i]; t.at == waits::cluster && t.phases <= cluster_->phase) {
      t.at = waits::nowhere;
      --at_cluster_;
      ready(i / warp_size, 1u << i % warp_size);
    }
}

void block::advance() {
  if (!std::exchange(started_, true)) this_program().spoil();
  current = this;
  blockIdx = index_;
  blockDim = {cluster_->shape->block.x, cluster_->shape->block.y, cluster_->shape->block.z};
  gridDim = {cluster_->shape->grid.x, cluster_->shape->grid.y, cluster_->shape->grid.z};
  for (;;) {
    while (ready_warps_ != 0 && cluster_->error.empty()) {
      const unsigned w = order_.at[std::countr_zero(ready_warps_)];
      auto& lanes = warps_[w].ready;
      unsigned l = 0;
      if (scheduling.which == order::forward) l = static_cast<unsigned>(std::countr_zero(lanes));
      else if (scheduling.which == order::backward)
        l = 31 - static_cast<unsigned>(std::countl_zero(lanes));
      else
        while ((lanes >> warps_[w].order.at[l] & 1) == 0) ++l;
      if (scheduling.which == order::shuffled) l = warps_[w].order.at[l];
      lanes &= ~(1u << l);
      if (lanes == 0) ready_warps_ &= ready_warps_ - 1;
      running_ = w * warp_size + l;
      run(*threads_[running_]);
    }
    if (phase_seen_ != cluster_->phase && cluster_->error.empty()) release_cluster();
    if (ready_warps_ == 0 || !cluster_->error.empty()) break;
  }
  current = nullptr;
  if (!cluster_->error.empty()) return;
  if (finished()) {
    if (cluster_->size > 1) this_program().spoil();
  } else if (at_cluster_ != size_) {
    cluster_->error = state();
  }
}

void block::run(thread& t) {
  threadIdx = t.index;
  ++counted().switches;
#ifdef SPECAGG_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, static_cast<char*>(t.stack.sp) - t.stack.size,
                                 t.stack.size);
#endif
  t.here = std::move(t.here).resume();
#ifdef SPECAGG_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void block::suspend(waits at) {
  auto& t = *threads_[running_];
  t.at = at;
#ifdef SPECAGG_ASAN
  __sanitizer_start_switch_fiber(&t.fake_stack, scheduler_stack_, scheduler_size_);
#endif
  t.scheduler = std::move(t.scheduler).resume();
#ifdef SPECAGG_ASAN
  __sanitizer_finish_switch_fiber(t.fake_stack, &scheduler_stack_, &scheduler_size_);
#endif
  t.at = waits::nowhere;
}

// What the threads of this block wait for, when they cannot all go on.
std::string block::state() const {
  std::string all = "misuse of a barrier: block (" + std::to_string(index_.x) + ", " +
                    std::to_string(index_.y) + ", " + std::to_string(index_.z) + ") cannot go on:";
  const auto count = [&](waits at, const char* what) {
    unsigned n = 0, first = size_;
    for (unsigned i = 0; i < size_; ++i)
      if (threads_[i]->at == at) {
        ++n;
        first = std::min(first, i);
      }
    if (n > 0)
      all += " " + std::to_string(n) + " threads " + what + " (thread " + std::to_string(first) +
             ", ...);";
  };
  count(waits::block, "wait at __syncthreads()");
  count(waits::warp, "wait for other lanes of their warp");
  count(waits::cluster, "wait at cluster.sync()");
  count(waits::returned, "have returned");
  return all;
}

void block::fail(const char* what, ...) {
  char text[300];
  std::va_list numbers;
  va_start(numbers, what);
  std::vsnprintf(text, sizeof text, what, numbers);
  va_end(numbers);
  cluster_->error = std::string("misuse of a ") + text + " (thread " + std::to_string(running_) +
                    " of block (" + std::to_string(index_.x) + ", " + std::to_string(index_.y) +
                    ", " + std::to_string(index_.z) + "))";
  suspend(waits::nowhere);
  std::abort();  // never reached
}

void block::synchronise() {
  if (++at_barrier_ == size_) {
    at_barrier_ = 0;
    const unsigned warps = (size_ + warp_size - 1) / warp_size;
    order_.draw(warps);
    for (unsigned w = 0; w < warps; ++w) {
      shuffle(warps_[w]);
      ready(w, warps_[w].exists);
    }
  }
  suspend(waits::block);
}

std::uint64_t block::across_warp(warp_function f, std::uint32_t mask, std::uint64_t value,
                                 unsigned source) {
  const unsigned w = running_ / warp_size, own = lane();
  auto& warp = warps_[w];
  if ((mask >> own & 1) == 0) fail("warp: lane %u is not in its own mask", own);
  mask &= warp.exists;
  if (f == warp_function::shuffle && (mask >> source & 1) == 0)
    fail("warp: lane %u reads lane %u, which is not in the mask", own, source);
  warp.function[own] = f;
  warp.mask[own] = mask;
  warp.value[own] = value;
  warp.source[own] = static_cast<std::uint8_t>(source);
  warp.waiting |= 1u << own;
  bool all = (warp.waiting & mask) == mask;
  for (auto rest = mask; all && rest != 0; rest &= rest - 1) {
    const auto l = std::countr_zero(rest);
    all = warp.mask[l] == mask && warp.function[l] == f;
  }
  if (all) {
    warp.waiting &= ~mask;
    std::uint64_t ballot = 0;
    for (auto rest = mask; rest != 0; rest &= rest - 1)
      if (const auto l = std::countr_zero(rest); warp.value[l] != 0)
        ballot |= std::uint64_t{1} << l;
    for (auto rest = mask; rest != 0; rest &= rest - 1) {
      const auto l = std::countr_zero(rest);
      warp.result[l] = f == warp_function::shuffle ? warp.value[warp.source[l]] : ballot;
    }
    shuffle(warp);
    ready(w, mask);
  }
  suspend(waits::warp);
  return warp.result[own];
}

void block::arrive() {
  auto& t = *threads_[running_];
  if (t.phases > cluster_->phase) fail("cluster: a thread arrives twice at its barrier");
  ++t.phases;
  if (++cluster_->arrived == cluster_->size * std::size_t{size_}) {
    cluster_->arrived = 0;
    ++cluster_->phase;
    cluster_->order.draw(cluster_->size);
  }
}
void block::wait_for_cluster() {
  if (threads_[running_]->phases <= cluster_->phase) return;
  ++at_cluster_;
  suspend(waits::cluster);
}

// ---- the device ---------------------------------------------------------------------------------

worker::worker() {
  // for as long as the program runs: it waits, and holds nothing
  std::thread([this] { serve(); }).detach();
  started.acquire();
}

struct device {
  std::vector<std::unique_ptr<worker>> workers;  // of clusters
  block own;                                     // of the device's thread: blocks without a cluster
  std::binary_semaphore go{0}, done{0}, cluster_done{0};
  void (*call)(void*) = nullptr;
  void* context = nullptr;
  std::exception_ptr failure;

  device() {
    if (const char* wanted = std::getenv("SPECAGG_CUDA_ORDER")) {
      const std::string_view name = wanted;
      std::uint64_t seed = 1;
      std::from_chars(name.data(), name.data() + name.size(), seed);
      set_order(name == "forward"    ? order::forward
                : name == "backward" ? order::backward
                                     : order::shuffled,
                seed);
    }
    std::thread([this] { serve(); }).detach();
  }
  void serve() {
    for (;;) {
      go.acquire();
      try {
        call(context);
      } catch (...) {
        failure = std::current_exception();
      }
      done.release();
    }
  }
  worker& at(std::size_t i) {
    while (workers.size() <= i) workers.push_back(std::make_unique<worker>());
    return *workers[i];
  }
};
device& the_device() {
  static auto& d = *new device;  // its threads never end
  return d;
}

void worker::serve() {
  thread_pointer = thread_memory::end();
  started.release();
  for (;;) {
    go.acquire();
    block.advance();
    auto* next = block.together().next();
    (next ? next->go : the_device().cluster_done).release();
  }
}

uint3 place(std::size_t i, extent e) {
  return {static_cast<unsigned>(i % e.x), static_cast<unsigned>(i / e.x % e.y),
          static_cast<unsigned>(i / e.x / e.y)};
}

}  // namespace

void set_order(order which, std::uint64_t seed) {
  scheduling.which = which;
  scheduling.state = 0x9e3779b97f4a7c15u * (2 * seed + 1);
}

bool overwrites_shared_memory() { return this_program().ours; }

counts& counted() {
  static counts c;
  return c;
}

void on_device(void (*call)(void*), void* context) {
  auto& d = the_device();
  d.call = call;
  d.context = context;
  d.go.release();
  d.done.acquire();
  if (d.failure) std::rethrow_exception(std::exchange(d.failure, nullptr));
}

void run_kernel(const launch_shape& shape, void (*call)(const void*), const void* context) {
  auto& d = the_device();
  const extent grid = shape.grid, size = shape.cluster;
  const extent clusters{grid.x / size.x, grid.y / size.y, grid.z / size.z};
  cluster c;
  c.shape = &shape;
  c.call = call;
  c.context = context;
  c.size = static_cast<unsigned>(size.size());
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    // Clusters in any order too: one that waits for another would hang.
    const uint3 first =
        place(scheduling.which == order::forward ? i : clusters.size() - 1 - i, clusters);
    c.phase = 0;
    c.arrived = 0;
    c.order.draw(c.size);
    if (c.size == 1) {
      d.own.prepare(c, 0, first);
      d.own.advance();
    } else {
      for (unsigned rank = 0; rank < c.size; ++rank) {
        const uint3 in = place(rank, size);
        c.blocks[rank] = &d.at(rank);
        c.blocks[rank]->block.prepare(
            c, rank, {first.x * size.x + in.x, first.y * size.y + in.y, first.z * size.z + in.z});
      }
      c.next()->go.release();
      d.cluster_done.acquire();
    }
    if (!c.error.empty()) throw misuse(c.error);
  }
}

std::uint64_t across_warp(warp_function f, std::uint32_t mask, std::uint64_t value,
                          unsigned source) {
  return this_block().across_warp(f, mask, value, source);
}
unsigned lane() { return this_block().lane(); }
void synchronise_block() { this_block().synchronise(); }

void fail_kernel(const char* why) { this_block().fail("%s", why); }

unsigned cluster_rank() { return this_block().rank(); }
unsigned cluster_size() { return this_block().together().size; }
void arrive_at_cluster() { this_block().arrive(); }
void wait_for_cluster() { this_block().wait_for_cluster(); }
void* in_block(const void* shared, unsigned rank) {
  auto& b = this_block();
  if (rank >= b.together().size) b.fail("cluster: it has no block %u", rank);
  if (!this_program().contains(shared)) b.fail("cluster: a pointer that is not into shared memory");
  char* const own = const_cast<char*>(static_cast<const char*>(shared));
  return rank == b.rank()
             ? own
             : b.together().blocks[rank]->thread_pointer + (own - thread_memory::end());
}

}  // namespace cuda_emulator

// ---- alignment ----------------------------------------------------------------------------------

// What -fsanitize=alignment calls where an address is not a multiple of what its type asks for. The
// sanitizer's own library is not linked: on the CPU such a load works, and only those of kernels
// are wrong.
#ifndef SPECAGG_ASAN  // there the function is the sanitizer's, and ends the program
struct misaligned_access {
  const char* file;
  unsigned line, column;
  const void* type;
  unsigned char log_alignment, kind;
};
extern "C" void __ubsan_handle_type_mismatch_v1(const misaligned_access* what, std::uintptr_t at);
extern "C" void __ubsan_handle_type_mismatch_v1(const misaligned_access* what, std::uintptr_t at) {
  if (!cuda_emulator::current) return;
  cuda_emulator::current->fail(
      "load or store: an address that ends in %03x is not a multiple of %u, in %s:%u",
      static_cast<unsigned>(at % 4096), 1u << what->log_alignment, what->file, what->line);
}
#endif
