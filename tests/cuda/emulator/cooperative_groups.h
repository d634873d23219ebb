// SPDX-License-Identifier: Apache-2.0
// Of cooperative groups: the block and the cluster (see engine.hpp).
#pragma once
#include "cuda_runtime.h"

namespace cooperative_groups {

struct thread_block {
  static void sync() { cuda_emulator::synchronise_block(); }
  static unsigned thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
};
inline thread_block this_thread_block() { return {}; }

struct cluster_group {
  struct arrival_token {};
  static void sync() { barrier_wait(barrier_arrive()); }
  static arrival_token barrier_arrive() { return cuda_emulator::arrive_at_cluster(), arrival_token(); }
  static void barrier_wait() { cuda_emulator::wait_for_cluster(); }
  static void barrier_wait(arrival_token&&) { barrier_wait(); }
  static unsigned block_rank() { return cuda_emulator::cluster_rank(); }
  static unsigned num_blocks() { return cuda_emulator::cluster_size(); }
  static unsigned num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned thread_rank() { return block_rank() * thread_block::num_threads() + thread_block::thread_rank(); }
  template <class T>
  static T* map_shared_rank(T* shared, unsigned rank) {
    return static_cast<T*>(cuda_emulator::in_block(shared, rank));
  }
};
inline cluster_group this_cluster() { return {}; }

}  // namespace cooperative_groups
