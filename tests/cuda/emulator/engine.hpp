// SPDX-License-Identifier: Apache-2.0
// A CUDA device on the CPU, for tests: the headers of this folder take the place of the CUDA
// runtime's on the include path, so that kernels compile, as they are, with any C++20 compiler.
//
// Every thread of a block is a fiber, and every block of a cluster a thread of the operating system
// that runs its fibers, so `static thread_local` gives each block its own __shared__ memory. One
// fiber of one block runs at a time, as far as it can get: what a missing barrier does depends on
// the order alone, and tests choose the order. Shared and device memory start as 0xff.. bytes
// (NaN); the shared memory of a block that has returned is overwritten so again. Work in a stream
// waits until the host synchronises with it, as late as CUDA would allow.
//
// Loads and stores of kernels check their alignment where the kernel is compiled with
// -fsanitize=alignment, as tests/CMakeLists.txt has it. What is prefetched must be device memory.
//
// Not for several host threads at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace cuda_emulator {

// Which of the threads (warps, blocks) that can run runs next. `shuffled` draws priorities anew at
// every barrier. At start: what SPECAGG_CUDA_ORDER says (forward, backward, or a number that seeds
// shuffled), else forward.
enum class order { forward, backward, shuffled };
void set_order(order, std::uint64_t seed = 0);

// A kernel did what is undefined in CUDA, or would hang. Thrown by the call that waits for it.
struct misuse : std::logic_error {
  using logic_error::logic_error;
};

// What was asked of the device since counted() was set to {}.
struct counts {
  std::size_t launches = 0;        // kernels enqueued by the host
  std::size_t captured = 0;        // kernels recorded in a graph
  std::size_t graph_launches = 0;  // graphs enqueued
  std::size_t allocations = 0;     // cudaMalloc, cudaMallocHost, cudaMallocAsync
  std::size_t switches = 0;        // from a fiber to another
  std::size_t questions = 0;       // about attributes and occupancy of kernels
  unsigned largest_cluster = 0;    // of the kernels enqueued or recorded
  std::size_t blocks = 0;          // of all of them
};
counts& counted();

// The `after`-th call from now (0: the next) of those that can fail returns `error` (a cudaError_t)
// and does nothing.
void fail_call(int error, std::size_t after = 0);
// Pieces of memory that were not given back.
std::size_t allocated();
// As if the machine had this many devices (1 at start).
void set_devices(int count);
// What a device can do: an H100 at start.
struct ability {
  bool clusters = true;          // cudaDevAttrClusterLaunch
  unsigned largest_cluster = 8;  // that cudaOccupancyMaxActiveClusters finds room for
  int ptx_version = 90;          // of the code that runs
  int blocks = 2;                // of a kernel that a multiprocessor runs at once
};
ability& ability_of(int device);

// False where variables of others lie among the shared ones: with AddressSanitizer, or in a static
// program.
bool overwrites_shared_memory();

// ---- for cuda_runtime.h and cooperative_groups.h ------------------------------------------------

struct extent {
  unsigned x = 1, y = 1, z = 1;
  std::size_t size() const { return std::size_t{x} * y * z; }
};
struct launch_shape {
  extent grid, block, cluster;
};

// What waits in a stream, or is recorded in a graph. Lies in memory that is given up without a
// destructor.
struct operation {
  operation* next = nullptr;
  virtual void run() const = 0;

 protected:
  ~operation() = default;
};

// Runs call(context) in every thread of the grid; on the device's thread.
void run_kernel(const launch_shape& shape, void (*call)(const void*), const void* context);
// Runs call(context) on the device's thread and waits for it; what it throws is thrown here.
void on_device(void (*call)(void*), void* context);

enum class warp_function : std::uint8_t { sync, shuffle, ballot };
// Waits for all lanes of the mask; the value of lane `source` (ballot: one bit a lane, of those
// whose value is not 0).
std::uint64_t across_warp(warp_function, std::uint32_t mask, std::uint64_t value, unsigned source);
unsigned lane();
void synchronise_block();

// What device code reads must be in device memory. Returns `at`.
const void* readable(const void* at, std::size_t size);
// Ends the kernel, and why.
[[noreturn]] void fail_kernel(const char* why);

unsigned cluster_rank();
unsigned cluster_size();
void arrive_at_cluster();
void wait_for_cluster();
// A variable in the shared memory of this block, as the block of that rank has it.
void* in_block(const void* shared, unsigned rank);

}  // namespace cuda_emulator
