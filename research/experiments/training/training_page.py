# SPDX-License-Identifier: Apache-2.0
"""The page of training on texts that a policy wrote.

usage: training_page.py RESULTS.json PAGE.md
"""
import json, pathlib, sys

TOY = ("accepted", "tv", "never", "sample", "with_p", "by_token", "by_text", "moved_with_p", "moved_by_text")
STEPS = ("reward", "tokens_of_a_call", "with_p", "by_token", "by_text", "cut")
PARAMETER = {"lossy": "alpha", "token-v3": "alpha", "ensemble": "lambda", "opt": "alpha", "chow": "alpha"}
QUESTIONS, GROUP = 42, 16  # as in main.cpp


def called(rule, value):
    return f"{rule}:{PARAMETER[rule]}={value}"


def rows(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1),
                      *("| " + " | ".join(line) + " |" for line in lines)])


def digits(pair, n):
    return f"{pair[0]:.{n}f}±{pair[1]:.{n}f}"


def bias(x):
    return "0" if x < 1e-12 else f"{x:.2f}"


def toy(results):
    return rows(["policy", "TV", "log p", "log pi, by token", "log pi, by text", "later: log p", "later: log pi, by text", "counts"],
                ([f"`{x['policy']}`", f"{x['tv']:.2f}" if x["tv"] > 1e-12 else "0", *(bias(x[m]) for m in TOY[4:]), f"{x['sample']:.2f}"]
                 for x in sorted(results["toy"], key=lambda x: (x["with_p"] >= 1e-12, x["policy"]))))


def steps(results):
    return rows(["policy", "tokens a call", "right answers", "log p", "log pi, by token", "log pi, by text", "by text, cut at 2"],
                ([f"`{x['policy']}`", digits(x["tokens_of_a_call"], 2), digits(x["reward"], 3),
                  *(digits(x[m], 2) for m in STEPS[2:])] for x in results["smollm2"]))


def on_smollm2(results):
    return f"""## On SmolLM2

`bits-4-3` [drafts](frontier.md#the-drafts) for SmolLM2-135M, temperature 1, no filters; the parameters accept 0.1 more on that
page. A step: {GROUP} answers to each of {QUESTIONS} questions, reward 1 if all tokens are the right answer's, baseline the mean of the other {GROUP - 1}.
The parameter is a bias of every logit (the last layer's), so the true gradient is exact, from the rows before each
answer. The columns are the step along the true gradient over the true gradient's length: 1 is unbiased.

{steps(results)}

± is one standard error of {results["steps"]} steps. *Cut at 2*: ratios above 2 count as 2, as trainers do: less variance for some bias.

**Limits**: one small model, short answers, one step and one kind of parameter; the table says how far a step goes along the
true gradient, not what it adds across it. Long texts have ratios of long products: *counts* falls with each token. Nothing
was trained to the end. `make training` computes all again, from nothing.
"""


def page(results):
    lossy = [x for x in results["toy"] if x["with_p"] >= 1e-12]
    exact = [x for x in lossy if x["by_text"] < 1e-12]
    left = [x for x in lossy if x not in exact]
    steps_of = [x for x in results["smollm2"] if x["policy"] != "lossless"]
    far = max(abs(x["by_text"][0] - 1) / x["by_text"][1] for x in steps_of)
    low = {m: min(x[m][0] for x in steps_of) for m in ("with_p", "by_token")}
    span = lambda m: f"{min(x[m] for x in lossy):.2f} to {max(x[m] for x in lossy):.2f}"
    return f"""# Train on texts that a policy wrote

**My rollouts are drafted. Which log-probability belongs in the ratio?** That of the law that wrote the text: log pi, which
the verifier reports with every token. With `lossless` that is the model's own log p, and nothing changes. With a lossy policy and
log p the gradient is biased: by {span("with_p")} of its length in the exact table below. With log pi and the ratio of the whole
text it is not, for {len(exact)} of {len(lossy)} lossy policies. A ratio for each token alone does not mend it ({span("by_token")}).
[On SmolLM2](#on-smollm2) a step with log p goes as little as {low["with_p"]:.2f} of its way, with ratios by token {low["by_token"]:.2f}, and with those of
the whole text all of it (within {far:.1f} standard errors). The price is variance.

## Three lines to change

```py
out = hf.generate(model, draft, **prompts, policy="lossy:alpha=0.5", do_sample=True, return_dict_in_generate=True)
log_pi = torch.tensor([sum(x) for x in out.log_pi])         # was: the model's own log-probabilities of the texts
ratio = (log_p.sum(-1) - log_pi).exp()                      # log_p [B, n]: of the model that is trained; 0 after the end
loss = -(ratio * advantage).mean()                          # was: a ratio for each token
```

`log_p` is at the temperature of the rollouts. `advantage` [B] may have any baseline that does not depend on the text itself: the
mean of the *other* answers of its group. In other engines and languages log pi has [these names](engine.md#rollouts).

A trainer that takes the log-probabilities of vLLM's samples gets log pi from [the plug-in](vllm.md) with
`logprobs_mode="processed_logprobs"`; then its correction must be by sequence, not by token (ms-swift:
`rollout_importance_sampling_mode="sequence_truncate"`; not tried here). A trainer that computes them again with the target
does not know log pi: verl-SpeCo does, and therefore refuses lossy acceptance. Filters belong to pi: train with top-p and the
like off, or no ratio brings back what they leave out.

## What is biased, exactly

Texts of three tokens from a vocabulary of three, drafts of two: every text that rounds can write is enumerated, with what the
verifier reports. A step is policy gradient with the mean reward as baseline. The numbers are |expected gradient - true one| / |true
one|, means of {results["worlds"]} random worlds (models and rewards).

{toy(results)}

* *TV*: of the texts' law from the target's. *Log p*, *log pi*: what the ratio divides by; *by token*: each token's
  own ratio; *by text*: the ratio of all tokens. *Later*: the model was trained since it wrote the texts.
* *Counts*: the share of the texts that an estimate is worth, (E w)² / E w² of the ratios w.
* {", ".join(f"`{x['policy']}`" for x in left)}: never writes texts that have {", ".join(f"{x['never']:.2f}" for x in left)} of the target's probability. No ratio brings them back.

{on_smollm2(results)}"""


if __name__ == "__main__":
    found, to = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(page(found))
