// SPDX-License-Identifier: Apache-2.0
// Two queues carry the protocol, and the text is that of dragon_decode.
#include <cstdio>

#include <specagg/audit/toy_source.hpp>

int main() {
  constexpr std::size_t V = 50, size = 40;
  const std::vector<token_id> prompt{1, 2, 3};
  const coupled_noise noise(7);
  const auto make = [&](side s, double h) {
    sites::hello terms = sites::hello_for(V, s);
    terms.most_tokens = size;
    return site<toy_source<float>>{{terms, prompt, {noise}}, {V, 1 + std::uint64_t(s)}, h};
  };
  site<toy_source<float>> l = make(side::l, 0.5), r = make(side::r, 0);
  l.other = &r;
  r.other = &l;
  l.protocol.connected(l);
  r.protocol.connected(r);
  for (int i = 0; i < 1000 && !(l.protocol.finished() && r.protocol.finished()); ++i) {
    l.work();
    r.work();
  }
  std::vector<token_id> buffer(size);
  std::copy(prompt.begin(), prompt.end(), buffer.begin());
  text t{buffer, prompt.size()};
  toy_source<float> p_l(V, 1), p_r(V, 2);
  sites::dragon_workspace<float> work(V);
  sites::shared_drafts drafts{noise};
  const status s = sites::dragon_decode(p_l, p_r, sites::weigh_sites(0.5, 0), drafts,
                                        {.text = t, .most = size, .work = work});
  std::printf("%zu and %zu tokens, %s; misuses %zu\n", l.protocol.text().size(),
              r.protocol.text().size(), l.protocol.problem().c_str(),
              l.model.misuses + r.model.misuses);
  return s == status::context_full && l.protocol.text() == buffer && r.protocol.text() == buffer &&
                 l.model.misuses + r.model.misuses == 0
             ? 0
             : 1;
}
