# SPDX-License-Identifier: Apache-2.0
"""llama.cpp: in a round with drafts each token has log-probability 0.

usage: llama_logprobs.py LLAMA-SERVER   (pip install gguf)
"""
import http.client, json, os, subprocess, sys, tempfile, time
import numpy as np
import llama_model

file, port = os.path.join(tempfile.mkdtemp(), "model.gguf"), 8732
p = np.full((5, 5), 1e-13)  # token 4 ends the text: never
p[:, :4] = 0.25
llama_model.write(file, np.log(p))
ask = dict(prompt=[3, 2], n_predict=8, temperature=1, top_k=0, top_p=1, min_p=0, seed=1, n_probs=1)
for drafts in "", f"--spec-type draft-simple --spec-draft-n-max 2 --spec-draft-model {file}":
    server = subprocess.Popen([sys.argv[1], *f"--threads 1 --port {port} -m {file} {drafts}".split()],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(5)
    to = http.client.HTTPConnection("127.0.0.1", port)
    to.request("POST", "/completion", json.dumps(ask))
    seen = json.load(to.getresponse())["completion_probabilities"]
    server.kill(), server.wait()
    print("with drafts:   " if drafts else "without drafts:", *(f"{one['logprob']:.2f}" for one in seen))
print("-1.39, the logarithm of 0.25, is due each time")
