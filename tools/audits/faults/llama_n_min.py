# SPDX-License-Identifier: Apache-2.0
"""llama.cpp: a sampled draft that is shorter than n_min is dropped, so that another token is likelier.

usage: llama_n_min.py LLAMA-SERVER N   (pip install gguf; N: --spec-draft-n-min)
"""
import http.client, json, os, subprocess, sys, tempfile, time
import numpy as np
import llama_model

file, port = os.path.join(tempfile.mkdtemp(), "model.gguf"), 8731
p = np.full((5, 5), 1e-13)  # token 4 ends the text: never
p[3, 2], p[2, :2], p[0, 0], p[1, :4] = 1, 0.5, 1, 0.25  # drafts after 3 2: 0, then surely 0 again; or 1, then any token
llama_model.write(file, np.log(p))
server = subprocess.Popen([sys.argv[1], *f"""--threads 1 --port {port} -m {file} --spec-draft-model {file}
    --spec-type draft-simple --spec-draft-sampling probabilistic --spec-draft-n-max 2 --spec-draft-p-min 0.45
    --spec-draft-n-min {sys.argv[2]}""".split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
ask, seen = dict(prompt=[3], n_predict=4, temperature=1, top_k=0, top_p=1, min_p=0, return_tokens=True), [0] * 5
time.sleep(5)
for seed in range(1000):
    to = http.client.HTTPConnection("127.0.0.1", port)
    to.request("POST", "/completion", json.dumps({**ask, "seed": seed}))
    seen[json.load(to.getresponse())["tokens"][1]] += 1
server.kill()
print(f"token 0 {seen[0]} times, token 1 {seen[1]} times; 500 each are due")
