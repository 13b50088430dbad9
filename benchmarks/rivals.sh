#!/usr/bin/env bash
# Every test-time method on shipped models, per image and along four streams: 15 corruptions, severity 5, 200 images each.
# Rates are chosen by `mt3 tune` on corruptions and images that are not reported; online on a stream as long as a reported
# one where a step is cheap, since a rate that is harmless for 200 images may collapse over 3,000. A file that is there is
# not made again, so that a killed run goes on.
#
#     benchmarks/rivals.sh DATA OUT MODEL [METHOD ...]      # mt3 is on the PATH; without methods, all
set -euo pipefail
[ $# -ge 3 ] || { sed -n "2,8p" "$0"; exit 2; }
data=$1 out=$2/$3 model=$3
shift 3
methods=${*:-own memo tent sar t3a lame plus average memo-augmix}
streams="shift continual mixed correlated"

tune() { # file, then options
  [ -e "$1" ] || mt3 tune "$model" --data cifar10 --data-dir "$data" --out "$@"
}

evaluate() { # file, then options
  [ -e "$1" ] || mt3 evaluate "$model" --data cifar10 --data-dir "$data" --limit 200 --out "$@"
}

along() { # method, then options
  for stream in $streams; do
    evaluate "$out/online/$1-$stream.json" --stream "$stream" "${@:2}"
  done
}

per_image() { # method, then the grid
  tune "$out/tuned/$1.json" --method "$1" --limit 100 "${@:2}"
  evaluate "$out/$1.json" --tuned "$out/tuned/$1.json" --confidence
}

online() { # method, images of each held-out corruption, options of both, then the grid
  local method=$1 limit=$2 options=$3
  # shellcheck disable=SC2086
  tune "$out/tuned/$method-online.json" --method "$method" --stream continual --limit "$limit" $options "${@:4}"
  # shellcheck disable=SC2086
  along "$method" --tuned "$out/tuned/$method-online.json" $options
}

for method in $methods; do
  case $method in
    own)
      evaluate "$out/own.json" --confidence
      online own 375 "--batch 8" --lr 0.0001 0.001 0.01 --steps 1 --views 4
      ;;
    tent | sar)
      per_image "$method" --lr 0.00025 0.0025 0.025 --steps 1
      online "$method" 750 "--batch 8" --lr 0.000025 0.00025 0.0025 0.025 --steps 1
      ;;
    memo | memo-augmix)
      per_image "$method" --lr 0.0005 0.0015 0.005 0.015 --steps 1 --views 16
      online "$method" 375 "--batch 8" --lr 0.00005 0.0005 0.005 --steps 1 --views 8
      ;;
    plus) online plus 750 "--batch 8" --support 32 128 512 ;;
    average)
      per_image average --views 8 32
      along average --tuned "$out/tuned/average.json"
      ;;
    *) along "$method" --method "$method" ;;
  esac
done
