// Package demandtest provides a small service with a load history, for tests of planning.
package demandtest

import (
	"testing"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand"
)

// Model is the model of Service.
const Model = "meta-llama/Llama-3.1-8B-Instruct"

// Service is the service.yaml of one model in local/us and local/eu, with one to eight replicas
// in each, which may be donated. A replica's capacity is 1500 uncached prompt tokens per second.
const Service = `name: chat
models:
  - name: ` + Model + `
    aliases: [chat-small]
    engine: {kind: sim, speed: 10}
    gpus: [{type: L4, count: 1, tps: 1500}]
regions:
  - name: local/us
    replicas: {min: 1, max: 8}
  - name: local/eu
    replicas: {min: 1, max: 8}
autoscale: {donate: true}
`

// Now is the end of the histories of Constant.
var Now = time.Unix(30_000_000*60, 0).UTC()

// Parse reads a service.yaml as a controller does.
func Parse(t testing.TB, text string) *service.Spec {
	t.Helper()
	spec, err := service.ParseDeployed("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// Constant returns a load of us and eu prompt tokens per second in local/us and local/eu over
// the minutes before Now, with the prefix hit rate hit.
func Constant(t testing.TB, minutes int, us, eu, hit float64) *forecast.History {
	t.Helper()
	var points []telemetry.Point
	end := Now.Unix() / 60
	for m := end - int64(minutes); m < end; m++ {
		for region, tps := range map[service.Region]float64{"local/us": us, "local/eu": eu} {
			points = append(points, telemetry.Point{
				Minute: m, Balancer: "lb-" + region.ShortName(), Region: region, Model: Model,
				Tier: service.TierFast, PromptTokens: int64(60 * tps), CachedTokens: int64(60 * tps * hit),
			})
		}
	}
	h, err := demand.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
