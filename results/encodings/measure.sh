# Train and measure the models of the study; run it in the root of the repository.
set -eu
train() { python -m scripts.train "$@"; }
train encodings --seeds 3
train encodings rope_linear:rotated=false --seeds 3
train encodings rope alibi kerple t5 fire transformer_xl --seeds 5
train encodings rope alibi kerple t5 transformer_xl --no-passkeys --seeds 3 --out training/no_passkeys
train encodings rope --steps 6000 --seeds 5 --out training/long
train encodings transformer_xl kerple alibi t5 --steps 6000 --seeds 3 --out training/long
mkdir -p measured
train table training/encodings training/no_passkeys training/long --out measured/trainings.csv
for seed in 1 2 3 4 5; do  # FIRE, held: the same weights
  cp -r training/encodings/fire-seed$seed "training/encodings/fire-held=true-seed$seed"
  sed -i 's/"fire"/"fire:held=true"/' "training/encodings/fire-held=true-seed$seed/config.json"
done
measure() {  # PART "METHODS" MODEL …
  ropewalk run --scaling $2 --model "${@:3}" --length 0.25x 0.5x 1x 2x 4x 8x \
    --task perplexity:tail=48 perplexity:protocol=prefix --out measured/$1/perplexity
  ropewalk run --scaling $2 --model "${@:3}" --length 0.5x 1x 2x 4x 8x --task passkey:depths=5,trials=5 \
    --out measured/$1/passkey
}
some="none yarn self_extend rerope lm_infinite"
measure encodings "$some pi ntk ntk_by_parts" training/encodings/rope-seed?
measure no_passkeys "$some" training/no_passkeys/rope-seed?
measure long "$some" training/long/rope-seed?
for name in encodings no_passkeys long; do
  measure $name none $(ls -d training/$name/*-seed? | grep -v /rope-)
done
python -c 'import ropewalk as rw; rw.to_parquet("measured", "measured/samples.parquet")'
python - <<'FIGURE'
import ropewalk as rw
from ropewalk.harness.reports import curves

frame = rw.frame("measured/samples.parquet/encodings")
shown = ["rope", "alibi", "kerple", "t5", "fire", "fire-held=true", "transformer_xl"]
kept = frame["model"].str.rsplit("-", n=1).str[0].isin(shown) & frame["scaling"].isin(
    ["none", "self_extend"]
)
curves.make(frame[kept]).savefig("measured/curves.png")
FIGURE
