// SPDX-License-Identifier: Apache-2.0
// --backend cpu: GGUF models on specagg::cpu, whose rows have the same bits in any call. So every
// text is the one that its request gets alone.
#include <specagg/backend/cpu/draft_head.hpp>
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/draft/head.hpp>
#include <specagg/draft/mapped.hpp>

#include "../cli/chat.hpp"
#include "decoder.hpp"

namespace {

using namespace specagg;

// A draft head of one text, as a drafter.
class head_drafter {
  struct parts {
    cpu::draft_head head;
    head_source<cpu::draft_head, cpu::llama> source;
    mapped_drafter<head_source<cpu::draft_head, cpu::llama>> rows;
    parts(const std::shared_ptr<const cpu::head_weights>& weights, const cpu::llama& target,
          const std::shared_ptr<thread_pool>& pool, const decode_options& how)
        : head(weights, target.shared_weights(), pool, target.capacity()),
          source(head, target),
          rows(source, weights->map, how.gamma, how.sample) {}
  };
  std::unique_ptr<parts> own_;

 public:
  using row_type = normal_form<mapped_row<float>>;
  head_drafter(const std::shared_ptr<const cpu::head_weights>& weights, const cpu::llama& target,
               const std::shared_ptr<thread_pool>& pool, const decode_options& how)
      : own_(std::make_unique<parts>(weights, target, pool, how)) {}
  std::size_t position() const { return own_->rows.position(); }
  status rollback(std::size_t n) { return own_->rows.rollback(n); }
  template <class P>
  status next(const draft_position& at, P& processor, row_type& row, double& confidence) {
    return own_->rows.next(at, processor, row, confidence);
  }
};

std::shared_ptr<const cpu::llama_weights> load(const std::string& file) {
  if (file.empty()) return nullptr;
  cli::progress bar("loading " + file);
  return std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file), true,
                                                    [&](double done) { bar.show(done); });
}

class cpu_models {
 public:
  using model = cpu::llama;
  using head = head_drafter;
  explicit cpu_models(const server_options& o)
      : target_(load(o.target)),
        draft_(load(o.draft)),
        tokens_(target_->file),
        pool_(std::make_shared<thread_pool>(o.threads)) {
    cli::say_if_fewer(pool_->threads(), o.threads);
    if (draft_ && cpu::tokenizer(draft_->file).hash() != tokens_.hash())
      throw error(o.draft, "", "has another vocabulary than " + o.target);
    context_ = draft_context_ = cpu::checked_capacity(*target_, o.context);
    if (draft_) draft_context_ = cpu::checked_capacity(*draft_, context_);
    if (o.head.empty()) return;
    head_ = std::make_shared<const cpu::head_weights>(cpu::gguf_file::open(o.head));
    head_->check_target(*target_);
  }

  std::size_t context() const { return context_; }
  std::size_t draft_context() const { return draft_context_; }
  const cli::tokenizer& tokens() const { return tokens_; }
  thread_pool& pool() const { return *pool_; }
  std::unique_ptr<model> target(std::size_t /*place*/, std::size_t capacity) const {
    auto made = std::make_unique<model>(target_, pool_, capacity);
    if (head_) made->keep_hidden();  // in all texts, so that a head's may be copied from any
    return made;
  }
  std::unique_ptr<model> draft(std::size_t /*place*/, std::size_t capacity) const {
    return std::make_unique<model>(draft_, pool_, std::min(capacity, draft_context_));
  }
  head make_head(const model& target, const decode_options& how) const {
    return head(head_, target, pool_, how);
  }
  double bytes(const request& r) const {
    double all = cpu::session_bytes(*target_, r.longest());
    if (r.draft == drafts::model)
      all += cpu::session_bytes(*draft_, std::min(r.longest(), draft_context_));
    if (r.draft == drafts::head) all += cpu::session_bytes(*head_, r.longest());
    return all;
  }
  static void extend(std::span<addition<model>> all) { (void)model::extend(all); }

 private:
  std::shared_ptr<const cpu::llama_weights> target_, draft_;
  std::shared_ptr<const cpu::head_weights> head_;
  cli::cpu_tokenizer tokens_;
  std::shared_ptr<thread_pool> pool_;
  std::size_t context_ = 0, draft_context_ = 0;
};

}  // namespace

std::unique_ptr<decoder> make_cpu_decoder(const server_options& o) {
  return std::make_unique<decoder_on<cpu_models>>(o);
}
