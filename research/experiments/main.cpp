// SPDX-License-Identifier: Apache-2.0
// The papers' experiments with the bundled models.
#include "lab.hpp"
#include "parts.hpp"

namespace experiments {
namespace {

constexpr const char* cascades_header =
    "pair,text,window,temperature,rule,parameter,policy,rejection,cross_entropy,argmax_accuracy,"
    "sampled_accuracy,"
    "tv_target,kl_target";

cos_plan cos(bool quick, std::size_t prompts, std::size_t tokens, std::size_t repeats = 1) {
  const cos_models models{{"bard", "bible", "target"}, "draft", "target", true};
  if (quick) return {models, {0.3, 0.5}, {0.1}, true, true, prompts, tokens, repeats};
  return {models, {0.1, 0.3, 0.5, 0.7, 0.9}, {0.1, 0.2, 0.3, 0.4, 0.5}, true, true, prompts, tokens,
          repeats};
}

latency_plan cascades_by_the_clock(bool quick) {
  return {pairs[0],
          {{"lossless", {0}},
           {"ensemble", {0.2, 0.4, 0.6, 0.8, 1}},
           {"lenient", {0.2, 0.5, 0.7, 0.9}},
           {"chow", {0.5, 0.7, 0.8, 0.9}},
           {"diff", {-0.1, 0, 0.1, 0.3}},
           {"opt", {-0.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5}},
           {"bild", {4, 5, 6, 7}},
           {"token-v2", {0.02, 0.1, 0.2, 0.4}},
           {"token-v3", {0.6, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998}}},
          {3, 5, 7},
          std::size_t(quick ? 1 : 3),
          std::size_t(quick ? 32 : 64),
          std::size_t(quick ? 3 : 15)};
}

const std::vector<part<lab>> parts = {
    {"cascades-draft-target", false, 200, 8, cascades_header,
     [](lab& l, table& t) { cascades(l, pairs[0], everywhere, t); }},
    {"cascades-bard-bible", false, 200, 8, cascades_header,
     [](lab& l, table& t) { cascades(l, pairs[1], everywhere, t); }},
    {"cascades-bible-bard", false, 200, 8, cascades_header,
     [](lab& l, table& t) { cascades(l, pairs[2], everywhere, t); }},
    {"acceptance", false, 30, 5,
     "pair,temperature,positions,ratio,ratio_se,match,match_se,coupled,coupled_se,coupled_bound,"
     "quantised,quantised_"
     "bytes,"
     "independent_both,independent_only_l,independent_only_r,shared_both,shared_only_l,shared_only_"
     "r",
     acceptance},
    {"verifiers", false, 100, 4,
     "pair,temperature,gamma,verifier,tokens,rounds,accepted,accepted_se,tokens_per_round,tokens_"
     "per_round_se,"
     "telemetry,"
     "telemetry_se,reached",
     verifiers, "acceptance"},
    {"cos-calls", false, 190, 8,
     "models,policy,value,temperature,method,gamma,tokens,a_q,a_p,calls_q,calls_p,calls,predicted_"
     "q,predicted_p,"
     "predicted",
     [](lab& l, table& t) {
       cos_calls(l, l.how.quick ? cos(true, 2, 48) : cos(false, 8, 128), t);
     }},
    {"draft-length", false, 60, 4,
     "pair,temperature,prices,how,gamma,tokens_per_cost,acceptance,tokens", draft_length},
    {"bild", false, 60, 4,
     "algorithm,longest_run,fallback,rollback,tokens,agreement,agreement_se,target_calls,draft_"
     "calls",
     bilds},
    {"regret", false, 10, 2, "models,loss,alpha,positions,regret,bound,wrong,largest_share",
     regrets},
    {"dssd", false, 1, 1,
     "pair,temperature,vocabulary,mbit_per_s,delay_ms,gamma,protocol,tokens_per_round,up_bytes,"
     "down_"
     "bytes,communication_ms,slm_ms,llm_ms,speedup",
     dssd, "verifiers acceptance"},
    {"dssd-paired", false, 20, 2,
     "pair,gamma,up_mbit_per_s,down_mbit_per_s,rounds,rejected,dsd_ms,dssd_ms,gain_ms,gain_se,dssd_"
     "slower",
     dssd_paired},
    {"dragon-acceptance", false, 10, 2,
     "eta_l,gamma_l,positions,eq5,acceptance_l,acceptance_r,largest_distance,least_gain,gain",
     dragon_acceptance},
    {"dragon-latency", false, 60, 5,
     "temperature,device_ms,cloud_ms,delay_ms,aggregation,strategy,acceptance_l,acceptance_r,ms_"
     "per_token,ms_se,"
     "over_eq8,over_eq8_se,first_ms,predicted,eq9",
     dragon_latency, "acceptance"},
    {"dragon-devices", false, 30, 1, "what,device_ms,delay_ms,side,sequences,mean,se",
     dragon_devices, "acceptance"},
    {"times", true, 5, 1, "model,tokens,seconds,quartile_1,quartile_3,v",
     [](lab& l, table& t) { times(l, {"draft", "target", "bard", "bible"}, t); }},
    {"latency", true, 400, 12,
     "pair,execution,gamma,rule,parameter,policy,seconds_per_token,target_seconds_per_token,"
     "relative_latency,speedup,"
     "predicted,error,predicted_free_scoring,acceptance,target_calls_per_token,speedups",
     [](lab& l, table& t) { latency(l, cascades_by_the_clock(l.how.quick), t); },
     "times cascades-draft-target"},
    {"cos-speed", true, 450, 15,
     "models,policy,value,temperature,method,gamma,tokens_per_second,speedup,predicted,error,"
     "predicted_free_scoring,speedups",
     [](lab& l, table& t) {
       cos_speed(l, l.how.quick ? cos(true, 1, 32, 3) : cos(false, 2, 64, 21), t);
     },
     "times cos-calls"},
    {"draft-length-speed", true, 60, 3,
     "pair,temperature,how,gamma,speedup,predicted,error,speedups", draft_length_speed, "times"},
};

}  // namespace
}  // namespace experiments

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> inputs;
  for (const char* m : {"draft", "target", "bard", "bible"})
    inputs.push_back(std::string(SPECAGG_MODELS "/") + m + ".gguf");
  for (const std::string& t : experiments::texts)
    inputs.push_back(SPECAGG_MODELS "/../research/text/" + t + "/test.txt");
  return experiments::program(argc, argv, "specagg-experiments",
                              "The papers' experiments with the bundled models: a CSV file for "
                              "each part",
                              experiments::parts, inputs);
}
