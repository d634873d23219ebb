// SPDX-License-Identifier: Apache-2.0

int main() {
  const std::string file = SPECAGG_SOURCE_DIR "/models/target.gguf";
  cpu::llama target(std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file)));
  std::vector<token_id> buffer(40, 17);
  text t{buffer, 8};
  return continue_text(t, 12, target, SPECAGG_SOURCE_DIR "/tests/backend/cpu/target_head.gguf") ==
                 status::ok
             ? 0
             : 1;
}
