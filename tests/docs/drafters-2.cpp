// SPDX-License-Identifier: Apache-2.0

int main() {
  cpu::llama target(std::string(SPECAGG_SOURCE_DIR "/examples/models/target.gguf"));
  std::vector<token_id> buffer(40, 17);
  text t{buffer, 8};
  return continue_text(t, 12, target, SPECAGG_SOURCE_DIR "/tests/backend/cpu/target_head.gguf") ==
                 status::ok
             ? 0
             : 1;
}
