#!/bin/sh
# Run tests under the kernels that other processors would choose: sums in another order, other last bits.
# Usage: cpus.sh python folder... ; fails if any setting fails, and says which.
set -u

python=$1
shift
settings="default MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default"
case $(env -u ATEN_CPU_CAPABILITY "$python" -c 'import torch; print(torch.backends.cpu.get_cpu_capability())') in
    AVX512) settings="$settings ATEN_CPU_CAPABILITY=avx2 ATEN_CPU_CAPABILITY=avx512" ;;
    AVX2) settings="$settings ATEN_CPU_CAPABILITY=avx2" ;;
esac

failed=
for setting in $settings; do
    echo "== $setting"
    if [ "$setting" = default ]; then
        env -u MKL_CBWR -u ATEN_CPU_CAPABILITY "$python" -m pytest -q -n "${JOBS:-2}" "$@"
    else
        env -u MKL_CBWR -u ATEN_CPU_CAPABILITY "$setting" "$python" -m pytest -q -n "${JOBS:-2}" "$@"
    fi || failed="$failed $setting"
done

if [ -n "$failed" ]; then
    echo "failed under:$failed" >&2
    exit 1
fi
echo "passed under: $settings"
