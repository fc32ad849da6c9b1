package cloud_test

import (
	"testing"

	"skyserve/provision/cloud"
)

// BenchmarkBuildLayout measures a layout of a thousand running replicas, which the leader makes in each iteration.
func BenchmarkBuildLayout(b *testing.B) {
	spec := parse(b, "name: chat\nmodels:\n  - {name: a, engine: {kind: vllm}, gpus: [{type: L4}]}\nbalancer: {auth: {keys_from: env:KEYS}, insecure: true}\nregions:\n  - {name: aws/us-east-1, replicas: {min: 1000, max: 1000}}\n")
	in := input(spec)
	l, err := cloud.BuildLayout(in)
	if err != nil {
		b.Fatal(err)
	}
	in.Have = launchAll(l.Desired)
	for b.Loop() {
		if _, err := cloud.BuildLayout(in); err != nil {
			b.Fatal(err)
		}
	}
}
